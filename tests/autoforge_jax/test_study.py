"""Several seeds in one table, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.records import report_tree
from autoforge_jax.train.study import study_table
from autoforge_jax.types import EvalReport, TaskOutcome

EMPTY = EvalReport(
    name="heldout_tasks",
    policy_version=0,
    success=0.0,
    interval=(0.0, 1.0),
    pass_at_k={},
    pass_hat_k={},
    tasks=0,
    attempts=0,
    mean_turns=0.0,
    mean_tool_calls=0.0,
    tool_error_rate=0.0,
    malformed_rate=0.0,
    stop_reasons={},
    by_environment={},
    by_pattern={},
    outcomes=(),
)


def write(folder: Path, stage: str, solved: dict[str, int]) -> None:
    outcomes = tuple(TaskOutcome(task, "shelf", "p", 1, wins, 1) for task, wins in solved.items())
    report = replace(EMPTY, success=sum(solved.values()) / len(solved), outcomes=outcomes)
    tree = {"stage": stage, "set": "heldout_tasks", "mode": "greedy", "report": report_tree(report)}
    (folder / "eval").mkdir(parents=True, exist_ok=True)
    (folder / "eval" / f"{stage}-heldout_tasks-greedy.json").write_text(json.dumps(tree))


def test_tasks_are_averaged_over_seeds_and_gains_are_paired(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "before", {"a": 0, "b": 1, "c": 0, "d": 0})
    write(two, "before", {"a": 0, "b": 0, "c": 0, "d": 0})
    write(one, "after", {"a": 1, "b": 1, "c": 1, "d": 0})
    write(two, "after", {"a": 1, "b": 1, "c": 0, "d": 0})
    (one / "summary.json").write_text(json.dumps({"seconds": {"synthesis": 60.0, "erpo": 90.0}}))
    header, _, row, _, minutes, _, split = study_table([one, two]).splitlines()
    assert header.startswith("| success, % | sampling | before SFT | after SFT | after ERPO |")
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "Held-out tasks (4 tasks)" and cells[2] == "–"
    assert cells[3].startswith("**12.5** [") and cells[3].endswith("(25.0, 0.0)")
    assert cells[4].startswith("**62.5** [") and cells[4].endswith("(75.0, 50.0)")
    assert cells[5].startswith("**+50.0** [")
    assert (minutes, split) == ("| minutes | synthesis | erpo | all |", "| one | 1.0 | 1.5 | 2.5 |")


def test_a_gain_that_every_task_shares_has_no_width_and_a_mixed_one_has(tmp_path: Path) -> None:
    write(tmp_path, "before", dict.fromkeys("abcd", 0))
    write(tmp_path, "after", dict.fromkeys("abcd", 1))
    assert "**+100.0** [+100.0, +100.0]" in study_table([tmp_path])
    write(tmp_path, "after", {"a": 1, "b": 0, "c": 0, "d": 0})
    assert "**+25.0** [+0.0, +75.0]" in study_table([tmp_path])


def test_folders_without_evaluations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected run directories of `autoforge run`"):
        study_table([tmp_path])


def test_a_run_counts_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given twice"):
        study_table([tmp_path / "a", tmp_path / "b", tmp_path / "c" / ".." / "a"])


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"seconds": 3}'])
def test_a_damaged_summary_is_named_with_what_to_do(content: str, tmp_path: Path) -> None:
    write(tmp_path, "before", {"a": 1})
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(TrainingError, match=r"summary\.json .*delete it: the run's own command writes it"):
        study_table([tmp_path])


def test_a_folder_that_is_no_run_is_not_averaged_over(tmp_path: Path) -> None:
    write(tmp_path / "one", "before", {"a": 1})
    with pytest.raises(ConfigError, match=r"no evaluation in \S+/eval; .*leave out what is none"):
        study_table([tmp_path / "one", tmp_path / "one" / "eval"])


def test_minutes_stand_beside_the_run_that_took_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, "before", {"a": 1})
    (tmp_path / "two" / "summary.json").write_text(json.dumps({"seconds": {"erpo": 120.0}}))
    assert study_table([tmp_path / "one", tmp_path / "two"]).splitlines()[-1] == "| two | 2.0 | 2.0 |"
