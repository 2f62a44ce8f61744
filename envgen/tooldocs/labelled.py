"""Plain text with one labelled block per tool (ToolAlpaca's ``NLDocumentation`` and kin) -> ToolDoc.

createRole: Create a new role.
Parameters: {"roleName": "Required. string. The name of the role.", "tags": "Array[string]. Words."}
Output: The role.
 - Structure: Object{roleId, roleName}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from envgen.errors import DocumentError
from envgen.tooldocs.load import Loaded
from envgen.tooldocs.naming import clean_name, unique_tools
from envgen.tooldocs.node import Sub
from envgen.tooldocs.param_text import read_sentence
from envgen.tooldocs.prose import with_prose_enum
from envgen.tooldocs.schema import SchemaReader
from envgen.tooldocs.tree import JsonMap, join, map_or_none
from envgen.tooldocs.type_words import read_type
from envgen.types import FieldSpec, LintFinding, ToolDoc, ToolSpec

_HEAD = re.compile(r"^(?P<name>[A-Za-z][\w.\-]*):\s+(?P<text>\S.*)$")
_LABEL = re.compile(
    r"^\s*-?\s*(?P<label>parameters?|arguments?|args|inputs?|outputs?|returns?|response|format|structure)"
    r"\s*:\s*(?P<text>.*)$",
    re.IGNORECASE,
)
_NEED = re.compile(r"^\s*(?P<need>required|optional)\s*[.,:]\s*", re.IGNORECASE)
_INPUT = ("param", "arg", "input")
MIN_TOOLS = 2


@dataclass
class _Block:
    """One tool: its line, and its labels with their lines and texts."""

    name: str
    line: int
    description: str
    labels: dict[str, tuple[int, str]]


def blocks_of(text: str) -> list[_Block]:
    """The labelled blocks of a text, each with a parameter label; empty when it has none."""
    found: list[_Block] = []
    more: dict[tuple[int, str], list[str]] = {}  # lines that continue a label's text
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        label, head = _LABEL.match(line), _HEAD.match(line)
        if label is not None and found:
            current = label["label"].lower()
            found[-1].labels.setdefault(current, (number, label["text"].strip()))
        elif head is not None and label is None:
            found.append(_Block(head["name"], number, head["text"].strip(), {}))
            current = ""
        elif found and line.strip() and current:
            more.setdefault((len(found) - 1, current), []).append(line.strip())
    for (index, label), lines in more.items():
        place, said = found[index].labels[label]
        found[index].labels[label] = (place, " ".join([said, *lines]).strip())
    return [block for block in found if any(label.startswith(_INPUT) for label in block.labels)]


def labelled_text(tree: object) -> tuple[str, str] | None:
    """(text, pointer) of the labelled tool list in a document: the text itself, or one member of an
    object."""
    if isinstance(tree, str):
        return (tree, "") if len(blocks_of(tree)) >= MIN_TOOLS else None
    for key, value in (map_or_none(tree) or {}).items():
        if isinstance(value, str) and len(blocks_of(value)) >= MIN_TOOLS:
            return value, join("", key)
    return None


def read_labelled(loaded: Loaded, text: str, pointer: str) -> ToolDoc:
    """The blocks as tools; pointers are ``/NLDocumentation line N``. Raises DocumentError."""
    findings: list[LintFinding] = []
    tools = [_tool(block, pointer, findings) for block in blocks_of(text)]
    around = map_or_none(loaded.tree) or {}
    said = {key.lower(): value for key, value in around.items() if isinstance(value, str)}
    where = f" in {pointer}" if pointer else ""
    return ToolDoc(
        title=said.get("name") or said.get("title") or loaded.source.rsplit(".", 1)[0],
        format="labelled-text",
        source=loaded.source,
        sha256=loaded.sha256,
        description=said.get("description", ""),
        tools=unique_tools(tools, loaded.source),
        detected=f"text with a labelled block per tool{where} ({len(tools)} blocks)",
        findings=tuple(findings),
    )


def _tool(block: _Block, pointer: str, findings: list[LintFinding]) -> ToolSpec:
    place = f"{pointer} line {block.line}".strip()
    params: list[FieldSpec] = []
    output: FieldSpec | None = None
    for label, (line, text) in block.labels.items():
        where = f"{pointer} line {line}".strip()
        if label.startswith(_INPUT):
            params = _params(text, where)
        elif label == "structure" or (label in ("output", "outputs", "returns", "return", "response")):
            found = structure(text)
            if found is not None and found[0].get("type") in ("object", "array"):
                output = _field("result", found[0], where, required=False, output=True)
    said = next((t for key, (_, t) in block.labels.items() if key.startswith(("output", "return"))), "")
    if output is not None and len(output.properties) == 1 and not output.properties[0].description:
        only = output.properties[0].model_copy(update={"description": said})
        output = output.model_copy(update={"properties": (only,)})
    untyped = [p.name for p in params if p.type == "any"]
    if output is not None and '"assumed"' in json.dumps(_formats(output)):
        untyped.append("members of the result")
    if untyped:
        findings.append(
            LintFinding(
                level="warning",
                code="type-assumed",
                message=f"{block.name}: no type is given for {', '.join(untyped)}; taken for text",
                pointer=place,
            )
        )
    description = " ".join(block.description.split())
    return ToolSpec(
        name=clean_name(block.name, place),
        description=description,
        params=tuple(with_prose_enum(p) for p in params),
        output=_without_marks(output) if output is not None else None,
        pointer=place,
    )


def _params(text: str, pointer: str) -> list[FieldSpec]:
    if re.fullmatch(r"(none|n/a|no parameters?|\{\}|-)?\.?", text.strip(), re.IGNORECASE):
        return []
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DocumentError(
            f"{pointer}: the parameters are no JSON object ({error}); expected "
            '{"name": "Required. string. Text."} or None'
        ) from error
    mapping = map_or_none(value)
    if mapping is None:
        raise DocumentError(f"{pointer}: the parameters are no JSON object; expected name and text of each")
    return [_param(name, raw, pointer) for name, raw in mapping.items()]


def _param(name: str, raw: Any, pointer: str) -> FieldSpec:
    if not isinstance(raw, str):
        schema = map_or_none(raw)
        if schema is None:
            raise DocumentError(f"{pointer}: parameter {name!r} is described by {raw!r}; expected text")
        return _field(name, schema, pointer, required=schema.get("required") is True)
    need = _NEED.match(raw)
    body = raw[need.end() :] if need is not None else raw
    found = structure(body)
    required = need is not None and need["need"].lower() == "required"
    if found is not None:
        schema, rest = found
        return _field(name, {**schema, "description": rest.strip(" .")}, pointer, required=required)
    said = read_sentence(name, raw)
    types = list(said.type.types) if said.type is not None else []
    schema = {"type": types or ["string"], "description": said.description}
    if said.type is not None and said.type.format:
        schema["format"] = said.type.format
    return _field(name, schema, pointer, required=required or said.required is True)


# ------------------------------------------------------------------------------------------------ structures
def structure(text: str) -> tuple[JsonMap, str] | None:
    """(JSON Schema, rest of the text) of ``Object{a, b: string. Text., c: Array[Object{d}]}``; None when
    the text begins with no such structure. Members without a type are text, marked ``assumed``."""
    body = text.strip()
    head = re.match(r"(object|dict|array|list)\s*(?P<open>[\[{(])", body, re.IGNORECASE)
    if head is None:
        return None
    inner, rest = _balanced(body[head.end() - 1 :])
    if head[1].lower() in ("array", "list"):
        nested = structure(inner)
        word = read_type(inner.strip().strip("."))
        items = nested[0] if nested is not None else {"type": list(word.types)} if word is not None else {}
        return {"type": "array", "items": items}, rest
    members: JsonMap = {}
    for part in _members(inner):
        name, _, said = part.partition(":")
        name = name.strip().strip("\"'")
        if re.fullmatch(r"[A-Za-z_$][\w$\-]*", name):
            members[name] = _member(said)
    return {"type": "object", "properties": members}, rest


def _member(said: str) -> JsonMap:
    nested = structure(said)
    if nested is not None:
        return {**nested[0], "description": nested[1].strip(" .")}
    sentence = read_sentence("", said)
    if sentence.type is not None and sentence.type.types:
        return {"type": list(sentence.type.types), "description": sentence.description}
    return {"type": "string", "description": said.strip(" ."), "format": "assumed"}


def _balanced(text: str) -> tuple[str, str]:
    """(inside, after) of the bracket that ``text`` begins with; an open end closes at the text's end."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if depth == 0:
            return text[1:index], text[index + 1 :]
    return text[1:], ""


def _members(text: str) -> list[str]:
    """Parts at commas outside brackets; a comma inside a sentence belongs to it."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


def _field(name: str, schema: JsonMap, pointer: str, *, required: bool, output: bool = False) -> FieldSpec:
    found = SchemaReader(schema, pointer).field(
        name,
        Sub(schema, pointer),
        location="response" if output else "argument",
        required=required,
        output=output,
    )
    return _placed(found, pointer)


def _placed(spec: FieldSpec, pointer: str) -> FieldSpec:
    """All nodes point to the line: a JSON pointer cannot reach into text."""
    items = _placed(spec.items, pointer) if spec.items is not None else None
    members = tuple(_placed(member, pointer) for member in spec.properties)
    return spec.model_copy(update={"pointer": pointer, "items": items, "properties": members})


def _formats(spec: FieldSpec) -> list[Any]:
    inner = [_formats(m) for m in spec.properties] + (
        [_formats(spec.items)] if spec.items is not None else []
    )
    return [spec.format, *inner]


def _without_marks(spec: FieldSpec) -> FieldSpec:
    """The spec without the ``assumed`` marks, which become part of the description."""
    items = _without_marks(spec.items) if spec.items is not None else None
    members = tuple(_without_marks(member) for member in spec.properties)
    update: dict[str, Any] = {"items": items, "properties": members}
    if spec.format == "assumed":
        update["format"] = ""
    return spec.model_copy(update=update)
