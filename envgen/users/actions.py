"""Dual control: what a user does with tools of its own, by rule and outside any model.

A task lists its user's actions (`UserAction`). The user carries one out on a message of the agent that

- is a question (a ``?`` in it), as for facts, and no offer of the agent (``Shall I …?``);
- holds one of the action's ``ask_words``;
- names the value of every argument in ``mentions``.

One action a message: the first that was not carried out yet. The result goes to the user, who tells it to
the agent in words; the agent never sees the call. An action that was refused can be asked for again, one
that was carried out is not done twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

from envgen.runtime.criteria import names_value
from envgen.runtime.tools import ToolOutcome
from envgen.types import Message, UserAction
from envgen.users.scripted import holds_words

DONE = "I did that."
FAILED = "I tried that, but it did not work:"
ALREADY = "I did that already."

_OFFER = re.compile(r"\b(?:(?:shall|should|may|can|could|will) i|want me to)\b", re.IGNORECASE)


def requested(actions: Sequence[UserAction], message: str, done: Collection[int]) -> int | None:
    """Index of the action that a message asks for, or None; one of ``done`` only when nothing else is
    meant."""
    if "?" not in message or _OFFER.search(message):
        return None
    meant = [index for index, action in enumerate(actions) if _asks(message, action)]
    return next((index for index in meant if index not in done), meant[0] if meant else None)


def _asks(message: str, action: UserAction) -> bool:
    return holds_words(message, action.ask_words) and all(
        names_value(message, action.arguments[name]) for name in action.mentions if name in action.arguments
    )


def told(outcome: ToolOutcome) -> str:
    """What the user says of a result, the same words for the same result."""
    if outcome.is_error:
        return f"{FAILED} {outcome.value}"
    said = "; ".join(_in_words(outcome.value))
    return f"{DONE} It says: {said}." if said else DONE


def _in_words(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from _in_words(inner, f"{name} {key}".strip())
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _in_words(inner, name)
    elif value is not None:
        said = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"{name} {said}".strip()


class UserHands:
    """What the user of one episode did so far. A copy goes on by itself."""

    def __init__(self, actions: Sequence[UserAction]) -> None:
        self._actions = actions
        self._done: frozenset[int] = frozenset()

    def wanted(self, message: str) -> UserAction | str | None:
        """What a message asks for: an action to carry out now, what the user says of one that it did
        already, or None for any other message."""
        index = requested(self._actions, message, self._done)
        if index is None:
            return None
        return ALREADY if index in self._done else self._actions[index]

    def carried_out(self, action: UserAction, outcome: ToolOutcome) -> str:
        """What the user says once an action has been tried."""
        if not outcome.is_error:
            self._done |= {next(i for i, known in enumerate(self._actions) if known is action)}
        return told(outcome)


def acted(actions: Sequence[UserAction], transcript: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """(index of the user's message, index of the action) for every action that was tried in a transcript."""
    done: set[int] = set()
    for at in range(1, len(transcript) if actions else 0):
        asked, answer = transcript[at - 1], transcript[at]
        if answer.role != "user" or asked.role != "assistant":
            continue
        index = requested(actions, asked.content, done)
        if index is None:
            continue
        if index not in done:
            yield at, index
        if answer.content.startswith(DONE):
            done.add(index)
