"""Checkpoints: bit-exact resume, donation after restore, and every way one can be unfit."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.config import OptimizerConfig, SFTConfig
from autoforge_jax.errors import CheckpointError
from autoforge_jax.train.checkpoint import CheckpointMeta, CheckpointStore
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.rundir import hash_json
from autoforge_jax.train.sft import ReferenceBatches, run_sft
from autoforge_jax.train.state import init_state
from tests.autoforge_jax.mock_learner import (
    OPTIMIZER,
    ROWS,
    fresh_state,
    leaves,
    samples,
    step_of,
    table_params,
)

CONFIG = SFTConfig(steps=6, trajectories_per_step=3)
BATCHES = ReferenceBatches(samples(), CONFIG, ROWS, pad_id=0, seed=1)


def meta(step: int, **fields: object) -> CheckpointMeta:
    known = {
        "seeds": {"data": 1},
        "cursor": {"sample": step * 3},
        "config_hash": "c1",
        "bundle_hashes": {"museum": "m1"},
    }
    return CheckpointMeta("sft", step, step, **(known | fields))  # type: ignore[arg-type]


def test_six_steps_equal_three_plus_restore_plus_three(tmp_path: Path) -> None:
    step = step_of(SupervisedObjective())
    straight = run_sft(fresh_state(), step, BATCHES, CONFIG).state
    store = CheckpointStore(tmp_path)
    half = run_sft(fresh_state(), step, BATCHES, CONFIG, on_step=lambda n, s, m: n == 3).state
    store.save(half, meta(3))
    restored, read = store.restore(fresh_state(9), config_hash="c1", bundle_hashes={"museum": "m1"})
    assert read == meta(3)
    for a, b in zip(leaves(half), leaves(restored), strict=True):
        np.testing.assert_array_equal(a, b)
    before = restored
    resumed = run_sft(restored, step, BATCHES, CONFIG, start_step=read.step).state
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params)), (
        "restored arrays must be donatable"
    )
    assert int(resumed.step) == 6
    for a, b in zip(leaves(straight), leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_keeps_the_newest_and_replaces_the_same_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for number in (1, 2, 3):
        store.save(fresh_state(number), meta(number))
    assert store.steps() == [2, 3]
    store.save(fresh_state(7), meta(3, cursor={"sample": 99}))
    assert store.steps() == [2, 3]
    restored, read = store.restore(fresh_state())
    assert read.cursor == {"sample": 99}
    np.testing.assert_array_equal(restored.params["table"], table_params(7)["table"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00000002", "step_00000003"]


def test_half_written_and_damaged_folders_are_passed_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    assert store.latest() is None and store.resume_line("erpo") == ""
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        store.restore(fresh_state())
    first = store.save(fresh_state(1), meta(1))
    for number in (2, 3, 4, 5):
        shutil.copytree(first, tmp_path / f"step_0000000{number}")
    (tmp_path / "step_00000002" / "meta.json").unlink()
    text = (tmp_path / "step_00000003" / "meta.json").read_text()
    (tmp_path / "step_00000003" / "meta.json").write_text(text[: len(text) // 2])
    data = max(
        (p for p in (tmp_path / "step_00000004").rglob("*") if p.is_file() and p.name != "meta.json"),
        key=lambda p: p.stat().st_size,
    )
    data.write_bytes(data.read_bytes()[:-1])
    tree = json.loads((tmp_path / "step_00000005" / "meta.json").read_text())
    (tmp_path / "step_00000005" / "meta.json").write_text(json.dumps(tree | {"format": 99}))
    (tmp_path / ".writing-step_00000006-1").mkdir()
    latest = store.latest()
    assert latest is not None and latest.path == first
    said = store.resume_line("erpo")
    assert said.startswith("  erpo goes on after step 1; passed over in ")
    assert said.endswith(": step_00000002, step_00000003, step_00000004, step_00000005")
    assert int(store.restore(fresh_state())[0].step) == 0


def test_changed_bytes_of_the_right_size_are_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(fresh_state(), meta(1))
    tree = json.loads((path / "meta.json").read_text())
    tree["arrays"][0]["checksum"] += 1
    (path / "meta.json").write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match="does not have the bytes that were saved"):
        store.restore(fresh_state())


def test_checkpoints_of_another_run_say_what_differs(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(fresh_state(), meta(1))
    with pytest.raises(CheckpointError, match="written under config c1, this run has c2"):
        store.restore(fresh_state(), config_hash="c2")
    with pytest.raises(CheckpointError, match="scheduler: saved None, now s1"):
        store.restore(fresh_state(), bundle_hashes={"museum": "m1", "scheduler": "s1"})
    wider = init_state({**table_params(), "table": jnp.zeros((24, 5))}, OPTIMIZER)
    with pytest.raises(CheckpointError, match=r"table.* is float32\[24, 4\], expected float32\[24, 5\]"):
        store.restore(wider)
    more = init_state({**table_params(), "extra": jnp.zeros(2)}, OPTIMIZER)
    with pytest.raises(CheckpointError, match=r"missing .*extra"):
        store.restore(more)
    muon = init_state(table_params(), make_optimizer(OptimizerConfig(kind="muon"), 6))
    with pytest.raises(CheckpointError, match="optimizer settings changed"):
        store.restore(muon)


def test_hash_of_a_config_ignores_key_order() -> None:
    assert (
        hash_json({"a": 1, "b": [1, 2]})
        == hash_json({"b": [1, 2], "a": 1})
        != hash_json({"a": 1, "b": [2, 1]})
    )
    with pytest.raises(ValueError, match="at least one checkpoint"):
        CheckpointStore(Path(), keep=0)
