"""Reads a run directory and works out what the report shows. Nothing here is known beforehand: a run without
ERPO has no ERPO curve, a run without held-out bundle has no row for it. No JAX.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoforge_jax.errors import ConfigError
from autoforge_jax.train.metrics import read_jsonl
from autoforge_jax.train.rundir import toml_text
from autoforge_jax.train.state_files import read_json, read_records, saved_config
from autoforge_jax.train.summary import SET_NAMES, STAGES, by_stage, differences, read_evals

MAX_TRAJECTORIES = 400


@dataclass(frozen=True)
class ResultRow:
    """One line of the before/after table: one set of tasks, one way of sampling."""

    set_name: str
    mode: str
    reports: dict[str, dict[str, Any]]
    """Stage -> evaluation report."""
    difference: dict[str, Any] | None
    """after − before, paired by task: ``value``, ``interval``, ``tasks``."""


@dataclass(frozen=True)
class RunData:
    """Everything the template reads."""

    name: str
    config: dict[str, Any]
    config_text: str
    phases: list[dict[str, Any]]
    bundles: list[dict[str, Any]]
    metrics: dict[str, list[dict[str, Any]]]
    """Phase -> its rows in order of step."""
    results: list[ResultRow]
    evals: list[dict[str, Any]]
    trajectories: list[dict[str, Any]]
    trajectories_total: int


def read_run(root: Path) -> RunData:
    """All data of a run directory; ConfigError when `root` is none."""
    if not (root / "config.json").is_file():
        raise ConfigError(f"{root} is no run directory (no config.json in it)")
    config = saved_config(root)
    metrics: dict[str, list[dict[str, Any]]] = {}
    for row in read_jsonl(root / "metrics.jsonl", ("phase", "step")):
        metrics.setdefault(row["phase"], []).append(row)
    stored = read_evals(root / "eval")
    evals = [found.tree for found in stored]
    trajectories = read_jsonl(root / "trajectories.jsonl")
    return RunData(
        name=root.resolve().name,
        config=config,
        config_text=toml_text(config),
        phases=[vars(record) for record in read_records(root).values()],
        bundles=_bundles(root / "bundles.json"),
        metrics=metrics,
        results=results(evals, differences(by_stage(stored), config["run"]["seed"])),
        evals=evals,
        trajectories=pick(trajectories, MAX_TRAJECTORIES),
        trajectories_total=len(trajectories),
    )


def _bundles(path: Path) -> list[dict[str, Any]]:
    remedy = "delete it: the run's own command writes it again from the bundles"
    return read_json(path, list, remedy) if path.is_file() else []


def results(evals: Iterable[dict[str, Any]], paired_rows: list[dict[str, Any]]) -> list[ResultRow]:
    """The before/after table: held-out tasks first, greedy first, only sets and modes that were evaluated."""
    table: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for item in evals:
        if item["stage"] in STAGES:
            table.setdefault((item["set"], item["mode"]), {})[item["stage"]] = item["report"]
    paired = {(item["set"], item["mode"]): item for item in paired_rows}
    order = {name: index for index, name in enumerate(SET_NAMES)}
    keys = sorted(table, key=lambda key: (order.get(key[0], len(order)), key[1]))
    return [ResultRow(name, mode, table[name, mode], paired.get((name, mode))) for name, mode in keys]


def pick(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` trajectories, evenly over the file: every phase and step range keeps its share."""
    if len(rows) <= most:
        return rows
    return [rows[index * len(rows) // most] for index in range(most)]


def points(rows: list[dict[str, Any]], key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of the rows that have the metric."""
    return tuple((float(r["step"]), float(r[key])) for r in rows if isinstance(r.get(key), int | float))


def seconds_by_activity(data: RunData) -> list[tuple[str, float]]:
    """Where the time went: the split of the step rows by phase, and the whole of the phases that have no
    steps."""
    out: list[tuple[str, float]] = []
    for phase in data.phases:
        rows = data.metrics.get(phase["name"], [])
        parts: dict[str, float] = {}
        for row in rows:
            for activity, value in row.get("seconds", {}).items():
                parts[activity] = parts.get(activity, 0.0) + value
        if not parts:
            out.append((phase["name"], phase["seconds"]))
            continue
        out += [(f"{phase['name']}: {activity}", value) for activity, value in parts.items()]
        rest = phase["seconds"] - sum(parts.values())
        if rest > 0.05 * phase["seconds"]:
            out.append((f"{phase['name']}: other", rest))
    return out


def breakdown(rows: list[ResultRow], key: str) -> list[dict[str, Any]]:
    """Success by `environment` or `pattern`: one line per set, mode and group with the value at every stage
    and the number of tasks behind it."""
    out: list[dict[str, Any]] = []
    for row in rows:
        counts: dict[str, int] = {}
        for report in row.reports.values():
            counts = {}
            for outcome in report["outcomes"]:
                counts[outcome[key]] = counts.get(outcome[key], 0) + 1
        for group in sorted(counts):
            values = {stage: report[f"by_{key}"].get(group) for stage, report in row.reports.items()}
            out.append(
                {
                    "set": row.set_name,
                    "mode": row.mode,
                    "group": group,
                    "tasks": counts[group],
                    "values": values,
                }
            )
    return out
