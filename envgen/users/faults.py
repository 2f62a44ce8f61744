"""A user that makes one mistake on purpose, with ground truth: what the judge of users is measured on.

Wraps any `User`. The mistake comes at the first chance that its kind has (the opening or an answer, chosen by
the seed); ``injected`` says what was done, or stays None when the episode gave no chance: such an episode is
a clean one. Everything is a function of task, kind, seed and what the agent said.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from envgen.packaged import packaged_json
from envgen.runtime.context import mix
from envgen.types import Record, Task, UserFact
from envgen.users.port import FAULT_KINDS, FaultKind, NotesActions, User, UserError, UserReply
from envgen.users.scripted import asks_for
from envgen.users.speech import leaves, says_value


@dataclass(frozen=True)
class InjectedFault:
    """Ground truth of one mistake."""

    kind: FaultKind
    utterance: int
    """Which message of the user, from 0 (the opening); for an early stop the one that never came."""
    true: str = ""
    """What the user knew, where a value or a sentence was replaced."""
    said: str = ""
    """What it said instead, or in addition."""


Sentences = Mapping[str, Sequence[str]]
"""What mistakes are worded with: kind of sentence -> templates (data/faults.json)."""


@cache
def shipped_sentences() -> Sentences:
    """The sentences that ship with the package."""
    loaded: Sentences = packaged_json("envgen.users", "data/faults.json")
    return loaded


def read_sentences(path: Path) -> Sentences:
    """Sentences of one's own, in a JSON file like the shipped one. Raises UserError when it is not."""
    try:
        loaded = TypeAdapter(dict[str, list[str]]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{path}: got {error}, expected an object of lists of sentences") from error
    missing = sorted(name for name in shipped_sentences() if not loaded.get(name))
    if missing:
        raise UserError(f"{path}: no sentences for {', '.join(missing)}; give at least one of each")
    return loaded


class FaultInjectedUser:
    """``inner`` with one mistake of ``kind``, worded with ``sentences`` (the shipped ones when left out).

    Raises ValueError for an unknown kind.
    """

    def __init__(
        self,
        inner: User,
        task: Task,
        kind: FaultKind,
        *,
        seed: int = 0,
        sentences: Sentences | None = None,
    ) -> None:
        if kind not in FAULT_KINDS:
            raise ValueError(f"got fault kind {kind!r}, expected one of {', '.join(FAULT_KINDS)}")
        self.kind: FaultKind = kind
        self.injected: InjectedFault | None = None
        self._sentences = shipped_sentences() if sentences is None else sentences
        self._inner = inner
        self._task = task
        self._rng = random.Random(mix(task.seed, seed, FAULT_KINDS.index(kind)))
        self._said = 0
        self._opening = ""
        self._leaving = False
        self._pending: tuple[UserFact, Any] | None = None
        hidden = any(not fact.stated for fact in task.facts)
        spoken = kind in ("wrong_value", "missing_fact", "contradiction", "invented_demand")
        # Where nothing has to be asked for, the opening is the best place to go wrong.
        self._at_once = spoken and self._rng.random() < (0.4 if hidden else 0.7)

    def opening(self) -> str:
        """See `User.opening`."""
        text = self._inner.opening()
        self._opening = text
        if self._at_once:
            text = self._spoil_opening(text)
        self._said += 1
        return text

    def reply(self, message: str) -> UserReply:
        """See `User.reply`."""
        if self._leaving:
            return UserReply("", done=True)
        reply = self._inner.reply(message)
        if self._pending is not None:
            reply = self._contradict_now(reply)
        elif self.injected is None and not reply.done:
            reply = self._spoil_reply(message, reply)
        self._said += 1
        return reply

    def note_action(self, asked: str, said: str) -> None:
        """See `NotesActions.note_action`."""
        self._said += 1
        if isinstance(self._inner, NotesActions):
            self._inner.note_action(asked, said)

    # --------------------------------------------------------------------------------------- the opening
    def _spoil_opening(self, text: str) -> str:
        if self.kind == "invented_demand":
            demand = self._demand()
            self._note("", demand)
            return f"{text} {demand}"
        if self.kind == "contradiction":
            stated = [f for f in self._task.facts if f.stated and says_value(text, f.value)]
            # With two facts of one name a second value contradicts neither of them clearly.
            stated = [f for f in stated if sum(f.ask_words == g.ask_words for g in self._task.facts) == 1]
            if not stated:
                return text
            fact = self._rng.choice(stated)
            sentence = self._contradiction(fact, self._other(fact))
            self._note(fact.sentence, sentence)
            return f"{text} {sentence}"
        options = [pair for pair in self._replaceable(text) if pair[0] in text]
        if not options:
            return text
        true, other = self._rng.choice(options)
        said = other if self.kind == "wrong_value" else self._choose("vague")
        self._note(true, said)
        return text.replace(true, said)

    def _replaceable(self, text: str) -> Iterator[tuple[str, str]]:
        """(what the opening says, what could be said in its place): values of facts, and names of records."""
        values = {str(leaf) for fact in self._task.facts for leaf in leaves(fact.value)}
        for fact in self._task.facts:
            if not fact.stated:
                continue
            for leaf, other in zip(leaves(fact.value), leaves(self._other(fact)), strict=True):
                if isinstance(leaf, bool) or leaf == other:
                    continue
                quoted = f'"{leaf}"'
                for form, made in ((quoted, f'"{other}"'), (str(leaf), str(other))):
                    if len(re.findall(rf"(?<![\w\"]){re.escape(form)}(?![\w\"-])", text)) == 1:
                        yield form, made
                        break
        for name in re.findall(r'"([^"]+)"', text):
            if name not in values and text.count(f'"{name}"') == 1:
                others = self._like(name)
                if others:
                    yield f'"{name}"', f'"{self._rng.choice(others)}"'

    # ----------------------------------------------------------------------------------------- an answer
    def _spoil_reply(self, message: str, reply: UserReply) -> UserReply:
        if self.kind == "early_stop":
            text = self._choose("leave")
            self._note(reply.text, text)
            self._leaving = True
            return UserReply(text, done=not text)
        if self.kind in ("restart", "silence"):
            text = self._choose("again") + self._opening if self.kind == "restart" else self._choose("silent")
            self._note(reply.text, text)
            return UserReply(text)
        if self.kind == "invented_demand":
            demand = self._demand()
            self._note("", demand)
            return UserReply(f"{reply.text} {demand}")
        told = [f for f in self._task.facts if asks_for(message, f) and says_value(reply.text, f.value)]
        if not told:
            return reply
        fact = self._rng.choice(told)
        other = self._other(fact)
        if self.kind == "contradiction":
            if self._rng.random() < 0.5:
                self._pending = (fact, other)
                return reply
            sentence = self._contradiction(fact, other)
            self._note(fact.sentence, sentence)
            return UserReply(f"{reply.text} {sentence}")
        return self._spoil_fact(reply, told, fact, other)

    def _spoil_fact(self, reply: UserReply, told: list[UserFact], fact: UserFact, other: Any) -> UserReply:
        if self.kind == "missing_fact":
            # Leaving out what stands in the opening is no fault; denying it is.
            kept = [] if fact.stated else [f.sentence for f in told if f is not fact and not f.stated]
            text = " ".join(kept) or self._choose("refuse")
            self._note(reply.text, text)
            return UserReply(text)
        text = reply.text
        for leaf, made in zip(leaves(fact.value), leaves(other), strict=True):
            if leaf != made:
                form, put = (str(v).lower() if isinstance(v, bool) else str(v) for v in (leaf, made))
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", lambda _, put=put: put, text, count=1)
        if text == reply.text:
            return reply
        self._note(reply.text, text)
        return UserReply(text)

    def _contradict_now(self, reply: UserReply) -> UserReply:
        """The delayed second value: in the next answer, or in the place of a goodbye."""
        assert self._pending is not None
        fact, other = self._pending
        self._pending = None
        sentence = self._contradiction(fact, other)
        self._note(fact.sentence, sentence)
        return UserReply(sentence if reply.done else f"{reply.text} {sentence}")

    # -------------------------------------------------------------------------------------------- pieces
    def _note(self, true: str, said: str) -> None:
        self.injected = InjectedFault(self.kind, self._said, true, said)

    def _choose(self, kind: str) -> str:
        return self._rng.choice(self._sentences[kind])

    def _contradiction(self, fact: UserFact, other: Any) -> str:
        said = " and ".join(f'"{v}"' if isinstance(v, str) else str(v).lower() for v in leaves(other))
        return self._choose("contradict").format(field=fact.ask_words[0], other=said)

    def _demand(self) -> str:
        """A demand that the intent does not hold, half of the time about a record that exists."""
        tables = {n: list(rows.values()) for n, rows in self._task.initial_state.items() if rows}
        tables.pop("session", None)
        name = self._rng.choice(list(tables)) if tables else "records"
        noun, rows = name.replace("_", " ").removesuffix("s"), tables.get(name, [])
        said = self._task.instruction
        labels = [v for v in _texts(rows) if v not in said]
        if labels and self._rng.random() < 0.5:
            return self._choose("demand_named").format(noun=noun, label=self._rng.choice(labels))
        return self._choose("demand_plain").format(noun=noun)

    def _like(self, name: str) -> list[str]:
        """Other texts at the place(s) of the state that hold ``name``: what it could be mistaken for."""
        found: list[str] = []
        for rows in self._task.initial_state.values():
            held: dict[str, list[str]] = {}
            for row in rows.values():
                for path, leaf in _paths(row):
                    held.setdefault(path, []).append(leaf)
            found += [leaf for leaves_ in held.values() if name in leaves_ for leaf in leaves_]
        return [value for value in dict.fromkeys(found) if not self._known(value)]

    def _known(self, value: Any) -> bool:
        return says_value(self._task.instruction, value) or any(
            says_value(fact.sentence, value) for fact in self._task.facts
        )

    def _other(self, fact: UserFact) -> Any:
        """A plausible wrong value: same shape, one scalar changed."""
        spots = len(leaves(fact.value))
        return self._change(fact.value, [self._rng.randrange(spots)] if spots else [], fact)

    def _change(self, value: Any, at: list[int], fact: UserFact) -> Any:
        """``value`` with its scalar number ``at[0]`` replaced; ``at`` counts down on the way."""
        if isinstance(value, dict):
            return {k: self._change(v, at, fact) for k, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self._change(v, at, fact) for v in cast("list[Any]", value)]
        if value is None or not at:
            return value
        at[0] -= 1
        return self._other_scalar(value, fact) if at[0] == -1 else value

    def _other_scalar(self, value: Any, fact: UserFact) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            steps = [n for n in (1, -1, 2, 10, -10, 100) if not self._known(value + n)]
            return value + (self._rng.choice(steps) if steps else 1000)
        text = str(value)
        if re.match(r"\d{4}-\d{2}-\d{2}", text):
            try:
                day = date.fromisoformat(text[:10])
            except ValueError:
                return text + "0"
            days = [
                n
                for n in (1, -1, 7, 30, 365)
                if not self._known((day + timedelta(n)).isoformat() + text[10:])
            ]
            return (day + timedelta(self._rng.choice(days or [400]))).isoformat() + text[10:]
        collection, field = [*fact.name.split("."), "", ""][:2]
        rows = list(self._task.initial_state.get(collection, {}).values())
        same = [str(row[field]) for row in rows if isinstance(row.get(field), str)]
        options = [v for v in dict.fromkeys(same) if v != text and v.strip() and not self._known(v)]
        options = options or self._like(text)
        return self._rng.choice(options) if options else text[:-1] + ("y" if text.endswith("x") else "x")


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The texts of a JSON value with where they stand; places in lists are one place."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _paths(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _paths(inner, path)


def _texts(rows: list[Record]) -> list[str]:
    """Names that records go by: short texts with a capital letter."""
    return [
        value
        for row in rows
        for value in row.values()
        if isinstance(value, str) and 3 < len(value) < 40 and value[:1].isupper() and " " in value
    ]
