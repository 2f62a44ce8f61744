"""Advantages against hand-worked values (METHOD.md §4 eq. 3 and 4)."""

import math
import statistics
import subprocess
import sys

import pytest

from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.running_std import RunningStd
from autoforge_jax.errors import TrainingError
from autoforge_jax.types import TrajectoryGroup
from tests.autoforge_jax.mock_learner import group, trajectory


def test_environment_std_is_over_all_trajectories_of_the_environment() -> None:
    # e0: rewards 1 0 0 0 | 1 1 1 0 -> mean 1/2, population std 1/2. Group means 1/4 and 3/4.
    groups = [group([1, 0, 0, 0]), group([1, 1, 1, 0], task="t1"), group([0, 1], task="t2", environment="e1")]
    result = compute_advantages(groups, "environment")
    assert result.advantages[0] == pytest.approx((1.5, -0.5, -0.5, -0.5))
    assert result.advantages[1] == pytest.approx((0.5, 0.5, 0.5, -1.5))
    assert result.advantages[2] == pytest.approx((-1.0, 1.0))
    first, second = result.environments
    assert (first.environment_id, first.environment, first.groups, first.valid) == ("e0", "name of e0", 2, 8)
    assert (first.reward_mean, first.reward_std, second.reward_std) == pytest.approx((0.5, 0.5, 0.5))
    assert (result.groups, result.mixed_groups, result.mixed_share, result.excluded) == (3, 3, 1.0, 0)


def test_group_and_batch_kinds() -> None:
    groups = [group([1, 0, 0, 0]), group([0, 2], task="t1", environment="e1")]
    own = compute_advantages(groups, "group").advantages
    assert own[0] == pytest.approx((0.75 / math.sqrt(3 / 16), *(-0.25 / math.sqrt(3 / 16),) * 3))
    assert own[1] == pytest.approx((-1.0, 1.0))
    whole = statistics.pstdev([1, 0, 0, 0, 0, 2])
    assert compute_advantages(groups, "batch").advantages[1] == pytest.approx((-1 / whole, 1 / whole))


@pytest.mark.parametrize("kind", ["environment", "group", "batch"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_equal_rewards_give_zero(kind: str, reward: float) -> None:
    result = compute_advantages([group([reward] * 3)], kind, 0.0)  # type: ignore[arg-type]
    assert result.advantages == ((0.0, 0.0, 0.0),)
    assert result.environments[0].reward_std == 0.0
    assert result.mixed_groups == 0


def test_a_std_at_most_epsilon_gives_zero_and_epsilon_is_not_added() -> None:
    near = [group([0.5, 0.5 + 1e-9])]
    assert compute_advantages(near, epsilon=1e-6).advantages == ((0.0, 0.0),)
    assert compute_advantages([group([0, 1])], epsilon=0.4).advantages == ((-1.0, 1.0),)


def test_unmixed_group_in_a_mixed_environment_gets_zero() -> None:
    result = compute_advantages([group([1, 1]), group([0, 1], task="t1")])
    std = statistics.pstdev([1, 1, 0, 1])
    assert result.advantages[0] == (0.0, 0.0)
    assert result.advantages[1] == pytest.approx((-0.5 / std, 0.5 / std))


def test_excluded_trajectories_count_nowhere_but_are_counted() -> None:
    members = (
        trajectory(1.0),
        trajectory(0.0, index=1),
        trajectory(1.0, index=2, user_error=True),
        trajectory(math.nan, index=3, excluded="env_error"),
    )
    result = compute_advantages([TrajectoryGroup("t0", "e0", members)])
    assert result.advantages == ((1.0, -1.0, None, None),)
    assert (result.valid, result.excluded, result.reward_mean) == (2, 2, 0.5)
    assert (result.environments[0].valid, result.environments[0].excluded) == (2, 2)


def test_one_valid_rollout_gives_zero_and_counts_in_the_std() -> None:
    lonely = TrajectoryGroup("t0", "e0", (trajectory(1.0), trajectory(0.0, index=1, user_error=True)))
    result = compute_advantages([lonely, group([0, 1], task="t1")])
    std = statistics.pstdev([1, 0, 1])
    assert result.advantages[0] == (0.0, None)
    assert result.advantages[1] == pytest.approx((-0.5 / std, 0.5 / std))


def test_all_excluded_and_no_groups() -> None:
    gone = TrajectoryGroup(
        "t0", "e0", (trajectory(1.0, user_error=True), trajectory(0.0, index=1, excluded="x"))
    )
    result = compute_advantages([gone])
    assert result.advantages == ((None, None),)
    assert (result.valid, result.excluded, result.reward_mean, result.mixed_share) == (0, 2, 0.0, 0.0)
    nothing = compute_advantages([])
    assert (nothing.advantages, nothing.environments, nothing.mixed_share) == ((), (), 0.0)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_names_the_trajectory(reward: float) -> None:
    bad = TrajectoryGroup(
        "task-7", "e0", (trajectory(0.0, task="task-7"), trajectory(reward, task="task-7", index=1))
    )
    with pytest.raises(TrainingError, match=r"task-7#1 has reward"):
        compute_advantages([bad])


def test_foreign_trajectory_and_unknown_kind() -> None:
    with pytest.raises(TrainingError, match="stands in the group"):
        compute_advantages([TrajectoryGroup("t0", "e0", (trajectory(0.0, environment="e1"),))])
    with pytest.raises(ValueError, match="expected environment, group or batch"):
        compute_advantages([], "task")  # type: ignore[arg-type]


def test_advantages_and_samples_load_without_jax() -> None:
    code = "import sys, autoforge_jax.data.samples; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_leave_one_out_compares_with_the_others() -> None:
    groups = [group([1, 0, 0, 0]), group([0.5, 0.2], task="t1")]
    result = compute_advantages(groups, "batch", baseline="leave_one_out")
    std = statistics.pstdev([1, 0, 0, 0, 0.5, 0.2])
    for row, rewards in zip(result.advantages, ([1, 0, 0, 0], [0.5, 0.2]), strict=True):
        for index, advantage in enumerate(row):
            others = [r for i, r in enumerate(rewards) if i != index]
            assert advantage == pytest.approx((rewards[index] - statistics.mean(others)) / std)
    # an excluded rollout is nobody's baseline, and a group of one valid rollout has none
    members = (trajectory(1.0), trajectory(0.0, index=1), trajectory(9.0, index=2, user_error=True))
    spoilt = compute_advantages([TrajectoryGroup("t0", "e0", members)], baseline="leave_one_out")
    assert spoilt.advantages == ((2.0, -2.0, None),)
    lonely = TrajectoryGroup("t0", "e0", (trajectory(1.0), trajectory(0.0, index=1, user_error=True)))
    assert compute_advantages([lonely], baseline="leave_one_out").advantages == ((0.0, None),)
    with pytest.raises(ValueError, match="group_mean or leave_one_out"):
        compute_advantages(groups, baseline="mean")  # type: ignore[arg-type]


def test_running_std_by_hand_and_equal_to_the_batch_at_first() -> None:
    running = RunningStd(0.5)
    first = [group([1, 0, 0, 0]), group([1, 1, 0, 0], task="t1")]
    running.update(first)
    assert compute_advantages(first, running=running) == compute_advantages(first)
    second = [group([1, 1, 1, 0], task="t2")]
    running.update(second)
    # 8 rewards with sum 3 at half weight, 4 with sum 3: n = 8, s = 4.5, q = 4.5
    std = math.sqrt(4.5 / 8 - (4.5 / 8) ** 2)
    assert running.std("e0") == pytest.approx(std)
    result = compute_advantages(second, running=running)
    assert result.advantages[0] == pytest.approx((0.25 / std, 0.25 / std, 0.25 / std, -0.75 / std))
    assert result.environments[0].reward_std == pytest.approx(
        math.sqrt(3 / 16)
    )  # the batch's own is reported
    assert running.std("unseen") == 0.0
    assert RunningStd.from_json(0.5, running.to_json()) == running
    with pytest.raises(TrainingError, match="expected environment ->"):
        RunningStd.from_json(0.5, {"e0": [1]})
    with pytest.raises(ValueError, match="belongs to kind environment"):
        compute_advantages(first, "group", running=running)


def test_running_std_ignores_what_is_excluded_and_equal_rewards_have_none() -> None:
    running = RunningStd(0.9)
    members = (trajectory(0.1), trajectory(0.1, index=1), trajectory(5.0, index=2, user_error=True))
    for _ in range(5):
        running.update([TrajectoryGroup("t0", "e0", members)])
    assert running.std("e0") == 0.0


def test_a_user_error_counts_only_where_the_config_keeps_it() -> None:
    kept = trajectory(0.0, index=1, user_error=True, keep_user_error=True)
    result = compute_advantages([TrajectoryGroup("t0", "e0", (trajectory(1.0), kept))])
    assert result.advantages == ((1.0, -1.0),) and result.excluded == 0
    broken = trajectory(0.0, index=1, user_error=True, keep_user_error=True, excluded="env_error")
    assert not broken.valid
