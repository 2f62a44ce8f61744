"""MCP ``tools/list`` results and the registries' copies of them -> ToolDoc."""

from __future__ import annotations

from typing import Any

from envgen.tooldocs.load import Loaded
from envgen.tooldocs.naming import unique_tools
from envgen.tooldocs.toollist import find_list, read_entry
from envgen.tooldocs.tree import as_text, join, map_or_none
from envgen.types import ToolDoc


def is_mcp(tree: object) -> bool:
    """True for a list with ``inputSchema``, ``arguments[]``, annotations, a JSON-RPC envelope or a server."""
    found = find_list(tree)
    if found is None:
        return False
    entries, pointer, wrapper = found
    if pointer.startswith("/result") or "server_name" in wrapper or "serverInfo" in wrapper:
        return True
    return any(_mcp_keys(entry) for entry in entries)


def _mcp_keys(entry: Any) -> bool:
    mapping = map_or_none(entry)
    return mapping is not None and any(
        key in mapping for key in ("inputSchema", "arguments", "annotations", "outputSchema")
    )


def read_mcp(loaded: Loaded) -> ToolDoc:
    """The list's tools. Raises DocumentError with the JSON pointer of what is wrong."""
    found = find_list(loaded.tree)
    assert found is not None  # the caller asked is_mcp
    entries, pointer, wrapper = found
    server = map_or_none(wrapper.get("serverInfo")) or {}
    title = wrapper.get("server_name") or wrapper.get("title") or server.get("name") or wrapper.get("name")
    return ToolDoc(
        title=as_text(title, "/server_name", "server name").strip() or loaded.source.rsplit(".", 1)[0],
        format="mcp",
        source=loaded.source,
        sha256=loaded.sha256,
        description=as_text(wrapper.get("description"), "/description", "description").strip(),
        tools=unique_tools(
            [read_entry(entry, join(pointer, index)) for index, entry in enumerate(entries)], loaded.source
        ),
    )
