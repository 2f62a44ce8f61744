"""Values in speech: how a value may be said, what a text says, and whether the two agree.

A user may say 2024-06-01 as "June 1st, 2024" and 12 as "twelve": both are the fact. Used by the model user's
entity check and by the judge's rules; the scripted user needs `spoken_value` only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, cast

from envgen.types import UserFact

EntityKind = Literal["quoted", "date", "time", "number", "address", "code", "name"]

# fmt: off
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
            "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
            "twenty")
# fmt: on
_MONTH = "(" + "|".join(f"{m[:3]}(?:{m[3:]})?\\.?" for m in _MONTHS) + ")"
_PATTERNS: tuple[tuple[EntityKind, re.Pattern[str]], ...] = (
    ("quoted", re.compile(r"[\"“”«»]([^\"“”«»]+)[\"“”«»]")),
    ("address", re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]*\w|\bhttps?://[^\s,;]*[\w/]")),
    ("date", re.compile(r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?Z?)?")),
    ("date", re.compile(rf"\b{_MONTH}\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+(\d{{4}})\b", re.IGNORECASE)),
    (
        "date",
        re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH},?\s+(\d{{4}})\b", re.IGNORECASE),
    ),
    ("time", re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b")),
    ("code", re.compile(r"(?<![\w#])#\w+|\b[A-Za-z]\w*(?:[._/-]\w+)*\d\w*\b|\b\w+(?:[._/]\w+)+\b(?<!\d)")),
    ("code", re.compile(r"\b[A-Z]?[a-z]+(?:[A-Z][a-z0-9]+)+\b")),
    ("number", re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")),
    ("name", re.compile(r"(?<=[a-z,:;] )[A-Z][a-z]+(?: (?:[A-Z][a-z]+|\d+))+")),
)
"""Tried in this order; a stretch of text belongs to the first that takes it."""


@dataclass(frozen=True)
class Entity:
    """Something a text names: a quoted text, a date, a number, a code, a name of several words."""

    kind: EntityKind
    text: str
    """As one writes it in a table: dates ISO, numbers plain, everything else case folded."""
    start: int


def entities(text: str) -> list[Entity]:
    """The entities of a text, in order. Words that say numbers are not among them."""
    found: list[Entity] = []
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            found.append(Entity(kind, _plain(kind, match), match.start()))
        text = pattern.sub(lambda m: "\x00" * len(m.group()), text)
    return sorted(found, key=lambda e: e.start)


def _plain(kind: EntityKind, match: re.Match[str]) -> str:
    if kind == "quoted":
        return fold(match.group(1))
    if kind == "number":
        return _number(match.group())
    if kind == "date" and match.re.groups:
        month, day = sorted((match.group(1), match.group(2)), key=str.isdigit)
        try:
            return date(int(match.group(3)), _month(month), int(day)).isoformat()
        except ValueError:  # the 31st of June is no date, but it was said
            return fold(match.group())
    return fold(match.group())


def _month(word: str) -> int:
    return next(i for i, name in enumerate(_MONTHS, 1) if name.startswith(word[:3].lower()))


def _number(text: str) -> str:
    value = float(text.replace(",", ""))
    return str(int(value)) if value.is_integer() else repr(value)


def fold(text: str) -> str:
    """Case folded, white space single, no full stop at the end: what texts are compared by."""
    return " ".join(text.casefold().split()).rstrip(".,;!")


def leaves(value: Any) -> list[Any]:
    """The scalars of a JSON value, None left out."""
    if isinstance(value, dict):
        return [leaf for inner in cast("dict[str, Any]", value).values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in cast("list[Any]", value) for leaf in leaves(inner)]
    return [] if value is None else [value]


def says_value(text: str, value: Any) -> bool:
    """True when every scalar of ``value`` is said in ``text``. Booleans need a word for them anywhere."""
    return all(_says(text, leaf) for leaf in leaves(value))


_YES = frozenset(["true", "yes", "on", "enabled", "active", "do", "please", "allowed"])
_NO = frozenset(["false", "no", "not", "off", "disabled", "inactive", "never", "without", "don't"])


def _says(text: str, leaf: Any) -> bool:
    words = re.findall(r"[\w']+", text.casefold())
    if isinstance(leaf, bool):
        return bool((_YES if leaf else _NO) & set(words))
    if isinstance(leaf, int | float):
        wanted = _number(str(leaf))
        if any(e.kind == "number" and e.text == wanted for e in entities(text)):
            return True
        spelled = int(leaf) if float(leaf).is_integer() and 0 <= leaf < len(_NUMBERS) else -1
        return (spelled >= 0 and _NUMBERS[spelled] in words) or f'"{wanted}"' in text
    wanted = fold(str(leaf))
    if not wanted or re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", " ".join(text.casefold().split())):
        return True
    return any(e.text == wanted for e in entities(text))


def spoken_value(fact: UserFact) -> str | None:
    """The stretch of the fact's own sentence that says its value, or None when there is no telling."""
    scalars = [str(v).lower() if isinstance(v, bool) else str(v) for v in leaves(fact.value)]
    if not scalars or not fact.ask_words:
        return None
    spans: list[tuple[int, int]] = []
    for scalar in scalars:
        after = spans[-1][1] if spans else 0
        plain = re.escape(scalar)
        # Quotes tell a short text from a part of the words around it.
        found = re.compile(f'"{plain}"').search(fact.sentence, after) or re.compile(
            rf"(?<!\w){plain}(?!\w)"
        ).search(fact.sentence, after)
        if found is None:
            return None
        spans.append(found.span())
    # Objects name their members before the first value; those words belong to it too.
    return None if isinstance(fact.value, dict) else fact.sentence[spans[0][0] : spans[-1][1]]
