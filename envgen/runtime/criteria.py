"""Criteria beside the final state: typed answers and rules about the trace (DESIGN.md §6).

**Answers.** The closing message (the agent's last message without a tool call) holds exactly one JSON object
with exactly the slots of the task: ``Two notes are open. {"open_notes": 2}``. Values are compared by type and
policy, never as a piece of text. No object, several objects, a member too many or one given twice is a wrong
answer, so that guessing several values at once cannot pass.

**Trace constraints** look at what was said and which calls were carried out. A call and its observation
belong together by position, not by call id: ids are the agent's and may collide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, cast

import orjson

from envgen.errors import TaskError
from envgen.runtime.canonical import canonical_value
from envgen.types import AnswerSlot, FieldDifference, Message, Task, ToolCall, TraceConstraint

ANSWER = "answer"
"""``FieldDifference.collection`` of a wrong answer."""
YES = frozenset(
    (
        "yes",
        "yeah",
        "yep",
        "sure",
        "ok",
        "okay",
        "correct",
        "right",
        "confirmed",
        "confirm",
        "agreed",
        "please",
    )
)
NO = frozenset(("no", "not", "nope", "never", "don", "dont", "stop", "wait", "wrong", "incorrect", "instead"))
"""``don't`` reads as ``don`` and ``t``."""
_WORD = re.compile(r"\w+")
_MISSING = object()


@dataclass(frozen=True)
class Event:
    """One thing that happened, in order: something said, or a call that was carried out."""

    kind: Literal["agent", "user", "call"]
    text: str = ""
    tool: str = ""
    arguments: dict[str, Any] | None = None


def executed(transcript: Sequence[Message]) -> Iterator[tuple[ToolCall, Message]]:
    """Every call that was answered, with its observation, paired by position."""
    for index, message in enumerate(transcript):
        if message.role != "assistant":
            continue
        for offset, call in enumerate(message.tool_calls, start=index + 1):
            if offset >= len(transcript) or transcript[offset].role != "tool":
                break
            yield call, transcript[offset]


def is_refusal(observation: str) -> bool:
    """True for the observation of a call that failed: an object whose only member is ``error``."""
    if not observation.startswith('{"error"'):
        return False
    try:
        value = orjson.loads(observation)
    except orjson.JSONDecodeError:
        return False
    return list(value) == ["error"]


def events(transcript: Sequence[Message]) -> list[Event]:
    """The transcript as events; refused calls are left out."""
    out: list[Event] = []
    for index, message in enumerate(transcript):
        if message.role == "user":
            out.append(Event("user", message.content))
        elif message.role == "assistant":
            if not message.tool_calls:
                out.append(Event("agent", message.content))
                continue
            for call, observation in executed(transcript[index : index + 1 + len(message.tool_calls)]):
                if not call.parse_error and not is_refusal(observation.content):
                    out.append(Event("call", tool=call.name, arguments=_arguments(call)))
    return out


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:  # a call that was carried out has arguments; an empty text means none
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


# ---------------------------------------------------------------- answers
def read_answer(text: str) -> dict[str, Any] | None:
    """The one JSON object in a message, or None: none, several, or a member given twice."""
    found: list[dict[str, Any]] = []
    decoder = json.JSONDecoder(object_pairs_hook=_unique)
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except _GivenTwice:
            return None
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found.append(value)
        at = text.find("{", end)
    return found[0] if len(found) == 1 else None


class _GivenTwice(Exception):
    """A member stands twice in one object: which value is meant?"""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise _GivenTwice
    return out


def answer_differences(slots: Sequence[AnswerSlot], transcript: Sequence[Message]) -> list[FieldDifference]:
    """One difference for each slot without a right value, and one for each member that is no slot."""
    if not slots:
        return []
    said = next((m.content for m in reversed(transcript) if m.role == "assistant" and not m.tool_calls), "")
    given = read_answer(said) or {}
    names = {slot.name for slot in slots}
    out = [
        FieldDifference(
            collection=ANSWER, key="", field=slot.name, expected=slot.accepted[0], got=given.get(slot.name)
        )
        for slot in slots
        if not _right(slot, given.get(slot.name, _MISSING))
    ]
    out += [
        FieldDifference(collection=ANSWER, key="", field=name, got=value)
        for name, value in given.items()
        if name not in names
    ]
    return out


def _right(slot: AnswerSlot, value: Any) -> bool:
    if value is _MISSING or not _typed(slot.type, slot.item_type, value):
        return False
    mine = _comparable(slot, value)
    return any(_comparable(slot, accepted) == mine for accepted in slot.accepted)


def _comparable(slot: AnswerSlot, value: Any) -> Any:
    kind = slot.type if slot.type in ("date", "datetime") else slot.item_type or slot.type
    if slot.type in ("date", "datetime"):
        return canonical_value(value, kind, normalised=True)  # one moment, however it is written
    return canonical_value(value, kind, normalised=slot.policy == "normalised")


def _typed(kind: str, item: str | None, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "array":
        items = cast("list[Any]", value) if isinstance(value, list) else None
        return items is not None and (item is None or all(_typed(item, None, v) for v in items))
    if not isinstance(value, str):
        return False
    try:
        if kind == "date":
            date.fromisoformat(value)
        elif kind == "datetime":
            datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- trace
def violations(constraints: Sequence[TraceConstraint], transcript: Sequence[Message]) -> tuple[str, ...]:
    """What was broken, in words; empty when every constraint held."""
    if not constraints:
        return ()
    trace = events(transcript)
    out: list[str] = []
    for constraint in constraints:
        calls = [
            i for i, event in enumerate(trace) if event.kind == "call" and event.tool in constraint.tools
        ]
        tools = " or ".join(constraint.tools)
        if constraint.kind == "at_most" and len(calls) > constraint.limit:
            out.append(f"{tools} was called {len(calls)} times, allowed: {constraint.limit}")
        elif constraint.kind == "at_least" and len(calls) < constraint.limit:
            out.append(f"{tools} was called {len(calls)} times, needed: {constraint.limit}")
        elif constraint.kind == "only_after":
            wanted = " or ".join(constraint.first)
            agreeing = f" with the same {', '.join(constraint.same)}" if constraint.same else ""
            out += [
                f"{trace[i].tool} was called without a call of {wanted} before it{agreeing}"
                for i in calls
                if not _preceded(trace, i, constraint)
            ]
        elif constraint.kind == "confirm_before":
            out += [problem for i in calls if (problem := _unconfirmed(trace, i, constraint))]
    return tuple(out)


def _preceded(trace: list[Event], at: int, constraint: TraceConstraint) -> bool:
    mine = trace[at].arguments or {}
    return any(
        event.kind == "call"
        and event.tool in constraint.first
        and all(
            canonical_value((event.arguments or {}).get(name)) == canonical_value(mine.get(name))
            for name in constraint.same
        )
        for event in trace[:at]
    )


def _unconfirmed(trace: list[Event], at: int, constraint: TraceConstraint) -> str:
    """Why a call was not confirmed, or empty."""
    call = trace[at]
    reply = next((i for i in range(at - 1, -1, -1) if trace[i].kind == "user"), None)
    # The message right before the reply is what it answers; the opening answers nothing.
    question = trace[reply - 1] if reply else None
    if reply is None or question is None or question.kind != "agent" or "?" not in question.text:
        return f"{call.tool} was called without asking the user first"
    if not affirms(trace[reply].text):
        return f"{call.tool} was called although the user said {trace[reply].text[:80]!r}"
    for name in constraint.mentions:
        value = (call.arguments or {}).get(name)
        if value is not None and not names_value(question.text, value):
            return f"{call.tool} was confirmed by a question that does not name {name} {value!r}"
    return ""


def affirms(text: str) -> bool:
    """True for a yes: a word of assent among the first four, no word of refusal anywhere, and no question."""
    words = _WORD.findall(text.casefold())
    return "?" not in text and not NO.intersection(words) and bool(YES.intersection(words[:4]))


def names_value(text: str, value: Any) -> bool:
    """True when the words of a value stand in a text in a row."""
    said = value if isinstance(value, str) else orjson.dumps(value).decode()
    wanted, words = _WORD.findall(said.casefold()), _WORD.findall(text.casefold())
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def check_criteria(task: Task) -> None:
    """Raises TaskError for slots and constraints that cannot be judged as they are."""
    names = [slot.name for slot in task.answers]
    for slot in task.answers:
        if names.count(slot.name) > 1:
            raise TaskError(f"task {task.id!r}: two answer slots are called {slot.name!r}; names must differ")
        for value in slot.accepted:
            if not _typed(slot.type, slot.item_type, value):
                raise TaskError(
                    f"task {task.id!r}: answer slot {slot.name!r} accepts {value!r}, which is no {slot.type}"
                )
    for constraint in task.constraints:
        if constraint.kind == "only_after" and not constraint.first:
            raise TaskError(
                f"task {task.id!r}: an only_after constraint on {', '.join(constraint.tools)} names no tool "
                "in 'first'"
            )
        least = {"at_most": 0, "at_least": 1}.get(constraint.kind, constraint.limit)
        if constraint.limit < least:
            raise TaskError(
                f"task {task.id!r}: {constraint.kind} on {', '.join(constraint.tools)} has limit "
                f"{constraint.limit}; expected {least} or more"
            )
