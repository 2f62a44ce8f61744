"""MCP ``tools/list`` results and function-calling JSON -> ToolDoc: the list, its spelling, and its tools."""

from __future__ import annotations

from typing import Any

from envgen.tooldocs.listing import ToolList, looks_like_tool
from envgen.tooldocs.load import Loaded
from envgen.tooldocs.local_files import LocalFiles
from envgen.tooldocs.naming import unique_tools
from envgen.tooldocs.toollist import Around, read_entry
from envgen.tooldocs.tree import as_text, map_or_none
from envgen.types import ToolDoc, ToolSpec

_MCP_KEYS = ("inputSchema", "arguments", "annotations", "outputSchema")
_SPELLINGS = (
    ("toolSpec", "Bedrock's"),
    ("function", "OpenAI's chat tools"),
    ("parametersJsonSchema", "Gemini's"),
    ("input_schema", "Anthropic's"),
    ("parameter_definitions", "Cohere's"),
    ("response", "BFCL's or Gemini's"),
    ("parameters", "OpenAI's functions"),
)


def is_tool_list(found: ToolList | None) -> bool:
    """True for a list of which at least one entry looks like a tool, or that is marked as an MCP one."""
    if found is None or not found.entries:
        return False
    return any(looks_like_tool(entry) for entry, _ in found.entries) or bool(mcp_sign(found))


def mcp_sign(found: ToolList) -> str:
    """What marks a list as an MCP one, or empty."""
    if found.where.startswith("/result"):
        return "a JSON-RPC result with tools"
    for key in ("server_name", "serverInfo"):
        if key in found.wrapper:
            return f"{key} beside the tools"
    for entry, pointer in found.entries:
        mapping = map_or_none(entry) or {}
        for key in _MCP_KEYS:
            if key in mapping:
                return f"{pointer or '/'} has {key!r}"
    return ""


def _spelling(entry: Any, found: ToolList) -> str:
    mapping = map_or_none(entry) or {}
    if "eclarations" in found.how or any("eclarations" in pointer for _, pointer in found.entries[:1]):
        return "Gemini's: function declarations"
    for key, who in _SPELLINGS:
        if key in mapping:
            return f"{who}: {found.entries[0][1] or '/'} has {key!r}"
    return "name and description only"


def read_tool_list(loaded: Loaded, found: ToolList) -> ToolDoc:
    """The list's tools; pointers are ``line N`` in JSON lines. Raises DocumentError by pointer."""
    around = Around(
        loaded.tree if map_or_none(loaded.tree) is not None else None,
        LocalFiles(loaded.folder, loaded.source),
    )
    tools: list[ToolSpec] = [read_entry(entry, pointer, around) for entry, pointer in found.entries]
    sign = mcp_sign(found)
    wrapper = found.wrapper
    server = map_or_none(wrapper.get("serverInfo")) or {}
    title = wrapper.get("server_name") or wrapper.get("title") or server.get("title") or server.get("name")
    title = title or wrapper.get("name")
    stem = loaded.source.rsplit(".", 1)[0].removesuffix(".jsonl")
    first = next((entry for entry, _ in found.entries if looks_like_tool(entry)), None)
    if sign:
        detected = f"an MCP tool list, {found.how}: {sign}"
    else:
        detected = f"function-calling JSON, {found.how}, spelling {_spelling(first, found)}"
    return ToolDoc(
        title=(title.strip() if isinstance(title, str) else "") or stem,
        format="mcp" if sign else "functions-jsonl" if loaded.lines else "functions",
        source=loaded.source,
        sha256=around.files.digest(loaded.sha256),
        description=as_text(wrapper.get("description"), "/description", "description").strip()
        if not isinstance(wrapper.get("description"), dict | list)
        else "",
        tools=unique_tools(tools, loaded.source),
        detected=detected,
        findings=tuple(found.findings),
    )
