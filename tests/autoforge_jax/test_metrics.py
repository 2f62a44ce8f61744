"""metrics.jsonl reads as if a resumed run had never stopped; times are split; signals wait for the step
boundary."""

import io
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from autoforge_jax.errors import TrainingError
from autoforge_jax.train.interrupt import Interrupted, StopFlag, stop_on_signals
from autoforge_jax.train.metrics import MetricsLog, Reporter, TimeSplit, json_value, number_text, read_jsonl


def test_rewind_drops_the_steps_to_come_again_and_a_half_written_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for phase, step in (("warm start", 9), ("erpo", 1), ("erpo", 2), ("erpo", 3)):
        log.write(phase, step, {"reward": step / 4})
    with log.path.open("a") as file:
        file.write('{"phase": "erpo", "st')
    log.rewind("erpo", 2)
    rows = read_jsonl(log.path)
    assert [(row["phase"], row["step"]) for row in rows] == [("warm start", 9), ("erpo", 1), ("erpo", 2)]
    log.write("erpo", 3, {"reward": 1.0})
    assert [row["reward"] for row in log.rows("erpo")] == [0.25, 0.5, 1.0]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(TrainingError, match="line 2"):
        read_jsonl(path)
    path.write_text('null\n{"a": 2}\n')
    with pytest.raises(TrainingError, match=r"line 1 is 'null', expected an object"):
        read_jsonl(path)
    assert read_jsonl(tmp_path / "none.jsonl") == []


def test_metrics_become_plain_json() -> None:
    value = json_value(
        {
            "a": np.float32(0.5),
            "b": np.int64(3),
            "c": float("nan"),
            "d": {"e": [True, None, "x", 1e-9]},
            "f": 2.0,
        }
    )
    assert value == {"a": 0.5, "b": 3, "c": None, "d": {"e": [True, None, "x", 1e-9]}, "f": 2.0}
    assert json.loads(json.dumps(value)) == value


def test_time_is_split_by_activity_and_taken_once() -> None:
    times = TimeSplit()
    with times.measure("rollout"):
        time.sleep(0.02)
    with times.measure("rollout"), times.measure("sync"):
        pass
    taken = times.take()
    assert list(taken) == ["rollout", "sync"] or set(taken) == {"rollout", "sync"}
    assert 0.02 <= taken["rollout"] < 1.0 and taken["sync"] < taken["rollout"]
    assert times.take() == {}


def test_numbers_are_short() -> None:
    assert [number_text(v) for v in (0.41234, 12, 31000.4, 0.0001234)] == ["0.412", "12", "31000", "0.000123"]


def test_without_a_terminal_progress_is_plain_lines() -> None:
    out = io.StringIO()
    reporter = Reporter(out, every_s=0.0)
    with reporter.bar("erpo", 4) as bar:
        bar.update(2, reward=0.51234)
    reporter.phase("erpo", "4 steps", 1.25)
    assert out.getvalue().splitlines() == ["  erpo 2/4 reward 0.512", "erpo         4 steps  1.2 s"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_waits_for_the_step_boundary(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with stop_on_signals(StopFlag()) as stop:
        stop.raise_if_requested("not yet")
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(Interrupted, match="after step 3") as caught:
            stop.raise_if_requested("after step 3")
    assert caught.value.exit_code == code
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_ends_at_once() -> None:
    with stop_on_signals(StopFlag()), pytest.raises(KeyboardInterrupt):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
