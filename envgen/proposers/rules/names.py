"""Tool names without paths (MCP, function lists): verb, noun phrase, and the entity the phrase means."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.proposers.rules.words import (
    AUTH,
    COUNT,
    CREATE,
    DELETE,
    EXTERNAL,
    FILLER,
    GET,
    LIST,
    MOVE,
    RUN,
    SEARCH,
    STATE_VERBS,
    TOGGLE,
    UPDATE,
    id_stem,
    singular,
    singular_phrase,
    split_words,
)
from envgen.types import ToolDoc, ToolSpec

_VERBS = (GET | LIST | SEARCH | CREATE | UPDATE | DELETE | TOGGLE | MOVE | COUNT | RUN | AUTH).union(
    STATE_VERBS, EXTERNAL, {"link", "unlink", "write"}
)
_LATE = AUTH | {"write", "get", "list", "search", "create", "update", "delete"}
"""Verbs that also stand at the end or after a name space: ``ticket_login``, ``issue_write``."""
_CUT = frozenset({"by", "for", "from", "in", "with", "via", "using", "across", "to", "as"})


@dataclass(frozen=True)
class NameTarget:
    """A tool name taken apart."""

    verb: str
    phrase: tuple[str, ...]
    """Noun phrase, last word singular, without fillers."""
    plural: bool
    """The phrase was in the plural, or ``all`` stood before it."""
    tail: tuple[str, ...] = ()
    """Words after a preposition: ``by name``."""


def take_apart(name: str) -> NameTarget:
    """Verb, noun phrase and tail of a tool name; the verb is empty when no word is a known one."""
    words = split_words(name)
    verb = ""
    if words and words[0] in _VERBS:
        verb, words = words[0], words[1:]
    elif len(words) > 1 and words[-1] in _LATE:
        verb, words = words[-1], words[:-1]
    elif len(words) > 1 and words[1] in _LATE:
        verb, words = words[1], [words[0], *words[2:]]
    cut = next((i for i, word in enumerate(words) if word in _CUT), len(words))
    tail = tuple(words[cut:])
    kept = [word for word in words[:cut] if word not in FILLER]
    everything = "all" in words[:cut]
    plural = bool(kept) and (singular(kept[-1]) != kept[-1] or everything)
    return NameTarget(verb, singular_phrase(kept), plural, tail)


def entities_of(doc: ToolDoc) -> list[tuple[str, ...]]:
    """Entities that a list of tools talks about: what has an id parameter, and what can be created or
    listed."""
    stems: dict[tuple[str, ...], int] = {}
    parts = {tool.name: take_apart(tool.said_name) for tool in doc.tools}
    phrases = [p.phrase for p in parts.values() if p.phrase]
    for tool in doc.tools:
        for param in tool.params:
            stem = id_stem(param.name)
            if stem is not None and any(_ends(phrase, stem) for phrase in phrases):
                stems.setdefault(stem, 0)
    for part in parts.values():
        if (
            part.verb in CREATE
            and part.phrase
            and "or" not in part.phrase
            and not any(_ends(part.phrase, stem) for stem in stems)
        ):
            stems.setdefault(part.phrase, 0)
    for tool in doc.tools:
        part = parts[tool.name]
        if not part.phrase or any(_ends(part.phrase, s) or part.phrase[: len(s)] == s for s in stems):
            continue
        if part.verb in LIST | GET | SEARCH and _shows_records(tool):
            stems.setdefault(part.phrase, 0)
    return list(stems)


def _shows_records(tool: ToolSpec) -> bool:
    """The result schema has an object with at least two members, alone or in a list."""
    output = tool.output
    if output is None:
        return False
    items = [output, output.items, *(p.items for p in output.properties if p.type == "array")]
    return any(item is not None and len(item.properties) >= 2 for item in items)


def _ends(phrase: tuple[str, ...], stem: tuple[str, ...]) -> bool:
    return len(phrase) >= len(stem) > 0 and phrase[-len(stem) :] == stem


def match_entity(
    phrase: tuple[str, ...], entities: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None:
    """``(entity, words before, words after)`` for the longest entity at the end of a phrase, else at its
    start."""
    at_end = [entity for entity in entities if _ends(phrase, entity)]
    if at_end:
        best = max(at_end, key=len)
        return best, phrase[: len(phrase) - len(best)], ()
    at_start = [entity for entity in entities if phrase[: len(entity)] == entity]
    if at_start:
        best = max(at_start, key=len)
        return best, (), phrase[len(best) :]
    return None


def names_tool(tool: ToolSpec) -> NameTarget:
    """`take_apart` of a tool's name."""
    return take_apart(tool.said_name)
