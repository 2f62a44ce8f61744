"""Servers on the learner's device: asleep while it updates. Against the stand-in, which dies where SGLang
does (tests/sglang/test_contract.py has the real one)."""

from pathlib import Path

import pytest

from autoforge_jax.config import load_config, parse_config
from autoforge_jax.errors import ConfigError, EngineLostError, PolicyError, WeightsError
from autoforge_jax.plan.report import make_plan, plan_text
from autoforge_jax.rollout.sglang_weights import PublishedWeights
from tests.autoforge_jax.scripted_sglang import ScriptedServer
from tests.autoforge_jax.test_engine_sglang import Make, folder, initial, make, request, server, weights

__all__ = ["folder", "initial", "make", "server", "weights"]
ROOT = Path(__file__).resolve().parents[2]
RELEASE, RESUME, LOAD = (
    "/release_memory_occupation", "/resume_memory_occupation", "/update_weights_from_disk",
)  # fmt: skip


def _order(server: ScriptedServer) -> list[str]:
    return [path for path, _ in server.calls if path in (RELEASE, RESUME, LOAD, "/generate")]


def test_a_server_sleeps_and_gets_its_weights_again_before_it_samples(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    assert engine.rest() == 0 and _order(server) == [], "nothing is known of it yet"
    engine.publish(weights)
    engine.sample([request("a")])
    assert (engine.rest(), engine.rest()) == (1, 0)
    assert server.asleep
    report = engine.publish(weights)  # the same: their version is what it says it has, but they are gone
    assert report.updated == 1 and report.compared > 0
    assert engine.sample([request("b")])[0].policy_version == 1
    assert _order(server) == [LOAD, "/generate", RELEASE, RESUME, LOAD, "/generate"]


def test_a_turn_that_comes_without_new_weights_wakes_it_too(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    engine.rest()
    assert engine.sample([request("a")])[0].stop == "stop"
    assert _order(server) == [LOAD, RELEASE, RESUME, LOAD, "/generate"]


def test_one_that_was_started_anew_meanwhile_is_given_no_memory(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make(start=lambda _url: server.start() if not server.alive else None)
    engine.publish(weights)
    engine.rest()
    server.die()
    engine.publish(weights)
    assert server.of(RESUME) == [] and not server.asleep
    assert engine.sample([request("a")])[0].policy_version == 1


def test_a_trainer_that_was_killed_meanwhile_wakes_it(
    make: Make, server: ScriptedServer, weights: PublishedWeights, tmp_path: Path
) -> None:
    known = tmp_path / "asleep.json"
    killed = make(asleep=known)
    killed.publish(weights)
    killed.rest()
    again = make(asleep=known)
    again.publish(weights)
    assert again.sample([request("a")])[0].policy_version == 1
    assert _order(server) == [LOAD, RELEASE, RESUME, LOAD, "/generate"]
    assert make(asleep=known).publish(weights).servers == 1, "awake again, and known to be"


@pytest.mark.parametrize("content", ["{", "[]", '{"asleep": []}', '{"asleep": {}, "hollow": 3}'])
def test_a_damaged_note_of_who_sleeps_says_what_to_do(make: Make, tmp_path: Path, content: str) -> None:
    (tmp_path / "asleep.json").write_text(content)
    with pytest.raises(WeightsError, match=r"asleep\.json, .* is damaged .*restart the SGLang servers"):
        make(asleep=tmp_path / "asleep.json")


@pytest.mark.parametrize("killed", [False, True])
def test_noise_is_never_taken_for_the_weights_whose_version_it_bears(
    make: Make, server: ScriptedServer, weights: PublishedWeights, tmp_path: Path, killed: bool
) -> None:
    """The load after waking fails or the trainer is killed in it; then the same weights are published again,
    and nothing but the version can be asked for (CUDA servers)."""
    known = tmp_path / "asleep.json"
    engine = make(asleep=known, verify="version")
    engine.publish(weights)
    engine.rest()
    server.refuses = LOAD
    with pytest.raises((WeightsError, EngineLostError)):
        engine.publish(weights)
    server.refuses = ""
    assert server.folder != weights.folder, "awake, and its weights are gone"
    again = make(asleep=known, verify="version") if killed else engine
    assert again.publish(weights).updated == 1
    assert server.folder == weights.folder and len(server.of(RESUME)) == 1


def test_a_server_that_stays_busy_is_not_put_to_sleep(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make(call_timeout_s=0.5)
    engine.publish(weights)
    server.hang.set()
    with pytest.raises(PolicyError, match=r"still at work .* does somebody else use it"):
        engine.rest()
    assert server.of(RELEASE) == []


def test_what_cannot_sleep_is_refused(make: Make, server: ScriptedServer, weights: PublishedWeights) -> None:
    server.server_info = {"device": "cuda"}
    shared = {"share_device": True, "memory_fraction": 0.4}
    with pytest.raises(WeightsError, match="--enable-memory-saver"):
        make(**shared).publish(weights)
    server.server_info = {"device": "cuda", "enable_memory_saver": True}
    assert make(**shared).publish(weights).servers == 1


def test_settings_that_do_not_go_together_are_errors() -> None:
    sglang = {"share_device": True, "memory_fraction": 0.4}
    for changes, words in (
        ({"memory_fraction": 0.0}, "needs memory_fraction"),
        ({"router": "http://127.0.0.1:1"}, "with a router"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_config({"rollout": {"engine": "sglang", "sglang": sglang | changes}})
    tree = {"rollout": {"engine": "sglang", "sglang": sglang}, "erpo": {"max_staleness": 1}}
    with pytest.raises(ConfigError, match="max_staleness 1"):
        parse_config(tree)


def test_the_plan_takes_the_fuller_of_the_two_times() -> None:
    path = ROOT / "configs/train/single_gpu_qwen3_0_6b_sglang.toml"
    shared = make_plan(load_config(path))
    server = 0.75 * 80e9
    masters = 3 * 4 * 596_049_920  # parameters and two moments, float32
    assert shared.rolling_out == pytest.approx(masters + server, rel=1e-6)
    assert shared.updating == pytest.approx(sum(p.bytes for p in shared.parts if p.learner), rel=1e-6)
    assert shared.total == max(shared.rolling_out, shared.updating) and shared.fits
    assert "engine at rest" in plan_text(shared)
    beside = make_plan(load_config(path, ["rollout.sglang.share_device=false"]))
    assert beside.total == pytest.approx(shared.updating + server, rel=1e-6) and not beside.fits
