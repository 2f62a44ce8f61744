"""Parameters and results of one tool in Markdown: list items, tables, one line, a signature, a JSON block."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from envgen.tooldocs.markdown_blocks import Fence, Item, Table
from envgen.tooldocs.node import Sub
from envgen.tooldocs.param_text import NAME, Said, literal, read_parameter
from envgen.tooldocs.prose import with_prose_enum
from envgen.tooldocs.required import assumed_required
from envgen.tooldocs.schema import SchemaReader
from envgen.tooldocs.tree import JsonMap, list_or_none, map_or_none
from envgen.tooldocs.type_words import TypeWord, read_type
from envgen.types import FieldSpec, FieldType

_WHOLE = frozenset({"limit", "offset", "page", "count", "size", "quantity", "number", "max", "min", "index"})
_TRUTH = ("is_", "has_", "include_", "enable_", "dry_run", "force", "recursive")
_JSON = frozenset({"json", "json5", "jsonc", ""})


def plain(text: str) -> str:
    """Text without code, bold, links and leading emoji."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[`*]+|</?[A-Za-z][^>]*>", "", text)).strip(" #").strip()


@dataclass
class Entry:
    """One parameter as it was found."""

    said: Said
    line: int
    children: list[Entry] = field(default_factory=list["Entry"])


@dataclass
class Params:
    """The parameters of one tool while they are being found."""

    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    schema: tuple[FieldSpec, ...] = ()
    """Parameters given as a JSON Schema block."""

    @property
    def says_need(self) -> bool:
        """Some parameter is marked required or optional."""
        return any(e.said.required is not None for e in self.entries.values())

    @property
    def guessed(self) -> list[str]:
        """Names of parameters without a type."""
        return [name for name, e in self.entries.items() if e.said.type is None and not e.children]

    def specs(self, tool: str, says_need: bool) -> tuple[FieldSpec, ...]:
        """The parameters as FieldSpecs. ``says_need``: the document marks need somewhere, so what is
        unmarked is required."""
        if self.schema and not self.entries:
            return self.schema
        found: list[FieldSpec] = []
        for index, (name, entry) in enumerate(self.entries.items()):
            need = entry.said.required
            if need is None:
                need = says_need or assumed_required(name, tool, index)
            found.append(_spec(entry, required=need))
        return tuple(found)

    def add(self, said: Said | None, line: int, required: bool | None = None) -> Entry | None:
        """Keep one parameter; the first place that names it wins."""
        if said is None:
            return None
        if required is not None and said.required is None:
            said = Said(said.name, said.type, required, said.default, said.description, said.decorated)
        return self.entries.setdefault(said.name, Entry(said, line))

    def add_item(self, item: Item, *, required: bool | None = None, strict: bool = False) -> bool:
        """A list item with what is nested in it; ``strict`` wants a decorated name with a type or need."""
        said = read_parameter(item.text)
        if said is None or (
            strict and not (said.decorated and (said.type is not None or said.required is not None))
        ):
            return False
        if not strict and not said.decorated and not re.match(rf"^{NAME}\??\s*(?:[:(–—-]|$)", item.text):
            return False
        entry = self.add(said, item.line, required)
        if entry is not None and (said.type is None or {"object", "array"} & set(said.type.types)):
            entry.children = _nested(item.items)
        return True

    def add_members(self, item: Item) -> None:
        """``Each object contains:`` below one parameter: its members."""
        if self.entries:
            last = list(self.entries.values())[-1]
            last.children = last.children or _nested([item])

    def add_line(self, text: str, line: int, required: bool | None) -> None:
        """Several parameters on one line: ``\\`path\\` (string), \\`depth\\` (number, optional)``."""
        for part in _top_level(re.sub(r"<br\s*/?>", ",", text)):
            bare = part.strip(" .")
            if bare and not re.fullmatch(r"-+|–|—|none|n/a|no parameters?", bare, re.IGNORECASE):
                said = read_parameter(bare)
                if said is not None and (said.decorated or re.fullmatch(rf"{NAME}[?*]?.*", bare)):
                    self.add(said, line, required)

    def add_signature(self, text: str, line: int) -> None:
        """``title: str, due: str = None`` of ``create_task(title: str, due: str = None)``."""
        for part in _top_level(text):
            head, has_default, default = part.partition("=")
            name, _, type_ = head.partition(":")
            optional = name.strip().endswith("?") or bool(has_default)
            name = name.strip().strip("`*[]?").strip()
            if re.fullmatch(NAME, name) and name not in ("self", "ctx", "context"):
                value = literal(default) if has_default else None
                self.add(Said(name, read_type(type_), not optional, value), line)

    def add_table(self, table: Table) -> None:
        """A table with a column of names and one of types, needs or texts."""
        heads = [plain(cell).lower() for cell in table.header]

        def column(pattern: str) -> int:
            return next((i for i, head in enumerate(heads) if re.match(pattern, head)), -1)

        name, type_ = (
            column(r"(parameter|param|argument|arg|field|property|name|input|key)\b"),
            column("type"),
        )
        need, text, default = (
            column("required|optional|mandatory"),
            column("desc|meaning|notes|purpose"),
            column("default"),
        )
        if name < 0 or max(type_, need, text) < 0:
            return
        for line, row in table.rows:

            def cell(index: int, row: list[str] = row) -> str:
                return row[index].strip() if 0 <= index < len(row) else ""

            said = read_parameter(cell(name))
            if said is None:
                continue
            word = read_type(plain(cell(type_))) if type_ >= 0 else said.type
            wanted = _need(cell(need), heads[need]) if need >= 0 else None
            value = (
                literal(plain(cell(default)))
                if default >= 0 and plain(cell(default)) not in ("", "-", "–")
                else None
            )
            required = wanted if wanted is not None else said.required
            if required is None and word is not None:
                required = word.required
            if required is None and value is not None:
                required = False
            self.add(Said(said.name, word, required, value, plain(cell(text)), True), line)

    def add_fence(self, fence: Fence) -> None:
        """A JSON block: a JSON Schema with properties, or an example object."""
        value = _json(fence)
        schema = map_or_none(value)
        if schema is None:
            return
        pointer = f"line {fence.line}"
        if map_or_none(schema.get("properties")) is not None:
            reader = SchemaReader(schema, pointer)
            whole = reader.field("body", Sub(schema, pointer), location="argument")
            self.schema = self.schema or whole.properties
            return
        for name, example in schema.items():
            said = Said(name, TypeWord(types=(_kind(example),)) if example is not None else None)
            if isinstance(example, str) and (word := read_type(example)) is not None:
                said = Said(name, word, word.required)  # {"title": "string"}
            if re.fullmatch(NAME, name):
                self.add(said, fence.line)


def output_of_items(items: list[Item], said: str, line: int) -> FieldSpec | None:
    """Result schema from nested ``name (type): text`` items; None when they name nothing with a type."""
    fields = [e for e in _nested(items) if e.said.decorated or e.said.type is not None]
    if not fields or not any(e.said.type is not None for e in fields):
        return None
    record = tuple(_spec(e, required=False) for e in fields)
    many = bool(re.search(r"\b(array|list)\b", said, re.IGNORECASE))
    inner = FieldSpec(
        name="item" if many else "result", type="object", properties=record, pointer=f"line {line}"
    )
    if not many:
        return inner
    return FieldSpec(
        name="result", type="array", items=inner, pointer=f"line {line}", description=plain(said)
    )


def output_of_fence(fence: Fence) -> FieldSpec | None:
    """Result schema from a JSON block: a JSON Schema, or an example whose types are taken over."""
    value = _json(fence)
    mapping = map_or_none(value)
    pointer = f"line {fence.line}"
    if mapping is not None and (
        map_or_none(mapping.get("properties")) or mapping.get("type") in ("array", "object")
    ):
        return SchemaReader(mapping, pointer).field(
            "result", Sub(mapping, pointer), location="response", output=True
        )
    if value is None:
        return None
    found = of_example("result", value, pointer)
    return found.model_copy(
        update={"description": "assumption: types of the example shown", "example": value}
    )


def of_example(name: str, value: Any, pointer: str) -> FieldSpec:
    """The schema of an example value."""
    items, mapping = list_or_none(value), map_or_none(value)
    if items is not None:
        inner = of_example("item", items[0], pointer) if items else None
        return FieldSpec(name=name, type="array", items=inner, pointer=pointer)
    if mapping is not None:
        members = tuple(of_example(key, member, pointer) for key, member in mapping.items())
        return FieldSpec(name=name, type="object", properties=members, pointer=pointer)
    return FieldSpec(name=name, type=_kind(value), example=value, pointer=pointer)


# ------------------------------------------------------------------------------------------------ parts
def _nested(items: list[Item]) -> list[Entry]:
    found: list[Entry] = []
    for item in items:
        said = read_parameter(item.text)
        if said is not None and (said.decorated or said.type is not None):
            found.append(Entry(said, item.line, _nested(item.items)))
        elif item.text.rstrip().endswith(":"):  # "Each object contains:"
            found.extend(_nested(item.items))
    return found


def _spec(entry: Entry, *, required: bool) -> FieldSpec:
    said = entry.said
    word = said.type or TypeWord(types=(_assumed(said.name, bool(entry.children)),))
    type_: FieldType = "any" if not word.types else "string" if "string" in word.types else word.types[0]
    inner = tuple(_spec(child, required=child.said.required is True) for child in entry.children)
    items: FieldSpec | None = None
    if type_ == "array":
        element = read_type(word.items) if word.items else None
        kind: FieldType = "object" if inner else (element.types[0] if element and element.types else "any")
        known = inner or word.items
        items = (
            FieldSpec(name="item", type=kind, properties=inner, pointer=f"line {entry.line}")
            if known
            else None
        )
    spec = FieldSpec(
        name=said.name,
        type=type_,
        required=required,
        nullable=word.nullable,
        description=plain(said.description),
        enum=word.enum,
        format=word.format,
        default=said.default,
        items=items,
        properties=inner if type_ == "object" else (),
        location="argument",
        pointer=f"line {entry.line}",
    )
    return with_prose_enum(spec)


def _assumed(name: str, nested: bool) -> FieldType:
    """Type of a parameter of which only the name is known."""
    lower = name.lower()
    if nested:
        return "object"
    if lower.startswith(_TRUTH):
        return "boolean"
    return "integer" if lower.split("_")[-1] in _WHOLE and not lower.endswith("phone_number") else "string"


def _need(text: str, head: str) -> bool | None:
    said = plain(text).lower()
    if said in ("", "-", "–"):
        return False if head.startswith("required") else None
    yes = said in ("yes", "true", "y", "✓", "✔", "✅", "x", "required") or said.startswith(
        ("yes", "required")
    )
    return yes if not head.startswith("optional") else not yes


def _kind(value: Any) -> FieldType:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "string"


def _json(fence: Fence) -> JsonMap | list[Any] | None:
    if fence.language not in _JSON:
        return None
    try:
        value = json.loads(fence.text)
    except (ValueError, RecursionError):
        return None
    mapping, items = map_or_none(value), list_or_none(value)
    return mapping if mapping is not None else items


def _top_level(text: str) -> list[str]:
    """Parts at commas outside brackets and code."""
    parts, depth, code = [""], 0, False
    for char in text:
        code = not code if char == "`" else code
        depth += 0 if code else (char in "([{<") - (char in ")]}>")
        if char in ",;" and depth <= 0 and not code:
            parts.append("")
        else:
            parts[-1] += char
    return parts
