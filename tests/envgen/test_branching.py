"""Forks, snapshots and the change log of states and live episodes; the canonical hash of a state."""

from __future__ import annotations

import copy
import json
import random
from threading import Lock
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import EnvUsageError
from envgen.runtime.env import Env, open_env
from envgen.runtime.grader import Grader
from envgen.runtime.sides import delta_of
from envgen.runtime.state import State
from envgen.runtime.statehash import StateHasher
from envgen.types import EnvLimits, Message, StateData, StopReason, ToolCall
from tests.envgen.mock_domain import initial_state, mock_bundle
from tests.envgen.test_faults_grading import BASE as ORDERS
from tests.envgen.test_faults_grading import SCHEMA as ORDERS_SCHEMA
from tests.envgen.test_faults_grading import put, shuffled, task
from tests.envgen.test_state import BASE, DictModel, apply, check_equal, operations

BUNDLE = mock_bundle()


# ---------------------------------------------------------------- states
def replayed(base: StateData, state: State) -> StateData:
    """The base with the change log played on it: what the log says happened."""
    data = copy.deepcopy(base)
    for change in state.changes():
        table = data[change.collection]
        assert table.get(change.key) == change.before
        table.pop(change.key, None) if change.after is None else table.update({change.key: change.after})
    return data


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.lists(operations, min_size=1, max_size=4), st.booleans()), max_size=8))
def test_a_transaction_of_several_writes_is_undone_as_one(steps: list[tuple[list[Any], bool]]) -> None:
    base = copy.deepcopy(BASE)
    state, model = State(base), DictModel(base)
    for written, keep in steps:
        saved, entries = copy.deepcopy(model.data), state.changes()
        state.begin()
        for operation in written:
            assert apply(state, *operation) == model.apply(*operation)
        if keep:
            state.commit()
        else:
            state.rollback()
            model.data = saved
            assert state.changes() == entries
        check_equal(state, model.data, base)
        assert replayed(base, state) == model.data
    assert base == BASE


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=6), st.lists(operations, max_size=6), st.lists(operations, max_size=6))
def test_forks_of_a_state_diverge_independently(first: list[Any], mine: list[Any], other: list[Any]) -> None:
    base = copy.deepcopy(BASE)
    state, model = State(base), DictModel(base)
    for operation in first:
        apply(state, *operation)
        model.apply(*operation)
    fork, fork_model = state.fork(), DictModel(model.data)
    for pair in zip(mine, other, strict=False):
        for target, plain, operation in ((state, model, pair[0]), (fork, fork_model, pair[1])):
            assert apply(target, *operation) == plain.apply(*operation)
    check_equal(state, model.data, base)
    check_equal(fork, fork_model.data, base)
    fork.begin()
    apply(fork, *("insert", "b", "zz", {}))
    fork.rollback()
    check_equal(fork, fork_model.data, base)
    assert base == BASE


def test_the_change_log_says_what_happened_in_order() -> None:
    state = State(copy.deepcopy(BASE))
    state.update("a", "1", {"x": 5})
    mark = len(state.changes())
    state.delete("a", "1")
    state.insert("b", "7", {"x": 0})
    assert [(c.op, c.collection, c.key) for c in state.changes(mark)] == [
        ("delete", "a", "1"),
        ("insert", "b", "7"),
    ]
    gone = state.changes(mark)[0]
    assert (gone.before, gone.after) == ({"id": "1", "x": 5, "tags": ["p", {"q": 2}]}, None)


def test_a_fork_of_an_open_transaction_keeps_what_it_wrote() -> None:
    state = State(copy.deepcopy(BASE))
    state.begin()
    state.insert("b", "7", {})
    fork = state.fork()
    state.rollback()
    fork.rollback()
    assert not state.exists("b", "7") and fork.exists("b", "7")


# ---------------------------------------------------------------- hash
def as_state(data: StateData) -> State:
    """A live State that holds ``data`` over ORDERS."""
    state = State(ORDERS)
    delta = delta_of(ORDERS, data)
    for name, keys in delta.deleted.items():
        for key in keys:
            state.delete(name, key)
    for name, records in delta.updated.items():
        for key, record in records.items():
            state.delete(name, key)
            state.insert(name, key, record)
    for name, records in delta.inserted.items():
        for key, record in records.items():
            state.insert(name, key, record)
    return state


def digest(data: StateData) -> str:
    return StateHasher(ORDERS_SCHEMA, ORDERS).of(as_state(data))


specs = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 2)), max_size=4)


def build(spec: list[tuple[int, int]], numbers: list[int], note: str = "n") -> StateData:
    state = put(("orders", "O2", {"total": 11}), ("orders", "O1", {"note": note}))
    ids = [f"O{n}" for n in numbers]
    for i, (after, count) in enumerate(spec):
        target = ids[after] if after < len(ids) else "O1"
        state["orders"][ids[i]] = {"id": ids[i], "total": count, "after": target}
    if ids:
        state["orders"]["O2"]["after"] = ids[0]
    return state


@settings(max_examples=100, deadline=None)
@given(specs, specs, st.randoms(use_true_random=False))
def test_states_have_equal_hashes_exactly_when_the_grader_finds_them_equal(
    a: list[tuple[int, int]], b: list[tuple[int, int]], rng: random.Random
) -> None:
    first, second = (build(spec, rng.sample(range(10, 99), len(spec))) for spec in (a, b))
    equal = Grader(task(first), ORDERS_SCHEMA).judge_state(second).success
    assert (digest(first) == digest(second)) is equal
    again = shuffled(build(a, rng.sample(range(10, 99), len(a))), rng)
    assert digest(again) == digest(first)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ([("orders", "O1", {"made_at": "2030-01-01T00:00:00"})], True),
        ([("log", "L1", {"id": "L1", "call": "x"})], True),
        ([("orders", "O1", {"total": 25.0})], True),
        ([("orders", "O1", {"city": " BONN "})], True),
        ([("orders", "O1", {"total": True})], False),
        ([("items", "I1", None)], False),
        ([("orders", "O1", {"note": None})], False),
    ],
)
def test_the_hash_follows_the_field_policies(changes: list[Any], same: bool) -> None:
    assert (digest(put(*changes)) == digest(ORDERS)) is same


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["O1", "O2", "O50", "O51"]), st.integers(0, 3)), max_size=10))
def test_the_hash_kept_step_by_step_equals_the_hash_from_scratch(steps: list[tuple[str, int]]) -> None:
    state = State(ORDERS)
    kept = StateHasher(ORDERS_SCHEMA, ORDERS)
    for key, value in steps:
        state.begin()
        if value == 0 and state.exists("orders", key):
            state.delete("orders", key)
        elif state.exists("orders", key):
            state.update("orders", key, {"total": value, "note": "about O50"})
        else:
            state.insert("orders", key, {"id": key, "total": value})
        if value == 3:
            state.rollback()
        assert kept.of(state) == StateHasher(ORDERS_SCHEMA, ORDERS).of(state)


# ---------------------------------------------------------------- episodes
def act(name: str, **arguments: Any) -> Message:
    return Message(
        role="assistant", tool_calls=(ToolCall(id="c", name=name, arguments=json.dumps(arguments)),)
    )


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


ACTIONS = st.sampled_from(
    [
        act("create_note", notebook_id="NB1", title="A"),
        act("create_note", notebook_id="NB2", title="B"),
        act("update_note", note_id="N12", priority=1),
        act("delete_note", note_id="N12"),
        act("list_notes", notebook_id="NB1"),
        act("nope"),
        say("What is the title?"),
        say(""),
    ]
)


def run(env: Env, actions: list[Message]) -> list[Any]:
    out: list[Any] = []
    for action in actions:
        if env.stop_reason is None:
            out.append(env.step(action))
    counts = (env.turns, env.tool_calls, env.tool_errors, env.stop_reason)
    return [*out, env.transcript, env.state.snapshot(), env.verdict(), env.state_hash(), counts]


def begun() -> Env:
    env = open_env(BUNDLE, BUNDLE.task("notes-2"), limits=EnvLimits(max_tool_errors=20))
    env.start()
    return env


branches = st.lists(ACTIONS, max_size=5)


@settings(max_examples=60, deadline=None)
@given(branches, branches, branches)
def test_a_fork_goes_on_as_an_episode_of_its_own_would(
    head: list[Message], left: list[Message], right: list[Message]
) -> None:
    """Ids, times, the user's mood and the counts are those of an episode that was never forked."""
    trunk = begun()
    run(trunk, head)
    fork = trunk.fork()
    together = (run(trunk, left), run(fork, right))
    for got, tail in zip(together, (left, right), strict=True):
        alone = begun()
        run(alone, head)
        assert got == run(alone, tail)


@settings(max_examples=40, deadline=None)
@given(branches, st.lists(branches, min_size=1, max_size=3), branches)
def test_restore_goes_back_as_often_as_wanted(
    head: list[Message], tries: list[list[Message]], tail: list[Message]
) -> None:
    env = begun()
    run(env, head)
    before = run(env.fork(), [])
    kept = env.snapshot()
    expected = run(env.fork(), tail)
    for attempt in tries:
        run(env, attempt)
        env.restore(kept)
        assert run(env, []) == before
    assert run(env, tail) == expected


def test_a_finished_episode_is_live_again_after_restore() -> None:
    env = begun()
    kept = env.snapshot()
    env.step(say("Done."))
    assert env.stop_reason is StopReason.USER_DONE
    env.restore(kept)
    assert env.stop_reason is None
    env.step(act("create_note", notebook_id="NB2", title="Slides", priority=3))
    assert env.verdict().success


def test_a_snapshot_of_another_episode_is_refused() -> None:
    env, other = begun(), open_env(BUNDLE, BUNDLE.task("notes-1"))
    with pytest.raises(EnvUsageError, match="snapshot of task 'notes-1'"):
        env.restore(other.snapshot())


def test_a_user_that_does_not_copy_is_an_error_that_names_it() -> None:
    env = begun()
    env._user.lock = Lock()  # type: ignore[attr-defined]  # a connection, say
    with pytest.raises(EnvUsageError, match="cannot be forked: its ScriptedUser"):
        env.fork()


def test_forks_share_the_task_and_leave_the_initial_state_alone() -> None:
    env = begun()
    forks = [env.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        fork.step(act("update_note", note_id="N11", priority=number))
    assert [f.state.get("notes", "N11")["priority"] for f in forks] == [0, 1, 2]  # type: ignore[index]
    assert all(f.task is env.task for f in forks)
    assert env.state.delta().empty and env.task.initial_state == initial_state()
