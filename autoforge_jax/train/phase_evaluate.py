"""Evaluations at the stages of a run.

Stages: `init` (before any training, greedy only), `before` (after the warm start), `after` (after ERPO),
`step-…` (between ERPO steps, greedy only). Each set × mode is one file in eval/; a file that is there under
the same key is not made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from autoforge_jax.config import Config, EvalConfig
from autoforge_jax.rollout.episode import TaskItem
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.evaluate import run_evaluation
from autoforge_jax.train.interrupt import StopFlag
from autoforge_jax.train.metrics import Reporter, rewind_jsonl
from autoforge_jax.train.records import (
    append_rows,
    report_tree,
    sample_evaluation,
    trajectory_row,
)
from autoforge_jax.train.state import Params
from autoforge_jax.train.state_files import write_json
from autoforge_jax.train.summary import read_report
from autoforge_jax.types import EvalReport, Trajectory

KEPT_PER_EVALUATION = 32
"""Trajectories of one evaluation that go to trajectories.jsonl."""


def modes(config: Config, stage: str) -> dict[str, EvalConfig]:
    """`greedy` is `evaluation`, `sampled` is `sampled_evaluation`; the names say what they are by default.

    Only the stages that are compared with each other get the second, longer one.
    """
    both = {"greedy": config.evaluation, "sampled": config.sampled_evaluation}
    return both if stage in ("before", "after", "newest") else {"greedy": config.evaluation}


def evaluate_stage(
    assembly: Assembly,
    sets: dict[str, list[TaskItem]],
    params: Params,
    *,
    stage: str,
    step: int,
    version: int,
    key: str,
    reporter: Reporter,
    stop: StopFlag,
    config: Config | None = None,
) -> str:
    """Evaluate every set in every mode of the stage; returns the result line. Stops between two files when
    asked to."""
    run, config = assembly.run, config or assembly.config
    loaded = False
    words: list[str] = []
    for mode, settings in modes(config, stage).items():
        for name, items in sets.items():
            path = run.evals / f"{stage}-{name}-{mode}.json"
            report = assembly.crew.of_first("known report", partial(_known, path, key))
            if report is None:
                # The embedded engine starts every set anew: which rows and prefixes it has in use is then the
                # same when an interrupted stage goes on with its second set.
                if not loaded or assembly.config.rollout.engine == "jax":
                    assembly.sync(params, version)
                    loaded = True
                report = _evaluate(assembly, items, settings, config, name, mode, stage, step, reporter)
                tree = {"stage": stage, "set": name, "mode": mode, "step": step, "key": key}
                if assembly.crew.first:
                    write_json(path, tree | {"report": report_tree(report)})
                stop.raise_if_requested(f"evaluation {stage}: finished sets are kept")
            words.append(f"{name} {mode} {report.success:.1%}")
    assembly.rest()
    return ", ".join(words)


def _evaluate(
    assembly: Assembly,
    items: Sequence[TaskItem],
    settings: EvalConfig,
    config: Config,
    name: str,
    mode: str,
    stage: str,
    step: int,
    reporter: Reporter,
) -> EvalReport:
    tasks = min(len(items), settings.max_tasks) if settings.max_tasks else len(items)
    finished: list[Trajectory] = []
    with reporter.bar(f"eval {name}", tasks * settings.attempts) as bar:

        def on_done(trajectory: Trajectory) -> None:
            finished.append(trajectory)
            bar.update(len(finished), success=sum(t.success for t in finished) / len(finished))

        evaluation = run_evaluation(
            assembly.engine,
            items,
            settings,
            config.rollout,
            assembly.renderer,
            name=name,
            seed=config.run.seed,
            conditions=assembly.conditions,
            on_done=on_done,
            run=assembly.run_episodes,
        )
    if assembly.crew.first:
        _record(assembly, evaluation.trajectories, name, mode, stage, step)
    return evaluation.report


def _record(
    assembly: Assembly, trajectories: Sequence[Trajectory], name: str, mode: str, stage: str, step: int
) -> None:
    where = {"stage": stage, "step": step, "set": name, "mode": mode}
    path = assembly.run.trajectories
    rewind_jsonl(path, lambda row: any(row.get(k) != v for k, v in where.items()))
    kept = sample_evaluation(trajectories, KEPT_PER_EVALUATION)
    append_rows(path, [trajectory_row(t, stage=stage, step=step, set_name=name, mode=mode) for t in kept])


def _known(path: Path, key: str) -> EvalReport | None:
    if not path.is_file():
        return None
    found = read_report(path)
    return found.report if found.key == key else None
