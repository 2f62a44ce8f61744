"""Documents that people have and that are no tool documents: each is refused by name, with what to give
instead."""

from __future__ import annotations

from typing import Any

from envgen.tooldocs.prose import NO_MODEL
from envgen.tooldocs.tree import JsonMap, kind, list_or_none, map_or_none

PROSE_LENGTH = 200
"""A string of this many characters in a document of no known format is taken for prose."""


def refusal(tree: Any, source: str) -> str:
    """Why a document of no known format cannot be read: what it seems to be, and what to do."""
    mapping, entries = map_or_none(tree), list_or_none(tree)
    if entries is not None:
        return f"{source}: {_list_refusal(entries)}; expected tools with name, description and parameters"
    if mapping is None:
        if isinstance(tree, str):
            return f"{source}: {NO_MODEL}"
        return f"{source}: {kind(tree)} is no known tool document; expected {_EXPECTED}"
    named = _named(mapping)
    if named:
        return f"{source}: {named}"
    for key in ("tools", "functions"):
        listed = list_or_none(mapping.get(key))
        if listed is not None:
            why = _list_refusal(listed)
            return f"{source}: /{key}: {why}; expected tools with name, description and parameters"
    if any(isinstance(value, str) and len(value) >= PROSE_LENGTH for value in mapping.values()):
        return f"{source}: {NO_MODEL}"
    keys = sorted(mapping)[:8]
    return f"{source}: an object with the keys {keys} is no known tool document; expected {_EXPECTED}"


_EXPECTED = "'openapi', 'swagger', a list of tools, or 'tools' / 'functions'"


def _list_refusal(entries: list[Any]) -> str:
    if not entries:
        return "an empty list"
    if all(isinstance(entry, str) for entry in entries):
        return "a list of names without schemas"
    return "a list in which no entry has a name with a description or a schema"


def _named(document: JsonMap) -> str:
    """What a document of another known kind is, and what to do; empty when it is none."""
    if map_or_none(document.get("mcpServers")) is not None or (
        map_or_none(document.get("servers")) is not None
        and ("openapi" not in document and _commands(document["servers"]))
    ):
        return (
            "an MCP client configuration (it names servers, not tools); ask a server itself: "
            "envgen synth --mcp 'COMMAND …' or --mcp https://…"
        )
    info = map_or_none(document.get("info")) or {}
    if "item" in document and "postman" in str(info.get("schema", "")) + str(info.get("_postman_id", "")):
        return "a Postman collection; export the API as OpenAPI and give that"
    if "asyncapi" in document:
        return "an AsyncAPI document (messages, not calls); give the OpenAPI document of the same service"
    if "__schema" in document or "__schema" in (map_or_none(document.get("data")) or {}):
        return "a GraphQL introspection result; give an OpenAPI, MCP or function-calling document"
    if document.get("kind") == "discovery#restDescription":
        return "a Google API discovery document; convert it to OpenAPI first"
    log = map_or_none(document.get("log"))
    if log is not None and "entries" in log:
        return "a HAR recording of web traffic; give an OpenAPI, MCP or function-calling document"
    if "arazzo" in document:
        return "an Arazzo workflow document; give the OpenAPI documents it names"
    if "schema_version" in document and "api" in document:
        return "a plug-in manifest; give the OpenAPI document that its api.url names"
    if "$schema" in document and "properties" in document:
        return "one JSON Schema, not a list of tools; expected " + _EXPECTED
    return ""


def _commands(servers: Any) -> bool:
    mapping = map_or_none(servers) or {}
    return bool(mapping) and all(
        {"command", "url"} & set(map_or_none(entry) or {}) for entry in mapping.values()
    )
