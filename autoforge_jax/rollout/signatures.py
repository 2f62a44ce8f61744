"""Tools as text for the system message: compact signatures, or the full JSON schemas that pretrained models
know.

    listTasks(project_id, status?: open|done, limit?: int) - List the tasks that are due

The prompt is paid for in every rollout, so a signature says only what is not the rule: strings carry no type,
an optional parameter may always be null and its members are not spelled out when it is an object, a
description that only repeats the name is left out. The `json` style holds everything.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from envgen.interface import AgentTool

_SHORT = {"integer": "int", "number": "num", "boolean": "bool", "array": "list", "object": "obj"}
_STRING = "str"
_MAX_DESCRIPTION = 48
_MAX_DEPTH = 4
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_FILLERS = frozenset(
    (
        *(
            "a",
            "an",
            "the",
            "of",
            "for",
            "from",
            "in",
            "on",
            "to",
            "by",
            "with",
            "and",
            "or",
            "all",
            "any",
            "its",
            "is",
        ),
        *(
            "new",
            "existing",
            "specific",
            "given",
            "single",
            "one",
            "this",
            "that",
            "list",
            "get",
            "return",
            "returns",
        ),
        *("retrieve", "fetch", "details", "detail", "information"),
    )
)


def signature(tool: AgentTool, *, describe: bool = True) -> str:
    """One line for one tool: name, parameters (``?`` = optional, enums spelled out), first sentence of its
    description unless ``describe`` is False."""
    line = f"{tool.name}({_members(tool.parameters, _MAX_DEPTH)})"
    about = one_line(tool.description) if describe else ""
    return f"{line} - {about}" if _adds_something(tool.name, about) else line


def one_line(text: str, limit: int = _MAX_DESCRIPTION) -> str:
    """The first sentence of ``text`` on one line, cut at a word within ``limit`` characters."""
    flat = " ".join(text.split())
    for end in (". ", "; ", " ("):
        flat = flat.split(end, 1)[0]
    flat = flat.rstrip(".")
    if len(flat) <= limit:
        return flat
    return flat[: limit + 1].rsplit(" ", 1)[0][:limit].rstrip(",;:")


def _adds_something(name: str, about: str) -> bool:
    """False when every word of ``about`` stands in ``name`` (by its first four letters: task = tasks) or says
    nothing."""
    known = {word.lower()[:4] for word in _WORDS.findall(name)}
    words = {word.lower() for word in _WORDS.findall(about)}
    return any(word[:4] not in known for word in words - _FILLERS)


def _members(schema: dict[str, Any], depth: int) -> str:
    properties: dict[str, Any] = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    # Required ones first: they are what a call cannot do without.
    names = sorted(properties, key=lambda name: name not in required)
    return ", ".join(_member(name, properties[name], name in required, depth) for name in names)


def _member(name: str, schema: Any, required: bool, depth: int) -> str:
    kinds = _types(schema, depth)
    if not required:
        kinds = ["obj" if kind.startswith("{") else kind for kind in kinds if kind != "null"] or kinds
    text = "|".join(kinds)
    return f"{name}{'' if required else '?'}{'' if text == _STRING else f': {text}'}"


def _types(schema: Any, depth: int) -> list[str]:
    """The alternatives of a schema, each in its short form."""
    if not isinstance(schema, dict):
        return ["any"]
    if "const" in schema:
        return [_value(schema["const"])]
    if schema.get("enum"):
        return [_value(value) for value in schema["enum"]]
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return list(dict.fromkeys(kind for part in schema[union] for kind in _types(part, depth)))
    kind = schema.get("type")
    if isinstance(kind, list):
        return [short for part in kind for short in _types({**schema, "type": part}, depth)]
    if kind == "array":
        items = schema.get("items")
        return [f"[{'|'.join(_types(items, depth - 1))}]" if items and depth > 0 else "list"]
    if kind == "object" or "properties" in schema:
        return [f"{{{_members(schema, depth - 1)}}}" if schema.get("properties") and depth > 0 else "obj"]
    if kind == "string":
        return [_STRING]
    return [_SHORT.get(kind, str(kind)) if kind else "any"]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def json_tool(tool: AgentTool) -> str:
    """One tool as Qwen3's template writes it: ``{"type": "function", "function": {…}}`` on one line, keys in
    this order."""
    return spaced_json({"type": "function", "function": tool.model_dump()})


def indented_tool(tool: AgentTool) -> str:
    """One tool as Llama 3's template writes it: `json_tool`'s object over many lines, four spaces deep."""
    return json.dumps({"type": "function", "function": tool.model_dump()}, ensure_ascii=False, indent=4)


def spaced_json(value: Any) -> str:
    """JSON with ``": "`` and ``", "``, as transformers' ``tojson`` filter writes it."""
    return json.dumps(value, ensure_ascii=False)
