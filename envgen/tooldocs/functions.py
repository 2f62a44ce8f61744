"""Function-calling JSON -> ToolDoc: OpenAI, Anthropic, and BFCL's JSON lines with ``type: dict`` and
``response``."""

from __future__ import annotations

from envgen.tooldocs.load import Loaded
from envgen.tooldocs.naming import unique_tools
from envgen.tooldocs.toollist import find_list, looks_like_tool, read_entry
from envgen.tooldocs.tree import as_text, join
from envgen.types import ToolDoc, ToolSpec


def is_functions(tree: object) -> bool:
    """True for a list (or a wrapped list) of which at least one entry looks like a function."""
    found = find_list(tree)
    return found is not None and any(looks_like_tool(entry) for entry in found[0])


def read_functions(loaded: Loaded) -> ToolDoc:
    """The functions as tools; pointers are ``line N`` in JSON lines. Raises DocumentError."""
    found = find_list(loaded.tree)
    assert found is not None  # the caller asked is_functions
    entries, pointer, wrapper = found
    tools: list[ToolSpec] = []
    for index, entry in enumerate(entries):
        place = f"line {loaded.lines[index]}" if loaded.lines else join(pointer, index)
        tools.append(read_entry(entry, place))
    stem = loaded.source.rsplit(".", 1)[0].removesuffix(".jsonl")
    title = (
        as_text(wrapper.get("title") or wrapper.get("name"), "/title", "title") if tools and wrapper else ""
    )
    return ToolDoc(
        title=title.strip() or stem,
        format="functions-jsonl" if loaded.lines else "functions",
        source=loaded.source,
        sha256=loaded.sha256,
        tools=unique_tools(tools, loaded.source),
    )
