"""The grader: hand-worked cases for every rule of DESIGN.md §6, then random states and renamings."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import TaskError
from envgen.runtime.grader import Grader, grade
from envgen.runtime.sides import delta_of
from envgen.runtime.state import State
from envgen.types import Blueprint, Collection, FieldDifference, StateData, StateField, StateSchema, Task

SCHEMA = StateSchema(
    collections=(
        Collection(
            name="events",
            entity="event",
            key="id",
            fields=(
                StateField(name="id", type="id", required=True),
                StateField(name="name", type="string", required=True),
                StateField(name="price", type="number"),
                StateField(name="open", type="boolean"),
                StateField(name="city", type="string", policy="normalised"),
                StateField(name="labels", type="array", item_type="string", policy="normalised"),
                StateField(name="days", type="array", item_type="string"),
                StateField(name="next", type="id", references="events"),
                StateField(name="guests", type="array", item_type="id", references="tickets"),
                StateField(name="made_at", type="datetime", policy="exempt"),
            ),
        ),
        Collection(
            name="tickets",
            entity="ticket",
            key="number",
            fields=(
                StateField(name="number", type="integer", required=True),
                StateField(name="event", type="id", required=True, references="events"),
                StateField(name="seats", type="integer"),
            ),
        ),
        Collection(
            name="users",
            entity="user",
            key="login",
            key_generated=False,
            fields=(
                StateField(name="login", type="string", required=True),
                StateField(name="favourite", type="id"),
            ),
        ),
        Collection(
            name="settings",
            entity="settings",
            key="id",
            singleton=True,
            fields=(StateField(name="id", type="id"), StateField(name="theme", type="string")),
        ),
    )
)

BASE: StateData = {
    "events": {
        "E1": {
            "id": "E1",
            "name": "Gala",
            "price": 25,
            "open": True,
            "city": "New York",
            "labels": ["a", "b"],
        },
        "E2": {
            "id": "E2",
            "name": "Fair",
            "price": 10,
            "days": ["mon", "tue"],
            "made_at": "2026-01-01T00:00:00",
        },
    },
    "tickets": {"7": {"number": 7, "event": "E1", "seats": 2}},
    "users": {"ann": {"login": "ann"}},
    "settings": {"self": {"id": "self", "theme": "dark"}},
}


def task(*accepted: StateData, base: StateData = BASE) -> Task:
    return Task(
        id="t",
        environment_id="e",
        instruction="i",
        initial_state=copy.deepcopy(base),
        accepted_states=tuple(accepted),
        reference=(),
        blueprint=Blueprint(nodes=(), edges=()),
        pattern="p",
        difficulty=1,
        clock="2026-03-02T09:00:00",
        seed=1,
    )


def changed(*changes: tuple[str, str, dict[str, Any] | None], base: StateData = BASE) -> StateData:
    """The base with records replaced field by field (merge), added, or removed (None)."""
    state = copy.deepcopy(base)
    for collection, key, fields in changes:
        if fields is None:
            del state[collection][key]
        else:
            state[collection][key] = {**state[collection].get(key, {}), **fields}
    return state


def same(got: StateData, wanted: StateData) -> bool:
    return grade(got, task(wanted), SCHEMA).success


# ---------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("field", "wanted", "got", "equal"),
    [
        ("price", 25, 25.0, True),
        ("price", 25, "25", False),
        ("price", 1, True, False),
        ("price", 0, False, False),
        ("price", None, 0, False),
        ("price", 0.1 + 0.2, 0.3, False),
        ("open", True, 1, False),
        ("name", "Gala", "gala", False),
        ("name", "Gala", "Gala ", False),
        ("city", "New York", " new   YORK\n", True),
        ("city", "Straße", "STRASSE", True),
        ("city", "New York", "Newyork", False),
        ("labels", ["a", "b"], ["B ", "a"], True),
        ("labels", ["a", "a", "b"], ["a", "b", "b"], False),
        ("labels", [1, 10.0], [10, 1.0], True),
        ("days", ["mon", "tue"], ["tue", "mon"], False),
        ("days", ["mon"], ["mon", "tue"], False),
        ("made_at", "2026-01-01T00:00:00", "2026-02-02T00:00:00", True),
        ("extra", {"a": [1, {"b": 2}], "c": 3}, {"c": 3.0, "a": [1, {"b": 2}]}, True),
        ("extra", {"a": [1, 2]}, {"a": [2, 1]}, False),
        ("extra", ["obj", [1]], ["seq", [1]], False),
        ("extra", {"a": 1}, [["a", 1]], False),
        ("extra", [], {}, False),
    ],
)
def test_one_field_is_compared_by_its_policy(field: str, wanted: Any, got: Any, equal: bool) -> None:
    # "name" has changed too, so that the wanted record is never the initial one.
    target = changed(("events", "E1", {"days": ["x"], field: wanted}))
    final = changed(("events", "E1", {"days": ["x"], field: got} if field != "days" else {"days": got}))
    if field == "days":
        target = changed(("events", "E1", {"days": wanted}))
    assert same(final, target) is equal
    assert same(target, final) is equal


def test_missing_equals_null_only_where_the_field_is_optional() -> None:
    with_null = changed(("events", "E2", {"price": None, "name": "x"}))
    without = copy.deepcopy(with_null)
    del without["events"]["E2"]["price"]
    assert same(with_null, without) and same(without, with_null)
    no_name = copy.deepcopy(without)
    no_name["events"]["E2"]["name"] = None
    missing_name = copy.deepcopy(no_name)
    del missing_name["events"]["E2"]["name"]
    assert not same(no_name, missing_name)


def test_order_of_records_and_of_fields_means_nothing() -> None:
    target = changed(("events", "E1", {"price": 3}))
    final = {c: dict(reversed(list(t.items()))) for c, t in reversed(list(target.items()))}
    final["events"]["E1"] = dict(reversed(list(final["events"]["E1"].items())))
    assert same(final, target)


def test_a_side_effect_anywhere_is_a_failure_that_names_the_field() -> None:
    target = changed(("events", "E1", {"price": 30}))
    final = changed(("events", "E1", {"price": 30}), ("users", "ann", {"favourite": "E2"}))
    verdict = grade(final, task(target), SCHEMA)
    assert not verdict.success
    assert verdict.differences == (
        FieldDifference(collection="users", key="ann", field="favourite", expected=None, got="E2"),
    )


def test_doing_nothing_fails_and_says_what_was_wanted() -> None:
    target = changed(("events", "E1", {"price": 30}), ("tickets", "7", None))
    verdict = grade(copy.deepcopy(BASE), task(target), SCHEMA)
    assert not verdict.success
    assert verdict.differences == (
        FieldDifference(collection="events", key="E1", field="price", expected=30, got=25),
        FieldDifference(collection="tickets", key="7", field="", expected=None, got=BASE["tickets"]["7"]),
    )


def test_only_an_exempt_field_changed_is_no_change() -> None:
    target = changed(("events", "E1", {"price": 30}))
    assert same(changed(("events", "E1", {"price": 30}), ("events", "E2", {"made_at": "later"})), target)


def test_any_accepted_state_will_do_and_the_nearest_is_named() -> None:
    first = changed(("events", "E1", {"price": 1, "name": "A", "days": ["x"]}))
    second = changed(("events", "E2", {"price": 2}))
    job = task(first, second)
    assert grade(first, job, SCHEMA).nearest == 0
    verdict = grade(second, job, SCHEMA)
    assert verdict.success and verdict.nearest == 1
    near = grade(changed(("events", "E2", {"price": 3})), job, SCHEMA)
    assert (near.success, near.nearest) == (False, 1)
    assert near.differences == (
        FieldDifference(collection="events", key="E2", field="price", expected=2, got=3),
    )


def test_a_task_without_criteria_is_an_error() -> None:
    with pytest.raises(TaskError, match="accepts no end state"):
        grade(BASE, task(), SCHEMA)


def test_an_unknown_collection_is_an_error() -> None:
    with pytest.raises(TaskError, match="'ghosts'"):
        grade({**BASE, "ghosts": {"1": {}}}, task(changed(("events", "E1", {"price": 1}))), SCHEMA)
    with pytest.raises(TaskError, match="'ghosts'"):
        Grader(task({**BASE, "ghosts": {}}), SCHEMA)


# ---------------------------------------------------------------- renaming
def event(key: str, name: str = "New", **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return ("events", key, {"id": key, "name": name, **fields})


def ticket(key: int, event_id: str, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return ("tickets", str(key), {"number": key, "event": event_id, **fields})


def test_minted_keys_and_references_to_them_are_matched_up_to_renaming() -> None:
    target = changed(
        event("E40", guests=[50, 7]),
        ticket(50, "E40", seats=1),
        ("users", "ann", {"favourite": "E40"}),
        event("E41", "Old"),
    )
    final = changed(
        event("E99", guests=[80, 7]),
        ticket(80, "E99", seats=1),
        ("users", "ann", {"favourite": "E99"}),
        event("E40", "Old"),
    )
    assert same(final, target) and same(target, final)
    # The reference must follow the record, not the name.
    final["users"]["ann"]["favourite"] = "E40"
    verdict = grade(final, task(target), SCHEMA)
    assert not verdict.success
    assert [(d.collection, d.key, d.field, d.got) for d in verdict.differences] == [
        ("users", "ann", "favourite", "E40")
    ]


def test_references_inside_arrays_objects_and_undeclared_fields_follow() -> None:
    def state(a: str, b: str, at: str) -> StateData:
        return changed(
            event(a, "A"), event(b, "B"), ("settings", "self", {"pins": [{"of": a}, b, [at]], "map": {a: 1}})
        )

    target = state("E40", "E41", "E40")
    assert same(state("E7", "E8", "E7"), target)
    assert not same(state("E7", "E8", "E8"), target)
    wrong_map = state("E7", "E8", "E7")
    wrong_map["settings"]["self"]["map"] = {"E8": 1}
    assert not same(wrong_map, target)


def test_a_plain_number_is_no_reference() -> None:
    # Seats 50 in the target is a number, although a ticket 50 is minted: it must stay 50.
    target = changed(ticket(50, "E1", seats=50))
    assert same(changed(ticket(61, "E1", seats=50)), target)
    assert not same(changed(ticket(61, "E1", seats=61)), target)


def test_a_reference_to_an_old_record_is_not_renamed() -> None:
    target = changed(ticket(50, "E1"))
    assert not same(changed(ticket(61, "E2")), target)
    assert not same(changed(ticket(61, "E61"), event("E61")), target)


def test_keys_the_caller_names_are_exact() -> None:
    target = changed(("users", "bob", {"login": "bob"}))
    assert same(target, target)
    assert not same(changed(("users", "rob", {"login": "rob"})), target)


def test_number_and_collection_of_new_records_count() -> None:
    target = changed(event("E40"), event("E41"))
    assert not same(changed(event("E40")), target)
    assert not same(changed(event("E40"), event("E41"), event("E42")), target)
    extra = grade(changed(event("E40"), event("E41"), event("E42", "X")), task(target), SCHEMA)
    assert [(d.key, d.field, d.expected) for d in extra.differences] == [("E42", "", None)]


def test_the_nearest_new_record_is_explained_field_by_field() -> None:
    target = changed(event("E40", "Opera", price=5), event("E41", "Jazz"))
    verdict = grade(changed(event("E60", "Jazz"), event("E61", "Opera", price=6)), task(target), SCHEMA)
    assert verdict.differences == (
        FieldDifference(collection="events", key="E61", field="price", expected=5, got=6),
    )


def test_ties_are_solved_by_trying_and_the_answer_is_exact() -> None:
    """Six equal events whose ``next`` makes one ring of six, or two rings of three: equal record by record,
    yet different."""

    def rings(prefix: int, *sizes: int) -> StateData:
        start, changes = prefix, []
        for size in sizes:
            ids = [f"E{start + i}" for i in range(size)]
            changes += [event(ids[i], next=ids[(i + 1) % size]) for i in range(size)]
            start += size
        return changed(*changes)

    assert same(rings(100, 6), rings(40, 6))
    assert same(rings(100, 3, 3), rings(40, 3, 3))
    verdict = grade(rings(100, 6), task(rings(40, 3, 3)), SCHEMA)
    assert not verdict.success and verdict.differences


def test_many_equal_new_records_are_graded_fast() -> None:
    target = changed(*(event(f"E{i}") for i in range(100, 130)))
    assert same(changed(*(event(f"E{i}") for i in range(200, 230))), target)


# ---------------------------------------------------------------- random
KEYS = [f"E{n}" for n in range(100, 108)]
names = st.sampled_from(["A", "B"])
new_events = st.lists(
    st.tuples(
        names, st.none() | st.integers(0, 7), st.lists(st.integers(0, 7), max_size=2), st.integers(0, 1)
    ),
    max_size=6,
)


def build(spec: list[Any], ids: list[str], numbers: list[int]) -> StateData:
    """A state with new events that point at each other and at new tickets; ``ids`` and ``numbers`` are the
    keys used."""
    n = len(spec)
    state = copy.deepcopy(BASE)
    for i, (name, nxt, guests, price) in enumerate(spec):
        record: dict[str, Any] = {"id": ids[i], "name": name, "price": price}
        if nxt is not None:
            record["next"] = ids[nxt % n]
        record["guests"] = [numbers[g % n] for g in guests]
        state["events"][ids[i]] = record
        state["tickets"][str(numbers[i])] = {"number": numbers[i], "event": ids[(i + 1) % n], "seats": price}
    state["users"]["ann"]["favourite"] = ids[0] if n else "E2"
    return state


@settings(max_examples=100, deadline=None)
@given(new_events, st.randoms(use_true_random=False))
def test_any_renaming_is_accepted_and_any_perturbed_field_is_not(spec: list[Any], rng: random.Random) -> None:
    n = len(spec)
    target = build(spec, [f"E{100 + i}" for i in range(n)], [200 + i for i in range(n)])
    ids = [f"E{100 + i}" for i in rng.sample(range(20), n)]
    numbers = rng.sample(range(200, 220), n)
    final = build(spec, ids, numbers)
    for table in final.values():
        items = list(table.items())
        rng.shuffle(items)
        table.clear()
        table.update(items)
    job = task(target)
    assert grade(final, job, SCHEMA).success
    # One field of one record, set to a value that stands nowhere in the target.
    collection = rng.choice([c for c in final if final[c]])
    key = rng.choice(list(final[collection]))
    record = final[collection][key]
    free = [f for f in record if f not in ("id", "number", "login", "made_at")] or ["added"]
    record[rng.choice(free)] = "perturbed"
    verdict = grade(final, job, SCHEMA)
    assert not verdict.success
    assert (collection, key) in {(d.collection, d.key) for d in verdict.differences}


@settings(max_examples=40, deadline=None)
@given(new_events.filter(bool), st.randoms(use_true_random=False))
def test_equal_by_the_grader_means_equal_under_some_renaming(spec: list[Any], rng: random.Random) -> None:
    """Redirect one reference at random; brute force over all renamings says whether the states are still
    equal."""
    spec = spec[:4]
    n = len(spec)
    ids, numbers = [f"E{100 + i}" for i in range(n)], [200 + i for i in range(n)]
    target = build(spec, ids, numbers)
    final = build(spec, ids, numbers)
    where = rng.choice(ids)
    final["events"][where]["next"] = rng.choice([*ids, "E1"])

    def rename(state: StateData, events: dict[str, str], tickets: dict[int, int]) -> StateData:
        out = copy.deepcopy(BASE)
        for key in ids:
            record = dict(state["events"][key])
            record["id"] = events[key]
            record["guests"] = [tickets[g] for g in record["guests"]]
            if "next" in record:
                record["next"] = events.get(record["next"], record["next"])
            out["events"][events[key]] = record
        for number in numbers:
            record = dict(state["tickets"][str(number)])
            record["number"], record["event"] = tickets[number], events[record["event"]]
            out["tickets"][str(tickets[number])] = record
        out["users"]["ann"]["favourite"] = events[state["users"]["ann"]["favourite"]]
        return out

    brute = any(
        rename(final, dict(zip(ids, a, strict=True)), dict(zip(numbers, b, strict=True))) == target
        for a in itertools.permutations(ids)
        for b in itertools.permutations(numbers)
    )
    assert grade(final, task(target), SCHEMA).success is brute


@settings(max_examples=60, deadline=None)
@given(new_events)
def test_the_delta_of_a_state_and_of_plain_data_judge_alike(spec: list[Any]) -> None:
    n = len(spec)
    target = build(spec, [f"E{100 + i}" for i in range(n)], [200 + i for i in range(n)])
    state = State(BASE)
    for collection, table in target.items():
        for key, record in table.items():
            if state.exists(collection, key):
                state.update(collection, key, record)
            else:
                state.insert(collection, key, record)
    assert state.delta() == delta_of(BASE, target)
    assert Grader(task(target), SCHEMA).judge(state.delta()).success


@settings(max_examples=150, deadline=None)
@given(new_events, new_events, st.randoms(use_true_random=False))
def test_accepts_is_the_verdict_without_the_explanation(
    a: list[Any], b: list[Any], rng: random.Random
) -> None:
    def made(spec: list[Any], shift: int) -> StateData:
        n = len(spec)
        return build(spec, [f"E{shift + i}" for i in range(n)], [shift + i for i in range(n)])

    first, second = made(a, 300), made(b, 600)
    grader = Grader(task(first, second), SCHEMA)
    states = [made(a, 700), made(b, 800), BASE, first]
    for state in (made(a, 400), made(b, 500)):  # one more difference, anywhere, or none at all
        collection = rng.choice([name for name, table in state.items() if table])
        key = rng.choice(list(state[collection]))
        if rng.random() < 0.5:
            del state[collection][key]
        else:
            name = rng.choice(list(state[collection][key]))
            state[collection][key] = {**state[collection][key], name: "other"}
        states.append(state)
    for state in states:
        delta = delta_of(BASE, state)
        assert grader.accepts(delta) is grader.judge(delta).success
    assert grader.accepts(delta_of(BASE, states[0])) and grader.accepts(delta_of(BASE, states[1]))


def test_accepts_refuses_a_collection_the_schema_does_not_know() -> None:
    first = changed(event("E9"))
    with pytest.raises(TaskError, match="does not know"):
        Grader(task(first), SCHEMA).accepts(delta_of(BASE, {**first, "ghosts": {"1": {"id": 1}}}))
