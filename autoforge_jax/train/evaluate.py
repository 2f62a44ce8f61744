"""Evaluation: one policy version, one set of tasks, its own sampling settings (METHOD.md §5, FAULTS.md
20).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autoforge_jax.config import EvalConfig, RolloutConfig
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.pool import Deadlines, RunEpisodes, run_episodes
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.train.statistics import pass_at_k, pass_hat_k, success_interval
from autoforge_jax.types import EvalReport, SamplingParams, TaskOutcome, Trajectory


@dataclass(frozen=True)
class Evaluation:
    """A report with the trajectories that it was made of."""

    report: EvalReport
    trajectories: tuple[Trajectory, ...]


def evaluate(
    policy: Policy,
    items: Sequence[TaskItem],
    config: EvalConfig,
    rollout: RolloutConfig,
    renderer: Renderer,
    *,
    name: str,
    seed: int,
    conditions: Conditions | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    run: RunEpisodes = run_episodes,
) -> EvalReport:
    """`run_evaluation` without the trajectories."""
    return run_evaluation(
        policy,
        items,
        config,
        rollout,
        renderer,
        name=name,
        seed=seed,
        conditions=conditions,
        on_done=on_done,
        run=run,
    ).report


def run_evaluation(
    policy: Policy,
    items: Sequence[TaskItem],
    config: EvalConfig,
    rollout: RolloutConfig,
    renderer: Renderer,
    *,
    name: str,
    seed: int,
    conditions: Conditions | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    run: RunEpisodes = run_episodes,
) -> Evaluation:
    """Run `config.attempts` episodes of every task and sum them up.

    Temperature, top_p and top_k come from ``config`` alone; of ``rollout`` only slots, budgets and deadlines.
    Seeds depend on ``seed``, task and attempt, not on ``name``: two policies evaluated with one seed see the
    same random numbers. Attempts that failed through the engine, the environment or a user error are left
    out and counted (`excluded`); a task without any other attempt is left out too. Raises ConfigError for
    settings that make no sense, TrainingError when nothing is left.
    """
    chosen = list(items[: config.max_tasks] if config.max_tasks else items)
    if not chosen:
        raise ConfigError(
            f"evaluation {name!r} got no tasks; expected at least one: check its bundles' splits"
        )
    sampling = SamplingParams(temperature=config.temperature, top_p=config.top_p, top_k=config.top_k)
    jobs = [
        EpisodeJob(bundle, task, attempt, run_seed=seed, purpose="evaluation")
        for bundle, task in chosen
        for attempt in range(config.attempts)
    ]
    start = time.perf_counter()
    trajectories = run(
        policy,
        jobs,
        renderer,
        sampling=sampling,
        limits=EpisodeLimits.of(rollout),
        slots=rollout.slots,
        conditions=conditions,
        deadlines=Deadlines.of(rollout),
        on_done=on_done,
    )
    seconds = time.perf_counter() - start
    version = policy.version
    report = summarise(trajectories, config, name=name, policy_version=version, seconds=seconds, seed=seed)
    return Evaluation(report, tuple(trajectories))


def summarise(
    trajectories: Sequence[Trajectory],
    config: EvalConfig,
    *,
    name: str,
    policy_version: int,
    seconds: float = 0.0,
    seed: int = 0,
) -> EvalReport:
    """The report of finished attempts; also for stored ones. Success is the mean over tasks, so every task
    weighs the same.
    """
    valid = [t for t in trajectories if t.valid]
    outcomes = task_outcomes(valid)
    if not outcomes:
        reasons = dict(Counter(t.excluded or "user_error" for t in trajectories))
        raise TrainingError(
            f"evaluation {name!r}: every attempt was excluded ({reasons}); expected at least one that counts"
        )
    turns = sum(len(t.turns) for t in valid)
    calls = sum(t.tool_calls for t in valid)
    return EvalReport(
        name=name,
        policy_version=policy_version,
        success=_mean(_rate(o) for o in outcomes),
        interval=success_interval(outcomes, seed),
        pass_at_k={k: _over_k(pass_at_k, outcomes, k) for k in config.k},
        pass_hat_k={k: _over_k(pass_hat_k, outcomes, k) for k in config.k},
        tasks=len(outcomes),
        attempts=len(valid),
        mean_turns=turns / len(valid),
        mean_tool_calls=calls / len(valid),
        tool_error_rate=sum(t.tool_errors for t in valid) / calls if calls else 0.0,
        malformed_rate=sum(t.malformed_calls for t in valid) / turns if turns else 0.0,
        stop_reasons=dict(sorted(Counter(t.stop_reason.value for t in trajectories).items())),
        by_environment=_grouped(outcomes, "environment"),
        by_pattern=_grouped(outcomes, "pattern"),
        outcomes=tuple(outcomes),
        sampling={
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "seed": seed,
        },
        seconds=seconds,
        excluded=len(trajectories) - len(valid),
    )


def task_outcomes(trajectories: Iterable[Trajectory]) -> list[TaskOutcome]:
    """Attempts summed per task, in the order in which tasks first appear."""
    attempts: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        attempts.setdefault((trajectory.environment_id, trajectory.task_id), []).append(trajectory)
    return [
        TaskOutcome(
            task_id=task_id,
            environment=tried[0].environment,
            pattern=tried[0].pattern,
            difficulty=tried[0].difficulty,
            successes=sum(t.success for t in tried),
            attempts=len(tried),
        )
        for (_, task_id), tried in attempts.items()
    ]


def _rate(outcome: TaskOutcome) -> float:
    return outcome.successes / outcome.attempts


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _over_k(estimate: Callable[[int, int, int], float], outcomes: Sequence[TaskOutcome], k: int) -> float:
    """Mean over the tasks that have k attempts left after exclusions; NaN when none has."""
    values = [estimate(o.successes, o.attempts, k) for o in outcomes if o.attempts >= k]
    return _mean(values) if values else float("nan")


def _grouped(outcomes: Sequence[TaskOutcome], attribute: str) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for outcome in outcomes:
        groups.setdefault(str(getattr(outcome, attribute)), []).append(_rate(outcome))
    return {key: _mean(rates) for key, rates in sorted(groups.items())}
