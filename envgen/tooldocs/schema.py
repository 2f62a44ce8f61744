"""JSON Schema (OpenAPI 3.0/3.1, Swagger 2.0, MCP, function-calling dialects) -> FieldSpec.

``$ref`` is resolved, ``allOf`` merged, ``oneOf``/``anyOf`` reduced to one shape. A schema that refers to
itself, or that exceeds ``MAX_SCHEMA_DEPTH`` levels or ``MAX_SCHEMA_NODES`` nodes, is cut there with
``truncated=True``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote

from envgen.errors import DocumentError
from envgen.tooldocs.local_files import LocalFiles
from envgen.tooldocs.node import (
    TYPE_NAMES,
    Node,
    Sub,
    distinct,
    example_of,
    infer,
    merge,
    pick,
    unite,
)
from envgen.tooldocs.tree import JsonMap, as_list, as_map, as_text, join, kind, list_or_none, map_or_none
from envgen.tooldocs.type_words import read_type
from envgen.types import FieldSpec, FieldType

MAX_SCHEMA_DEPTH = 7
MAX_SCHEMA_NODES = 400
MAX_VARIANTS = 64
MAX_REF_HOPS = 32
MAX_FLATTENED = 20_000
"""Schemas visited for one parameter, body or result: the largest of our real documents needs 1,411 in all."""
MAX_FLATTENED_IN_ALL = 500_000


@dataclass(frozen=True)
class Missing:
    """A JSON pointer names nothing; ``token`` is the part that was not found."""

    token: str


def walk(tree: Any, fragment: str) -> Any:
    """The value at a JSON pointer of ``tree``, or `Missing`."""
    value: Any = tree
    for raw in fragment.split("/")[1:]:
        token = raw.replace("~1", "/").replace("~0", "~")
        mapping, items = map_or_none(value), list_or_none(value)
        if mapping is not None and token in mapping:
            value = mapping[token]
        elif (
            items is not None
            and token.isdecimal()
            and token.isascii()
            and len(token) < 8
            and int(token) < len(items)
        ):
            value = items[int(token)]
        else:
            return Missing(token)
    return value


class SchemaReader:
    """Reads schemas of one document. ``#/…`` references point into ``root``, which is at ``root_pointer``."""

    def __init__(
        self, root: Any, root_pointer: str = "", files: LocalFiles | None = None, outer: Any = None
    ) -> None:
        """``files`` opens references to other files; ``outer`` is the whole document when ``root`` is a part
        of it, for references that mean the whole."""
        self._root = root
        self._root_pointer = root_pointer
        self._files = files if files is not None else LocalFiles()
        self._outer = outer
        self._flattened = 0
        self._flattened_before = 0

    # -------------------------------------------------------------------------------------------- references
    def lookup(self, ref: object, pointer: str) -> tuple[Any, str]:
        """(value, pointer) that a reference names; DocumentError when it leaves the folder or is empty.

        Pointers into other files read ``file.yaml#/components/…``.
        """
        if not isinstance(ref, str):
            raise DocumentError(
                f"{pointer}: $ref is {kind(ref)}, expected text such as '#/components/schemas/Pet'"
            )
        file, _, raw_fragment = ref.partition("#")
        fragment = unquote(raw_fragment)
        if fragment and not fragment.startswith("/"):
            raise DocumentError(
                f"{pointer}: $ref {ref[:120]!r} names an anchor; expected a JSON pointer such as "
                "'#/components/schemas/Pet'"
            )
        base = self._file_of(pointer)
        name = self._files.name(unquote(file), base, pointer) if file else base
        if name:
            found = walk(self._files.tree(name, pointer), fragment)
            place = f"{name}#{fragment}"
        else:
            found, place = walk(self._root, fragment), self._root_pointer + fragment
            if isinstance(found, Missing) and self._outer is not None:
                found, place = walk(self._outer, fragment), fragment
        if isinstance(found, Missing):
            raise DocumentError(
                f"{pointer}: $ref {ref[:120]!r} names nothing in "
                f"{name or 'this document'} ({found.token[:60]!r} not found)"
            )
        return found, place

    def _file_of(self, pointer: str) -> str:
        """The file a pointer stands in; empty for the document itself."""
        name = pointer.partition("#")[0]
        return name if name in self._files.used and pointer.startswith(f"{name}#") else ""

    def resolve(self, value: Any, pointer: str, what: str) -> tuple[JsonMap, str]:
        """(object, pointer) after following references of a parameter, request body, response or example."""
        for _ in range(MAX_REF_HOPS):
            mapping = as_map(value, pointer, what)
            if "$ref" not in mapping:
                return mapping, pointer
            value, pointer = self.lookup(mapping["$ref"], pointer)
        raise DocumentError(f"{pointer}: a chain of $ref never ends; expected a {what}")

    # -------------------------------------------------------------------------------------------- public
    def field(
        self, name: str, sub: Sub, *, location: str = "", required: bool = False, output: bool = False
    ) -> FieldSpec:
        """The FieldSpec called ``name``; ``output`` drops write-only members, else read-only ones."""
        self._new_root()
        return self._spec(name, self.flatten(sub), location, required, output, 0, [MAX_SCHEMA_NODES])

    def node_field(
        self, name: str, node: Node, *, location: str = "", required: bool = False, output: bool = False
    ) -> FieldSpec:
        """Like ``field`` for a schema that is flattened already."""
        self._new_root()
        return self._spec(name, node, location, required, output, 0, [MAX_SCHEMA_NODES])

    def _new_root(self) -> None:
        self._flattened_before += self._flattened
        self._flattened = 0

    def flatten(self, sub: Sub, depth: int = 0) -> Node:
        """One schema with references, ``allOf`` and ``oneOf``/``anyOf`` folded in."""
        schema, pointer = sub.schema, sub.pointer
        self._flattened += 1
        if self._flattened > MAX_FLATTENED or self._flattened + self._flattened_before > MAX_FLATTENED_IN_ALL:
            raise DocumentError(
                f"{pointer}: the schemas expand to more than {MAX_FLATTENED:,} nodes here or "
                f"{MAX_FLATTENED_IN_ALL:,} in all; keep fewer operations, or less allOf and $ref in one file"
            )
        if isinstance(schema, bool):  # JSON Schema: true allows anything
            return Node((), pointer)
        schema = as_map(schema, pointer, "schema")
        if depth > MAX_REF_HOPS:
            return Node(self._types(schema, pointer)[0], pointer, truncated=True)
        node = self._own(schema, sub)
        if "$ref" in schema:
            target, target_pointer = self.lookup(schema["$ref"], pointer)
            name = target_pointer.rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
            if target_pointer in sub.entered:
                known = map_or_none(target)
                types = self._types(known, target_pointer)[0] if known is not None else ()
                return replace(node, types=node.types or types, ref=name, truncated=True)
            base = self.flatten(Sub(target, target_pointer, sub.entered | {target_pointer}), depth + 1)
            node = replace(merge(base, node), ref=name, pointer=target_pointer)
        if "allOf" in schema:
            parts = as_list(schema["allOf"], join(pointer, "allOf"), "allOf")
            for index, part in enumerate(parts[:MAX_VARIANTS]):
                merged = self.flatten(Sub(part, join(pointer, "allOf", index), sub.entered), depth + 1)
                ref = node.ref or (merged.ref if len(parts) == 1 else "")
                node = replace(merge(merged, node), ref=ref, pointer=node.pointer)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                node = self._choose(
                    node,
                    as_list(schema[keyword], join(pointer, keyword), keyword),
                    join(pointer, keyword),
                    sub,
                    depth,
                )
        return node

    # -------------------------------------------------------------------------------------------- parts
    def _own(self, schema: JsonMap, sub: Sub) -> Node:
        """The keywords that stand in ``schema`` itself."""
        pointer = sub.pointer
        types, nullable, type_format = self._types(schema, pointer)
        enum = (
            tuple(as_list(schema["enum"], join(pointer, "enum"), "enum"))
            if schema.get("enum") is not None
            else ()
        )
        if "const" in schema:
            enum = (schema["const"],)
        nullable = (
            nullable or schema.get("nullable") is True or schema.get("x-nullable") is True or None in enum
        )
        members: dict[str, Sub] = {}
        if schema.get("properties") is not None:
            for name, member in as_map(
                schema["properties"], join(pointer, "properties"), "properties"
            ).items():
                members[name] = Sub(member, join(pointer, "properties", name), sub.entered)
        required = schema.get("required")
        names: frozenset[str] = frozenset()
        if required is not None and not isinstance(required, bool):
            listed = as_list(required, join(pointer, "required"), "required")
            names = frozenset(as_text(name, join(pointer, "required"), "required name") for name in listed)
        items = schema.get("items")
        if isinstance(items, list):  # draft-04 tuples: the first element's schema stands for all
            listed_items = cast("list[Any]", items)
            items_sub = Sub(listed_items[0], join(pointer, "items", 0), sub.entered) if listed_items else None
        else:
            items_sub = Sub(items, join(pointer, "items"), sub.entered) if items is not None else None
        word = read_type(schema["type"]) if isinstance(schema.get("type"), str) else None
        if word is not None:  # "List[str]" and "Literal['a', 'b']" say more than a type
            enum = enum or word.enum
            if word.items and items_sub is None:
                items_sub = Sub({"type": word.items}, join(pointer, "type"), sub.entered)
        return Node(
            types=types or infer(enum, members, items_sub),
            pointer=pointer,
            nullable=nullable,
            description=as_text(
                schema.get("description") or schema.get("desc"), join(pointer, "description"), "description"
            ),
            enum=tuple(value for value in enum if value is not None),
            format=as_text(schema.get("format"), join(pointer, "format"), "format") or type_format,
            default=schema.get("default"),
            example=example_of(schema),
            items=items_sub,
            members=members,
            required=names,
            read_only=schema.get("readOnly") is True,
            write_only=schema.get("writeOnly") is True,
            required_self=required is True,
        )

    def _types(self, schema: JsonMap, pointer: str) -> tuple[tuple[FieldType, ...], bool, str]:
        """(types without null, nullable, format implied by the type word)."""
        value = schema.get("type")
        if value is None:
            return (), False, ""
        words = [value] if isinstance(value, str) else as_list(value, join(pointer, "type"), "type")
        types: list[FieldType] = []
        nullable, implied = False, ""
        for word in words:
            if not isinstance(word, str):
                raise DocumentError(
                    f"{join(pointer, 'type')}: type is {kind(word)}, expected a word such as 'string'"
                )
            known = read_type(word)
            if known is not None:
                types.extend(known.types)
                nullable = nullable or known.nullable
                implied = implied or known.format
            else:
                raise DocumentError(
                    f"{join(pointer, 'type')}: type {word[:60]!r} is unknown; expected one of "
                    f"{', '.join(dict.fromkeys(TYPE_NAMES.values()))}"
                )
        return tuple(dict.fromkeys(types)), nullable, implied

    def _choose(self, node: Node, variants: list[Any], pointer: str, sub: Sub, depth: int) -> Node:
        """``oneOf``/``anyOf``: null makes the field nullable; objects are united (required = in all); scalar
        variants of one type unite their enums; otherwise the first scalar variant stands for all."""
        nodes: list[Node] = []
        nullable = node.nullable
        for index, variant in enumerate(variants[:MAX_VARIANTS]):
            mapping = map_or_none(variant)
            if mapping is not None and (
                mapping.get("type") in ("null", ["null"]) or ("const" in mapping and mapping["const"] is None)
            ):
                nullable = True
                continue
            nodes.append(self.flatten(Sub(variant, join(pointer, index), sub.entered), depth + 1))
        truncated = len(variants) > MAX_VARIANTS
        nullable = nullable or any(n.nullable for n in nodes)
        if not nodes:
            return replace(node, nullable=nullable, truncated=node.truncated or truncated)
        if len(nodes) == 1:
            merged = merge(nodes[0], node)
            return replace(merged, nullable=nullable, ref=node.ref or nodes[0].ref, pointer=node.pointer)
        objects = [n for n in nodes if n.members or "object" in n.types]
        if objects and len(objects) == len(nodes):
            united = objects[0]
            for other in objects[1:]:
                united = unite(united, other)
            united = replace(
                united,
                ref="",
                description="",
                example=next((n.example for n in nodes if n.example is not None), None),
            )
        else:
            scalars = [
                n for n in nodes if n.types and n.types[0] in ("string", "integer", "number", "boolean")
            ]
            chosen = (scalars or objects or nodes)[0]
            same = [n for n in nodes if n.types == chosen.types]
            closed = same if all(n.enum for n in same) else []
            united = replace(chosen, ref="", enum=tuple(distinct([v for n in closed for v in n.enum])))
            if not node.types and {t for n in scalars for t in n.types} == {"integer", "number"}:
                united = replace(united, types=("number",))
        merged = merge(united, node)
        return replace(
            merged,
            nullable=nullable,
            pointer=node.pointer,
            ref=node.ref,
            truncated=merged.truncated or truncated,
        )

    def _spec(
        self,
        name: str,
        node: Node,
        location: str,
        required: bool,
        output: bool,
        depth: int,
        budget: list[int],
    ) -> FieldSpec:
        budget[0] -= 1
        type_, truncated = pick(node.types), node.truncated
        items: FieldSpec | None = None
        properties: list[FieldSpec] = []
        nested = (type_ == "array" and node.items is not None) or (type_ == "object" and bool(node.members))
        if nested and (depth >= MAX_SCHEMA_DEPTH or budget[0] <= 0):
            truncated = True
        elif type_ == "array" and node.items is not None:
            items = self._spec("item", self.flatten(node.items), location, False, output, depth + 1, budget)
        elif type_ == "object":
            for member, member_sub in node.members.items():
                if budget[0] <= 0:
                    truncated = True
                    break
                inner = self.flatten(member_sub)
                if (inner.read_only and not output) or (inner.write_only and output):
                    continue
                wanted = member in node.required or inner.required_self
                properties.append(self._spec(member, inner, location, wanted, output, depth + 1, budget))
        return FieldSpec(
            name=name,
            type=type_,
            required=required,
            nullable=node.nullable,
            description=" ".join(node.description.split()),
            enum=node.enum,
            format=node.format,
            default=node.default,
            example=node.example,
            items=items,
            properties=tuple(properties),
            ref=node.ref,
            location=cast("Any", location),
            pointer=node.pointer,
            truncated=truncated,
        )
