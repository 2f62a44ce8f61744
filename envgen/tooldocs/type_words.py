"""Type words of real documents, from JSON Schema's own to ``List[str]``, ``string[]`` and ``str,
optional``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from envgen.tooldocs.node import FORMATS, TYPE_NAMES
from envgen.types import FieldType

_NULL = frozenset({"null", "none", "nil", "undefined", "nonetype"})
_LISTS = r"(?:list|array|arr|sequence|iterable|set|tuple|collection)"
_LIST_OF = re.compile(rf"^{_LISTS}\s*(?:of\s+|[\[<(]\s*)(?P<inner>.+?)[\]>)]?$", re.IGNORECASE)
_MAP_OF = re.compile(
    r"^(?:dict|dictionary|map|mapping|record|object|hash)\s*(?:[\[<({]|of\s).*$", re.IGNORECASE
)
_WRAPPED = re.compile(
    r"^(?P<head>optional|nullable|union|literal|enum)\s*[\[<(](?P<inner>.*)[\]>)]$", re.IGNORECASE
)
_ENUM = re.compile(r"^enum\s*:?\s+(?P<inner>.+)$", re.IGNORECASE)
_QUALIFIED = re.compile(r"^(?P<base>[A-Za-z0-9]+)\s*\((?P<note>[^()]*)\)$")
_MARK = re.compile(r"(?:\s*,\s*|\s+|\s*\(\s*)(?P<word>optional|required)\s*\)?\s*$", re.IGNORECASE)
_QUOTED = re.compile(r"""^(['"`])(.*)\1$""")
_MAX = 300


@dataclass(frozen=True)
class TypeWord:
    """What a type word says. ``items`` is the type word of the elements, ``required`` what the word adds
    (``str, optional``), None when it adds nothing."""

    types: tuple[FieldType, ...] = ()
    nullable: bool = False
    format: str = ""
    items: str = ""
    enum: tuple[str, ...] = ()
    required: bool | None = None


def read_type(word: str) -> TypeWord | None:
    """The meaning of one type word; None when it is none of those known."""
    text = word.strip()
    if (
        not text
        or len(text) > _MAX
        or any(text.count(a) != text.count(b) for a, b in ("[]", "()", "{}", "<>"))
    ):
        return None
    lower = text.lower()
    if lower in _NULL:
        return TypeWord(nullable=True)
    if lower in TYPE_NAMES:
        return _plain(lower)
    mark = _MARK.search(text)
    if mark is not None and mark.start() > 0:
        inner = read_type(text[: mark.start()])
        return replace(inner, required=mark["word"].lower() == "required") if inner is not None else None
    wrapped = _WRAPPED.match(text)
    if wrapped is not None:
        return _wrapped(wrapped["head"].lower(), wrapped["inner"])
    enum = _ENUM.match(text)
    if enum is not None:
        return _literals(_split(enum["inner"], ",|"))
    parts = _split(text, "|")
    parts = parts if len(parts) > 1 else re.split(r"\s+or\s+", text)
    if len(parts) > 1:
        return _literals(parts) if all(_QUOTED.match(part) for part in parts) else _union(parts)
    if text.endswith("[]"):
        return _list_of(text[:-2])
    found = _LIST_OF.match(text)
    if found is not None:
        return _list_of(found["inner"])
    if _MAP_OF.match(text):
        return TypeWord(types=("object",))
    qualified = _QUALIFIED.match(text)
    if qualified is not None and qualified["base"].lower() in TYPE_NAMES:
        base, note = _plain(qualified["base"].lower()), qualified["note"].strip().lower()
        return replace(base, format=FORMATS.get(note, "") or base.format)
    return None


def _plain(lower: str) -> TypeWord:
    found = TYPE_NAMES[lower]
    return TypeWord(types=() if found == "any" else (found,), format=FORMATS.get(lower, ""))


def _list_of(inner: str) -> TypeWord | None:
    inner = re.sub(r"\s*,\s*\.\.\.$", "", inner.strip())
    known = read_type(inner) or read_type(inner.removesuffix("s"))  # "array of strings"
    if known is None:
        return TypeWord(types=("array",)) if re.fullmatch(r"[\w ]+", inner) else None
    return TypeWord(
        types=("array",), items=inner if read_type(inner) is not None else inner.removesuffix("s")
    )


def _wrapped(head: str, inner: str) -> TypeWord | None:
    if head in ("optional", "nullable"):
        found = read_type(inner)
        if found is None:
            return None
        return replace(found, nullable=True, required=False if head == "optional" else None)
    if head == "union":
        return _union(_split(inner, ","))
    return _literals(_split(inner, ",|"))


def _union(parts: list[str]) -> TypeWord | None:
    known = [read_type(part) for part in parts]
    if any(item is None for item in known):
        return None
    words = [item for item in known if item is not None]
    types: tuple[FieldType, ...] = tuple(dict.fromkeys(t for item in words for t in item.types))
    real = [item for item in words if item.types]
    nullable = any(item.nullable for item in words)
    if len(real) == 1:
        return replace(real[0], nullable=nullable)
    return TypeWord(types=types, nullable=nullable)


def _literals(parts: list[str]) -> TypeWord | None:
    values = tuple(dict.fromkeys(_unquoted(part) for part in parts if part))
    return TypeWord(types=("string",), enum=values) if values else None


def _unquoted(text: str) -> str:
    quoted = _QUOTED.match(text)
    return quoted[2] if quoted is not None else text


def _split(text: str, marks: str) -> list[str]:
    """Parts of ``text`` at any of ``marks`` outside brackets and quotes."""
    parts: list[str] = [""]
    depth, quote = 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char in "[<({":
            depth += 1
        elif char in "]>)}":
            depth -= 1
        elif char in marks and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return [part.strip() for part in parts]
