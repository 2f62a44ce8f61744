"""FAULTS.md 1 and 2 by name: equality that is too strict, and equality that is too lax. Every fault is tried
in both directions on pairs of states: what differs only in form is equal, and what differs in fact is not."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import TaskError
from envgen.runtime.env import open_env
from envgen.runtime.grader import Grader, grade
from envgen.types import (
    AnswerSlot,
    Blueprint,
    Collection,
    Message,
    Record,
    StateData,
    StateField,
    StateSchema,
    Task,
    ToolCall,
    TraceConstraint,
    Verdict,
)
from tests.envgen.mock_domain import mock_bundle

SCHEMA = StateSchema(
    collections=(
        Collection(
            name="orders",
            entity="order",
            key="id",
            fields=(
                StateField(name="id", type="id", required=True),
                StateField(name="total", type="number", required=True),
                StateField(name="sum", type="number", policy="normalised"),
                StateField(name="note", type="text"),
                StateField(name="city", type="string", policy="normalised"),
                StateField(name="lines", type="array", item_type="id", references="items"),
                StateField(name="tags", type="array", item_type="string", policy="normalised"),
                StateField(name="due", type="datetime", policy="normalised"),
                StateField(name="after", type="id", references="orders"),
                StateField(name="made_at", type="datetime", policy="exempt"),
            ),
        ),
        Collection(
            name="items",
            entity="item",
            key="id",
            fields=(
                StateField(name="id", type="id", required=True),
                StateField(name="order", type="id", references="orders"),
                StateField(name="count", type="integer", required=True),
            ),
        ),
        Collection(
            name="log",
            entity="log line",
            key="id",
            fields=(
                StateField(name="id", type="id", required=True, policy="exempt"),
                StateField(name="call", type="string"),
            ),
        ),
    )
)
BASE: StateData = {
    "orders": {
        "O1": {
            "id": "O1", "total": 25, "sum": 25, "note": "n", "city": "Bonn", "lines": ["I1", "I2"],
            "tags": ["a", "b"], "due": "2026-03-02T09:00:00+00:00", "made_at": "2026-01-01T00:00:00",
        },
        "O2": {"id": "O2", "total": 10, "after": "O1"},
    },
    "items": {"I1": {"id": "I1", "order": "O1", "count": 2}, "I2": {"id": "I2", "order": "O1", "count": 1}},
    "log": {},
}  # fmt: skip


def task(*accepted: StateData, **more: Any) -> Task:
    return Task(
        id="t",
        environment_id="e",
        instruction="i",
        initial_state=copy.deepcopy(BASE),
        accepted_states=accepted,
        reference=(),
        blueprint=Blueprint(nodes=(), edges=()),
        pattern="p",
        difficulty=1,
        clock="2026-03-02T09:00:00",
        seed=1,
        **more,
    )


def put(*changes: tuple[str, str, Record | None], base: StateData = BASE) -> StateData:
    """The base with records merged field by field, added, or removed (None)."""
    state = copy.deepcopy(base)
    for collection, key, fields in changes:
        if fields is None:
            del state[collection][key]
        else:
            state[collection][key] = {**state[collection].get(key, {}), **fields}
    return state


def judge(got: StateData, *accepted: StateData) -> Verdict:
    return grade(got, task(*accepted), SCHEMA)


def equal(a: StateData, b: StateData) -> bool:
    """Both directions must say the same."""
    there, back = judge(a, b).success, judge(b, a).success
    assert there is back
    return there


DONE = ("orders", "O2", {"total": 11})
"""A change that every target below has, so that no target is the initial state."""


def shuffled(state: StateData, rng: random.Random) -> StateData:
    out: StateData = {}
    for name in rng.sample(list(state), len(state)):
        keys = rng.sample(list(state[name]), len(state[name]))
        out[name] = {
            k: {f: state[name][k][f] for f in rng.sample(list(state[name][k]), len(state[name][k]))}
            for k in keys
        }
    return out


def field(name: str, value: Any) -> StateData:
    return put(DONE, ("orders", "O1", {name: value}))


# ------------------------------------------------------------------------------- 1: too strict
@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 9))
def test_fault_1_row_order(rng: random.Random, total: int) -> None:
    target = put(DONE, ("orders", "O1", {"total": total}), ("items", "I2", None))
    assert equal(shuffled(target, rng), target)
    other = shuffled(put(("orders", "O1", {"total": total + 1}), base=target), rng)
    assert not equal(other, target)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_fault_1_generated_ids_and_times(
    spec: list[tuple[int, int]], rng: random.Random, in_text: bool
) -> None:
    """Orders that hang on each other, with items: other ids, other times, same meaning."""

    def made(ids: list[str], rows: list[str], time: str) -> StateData:
        state = put(DONE)
        for i, (after, count) in enumerate(spec):
            target = ids[after % len(spec)]
            state["orders"][ids[i]] = {
                "id": ids[i], "total": count, "after": target, "lines": [rows[i]], "made_at": time,
                "note": f"see /orders/{target}, thanks" if in_text else "n",
            }  # fmt: skip
            state["items"][rows[i]] = {"id": rows[i], "order": ids[i], "count": count}
        return state

    numbers, others = rng.sample(range(10, 60), len(spec)), rng.sample(range(60, 99), len(spec))
    target = made([f"O{n}" for n in numbers], [f"I{n}" for n in numbers], "2026-03-02T09:01:00")
    renamed = made([f"O{n}" for n in others], [f"I{n}" for n in reversed(others)], "2026-03-05T17:00:00")
    assert equal(renamed, target)
    key = f"O{others[0]}"
    aside = put(("orders", key, {"after": "O1"}), base=renamed)
    assert not equal(aside, target)  # an old record is no generated one
    if in_text:
        text = renamed["orders"][key]["note"].replace("thanks", "bye")
        assert not equal(put(("orders", key, {"note": text}), base=renamed), target)


def test_fault_1_symmetric_records_are_told_apart_by_who_refers_to_them() -> None:
    def pair(first: str, second: str, favourite: str) -> StateData:
        twins = [("orders", key, {"id": key, "total": 5}) for key in (first, second)]
        return put(*twins, ("orders", "O2", {"after": favourite}))

    target = pair("O50", "O51", "O50")
    assert equal(pair("O60", "O61", "O60"), target)
    assert equal(pair("O60", "O61", "O61"), target)  # the twins are alike: either may be the one
    lopsided = put(("orders", "O50", {"total": 6}), base=target)
    assert equal(put(("orders", "O60", {"total": 6}), base=pair("O60", "O61", "O60")), lopsided)
    assert not equal(put(("orders", "O61", {"total": 6}), base=pair("O60", "O61", "O60")), lopsided)


@settings(max_examples=80, deadline=None)
@given(st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9))
def test_fault_1_numbers_by_value(number: int | float) -> None:
    text = repr(number)
    as_float = float(number)
    if as_float == number:
        assert equal(field("total", number), field("total", as_float))
        assert equal(field("sum", number), field("sum", as_float))
        assert equal(field("sum", number), field("sum", repr(as_float)))  # normalised: "25.0" is 25
    assert not equal(field("total", number), field("total", text))  # exact: "25" is not 25
    assert not equal(field("total", number), field("total", number + 1))
    assert not equal(field("sum", number), field("sum", f"{text} EUR"))


def test_fault_1_25_and_25_0_and_true() -> None:
    assert equal(field("total", 26), field("total", 26.0))
    assert equal(field("sum", "26"), field("sum", " 26.0 "))
    assert not equal(field("total", "26"), field("total", "26.0"))
    assert not equal(field("total", 1), field("total", True))
    assert not equal(field("sum", 1), field("sum", True))
    assert not equal(field("sum", "nan"), field("sum", "inf"))
    assert equal(field("sum", "nan"), field("sum", "NaN"))  # no number: text


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["getOrder", "listOrders"]), max_size=4), st.integers(1, 9))
def test_fault_1_reads_and_logs_stored_in_the_state(reads: list[str], total: int) -> None:
    log = {f"L{i}": {"id": f"L{i}", "call": name} for i, name in enumerate(reads)}
    target = put(DONE, ("orders", "O1", {"total": 100 + total}))
    assert equal({**target, "log": log}, target)
    assert not equal({**put(DONE), "log": log}, target)
    nothing = judge({**copy.deepcopy(BASE), "log": log}, target)
    assert not nothing.success and nothing.partial_credit == 0.0


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["note", "city", "after", "due", "tags", "unknown"]))
def test_fault_1_optional_fields(name: str) -> None:
    without, null = field(name, None), field(name, None)
    without["orders"]["O1"].pop(name)
    assert equal(without, null)
    assert not equal(without, field(name, ["x"] if name == "tags" else "x"))
    assert not equal(field("total", None), field("total", 0))  # a required field that is null says something


def test_fault_1_several_legal_end_states() -> None:
    first, second, third = (field("note", text) for text in ("by post", "by train", "by ship"))
    assert judge(first, first, second).success and judge(second, first, second).success
    wrong = judge(third, first, second)
    assert not wrong.success
    mixed = put(DONE, ("orders", "O1", {"note": "by post", "city": "Köln"}))
    other = put(DONE, ("orders", "O1", {"note": "by train", "city": "Ulm"}))
    cross = put(DONE, ("orders", "O1", {"note": "by post", "city": "Ulm"}))  # half of each is neither
    verdict = judge(cross, mixed, other)
    assert not verdict.success and len(verdict.differences) == 1


def test_fault_1_the_nearest_accepted_state_is_explained_with_both_values() -> None:
    far = put(DONE, ("orders", "O1", {"total": 1, "note": "x", "city": "y"}))
    near = field("total", 30)
    verdict = judge(field("total", 31), far, near)
    assert verdict.nearest == 1
    assert [(d.collection, d.key, d.field, d.expected, d.got) for d in verdict.differences] == [
        ("orders", "O1", "total", 30, 31)
    ]


def test_fault_1_a_goal_that_was_already_true() -> None:
    """Nothing to write: an error without an answer to give, gradable with one."""
    with pytest.raises(TaskError, match="accepts its initial state"):
        Grader(task(put()), SCHEMA)
    with pytest.raises(TaskError, match="accepts its initial state"):
        Grader(task(put(DONE), put()), SCHEMA)
    only_exempt = put(("orders", "O1", {"made_at": "2027-01-01T00:00:00"}))
    with pytest.raises(TaskError, match="accepts its initial state"):
        Grader(task(only_exempt), SCHEMA)  # the change is one that is not graded
    slot = AnswerSlot(name="n", type="integer", accepted=(2,))
    asked = task(put(), answers=(slot,))
    told = (Message(role="assistant", content='{"n": 2}'),)
    assert grade(put(), asked, SCHEMA, told).success
    assert not grade(put(DONE), asked, SCHEMA, told).success


@pytest.mark.parametrize(
    ("name", "wanted", "got", "same"),
    [
        ("due", "2026-05-01T10:00:00Z", "2026-05-01T10:00:00+00:00", True),
        ("due", "2026-05-01T10:00:00Z", "2026-05-01T12:00+02:00", True),
        ("due", "2026-05-01T10:00:00Z", "2026-05-01T10:00:00", False),
        ("due", "2026-05-01T10:00", "2026-05-01T10:00:00", True),
        ("due", "2026-05-01T10:00", "2026-05-01T10:01", False),
        ("due", "tomorrow", "Tomorrow ", True),
        ("city", "Zürich", "Zu\u0308rich", True),
        ("city", "Zürich", "Zurich", False),
        ("tags", ["x", "y", "y"], ["Y", "x", "y"], True),
        ("tags", ["x", "y", "y"], ["x", "x", "y"], False),
        ("lines", ["I2", "I1"], ["I2", "I1"], True),
        ("lines", ["I2", "I1"], ["I1", "I2"], False),
        ("note", "Zürich", "Zu\u0308rich", False),
    ],
)
def test_fault_1_normalised_and_exact_fields(name: str, wanted: Any, got: Any, same: bool) -> None:
    assert equal(field(name, got), field(name, wanted)) is same


# ------------------------------------------------------------------------------- 2: too lax
changes_of_orders = st.lists(
    st.tuples(st.sampled_from(["total", "note", "city", "after"]), st.integers(50, 60)), max_size=4
)


@settings(max_examples=100, deadline=None)
@given(changes_of_orders, changes_of_orders)
def test_fault_2_two_states_are_equal_exactly_when_their_graded_fields_are(
    mine: list[tuple[str, int]], theirs: list[tuple[str, int]]
) -> None:
    def build(changes: list[tuple[str, int]]) -> StateData:
        state = put(DONE)
        for name, value in changes:
            state["orders"]["O1"][name] = value if name == "total" else f"v{value}"
        return state

    a, b = build(mine), build(theirs)
    assert equal(a, b) is (a == b)
    verdict = judge(a, b)
    assert (verdict.partial_credit == 1.0) is verdict.success
    assert 0.0 <= verdict.partial_credit <= 1.0
    assert bool(verdict.differences) is not verdict.success
    named = {(d.collection, d.key, d.field) for d in verdict.differences}
    truth = {
        ("orders", "O1", n) for n in {*a["orders"]["O1"], *b["orders"]["O1"]}
        if a["orders"]["O1"].get(n) != b["orders"]["O1"].get(n)
    }  # fmt: skip
    assert named == truth


@settings(max_examples=60, deadline=None)
@given(changes_of_orders.filter(bool))
def test_fault_2_a_do_nothing_run_fails(changes: list[tuple[str, int]]) -> None:
    state = put(DONE)
    for name, value in changes:
        state["orders"]["O1"][name] = value if name == "total" else f"v{value}"
    verdict = judge(copy.deepcopy(BASE), state)
    assert not verdict.success and verdict.partial_credit == 0.0


def test_fault_2_checks_true_at_the_start_do_not_pay() -> None:
    """Four of the five fields of the wanted record are right before anything is done."""
    target = put(("orders", "O1", {"total": 30}))
    assert judge(copy.deepcopy(BASE), target).partial_credit == 0.0
    two = put(("orders", "O1", {"total": 30, "note": "x"}))
    assert judge(target, two).partial_credit == 0.5


def test_fault_2_empty_criteria_are_an_error() -> None:
    with pytest.raises(TaskError, match="accepts no end state"):
        Grader(task(), SCHEMA)
    rule = TraceConstraint(kind="at_most", tools=("x",))
    with pytest.raises(TaskError, match="accepts its initial state"):
        Grader(task(put(), constraints=(rule,)), SCHEMA)  # a prohibition alone is met by doing nothing


@settings(max_examples=60, deadline=None)
@given(st.text("ab 3", max_size=6), st.text("ab 3", max_size=6))
def test_fault_2_no_substring_answers(before: str, after: str) -> None:
    assert equal(field("note", f"{before}ab3{after}"), field("note", "ab3")) is (before + after == "")
    slot = AnswerSlot(name="who", type="string", accepted=("ab3",))
    asked = task(put(), answers=(slot,))
    said = Message(role="assistant", content=f'{{"who": "{before}ab3{after}"}}')
    assert grade(put(), asked, SCHEMA, (said,)).success is (before + after == "")
    plain = Message(role="assistant", content=f"{before}ab3{after}")
    assert not grade(put(), asked, SCHEMA, (plain,)).success


@pytest.mark.parametrize(
    ("side", "credit"),
    [
        (("orders", "O1", {"note": "meddled"}), 0.5),
        (("items", "I2", {"count": 9}), 0.5),
        (("items", "I2", None), 0.5),
        (("items", "I9", {"id": "I9", "count": 1}), 0.5),
        (("items", "I9", {"id": "I9", "count": 1, "order": "O1"}), 0.0),
        (("orders", "O9", {"id": "O9", "total": 1, "note": "n", "city": "c"}), 0.0),
    ],
)
def test_fault_2_a_side_effect_elsewhere_fails_and_costs_credit(side: Any, credit: float) -> None:
    target = put(DONE, ("orders", "O1", {"total": 30}))
    verdict = judge(put(side, base=target), target)
    assert not verdict.success and verdict.partial_credit == credit


def test_partial_credit_is_the_share_of_required_changes_made() -> None:
    made = ("orders", "O9", {"id": "O9", "total": 3, "city": "Ulm", "note": "n"})
    target = put(DONE, ("items", "I2", None), made)  # 1 + 1 + 3 changes
    assert judge(target, target).partial_credit == 1.0
    assert judge(put(DONE), target).partial_credit == pytest.approx(1 / 5)
    assert judge(put(DONE, ("items", "I2", None)), target).partial_credit == pytest.approx(2 / 5)
    wrong_city = ("orders", "O7", {"id": "O7", "total": 3, "city": "Bonn", "note": "n"})
    close = judge(put(DONE, ("items", "I2", None), wrong_city), target)
    assert (close.success, close.partial_credit) == (False, pytest.approx(4 / 5))
    assert [(d.field, d.expected, d.got) for d in close.differences] == [("city", "Ulm", "Bonn")]
    wrong_record = judge(put(DONE, ("items", "I1", None)), target)
    assert wrong_record.partial_credit == 0.0  # one made, one side effect


def test_fault_2_every_tool_of_the_mock_domain_does_something_the_grader_sees() -> None:
    """No write of a real environment is invisible: each one alone fails a task that wants another."""
    bundle = mock_bundle()
    wanted = bundle.task("notes-1")
    for name, arguments in (
        ("create_note", '{"notebook_id": "NB1", "title": "x"}'),
        ("update_note", '{"note_id": "N12", "title": "x"}'),
        ("delete_note", '{"note_id": "N22"}'),
    ):
        env = open_env(bundle, wanted)
        env.start()
        for action in (
            ToolCall(id="1", name="update_note", arguments='{"note_id": "N11", "priority": 5}'),
            ToolCall(id="2", name=name, arguments=arguments),
        ):
            env.step(Message(role="assistant", tool_calls=(action,)))
        assert not env.verdict().success
