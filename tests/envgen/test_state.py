"""State against a deep-copied dict model, and context against hand-worked values."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import TaskError
from envgen.runtime.context import KeyStyle, ToolContext, key_styles
from envgen.runtime.state import State, copy_json, same_json
from envgen.types import Collection, StateData, StateField, StateSchema
from tests.envgen.mock_domain import SCHEMA

BASE: StateData = {
    "a": {"1": {"id": "1", "x": 1, "tags": ["p", {"q": 2}]}, "2": {"id": "2", "x": 2, "tags": []}},
    "b": {},
}


class DictModel:
    """The independent answer: plain dicts, deep-copied at every step."""

    def __init__(self, base: StateData) -> None:
        self.data = copy.deepcopy(base)

    def apply(self, op: str, collection: str, key: str, value: dict[str, Any]) -> str:
        table = self.data[collection]
        if op == "insert":
            if key in table:
                return "KeyError"
            table[key] = copy.deepcopy(value)
        elif op == "update":
            if key not in table:
                return "KeyError"
            table[key] = {**table[key], **copy.deepcopy(value)}
        else:
            if key not in table:
                return "KeyError"
            del table[key]
        return "ok"


def apply(state: State, op: str, collection: str, key: str, value: dict[str, Any]) -> str:
    try:
        if op == "delete":
            state.delete(collection, key)
        else:
            getattr(state, op)(collection, key, value)
    except KeyError:
        return "KeyError"
    return "ok"


values = st.dictionaries(
    st.sampled_from(["x", "y", "tags"]),
    st.one_of(st.integers(-2, 2), st.booleans(), st.none(), st.lists(st.text(max_size=2), max_size=2)),
    max_size=3,
)
operations = st.tuples(
    st.sampled_from(["insert", "update", "delete"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from("1234"),
    values,
)


def check_equal(state: State, model: StateData, base: StateData) -> None:
    assert state.snapshot() == model
    for name, table in model.items():
        assert state.records(name) == list(table.values())
        assert state.keys(name) == list(table)
        for key in "12345":
            assert state.get(name, key) == table.get(key)
            assert state.exists(name, key) == (key in table)
    delta = state.delta()
    for name, table in model.items():
        before = base[name]
        assert delta.inserted.get(name, {}) == {k: r for k, r in table.items() if k not in before}
        changed = {k: r for k, r in table.items() if k in before and not same_json(r, before[k])}
        assert delta.updated.get(name, {}) == changed
        assert delta.deleted.get(name, ()) == tuple(sorted(k for k in before if k not in table))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(operations, st.booleans()), max_size=14))
def test_state_equals_a_dict_model_under_random_transactions(steps: list[tuple[Any, bool]]) -> None:
    base = copy.deepcopy(BASE)
    state, model = State(base), DictModel(base)
    for operation, keep in steps:
        saved = copy.deepcopy(model.data)
        state.begin()
        assert apply(state, *operation) == model.apply(*operation)
        if keep:
            state.commit()
        else:
            state.rollback()
            model.data = saved
        check_equal(state, model.data, base)
    assert base == BASE


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), operations), max_size=16))
def test_two_interleaved_states_equal_two_separate_ones(steps: list[tuple[bool, Any]]) -> None:
    base = copy.deepcopy(BASE)
    together = {False: State(base), True: State(base)}
    for which, operation in steps:
        apply(together[which], *operation)
    for which in (False, True):
        alone = State(copy.deepcopy(BASE))
        for turn, operation in steps:
            if turn == which:
                apply(alone, *operation)
        assert together[which].snapshot() == alone.snapshot()
    assert base == BASE


def test_nothing_handed_out_or_taken_in_leaks() -> None:
    base = copy.deepcopy(BASE)
    state = State(base)
    got = state.get("a", "1")
    assert got is not None
    got["x"] = 99
    got["tags"][1]["q"] = 99
    state.records("a")[0]["tags"].append("leak")
    state.snapshot()["a"]["1"]["x"] = 99
    mine = {"id": "9", "tags": ["t"]}
    state.insert("b", 9, mine)
    mine["tags"].append("leak")
    changes = {"tags": [1]}
    state.update("a", "2", changes)
    changes["tags"].append("leak")
    assert base == BASE
    assert state.get("a", 1) == BASE["a"]["1"]
    assert state.get("b", "9") == {"id": "9", "tags": ["t"]}
    assert state.get("a", "2") == {"id": "2", "x": 2, "tags": [1]}


def test_a_record_deleted_and_inserted_again_is_an_update_and_stands_last() -> None:
    state = State(copy.deepcopy(BASE))
    state.delete("a", "1")
    state.insert("a", "1", {"id": "1", "x": 7})
    assert state.keys("a") == ["2", "1"]
    delta = state.delta()
    assert (delta.inserted, delta.updated, delta.deleted) == ({}, {"a": {"1": {"id": "1", "x": 7}}}, {})
    state.delete("a", "1")
    state.insert("a", "1", BASE["a"]["1"])
    assert state.delta().empty


def test_true_is_not_one() -> None:
    assert not same_json({"x": [True]}, {"x": [1]})
    assert same_json({"x": 25, "y": 1}, {"y": 1.0, "x": 25.0})
    state = State({"a": {"1": {"x": 1}}})
    state.update("a", "1", {"x": True})
    assert state.delta().updated == {"a": {"1": {"x": True}}}


@pytest.mark.parametrize(
    "value", [{1, 2}, 2**64, float("nan"), float("inf"), {1: "x"}, object(), b"x", [{"a": {1}}]]
)
def test_only_json_is_stored(value: object) -> None:
    state = State(copy.deepcopy(BASE))
    with pytest.raises(TypeError):
        state.insert("a", "9", {"v": value})
    with pytest.raises(TypeError):
        state.update("a", "1", {"v": value})
    assert state.delta().empty


def test_wrong_use_is_an_error_that_names_what_there_is() -> None:
    state = State({"a": {}}, collections=("a", "late"))
    with pytest.raises(KeyError, match=r"no collection 'z'.*late"):
        state.records("z")
    with pytest.raises(TypeError, match="key is a string or an integer"):
        state.get("a", True)
    with pytest.raises(KeyError, match="no record '1' to update"):
        state.update("a", "1", {})
    state.insert("late", "1", {})
    with pytest.raises(KeyError, match="already has"):
        state.insert("late", 1, {})
    assert copy_json((1, 2)) == [1, 2]


def test_reset_does_not_depend_on_size() -> None:
    def best(base: StateData) -> float:
        times: list[float] = []
        for _ in range(200):
            start = time.perf_counter()
            State(base)
            times.append(time.perf_counter() - start)
        return min(times)

    def table(size: int) -> StateData:
        return {"a": {str(i): {"id": str(i), "text": "x" * 50} for i in range(size)}}

    # A copy of 20,000 records takes milliseconds; the bound is far from both, so load on the machine does
    # not matter.
    assert best(table(20_000)) < best(table(10)) + 0.0005


# ---------------------------------------------------------------- context
STYLES = {"notes": KeyStyle("N"), "items": KeyStyle("I", integer=True)}


def test_clock_advances_one_minute_a_call() -> None:
    ctx = ToolContext("2026-03-02T23:58:00", 1, STYLES)
    state = State({"notes": {}, "items": {}})
    ctx.begin_call(state)
    assert (ctx.now(), ctx.now(), ctx.today()) == ("2026-03-02T23:59:00", "2026-03-02T23:59:00", "2026-03-02")
    ctx.begin_call(state)
    assert (ctx.now(), ctx.today()) == ("2026-03-03T00:00:00", "2026-03-03")
    with pytest.raises(TaskError, match="ISO time"):
        ToolContext("yesterday", 1, STYLES)


def test_ids_are_short_typed_and_never_collide_even_when_crowded() -> None:
    state = State({"notes": {f"N{i}": {} for i in range(10, 100)}, "items": {}})
    ctx = ToolContext("2026-03-02T09:00:00", 7, STYLES)
    seen: set[str | int] = set()
    for _ in range(120):
        ctx.begin_call(state)
        key, number = ctx.new_id("notes"), ctx.new_id("items")
        assert isinstance(key, str) and key[0] == "N" and 100 <= int(key[1:]) < 10_000
        assert type(number) is int
        assert not state.exists("notes", key) and key not in seen and number not in seen
        seen |= {key, number}
        state.insert("notes", key, {})  # items are not inserted: handed out once is enough
    with pytest.raises(KeyError, match="no key style"):
        ctx.new_id("other")


def test_ids_are_a_function_of_seed_and_history() -> None:
    def ids(seed: int) -> list[str | int]:
        ctx = ToolContext("2026-03-02T09:00:00", seed, STYLES)
        ctx.begin_call(State({"notes": {}, "items": {}}))
        return [ctx.new_id(c) for c in ("notes", "items", "notes", "notes")]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_a_rolled_back_call_leaves_no_trace_in_ids() -> None:
    state = State({"notes": {}, "items": {}})
    plain, failed = (ToolContext("2026-03-02T09:00:00", 5, STYLES) for _ in range(2))
    failed.begin_call(state)
    failed.new_id("notes")
    failed.rollback()
    for ctx in (plain, failed):
        ctx.begin_call(state)
    assert [plain.new_id("notes") for _ in range(3)] == [failed.new_id("notes") for _ in range(3)]


def _schema(*entities: tuple[str, str]) -> StateSchema:
    return StateSchema(
        collections=tuple(
            Collection(name=e.replace(" ", "_"), entity=e, key="id", fields=(StateField(name="id", type=t),))  # type: ignore[arg-type]
            for e, t in entities
        )
    )


def test_key_styles_are_the_shipped_rule() -> None:
    styles = key_styles(
        _schema(
            ("event", "id"), ("task", "id"), ("tool", "id"), ("special event", "integer"), ("total", "id")
        )
    )
    assert {n: s.prefix for n, s in styles.items()} == {
        "event": "E",
        "task": "T",
        "tool": "TL",
        "special_event": "SE",
        "total": "TT",
    }
    assert styles["special_event"].integer and not styles["tool"].integer
    many = key_styles(_schema(*((f"item {chr(97 + i)}{j}", "id") for i in range(26) for j in range(2))))
    assert len({s.prefix for s in many.values()}) == 52
    assert key_styles(SCHEMA)["notebooks"].prefix == "N"


def test_ids_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from envgen.runtime.context import *; from envgen.runtime.state import State\n"
        "c=ToolContext('2026-03-02T09:00:00',3,{'n':KeyStyle('N')}); c.begin_call(State({'n':{}}))\n"
        "print([c.new_id('n') for _ in range(5)], c.now())"
    )
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outs) == 1
