"""Learnability: what a record counts, what weight it gives, which tasks are drawn, and that it survives a
checkpoint."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from autoforge_jax.errors import TrainingError
from autoforge_jax.rollout.curriculum import DECAY, FLOOR, SuccessRecord, kind
from autoforge_jax.rollout.jobs import TaskItem
from autoforge_jax.rollout.mix import task_order
from autoforge_jax.types import Trajectory, TrajectoryGroup
from tests.autoforge_jax.mock_rollout import bundle, items, renderer
from tests.autoforge_jax.test_collect import collected, many, playing


def played(outcome: dict[str, str], todo: list[TaskItem]) -> list[TrajectoryGroup]:
    return list(collected(playing(outcome), todo, tasks_per_step=len(todo), sampling_budget=1.0).groups)


def test_weights_by_hand() -> None:
    item = items()[0]
    name = kind(item[0].environment_id, item[1].pattern)
    record = SuccessRecord()
    assert record.weight(item) == 1.0  # never seen: p = 1/2
    record.counts[name] = (6.0, 1.0)  # p = 2/8
    assert record.weight(item) == pytest.approx(4 * 0.25 * 0.75)
    record.counts[name] = (98.0, 98.0)  # p = 99/100
    assert record.weight(item) == FLOOR


def test_counts_decay_and_leave_out_what_is_excluded() -> None:
    todo = many(3)
    groups = played({"task-0": "mixed", "task-1": "all", "task-2": "none"}, todo)
    patterns = {task.id: task.pattern for _, task in todo}
    expected: Counter[str] = Counter()
    for task_id, successes in (("task-0", 2), ("task-1", 4), ("task-2", 0)):
        expected[kind(bundle().environment_id, patterns[task_id])] += successes
    record = SuccessRecord()
    record.update(groups)
    assert {name: s for name, (_, s) in record.counts.items()} == dict(expected)
    assert sum(n for n, _ in record.counts.values()) == 12

    def excluded(t: Trajectory) -> Trajectory:
        return replace(t, excluded="env_error")

    gone = [replace(g, trajectories=tuple(excluded(t) for t in g.trajectories)) for g in groups]
    record.update(gone)
    assert sum(n for n, _ in record.counts.values()) == pytest.approx(12 * DECAY)


def test_tasks_are_drawn_in_proportion_to_their_weight() -> None:
    todo = [
        (b, task.model_copy(update={"pattern": "even" if i % 2 else "settled"}))
        for i, (b, task) in enumerate(many(40))
    ]
    name = kind(bundle().environment_id, "settled")
    record = SuccessRecord({name: (38.0, 38.0)})  # p = 39/40: weight 0.1 against 1
    first = [next(task_order(todo, 5, step, 1, record))[1].pattern for step in range(2000)]
    # 20 tasks of weight 1 and 20 of weight 0.1; standard error 0.0064
    assert Counter(first)["even"] / 2000 == pytest.approx(1 / 1.1, abs=0.026)
    order = [task.id for _, task in task_order(todo, 5, 0, 1, record)]
    assert sorted(order) == sorted(task.id for _, task in todo)
    assert order == [task.id for _, task in task_order(todo[::-1], 5, 0, 1, record)]


def test_the_record_survives_a_checkpoint_and_says_when_it_does_not() -> None:
    record = SuccessRecord()
    for _ in range(3):
        record.update(played({}, many(4)))
    read = SuccessRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read == record
    with pytest.raises(TrainingError, match="success record"):
        SuccessRecord.from_json({"kind": [1.0]})


def test_collect_draws_by_the_record_and_leaves_it() -> None:
    """`collect` draws by the record that it is given, and does not change it."""
    todo = many(12)
    record = SuccessRecord({kind(bundle().environment_id, todo[0][1].pattern): (100.0, 0.0)})
    before = record.to_json()
    from autoforge_jax.config import ERPOConfig
    from autoforge_jax.rollout.collect import collect
    from tests.autoforge_jax.test_collect import ROLLOUT

    result = collect(
        playing({}),
        todo,
        renderer(),
        ERPOConfig(tasks_per_step=4, group_size=4),
        ROLLOUT,
        seed=11,
        step=0,
        record=record,
    )
    expected = [task.id for _, task in list(task_order(todo, 11, 0, 1, record))[:4]]
    assert [g.task_id for g in result.groups] == expected
    assert record.to_json() == before
