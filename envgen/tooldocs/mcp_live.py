"""A running MCP server as a document: its ``tools/list`` over stdio or HTTP, through the official ``mcp``
package.

Only ``initialize`` and ``tools/list`` are sent; no tool is ever called. The package is imported when it is
needed: install the extra ``[mcp]``.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import tempfile
from contextlib import AbstractAsyncContextManager
from typing import Any, cast
from urllib.parse import urlsplit

from envgen.errors import DocumentError
from envgen.tooldocs.load import load_value
from envgen.tooldocs.read import read_loaded
from envgen.types import ToolDoc

TIMEOUT_S = 60.0
MAX_PAGES = 200
_VARIABLE = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)


def is_address(server: str) -> bool:
    """True for ``http://…`` and ``https://…``; anything else is a command."""
    return server.startswith(("http://", "https://"))


def read_mcp_server(server: str, timeout_s: float = TIMEOUT_S) -> ToolDoc:
    """The tools of a server: an address, or a command line (``TOKEN=x npx some-server``; no shell runs it).

    Raises DocumentError when the package is missing, the server cannot be started or reached, does not answer
    within ``timeout_s``, or has no tools.
    """
    if not server.strip():
        raise DocumentError("--mcp: an empty command; expected a command line, or http(s)://…")
    client = _client_class()
    with tempfile.TemporaryFile("w+") as log:
        try:
            answer = asyncio.run(_ask(client, server, timeout_s, log))
        except DocumentError:
            raise
        except Exception as error:  # the boundary to a foreign process, its package and its network
            raise DocumentError(f"{_name(server)}: {_why(error, timeout_s)}{_last_line(log)}") from error
    info = cast("dict[str, Any]", answer.get("serverInfo") or {})
    source = f"mcp:{info.get('name') or _name(server)}"
    return read_loaded(load_value(answer, source))


async def _ask(client_class: Any, server: str, timeout_s: float, log: Any) -> dict[str, Any]:
    target = server if is_address(server) else _transport(server, log)
    tools: list[Any] = []
    async with asyncio.timeout(timeout_s), client_class(target) as client:
        info = client.server_info
        seen: set[str] = set()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = (await client.list_tools(cursor=cursor)).model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
            tools.extend(page.get("tools") or [])
            cursor = page.get("nextCursor")
            if not cursor:
                break
            if cursor in seen:
                raise DocumentError(
                    f"{_name(server)}: the server repeats the page {cursor!r}; its list never ends"
                )
            seen.add(cursor)
        else:
            raise DocumentError(
                f"{_name(server)}: more than {MAX_PAGES} pages of tools; expected a finite list"
            )
    described: dict[str, Any] = (
        info.model_dump(mode="json", by_alias=True, exclude_none=True) if info is not None else {}
    )
    kept: dict[str, Any] = {key: described[key] for key in ("name", "title", "version") if key in described}
    return {"serverInfo": kept, "tools": tools}


def _client_class() -> Any:
    try:
        from mcp import Client  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise DocumentError(
            "--mcp needs the package mcp, version 2.0 or later; install autoforge-jax[mcp]"
        ) from error
    return cast("Any", Client)


def _transport(command: str, log: Any) -> AbstractAsyncContextManager[Any]:
    from mcp.client.stdio import (  # pyright: ignore[reportMissingImports]
        StdioServerParameters,  # pyright: ignore[reportUnknownVariableType]
        stdio_client,  # pyright: ignore[reportUnknownVariableType]
    )

    variables: dict[str, str] = {}
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DocumentError(f"--mcp: {error} in {command[:80]!r}; expected a command line") from error
    while words and (found := _VARIABLE.match(words[0])) is not None:
        variables[found[1]] = found[2]
        words = words[1:]
    if not words:
        raise DocumentError(f"--mcp: {command[:80]!r} names no program; expected a command line")
    path = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}
    params = cast("Any", StdioServerParameters)(command=words[0], args=words[1:], env={**path, **variables})
    return cast("AbstractAsyncContextManager[Any]", cast("Any", stdio_client)(params, errlog=log))


def _name(server: str) -> str:
    """What a message and a bundle may call the server: no path, no query, no variables."""
    if is_address(server):
        return urlsplit(server).hostname or "server"
    words = [word for word in server.split() if not _VARIABLE.match(word)]
    return os.path.basename(words[0]) if words else "server"


def _why(error: BaseException, timeout_s: float) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, TimeoutError):
        return f"no answer to initialize and tools/list within {timeout_s:g} s; is it an MCP server?"
    if isinstance(error, FileNotFoundError):
        return "no such program; check the command"
    text = " ".join(str(error).split())[:200]
    return f"not an MCP server that answers tools/list: {type(error).__name__}{': ' if text else ''}{text}"


def _last_line(log: Any) -> str:
    """The last thing the server said on stderr."""
    log.seek(0)
    lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    return f" (its last words: {lines[-1][:200]})" if lines else ""
