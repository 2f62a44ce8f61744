"""The scripted user: no model, known facts only, an ending by rule.

Rules, in the order they are tried on a message of the agent that holds no tool call:

1. Empty (only white space): the user says ``GO_ON`` once. The second empty message ends the conversation.
2. Not a question (no ``?`` in it): the agent is done; the user ends the conversation without a word.
3. A question in which a word of some fact's ``ask_words`` stands: the user says all facts that match, in the
   order of the task. Facts stated in the instruction are repeated the same way, but only when no unstated
   fact matches. Asking again gets the same answer. Before that, in a task whose rules want a confirmation
   before some call: a question for a go-ahead (as in 4) that asks for no unstated fact which was not told
   yet, and proposes no other value than the user knows, gets a yes, or a no where the task says so
   (``Task.consent``), as often as the reference asks and ``MAX_CONFIRMATIONS`` times more.
4. A question that wants a go-ahead (``Shall I …?``, ``… correct?``): the user says to do what it asked for,
   ``MAX_CONFIRMATIONS`` times; the next such question ends the conversation.
5. Any other question is answered once: "anything else?" with ``NO_MORE``; one that asks for a thing
   (what, which, who, when, where, why, how) with ``UNKNOWN``, because the user knows its facts and no more;
   the rest with ``NOTHING_TO_ADD``. The second such question ends the conversation.

A word matches regardless of case and of a plural ``s``; an ask word of several words matches them in a row.
With a ``seed`` the wording varies (data/wording.json), the information does not. The user never invents a
fact and never speaks of anything but its facts, so a scripted user makes no user errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from envgen.packaged import packaged_json
from envgen.runtime.context import mix
from envgen.types import Task, UserFact
from envgen.users.port import UserReply
from envgen.users.speech import entities, says_value, spoken_value

GO_ON = "Please go on or tell me that you are done."
NOTHING_TO_ADD = "I have nothing to add. Please go on."
CONFIRM = "Please go ahead with what I asked for."
NO_MORE = "No, that is all."
UNKNOWN = "I do not know that. Please go on."
MAX_CONFIRMATIONS = 4
YES = "Yes, please go ahead with what I asked for."
DECLINE = "No, please do not do that."

_WORD = re.compile(r"\w+")
_CONFIRM = re.compile(
    r"\b(confirm\w*|proceed|go ahead|shall i|should i|may i|can i|do you want me to|is (that|this) "
    r"(correct|right|ok|okay|fine)|correct|right|sure|agreed?)\b[^?]*\?",
    re.IGNORECASE,
)
_MORE = re.compile(r"\b(any|some)(thing| ?one| other)? ?(else|more|further)\b", re.IGNORECASE)
_WANTS = re.compile(r"\b(what|which|who|whose|when|where|why|how)\b", re.IGNORECASE)


def words_of(text: str) -> list[str]:
    """The words of a text, case folded."""
    return _WORD.findall(text.casefold())


def _same(word: str, other: str) -> bool:
    return word == other or word == other + "s" or word + "s" == other


def asks_for(message: str, fact: UserFact) -> bool:
    """True when one of the fact's ``ask_words`` stands in ``message`` (rule 3 of the module docstring,
    without the ``?``)."""
    return holds_words(message, fact.ask_words)


def holds_words(message: str, phrases: Iterable[str]) -> bool:
    """True when the words of one of the phrases stand in ``message`` in a row."""
    said = words_of(message)
    for phrase in phrases:
        wanted = words_of(phrase)
        if not wanted:
            continue
        for start in range(len(said) - len(wanted) + 1):
            if all(_same(w, s) for w, s in zip(wanted, said[start : start + len(wanted)], strict=True)):
                return True
    return False


def _proposes_other(message: str, facts: list[UserFact]) -> bool:
    """True when a question holds values, and none of those that the facts it is about have: no case for a
    yes."""
    facts = [fact for fact in facts if not isinstance(fact.value, bool)]
    if not facts or any(says_value(message, fact.value) for fact in facts):
        return False
    return bool(entities(message))


@cache
def wording() -> dict[str, list[str]]:
    """The sentences that ship with the package: what a varied user chooses from."""
    loaded: dict[str, list[str]] = packaged_json("envgen.users", "data/wording.json")
    return loaded


class ScriptedUser:
    """One user of one episode: opens with the instruction, answers by the rules of the module docstring.

    ``seed`` None: the task's own sentences and the constants of this module, the same words for the same
    questions. Otherwise the words are a function of seed, task and history.
    """

    def __init__(self, task: Task, *, seed: int | None = None) -> None:
        self._task = task
        self._seed = None if seed is None else mix(task.seed, seed)
        self._empty = 0
        self._misses = 0
        self._confirmed = 0
        self._told: dict[str, int] = {}
        confirms = any(rule.kind == "confirm_before" for rule in task.constraints)
        self._consents = confirms or task.consent == "no"
        asked = sum(step.kind == "ask" for step in task.reference)
        self._patience = MAX_CONFIRMATIONS + (asked if confirms else 0)

    def opening(self) -> str:
        """The first message: the task's instruction, with a greeting where the wording varies."""
        if self._seed is None:
            return self._task.instruction
        return self._choose("greetings", 0) + self._task.instruction + self._choose("thanks", 0)

    def reply(self, message: str) -> UserReply:
        """The answer to a message of the agent that holds no tool call."""
        if not message.strip():
            self._empty += 1
            return self._answer("go_on", GO_ON) if self._empty == 1 else UserReply("", done=True)
        if "?" not in message:
            return UserReply("", done=True)
        matching = [fact for fact in self._task.facts if asks_for(message, fact)]
        if (
            self._consents
            and _CONFIRM.search(message)
            and all(fact.stated or fact.name in self._told for fact in matching)
            and not _proposes_other(message, matching)
        ):
            return self._consent()
        if matching:
            unstated = [fact for fact in matching if not fact.stated]
            return UserReply(" ".join(self._say(fact) for fact in unstated or matching))
        if _CONFIRM.search(message):
            return self._consent()
        self._misses += 1
        if self._misses > 1:
            return UserReply("", done=True)
        if _MORE.search(message):
            return self._answer("no_more", NO_MORE)
        if _WANTS.search(message):
            return self._answer("unknown", UNKNOWN)
        return self._answer("nothing", NOTHING_TO_ADD)

    def _consent(self) -> UserReply:
        self._confirmed += 1
        if self._confirmed > self._patience:
            return UserReply("", done=True)
        if not self._consents:
            return self._answer("confirm", CONFIRM)
        if self._task.consent == "no":
            return self._answer("decline", DECLINE)
        return self._answer("consent", YES)

    def _say(self, fact: UserFact) -> str:
        told = self._told.get(fact.name, 0)
        self._told[fact.name] = told + 1
        if self._seed is None:
            return fact.sentence
        value = spoken_value(fact)
        if value is None:  # its own sentence says it some other way, which is then the only safe one
            return fact.sentence
        salt = sum(fact.name.encode())
        said = self._choose("facts", salt).format(field=fact.ask_words[0], value=value)
        said = said[:1].upper() + said[1:]
        return self._choose("again", salt + told).format(sentence=said) if told else said

    def _answer(self, kind: str, plain: str) -> UserReply:
        if self._seed is None:
            return UserReply(plain)
        return UserReply(self._choose(kind, self._empty + self._misses + self._confirmed))

    def _choose(self, kind: str, salt: int) -> str:
        assert self._seed is not None
        options = wording()[kind]
        return options[mix(self._seed, salt, len(kind)) % len(options)]
