"""Typed answers and trace constraints, on hand-written transcripts and in live episodes."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envgen.errors import TaskError
from envgen.runtime.criteria import affirms, answer_differences, executed, read_answer, violations
from envgen.runtime.env import Env, open_env
from envgen.runtime.grader import Grader
from envgen.types import AnswerSlot, FieldDifference, Message, Task, ToolCall, TraceConstraint
from tests.envgen.mock_domain import SCHEMA, initial_state, mock_bundle

BUNDLE = mock_bundle()
COUNT = AnswerSlot(name="open_notes", type="integer", accepted=(3,))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def calls(*named: tuple[str, dict[str, Any]], ids: str = "c") -> Message:
    return Message(
        role="assistant",
        tool_calls=tuple(ToolCall(id=ids, name=n, arguments=json.dumps(a)) for n, a in named),
    )


def result(text: str = "{}", call_id: str = "c") -> Message:
    return Message(role="tool", content=text, tool_call_id=call_id)


def reading_task(*slots: AnswerSlot) -> Task:
    """A task that writes nothing: how many notes are there in the notebook Home?"""
    return BUNDLE.task("notes-1").model_copy(
        update={"accepted_states": (initial_state(),), "answers": slots or (COUNT,)}
    )


# ---------------------------------------------------------------- answers
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"open_notes": 3}', {"open_notes": 3}),
        ('There are three of them.\n{"open_notes": 3}', {"open_notes": 3}),
        ('```json\n{"a": {"b": [1]}}\n```', {"a": {"b": [1]}}),
        ("three", None),
        ("", None),
        ("{open_notes: 3}", None),
        ('{"open_notes": 2} or {"open_notes": 3}', None),
        ('{"open_notes": 2, "open_notes": 3}', None),
        ('{"open_notes": 2, "open_notes": 3, "x": {"open_notes": 3}}', None),
        ("{" * 5000, None),
    ],
)
def test_an_answer_is_the_one_object_in_the_message(text: str, answer: dict[str, Any] | None) -> None:
    assert read_answer(text) == answer


@pytest.mark.parametrize(
    ("kind", "policy", "accepted", "given_", "right"),
    [
        ("integer", "exact", 3, 3, True),
        ("integer", "exact", 3, 3.0, True),
        ("integer", "exact", 3, "3", False),
        ("integer", "exact", 1, True, False),
        ("integer", "exact", 3, 3.5, False),
        ("integer", "exact", 3, None, False),
        ("integer", "exact", 3, [3], False),
        ("number", "exact", 25, 25.0, True),
        ("number", "exact", 25, "25", False),
        ("number", "exact", 0, False, False),
        ("boolean", "exact", True, True, True),
        ("boolean", "exact", True, 1, False),
        ("string", "exact", "Milk", "Milk", True),
        ("string", "exact", "Milk", "milk", False),
        ("string", "exact", "Milk", "the note is Milk", False),
        ("string", "normalised", "Milk", " MILK ", True),
        ("string", "normalised", "Milk", "Milk and Bread", False),
        ("string", "normalised", "Café", "Cafe\u0301", True),
        ("date", "exact", "2026-03-02", "2026-03-02", True),
        ("date", "exact", "2026-03-02", "20260302", True),
        ("date", "exact", "2026-03-02", "2 March", False),
        ("datetime", "exact", "2026-03-02T09:00:00Z", "2026-03-02T10:00:00+01:00", True),
        ("datetime", "exact", "2026-03-02T09:00:00Z", "2026-03-02T09:00:00", False),
        ("array", "exact", ["a", "b"], ["a", "b"], True),
        ("array", "exact", ["a", "b"], ["b", "a"], False),
        ("array", "normalised", ["a", "b"], ["B", "a"], True),
        ("array", "normalised", ["a", "b"], ["a", "b", "c"], False),
        ("array", "normalised", ["a", "b"], ["a"], False),
        ("array", "normalised", ["a"], "a", False),
    ],
)
def test_an_answer_is_compared_by_type_and_policy(
    kind: Any, policy: Any, accepted: Any, given_: Any, right: bool
) -> None:
    slot = AnswerSlot(name="x", type=kind, policy=policy, accepted=(accepted,))
    found = answer_differences((slot,), [say(json.dumps({"x": given_}))])
    assert (found == []) is right
    if not right:
        assert found == [
            FieldDifference(collection="answer", key="", field="x", expected=accepted, got=given_)
        ]


def test_every_accepted_value_is_right_and_a_member_too_many_is_wrong() -> None:
    slot = AnswerSlot(name="who", type="string", accepted=("Ann", "Bob"))
    for name in ("Ann", "Bob"):
        assert answer_differences((slot,), [say(json.dumps({"who": name}))]) == []
    found = answer_differences((slot,), [say('{"who": "Ann", "or": "Bob"}')])
    assert [(d.field, d.got) for d in found] == [("or", "Bob")]


def test_only_the_closing_message_answers() -> None:
    right, wrong = say('{"open_notes": 3}'), say('{"open_notes": 4}')
    assert answer_differences((COUNT,), [right, user("Sure?"), wrong])
    assert answer_differences((COUNT,), [wrong, user("Sure?"), right]) == []
    assert answer_differences((COUNT,), [right, calls(("list_notebooks", {})), result()]) == []
    assert answer_differences((COUNT,), [user('{"open_notes": 3}')])


def test_a_task_that_writes_nothing_is_graded_by_its_answer() -> None:
    task = reading_task()

    def episode(*actions: Message) -> Env:
        env = open_env(BUNDLE, task)
        env.start()
        for action in actions:
            env.step(action)
        return env

    assert episode(calls(("list_notes", {"notebook_id": "NB1"})), say('{"open_notes": 3}')).verdict().success
    silent = episode(say("Done.")).verdict()
    assert not silent.success and silent.partial_credit == 0.0
    assert [(d.collection, d.field, d.expected, d.got) for d in silent.differences] == [
        ("answer", "open_notes", 3, None)
    ]
    assert not episode(say('{"open_notes": 2}')).verdict().success
    # A right answer does not excuse a side effect.
    meddled = episode(calls(("delete_note", {"note_id": "N11"})), say('{"open_notes": 3}')).verdict()
    assert not meddled.success and meddled.differences[0].key == "N11"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answers": ()}, "asks for no answer"),
        ({"answers": (COUNT, COUNT)}, "two answer slots are called 'open_notes'"),
        (
            {"answers": (AnswerSlot(name="n", type="integer", accepted=("3",)),)},
            "accepts '3', which is no integer",
        ),
        ({"constraints": (TraceConstraint(kind="only_after", tools=("a",)),)}, "names no tool in 'first'"),
        ({"constraints": (TraceConstraint(kind="at_least", tools=("a",)),)}, "expected 1 or more"),
    ],
)
def test_criteria_that_cannot_be_judged_are_an_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        Grader(reading_task().model_copy(update=changes), SCHEMA)


def test_a_slot_that_accepts_nothing_cannot_be_made() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        AnswerSlot(name="x", type="string", accepted=())


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60))
def test_no_text_raises_and_none_without_the_value_is_right(text: str) -> None:
    assert answer_differences((COUNT,), [say(text)])


# ---------------------------------------------------------------- trace
def constraint(
    kind: Literal["confirm_before", "only_after", "at_most", "at_least"], **more: Any
) -> TraceConstraint:
    return TraceConstraint(kind=kind, tools=("delete_note",), **more)


DELETE = calls(("delete_note", {"note_id": "N11"}))
GONE = result('{"deleted":"N11"}')
REFUSED = result('{"error":"no note N11"}')


@pytest.mark.parametrize(
    ("transcript", "broken"),
    [
        ([say("Delete N11?"), user("Yes."), DELETE, GONE], ""),
        ([say("Delete N11?"), user("OK, please go ahead"), DELETE, GONE], ""),
        ([DELETE, GONE], "without asking"),
        ([say("I delete N11."), user("Yes."), DELETE, GONE], "without asking"),
        ([say("Delete N11?"), DELETE, GONE], "without asking"),
        ([say("Delete N11?"), user("No, wait."), DELETE, GONE], "the user said 'No, wait.'"),
        ([say("Delete N11?"), user("Which one is it?"), DELETE, GONE], "the user said"),
        ([say("Delete N11?"), user("Yes."), say("Sure?"), user("No."), DELETE, GONE], "the user said"),
        ([say("Delete N12?"), user("Yes."), DELETE, GONE], "does not name note_id 'N11'"),
        ([say("Delete N111?"), user("Yes."), DELETE, GONE], "does not name note_id"),
        ([DELETE, REFUSED], ""),
        ([DELETE], ""),
        ([say("Delete N11?"), user("Yes."), calls(("list_notebooks", {})), result("[]"), DELETE, GONE], ""),
    ],
)
def test_confirm_before_write(transcript: list[Message], broken: str) -> None:
    rule = constraint("confirm_before", mentions=("note_id",))
    found = violations((rule,), [user("Delete a note."), *transcript])
    assert (found == ()) is (broken == "") and broken in " ".join(found)


def test_one_yes_covers_the_writes_that_it_names_and_no_other() -> None:
    both = calls(("delete_note", {"note_id": "N11"}), ("delete_note", {"note_id": "N12"}))
    rule = constraint("confirm_before", mentions=("note_id",))
    asked = [user("Clean up."), say("Delete N11 and N12?"), user("Yes."), both, GONE, GONE]
    assert violations((rule,), asked) == ()
    asked[1] = say("Delete N11?")
    assert len(violations((rule,), asked)) == 1


@pytest.mark.parametrize(
    ("transcript", "broken"),
    [
        ([calls(("get_note", {"note_id": "N11"})), result(), DELETE, GONE], False),
        ([calls(("get_note", {"note_id": "N12"})), result(), DELETE, GONE], True),
        ([calls(("get_note", {"note_id": "N11"})), REFUSED, DELETE, GONE], True),
        ([DELETE, GONE, calls(("get_note", {"note_id": "N11"})), result()], True),
        ([], False),
    ],
)
def test_only_after_the_same_record_was_looked_at(transcript: list[Message], broken: bool) -> None:
    rule = constraint("only_after", first=("get_note",), same=("note_id",))
    assert bool(violations((rule,), transcript)) is broken


def test_counts_are_of_calls_that_were_carried_out() -> None:
    twice = [DELETE, GONE, DELETE, REFUSED, DELETE, GONE]
    assert violations((constraint("at_most", limit=2),), twice) == ()
    assert violations((constraint("at_most", limit=1),), twice) == (
        "delete_note was called 2 times, allowed: 1",
    )
    assert violations((constraint("at_least", limit=3),), twice) == (
        "delete_note was called 2 times, needed: 3",
    )


def test_a_right_state_by_a_forbidden_way_is_a_failure_that_says_so() -> None:
    rule = TraceConstraint(kind="confirm_before", tools=("update_note",), mentions=("priority",))
    task = BUNDLE.task("notes-1").model_copy(update={"constraints": (rule,)})
    env = open_env(BUNDLE, task)
    env.start()
    env.step(calls(("update_note", {"note_id": "N11", "priority": 5})))
    env.step(say("Done."))
    verdict = env.verdict()
    assert not verdict.success and verdict.differences == ()
    assert verdict.violations == ("update_note was called without asking the user first",)
    assert verdict.partial_credit == 0.0  # one change made, one rule broken


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("Yes", True), ("yes, please do that", True), ("Ok!", True), ("That is correct.", True),
        ("No", False), ("Don't", False), ("yes, but not that one", False), ("", False),
        ("I have nothing to add. Please go on.", False), ("Is that right?", False), ("That is right", True),
    ],
)  # fmt: skip
def test_assent_is_read_by_words(text: str, yes: bool) -> None:
    assert affirms(text) is yes


def test_call_ids_that_collide_lose_nothing() -> None:
    """FAULTS 11: pairing is by position."""
    pair = calls(("a", {}), ("b", {}), ids="same")
    transcript = [pair, result("1", "same"), result("2", "same"), calls(("c", {}), ids="same"), result("3")]
    assert [(c.name, m.content) for c, m in executed(transcript)] == [("a", "1"), ("b", "2"), ("c", "3")]
    cut = [pair, result("1", "same"), user("x")]  # the budget ended it before the second call
    assert [c.name for c, _ in executed(cut)] == ["a"]
