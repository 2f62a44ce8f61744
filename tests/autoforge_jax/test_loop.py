"""Every phase on one small document, once from end to end and once in pieces: both must leave the same run
behind."""

import gc
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest

from autoforge_jax.config import Config, load_config
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.interrupt import Interrupted, StopFlag
from autoforge_jax.train.loop import execute
from autoforge_jax.train.metrics import Bar, Reporter, read_jsonl
from autoforge_jax.train.rundir import PHASES, RunDir
from autoforge_jax.train.state_files import read_json
from benchmarks.kill_resume import differences

ROOT = Path(__file__).resolve().parents[2]


def _tiny(out_dir: Path, name: str, *overrides: str) -> Config:
    fixed = (
        f"run.out_dir={out_dir}",
        f"run.name={name}",
        f"run.compile_cache={ROOT / '.jax_cache'}",
        f'synthesis.documents=["{ROOT / "configs" / "debug" / "shelf_tools.json"}"]',
    )
    return load_config(ROOT / "configs" / "debug" / "tiny.toml", [*fixed, *overrides])


class _StopAt(Reporter):
    """Asks for a stop when a bar shows a step, as a signal would that comes while the next step is under
    way."""

    def __init__(self, stop: StopFlag, name: str, step: int) -> None:
        super().__init__(io.StringIO())
        self._stop, self._name, self._step = stop, name, step

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Bar]:
        with super().bar(name, total) as bar:
            shown = bar.update

            def update(done: int, total: int | None = None, **numbers: Any) -> None:
                shown(done, total, **numbers)
                if name == self._name and done == self._step:
                    self._stop.request(signal.SIGTERM)

            bar.update = update  # type: ignore[method-assign]
            yield bar


class _CountsWeights(Reporter):
    """Counts the arrays alive that have the shape of the embedding whenever an ERPO step is done."""

    def __init__(self, out: io.StringIO, hidden_size: int) -> None:
        super().__init__(out)
        self._hidden_size = hidden_size
        self.alive: list[int] = []

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Bar]:
        with super().bar(name, total) as bar:
            shown = bar.update

            def update(done: int, total: int | None = None, **numbers: Any) -> None:
                shown(done, total, **numbers)
                if name == "erpo" and "mixed" in numbers:
                    gc.collect()
                    # the vocabulary is nowhere near as small as a layer's width
                    tables = [a for a in jax.live_arrays() if a.ndim == 2 and a.shape[0] >= 300]
                    self.alive.append(sum(a.shape[1] == self._hidden_size for a in tables))

            bar.update = update  # type: ignore[method-assign]
            yield bar


@pytest.fixture(scope="module")
def out_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this module live."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(out_dir: Path) -> tuple[RunDir, str]:
    """A run through all phases, and what it printed."""
    out = io.StringIO()
    config = _tiny(out_dir, "whole")
    reporter = _CountsWeights(out, config.model.hidden_size)
    run = execute(config, reporter=reporter)
    # Parameters and Adam's two moments: no initial, no warm-start weights, no copy of a resting engine. Every
    # second step begins a checkpoint, whose copies are being written.
    assert config.erpo.checkpoint_every == 2 and reporter.alive[::2] == [3, 3]
    return run, out.getvalue()


def _stable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what may differ between two runs: times and compile counts."""
    drop = ("seconds", "speed", "compiles", "engine_compiles")
    return [{key: value for key, value in row.items() if key not in drop} for row in rows]


def _arrays(run: RunDir, phase: str) -> list[dict[str, Any]]:
    """Name, shape, type and checksum of every array of the newest checkpoint."""
    newest = sorted(run.checkpoints(phase).glob("step_*"))[-1]
    return read_json(newest / "meta.json")["arrays"]


def test_a_run_leaves_everything_behind(finished: tuple[RunDir, str]) -> None:
    run, printed = finished
    assert [record.name for record in run.records.values() if record.done] == list(PHASES)
    for name in PHASES:
        assert any(line.startswith(f"{name:<12} ") and line.endswith(" s") for line in printed.splitlines())
    assert "ERPO gain, points" in printed
    for file in (
        "config.toml", "config.json", "bundles.json", "phases.json", "summary.json", "report.html",
        "tokenizer/tokenizer.json", "export/config.json", "export/model.safetensors", "export/tokenizer.json",
    ):  # fmt: skip
        assert (run.root / file).is_file(), file
    assert {path.name for path in run.evals.iterdir()} == {
        "init-heldout_tasks-greedy.json",
        "before-heldout_tasks-greedy.json", "before-heldout_tasks-sampled.json",
        "after-heldout_tasks-greedy.json", "after-heldout_tasks-sampled.json",
    }  # fmt: skip


def test_every_step_has_its_line_with_a_time_split(finished: tuple[RunDir, str]) -> None:
    run, _ = finished
    rows = read_jsonl(run.metrics)
    erpo = [row for row in rows if row["phase"] == "erpo"]
    assert [row["step"] for row in erpo] == list(range(1, run.config.erpo.steps + 1))
    warm = [row for row in rows if row["phase"] == "warm start"]
    assert [row["step"] for row in warm] == list(range(1, len(warm) + 1))
    assert warm[-1]["loss"] < warm[0]["loss"] / 4
    assert all(row["speed"]["useful_tokens_per_s"] > 0 for row in warm)
    for row in erpo:
        assert {"rollout", "sync", "train"} <= row["seconds"].keys()
        speed = row["speed"]
        assert speed["tokens_per_s"] >= speed["useful_tokens_per_s"] > 0 and speed["tflops"] > 0
        assert "mfu" not in speed, "the config names no accelerator"
        assert speed["xla_compiles"] > 0 and speed["compile_seconds"] > 0
        assert {"reward", "mixed_share", "grad_norm", "compiles", "engine_compiles"} <= row.keys()
        assert row["update_skipped"] == 0 and row["grad_norm"] > 0, "a step without an update"
        assert row["logprob_gap_mean"] < 1e-3, "engine and learner disagree"
        assert row["rollout/ledger_mismatches"] == 0
        assert row["rollout/ledger_checked_tokens"] > row["tokens"] > 0


def test_trajectories_can_be_read_turn_by_turn(finished: tuple[RunDir, str]) -> None:
    rows = read_jsonl(finished[0].trajectories)
    assert {row["stage"] for row in rows} == {"init", "before", "erpo", "after"}
    for row in rows:
        assert row["messages"][0]["role"] == "user" and row["messages"][0]["content"]
        assert row["success"] == (row["reward"] == 1.0)
        assert row["success"] or row["differences"] or row["excluded"] or row["stop_reason"] != "user_done"
    assert any(call["name"] for row in rows for m in row["messages"] for call in m["tool_calls"])


def test_the_report_shows_the_numbers_of_the_evaluations(finished: tuple[RunDir, str]) -> None:
    run, printed = finished
    html = (run.root / "report.html").read_text()
    assert not re.search(r"""(src|href|action|data)\s*=\s*["']?\s*(https?:)?//""", html)
    for stage in ("before", "after"):
        report = read_json(run.evals / f"{stage}-heldout_tasks-sampled.json")["report"]
        assert f"{report['success'] * 100:.1f} %" in html
        low, high = report["interval"]
        assert f"{report['success'] * 100:.1f} [{low * 100:.1f}, {high * 100:.1f}]" in printed


def test_a_second_run_does_nothing_again(finished: tuple[RunDir, str]) -> None:
    run, _ = finished
    before = {path: path.stat().st_mtime_ns for path in run.evals.iterdir()}
    out = io.StringIO()
    start = time.perf_counter()
    execute(run.config, reporter=Reporter(out))
    assert out.getvalue().count("done before") == len(PHASES) - 2
    assert {path: path.stat().st_mtime_ns for path in run.evals.iterdir()} == before
    assert time.perf_counter() - start < 20


def test_another_config_for_a_finished_run_is_an_error(finished: tuple[RunDir, str]) -> None:
    run, _ = finished
    other = _tiny(run.root.parent, "whole", "erpo.group_size=5")
    with pytest.raises(ConfigError, match=r"erpo\.group_size: the run has 4, this config has 5"):
        execute(other, reporter=Reporter(io.StringIO()))


def test_eval_looks_at_the_newest_checkpoint_with_its_own_settings(finished: tuple[RunDir, str]) -> None:
    run, _ = finished
    other = _tiny(run.root.parent, "whole", "sampled_evaluation.attempts=4", "sampled_evaluation.k=[4]")
    out = io.StringIO()
    execute(other, command="eval", reporter=Reporter(out))
    tree = read_json(run.evals / "newest-heldout_tasks-sampled.json")
    assert list(tree["report"]["pass_at_k"]) == ["4"]
    assert tree["step"] == run.config.erpo.steps
    greedy = read_json(run.evals / "newest-heldout_tasks-greedy.json")["report"]
    after = read_json(run.evals / "after-heldout_tasks-greedy.json")["report"]
    assert greedy["outcomes"] == after["outcomes"]


def test_an_interrupted_run_goes_on_to_the_same_metrics_and_parameters(
    finished: tuple[RunDir, str], out_dir: Path
) -> None:
    whole, _ = finished
    config = _tiny(out_dir, "pieces")
    for name, step, saved in (("warm start", 7, 8), ("erpo", 1, 2)):
        stop = StopFlag()
        with pytest.raises(Interrupted, match=f"saved after step {saved} of") as caught:
            execute(config, reporter=_StopAt(stop, name, step), stop=stop)
        assert caught.value.exit_code == 0
    # A process that dies between two checkpoints leaves lines of steps that will be done again.
    with (out_dir / "pieces" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"phase": "erpo", "step": 3, "reward": 99.0}) + "\n")
    pieces = execute(config, reporter=Reporter(io.StringIO()))
    assert _stable(read_jsonl(pieces.metrics)) == _stable(read_jsonl(whole.metrics))
    for phase in ("sft", "erpo"):
        assert _arrays(pieces, phase) == _arrays(whole, phase)
    key = ("stage", "step", "mode", "task_id", "sample_index")
    kept = [[r for r in read_jsonl(run.trajectories) if r["stage"] != "newest"] for run in (pieces, whole)]
    first, second = (sorted(rows, key=lambda r: [str(r[k]) for k in key]) for rows in kept)
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("within", "event"),
    [("checkpoints/sft", 9), ("erpo/.writing-step_00000004/meta.json", 1), ("metrics.jsonl", 10)],
    ids=["while arrays are written", "before a checkpoint is whole", "before a line of metrics"],
)
def test_a_killed_run_is_finished_bit_equal(
    within: str, event: int, finished: tuple[RunDir, str], out_dir: Path
) -> None:
    """SIGKILL just before the program's n-th file event under a path; benchmarks/kill_resume.py does more."""
    name = f"killed-{event}"
    config = _tiny(out_dir, name)
    words = [
        "run", str(ROOT / "configs/debug/tiny.toml"), "--set", f"run.out_dir={out_dir}",
        "--set", f"run.name={name}", "--set", f"run.compile_cache={ROOT / '.jax_cache'}",
        "--set", f'synthesis.documents=["{ROOT / "configs" / "debug" / "shelf_tools.json"}"]',
    ]  # fmt: skip
    killed = subprocess.run(
        [
            sys.executable, "benchmarks/kill_resume.py", "--child", str(out_dir / name),
            "--within", within, "--kill-at", str(event), *words,
        ],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    resumed = execute(config, reporter=Reporter(io.StringIO()))
    assert not list(resumed.root.glob("checkpoints/*/.*")), "remains of the killed process"
    assert differences(resumed.root, finished[0].root) == []


def test_a_changed_document_is_noticed_once_results_depend_on_it(out_dir: Path) -> None:
    document = out_dir / "shelf_tools.json"
    document.write_text((ROOT / "configs" / "debug" / "shelf_tools.json").read_text())
    config = _tiny(out_dir, "document", f'synthesis.documents=["{document}"]')
    stop = StopFlag()
    stop_after = _StopAt(stop, "references", 8)
    with pytest.raises(Interrupted):
        execute(config, command="sft", reporter=stop_after, stop=stop)
    document.write_text(document.read_text().replace("Delete a book.", "Remove a book."))
    with pytest.raises(TrainingError, match=r"shelf_tools\.json changed or was deleted"):
        execute(config, command="sft", reporter=Reporter(io.StringIO()))


def test_ctrl_c_on_the_command_line_says_how_to_resume(tmp_path: Path) -> None:
    words = ["run", str(ROOT / "configs" / "debug" / "tiny.toml"), "--set", f"run.out_dir={tmp_path}"]
    words += ["--set", "synthesis.tasks_per_bundle=2000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "autoforge_jax.cli", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "tiny" / "phases.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"resume with: autoforge {shlex.join(words)}" in stderr and "Traceback" not in stderr


def test_a_run_without_its_phases_file_goes_on_from_what_is_there(
    finished: tuple[RunDir, str], out_dir: Path
) -> None:
    """What the message about a damaged phases.json says to do: delete it. Nothing is trained twice."""
    whole, _ = finished
    shutil.copytree(whole.root, out_dir / "forgotten")
    phases = out_dir / "forgotten" / "phases.json"
    phases.write_text("[{")
    with pytest.raises(TrainingError, match=r"phases\.json is not JSON .*delete it and start the same"):
        execute(_tiny(out_dir, "forgotten"), reporter=Reporter(io.StringIO()))
    phases.unlink()
    with pytest.raises(ConfigError, match=r"sft\.steps: the run has 16, this config has 15\n.*every key"):
        execute(_tiny(out_dir, "forgotten", "sft.steps=15"), reporter=Reporter(io.StringIO()))
    out = io.StringIO()
    again = execute(_tiny(out_dir, "forgotten"), reporter=Reporter(out))
    assert [record.name for record in again.records.values() if record.done] == list(PHASES)
    assert "erpo goes on after step 4" in out.getvalue()
    assert read_jsonl(again.metrics) == read_jsonl(whole.metrics)  # no step has a second line
    for phase in ("sft", "erpo"):
        assert _arrays(again, phase) == _arrays(whole, phase)
    for path in whole.evals.iterdir():
        assert (again.evals / path.name).read_bytes() == path.read_bytes()


def test_lost_files_of_a_finished_phase_are_answered_with_what_loses_least(
    finished: tuple[RunDir, str], out_dir: Path
) -> None:
    shutil.copytree(finished[0].root, out_dir / "lost")
    run = RunDir.open(_tiny(out_dir, "lost"))
    (run.tokenizer / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"is not a tokenizer.*\n.*restore it \(the run's export"):
        execute(_tiny(out_dir, "lost"), command="eval", reporter=Reporter(io.StringIO()))
    shutil.copy(run.export / "tokenizer.json", run.tokenizer / "tokenizer.json")
    shutil.rmtree(run.root / "checkpoints")
    with pytest.raises(TrainingError, match=r"sft holds no whole checkpoint .* delete \S+phases\.json"):
        execute(_tiny(out_dir, "lost"), command="eval", reporter=Reporter(io.StringIO()))
    (run.bundles / "shelf_tools" / "manifest.json").unlink()
    with pytest.raises(TrainingError, match=r"changed or was deleted since\nrestore it"):
        execute(_tiny(out_dir, "lost"), reporter=Reporter(io.StringIO()))
