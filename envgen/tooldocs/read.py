"""Any supported tool document -> ToolDoc."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from envgen.errors import DocumentError, ProseError
from envgen.tooldocs.foreign import refusal
from envgen.tooldocs.functions import is_tool_list, read_tool_list
from envgen.tooldocs.labelled import labelled_text, read_labelled
from envgen.tooldocs.listing import find_list
from envgen.tooldocs.load import Loaded, load
from envgen.tooldocs.markdown import read_markdown
from envgen.tooldocs.openapi import is_openapi, read_openapi
from envgen.tooldocs.prose import NO_MODEL
from envgen.types import ToolDoc


def read_tool_doc(path: Path) -> ToolDoc:
    """Reads OpenAPI 3.0/3.1 or Swagger 2.0, an MCP tool list, function-calling JSON (lines), or a Markdown
    tool list.

    The format is found by the document's keys and structure; only ``.md`` is believed by name. ``detected``
    says what was found and why. Raises DocumentError, and nothing else, for whatever cannot be read; the
    message starts with the file name or the JSON pointer.
    """
    return read_loaded(load(Path(path)))


def read_loaded(loaded: Loaded) -> ToolDoc:
    """`read_tool_doc` of a document that is parsed already."""
    try:
        return _read(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DocumentError(f"{loaded.source}: {where}: {first['msg']}; check the document there") from error
    except DocumentError as error:
        message = str(error)
        kind = ProseError if isinstance(error, ProseError) else DocumentError
        raise kind(message if message.startswith(loaded.source) else f"{loaded.source}: {message}") from error


def _read(loaded: Loaded) -> ToolDoc:
    if is_openapi(loaded.tree):
        return read_openapi(loaded)
    labelled = labelled_text(loaded.tree)
    if labelled is not None:
        return read_labelled(loaded, *labelled)
    if loaded.text:
        return read_markdown(loaded)
    found = find_list(loaded)
    if found is not None and is_tool_list(found):
        return read_tool_list(loaded, found)
    if found is not None and not found.entries and found.findings:
        names = "; ".join(finding.message for finding in found.findings[:3])
        raise DocumentError(f"{found.where or '/'}: no tool with a schema is left: {names}")
    reason = refusal(loaded.tree, loaded.source)
    raise ProseError(reason) if reason.endswith(NO_MODEL) else DocumentError(reason)
