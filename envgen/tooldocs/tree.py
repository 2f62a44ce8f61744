"""Typed access to a parsed document: a wrong type becomes one DocumentError that names the pointer."""

from __future__ import annotations

from typing import Any, cast

from envgen.errors import DocumentError

JsonMap = dict[str, Any]


def escape(token: str) -> str:
    """One JSON-pointer token (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def join(pointer: str, *tokens: str | int) -> str:
    """``pointer`` with more tokens at its end."""
    return pointer + "".join("/" + escape(str(token)) for token in tokens)


def kind(value: object) -> str:
    """A JSON value's type as a person says it, with its article."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


def as_map(value: object, pointer: str, what: str) -> JsonMap:
    """``value`` as an object; DocumentError when it is anything else."""
    if not isinstance(value, dict):
        raise DocumentError(f"{pointer or '/'}: {what} is {kind(value)}, expected an object")
    return cast("JsonMap", value)


def as_list(value: object, pointer: str, what: str) -> list[Any]:
    """``value`` as a list; DocumentError when it is anything else."""
    if not isinstance(value, list):
        raise DocumentError(f"{pointer or '/'}: {what} is {kind(value)}, expected a list")
    return cast("list[Any]", value)


def as_text(value: object, pointer: str, what: str) -> str:
    """``value`` as text: None is empty, numbers are written out, objects and lists are errors."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise DocumentError(f"{pointer or '/'}: {what} is {kind(value)}, expected text")


def is_map(value: object) -> bool:
    """True for a JSON object."""
    return isinstance(value, dict)


def map_or_none(value: object) -> JsonMap | None:
    """``value`` when it is an object, else None."""
    return cast("JsonMap", value) if isinstance(value, dict) else None


def list_or_none(value: object) -> list[Any] | None:
    """``value`` when it is a list, else None."""
    return cast("list[Any]", value) if isinstance(value, list) else None
