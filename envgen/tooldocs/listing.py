"""Where the tools of a JSON document stand: every wrapper that MCP, vendors, registries and data sets use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from envgen.errors import DocumentError
from envgen.tooldocs.load import Loaded
from envgen.tooldocs.tree import JsonMap, as_list, join, list_or_none, map_or_none
from envgen.types import LintFinding

SCHEMA_KEYS = (
    "inputSchema", "input_schema", "parameters", "parametersJsonSchema", "parameters_json_schema", "inputs",
    "args_schema", "parameter_definitions",
)  # fmt: skip
LIST_KEYS = ("tools", "functions", "functionDeclarations", "function_declarations", "function")
_GROUP_KEYS = ("functionDeclarations", "function_declarations")
_HOSTED = re.compile(
    r"^(web_search|web_fetch|code_interpreter|code_execution|file_search|computer|bash|text_editor|image_generation|"
    r"mcp|retrieval|local_shell|google_search|url_context|memory)(_\w+)?$"
)
MAX_SEARCH_DEPTH = 6


@dataclass
class ToolList:
    """The entries of a tool list, each with its pointer."""

    where: str
    """Pointer of the list; empty for the document itself."""
    wrapper: JsonMap
    """The object around it: titles and server names stand there."""
    entries: list[tuple[Any, str]] = field(default_factory=list[tuple[Any, str]])
    findings: list[LintFinding] = field(default_factory=list[LintFinding])
    how: str = ""
    """What the wrapper was, for people."""


def looks_like_tool(value: object) -> bool:
    """True for an object with a name and a schema, arguments or a description, or a known envelope of one."""
    entry = map_or_none(value)
    if entry is None:
        return False
    if map_or_none(entry.get("function")) is not None or map_or_none(entry.get("toolSpec")) is not None:
        return True
    return "name" in entry and any(key in entry for key in (*SCHEMA_KEYS, "arguments", "description"))


def find_list(loaded: Loaded) -> ToolList | None:
    """The tool list of a document, or None. Raises DocumentError when there are several and none is meant."""
    tree = loaded.tree
    entries = list_or_none(tree)
    if entries is not None:
        places = [f"line {line}" for line in loaded.lines] or [join("", i) for i in range(len(entries))]
        found = ToolList("", {}, how="JSON lines" if loaded.lines else "a list")
        rows = [map_or_none(entry) for entry in entries]
        if not any(looks_like_tool(row) and not _row_list(row or {}) for row in rows) and any(
            row is not None and _row_list(row) for row in rows
        ):
            found.how = f"rows that carry tools ({'JSON lines' if loaded.lines else 'a list'})"
            for row, place in zip(rows, places, strict=True):
                if row is not None:
                    _add_row(found, row, place)
            return _distinct(found)
        for entry, place in zip(entries, places, strict=True):
            _add(found, entry, place)
        return found
    wrapper = map_or_none(tree)
    return _in_object(wrapper) if wrapper is not None else None


def _in_object(wrapper: JsonMap) -> ToolList | None:
    for key in LIST_KEYS:
        value = wrapper.get(key)
        if list_or_none(value) is not None:
            return _listed(as_list(value, join("", key), key), join("", key), wrapper, f"{key!r}")
        named = _by_name(value)
        if named is not None and key != "function":
            found = ToolList(join("", key), wrapper, how=f"{key!r} by name")
            for name, entry in named.items():
                _add(found, {"name": name, **entry}, join("", key, name))
            return found
    result = map_or_none(wrapper.get("result"))
    if result is not None and list_or_none(result.get("tools")) is not None:
        tools = as_list(result["tools"], "/result/tools", "tools")
        return _cut(_listed(tools, "/result/tools", wrapper, "a JSON-RPC result"), result)
    schema_keys = (*SCHEMA_KEYS, "arguments", "function", "toolSpec")
    if looks_like_tool(wrapper) and any(key in wrapper for key in schema_keys):
        found = ToolList("", {}, how="one tool")
        _add(found, wrapper, "")
        return found
    return _deeper(wrapper)


def _listed(entries: list[Any], pointer: str, wrapper: JsonMap, how: str) -> ToolList:
    found = _cut(ToolList(pointer, wrapper, how=how), wrapper)
    for index, entry in enumerate(entries):
        _add(found, entry, join(pointer, index))
    return found


def _cut(found: ToolList, page: JsonMap) -> ToolList:
    """Says so when the list is one page of several."""
    if page.get("nextCursor"):
        found.findings.append(
            LintFinding(
                level="warning",
                code="list-cut",
                message="the list has a nextCursor: it is one page of several, and the others are missing",
                pointer=found.where.rsplit("/", 1)[0] + "/nextCursor",
            )
        )
    return found


def _add(found: ToolList, entry: Any, pointer: str) -> None:
    """One entry; a group of declarations (Gemini) or a nested list is opened, a hosted tool is left out."""
    mapping = map_or_none(entry)
    if mapping is not None and "name" not in mapping:
        for key in (*_GROUP_KEYS, "tools"):
            inner = list_or_none(mapping.get(key))
            if inner is not None:
                for index, value in enumerate(inner):
                    _add(found, value, join(pointer, key, index))
                return
    if mapping is not None and _is_hosted(mapping):
        name = mapping.get("name") or mapping.get("type")
        found.findings.append(
            LintFinding(
                level="warning",
                code="hosted-tool",
                message=f"{name}: runs at the model's vendor and has no schema here; left out",
                pointer=pointer or "/",
            )
        )
        return
    found.entries.append((entry, pointer))


def _is_hosted(entry: JsonMap) -> bool:
    kind = entry.get("type")
    return (
        isinstance(kind, str)
        and bool(_HOSTED.match(kind))
        and not any(key in entry for key in (*SCHEMA_KEYS, "function", "arguments"))
    )


# ------------------------------------------------------------------------------------------------ rows
def _row_list(row: JsonMap) -> bool:
    """True for a data-set row that carries its tools: BFCL (``function``), xLAM and Toucan (``tools``,
    often as text), ToolACE (inside the ``system`` prompt), and for a page of an MCP list."""
    return any(_row_values(row))


def _row_values(row: JsonMap) -> Iterator[tuple[list[Any], str]]:
    for key in LIST_KEYS:
        value = row.get(key)
        if isinstance(value, str):
            value = _parsed(value)
        if list_or_none(value):
            yield as_list(value, "", key), key
            return
    result = map_or_none(row.get("result"))
    if result is not None and list_or_none(result.get("tools")):
        yield as_list(result["tools"], "", "tools"), "result/tools"
        return
    system = row.get("system")
    if isinstance(system, str):
        start = system.find("[{")
        embedded = _parsed(system[start:], prefix=True) if start >= 0 else None
        if embedded and all(looks_like_tool(entry) for entry in embedded):
            yield embedded, "system"


def _add_row(found: ToolList, row: JsonMap, place: str) -> None:
    for values, key in _row_values(row):
        for index, entry in enumerate(values):
            _add(found, entry, f"{place}/{key}/{index}")


def _parsed(text: str, *, prefix: bool = False) -> list[Any] | None:
    """A JSON list written as text; with ``prefix`` more text may follow it."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text) if prefix else (json.loads(text), 0)
    except (ValueError, RecursionError):
        return None
    return list_or_none(value)


def _distinct(found: ToolList) -> ToolList:
    """Rows repeat tools: equal definitions count once, and are said; different ones under one name stay (and
    are refused later)."""
    kept: list[tuple[Any, str]] = []
    first: dict[str, str] = {}
    repeated: dict[str, list[str]] = {}
    for entry, pointer in found.entries:
        if map_or_none(entry) is None:
            kept.append((entry, pointer))
            continue
        text = json.dumps(entry, sort_keys=True)
        if text in first:
            repeated.setdefault(first[text], []).append(pointer)
            continue
        first[text] = pointer
        kept.append((entry, pointer))
    for pointer, others in repeated.items():
        found.findings.append(
            LintFinding(
                level="warning",
                code="repeated-tool",
                message=f"the same definition stands again at {others[0]}"
                + (f" and {len(others) - 1} more places" if len(others) > 1 else "")
                + "; it counts once",
                pointer=pointer or "/",
            )
        )
    found.entries = kept
    return found


# ------------------------------------------------------------------------------------------------ elsewhere
def _by_name(value: object) -> dict[str, JsonMap] | None:
    """``{"create_task": {"description": …, "parameters": …}}``: tools keyed by name."""
    mapping = map_or_none(value)
    if not mapping:
        return None
    entries = {name: entry for name, raw in mapping.items() if (entry := map_or_none(raw)) is not None}
    if len(entries) != len(mapping):
        return None
    known = (*SCHEMA_KEYS, "arguments", "description")
    return entries if all(any(key in entry for key in known) for entry in entries.values()) else None


def _deeper(root: JsonMap) -> ToolList | None:
    """The one list of tools somewhere inside an object; DocumentError names them when there are several."""
    level: list[tuple[str, JsonMap]] = [("", root)]
    for _ in range(MAX_SEARCH_DEPTH):
        found: list[ToolList] = []
        following: list[tuple[str, JsonMap]] = []
        for pointer, holder in level:
            for key, value in holder.items():
                entries, inner = list_or_none(value), map_or_none(value)
                place = join(pointer, key)
                if entries and all(looks_like_tool(e) and _has_schema(e) for e in entries):
                    found.append(_listed(entries, place, {**root, **holder}, f"the list at {place}"))
                elif inner is not None:
                    following.append((place, inner))
        if len(found) > 1:
            places = ", ".join(item.where for item in found[:6])
            raise DocumentError(
                f"{len(found)} tool lists: {places}; save the one you mean to a file of its own, or give "
                "each as a document of its own"
            )
        if found:
            return found[0]
        level = following
    return None


def _has_schema(entry: object) -> bool:
    mapping = map_or_none(entry) or {}
    return any(key in mapping for key in (*SCHEMA_KEYS, "arguments", "function", "toolSpec"))
