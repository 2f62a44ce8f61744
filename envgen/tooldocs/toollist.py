"""One entry of an MCP or function-calling list, in any of their spellings -> ToolSpec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envgen.errors import DocumentError
from envgen.tooldocs.listing import SCHEMA_KEYS
from envgen.tooldocs.local_files import LocalFiles
from envgen.tooldocs.naming import clean_name
from envgen.tooldocs.node import Sub
from envgen.tooldocs.param_text import read_sentence
from envgen.tooldocs.prose import split_docstring, with_prose_enum
from envgen.tooldocs.required import assumed_required
from envgen.tooldocs.schema import SchemaReader
from envgen.tooldocs.tree import JsonMap, as_list, as_map, as_text, join, list_or_none, map_or_none
from envgen.tooldocs.type_words import read_type
from envgen.types import FieldSpec, ToolSpec

OUTPUT_KEYS = (
    "outputSchema", "output_schema", "response", "responseJsonSchema", "response_json_schema", "returns",
    "return", "results",
)  # fmt: skip
_SCHEMA_WORDS = ("properties", "$ref", "allOf", "oneOf", "anyOf", "additionalProperties", "patternProperties")


@dataclass(frozen=True)
class Around:
    """What an entry may refer to beside itself: the whole document, and the files in its folder."""

    document: Any = None
    files: LocalFiles = field(default_factory=LocalFiles)


def read_entry(raw: object, pointer: str, around: Around | None = None) -> ToolSpec:
    """One entry of a tool list. Raises DocumentError by pointer."""
    around = around if around is not None else Around()
    entry = as_map(raw, pointer, "tool")
    for envelope in ("function", "toolSpec"):  # OpenAI chat form, Bedrock
        if map_or_none(entry.get(envelope)) is not None:
            place = join(pointer, envelope)
            outer_hints = map_or_none(entry.get("annotations"))
            entry, pointer = as_map(entry[envelope], place, envelope), place
            if outer_hints is not None and "annotations" not in entry:
                entry = {**entry, "annotations": outer_hints}
    name = as_text(entry.get("name"), join(pointer, "name"), "name")
    if not name.strip():
        raise DocumentError(
            f"{pointer or '/'}: a tool has no name; expected name, description and a parameter schema"
        )
    text = as_text(entry.get("description"), join(pointer, "description"), "description")
    description, said = split_docstring(text)
    hints = map_or_none(entry.get("annotations")) or {}
    title = as_text(entry.get("title") or hints.get("title"), join(pointer, "title"), "title")
    params = _params(entry, pointer, name, around)
    return ToolSpec(
        name=clean_name(name, pointer),
        description=description or " ".join(title.split()),
        params=tuple(with_prose_enum(_described(param, said)) for param in params),
        output=_output(entry, pointer, around),
        read_only=_hint(entry, hints, "readOnlyHint", pointer),
        destructive=_hint(entry, hints, "destructiveHint", pointer),
        idempotent=_hint(entry, hints, "idempotentHint", pointer),
        pointer=pointer or "/",
    )


def _described(param: FieldSpec, said: dict[str, str]) -> FieldSpec:
    if param.description or param.name not in said:
        return param
    return param.model_copy(update={"description": said[param.name]})


def _hint(entry: JsonMap, hints: JsonMap, key: str, pointer: str) -> bool | None:
    """A hint among the annotations, in camel or snake case, or beside the name."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in key)
    for holder, place in ((hints, join(pointer, "annotations")), (entry, pointer)):
        for spelling in (key, snake):
            value = holder.get(spelling)
            if isinstance(value, bool):
                return value
            if value is not None:
                raise DocumentError(f"{join(place, spelling)}: expected true or false")
    return None


# ------------------------------------------------------------------------------------------------ parameters
def _params(entry: JsonMap, pointer: str, name: str, around: Around) -> list[FieldSpec]:
    for key in (*SCHEMA_KEYS, "arguments"):
        if entry.get(key) is None:
            continue
        place = join(pointer, key)
        if list_or_none(entry[key]) is not None:
            return _argument_list(as_list(entry[key], place, key), place, name)
        schema = as_map(entry[key], place, key)
        if key == "inputSchema" and map_or_none(schema.get("json")) is not None and "type" not in schema:
            schema, place = (
                as_map(schema["json"], join(place, "json"), "json"),
                join(place, "json"),
            )  # Bedrock
        bare = bare_properties(schema)
        if bare is not None:
            return _bare_params(bare, place, around)
        return _schema_params(schema, place, around, also_required=entry.get("required"))
    return []


def bare_properties(schema: JsonMap) -> JsonMap | None:
    """The schema itself when it is a bare map of parameters (xLAM, Cohere: ``{"city": {"type": "str"}}``),
    or of type words; None for a JSON Schema."""
    if any(word in schema for word in _SCHEMA_WORDS) or not schema:
        return None
    if isinstance(schema.get("type"), str) and read_type(schema["type"]) is not None:
        others = [v for k, v in schema.items() if k != "type"]
        if not others or not all(map_or_none(v) is not None for v in others):
            return None
    described = all(map_or_none(v) is not None and _is_schema(map_or_none(v) or {}) for v in schema.values())
    worded = all(isinstance(v, str) and read_sentence("", v).type is not None for v in schema.values())
    return schema if described or worded else None


def _is_schema(value: JsonMap) -> bool:
    return any(key in value for key in ("type", "description", "enum", "default", *_SCHEMA_WORDS))


def _bare_params(schema: JsonMap, pointer: str, around: Around) -> list[FieldSpec]:
    """A bare map says ``required`` in the parameter, as ``str, optional``, or by a default."""
    result: list[FieldSpec] = []
    for name, raw in schema.items():
        place = join(pointer, name)
        if isinstance(raw, str):
            said = read_sentence(name, raw)
            types = said.type.types if said.type is not None else ()
            value: JsonMap = {"type": list(types), "description": said.description} if types else {}
            required = said.required is not False
        else:
            value = as_map(raw, place, "parameter")
            word = read_type(value["type"]) if isinstance(value.get("type"), str) else None
            need = value.get("required")
            if isinstance(need, bool):
                required = need
            elif word is not None and word.required is not None:
                required = word.required
            else:
                required = "default" not in value
            value = {key: v for key, v in value.items() if key != "required" or isinstance(v, list)}
        reader = SchemaReader(value, place, around.files, around.document)
        result.append(reader.field(name, Sub(value, place), location="argument", required=required))
    return result


def _schema_params(
    schema: JsonMap, pointer: str, around: Around, also_required: object = None
) -> list[FieldSpec]:
    """``also_required``: a list of names beside the schema instead of in it."""
    reader = SchemaReader(schema, pointer, around.files, around.document)
    node = reader.flatten(Sub(schema, pointer))
    if node.types and node.types != ("object",):
        raise DocumentError(
            f"{pointer}: the parameter schema is of type {node.types[0]}, expected an object with properties"
        )
    beside = {str(name) for name in list_or_none(also_required) or []}
    result: list[FieldSpec] = []
    for name, sub in node.members.items():
        inner = reader.flatten(sub)
        required = name in node.required or name in beside or inner.required_self
        spec = reader.node_field(name, inner, location="argument", required=required)
        result.append(spec.model_copy(update={"pointer": sub.pointer}))
    return result


def _argument_list(entries: list[Any], pointer: str, tool: str) -> list[FieldSpec]:
    """``arguments: [{name, type, desc}]``. This dialect seldom says what is required: see ``_required``."""
    result: list[FieldSpec] = []
    marked = any(_says_optional(map_or_none(raw) or {}) for raw in entries)
    for index, raw in enumerate(entries):
        place = join(pointer, index)
        argument = as_map(raw, place, "argument")
        name = as_text(argument.get("name"), join(place, "name"), "name").strip()
        if not name:
            raise DocumentError(f"{place}: an argument has no name; expected name, type and desc")
        schema = {key: value for key, value in argument.items() if key not in ("name", "required")}
        spec = SchemaReader(argument, place).field(name, Sub(schema, place), location="argument")
        required = _required(argument, name, tool, marked, index)
        result.append(spec.model_copy(update={"required": required}))
    return result


def _says_optional(argument: JsonMap) -> bool:
    text = str(argument.get("desc") or argument.get("description") or "").lower()
    return (
        argument.get("optional") is True
        or argument.get("required") is False
        or "(optional)" in text
        or "optional" in text.split()[:1]
    )


def _required(argument: JsonMap, name: str, tool: str, marked: bool, index: int) -> bool:
    """What the entry says; else, in a tool that marks its optional arguments, all others; else by its
    name."""
    if isinstance(argument.get("required"), bool):
        return argument["required"] is True
    if _says_optional(argument):
        return False
    return marked or assumed_required(name, tool, index)


def _output(entry: JsonMap, pointer: str, around: Around) -> FieldSpec | None:
    for key in OUTPUT_KEYS:
        schema = map_or_none(entry.get(key))
        if schema is not None:
            place = join(pointer, key)
            if (bare := bare_properties(schema)) is not None:
                schema = {"type": "object", "properties": bare}
            reader = SchemaReader(schema, place, around.files, around.document)
            return reader.field("result", Sub(schema, place), location="response", output=True)
    return None
