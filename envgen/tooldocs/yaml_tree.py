"""YAML text -> JSON tree, read from libyaml's events with a loop of our own.

Three reasons: PyYAML's constructor makes dates, sexagesimal numbers (``09:00`` -> 540) and booleans (``on``,
``no``) of plain words, where a tool document means text; it recurses, so deep nesting crashes the
interpreter; and aliases can blow a small file up without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import yaml

from envgen.errors import DocumentError

MAX_DEPTH = 150
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})


@dataclass
class _Open:
    """A collection under construction; ``key`` the pending mapping key, ``merges`` the values of ``<<``."""

    value: dict[str, Any] | list[Any]
    line: int
    key: str | None = None
    merges: list[Any] | None = None


def parse_yaml(text: str, name: str) -> Any:
    """Tree of the one YAML document in ``text``; ``name`` is for messages. Raises DocumentError."""
    try:
        return _compose(cast("Iterator[Any]", yaml.parse(text, Loader=yaml.CSafeLoader)), name)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DocumentError(
            f"{name}: neither JSON nor YAML: {problem}{where}; check the file there"
        ) from error
    except RecursionError as error:
        raise DocumentError(
            f"{name}: nested deeper than {MAX_DEPTH} levels; expected a tool document"
        ) from error


def _compose(events: Iterator[Any], name: str) -> Any:
    """Tree of the single YAML document in ``events``, without recursion."""
    stack: list[_Open] = []
    anchors: dict[str, Any] = {}
    result: Any = None
    documents = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise DocumentError(
                    f"{name}: line {line}: a second YAML document begins; expected one per file"
                )
            continue
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(stack) >= MAX_DEPTH:
                raise DocumentError(
                    f"{name}: line {line}: nested deeper than {MAX_DEPTH} levels; expected a tool document"
                )
            stack.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else [], line))
            if event.anchor:
                anchors[event.anchor] = stack[-1].value
            continue
        if isinstance(event, yaml.ScalarEvent):
            pending_key = bool(stack) and isinstance(stack[-1].value, dict) and stack[-1].key is None
            value: Any = event.value if pending_key else _scalar(event)
            if event.anchor:
                anchors[event.anchor] = value
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise DocumentError(f"{name}: line {line}: alias *{event.anchor} has no anchor before it")
            value = anchors[event.anchor]
            if any(value is entry.value for entry in stack):
                raise DocumentError(
                    f"{name}: line {line}: alias *{event.anchor} contains itself; expected a finite document"
                )
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            closed = stack.pop()
            _apply_merges(closed, name)
            value = closed.value
        else:
            continue
        if stack:
            _place(stack[-1], value, line, name)
        else:
            result = value
    return result


def _place(parent: _Open, value: Any, line: int, name: str) -> None:
    if isinstance(parent.value, list):
        parent.value.append(value)
    elif parent.key is None:
        if not isinstance(value, str | int | float | bool) and value is not None:
            raise DocumentError(f"{name}: line {line}: a mapping key is an object or a list; expected text")
        parent.key = str(value)
    elif parent.key == "<<":
        parent.merges = [
            *(parent.merges or []),
            *(cast("list[Any]", value) if isinstance(value, list) else [value]),
        ]
        parent.key = None
    else:
        if parent.key in parent.value:
            raise DocumentError(
                f"{name}: line {line}: the key {parent.key!r} stands twice in one object; remove one "
                "of the two"
            )
        parent.value[parent.key] = value
        parent.key = None


def _apply_merges(closed: _Open, name: str) -> None:
    if closed.merges is None or not isinstance(closed.value, dict):
        return
    for source in closed.merges:
        if not isinstance(source, dict):
            raise DocumentError(f"{name}: line {closed.line}: '<<' merges a value that is not an object")
        for key, value in cast("dict[str, Any]", source).items():
            closed.value.setdefault(key, value)


def _scalar(event: Any) -> Any:
    """A YAML scalar by JSON's rules: only JSON-like numbers, true/false and null are not text."""
    text: str = event.value
    tag: str | None = event.tag
    if tag not in (
        None,
        "!",
        "tag:yaml.org,2002:int",
        "tag:yaml.org,2002:float",
        "tag:yaml.org,2002:bool",
        "tag:yaml.org,2002:null",
    ):
        return text
    if tag == "!" or (tag is None and not event.implicit[0]):
        return text
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if len(text) < 400:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
