"""One parameter described in words: ``name (string, optional): text``, ``Required. string. Text.`` and
kin."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from envgen.tooldocs.type_words import TypeWord, read_type

NAME = r"[A-Za-z_$][A-Za-z0-9_$\-]*(?:\.[A-Za-z0-9_]+)*"
_HEAD = re.compile(
    rf"^(?P<open>[`*\"']*)(?P<name>{NAME})(?P<array>\[\])?(?P<mark>[?*!])?(?P<close>[`*\"']*)(?P<rest>.*)$",
    re.DOTALL,
)
_DEFAULT = re.compile(
    r"\(?\b(?:defaults?(?:\s+(?:is|to|value|values))?)\s*[:=]?\s*(?P<value>`[^`]+`|\"[^\"]*\"|'[^']*'|[^\s,;)]+)\)?",
    re.IGNORECASE,
)
_REQUIRED = re.compile(r"\brequired\b|\bmandatory\b", re.IGNORECASE)
_OPTIONAL = re.compile(r"\boptional\b|\bnot required\b", re.IGNORECASE)
_SENTENCE = re.compile(
    r"^(?:(?P<need>required|optional)\s*[.,:]\s*)?(?P<type>[A-Za-z][^.:]{0,60}?)\s*(?:[.:]|\s-\s|$)\s*(?P<text>.*)$",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Said:
    """What words say about one parameter. ``type`` None: nothing was said of it."""

    name: str = ""
    type: TypeWord | None = None
    required: bool | None = None
    default: Any = None
    description: str = ""
    decorated: bool = False
    """The name stood in code or bold type."""


def read_parameter(text: str) -> Said | None:
    """The parameter that a list item or a table cell describes; None when it begins with no name.

    Forms: ``name (type, optional): text``, ``name: text (type, required)``, ``name: type - text``,
    ``name?: type``.
    """
    head = _HEAD.match(text.strip())
    if head is None:
        return None
    decorated = bool(head["open"] and head["close"]) and (set(head["open"]) & set("`*")) != set()
    said = Said(name=head["name"], decorated=decorated)
    if head["array"]:
        said = replace(said, type=read_type("array"))
    if head["mark"] == "?":
        said = replace(said, required=False)
    elif head["mark"] == "!" or (head["mark"] == "*" and "*" not in head["open"]):
        said = replace(said, required=True)
    rest = head["rest"].strip()
    if rest and rest[0] not in "(:–—-,=[" and not decorated:
        return None
    if rest.startswith(("(", "[")):
        inside, rest = _bracket(rest)
        said, known = _notes(said, inside)
        if not known:
            rest = f"({inside}) {rest}"
    rest = rest.strip().lstrip(":–—-").strip(" *_:")
    if rest.endswith(")") and said.type is None:
        before, inside = _last_bracket(rest)
        said, known = _notes(said, inside)
        rest = before.strip() if known else rest
    if said.type is None:
        said, rest = _leading_type(said, rest)
    return _with_prose(said, rest)


def read_sentence(name: str, text: str) -> Said:
    """``Required. string. The user's email.``: need, type and text of a parameter whose name is known."""
    found = _SENTENCE.match(" ".join(text.split()))
    if found is not None:
        word = read_type(found["type"].strip())
        if word is not None:
            need = (found["need"] or "").lower()
            required = word.required if not need else need == "required"
            return _with_prose(Said(name=name, type=word, required=required), found["text"].strip())
    return _with_prose(Said(name=name), " ".join(text.split()))


def literal(text: str) -> Any:
    """A default value as written: JSON where it is JSON, else the bare word."""
    bare = text.strip().strip("`").strip()
    if bare in ("None", "null", "undefined"):
        return None
    if bare in ("True", "False"):
        return bare == "True"
    try:
        value = json.loads(bare)
    except ValueError:
        return bare.strip("'\"")
    return value


def _with_prose(said: Said, text: str) -> Said:
    """What the text says of need and default, where brackets did not."""
    if said.required is None:
        if _OPTIONAL.search(text):
            said = replace(said, required=False)
        elif _REQUIRED.match(text.strip("*_ ")):
            said = replace(said, required=True)
    default = _DEFAULT.search(text)
    if default is not None and said.default is None:
        said = replace(said, default=literal(default["value"].rstrip(".")), required=said.required or False)
    return replace(said, description=" ".join(text.split()))


def _leading_type(said: Said, rest: str) -> tuple[Said, str]:
    """``string - text``, ``string (required). Text``, ``string``: a type word before the text."""
    found = re.match(
        r"^`?(?P<type>[A-Za-z][\w\[\]<>| ]*?)`?\s*(?P<note>\([^()]*\))?\s*(?:$|[-–—:.,]\s+)", rest
    )
    if found is None:
        return said, rest
    word = read_type(found["type"])
    if word is None:
        return said, rest
    said = replace(said, type=word, required=word.required if said.required is None else said.required)
    if found["note"]:
        said, _ = _notes(said, found["note"][1:-1])
    return said, rest[found.end() :]


def _bracket(text: str) -> tuple[str, str]:
    """(inside, after) of the bracket that ``text`` begins with."""
    pairs = {"(": ")", "[": "]"}
    end, depth = pairs[text[0]], 0
    for index, char in enumerate(text):
        depth += (char == text[0]) - (char == end)
        if depth == 0:
            return text[1:index], text[index + 1 :]
    return text[1:], ""


def _last_bracket(text: str) -> tuple[str, str]:
    """(before, inside) of the bracket that ``text`` ends with."""
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            return text[:index], text[index + 1 : -1]
    return text, ""


def _notes(said: Said, inside: str) -> tuple[Said, bool]:
    """What ``string, optional, default: 5`` adds; False when not one part of it is understood."""
    known = False
    whole = read_type(inside.strip(" `*_"))
    if whole is not None:
        required = whole.required if whole.required is not None else said.required
        return replace(said, type=whole, required=required), True
    for part in _top_level(inside):
        bare = part.strip(" `*_")
        word = read_type(bare) or _type_in(bare)
        if re.fullmatch(r"required|mandatory", bare, re.IGNORECASE):
            said, known = replace(said, required=True), True
        elif re.fullmatch(r"optional|not required", bare, re.IGNORECASE):
            said, known = replace(said, required=False), True
        elif (default := _DEFAULT.match(bare)) is not None:
            required = said.required if said.required is not None else False
            said, known = replace(said, default=literal(default["value"]), required=required), True
        elif word is not None and said.type is None:
            required = word.required if word.required is not None else said.required
            said, known = replace(said, type=word, required=required), True
    return said, known


def _type_in(text: str) -> TypeWord | None:
    """The type word that a short note begins or ends with: ``ISO 8601 string``, ``integer 1 to 5``."""
    words = text.split()
    if not 2 <= len(words) <= 5:
        return None
    return read_type(words[-1]) or read_type(words[0])


def _top_level(text: str) -> list[str]:
    """Parts at commas and semicolons outside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{<") - (char in ")]}>")
        if char in ",;" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts
