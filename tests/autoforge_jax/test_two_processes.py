"""`autoforge run` as two processes, and on eight devices, against the run of one process on one device or on
the same mesh. whole_runs.py prints how far these are apart; the bounds here have room above that.

Every step of ERPO must have made an update: runs without a signal are equal whatever the update does. Where
arithmetic in another order moves a probability by its last bits, a draw on the border between two ids can go
the other way (about one run in a hundred at 1e-5 nats): then the trajectories differ from that token on.
"""

import re
from pathlib import Path

import pytest

from tests.autoforge_jax.whole_runs import apart, launch, rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def out_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this module live."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def two_processes(out_dir: Path) -> Path:
    """A run in two processes of one device each; checked for what they printed and wrote."""
    done = launch(out_dir, "two-processes", "mesh.data=2", processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(re.findall(r"^erpo  +3 steps", done.stdout, re.MULTILINE)) == 1, "not one process prints"
    return out_dir / "two-processes"


def assert_same_run(run: Path, other: Path) -> None:
    """Same steps and trajectories; metrics and weights equal but for rounding."""
    found = apart(run, other)
    assert found["updated"], "a step of ERPO without an update compares nothing"
    assert found["steps"] and found["trajectories"], found
    assert found["metrics"] < 1e-3 and found["weights"] < 1e-3, found
    assert found["rounding"] < 1e-4, found


def test_two_processes_give_the_run_of_one_process_with_two_devices(
    two_processes: Path, out_dir: Path
) -> None:
    done = launch(out_dir, "one-process", "mesh.data=2", devices=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(two_processes, out_dir / "one-process")


def test_two_processes_write_every_line_once(two_processes: Path) -> None:
    metrics = [(row["phase"], row["step"]) for row in rows(two_processes / "metrics.jsonl")]
    assert metrics == [("warm start", n) for n in range(1, 13)] + [("erpo", n) for n in range(1, 4)]
    written = [str(sorted(row.items())) for row in rows(two_processes / "trajectories.jsonl")]
    assert len(set(written)) == len(written)


def test_a_second_start_of_two_processes_finds_everything_done(two_processes: Path, out_dir: Path) -> None:
    done = launch(out_dir, "two-processes", "mesh.data=2", processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("done before") == 8


def test_eight_devices_give_the_run_of_one(out_dir: Path) -> None:
    eight = launch(out_dir, "eight", "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", devices=8)
    assert eight.returncode == 0, eight.stderr[-3000:]
    one = launch(out_dir, "one")
    assert one.returncode == 0, one.stderr[-3000:]
    assert_same_run(out_dir / "eight", out_dir / "one")
