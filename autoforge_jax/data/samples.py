"""Trajectories -> TrainingSamples, with the ledger checked on the way (DESIGN.md §9). No JAX.

What the engine saw is what the learner trains on: ids are taken over as they are, and a ledger that does not
add up is a LedgerError that names the trajectory, never a guess and never zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autoforge_jax.data.advantages import AdvantageResult
from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.ledger import check_trajectory
from autoforge_jax.types import PolicyContext, SeenTurn, TrainingSample, Trajectory, TrajectoryGroup

LOGPROB_SLACK = 1e-3
"""nats a log-prob may lie above 0: float rounding of a probability of 1, not more."""


def check_ledger(trajectory: Trajectory, *, sampled: bool = True) -> None:
    """Raise LedgerError unless the trajectory's token record is whole.

    `rollout.ledger.check_trajectory` (equal lengths; turns tile the mask; log-probs exactly where tokens were
    sampled), ids not negative, and log-probs finite and at most 0. Reference trajectories (`sampled=False`)
    were written, not sampled: their log-probs mean nothing and are not read.
    """
    if not sampled:
        marks = tuple(0.0 if action else math.nan for action in trajectory.action_mask)
        if len(trajectory.rollout_logprobs) == len(marks):
            trajectory = replace(trajectory, rollout_logprobs=marks)
    check_trajectory(trajectory)
    name = f"trajectory {trajectory.task_id}#{trajectory.sample_index}"
    for index, context in enumerate(trajectory.contexts):
        _check_values(context, f"{name}, context {index}" if trajectory.earlier_contexts else name)


def _check_values(context: PolicyContext, name: str) -> None:
    if any(token < 0 for token in context.token_ids):
        raise LedgerError(
            f"{name}: a negative token id; ids come from the tokenizer and are never used as markers"
        )
    if any(context.action_mask[:1]):
        raise LedgerError(f"{name}: the first token is marked as sampled, but nothing came before it")
    for position, (action, logprob) in enumerate(
        zip(context.action_mask, context.rollout_logprobs, strict=True)
    ):
        if action and not -math.inf < logprob <= LOGPROB_SLACK:
            raise LedgerError(
                f"{name}: rollout log-prob {logprob!r} at sampled token {position}; the engine must give a "
                "finite one, at most 0"
            )


def samples_from_groups(
    groups: Sequence[TrajectoryGroup],
    result: AdvantageResult,
    *,
    drop_unmixed: bool = False,
    weight_by_group: bool = False,
) -> tuple[TrainingSample, ...]:
    """One sample per policy context (nearly always one per trajectory) of every valid trajectory that sampled
    at least one token; `group` is the index in `groups`.

    The contexts of one trajectory share its weight in proportion to their sampled tokens, so that it counts
    the same in a mean over trajectories however often its context was rewritten.

    `drop_unmixed` leaves out groups whose valid rewards are all equal (dynamic sampling). `weight_by_group`
    gives each trajectory the weight 1/(valid trajectories of its group), the `1/Σ 1_MEU` of eq. 2; otherwise
    weights are 1. Raises LedgerError when a ledger is broken or `result` belongs to other groups.
    """
    shape = [len(row) for row in result.advantages]
    if shape != [len(g.trajectories) for g in groups]:
        raise LedgerError(
            f"advantages for groups of sizes {shape}, got groups of sizes "
            f"{[len(g.trajectories) for g in groups]}"
        )
    samples: list[TrainingSample] = []
    for index, (group, advantages) in enumerate(zip(groups, result.advantages, strict=True)):
        if drop_unmixed and not group.mixed:
            continue
        weight = 1.0 / len(group.valid) if weight_by_group and group.valid else 1.0
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            if (advantage is None) == trajectory.valid:
                raise LedgerError(
                    f"trajectory {trajectory.task_id}#{trajectory.sample_index}: valid={trajectory.valid} "
                    "but advantage "
                    f"{advantage!r}; the advantages were computed for other trajectories"
                )
            if advantage is None:
                continue
            check_ledger(trajectory)
            samples += _samples(trajectory, advantage, index, weight, weight_by_group)
    return tuple(samples)


def _samples(
    trajectory: Trajectory, advantage: float, group: int, weight: float, share: bool
) -> list[TrainingSample]:
    contexts = trajectory.contexts
    sampled = [sum(context.action_mask) for context in contexts]
    versions = [[-1] * len(context.token_ids) for context in contexts]
    for turn in trajectory.turns:
        span = range(turn.action_start, turn.action_end)
        versions[turn.context][turn.action_start : turn.action_end] = [turn.policy_version for _ in span]
    return [
        TrainingSample(
            token_ids=context.token_ids,
            action_mask=context.action_mask,
            loss_mask=context.action_mask,
            rollout_logprobs=context.rollout_logprobs,
            advantage=advantage,
            prefix_length=trajectory.prefix_length,
            environment_id=trajectory.environment_id,
            task_id=trajectory.task_id,
            group=group,
            policy_version=trajectory.policy_version,
            # each token of a sequence mean weighs 1 / the tokens of its trajectory
            weight=weight * (count / sum(sampled)) if share else weight,
            versions=tuple(own),
            seen=tuple(
                SeenTurn(turn.action_start, turn.action_end, turn.seen)
                for turn in trajectory.turns
                if turn.context == index
            ),
        )
        for index, (context, count, own) in enumerate(zip(contexts, sampled, versions, strict=True))
        if count
    ]


def supervised_sample(trajectory: Trajectory, *, group: int = 0) -> TrainingSample:
    """A reference trajectory as a supervised sample: loss on its action tokens, no log-probs, no advantage.

    Raises LedgerError when the ledger is broken, there is no action token, or the trajectory is excluded or
    failed: a reference that does not solve its task must not be imitated.
    """
    name = f"trajectory {trajectory.task_id}#{trajectory.sample_index}"
    if not trajectory.valid or not trajectory.success:
        raise LedgerError(
            f"{name}: success={trajectory.success}, user_error={trajectory.user_error}, "
            f"excluded={trajectory.excluded!r}; "
            "supervised samples come from valid trajectories that reached the goal"
        )
    check_ledger(trajectory, sampled=False)
    if trajectory.earlier_contexts:
        raise LedgerError(f"{name} has {len(trajectory.contexts)} contexts; use supervised_samples")
    if not any(trajectory.action_mask):
        raise LedgerError(f"{name}: no action token to learn from")
    return TrainingSample(
        token_ids=trajectory.token_ids,
        action_mask=trajectory.action_mask,
        loss_mask=trajectory.action_mask,
        rollout_logprobs=(math.nan,) * len(trajectory.token_ids),
        advantage=0.0,
        prefix_length=trajectory.prefix_length,
        environment_id=trajectory.environment_id,
        task_id=trajectory.task_id,
        group=group,
        policy_version=trajectory.policy_version,
    )


def supervised_samples(trajectory: Trajectory, *, group: int = 0) -> tuple[TrainingSample, ...]:
    """`supervised_sample` of every context of a reference in which something was said."""
    out: list[TrainingSample] = []
    for index, context in enumerate(trajectory.contexts):
        own = replace(
            trajectory,
            turns=tuple(replace(turn, context=0) for turn in trajectory.turns if turn.context == index),
            token_ids=context.token_ids,
            action_mask=context.action_mask,
            rollout_logprobs=context.rollout_logprobs,
            earlier_contexts=(),
        )
        if any(context.action_mask):
            out.append(supervised_sample(own, group=group))
    return tuple(out)
