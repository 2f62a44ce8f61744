"""The engine against a real SGLang server: what DESIGN.md §9 and §10 promise, and FAULTS.md 13, 15–17, 19."""

import asyncio
import dataclasses
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from autoforge_jax.config import SGLangConfig
from autoforge_jax.errors import PolicyError, WeightsError
from autoforge_jax.model.export_hf import write_hf
from autoforge_jax.model.qwen3 import forward, unembedding
from autoforge_jax.rollout.engine_sglang import SGLangEngine
from autoforge_jax.rollout.sglang_http import SGLangServer
from autoforge_jax.rollout.sglang_local import LocalServer
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams
from tests.autoforge_jax.mock_rollout import tokenizer
from tests.sglang.conftest import PATIENCE_S, URL, follow, freeze
from tests.sglang.tiny_model import MODEL, publish_to, weights

TOLERANCE = 5e-5
"""Nats, float32 on both sides; SGLang's kernels add in another order than XLA's."""
LENGTH = 1024
STOPS = tokenizer().stop_ids
RNG = np.random.default_rng(0)
LEAVES = 2 * 8 + 2
"""Tensors of the served model: per layer qkv, o, two head norms, gate_up, down, two norms; embedding, last
norm."""


def new_engine(server: LocalServer, **changes: object) -> SGLangEngine:
    """An engine that starts the server again when it does not answer."""
    config = SGLangConfig(urls=(URL,), start_timeout_s=PATIENCE_S, **changes)  # type: ignore[arg-type]
    return SGLangEngine(config, MODEL, max_length=LENGTH, start_server=lambda _url: server.start())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where published weights go."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture
def engine(server: LocalServer, folder: Path) -> Iterator[SGLangEngine]:
    """Weights of seed 1 as version 1, on a server that was started with seed 0."""
    engine = new_engine(server)
    engine.publish(publish_to(folder / "v1", seed=1, version=1))
    yield engine
    engine.close()


def context(length: int) -> tuple[int, ...]:
    return tuple(RNG.integers(9, MODEL.vocab_size, length).tolist())


def request(name: str, ids: tuple[int, ...], **params: object) -> SampleRequest:
    settings = SamplingParams(**{"max_turn_tokens": 24, "stop_token_ids": STOPS, **params})  # type: ignore[arg-type]
    return SampleRequest(name, ids, settings, seed=1)


@jax.jit
def _logits(tree: dict, tokens: np.ndarray) -> jax.Array:
    positions = np.arange(LENGTH, dtype=np.int32)[None]
    segments = np.full((1, LENGTH), 2, np.int32)
    return forward(tree, MODEL, tokens, positions, segments) @ unembedding(tree).T


def learner_logprobs(asked: SampleRequest, output: SampleOutput, seed: int) -> np.ndarray:
    """[sampled, vocabulary]: what the learner computes for the places where the server sampled."""
    ids = (*asked.token_ids, *output.token_ids)
    row = np.zeros((1, LENGTH), np.int32)
    row[0, : len(ids)] = ids
    start = len(asked.token_ids) - 1
    logits = np.asarray(_logits(weights(seed), row), np.float64)[0, start : len(ids) - 1]
    logits /= asked.params.temperature or 1.0
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def expect_agreement(asked: SampleRequest, output: SampleOutput, seed: int) -> np.ndarray:
    table = learner_logprobs(asked, output, seed)
    expected = table[np.arange(len(output.token_ids)), list(output.token_ids)]
    np.testing.assert_allclose(output.logprobs, expected, atol=TOLERANCE)
    return table


def test_logprobs_are_the_learners_for_every_sampling_setting(engine: SGLangEngine) -> None:
    settings: list[dict[str, object]] = [
        {}, {"temperature": 0.6}, {"temperature": 1.7}, {"temperature": 0.0}, {"top_k": 5},
        {"top_p": 0.7}, {"temperature": 0.8, "top_k": 3}, {"temperature": 0.8, "top_p": 0.5},
    ]  # fmt: skip
    asked = [request(f"s{i}", context(20 + 13 * i), **params) for i, params in enumerate(settings)]
    outputs = engine.sample(asked)
    assert len(outputs) == len(asked)
    for one, output in zip(asked, outputs, strict=True):
        assert output.policy_version == 1
        table = expect_agreement(one, output, seed=1)
        ranks = (table > np.asarray(output.logprobs)[:, None] + TOLERANCE).sum(-1)
        params = one.params
        if params.temperature == 0:
            assert (ranks == 0).all()
        if params.top_k:
            assert (ranks < params.top_k).all()
        if params.top_p < 1:
            above = np.where(
                table > np.asarray(output.logprobs)[:, None] + TOLERANCE, np.exp(table), 0.0
            ).sum(-1)
            assert (above <= params.top_p + 1e-4).all()
    assert engine.stats()["attempts"] == len(asked)


def test_both_stop_reasons_and_the_stop_token_is_kept(engine: SGLangEngine) -> None:
    half = tuple(range(0, MODEL.vocab_size, 2))
    outputs = engine.sample(
        [request(f"stop{i}", context(30), max_turn_tokens=64, stop_token_ids=half) for i in range(4)]
        + [request(f"length{i}", context(30), max_turn_tokens=3, temperature=0.0) for i in range(2)]
    )
    for output in outputs[:4]:
        assert output.stop == "stop" and output.token_ids[-1] in half
        assert not set(output.token_ids[:-1]) & set(half)
        assert len(output.logprobs) == len(output.token_ids)
    for output in outputs[4:]:
        assert output.stop == "length" and len(output.token_ids) == 3


def test_later_turns_use_the_prefix_cache(engine: SGLangEngine) -> None:
    first = request("turns", context(200))
    said = engine.sample([first])[0].token_ids
    before = engine.stats()["cached_tokens"]
    second = request("turns", (*first.token_ids, *said, *context(20)))
    output = engine.sample([second])[0]
    assert engine.stats()["cached_tokens"] - before >= 200
    expect_agreement(second, output, seed=1)


def test_an_update_changes_outputs_and_version_and_leaves_no_stale_cache(
    engine: SGLangEngine, folder: Path
) -> None:
    ids = context(300)
    greedy = {"temperature": 0.0, "max_turn_tokens": 40}
    old = engine.sample([request("before", ids, **greedy)])[0]
    report = engine.publish(publish_to(folder / "v2", seed=2, version=2))
    assert (report.servers, report.updated, report.compared) == (1, 1, LEAVES)
    cached = engine.stats()["cached_tokens"]
    asked = request("after", ids, **greedy)
    new = engine.sample([asked])[0]
    assert engine.stats()["cached_tokens"] == cached, "the prefix was computed with the old weights"
    assert (old.policy_version, new.policy_version) == (1, 2)
    assert new.token_ids != old.token_ids
    expect_agreement(asked, new, seed=2)
    again = engine.publish(publish_to(folder / "v2", seed=2, version=2))
    assert (again.updated, again.compared) == (0, 0), "what is there is not loaded again"


def test_a_server_that_gave_its_memory_back_samples_right_again(
    server: LocalServer, folder: Path, tmp_path: Path
) -> None:
    """On the CPU nothing is freed, but the server's protocol and its accounts of what is asleep are the same:
    it dies of what it is told out of turn."""
    known = tmp_path / "asleep.json"
    config = SGLangConfig(urls=(URL,), start_timeout_s=PATIENCE_S, share_device=True, memory_fraction=0.1)
    first = SGLangEngine(config, MODEL, max_length=LENGTH, asleep_file=known)
    first.publish(publish_to(folder / "v1", seed=1, version=1))
    asked = request("before sleep", context(40))
    expect_agreement(asked, first.sample([asked])[0], seed=1)
    assert (first.rest(), first.rest()) == (1, 0)
    report = first.publish(publish_to(folder / "v1", seed=1, version=1))
    assert (report.updated, report.compared) == (1, LEAVES), "loaded again: the version alone proves nothing"
    asked = request("after sleep", context(40))
    expect_agreement(asked, first.sample([asked])[0], seed=1)
    assert first.rest() == 1
    first.close()
    second = SGLangEngine(config, MODEL, max_length=LENGTH, asleep_file=known)  # the trainer was killed
    second.publish(publish_to(folder / "v2", seed=2, version=2))
    asked = request("another trainer", context(40))
    expect_agreement(asked, second.sample([asked])[0], seed=2)
    second.close()
    assert server.running


def test_weights_that_arrive_changed_are_noticed(engine: SGLangEngine, folder: Path) -> None:
    published = publish_to(folder / "v3", seed=3, version=3)
    assert published.tensors is not None
    name = "model.layers.1.mlp.up_proj.weight"
    less = {key: value for key, value in published.tensors.items() if key != name}
    for tensors in ({**published.tensors, name: published.tensors[name] * 1.0001}, less):
        files = sorted((folder / "tokenizer").glob("*.json"))
        write_hf(folder / "v3", tensors, MODEL, files)
        damaged = dataclasses.replace(published, tag=f"v3-{len(tensors)}", tensors=published.tensors)
        with pytest.raises(
            WeightsError, match=r"1 of 18 tensors arrived changed, first model\.layers\.1\.mlp\.gate_up"
        ):
            engine.publish(damaged)


def test_a_missing_folder_is_refused_and_the_server_lives(engine: SGLangEngine, folder: Path) -> None:
    published = publish_to(folder / "v4", seed=4, version=4)
    shutil.rmtree(folder / "v4")
    with pytest.raises(WeightsError, match="were not taken"):
        engine.publish(published)
    engine.publish(publish_to(folder / "v1", seed=1, version=1))
    asked = request("alive", context(30))
    expect_agreement(asked, engine.sample([asked])[0], seed=1)


def test_another_models_run_is_refused_before_it_can_kill_the_server(
    server: LocalServer, folder: Path
) -> None:
    other = SGLangEngine(
        SGLangConfig(urls=(URL,)),
        dataclasses.replace(MODEL, hidden_size=128, rope_theta=5e5),
        max_length=LENGTH,
    )
    with pytest.raises(WeightsError, match=r"hidden_size is 64 in .*, the run has 128(.|\n)*rope_theta"):
        other.publish(publish_to(folder / "v1", seed=1, version=1))
    other.close()
    assert server.running
    long = SGLangEngine(SGLangConfig(urls=(URL,)), MODEL, max_length=2100)
    with pytest.raises(WeightsError, match="--max-total-tokens"):
        long.publish(publish_to(folder / "v1", seed=1, version=1))
    long.close()


@pytest.mark.parametrize("bad", [-1, MODEL.vocab_size, 10**9])
def test_ids_outside_the_vocabulary_never_reach_the_server(
    engine: SGLangEngine, server: LocalServer, bad: int
) -> None:
    with pytest.raises(PolicyError, match=rf"id {bad} is outside the vocabulary of {MODEL.vocab_size}"):
        engine.sample([request("fine", context(9)), request("bad", (*context(9), bad))])
    assert server.running and engine.stats()["attempts"] == 0
    assert engine.sample([request("fine", context(9))])[0].stop in ("stop", "length")


def test_a_deadline_aborts_the_request_on_the_server(server: LocalServer, folder: Path) -> None:
    engine = new_engine(server, request_timeout_s=0.1)
    published = publish_to(folder / "v1", seed=1, version=1)
    engine.publish(published)
    # Greedy, so that it is known to run on: nearly a thousand steps, which no server does in a tenth of a
    # second.
    ids = tuple(range(100, 120))
    asked = request("slow", ids, max_turn_tokens=LENGTH - 30, temperature=0.0)
    output = engine.sample([asked])[0]
    assert output.stop == "abort" and output.token_ids == ()
    assert "no answer in 0.1 s" in output.reason
    stats = engine.stats()
    assert (stats["timeouts"], stats["confirmed_aborts"], stats["attempts"]) == (1, 1, 1)
    # An update waits for what still runs; the aborted request does not.
    assert engine.publish(publish_to(folder / "v2", seed=2, version=2)).updated == 1
    engine.close()


def test_death_and_restart_in_mid_run(server: LocalServer, folder: Path) -> None:
    engine = new_engine(server)
    engine.publish(publish_to(folder / "v5", seed=5, version=5))
    asked = [request(f"d{i}", context(25), max_turn_tokens=60) for i in range(6)]
    outputs: list[SampleOutput] = []
    worker = threading.Thread(target=lambda: outputs.extend(engine.sample(asked)), daemon=True)
    freeze(server)
    worker.start()
    while engine.stats()["attempts"] < len(asked):
        time.sleep(0.01)
    server.kill()
    follow(server, lambda: not worker.is_alive())
    assert len(outputs) == len(asked)
    stats = engine.stats()
    assert stats["lost_connections"] == len(asked) and stats["updates"] == 2
    assert stats["attempts"] == 2 * len(asked) + stats["stale_answers"]
    for one, output in zip(asked, outputs, strict=True):
        assert output.stop != "abort", output.reason
        assert output.policy_version == 5
        expect_agreement(one, output, seed=5)  # not the weights that the restarted server came up with
    engine.close()


def test_health_and_version_of_a_server(server: LocalServer, engine: SGLangEngine) -> None:
    async def look() -> tuple[str, int]:
        client = SGLangServer(URL, connect_timeout_s=5, call_timeout_s=30)
        await client.health()
        info, started = await client.model_info(), await client.server_info()
        await client.close()
        return info.weight_version, started.max_req_input_len

    version, room = asyncio.run(look())
    assert version.startswith("v1-") and room >= LENGTH
