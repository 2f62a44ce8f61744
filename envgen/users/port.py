"""What a simulated user is to an environment, and what is said of it afterwards (METHOD.md §4, MEU)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from envgen.errors import EnvgenError
from envgen.types import Message, Task

FaultKind = Literal[
    "wrong_value",
    "missing_fact",
    "contradiction",
    "early_stop",
    "restart",
    "silence",
    "invented_demand",
]
"""How users fail (FAULTS.md 10): another value than the one they know; keeping back what they know; two
values for one thing; leaving a question unanswered; starting over; saying nothing; asking for more than their
intent."""
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


@dataclass(frozen=True)
class UserReply:
    """What the user says, or ``done`` when the conversation is over (``text`` is empty then)."""

    text: str
    done: bool = False


class UserError(EnvgenError):
    """A user could not say anything that its facts allow, or could not be asked. Raised by `User` methods.

    The environment ends the episode with ``StopReason.USER_ERROR`` and marks it: excluded, never scored 0.
    """


class User(Protocol):
    """One user of one episode, single-use like its Env. Ends by a rule, never by a model's word."""

    def opening(self) -> str:
        """The first message. Raises UserError."""
        ...

    def reply(self, message: str) -> UserReply:
        """The answer to a message of the agent that holds no tool call. Raises UserError."""
        ...


@runtime_checkable
class NotesActions(Protocol):
    """A user that keeps the conversation itself, and so wants to hear what was said for it."""

    def note_action(self, asked: str, said: str) -> None:
        """The agent asked for an action, and this was told of it (`envgen.users.actions`)."""
        ...


@dataclass(frozen=True)
class UserVerdict:
    """Whether the user of a finished transcript gave wrong information: 1 − 1_MEU of METHOD.md §4."""

    error: bool
    kind: str = ""
    """A `FaultKind` where the judge can tell, ``user`` when the user gave up by itself, ``unjudged`` when the
    judge could not be asked; empty without an error."""
    reason: str = ""
    turn: int = -1
    """Index into the transcript of the message at fault, or of the one left unanswered; -1 without an
    error."""
    judge: str = ""
    """Who says so: ``rules``, ``model``, ``user``."""

    def __str__(self) -> str:
        """One line for records; empty without an error."""
        where = f" at message {self.turn}" if self.turn >= 0 else ""
        return f"{self.kind or 'wrong'}{where} ({self.judge}): {self.reason}" if self.error else ""


NO_ERROR = UserVerdict(False)

UserErrorHook = Callable[[Task, tuple[Message, ...]], UserVerdict]
"""Judges a finished transcript of a task. Called once, at every ending of an episode."""
