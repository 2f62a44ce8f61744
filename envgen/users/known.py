"""What a user may speak of: the words and names of its intent and facts, and small talk."""

from __future__ import annotations

import re
from functools import cache

from envgen.packaged import packaged_json
from envgen.types import Task
from envgen.users.scripted import words_of
from envgen.users.speech import Entity, entities, fold, leaves, says_value

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@cache
def small_talk() -> frozenset[str]:
    """Words that say nothing of their own: what any conversation is held with."""
    return frozenset(packaged_json("envgen.users", "data/talk.json"))


def stem(word: str) -> str:
    """A word without the ending of a plural or a past: enough to know it again."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word.removesuffix(ending).rstrip("e")
    return word.rstrip("e") if len(word) > 3 else word


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, by their full stops, question and exclamation marks."""
    return [part for part in _SENTENCE.split(text.strip()) if part]


class Known:
    """The instruction and the facts of one task, taken apart.

    ``instruction``: its entities; ``words``: its words; ``stems``: those of the facts too.
    """

    def __init__(self, task: Task) -> None:
        self.instruction = entities(task.instruction)
        said = [task.instruction, *(fact.sentence for fact in task.facts)]
        self._text = "  ".join(fold(text) for text in said)
        self._entities = {e.text for text in said for e in entities(text)}
        self._entities |= {fold(str(leaf)) for fact in task.facts for leaf in leaves(fact.value)}
        self._facts = task.facts
        self.words = frozenset(words_of(task.instruction))
        self.stems = {stem(word) for text in said for word in words_of(text)}

    def knows(self, entity: Entity) -> bool:
        """True when the entity stands in the intent or the facts, in any wording."""
        if entity.text in self._entities:
            return True
        if entity.kind == "number":
            return any(says_value(entity.text, leaf) for f in self._facts for leaf in leaves(f.value))
        return re.search(rf"(?<!\w){re.escape(entity.text)}(?!\w)", self._text) is not None
