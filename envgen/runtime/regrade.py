"""Judges stored trajectories again: their calls are played on a fresh state, and the end state is graded by
the bundle as it is now. So a change of the grader, of the criteria or of a tool shows as moved scores instead
of silently standing beside old ones (FAULTS.md 11).

A trajectories file is JSON lines, one episode each. Needed: ``task_id`` and ``messages``, in order; each
message has ``role`` and, where it applies, ``content`` and ``tool_calls`` (``name``, ``arguments`` as JSON
text, ``parse_error`` of a call that was no call). Used where present: ``environment`` (name of the bundle;
rows of other bundles are skipped) or ``environment_id``, ``seed`` of the episode (0), ``success`` as it was
judged then, ``excluded`` (why the episode does not count: it is not judged). Other members are not looked
at. The trainer's ``trajectories.jsonl`` is such a file.

The user is not played: what it said is in the messages. What it did with tools of its own (a request that
`envgen.users.actions` finds, and the user's answer to it) is done again. A call belongs to the observation at
its place; calls without one were never carried out. A call that was refused then stays without effect, also
where it would succeed now (an injected failure).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from envgen.errors import TaskError, ToolDefect
from envgen.runtime.context import ToolContext, mix
from envgen.runtime.criteria import executed, is_refusal
from envgen.runtime.grader import grader_of
from envgen.runtime.shared import runtime_of
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.store import Bundle
from envgen.types import Message, Task, ToolCall, Verdict
from envgen.users.actions import DONE, acted, told


class _Row(BaseModel):
    """Rows carry what their writer wanted; only what is named here is read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredCall(_Row):
    """A call as it was written."""

    name: str
    arguments: str = "{}"
    parse_error: str = ""
    id: str = ""


class StoredMessage(_Row):
    """A message as it was said."""

    role: str
    content: str = ""
    tool_calls: tuple[StoredCall, ...] = ()


class StoredTrajectory(_Row):
    """One line of a trajectories file; see the module docstring."""

    task_id: str
    messages: tuple[StoredMessage, ...]
    environment: str = ""
    environment_id: str = ""
    seed: int = 0
    success: bool | None = None
    excluded: str = ""

    def transcript(self) -> tuple[Message, ...]:
        """The messages as an Env would have them."""
        return tuple(
            Message.model_validate(
                {
                    "role": message.role,
                    "content": message.content,
                    "tool_calls": [ToolCall(**call.model_dump()) for call in message.tool_calls],
                }
            )
            for message in self.messages
            if message.role != "system"
        )


@dataclass(frozen=True)
class Regraded:
    """What became of one line. ``verdict`` is None exactly when ``skipped`` says why."""

    line: int
    task_id: str
    stored: bool | None
    """The success that the file holds, or None where it holds none."""
    verdict: Verdict | None = None
    diverged: str = ""
    """The first call that is answered otherwise today than it was, in words; empty when all answers agree."""
    skipped: str = ""

    @property
    def moved(self) -> bool:
        """True when the verdict is not the one that was stored."""
        return (
            self.verdict is not None and self.stored is not None and self.verdict.success is not self.stored
        )


def read_trajectories(lines: Iterable[bytes | str], where: str) -> Iterator[tuple[int, StoredTrajectory]]:
    """Lines of a trajectories file, numbered from 1; empty ones are passed over. Raises TaskError that names
    file, line and member."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, StoredTrajectory.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            member = ".".join(str(part) for part in first["loc"]) or "the line"
            raise TaskError(
                f"{where}, line {number}: {member}: {first['msg']}; expected one JSON object a line with "
                "task_id and messages"
            ) from error


def regrade(bundle: Bundle, trajectories: Iterable[tuple[int, StoredTrajectory]]) -> Iterator[Regraded]:
    """Every trajectory judged again, in order. Raises TaskError for a row of this bundle whose task it does
    not have."""
    for line, row in trajectories:
        if row.environment_id not in ("", bundle.environment_id) or row.environment not in ("", bundle.name):
            yield Regraded(line, row.task_id, row.success, skipped="other environment")
        elif row.excluded:
            yield Regraded(line, row.task_id, row.success, skipped=row.excluded)
        else:
            try:
                task = bundle.task(row.task_id)
            except KeyError as error:
                raise TaskError(f"line {line}: {error.args[0]}") from error
            verdict, diverged = replay(bundle, task, row)
            yield Regraded(line, row.task_id, row.success, verdict, diverged)


def replay(bundle: Bundle, task: Task, row: StoredTrajectory) -> tuple[Verdict, str]:
    """The verdict on one stored trajectory today, and the first call that is answered otherwise, or empty."""
    try:
        transcript = row.transcript()
    except ValidationError as error:
        raise TaskError(f"task {task.id}: a stored message cannot be read: {error}") from error
    runtime = runtime_of(bundle)
    state = State(task.initial_state, runtime.collections)
    context = ToolContext(
        task.clock, task.seed if row.seed == 0 else mix(task.seed, row.seed), runtime.styles
    )
    diverged = ""
    for number, played in enumerate(_calls(task, transcript), start=1):
        before = state.fork() if played.refused else state
        table = runtime.user_table if played.by_user else runtime.table
        try:
            outcome = call_tool(runtime.tools, table, state, context, played.name, played.arguments)
        except ToolDefect as error:
            diverged = diverged or f"call {number} ({played.name}) breaks now: {error}"
            continue
        if played.refused and not outcome.is_error:
            state = before
            context.rollback()
        now = told(outcome) if played.by_user else outcome.text
        if now != played.answer and not diverged:
            diverged = f"call {number} ({played.name}) answered {played.answer[:80]!r}, now {now[:80]!r}"
    verdict = grader_of(task, bundle.state_schema).judge(state.delta(), transcript)
    return verdict, diverged


@dataclass(frozen=True)
class _Played:
    """One call of a stored episode, and how it was answered then."""

    name: str
    arguments: str | dict[str, Any]
    answer: str
    refused: bool
    by_user: bool = False


def _calls(task: Task, transcript: Sequence[Message]) -> Iterator[_Played]:
    """The calls of both sides that were carried out, in order."""
    deeds = dict(acted(task.user_actions, transcript))
    for at, message in enumerate(transcript):
        for call, observation in executed(transcript[at : at + 1 + len(message.tool_calls)]):
            if not call.parse_error:
                text = observation.content
                yield _Played(call.name, call.arguments, text, is_refusal(text))
        if at in deeds:
            action, text = task.user_actions[deeds[at]], message.content
            yield _Played(action.tool, action.arguments, text, not text.startswith(DONE), by_user=True)


def summary(rows: Iterable[Regraded]) -> dict[str, Any]:
    """Counts over regraded rows: judged, successes then and now, moved, diverged, skipped by reason."""
    out: dict[str, Any] = dict.fromkeys(("judged", "stored", "success_then", "success_now", "moved"), 0)
    out |= {"diverged": 0, "skipped": dict[str, int]()}
    for row in rows:
        if row.verdict is None:
            out["skipped"][row.skipped] = out["skipped"].get(row.skipped, 0) + 1
            continue
        out["judged"] += 1
        out["stored"] += row.stored is not None
        out["success_then"] += bool(row.stored)
        out["success_now"] += row.verdict.success
        out["moved"] += row.moved
        out["diverged"] += bool(row.diverged)
    return out
