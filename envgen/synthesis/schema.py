"""Questions about a state schema that several stages ask: relations between collections, and dotted argument
paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from envgen.types import Collection, StateField, StateSchema, ToolSemantics


def field_of(collection: Collection, name: str) -> StateField | None:
    """The field called ``name``, or None."""
    return next((item for item in collection.fields if item.name == name), None)


def children_of(schema: StateSchema, collection: str) -> tuple[tuple[str, str], ...]:
    """``(child collection, foreign key field)`` of every field that references ``collection``, in schema
    order."""
    return tuple(
        (child.name, item.name)
        for child in schema.collections
        for item in child.fields
        if item.references == collection
    )


def owned_children(schema: StateSchema, collection: str) -> tuple[tuple[str, str], ...]:
    """The children that cannot exist without their parent: the foreign key is required."""
    return tuple(
        (child, name)
        for child, name in children_of(schema, collection)
        if (item := field_of(schema.collection(child), name)) is not None and item.required
    )


def descendants(schema: StateSchema, collection: str) -> tuple[tuple[str, str, str], ...]:
    """``(child, foreign key, parent)`` over all levels of ownership below ``collection``, parents first,
    each child once."""
    found: list[tuple[str, str, str]] = []
    seen = {collection}
    frontier = [collection]
    while frontier:
        parent = frontier.pop(0)
        for child, name in owned_children(schema, parent):
            if child not in seen:
                seen.add(child)
                found.append((child, name, parent))
                frontier.append(child)
    return tuple(found)


def place_argument(arguments: dict[str, Any], path: str, value: Any) -> None:
    """Store ``value`` under a dotted parameter path: ``article.title`` becomes ``{"article": {"title":
    value}}``.

    Raises ValueError when a part of the path already holds something that is no object.
    """
    *parents, last = path.split(".")
    node = arguments
    for name in parents:
        if name not in node:
            node[name] = {}
        if not isinstance(node[name], dict):
            raise ValueError(f"argument {path!r}: {name!r} already holds {node[name]!r}, expected an object")
        node = cast("dict[str, Any]", node[name])
    node[last] = value


def read_argument(arguments: dict[str, Any], path: str) -> Any:
    """The value under a dotted parameter path, or None when it is not there."""
    node: Any = arguments
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]  # pyright: ignore[reportUnknownVariableType]
    return node  # pyright: ignore[reportUnknownVariableType]


def paging_kind(name: str) -> str:
    """``size``, ``page``, ``offset`` or empty, for the name of a paging parameter."""
    flat = name.lower().replace("_", "").replace("-", "")
    if flat in {
        "limit",
        "pagesize",
        "perpage",
        "size",
        "count",
        "maxresults",
        "first",
        "top",
        "pagelimit",
        "take",
    }:
        return "size"
    if flat in {"page", "pagenumber", "pageindex"}:
        return "page"
    if flat in {"offset", "skip", "start"}:
        return "offset"
    return ""


def is_clock(name: str, policy: str, *, creation: bool) -> bool:
    """True for a field that the environment's clock fills at creation (or, with ``creation=False``, at every
    update)."""
    flat = name.lower().replace("_", "")
    if policy != "exempt":
        return False
    updated = flat.startswith(("updated", "modified", "lastmodified", "lastupdated", "lastedited"))
    return creation or updated


def keys_shown(schema: StateSchema, semantics: Sequence[ToolSemantics]) -> set[str]:
    """Collections whose keys some tool shows that need not be told one."""
    return {
        o.collection
        for s in semantics
        if s.key is None
        for o in s.outputs
        if o.field == schema.collection(o.collection).key
    }


def keys_needed(schema: StateSchema, sem: ToolSemantics) -> list[str]:
    """Collections of whose generated keys a tool must be told one."""
    needed: list[str] = []
    if sem.key is not None and sem.verb != "create" and schema.collection(sem.collection).key_generated:
        needed.append(sem.collection)
    for binding in (*sem.scope, *sem.writes):
        item = field_of(schema.collection(binding.collection), binding.field)
        parent = item.references if binding.required and item is not None else ""
        if parent and schema.collection(parent).key_generated:
            needed.append(parent)
    return needed
