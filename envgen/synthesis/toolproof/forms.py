"""Does a result have the form that the document declares?"""

from __future__ import annotations

from typing import Any, cast

from envgen.proposers.rules.results import LISTED
from envgen.types import FieldSpec, ToolSemantics

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
MAX_DEPTH = 6


def misfit(value: Any, spec: FieldSpec, sem: ToolSemantics) -> str:
    """What in ``value`` contradicts the declared result schema, or empty.

    What is there must have the declared type. Members that the state cannot hold may be missing: the
    semantics name them as assumptions.
    """
    if sem.many and isinstance(value, list) and spec.type == "object":
        if not spec.properties:
            return ""  # a bare {"type": "object"} says nothing about the form
        if LISTED in sem.assumptions:
            return next(
                (p for item in cast("list[Any]", value)[:3] if (p := _misfit(item, spec, "[]", 1))), ""
            )
    return _misfit(value, spec, "", 0)


def _misfit(value: Any, spec: FieldSpec, path: str, depth: int) -> str:
    if value is None or spec.truncated or depth == MAX_DEPTH:
        return ""
    wanted = _TYPES.get(spec.type)
    right = wanted is None or (
        isinstance(value, wanted) and (isinstance(value, bool) == (spec.type == "boolean"))
    )
    if not right:
        return f"{path or 'the result'} is {type(value).__name__}, the document declares {spec.type}"
    if isinstance(value, dict):
        members = {p.name: p for p in spec.properties}
        for name, inner in cast("dict[str, Any]", value).items():
            if name in members:
                problem = _misfit(inner, members[name], f"{path}.{name}".lstrip("."), depth + 1)
                if problem:
                    return problem
    elif isinstance(value, list) and spec.items is not None:
        for inner in cast("list[Any]", value)[:3]:
            problem = _misfit(inner, spec.items, f"{path}[]", depth + 1)
            if problem:
                return problem
    return ""
