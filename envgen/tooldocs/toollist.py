"""What MCP and function-calling lists share: one tool entry with a JSON Schema (or an argument list) ->
ToolSpec."""

from __future__ import annotations

from typing import Any

from envgen.errors import DocumentError
from envgen.tooldocs.naming import clean_name, words
from envgen.tooldocs.node import Sub
from envgen.tooldocs.openapi import with_prose_enum
from envgen.tooldocs.prose import split_docstring
from envgen.tooldocs.schema import SchemaReader
from envgen.tooldocs.tree import JsonMap, as_list, as_map, as_text, join, list_or_none, map_or_none
from envgen.types import FieldSpec, ToolSpec

SCHEMA_KEYS = ("inputSchema", "input_schema", "parameters", "inputs", "args_schema")
OUTPUT_KEYS = ("outputSchema", "output_schema", "response", "returns")


def looks_like_tool(value: object) -> bool:
    """True for an object with a name and a schema, arguments or a description, or ``{type, function}``."""
    entry = map_or_none(value)
    if entry is None:
        return False
    if map_or_none(entry.get("function")) is not None:
        return True
    return "name" in entry and any(key in entry for key in (*SCHEMA_KEYS, "arguments", "description"))


def find_list(tree: object) -> tuple[list[Any], str, JsonMap] | None:
    """(entries, pointer, wrapper) of the tool list in a document: bare, ``{tools}``, ``{functions}``, JSON-
    RPC, one tool."""
    entries = list_or_none(tree)
    if entries is not None:
        return entries, "", {}
    wrapper = map_or_none(tree)
    if wrapper is None:
        return None
    for key in ("tools", "functions"):
        if list_or_none(wrapper.get(key)) is not None:
            return as_list(wrapper[key], join("", key), key), join("", key), wrapper
    result = map_or_none(wrapper.get("result"))
    if result is not None and list_or_none(result.get("tools")) is not None:
        return as_list(result["tools"], "/result/tools", "tools"), "/result/tools", wrapper
    if looks_like_tool(wrapper) and any(key in wrapper for key in (*SCHEMA_KEYS, "arguments", "function")):
        return [wrapper], "", {}
    return None


def read_entry(raw: object, pointer: str) -> ToolSpec:
    """One entry of a tool list. Raises DocumentError by pointer."""
    entry = as_map(raw, pointer, "tool")
    if map_or_none(entry.get("function")) is not None:  # OpenAI chat form
        entry, pointer = (
            as_map(entry["function"], join(pointer, "function"), "function"),
            join(pointer, "function"),
        )
    name = as_text(entry.get("name"), join(pointer, "name"), "name")
    if not name.strip():
        raise DocumentError(
            f"{pointer or '/'}: a tool has no name; expected name, description and a parameter schema"
        )
    text = as_text(entry.get("description"), join(pointer, "description"), "description")
    description, said = split_docstring(text)
    hints = map_or_none(entry.get("annotations")) or {}
    params = _params(entry, pointer, name)
    return ToolSpec(
        name=clean_name(name, pointer),
        description=description,
        params=tuple(with_prose_enum(_described(param, said)) for param in params),
        output=_output(entry, pointer),
        read_only=_hint(hints, "readOnlyHint", pointer),
        destructive=_hint(hints, "destructiveHint", pointer),
        idempotent=_hint(hints, "idempotentHint", pointer),
        pointer=pointer or "/",
    )


def _described(param: FieldSpec, said: dict[str, str]) -> FieldSpec:
    if param.description or param.name not in said:
        return param
    return param.model_copy(update={"description": said[param.name]})


def _hint(hints: JsonMap, key: str, pointer: str) -> bool | None:
    value = hints.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise DocumentError(f"{join(pointer, 'annotations', key)}: expected true or false")


def _params(entry: JsonMap, pointer: str, name: str) -> list[FieldSpec]:
    for key in SCHEMA_KEYS:
        if entry.get(key) is not None:
            if list_or_none(entry[key]) is not None:
                return _argument_list(as_list(entry[key], join(pointer, key), key), join(pointer, key), name)
            return _schema_params(as_map(entry[key], join(pointer, key), key), join(pointer, key))
    if entry.get("arguments") is not None:
        place = join(pointer, "arguments")
        if list_or_none(entry["arguments"]) is not None:
            return _argument_list(as_list(entry["arguments"], place, "arguments"), place, name)
        return _schema_params(as_map(entry["arguments"], place, "arguments"), place)
    return []


def _schema_params(schema: JsonMap, pointer: str) -> list[FieldSpec]:
    reader = SchemaReader(schema, pointer)
    node = reader.flatten(Sub(schema, pointer))
    if node.types and node.types != ("object",):
        raise DocumentError(
            f"{pointer}: the parameter schema is of type {node.types[0]}, expected an object with properties"
        )
    result: list[FieldSpec] = []
    for name, sub in node.members.items():
        inner = reader.flatten(sub)
        required = name in node.required or inner.required_self
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
    """What the entry says; else, in a tool that marks its optional arguments, all others; else ids, the first
    argument, names and titles; and of a change only the ids (nobody must re-send what does not change)."""
    if isinstance(argument.get("required"), bool):
        return argument["required"] is True
    if _says_optional(argument):
        return False
    if marked:
        return True
    parts = words(name)
    if parts[-1:] in (("id",), ("ids",)):
        return True
    if words(tool)[:1] and words(tool)[0] in {"update", "edit", "modify", "patch", "change"}:
        return False
    return (
        index == 0
        or parts[-1:] in (("name",), ("title",))
        or words(tool)[:1] in (("set",), ("get",), ("search",))
    )


def _output(entry: JsonMap, pointer: str) -> FieldSpec | None:
    for key in OUTPUT_KEYS:
        if map_or_none(entry.get(key)) is not None:
            place = join(pointer, key)
            return SchemaReader(entry[key], place).field(
                "result", Sub(entry[key], place), location="response", output=True
            )
    return None
