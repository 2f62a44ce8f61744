"""Trajectories to samples: what is taken over, and every way a ledger can be broken."""

import math
from dataclasses import replace

import pytest

from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.samples import check_ledger, samples_from_groups, supervised_sample
from autoforge_jax.errors import LedgerError
from autoforge_jax.types import Trajectory, TrajectoryGroup
from tests.autoforge_jax.mock_learner import group, trajectory


def test_one_sample_per_valid_trajectory_with_the_ledger_taken_over() -> None:
    members = (trajectory(1.0), trajectory(0.0, index=1), trajectory(1.0, index=2, user_error=True))
    groups = [TrajectoryGroup("t0", "e0", members)]
    first, second = samples_from_groups(groups, compute_advantages(groups))
    assert first.token_ids == members[0].token_ids and first.action_mask == members[0].action_mask
    assert first.loss_mask == first.action_mask
    assert first.rollout_logprobs is members[0].rollout_logprobs
    assert (first.advantage, second.advantage) == (1.0, -1.0)
    assert (first.prefix_length, first.environment_id, first.task_id, first.weight) == (5, "e0", "t0", 1.0)


def test_unmixed_groups_drop_on_request_and_weights_follow_the_group() -> None:
    lonely = TrajectoryGroup(
        "t2", "e0", (trajectory(1.0, task="t2"), trajectory(0.0, task="t2", index=1, excluded="x"))
    )
    groups = [group([1, 1]), group([0, 1, 1, 1], task="t1"), lonely]
    result = compute_advantages(groups)
    assert [s.group for s in samples_from_groups(groups, result)] == [0, 0, 1, 1, 1, 1, 2]
    assert [s.group for s in samples_from_groups(groups, result, drop_unmixed=True)] == [1, 1, 1, 1]
    weights = [s.weight for s in samples_from_groups(groups, result, weight_by_group=True)]
    assert weights == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 1.0]


def test_trajectory_without_a_sampled_token_gives_no_sample() -> None:
    empty = trajectory(0.0, index=1, action_mask=(False,) * 11, rollout_logprobs=(math.nan,) * 11, turns=())
    groups = [TrajectoryGroup("t0", "e0", (trajectory(1.0), empty))]
    assert len(samples_from_groups(groups, compute_advantages(groups))) == 1


def test_advantages_of_other_groups_are_refused() -> None:
    with pytest.raises(LedgerError, match="groups of sizes"):
        samples_from_groups([group([0, 1, 1])], compute_advantages([group([0, 1])]))
    excluded = TrajectoryGroup("t0", "e0", (trajectory(1.0), trajectory(0.0, index=1, user_error=True)))
    with pytest.raises(LedgerError, match="computed for other trajectories"):
        samples_from_groups([group([0, 1])], compute_advantages([excluded]))


GOOD = trajectory(1.0)
NAN = math.nan


def _with(values: tuple[float, ...], position: int, value: float) -> tuple[float, ...]:
    return (*values[:position], value, *values[position + 1 :])


@pytest.mark.parametrize(
    "broken",
    [
        replace(GOOD, rollout_logprobs=GOOD.rollout_logprobs[:-1]),
        replace(GOOD, action_mask=GOOD.action_mask[:-1]),
        replace(GOOD, rollout_logprobs=_with(GOOD.rollout_logprobs, 8, NAN)),
        replace(GOOD, rollout_logprobs=_with(GOOD.rollout_logprobs, 8, -math.inf)),
        replace(GOOD, rollout_logprobs=_with(GOOD.rollout_logprobs, 8, 0.5)),
        replace(GOOD, rollout_logprobs=_with(GOOD.rollout_logprobs, 6, 0.0)),
        replace(GOOD, rollout_logprobs=(0.0,) * 11),
        replace(GOOD, action_mask=(*GOOD.action_mask[:6], True, *GOOD.action_mask[7:])),
        replace(GOOD, prefix_length=12),
        replace(GOOD, prefix_length=8),
        replace(GOOD, token_ids=(*GOOD.token_ids[:-1], -1)),
        replace(GOOD, turns=(replace(GOOD.turns[0], action_end=12),)),
        replace(GOOD, turns=()),
    ],
)
def test_broken_ledgers(broken: Trajectory) -> None:
    with pytest.raises(LedgerError):
        check_ledger(broken)


def test_reference_becomes_a_supervised_sample() -> None:
    reference = supervised_sample(replace(GOOD, rollout_logprobs=(NAN,) * 11), group=3)
    assert reference.loss_mask == GOOD.action_mask and reference.group == 3
    assert all(math.isnan(x) for x in reference.rollout_logprobs)
    # What a scripted policy wrote into the ledger is not a probability of anything: it does not get through.
    assert all(math.isnan(x) for x in supervised_sample(GOOD).rollout_logprobs)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, success=False),
        replace(GOOD, user_error=True),
        replace(GOOD, excluded="env_error"),
        replace(GOOD, action_mask=(False,) * 11, rollout_logprobs=(NAN,) * 11, turns=()),
        replace(GOOD, rollout_logprobs=(NAN,) * 10),
    ],
)
def test_references_that_must_not_be_imitated(bad: Trajectory) -> None:
    with pytest.raises(LedgerError):
        supervised_sample(bad)
