"""Weights on their way to servers through files, against a scripted HTTP stand-in (not SGLang:
tests/sglang)."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from autoforge_jax.config import parse_config
from autoforge_jax.errors import EngineLostError, WeightsError
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.disk_sync import DiskSync
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.state import Params
from autoforge_jax.types import SampleRequest, SamplingParams
from tests.autoforge_jax.mock_board import together
from tests.autoforge_jax.mock_learner import TINY, leaves, tiny_split
from tests.autoforge_jax.mock_rollout import tokenizer
from tests.autoforge_jax.scripted_sglang import ScriptedServer, publish


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    """A stand-in that was started with other weights."""
    server = ScriptedServer(publish(tmp_path / "other", seed=5, version=0).folder)
    yield server
    server.die()


def new_sync(root: Path, server: ScriptedServer, **changes: object) -> DiskSync:
    tree = {"engine": "sglang", "sglang": {"urls": [server.url], "start_timeout_s": 0.3, **changes}}
    run = RunDir(root / "run", parse_config({"rollout": tree}))
    tokenizer().save(run.tokenizer)
    return DiskSync(run, tokenizer(), TINY, lambda: tiny_split()[1])


def test_initial_weights_are_made_once_and_not_for_a_run_that_goes_on(
    tmp_path: Path, server: ScriptedServer
) -> None:
    new_sync(tmp_path, server).close()
    before = (tmp_path / "run" / "serve" / "initial" / "model.safetensors").stat().st_mtime_ns
    config = parse_config({"rollout": {"engine": "sglang", "sglang": {"urls": [server.url]}}})

    def never() -> Params:
        raise AssertionError("the initial weights are there")

    sync = DiskSync(RunDir(tmp_path / "run", config), tokenizer(), TINY, never)
    assert (tmp_path / "run" / "serve" / "initial" / "model.safetensors").stat().st_mtime_ns == before
    assert sync.push(tiny_split()[1], 0).leaves == 10
    sync.close()


def test_of_several_processes_all_make_the_initial_weights_and_the_first_writes_them(
    tmp_path: Path, server: ScriptedServer
) -> None:
    config = parse_config({"rollout": {"engine": "sglang", "sglang": {"urls": [server.url]}}})
    tokenizer().save(RunDir(tmp_path / "run", config).tokenizer)
    calls: list[int] = []

    def one(crew: Crew) -> bool:
        run = RunDir(tmp_path / "run", config, writes=crew.first)

        def initial() -> Params:
            calls.append(crew.index)
            crew.meet("initial")  # as a computation over all devices would
            return tiny_split()[1]

        DiskSync(run, tokenizer(), TINY, initial, crew).close()
        crew.meet("written")
        return (run.root / "serve" / "initial").is_dir()

    assert together(2, one) == [True, True] and sorted(calls) == [0, 1]
    assert together(2, one) == [True, True] and sorted(calls) == [0, 1]


def test_a_push_writes_once_proves_arrival_and_deletes_what_is_old(
    tmp_path: Path, server: ScriptedServer
) -> None:
    sync = new_sync(tmp_path, server)
    serve = tmp_path / "run" / "serve"
    params = jax.tree.map(lambda leaf: leaf * jnp.float32(1.5), tiny_split()[1])
    (serve / ".v000002.killed").mkdir()
    first = sync.push(tiny_split()[1], 3)
    size = sum(leaf.nbytes for leaf in leaves(params))
    assert (first.version, first.leaves, first.bytes) == (3, 10, size)
    assert 0 < first.write_seconds < first.seconds
    second = sync.push(params, 4)
    assert first.checksum != second.checksum and sync.engine.version == 4
    assert sorted(path.name for path in serve.iterdir()) == ["initial", "v000004"]
    for a, b in zip(leaves(load_hf(serve / "v000004", TINY)), leaves(params), strict=True):
        assert (a == b).all()
    assert server.folder == serve / "v000004" and server.version.startswith("v4-")
    again = sync.push(params, 4)
    assert (again.bytes, again.leaves, again.checksum) == (0, 0, second.checksum)
    assert len(server.of("/update_weights_from_disk")) == 2
    output = sync.engine.sample([SampleRequest("s", (1, 2), SamplingParams(stop_token_ids=(3,)), seed=0)])[0]
    assert (output.token_ids, output.policy_version) == ((7, 3), 4)
    sync.close()


def test_a_server_can_be_started_with_what_the_run_writes(tmp_path: Path, server: ScriptedServer) -> None:
    server.die()
    sync = new_sync(tmp_path, server)
    initial = tmp_path / "run" / "serve" / "initial"
    with pytest.raises(
        EngineLostError, match=rf"--model-path {initial} --host 127.0.0.1 --port {server.port}"
    ):
        sync.push(tiny_split()[1], 0)
    tree = json.loads((initial / "config.json").read_text())
    assert tree["eos_token_id"] == list(tokenizer().stop_ids) and tree["pad_token_id"] == tokenizer().pad_id
    assert {path.name for path in initial.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    server.first_folder = initial
    server.start()
    assert sync.push(tiny_split()[1], 0).leaves == 10
    sync.close()


def test_leaves_that_arrive_changed_are_an_error_and_older_weights_stay_on_disk(
    tmp_path: Path, server: ScriptedServer
) -> None:
    sync = new_sync(tmp_path, server)
    sync.push(tiny_split()[1], 0)
    server.checksums = lambda sums: {**sums, "model.layers.0.self_attn.qkv_proj.weight": "0" * 16}
    with pytest.raises(WeightsError, match=r"1 of 10 tensors arrived changed, first model\.layers\.0\.self"):
        sync.push(jax.tree.map(lambda leaf: leaf + jnp.float32(1), tiny_split()[1]), 1)
    names = sorted(path.name for path in (tmp_path / "run" / "serve").iterdir())
    assert names == ["initial", "v000000", "v000001"]
    sync.close()
