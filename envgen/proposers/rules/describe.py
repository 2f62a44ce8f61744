"""What the agent is told: one short line per tool, parameters as JSON Schema, and the rules of the domain."""

from __future__ import annotations

from typing import Any

from envgen.proposers.rules.words import a, first_sentence
from envgen.types import AgentTool, FieldSpec, StateSchema, ToolSemantics, ToolSpec

_MAX_POLICY = 350


def agent_tool(spec: ToolSpec, semantics: ToolSemantics, schema: StateSchema) -> AgentTool:
    """The tool as the agent sees it: parameters without effect are left out."""
    hidden = set(semantics.ignored)
    key = [semantics.key] if semantics.key is not None else []
    needed = {b.param for b in (*key, *semantics.scope, *semantics.writes) if b.required}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for param in spec.params:
        if param.name in hidden:
            continue
        properties[param.name] = json_schema(param, _enum_of(param, semantics, schema))
        if param.required or param.name in needed:
            required.append(param.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    parameters["additionalProperties"] = False
    return AgentTool(name=spec.name, description=_line(spec, semantics, schema), parameters=parameters)


def _line(spec: ToolSpec, semantics: ToolSemantics, schema: StateSchema) -> str:
    """First sentence of the description; a plain verb and noun where that one starts with a condition."""
    text = spec.description
    if "Tool description:" in text:
        text = text.split("Tool description:", 1)[1]
    line = first_sentence(text)
    if line and not line.lower().startswith(("by ", "if ", "when ", "this can only")):
        return line
    collection = schema.collection(semantics.collection)
    noun = (
        collection.name.replace("_", " ") if semantics.many or collection.singleton else a(collection.entity)
    )
    return f"{semantics.verb.capitalize()} {noun}"


def _enum_of(param: FieldSpec, semantics: ToolSemantics, schema: StateSchema) -> tuple[Any, ...]:
    """Values of the state field a parameter is stored in, so that every tool that writes it agrees."""
    if param.enum:
        return param.enum
    collection = schema.collection(semantics.collection)
    for binding in (*semantics.writes, *semantics.filters):
        if binding.param == param.name and param.type in ("string", "any"):
            for item in collection.fields:
                if item.name == binding.field and item.type == "enum":
                    return item.enum
    return ()


def json_schema(spec: FieldSpec, enum: tuple[Any, ...] = ()) -> dict[str, Any]:
    """JSON Schema of one parameter."""
    out: dict[str, Any] = {}
    if spec.type != "any":
        out["type"] = [spec.type, "null"] if spec.nullable else spec.type
    values = list(enum or spec.enum)
    if values:
        out["enum"] = [*values, None] if spec.nullable and None not in values else values
    if spec.type == "array" and spec.items is not None:
        out["items"] = json_schema(spec.items)
    if spec.type == "object" and spec.properties:
        out["properties"] = {p.name: json_schema(p) for p in spec.properties}
        needed = [p.name for p in spec.properties if p.required]
        if needed:
            out["required"] = needed
    if spec.format and spec.format in ("date", "date-time", "time", "email"):
        out["format"] = spec.format
    if spec.default is not None:
        out["default"] = spec.default
    if spec.description:
        out["description"] = first_sentence(spec.description, 100)
    return out


def policy_text(schema: StateSchema, semantics: tuple[ToolSemantics, ...]) -> str:
    """The rules the functions enforce, and how to behave, in at most 350 characters."""
    sentences = [
        "Look ids up with the tools; never guess them.",
        "If something you need is missing, ask the user.",
        "Change only what the user asks for.",
    ]
    rules: list[str] = []
    for tool in semantics:
        noun = schema.collection(tool.collection).entity
        if tool.verb == "delete" and tool.cascades:
            rules.append(f"Deleting {a(noun)} deletes everything in it.")
    for tool in semantics:
        noun = schema.collection(tool.collection).entity
        for rule in tool.preconditions:
            if rule.kind == "no_children":
                child = schema.collection(rule.collection).entity
                rules.append(f"{a(noun).capitalize()} with {a(child)} cannot be deleted.")
            elif rule.kind == "unique":
                rules.append(f"The {rule.field} of each {noun} is unique.")
    if any(rule.kind == "field_not_equals" for tool in semantics for rule in tool.preconditions):
        rules.append("Setting a state that already holds is an error.")
    for rule in dict.fromkeys(rules):
        if sum(len(s) + 1 for s in [*sentences, rule]) <= _MAX_POLICY and len(sentences) < 8:
            sentences.append(rule)
    return " ".join(sentences) + "\n"
