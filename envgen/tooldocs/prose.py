"""What descriptions say beside the schema: enums in prose, docstring argument lists, the one line that
matters."""

from __future__ import annotations

import re

from envgen.types import FieldSpec

NO_MODEL = (
    "the tools are described in prose, which takes a language model to read and is not supported "
    "without one; give an OpenAPI, MCP or function-calling document"
)
"""Why prose is refused, and what to do."""
_TOKEN = r"[A-Za-z0-9][A-Za-z0-9_\-]{0,23}"
_LEAD = re.compile(
    r"(?:\b(?:one of|(?:(?:possible|valid|allowed|accepted|supported) (?:values|options)|options)(?: are)?"
    r"|enum:)"
    r"|\[enum\])(?: the following)?\s*:?\s*[\[({]?\s*(?P<list>[^\].();}]+)",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"""(?P<q>['"`])(?P<value>[^'"`\n]{1,40})(?P=q)""")
_CLOSED = re.compile(
    r"\b(?:(?:must|should|can|may|has to) be|one of|either)\b[^'\"`.]{0,24}$"
    r"|\b(?:values?|options?|enum|choices?)\s*(?:are|is)?\s*$|^\W*$|\($",
    re.IGNORECASE,
)
_BETWEEN = re.compile(  # a meaning, then a comma, a bar, or "or"
    r"^\s*(?:\([^()]*\)|(?:for|to|=|:|-|–|—)\s*[^'\"`,;|]+)?\s*"
    r"(?:[,;|/]\s*(?:or\b|and\b)?|or\b|and\b)\s*$",
    re.IGNORECASE,
)
_PAREN = re.compile(r"\((?P<list>[^()]+)\)\s*\.?\s*$")
_TWO = re.compile(
    rf"^\s*(?:either\s+)?['\"`]?(?P<a>{_TOKEN})['\"`]?\s+or\s+['\"`]?(?P<b>{_TOKEN})['\"`]?\s*\.?\s*$",
    re.IGNORECASE,
)
_OPEN_ENDED = re.compile(
    r"\b(?:e\.?g|i\.?e|etc|such as|for example|like|default|optional|format|max|min)\b|\.\.\.|…",
    re.IGNORECASE,
)
_STOP_WORDS = frozenset(
    {"and", "or", "the", "a", "an", "if", "of", "in", "for", "to", "is", "yes", "no", "none", "null"}
)
MAX_VALUES = 16


def enum_in_prose(description: str) -> tuple[str, ...]:
    """Closed list of values that ``description`` names, or empty.

    ``Task priority (low, medium, high)``, ``BUY or SELL``, ``One of: a, b``; never an open list (``e.g.``,
    ``etc.``). Conservative: every item is one word; in ``X for meaning`` items the values are capitals.
    """
    text = " ".join(description.split())
    two = _TWO.match(text)
    if two is not None:
        pair = (two["a"], two["b"])
        return pair if _literal(pair, text) else ()
    for pattern in (_LEAD, _PAREN):
        found = pattern.search(text)
        if found is not None and not _OPEN_ENDED.search(found["list"]):
            values = _values(found["list"])
            # "owner (username or organization)" says two kinds of value, not two values
            kinds = pattern is _PAREN and len(values) == 2 and not _literal(values, found["list"])
            kinds = kinds and "|" not in found["list"]
            if values and not kinds:
                return values
    return _quoted(text)


def _quoted(text: str) -> tuple[str, ...]:
    """Values in quotes that a text lists as all there are: ``must be 'a', 'b' or 'c'``, ``'l' for lines``."""
    found = list(_QUOTES.finditer(text))
    run = found[:1]
    for right in found[1:]:
        if not _BETWEEN.match(text[run[-1].end() : right.start()]):
            break
        run.append(right)
    if len(run) < 2:
        return ()
    start, end = text[: run[0].start()].rstrip(" [{:"), text[run[-1].end() :].lstrip(" ,")
    if not _CLOSED.search(start) or _OPEN_ENDED.search(start[-40:]) or re.match(r"etc|\.\.\.|…", end):
        return ()
    values = tuple(dict.fromkeys(match["value"] for match in run))
    return values if 2 <= len(values) <= MAX_VALUES and not _looks_like_format(values) else ()


def _literal(values: tuple[str, ...], text: str) -> bool:
    """True when the text shows its words to be literal values: capitals or quotes."""
    return all(word.isupper() for word in values) or any(quote in text for quote in "'\"`")


def _values(text: str) -> tuple[str, ...]:
    text = re.sub(r"\s+or\s+|\s*\|\s*", ", ", text)
    values: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        word = item.strip("'\"` ")
        meaning = re.match(rf"^({_TOKEN})\s+for\s+\S", item)
        if meaning is not None and meaning[1].isupper():
            word = meaning[1]
        if not re.fullmatch(_TOKEN, word) or word.lower() in _STOP_WORDS:
            return ()
        values.append(word)
    distinct = tuple(dict.fromkeys(values))
    # letters only: "(1, 10)" is a range, "(YYYY, MM)" a format
    if not 2 <= len(distinct) <= MAX_VALUES or len(distinct) != len(values):
        return ()
    return (
        distinct
        if all(any(c.isalpha() for c in value) for value in distinct) and not _looks_like_format(distinct)
        else ()
    )


def _looks_like_format(values: tuple[str, ...]) -> bool:
    return any(
        re.fullmatch(r"[YMDHhmsS\-:T]+", value) and len(value) > 1 and value.upper() != "SMS"
        for value in values
    )


def with_prose_enum(spec: FieldSpec) -> FieldSpec:
    """``spec`` with the closed list of values its description names, when the schema gives none."""
    if spec.enum or spec.type != "string" or spec.format not in ("", "string"):
        return spec
    values = enum_in_prose(spec.description)
    return spec.model_copy(update={"enum": values}) if values else spec


_SECTION = re.compile(
    r"^\s*(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?)\s*:\s*$", re.IGNORECASE
)
_ARG = re.compile(r"^\s*[-*]?\s*`?\*{0,2}(?P<name>[A-Za-z_][\w\-]*)`?\s*(?:\([^)]*\))?\s*:\s*(?P<text>.+)$")


def split_docstring(description: str) -> tuple[str, dict[str, str]]:
    """(first paragraph as one line, argument name -> its description) of a Python-docstring style
    description.

    A text without sections comes back whole, whitespace folded, with no arguments.
    """
    if "Tool description:" in description:  # BFCL repeats the API's description before every tool's own
        description = description.split("Tool description:", 1)[1]
    section = ""
    head: list[str] = []
    arguments: dict[str, str] = {}
    last = ""
    for line in description.splitlines():
        heading = _SECTION.match(line)
        if heading is not None:
            section, last = heading[1].lower(), ""
            continue
        if not section:
            head.append(line)
        elif section in {"args", "arguments", "parameters", "params"}:
            argument = _ARG.match(line)
            if argument is not None:
                last = argument["name"]
                arguments[last] = argument["text"].strip()
            elif last and line.strip():
                arguments[last] += " " + line.strip()
    return " ".join(" ".join(head).split()), arguments


def first_sentence(text: str, limit: int = 160) -> str:
    """First sentence of ``text``, cut at ``limit`` characters on a word."""
    folded = " ".join(text.split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", folded, maxsplit=1)[0]
    if len(sentence) <= limit:
        return sentence
    return sentence[:limit].rsplit(" ", 1)[0] + "…"
