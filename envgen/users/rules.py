"""The rules of the judge: what a user said against what it knows. No model, exact reasons.

Every message of the user is read against the task's facts and instruction; what is found is a `UserVerdict`
with the kind, the words and the message. The rules look at what was said, never at who says it or how the
transcript was made:

- opening: every value and name of the instruction is said, nothing else is, no demand is added;
- an answer holds the facts that were asked for, or agrees to a question that holds them;
- no answer names a thing that neither the intent, the facts, the agent nor a tool named before;
- a sentence that speaks of a fact's field gives that fact's value;
- no answer says nothing, starts over, takes the request back, adds a demand, or speaks of anything that is
  neither in the intent, the facts, the question nor small talk (data/talk.json);
- a conversation that the user ended has no question left that the user could have answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envgen.types import Message, Task, UserFact
from envgen.users.actions import requested
from envgen.users.known import Known, sentences_of, small_talk, stem
from envgen.users.port import NO_ERROR, FaultKind, UserVerdict
from envgen.users.scripted import asks_for, words_of
from envgen.users.speech import Entity, entities, fold, leaves, says_value

_DEMAND = re.compile(
    r"(?:^|[.!?,:;] |\b(?:please|also|too|and|then|you to|(?:want|like|need) to|you|besides|moreover)[,:]? )"
    r"(?:add|book|buy|cancel|change|clear|close|create|delete|discard|drop|erase|get rid of|insert|mark|move|"
    r"open|order|place|publish|register|remove|rename|reserve|reset|schedule|send|set|start|update|write)\b",
    re.IGNORECASE,
)
_WISH = re.compile(r"\b(?:i (?:also )?(?:want|need|would like)|i'd like)\b", re.IGNORECASE)
_CORRECTION = re.compile(
    r"\b(?:actually|instead|changed my mind|scratch that|on second thought|rather|i meant|correction)\b",
    re.IGNORECASE,
)
_LEAVING = re.compile(
    r"\b(?:never ?mind|forget (?:it|about it)|have to go|do it myself|(?:do not|don't) need (?:this|it|that)|"
    r"cancel my request|bye|stop here|leave it)\b",
    re.IGNORECASE,
)
_IGNORANCE = re.compile(
    r"\b(?:(?:do not|don't|wouldn't|would not) know|no idea|not sure|cannot (?:tell|say)|can't (?:tell|say)|"
    r"have to look|you (?:choose|decide)|up to you)\b",
    re.IGNORECASE,
)
_AGREES = re.compile(
    r"^\W*(?:yes|yeah|yep|sure|right|correct|exactly|ok(?:ay)?|that is right|that's right)\b", re.I
)
_ASKS_AGAIN = re.compile(
    r"\b(?:repeat|again|say that|what (?:do|would|can|did) you|how (?:can|may) i help|restate)\b",
    re.IGNORECASE,
)
_FEW_WORDS = 6
"""Openings of fewer words than this are a restart only when said again word for word."""
_OVERLAP = 0.8
"""Share of the opening's words in a later message above which it starts over."""


@dataclass(frozen=True)
class _Turn:
    """One message of the user after the opening, with what came before it."""

    index: int
    text: str
    asked: str
    """What the agent said, right before."""


def judge_by_rules(task: Task, transcript: Sequence[Message]) -> UserVerdict:
    """The first fault found, in the order of the conversation; `NO_ERROR` when there is none."""
    return _Reading(task, transcript).verdict()


class _Reading:
    def __init__(self, task: Task, transcript: Sequence[Message]) -> None:
        self._task = task
        self._transcript = transcript
        self._known = Known(task)
        self._told: set[str] = {fact.name for fact in task.facts if fact.stated}

    def verdict(self) -> UserVerdict:
        opening = self._transcript[0] if self._transcript else None
        if opening is None or opening.role != "user":
            return NO_ERROR  # nobody has spoken, so nobody has erred
        verdict = self._opening(opening.content)
        if verdict is not None:
            return verdict
        for turn in self._turns():
            verdict = self._later(turn)
            if verdict is not None:
                return verdict
        return self._ending() or NO_ERROR

    def _turns(self) -> list[_Turn]:
        found: list[_Turn] = []
        actions = self._task.user_actions
        for index, message in enumerate(self._transcript):
            if index and actions and requested(actions, self._transcript[index - 1].content, ()) is not None:
                continue  # the rule of dual control spoke, not the user
            if index and message.role == "user":
                found.append(_Turn(index, message.content, self._transcript[index - 1].content))
        return found

    # --------------------------------------------------------------------------------------- the opening
    def _opening(self, text: str) -> UserVerdict | None:
        missing = self._missing_in_opening(text)
        strange = [e for e in entities(text) if not self._known.knows(e)]
        if missing and strange:
            return _fault("wrong_value", 0, f"the opening says {strange[0].text!r} and not {missing!r}")
        if missing:
            return _fault("missing_fact", 0, f"the opening does not say {missing!r}")
        for sentence in sentences_of(text):
            verdict = self._assertion(sentence, 0) or self._demand(sentence, 0)
            if verdict is not None:
                return verdict
        addition = self._addition(text)
        if addition is not None:
            return addition
        if strange:
            return _fault(
                "invented_demand", 0, f"the opening says {strange[0].text!r}, unknown to the intent"
            )
        return None

    def _missing_in_opening(self, text: str) -> str:
        """What the instruction says and the opening does not."""
        said = {entity.text for entity in entities(text)}
        instruction = fold(self._task.instruction)
        for entity in self._known.instruction:
            # A name can be a common word too ("event", beside a special event): it must be said as often.
            wanted = max(1, _times(instruction, entity.text))
            if entity.text not in said and _times(fold(text), entity.text) < wanted:
                return entity.text
        for fact in self._task.facts:
            for leaf in leaves(fact.value) if fact.stated else []:
                if (
                    not isinstance(leaf, bool)
                    and says_value(self._task.instruction, leaf)
                    and not says_value(text, leaf)
                ):
                    return str(leaf)
        return self._missing_flag(text)

    def _missing_flag(self, text: str) -> str:
        """A yes or no of the instruction that the opening turns round: ``enabled false``."""
        folded = fold(text)
        for fact in self._task.facts:
            if fact.stated and isinstance(fact.value, bool):
                for word in fact.ask_words:
                    said = f"{word} {str(fact.value).lower()}"
                    if said in fold(self._task.instruction) and said not in folded:
                        return said
        return ""

    # ------------------------------------------------------------------------------------- later messages
    def _later(self, turn: _Turn) -> UserVerdict | None:
        if not re.search(r"\w{2}", turn.text) or fold(turn.text) in ("hm", "hmm", "mm", "uh", "um"):
            return _fault("silence", turn.index, f"the user says {turn.text!r}")
        if self._restarts(turn):
            return _fault("restart", turn.index, "the user states the request again, unasked")
        sentences = sentences_of(turn.text)
        asked = self._asked(turn.asked)
        strange = [
            e for e in entities(turn.text) if not self._known.knows(e) and e.text not in fold(turn.asked)
        ]
        leaving = _LEAVING.search(turn.text)
        if leaving is not None:
            return _fault("early_stop", turn.index, f"the user takes the request back: {leaving.group()!r}")
        verdict = self._answer(turn, asked, strange)
        if verdict is not None:
            return verdict
        self._told |= {fact.name for fact in self._task.facts if says_value(turn.text, fact.value)}
        for sentence in sentences:
            verdict = (
                self._assertion(sentence, turn.index)
                or self._demand(sentence, turn.index)
                or (None if strange else self._aside(sentence, turn, asked))
            )
            if verdict is not None:
                return verdict
        if strange:
            kind: FaultKind = "contradiction" if _CORRECTION.search(turn.text) else "wrong_value"
            return _fault(kind, turn.index, f"the user says {strange[0].text!r}, which it does not know")
        return None

    def _asked(self, message: str) -> list[UserFact]:
        """The facts that a question is about: those to be asked for before those told already."""
        if "?" not in message:
            return []
        matching = [fact for fact in self._task.facts if asks_for(message, fact)]
        return [fact for fact in matching if not fact.stated] or matching

    def _answer(self, turn: _Turn, asked: list[UserFact], strange: list[Entity]) -> UserVerdict | None:
        """What a question asked for must be in its answer."""
        if not asked:
            return None
        lacking = [
            fact for fact in asked if not says_value(turn.text, fact.value) or _bool_turned(turn.text, fact)
        ]
        if _AGREES.search(turn.text) and not strange:
            named = {w for f in asked if says_value(turn.asked, f.value) for w in f.ask_words}
            # Of two facts with one name, the question need hold one.
            wrong = [f for f in lacking if _offers(turn.asked, f) and not named.intersection(f.ask_words)]
            if wrong:
                return _fault("wrong_value", turn.index, f"the user agrees, but {_knows(wrong[0])}")
            lacking = [fact for fact in lacking if not says_value(turn.asked, fact.value)]
        ignorant = _IGNORANCE.search(turn.text) is not None
        hidden = [fact for fact in lacking if fact.name not in self._told]
        # What was told before need not be said again, but it may not be denied or told otherwise.
        denied = ignorant or bool(strange) or any(_bool_turned(turn.text, fact) for fact in lacking)
        if not hidden and not (lacking and denied and len(lacking) == len(asked)):
            return None
        fact = (hidden or lacking)[0]
        if strange or _bool_turned(turn.text, fact):
            said = strange[0].text if strange else turn.text
            return _fault(
                "wrong_value", turn.index, f"asked for the {_name(fact)}: says {said!r}, but {_knows(fact)}"
            )
        return _fault(
            "missing_fact", turn.index, f"asked for the {_name(fact)}: does not say it, but {_knows(fact)}"
        )

    def _restarts(self, turn: _Turn) -> bool:
        opening = words_of(self._transcript[0].content)
        if _ASKS_AGAIN.search(turn.asked) or not opening:
            return False
        said = words_of(turn.text)
        if len(opening) < _FEW_WORDS:
            return " ".join(opening) in " ".join(said)
        return sum(word in set(said) for word in opening) >= _OVERLAP * len(opening)

    # ------------------------------------------------------------------------------------------ sentences
    def _assertion(self, sentence: str, index: int) -> UserVerdict | None:
        """A sentence that gives a fact's field another value."""
        named = [fact for fact in self._task.facts if asks_for(sentence, fact)]
        if not named or any(
            says_value(sentence, fact.value) for fact in named if not isinstance(fact.value, bool)
        ):
            return None
        corrects = _CORRECTION.search(sentence) is not None
        for fact in named:
            if isinstance(fact.value, bool):
                same = [f for f in named if f.ask_words == fact.ask_words]
                if all(_bool_turned(sentence, f) for f in same) and not self._quotes(sentence):
                    return _fault("contradiction", index, f"{sentence!r}, but {_knows(fact)}")
            elif corrects or (entities(sentence) and not self._quotes(sentence)):
                if index == 0 and not corrects and self._covered(sentence):
                    continue  # the instruction in other words: its names are checked one by one
                kind: FaultKind = "contradiction" if corrects or fact.name in self._told else "wrong_value"
                return _fault(kind, index, f"{sentence!r}, but {_knows(fact)}")
        return None

    def _quotes(self, sentence: str) -> bool:
        """True when the sentence stands in the instruction as it is."""
        return fold(sentence) in fold(self._task.instruction)

    def _demand(self, sentence: str, index: int) -> UserVerdict | None:
        """A sentence that wants something done which the instruction does not."""
        if not (_DEMAND.search(sentence) or _WISH.search(sentence)) or self._covered(sentence):
            return None
        if any(says_value(sentence, fact.value) and asks_for(sentence, fact) for fact in self._task.facts):
            return None
        if index == 0:
            # An opening may be the instruction in other words: the names in it, or one demand for another,
            # tell such a sentence from an addition.
            if any(self._known.knows(entity) for entity in entities(sentence)):
                return None
            if _demands(self._transcript[0].content) <= _demands(self._task.instruction):
                return None
        return _fault("invented_demand", index, f"{sentence!r} is no part of the intent")

    def _covered(self, sentence: str) -> bool:
        """True when the sentence has no word of weight that the instruction does not have."""
        return all(word in self._known.words for word in words_of(sentence) if word not in small_talk())

    def _new_words(self, sentence: str, asked: str = "") -> list[str]:
        """Words of weight that come from nowhere: not from intent, facts, question or small talk."""
        around = {stem(word) for word in words_of(asked)} | self._known.stems
        return [w for w in words_of(sentence) if stem(w) not in around and w not in small_talk()]

    def _names_known(self, sentence: str) -> bool:
        return any(self._known.knows(entity) for entity in entities(sentence)) or any(
            says_value(sentence, fact.value) for fact in self._task.facts if not isinstance(fact.value, bool)
        )

    def _addition(self, text: str) -> UserVerdict | None:
        """A sentence more than the instruction has, about something else."""
        said = [s for s in sentences_of(text) if any(w not in small_talk() for w in words_of(s))]
        if len(said) <= len(sentences_of(self._task.instruction)):
            return None
        for sentence in said:
            if not self._quotes(sentence) and not self._names_known(sentence) and self._new_words(sentence):
                return _fault("invented_demand", 0, f"{sentence!r} is no part of the intent")
        return None

    def _aside(self, sentence: str, turn: _Turn, asked: list[UserFact]) -> UserVerdict | None:
        """A sentence about something that neither intent, facts nor question hold: users speak of their facts
        only."""
        new = [] if self._names_known(sentence) else self._new_words(sentence, turn.asked)
        if not new:
            return None
        lacking = [fact for fact in asked if not says_value(turn.text, fact.value)]
        if lacking and len(lacking) == len(asked):
            reason = f"asked for the {_name(lacking[0])}: says {sentence!r}, but {_knows(lacking[0])}"
            return _fault("missing_fact", turn.index, reason)
        return _fault("invented_demand", turn.index, f"{sentence!r} speaks of {new[0]!r}, unknown to it")

    # ---------------------------------------------------------------------------------------- the ending
    def _ending(self) -> UserVerdict | None:
        """The user left: with a question open that it could answer, or with the first of the others."""
        last = self._transcript[-1]
        if last.role != "assistant" or last.tool_calls or "?" not in last.content:
            return None
        at = len(self._transcript) - 1
        asked = self._asked(last.content)
        if asked:
            return _fault(
                "early_stop",
                at,
                f"the user leaves when asked for the {_name(asked[0])}, but {_knows(asked[0])}",
            )
        before = [
            t for t in self._turns() if not t.asked.strip() or ("?" in t.asked and not self._asked(t.asked))
        ]
        if not before:
            return _fault("early_stop", at, "the user leaves when it is asked for the first time")
        return None


def _times(text: str, part: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(part)}(?!\w)", text))


def _demands(text: str) -> int:
    return len(_DEMAND.findall(text)) + len(_WISH.findall(text))


def _offers(question: str, fact: UserFact) -> bool:
    """True when a question proposes some value of the fact's kind."""
    return bool(entities(question)) and not isinstance(fact.value, bool)


def _bool_turned(text: str, fact: UserFact) -> bool:
    """True when the text says the opposite of a yes-or-no fact and not the fact itself."""
    if not isinstance(fact.value, bool):
        return False
    words = set(words_of(text))
    flag, other = ("true", "false") if fact.value else ("false", "true")
    return other in words and flag not in words


def _name(fact: UserFact) -> str:
    return fact.ask_words[0] if fact.ask_words else fact.name


def _knows(fact: UserFact) -> str:
    return f"it knows: {fact.sentence!r}"


def _fault(kind: FaultKind, turn: int, reason: str) -> UserVerdict:
    return UserVerdict(True, kind, reason, turn, "rules")
