"""What a schema says once references and combinators are folded in, and how two such records combine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from envgen.tooldocs.tree import JsonMap, list_or_none, map_or_none
from envgen.types import FieldType

TYPE_NAMES: dict[str, FieldType] = {
    "string": "string", "str": "string", "text": "string", "date": "string", "datetime": "string",
    "uuid": "string", "uri": "string", "url": "string", "email": "string", "char": "string",
    "file": "string", "binary": "string", "enum": "string", "varchar": "string", "timestamp": "string",
    "time": "string", "date-time": "string", "password": "string", "path": "string", "id": "string",
    "integer": "integer", "int": "integer", "long": "integer", "int32": "integer", "int64": "integer",
    "short": "integer", "bigint": "integer",
    "number": "number", "float": "number", "double": "number", "decimal": "number", "numeric": "number",
    "boolean": "boolean", "bool": "boolean",
    "array": "array", "list": "array", "tuple": "array", "set": "array",
    "object": "object", "dict": "object", "map": "object", "json": "object", "hashmap": "object",
    "dictionary": "object", "struct": "object",
    "any": "any", "unknown": "any", "mixed": "any",
}  # fmt: skip
"""Type words met in real documents; the first of each row is JSON Schema's own."""
FORMATS = {
    "date": "date",
    "datetime": "date-time",
    "date-time": "date-time",
    "timestamp": "date-time",
    "time": "time",
    "uuid": "uuid",
    "uri": "uri",
    "url": "uri",
    "email": "email",
    "file": "binary",
    "binary": "binary",
}


@dataclass(frozen=True)
class Sub:
    """A schema with its place in the document and the references entered on the way to it."""

    schema: Any
    pointer: str
    entered: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Node:
    """One flattened schema: keywords of all parts merged, members kept apart with their own pointers."""

    types: tuple[FieldType, ...]
    pointer: str
    nullable: bool = False
    description: str = ""
    enum: tuple[Any, ...] = ()
    format: str = ""
    default: Any = None
    example: Any = None
    items: Sub | None = None
    members: dict[str, Sub] = field(default_factory=dict[str, Sub])
    required: frozenset[str] = frozenset()
    ref: str = ""
    read_only: bool = False
    write_only: bool = False
    required_self: bool = False
    truncated: bool = False


def pick(types: tuple[FieldType, ...]) -> FieldType:
    """One type of a union: text takes any scalar, a number any integer; else the first that is named."""
    if not types:
        return "any"
    if "string" in types:
        return "string"
    return "number" if set(types) == {"integer", "number"} else types[0]


def infer(enum: tuple[Any, ...], members: dict[str, Sub], items: Sub | None) -> tuple[FieldType, ...]:
    """Types that the other keywords imply when ``type`` is missing."""
    if members:
        return ("object",)
    if items is not None:
        return ("array",)
    by_word: dict[str, FieldType] = {"str": "string", "bool": "boolean", "int": "integer", "float": "number"}
    found = {type(value).__name__ for value in enum if value is not None}
    if len(found) != 1:
        return ()
    word = found.pop()
    return (by_word[word],) if word in by_word else ()


def example_of(schema: JsonMap) -> Any:
    """``example``, or the first of JSON Schema's ``examples`` list."""
    if schema.get("example") is not None:
        return schema["example"]
    examples = list_or_none(schema.get("examples"))
    return examples[0] if examples else None


def distinct(values: list[Any]) -> list[Any]:
    """Values without repeats; ``1`` and ``True`` stay apart."""
    seen: dict[str, Any] = {}
    for value in values:
        seen.setdefault(f"{type(value).__name__}:{value!r}", value)
    return list(seen.values())


def merge(base: Node, over: Node) -> Node:
    """Both schemas hold (``allOf``, or keywords beside ``$ref``): ``over`` wins where both speak."""
    return Node(
        types=over.types or base.types,
        pointer=over.pointer,
        nullable=base.nullable or over.nullable,
        description=over.description or base.description,
        enum=over.enum or base.enum,
        format=over.format or base.format,
        default=over.default if over.default is not None else base.default,
        example=over.example if over.example is not None else base.example,
        items=over.items or base.items,
        members={**base.members, **over.members},
        required=base.required | over.required,
        ref=over.ref,
        read_only=base.read_only or over.read_only,
        write_only=base.write_only or over.write_only,
        required_self=base.required_self or over.required_self,
        truncated=base.truncated or over.truncated,
    )


def unite(left: Node, right: Node) -> Node:
    """Either object holds: members of both, required only what both require, constants become one enum."""
    members = dict(left.members)
    for name, sub in right.members.items():
        members[name] = _unite_member(members[name], sub) if name in members else sub
    return replace(
        left,
        types=("object",),
        members=members,
        required=left.required & right.required,
        truncated=left.truncated or right.truncated,
    )


def _unite_member(left: Sub, right: Sub) -> Sub:
    mine, other = map_or_none(left.schema), map_or_none(right.schema)
    if mine is None or other is None:
        return left
    values: list[Any] = []
    for schema in (mine, other):
        enum = [schema["const"]] if "const" in schema else list_or_none(schema.get("enum"))
        if not enum:
            return left
        values.extend(enum)
    united = {key: value for key, value in mine.items() if key not in ("const", "enum")}
    return Sub({**united, "enum": distinct(values)}, left.pointer, left.entered)
