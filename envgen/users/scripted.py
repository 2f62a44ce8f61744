"""The scripted user: no model, the same words for the same questions.

Rules, in the order they are tried on a message of the agent that holds no tool call:

1. Empty (only white space): the user says ``GO_ON`` once. The second empty message ends the conversation.
2. Not a question (no ``?`` in it): the agent is done; the user ends the conversation without a word.
3. A question in which a word of some fact's ``ask_words`` stands: the user says the sentences of all facts
   that match, in the order of the task, joined by a space. Facts stated in the instruction are repeated the
   same way, but only when no unstated fact matches. Asking again gets the same answer.
4. Any other question: the user says ``NOTHING_TO_ADD`` once. The second such question ends the conversation.

A word matches regardless of case and of a plural ``s``; an ask word of several words matches them in a row.
The user never invents a fact and never speaks of anything but its facts, so a scripted user makes no user
errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envgen.types import Task, UserFact

GO_ON = "Please go on or tell me that you are done."
NOTHING_TO_ADD = "I have nothing to add. Please go on."

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class UserReply:
    """What the user says, or ``done`` when the conversation is over (``text`` is empty then)."""

    text: str
    done: bool = False


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _same(word: str, other: str) -> bool:
    return word == other or word == other + "s" or word + "s" == other


def asks_for(message: str, fact: UserFact) -> bool:
    """True when one of the fact's ``ask_words`` stands in ``message`` (rule 3 of the module docstring,
    without the ``?``)."""
    said = _words(message)
    for phrase in fact.ask_words:
        wanted = _words(phrase)
        if not wanted:
            continue
        for start in range(len(said) - len(wanted) + 1):
            if all(_same(w, s) for w, s in zip(wanted, said[start : start + len(wanted)], strict=True)):
                return True
    return False


class ScriptedUser:
    """One user of one episode: opens with the instruction, answers by the rules of the module docstring."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._empty = 0
        self._misses = 0

    def opening(self) -> str:
        """The first message: the task's instruction."""
        return self._task.instruction

    def reply(self, message: str) -> UserReply:
        """The answer to a message of the agent that holds no tool call."""
        if not message.strip():
            self._empty += 1
            return UserReply(GO_ON) if self._empty == 1 else UserReply("", done=True)
        if "?" not in message:
            return UserReply("", done=True)
        matching = [fact for fact in self._task.facts if asks_for(message, fact)]
        unstated = [fact for fact in matching if not fact.stated]
        if matching:
            return UserReply(" ".join(fact.sentence for fact in unstated or matching))
        self._misses += 1
        return UserReply(NOTHING_TO_ADD) if self._misses == 1 else UserReply("", done=True)
