"""What the evaluations of a run say together: the before/after table with paired differences. No JAX."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoforge_jax.errors import TrainingError
from autoforge_jax.train.records import report_from_tree
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.state_files import read_json, write_json
from autoforge_jax.train.statistics import paired_difference
from autoforge_jax.types import EvalReport

Reports = dict[tuple[str, str, str], EvalReport]
"""(stage, set, mode) -> report."""

STAGES = ("init", "before", "after", "newest")
"""In order of time. `newest` is what `autoforge eval` looked at."""
STAGE_NAMES = {"init": "before SFT", "before": "after SFT", "after": "after ERPO", "newest": "autoforge eval"}
SET_NAMES = {
    "heldout_tasks": "Held-out tasks",
    "heldout_bundle": "Held-out bundle",
    "train_tasks": "Training tasks",
}


_REMEDY = (
    "restore it, or delete it: an evaluation whose phase is not over is made again, of one that is over the "
    "tables lack it"
)


@dataclass(frozen=True)
class StoredReport:
    """One file of a run's eval folder."""

    stage: str
    set: str
    mode: str
    key: str
    """Of what it is a function of (`evaluate_stage`)."""
    report: EvalReport
    tree: dict[str, Any]
    """The file as it is."""


def read_report(path: Path) -> StoredReport:
    """An evaluation report of a run; TrainingError that says what is wrong with the file and what to do."""
    tree = read_json(path, dict, _REMEDY)
    try:
        report = report_from_tree(tree["report"])
        return StoredReport(tree["stage"], tree["set"], tree["mode"], tree.get("key", ""), report, tree)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TrainingError(
            f"{path} is no evaluation report ({error!r}); the file is damaged, {_REMEDY}"
        ) from error


def read_evals(evals: Path) -> list[StoredReport]:
    """Every report in a run's eval folder, by file name."""
    return [read_report(path) for path in sorted(evals.glob("*.json"))]


def read_reports(evals: Path) -> Reports:
    """`read_evals` by stage, set and mode."""
    return by_stage(read_evals(evals))


def by_stage(stored: Iterable[StoredReport]) -> Reports:
    """Reports by stage, set and mode."""
    return {(found.stage, found.set, found.mode): found.report for found in stored}


def _tasks(report: EvalReport) -> set[tuple[str, str]]:
    return {(o.environment, o.task_id) for o in report.outcomes}


def differences(reports: Reports, seed: int) -> list[dict[str, Any]]:
    """after − before for every set and mode that has both, paired by task over the tasks that count in
    both."""
    rows: list[dict[str, Any]] = []
    for (stage, name, mode), after in reports.items():
        before = reports.get(("before", name, mode))
        if stage != "after" or before is None:
            continue
        common = _tasks(before) & _tasks(after)
        if not common:
            continue
        old, new = (
            replace(r, outcomes=tuple(o for o in r.outcomes if (o.environment, o.task_id) in common))
            for r in (before, after)
        )
        found = paired_difference(old, new, seed)
        rows.append(
            {
                "set": name,
                "mode": mode,
                "value": found.difference,
                "interval": list(found.interval),
                "tasks": found.tasks,
                "better": found.better,
                "worse": found.worse,
                "clear": found.clear,
            }
        )
    return rows


def write_summary(run: RunDir) -> dict[str, Any]:
    """summary.json: success at every stage, paired differences, seconds by phase."""
    reports = read_reports(run.evals)
    summary = {
        "name": run.config.run.name,
        "seed": run.config.run.seed,
        "success": [
            {
                "stage": stage,
                "set": name,
                "mode": mode,
                "success": r.success,
                "interval": list(r.interval),
                "pass_at_k": r.pass_at_k,
                "pass_hat_k": r.pass_hat_k,
                "tasks": r.tasks,
                "attempts": r.attempts,
            }
            for (stage, name, mode), r in reports.items()
        ],
        "differences": differences(reports, run.config.run.seed),
        "seconds": {name: record.seconds for name, record in run.records.items()},
    }
    write_json(run.root / "summary.json", summary)
    return summary


def _lines(cells: Iterable[tuple[str, ...]]) -> str:
    rows = list(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def results_table(reports: Reports, seed: int) -> str:
    """The before/after table as plain text: success in percent with its 95 % interval, and the paired gain in
    points."""
    if not reports:
        return "no evaluation yet"
    stages = [stage for stage in STAGES if any(key[0] == stage for key in reports)]
    paired = {(d["set"], d["mode"]): d for d in differences(reports, seed)}
    order = {name: index for index, name in enumerate(SET_NAMES)}
    keys = {key[1:] for key in reports if key[0] in STAGES}
    gain_title = "ERPO gain, points (paired, 95 %)"
    rows: list[tuple[str, ...]] = [("success, %", "sampling", *(STAGE_NAMES[s] for s in stages), gain_title)]
    for name, mode in sorted(keys, key=lambda key: (order.get(key[0], len(order)), key)):
        cells = [f"{SET_NAMES.get(name, name)} ({_size(reports, name, mode)})", mode]
        for stage in stages:
            report = reports.get((stage, name, mode))
            cells.append(_percent(report) if report else "–")
        gain = paired.get((name, mode))
        cells.append(_gain(gain) if gain else "–")
        rows.append(tuple(cells))
    return _lines(rows)


def _size(reports: Reports, name: str, mode: str) -> int:
    return max(r.tasks for (_, n, m), r in reports.items() if (n, m) == (name, mode))


def _percent(report: EvalReport) -> str:
    low, high = report.interval
    return f"{report.success * 100:.1f} [{low * 100:.1f}, {high * 100:.1f}]"


def _gain(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['value'] * 100:+.1f} [{low * 100:+.1f}, {high * 100:+.1f}]"
