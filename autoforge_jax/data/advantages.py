"""Rewards -> advantages: METHOD.md §4, eq. 3 and 4. Numpy only.

    A_ij = (R_ij - mean_j R_ij) / std

The mean runs over the valid trajectories of group i. The standard deviation is the population one (divide by
n, not n-1: eq. 4 names no correction, and a scale that jumps from n = 1 to n = 2 helps nobody) of the raw
rewards of all valid trajectories of

    kind "environment"   the environment in this batch (eq. 4, ERPO), or with a `RunningStd` in the batches so
                         far
    kind "group"         the group (eq. 3, GRPO)
    kind "batch"         the whole batch

The mean may leave out the rollout itself (baseline "leave_one_out": R_ij - mean over k != j of R_ik, which is
n/(n-1) times the other), so that a reward is not compared with a number that it is part of.

Defined edges: a std of at most `epsilon`, or rewards that are all equal, gives advantage 0 (never a division
by something tiny); a group with one valid rollout gives 0 for it; excluded trajectories (user error, failures
of ours) have no advantage at all, take part in no mean, std or denominator, and are counted. A reward that is
not finite is a TrainingError that names the trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autoforge_jax.data.running_std import RunningStd
from autoforge_jax.errors import TrainingError
from autoforge_jax.types import Trajectory, TrajectoryGroup

AdvantageKind = Literal["environment", "group", "batch"]
Baseline = Literal["group_mean", "leave_one_out"]


@dataclass(frozen=True)
class EnvironmentRewards:
    """Rewards of one environment in one batch; means and std over its valid trajectories (0 when there are
    none).
    """

    environment_id: str
    environment: str
    """The bundle's name, for people."""
    groups: int
    mixed_groups: int
    valid: int
    excluded: int
    reward_mean: float
    reward_std: float


@dataclass(frozen=True)
class AdvantageResult:
    """Advantages aligned with the groups and their trajectories, and the account of the batch."""

    advantages: tuple[tuple[float | None, ...], ...]
    """[group][trajectory]; None for an excluded trajectory."""
    environments: tuple[EnvironmentRewards, ...]
    """In order of first appearance."""
    groups: int
    mixed_groups: int
    valid: int
    excluded: int
    reward_mean: float
    """Over all valid trajectories; 0 when there are none."""

    @property
    def mixed_share(self) -> float:
        """Share of groups whose valid rewards differ; 0 without groups."""
        return self.mixed_groups / self.groups if self.groups else 0.0


def compute_advantages(
    groups: Sequence[TrajectoryGroup],
    kind: AdvantageKind = "environment",
    epsilon: float = 1e-6,
    *,
    baseline: Baseline = "group_mean",
    running: RunningStd | None = None,
) -> AdvantageResult:
    """Advantages of every valid trajectory (METHOD.md §4 eq. 3/4; edge cases above).

    `epsilon` is the std at or below which advantages are 0; it is never added to the denominator. `running`
    gives the std of kind "environment"; it is read, not updated. Raises TrainingError for a reward that is
    not finite, or a trajectory filed under another environment or task.
    """
    if kind not in ("environment", "group", "batch"):
        raise ValueError(f"advantage kind {kind!r}; expected environment, group or batch")
    if baseline not in ("group_mean", "leave_one_out"):
        raise ValueError(f"baseline {baseline!r}; expected group_mean or leave_one_out")
    if running is not None and kind != "environment":
        raise ValueError(f"a running std belongs to kind environment, got kind {kind!r}")
    for group in groups:
        for trajectory in group.trajectories:
            _check(group, trajectory)
    environment_rewards: dict[str, list[float]] = {}
    for group in groups:
        environment_rewards.setdefault(group.environment_id, []).extend(t.reward for t in group.valid)
    batch_rewards = [reward for rewards in environment_rewards.values() for reward in rewards]
    advantages: list[tuple[float | None, ...]] = []
    for group in groups:
        own = [t.reward for t in group.valid]
        if running is not None:
            scale = running.std(group.environment_id)
        else:
            shared = {"environment": environment_rewards[group.environment_id], "batch": batch_rewards}
            scale = _std(own if kind == "group" else shared[kind])
        mean = float(np.mean(own)) if own else 0.0
        flat = scale <= epsilon or not group.mixed
        if baseline == "leave_one_out" and not flat:  # mixed: at least two rewards
            scale *= (len(own) - 1) / len(own)
        advantages.append(
            tuple(
                None if not t.valid else 0.0 if flat else (t.reward - mean) / scale
                for t in group.trajectories
            )
        )
    environments = tuple(
        _account(key, [g for g in groups if g.environment_id == key], rewards)
        for key, rewards in environment_rewards.items()
    )
    return AdvantageResult(
        advantages=tuple(advantages),
        environments=environments,
        groups=len(groups),
        mixed_groups=sum(g.mixed for g in groups),
        valid=len(batch_rewards),
        excluded=sum(e.excluded for e in environments),
        reward_mean=float(np.mean(batch_rewards)) if batch_rewards else 0.0,
    )


def _check(group: TrajectoryGroup, trajectory: Trajectory) -> None:
    name = f"trajectory {trajectory.task_id}#{trajectory.sample_index}"
    if trajectory.environment_id != group.environment_id or trajectory.task_id != group.task_id:
        raise TrainingError(
            f"{name} (environment {trajectory.environment_id}) stands in the group of task {group.task_id} "
            f"(environment {group.environment_id}); a group holds the rollouts of one task"
        )
    # An excluded trajectory's reward is never read, so that a failed episode needs no made-up number.
    if trajectory.valid and not math.isfinite(trajectory.reward):
        raise TrainingError(
            f"{name} has reward {trajectory.reward!r}; a reward must be finite: mark the trajectory "
            "excluded if it was not graded"
        )


def _std(rewards: Sequence[float]) -> float:
    # Equal rewards give exactly 0: np.std of three times 0.1 is 1e-17, which would divide into an advantage
    # of 1.
    if not rewards or max(rewards) == min(rewards):
        return 0.0
    return float(np.std(np.asarray(rewards, dtype=np.float64)))


def _account(
    environment_id: str, groups: Sequence[TrajectoryGroup], rewards: Sequence[float]
) -> EnvironmentRewards:
    trajectories = [t for g in groups for t in g.trajectories]
    return EnvironmentRewards(
        environment_id=environment_id,
        environment=trajectories[0].environment if trajectories else environment_id,
        groups=len(groups),
        mixed_groups=sum(g.mixed for g in groups),
        valid=len(rewards),
        excluded=len(trajectories) - len(rewards),
        reward_mean=float(np.mean(rewards)) if rewards else 0.0,
        reward_std=_std(rewards),
    )
