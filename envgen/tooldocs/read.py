"""Any supported tool document -> ToolDoc."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from envgen.errors import DocumentError
from envgen.tooldocs.functions import is_functions, read_functions
from envgen.tooldocs.load import Loaded, load
from envgen.tooldocs.mcp import is_mcp, read_mcp
from envgen.tooldocs.openapi import is_openapi, read_openapi
from envgen.tooldocs.toollist import find_list
from envgen.tooldocs.tree import kind, map_or_none
from envgen.types import ToolDoc

_PROSE_LENGTH = 200
"""A string of this many characters in a document of no known format is taken for prose."""


def read_tool_doc(path: Path) -> ToolDoc:
    """Reads an OpenAPI 3.0/3.1 or Swagger 2.0 document, an MCP tool list, or function-calling JSON (lines).

    The format is found by the document's keys, not by the file's name. Raises DocumentError, and nothing
    else, for whatever cannot be read; the message starts with the file name or the JSON pointer.
    """
    loaded = load(Path(path))
    try:
        return _read(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DocumentError(f"{loaded.source}: {where}: {first['msg']}; check the document there") from error
    except DocumentError as error:
        message = str(error)
        raise DocumentError(
            message if message.startswith(loaded.source) else f"{loaded.source}: {message}"
        ) from error


def _read(loaded: Loaded) -> ToolDoc:
    if is_openapi(loaded.tree):
        return read_openapi(loaded)
    if is_mcp(loaded.tree):
        return read_mcp(loaded)
    if is_functions(loaded.tree):
        return read_functions(loaded)
    raise DocumentError(_no_format(loaded))


def _no_format(loaded: Loaded) -> str:
    tree = loaded.tree
    found = find_list(tree)
    if found is not None:
        what = (
            "an empty list"
            if not found[0]
            else "a list in which no entry has a name with a description or a schema"
        )
        return f"{loaded.source}: {what}; expected tools with name, description and parameters"
    mapping = map_or_none(tree)
    texts = [value for value in mapping.values() if isinstance(value, str)] if mapping is not None else [tree]
    if any(isinstance(text, str) and len(text) >= _PROSE_LENGTH for text in texts) or isinstance(tree, str):
        return (
            f"{loaded.source}: the tools are described in prose, which takes a language model to read "
            "and is not supported; "
            "give an OpenAPI, MCP or function-calling document"
        )
    keys = f" with the keys {sorted(mapping)[:8]}" if mapping is not None else ""
    return (
        f"{loaded.source}: {kind(tree)}{keys} is no known tool document; expected 'openapi', "
        "'swagger', a list of tools, or "
        "'tools' / 'functions'"
    )
