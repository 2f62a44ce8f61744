"""Collecting groups: deterministic order, dynamic sampling with a budget, every group accounted for."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from autoforge_jax.config import ERPOConfig, RolloutConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.rollout.collect import Collection, collect, collection_metrics
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.episode import reference_actions
from autoforge_jax.rollout.jobs import TaskItem, stable_hash
from autoforge_jax.rollout.mix import task_order
from autoforge_jax.rollout.shaping import rewarded
from autoforge_jax.types import SampleRequest, Trajectory, TrajectoryGroup
from envgen.interface import Message, ToolCall, UserVerdict
from tests.autoforge_jax.mock_rollout import Recorder, bundle, items, renderer

ROLLOUT = RolloutConfig(slots=8, max_trajectory_tokens=1200, max_turn_tokens=90)


def many(count: int, environments: int = 1) -> list[TaskItem]:
    """Copies of the mock tasks under other names, spread over environments that differ in name only."""
    out: list[TaskItem] = []
    for e in range(environments):
        own = replace(bundle(), name=f"notes{e}", environment_id=f"notes{e}-id") if e else bundle()
        for i in range(count):
            task = items()[i % 3][1].model_copy(
                update={"id": f"task-{i}", "environment_id": own.environment_id}
            )
            out.append((own, task))
    return out


def playing(outcome: dict[str, str]) -> Recorder:
    """Plays by task id: `all` succeeds always, `none` never, `mixed` for even samples. The rest is mixed."""
    actions = {
        task.instruction: [renderer().action_ids(a) for a in reference_actions(task)] for _, task in items()
    }

    def script(request: SampleRequest, turn: int) -> Any:
        task_id, sample = request.session_id.split("/")[-2:]
        kind = outcome.get(task_id, "mixed")
        if kind == "none" or (kind == "mixed" and int(sample) % 2):
            return "Done."
        index = int(task_id.split("-")[1]) % 3
        return actions[items()[index][1].instruction][turn]

    return Recorder(script)


def collected(policy: Recorder, todo: list[TaskItem], step: int = 0, **changes: Any) -> Collection:
    erpo = ERPOConfig(**({"tasks_per_step": 4, "group_size": 4, "sampling_budget": 3.0} | changes))
    return collect(policy, todo, renderer(), erpo, ROLLOUT, seed=11, step=step)


def test_mixed_groups_need_one_wave() -> None:
    todo = many(12)
    result = collected(playing({}), todo)
    assert len(result.groups) == len(result.selected) == 4
    assert result.metrics["rollout/waves"] == 1
    assert [g.task_id for g in result.groups] == [task.id for _, task in list(task_order(todo, 11, 0))[:4]]
    for group in result.groups:
        assert [t.sample_index for t in group.trajectories] == [0, 1, 2, 3]
        assert [t.reward for t in group.trajectories] == [1.0, 0.0, 1.0, 0.0]
        assert {t.task_id for t in group.trajectories} == {group.task_id}


def test_dynamic_sampling_goes_on_until_it_has_enough() -> None:
    todo = many(12)
    order = [task.id for _, task in task_order(todo, 11, 0)]
    # of the first wave two are flat; the second wave is 2 missing / (2 of 4 mixed) = 4 groups
    result = collected(playing({order[0]: "all", order[2]: "none"}), todo)
    assert [g.task_id for g in result.groups] == order[:8]
    assert [g.task_id for g in result.selected] == [order[1], order[3], *order[4:8]]
    assert result.metrics["rollout/waves"] == 2
    assert (result.metrics["rollout/all_success_groups"], result.metrics["rollout/all_failure_groups"]) == (
        1,
        1,
    )
    assert result.metrics["rollout/mixed_share"] == pytest.approx(6 / 8)


def test_the_budget_is_kept_and_what_there_is_is_used() -> None:
    todo = many(30)
    flat = {f"task-{i}": "none" for i in range(30)}
    order = [task.id for _, task in task_order(todo, 11, 0)]
    result = collected(playing(flat | {order[5]: "mixed"}), todo)
    assert len(result.groups) == 12  # 3.0 × 4
    assert [g.task_id for g in result.selected] == [order[5]]
    nothing = collected(playing(flat), todo[:5])  # fewer tasks than the budget: each once
    assert (len(nothing.groups), nothing.selected) == (5, ())


def test_without_dynamic_sampling_flat_groups_stay() -> None:
    result = collected(playing({f"task-{i}": "none" for i in range(12)}), many(12), dynamic_sampling=False)
    assert len(result.groups) == len(result.selected) == 4
    assert result.metrics["rollout/reward"] == 0.0


def test_order_is_a_function_of_seed_and_step() -> None:
    todo = many(10, environments=2)
    names = [[(b.name, t.id) for b, t in task_order(todo, *key)] for key in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert names[0] == names[1]
    assert names[0] != names[2] != names[3] != names[0]
    shuffled = [(b.name, t.id) for b, t in task_order(todo[::-1], 0, 0)]
    assert shuffled == names[0]
    assert all(sorted(order) == sorted((b.name, t.id) for b, t in todo) for order in names)


def test_environments_take_turns() -> None:
    todo = many(6, environments=3)
    environments = [b.name for b, _ in task_order(todo, 0, 0, 2)]
    assert all(environments[i] == environments[i + 1] for i in range(0, 18, 2))
    for start in range(0, 18, 6):
        assert Counter(environments[start : start + 6]) == Counter({"notes": 2, "notes1": 2, "notes2": 2})


def test_an_environment_with_too_few_groups_is_left_out() -> None:
    todo = many(6, environments=2)
    first = {t.id for b, t in todo if b.name == "notes"}
    assert first == {t.id for b, t in todo if b.name == "notes1"}
    # one mixed task only, the same name in both environments: each has 1 mixed group
    flat = {f"task-{i}": "none" for i in range(1, 6)}
    assert len(collected(playing(flat), todo).selected) == 2
    assert collected(playing(flat), todo, min_groups_per_environment=2).selected == ()


def test_partial_credit_is_the_reward_only_where_the_config_says_so() -> None:
    """Odd samples make one change too many. Both numbers stand beside each other under both rewards."""
    todo = [item for item in many(3) if item[1].id == "task-0"]
    task = todo[0][1]
    steps = reference_actions(task)
    extra = ToolCall(id="x", name="create_note", arguments='{"notebook_id": "NB1", "title": "Extra"}')
    actions = [*steps[:-1], Message(role="assistant", tool_calls=(extra,)), steps[-1]]
    played = [renderer().action_ids(action) for action in steps]
    spoilt = [renderer().action_ids(action) for action in actions]

    def script(request: SampleRequest, turn: int) -> Any:
        odd = int(request.session_id.split("/")[-1]) % 2
        return (spoilt if odd else played)[turn]

    by = {r: collected(Recorder(script), todo, reward=r) for r in ("success", "partial_credit")}
    for result in by.values():
        (group,) = result.groups
        assert [t.success for t in group.trajectories] == [True, False, True, False]
        credit = [t.partial_credit for t in group.trajectories]
        assert credit[::2] == [1.0, 1.0] and all(0 <= c < 1 for c in credit[1::2])
        assert result.metrics["rollout/success"] == 0.5
        assert result.metrics["rollout/partial_credit"] == pytest.approx(sum(credit) / 4)
    assert [t.reward for t in by["success"].groups[0].trajectories] == [1.0, 0.0, 1.0, 0.0]
    (group,) = by["partial_credit"].groups
    assert [t.reward for t in group.trajectories] == [t.partial_credit for t in group.trajectories]
    metrics = by["partial_credit"].metrics
    assert metrics["rollout/reward"] == metrics["rollout/partial_credit"]


def test_partial_credit_gives_a_signal_where_nobody_succeeds() -> None:
    todo = [item for item in many(3) if item[1].id == "task-0"]
    half = replace_credit((0.5, 0.0, 0.5, 0.0))
    assert rewarded(half[0], "success").reward == 0.0
    group = TrajectoryGroup("task-0", todo[0][0].environment_id, half)
    learned = replace(group, trajectories=tuple(rewarded(t, "partial_credit") for t in half))
    assert not group.mixed and learned.mixed
    metrics = collection_metrics([learned], [learned])
    assert metrics["rollout/all_failure_groups"] == 1.0 and metrics["rollout/reward"] == 0.25


def replace_credit(credits: tuple[float, ...]) -> tuple[Trajectory, ...]:
    """Failed trajectories of one task with these partial credits."""
    (group,) = collected(playing({"task-0": "none"}), [i for i in many(3) if i[1].id == "task-0"]).groups
    return tuple(replace(t, partial_credit=c) for t, c in zip(group.trajectories, credits, strict=True))


def test_metrics_per_environment_add_up() -> None:
    result = collected(
        playing({"task-0": "all"}), many(3, environments=2), tasks_per_step=6, sampling_budget=1.0
    )
    m = result.metrics
    assert m["rollout/groups"] == m["rollout/notes/groups"] + m["rollout/notes1/groups"] == 6
    assert m["rollout/trajectories"] == 24
    assert m["rollout/reward"] == pytest.approx((2 * 1.0 + 4 * 0.5) / 6)
    assert m["rollout/notes/reward"] == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    assert m["rollout/stop/user_done"] == 24
    assert m["rollout/excluded"] == m["rollout/user_errors"] == m["rollout/empty_groups"] == 0
    assert m["rollout/sampled_tokens"] == sum(
        sum(t.action_mask) for g in result.groups for t in g.trajectories
    )


def test_user_errors_empty_a_group_and_are_counted() -> None:
    erpo = ERPOConfig(tasks_per_step=3, group_size=2, sampling_budget=1.0)
    result = collect(
        playing({}), many(3), renderer(), erpo, ROLLOUT, seed=0, step=0,
        conditions=Conditions(judge=lambda _, seen: UserVerdict("delete" in seen[0].content)),
    )  # fmt: skip
    assert len(result.groups) == 3 and len(result.selected) == 2
    assert (result.metrics["rollout/user_errors"], result.metrics["rollout/empty_groups"]) == (2, 1)


def test_seeds_differ_between_steps_and_samples() -> None:
    seeds: list[int] = []
    for step in (0, 1):
        policy = playing({})
        collected(policy, many(4), step=step)
        seeds += [request.seed for turns in policy.log.values() for request, _ in turns]
    assert len(set(seeds)) == len(seeds)


def test_no_tasks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no training tasks"):
        collected(playing({}), [])
    assert stable_hash("a") != stable_hash("b")
