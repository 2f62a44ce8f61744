"""Synthesis in stages: killed at any point it goes on, and who executes it changes nothing."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envgen.errors import EnvgenError, RefusedDocument, ToolBreach
from envgen.store import load_bundle, write_bundle
from envgen.synthesis.batch import jobs_for, run_batch
from envgen.synthesis.executors import ProcessExecutor, SerialExecutor, open_executor
from envgen.synthesis.pipeline import make_bundle, make_order, read_and_propose, write_order
from envgen.synthesis.workspace import Workspace, key_of, workspace_for
from envgen.types import LintFinding
from tests.envgen.mock_domain import DOC, mock_draft

CHECKLIST = "docker_simplechecklist_tools.json"
TASKS = 60
ROOT = Path(__file__).resolve().parents[2]


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes of a bundle, without the seconds it took."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "timing.json"}


def order(**changes: object):
    wanted = {"tasks": 14, "heldout": 4, "seed": 3, **changes}
    return make_order(DOC, mock_draft(), **wanted)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------ killed
def synth(document: Path, target: Path, workers: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "envgen.cli",
            "synth",
            str(document),
            "-o",
            str(target),
            "--tasks",
            str(TASKS),
            "--heldout",
            "10",
            "--seed",
            "5",
            "--workers",
            str(workers),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )


def rounds(target: Path) -> int:
    return len(list((workspace_for(target).folder / "rounds").glob("*.out")))


def children(pid: int) -> set[int]:
    """A process's children and theirs."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found |= {int(child)} | children(int(child))
    return found


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.01)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def whole(examples_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bundle of a run that nobody disturbed."""
    target = tmp_path_factory.mktemp("whole") / "b"
    run = synth(examples_dir / CHECKLIST, target, 1)
    assert run.wait() == 0
    assert not workspace_for(target).folder.exists()
    return files_of(target)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_at_several_points_loses_at_most_a_round(
    examples_dir: Path, tmp_path: Path, whole: dict[str, bytes], workers: int
) -> None:
    """Killed before the first round, after one, after three, and again while it goes on: the same bytes."""
    target = tmp_path / "b"
    for until in (0, 1, 3):
        run = synth(examples_dir / CHECKLIST, target, workers)
        if until == 0:
            assert wait_for(lambda: (workspace_for(target).folder / "draft").is_dir())
        else:
            assert wait_for(lambda until=until: rounds(target) >= until)
        mine = children(run.pid)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert not target.exists() and rounds(target) >= until
        assert wait_for(lambda mine=mine: not any(alive(pid) for pid in mine), 20), "a child lives on"
    kept = {p.name: p.stat().st_mtime_ns for p in (workspace_for(target).folder / "rounds").glob("*.out")}
    run = synth(examples_dir / CHECKLIST, target, workers)
    assert wait_for(lambda: rounds(target) > len(kept) or target.exists())
    still = workspace_for(target).folder / "rounds"
    assert all(
        (still / name).stat().st_mtime_ns == when for name, when in kept.items() if (still / name).exists()
    )
    assert run.wait() == 0
    assert files_of(target) == whole
    assert not workspace_for(target).folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(
    examples_dir: Path, tmp_path: Path, whole: dict[str, bytes], workers: int
) -> None:
    target = tmp_path / "b"
    run = synth(examples_dir / CHECKLIST, target, workers)
    assert wait_for(lambda: rounds(target) >= 1)
    mine = children(run.pid)
    os.killpg(run.pid, signal.SIGINT)  # a terminal sends it to all
    _, said = run.communicate()
    assert run.returncode == 130, said
    assert b"same command again" in said and b"Traceback" not in said
    assert not target.exists() and rounds(target) >= 1
    assert wait_for(lambda: not any(alive(pid) for pid in mine), 20)
    assert synth(examples_dir / CHECKLIST, target, workers).wait() == 0
    assert files_of(target) == whole


def test_a_failure_while_the_bundle_is_put_together_loses_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the last moment: neither the old bundle nor the rounds suffer."""
    target = tmp_path / "b"
    write_order(order(seed=1), target, SerialExecutor())
    old = files_of(target)
    monkeypatch.setattr(
        "envgen.synthesis.assembly.write_synced", lambda *_: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(OSError, match="full"):
        write_order(order(), target, SerialExecutor())
    assert files_of(target) == old and rounds(target) >= 1
    monkeypatch.undo()
    write_order(order(), target, SerialExecutor())
    assert (
        load_bundle(target).content_hash
        == make_bundle(DOC, mock_draft(), tasks=14, heldout=4, seed=3).content_hash
    )


# ------------------------------------------------------------------------------------------------ workspace
def test_a_damaged_output_is_made_again_and_other_options_find_nothing(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "w")
    key = key_of("a", 1)
    assert space.read("s", key) is None
    space.write("s", key, b"good\nlines\n")
    assert space.read("s", key) == b"good\nlines\n"
    path = space.path("s", key)
    path.write_bytes(path.read_bytes()[:-2])
    assert space.read("s", key) is None
    assert key_of("a", 2) != key != key_of("b", 1)
    space.clear()
    assert not space.folder.exists()


def test_early_stages_are_read_from_the_workspace(examples_dir: Path, tmp_path: Path) -> None:
    space = Workspace(tmp_path / "w")
    first = read_and_propose(examples_dir / CHECKLIST, space)
    stamps = {p: p.stat().st_mtime_ns for p in space.folder.rglob("*.out")}
    assert {p.parent.name for p in stamps} == {"document", "draft"}
    assert (
        read_and_propose(examples_dir / CHECKLIST, space)
        == first
        == read_and_propose(examples_dir / CHECKLIST, None)
    )
    assert {p: p.stat().st_mtime_ns for p in space.folder.rglob("*.out")} == stamps


def test_a_bundle_on_disk_is_the_one_in_memory_byte_for_byte(tmp_path: Path) -> None:
    head = write_order(order(), tmp_path / "disk", SerialExecutor())
    made = make_bundle(DOC, mock_draft(), tasks=14, heldout=4, seed=3)
    write_bundle(made, tmp_path / "memory")
    assert files_of(tmp_path / "disk") == files_of(tmp_path / "memory")
    assert head.tasks == () and head.splits == made.splits
    assert head.report.tasks_certified == 14


# ------------------------------------------------------------------------------------------------ executors
def double(number: int) -> int:
    if number == 13:
        raise ToolBreach("too slow", "tool_timeout")
    return 2 * number


def test_every_executor_gives_results_in_order_and_raises_what_a_job_raises() -> None:
    for executor in (SerialExecutor(), ProcessExecutor(2)):
        assert list(executor.map(double, range(7))) == [0, 2, 4, 6, 8, 10, 12]
        with pytest.raises(ToolBreach, match="too slow") as caught:
            list(executor.map(double, [1, 13]))
        assert caught.value.reason == "tool_timeout"
        executor.close()
        executor.close()


def die(number: int) -> int:
    os._exit(9)


def test_a_pool_whose_workers_keep_dying_is_an_error_that_says_so() -> None:
    executor = ProcessExecutor(2)
    with pytest.raises(EnvgenError, match="killed 3 times"):
        list(executor.map(die, [1, 2]))
    executor.close()


def test_workers_do_not_change_the_bundle(tmp_path: Path) -> None:
    """Functions that are not vetted, in isolated workers below the pool's processes, too."""
    alone = make_bundle(DOC, mock_draft(), tasks=14, heldout=4, seed=3)
    with open_executor("local", 3) as executor:
        assert isinstance(executor, ProcessExecutor)
        pooled = make_bundle(DOC, mock_draft(), tasks=14, heldout=4, seed=3, executor=executor)
    assert pooled.content_hash == alone.content_hash


def test_ray_gives_the_same_bundle() -> None:
    pytest.importorskip("ray", reason="needs the extra [ray]")
    alone = make_bundle(DOC, mock_draft(), tasks=14, heldout=4, seed=3)
    with open_executor("ray", 2) as executor:
        made = make_bundle(DOC, mock_draft(), tasks=14, heldout=4, seed=3, executor=executor)
        assert made.content_hash == alone.content_hash
        assert list(executor.map(double, range(5))) == [0, 2, 4, 6, 8]
        with pytest.raises(ToolBreach, match="too slow"):
            list(executor.map(double, [13]))


def test_an_executor_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="expected one of local, ray"), open_executor("slurm", 2):
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvgenError, match="pip install"), open_executor("ray", 2):
        pass
    with pytest.raises(ValueError, match="workers=0"):
        ProcessExecutor(0)


def test_errors_cross_processes() -> None:
    finding = LintFinding(level="refusal", code="x", message="m")
    again = pickle.loads(pickle.dumps(RefusedDocument("no", (finding,))))
    assert (str(again), again.findings) == ("no", (finding,))
    breach = pickle.loads(pickle.dumps(ToolBreach("slow", "tool_timeout")))
    assert (str(breach), breach.reason) == ("slow", "tool_timeout")


# ------------------------------------------------------------------------------------------------ batch
def test_a_batch_makes_every_document_with_every_seed_and_nothing_twice(
    examples_dir: Path, tmp_path: Path
) -> None:
    prose = tmp_path / "prose.txt"
    prose.write_text("Some day we will have tools.")
    documents = [examples_dir / CHECKLIST, prose]
    jobs = jobs_for(documents, tmp_path / "out", [0, 1], {"tasks": 5, "heldout": 1, "seed": 0})
    rows = list(run_batch(jobs, SerialExecutor()))
    assert [(row.document, row.seed) for row in rows] == [(d.name, s) for d in documents for s in (0, 1)]
    assert [bool(row.bundle) for row in rows] == [True, True, False, False]
    assert len(rows[2].problem) > 20 and not rows[2].bundle
    for row in rows[:2]:
        bundle = load_bundle(tmp_path / "out" / row.bundle)
        assert row.tasks == 5 == len(bundle.tasks) == sum(row.levels.values())
        assert row.gates["mutants"] == sum(
            g.tried for c in bundle.certificates for g in c.gates if g.gate == "mutants"
        )
    again = list(run_batch(jobs, SerialExecutor()))
    assert [row.reused for row in again] == [True, True, False, False]
    assert [row.manifest for row in again] == [row.manifest for row in rows]
    (tmp_path / "out" / rows[0].bundle / "manifest.json").unlink()
    with pytest.raises(EnvgenError, match="rename"):
        jobs_for([documents[0], documents[0]], tmp_path / "out", [0], {"tasks": 5, "heldout": 1, "seed": 0})
