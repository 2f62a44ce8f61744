"""Several runs of one config with different seeds as one Markdown table. No JAX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.state_files import read_json
from autoforge_jax.train.statistics import bootstrap_interval, wilson_interval
from autoforge_jax.train.summary import SET_NAMES, STAGE_NAMES, Reports, read_reports

STUDY_STAGES = ("init", "before", "after")
Rates = dict[tuple[str, str], float]
"""(environment, task id) -> share of solved attempts, averaged over runs."""


def pooled_rates(runs: Sequence[Reports], key: tuple[str, str, str]) -> Rates:
    """Per task, its success averaged over the runs that have the report `key` (stage, set, mode). Tasks that
    a run left out are averaged over the others."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for reports in runs:
        report = reports.get(key)
        for outcome in report.outcomes if report else ():
            rate = outcome.successes / outcome.attempts
            found[outcome.environment, outcome.task_id].append(rate)
    return {task: sum(rates) / len(rates) for task, rates in found.items()}


def study_table(folders: Sequence[Path]) -> str:
    """Success in percent at every stage, means over runs with 95 % intervals over tasks, each run's own
    number behind; the paired gain of ERPO; the time split. Raises ConfigError without evaluations.

    Intervals resample tasks: every task counts with its mean over runs, so runs are no extra tasks.
    """
    twice = [folder for index, folder in enumerate(folders) if folder.resolve() in _resolved(folders[:index])]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice; every run counts as one seed, so name it once")
    runs = [read_reports(folder / "eval") for folder in folders]
    empty = [
        str(folder)
        for folder, reports in zip(folders, runs, strict=True)
        if not any(key[0] in STUDY_STAGES for key in reports)
    ]
    if empty:
        raise ConfigError(
            f"no evaluation in {', '.join(empty)}; expected run directories of `autoforge run`: leave out "
            "what is none"
        )
    keys = sorted({key[1:] for reports in runs for key in reports if key[0] in STUDY_STAGES})
    order = {name: index for index, name in enumerate(SET_NAMES)}
    keys.sort(key=lambda key: (order.get(key[0], len(order)), key))
    titles = ["success, %", "sampling", *(STAGE_NAMES[stage] for stage in STUDY_STAGES), "ERPO gain, points"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name, mode in keys:
        tasks = max(len(pooled_rates(runs, (stage, name, mode))) for stage in STUDY_STAGES)
        cells = [f"{SET_NAMES.get(name, name)} ({tasks} tasks)", mode]
        cells += [_success(runs, (stage, name, mode)) for stage in STUDY_STAGES]
        cells.append(_gain(runs, name, mode))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_seconds(folders)])


def _resolved(folders: Sequence[Path]) -> set[Path]:
    return {folder.resolve() for folder in folders}


def _success(runs: Sequence[Reports], key: tuple[str, str, str]) -> str:
    rates = list(pooled_rates(runs, key).values())
    if not rates:
        return "–"
    mean = sum(rates) / len(rates)
    low, high = bootstrap_interval(rates) if len(set(rates)) > 1 else wilson_interval(sum(rates), len(rates))
    own = ", ".join(f"{reports[key].success * 100:.1f}" for reports in runs if key in reports)
    return f"**{mean * 100:.1f}** [{low * 100:.1f}, {high * 100:.1f}] ({own})"


def _gain(runs: Sequence[Reports], name: str, mode: str) -> str:
    both = [
        reports for reports in runs if ("before", name, mode) in reports and ("after", name, mode) in reports
    ]
    old, new = (pooled_rates(both, (stage, name, mode)) for stage in ("before", "after"))
    gains = [new[task] - old[task] for task in old.keys() & new.keys()]
    if not gains:
        return "–"
    low, high = bootstrap_interval(sorted(gains))
    return f"**{sum(gains) / len(gains) * 100:+.1f}** [{low * 100:+.1f}, {high * 100:+.1f}]"


def _seconds(folders: Sequence[Path]) -> list[str]:
    splits: list[tuple[str, Mapping[str, float]]] = []
    for folder in folders:
        if (folder / "summary.json").is_file():
            remedy = "delete it: the run's own command writes it again"
            seconds = read_json(folder / "summary.json", dict, remedy).get("seconds")
            if not isinstance(seconds, dict):
                raise TrainingError(f"{folder / 'summary.json'} has no seconds by phase; {remedy}")
            splits.append((folder.name, seconds))
    if not splits:
        return []
    names = list(dict.fromkeys(name for _, split in splits for name in split))
    lines = [f"| minutes | {' | '.join(names)} | all |", "|" + "---|" * (len(names) + 2)]
    for run_name, split in splits:
        parts = [split.get(name, 0.0) for name in names]
        cells = " | ".join(f"{seconds / 60:.1f}" for seconds in [*parts, sum(parts)])
        lines.append(f"| {run_name} | {cells} |")
    return lines
