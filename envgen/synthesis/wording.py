"""English by rule: values, plurals, articles, and the sentence templates that ship as data."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from envgen.packaged import packaged_json
from envgen.synthesis.catalog import field_words


@cache
def phrases() -> dict[str, list[str]]:
    """The templates that ship with the package."""
    loaded: dict[str, list[str]] = packaged_json("envgen.synthesis", "data/phrases.json")
    return loaded


def say(value: Any) -> str:
    """A value as it stands in the instruction. Names are quoted by the caller."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " and ".join(say(v) for v in cast("list[Any]", value))
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return " and ".join(f"{' '.join(field_words(name))} {say(inner)}" for name, inner in members.items())
    return str(value)


def quote(value: Any) -> str:
    """A text value in double quotes, anything else plain; dates stay plain."""
    if isinstance(value, str) and not (len(value) >= 10 and value[:4].isdigit() and value[4:5] == "-"):
        return f'"{value}"'
    if isinstance(value, list):
        return " and ".join(quote(v) for v in cast("list[Any]", value))
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return " and ".join(
            f"{' '.join(field_words(name))} {quote(inner)}" for name, inner in members.items()
        )
    return say(value)


def plural(noun: str) -> str:
    """English plural of a noun phrase."""
    if noun.endswith("s") and not noun.endswith(("ss", "us", "is")):
        return noun  # already one: opening hours
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def article(noun: str) -> str:
    """``a`` or ``an`` with a blank behind it; nothing before a plural."""
    if noun.endswith("s") and not noun.endswith(("ss", "us", "is")):
        return ""
    return "an " if noun[:1].lower() in "aeio" else "a "


_OWNED = {"the ": "my ", "all ": "all my ", "whichever of the ": "whichever of my "}


def owned(said: str) -> str:
    """``the ticket`` as ``my ticket``: the tools show the user's own records only."""
    for start, mine in _OWNED.items():
        if said.startswith(start):
            return mine + said[len(start) :]
    return said


def is_counted(words: str) -> bool:
    """True for the plural of things: locks, seats."""
    return words.endswith("s") and not words.endswith(("ss", "us", "is"))


def happened_verb(words: str) -> str:
    """``created`` of ``created at`` and of ``date created``, else empty."""
    verb, _, rest = words.partition(" ")
    if rest in ("at", "on", "time", "date") and verb.endswith("ed"):
        return verb
    return rest if verb in ("date", "time") and rest.endswith("ed") and " " not in rest else ""


def listing(items: list[str]) -> str:
    """``a, b and c``."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
