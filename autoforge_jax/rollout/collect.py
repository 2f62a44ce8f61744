"""Collecting one training step's groups: sampled tasks × group_size rollouts, dynamic sampling with a budget
(METHOD.md §4).

A group whose valid rewards all agree has no signal; further tasks are rolled out until there are
`tasks_per_step` groups with one or the budget is spent. Then the step uses what there is. Every group is
returned and counted, also those that failed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoforge_jax.config import BatchConfig, ERPOConfig, RolloutConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.curriculum import SuccessRecord
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.mix import TaskSource, short_environments
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.pool import Deadlines, RunEpisodes, run_episodes
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.shaping import shaped
from autoforge_jax.types import SamplingParams, Trajectory, TrajectoryGroup
from envgen.interface import StopReason

_FLOOR_SHARE = 0.25
"""Least share of mixed groups that a wave is planned with, so that one bad wave cannot ask for the whole
budget.
"""


@dataclass(frozen=True)
class Collection:
    """What a step got."""

    groups: tuple[TrajectoryGroup, ...]
    """Every group rolled out, in task order."""
    selected: tuple[TrajectoryGroup, ...]
    """Those to learn from: with a signal (dynamic sampling), in environments with enough of them."""
    metrics: dict[str, float]
    """Flat, `rollout/…`; per environment `rollout/<environment>/…`."""


def collect(
    policy: Policy,
    items: Sequence[TaskItem],
    renderer: Renderer,
    erpo: ERPOConfig,
    rollout: RolloutConfig,
    *,
    seed: int,
    step: int,
    batch: BatchConfig | None = None,
    record: SuccessRecord | None = None,
    conditions: Conditions | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    run: RunEpisodes = run_episodes,
) -> Collection:
    """Roll out groups of ``erpo.group_size`` for tasks drawn from ``items``.

    Which tasks, in which order, and every sampling seed are functions of (seed, step) and, where one is
    given, of ``record``, by whose weights tasks are then drawn (it is read, not updated). Groups are rolled
    out in waves, each as large as the missing groups at the share of mixed ones seen so far, so that slots
    stay full and little is rolled out in vain. With ``batch`` no trajectory grows beyond one of its rows.
    ``run`` runs the episodes (in this process, or spread over several).
    """
    if not items:
        raise ConfigError(
            "no training tasks to collect from; expected at least one: check the bundles' splits"
        )
    source = TaskSource(
        items,
        seed,
        step,
        block=erpo.min_groups_per_environment,
        record=record,
        weights=erpo.environment_weights,
    )
    budget = min(source.left, group_budget(erpo))
    sampling = SamplingParams(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k)
    limits = EpisodeLimits.of(rollout, batch)
    groups: list[TrajectoryGroup] = []
    waves = 0
    while len(groups) < budget:
        wave = _wave_size(groups, erpo, budget)
        if wave == 0:
            break
        waves += 1
        chosen = source.draw(
            wave, short_environments(usable_groups(groups, erpo), erpo.min_groups_per_environment)
        )
        jobs = [job for item in chosen for job in group_jobs(item, erpo.group_size, seed, step)]
        trajectories = run(
            policy,
            jobs,
            renderer,
            sampling=sampling,
            limits=limits,
            slots=rollout.slots,
            conditions=conditions,
            deadlines=Deadlines.of(rollout),
            on_done=on_done,
        )
        trajectories = [shaped(trajectory, erpo, limits) for trajectory in trajectories]
        for index, (bundle, task) in enumerate(chosen):
            own = trajectories[index * erpo.group_size : (index + 1) * erpo.group_size]
            groups.append(TrajectoryGroup(task.id, bundle.environment_id, tuple(own)))
    selected = select_groups(groups, erpo)
    metrics = collection_metrics(groups, selected)
    metrics["rollout/waves"] = float(waves)
    metrics["rollout/budget_spent"] = float(budget_spent(groups, erpo, budget))
    return Collection(tuple(groups), tuple(selected), metrics)


def _wave_size(groups: Sequence[TrajectoryGroup], erpo: ERPOConfig, budget: int) -> int:
    left = budget - len(groups)
    if not erpo.dynamic_sampling:
        return left
    missing = erpo.tasks_per_step - len(select_groups(groups, erpo))
    if missing <= 0:
        return 0
    if not groups:
        return min(left, missing)
    share = max(sum(group.mixed for group in groups) / len(groups), _FLOOR_SHARE)
    return min(left, math.ceil(missing / share))


def group_budget(erpo: ERPOConfig) -> int:
    """Groups that a step may roll out at most."""
    share = erpo.sampling_budget if erpo.dynamic_sampling else 1.0
    return math.ceil(share * erpo.tasks_per_step)


def group_jobs(item: TaskItem, size: int, seed: int, step: int) -> list[EpisodeJob]:
    """The rollouts of one task."""
    bundle, task = item
    return [EpisodeJob(bundle, task, sample, run_seed=seed, step=step) for sample in range(size)]


def usable_groups(groups: Sequence[TrajectoryGroup], erpo: ERPOConfig) -> list[TrajectoryGroup]:
    """Those with a signal (dynamic sampling), or with anything valid."""
    return [group for group in groups if (group.mixed if erpo.dynamic_sampling else group.valid)]


def select_groups(groups: Sequence[TrajectoryGroup], erpo: ERPOConfig) -> list[TrajectoryGroup]:
    """Those to learn from: usable, in environments that have enough of them."""
    usable = usable_groups(groups, erpo)
    counts = Counter(group.environment_id for group in usable)
    return [group for group in usable if counts[group.environment_id] >= erpo.min_groups_per_environment]


def budget_spent(groups: Sequence[TrajectoryGroup], erpo: ERPOConfig, budget: int) -> bool:
    """True when dynamic sampling ended for want of budget, not because it had enough."""
    short = len(select_groups(groups, erpo)) < erpo.tasks_per_step
    return erpo.dynamic_sampling and short and len(groups) >= budget


def collection_metrics(
    groups: Sequence[TrajectoryGroup], selected: Sequence[TrajectoryGroup]
) -> dict[str, float]:
    """Counts and means over the groups of a step; means are over valid trajectories."""
    metrics = _summary(groups, selected, "rollout")
    names = {t.environment_id: t.environment for group in groups for t in group.trajectories}
    for environment_id, name in sorted(names.items(), key=lambda pair: (pair[1], pair[0])):
        own = [group for group in groups if group.environment_id == environment_id]
        chosen = [group for group in selected if group.environment_id == environment_id]
        metrics |= _summary(own, chosen, f"rollout/{name}")
    return metrics


def _summary(
    groups: Sequence[TrajectoryGroup], selected: Sequence[TrajectoryGroup], prefix: str
) -> dict[str, float]:
    every = [t for group in groups for t in group.trajectories]
    valid = [t for t in every if t.valid]
    calls = sum(t.tool_calls for t in valid)
    turns = sum(len(t.turns) for t in valid)
    metrics = {
        "groups": float(len(groups)),
        "selected_groups": float(len(selected)),
        "mixed_share": sum(group.mixed for group in groups) / len(groups) if groups else 0.0,
        "all_success_groups": float(sum({t.success for t in group.valid} == {True} for group in groups)),
        "all_failure_groups": float(sum({t.success for t in group.valid} == {False} for group in groups)),
        "empty_groups": float(sum(not group.valid for group in groups)),
        "trajectories": float(len(every)),
        "excluded": float(sum(bool(t.excluded) for t in every)),
        "user_errors": float(sum(t.user_error for t in every)),
        "sampled_tokens": float(sum(t.sampled_tokens for t in every)),
        "overlong": float(sum(t.overlong for t in every)),
        "timeouts": float(sum(t.stop_reason is StopReason.TIMEOUT for t in every)),
    }
    lost = [t.sampled_tokens for t in every if t.excluded]
    if lost:  # beside `sampled_tokens_mean`: do failures favour short episodes?
        metrics["excluded_tokens_mean"] = sum(lost) / len(lost)
    if valid:
        metrics |= {
            "reward": sum(t.reward for t in valid) / len(valid),
            "success": sum(t.success for t in valid) / len(valid),
            "partial_credit": sum(t.partial_credit for t in valid) / len(valid),
            "turns": turns / len(valid),
            "tool_calls": calls / len(valid),
            "tokens": sum(len(t.token_ids) for t in valid) / len(valid),
            "sampled_tokens_mean": sum(t.sampled_tokens for t in valid) / len(valid),
            "tool_error_rate": sum(t.tool_errors for t in valid) / calls if calls else 0.0,
            "malformed_rate": sum(t.malformed_calls for t in valid) / turns if turns else 0.0,
        }
    for reason, count in sorted(Counter(t.stop_reason.value for t in every).items()):
        metrics[f"stop/{reason}"] = float(count)
    return {f"{prefix}/{key}": value for key, value in metrics.items()}
