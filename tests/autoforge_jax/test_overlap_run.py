"""A whole run whose rollouts overlap with learning, stopped and resumed, with the options that keep state."""

import io
from pathlib import Path

import pytest

from autoforge_jax.train.interrupt import Interrupted, StopFlag
from autoforge_jax.train.loop import execute
from autoforge_jax.train.metrics import Reporter, read_jsonl
from autoforge_jax.train.phase_erpo import ROLLOUTS, RUNNING_STD
from autoforge_jax.train.state_files import read_json
from tests.autoforge_jax.test_loop import _StopAt, _tiny

OPTIONS = (
    "erpo.max_staleness=1", "erpo.old_policy=learner", "erpo.correction=token",
    "erpo.reject_sequence_gap=2.0",
    "erpo.environment_std=running", "erpo.baseline=leave_one_out", "erpo.overlong=mask",
    "sft.steps=40",  # after fewer, every rollout runs out of tokens, and all are masked
    "render.interleaved_thinking=false",
)  # fmt: skip


def test_a_run_that_overlaps_stops_and_goes_on(tmp_path: Path) -> None:
    config = _tiny(tmp_path, "overlap", *OPTIONS)
    stop = StopFlag()
    execute(config, command="sft", reporter=Reporter(io.StringIO()))
    with pytest.raises(Interrupted, match="saved after step 2 of"):
        execute(config, command="train", reporter=_StopAt(stop, "erpo", 1), stop=stop)
    root = tmp_path / "overlap"
    (saved,) = root.glob("**/erpo/step_00000002/meta.json")
    cursor = read_json(saved)["meta"]["cursor"]
    assert cursor[RUNNING_STD] and {"groups", "generation", "recent"} <= cursor[ROLLOUTS].keys()
    run = execute(config, command="train", reporter=Reporter(io.StringIO()))
    rows = [row for row in read_jsonl(run.metrics) if row["phase"] == "erpo"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["rollout/staleness_max"] <= 1 for row in rows)
    learned = [row for row in rows if row["update_skipped"] == 0 and row["grad_norm"] > 0]
    assert {row["step"] for row in learned} & {3, 4}, "no step after the resume had anything to learn from"
    for row in learned:
        assert row["fresh/logprob_gap_mean"] < 1e-3, "engine and learner disagree on fresh tokens"
        assert row["correction_mean"] > 0 and row["sequences_rejected"] >= 0
        assert row["staleness_mean"] <= 1
