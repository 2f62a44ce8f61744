"""Words of tool and field names, and the checks that every reader ends with."""

from __future__ import annotations

import re

from envgen.errors import DocumentError
from envgen.types import ToolSpec

MAX_NAME = 120
_READ = """get list search find fetch show read retrieve view lookup query count check describe download
export is has calculate compute compare validate verify filter sort summarize login logout"""
_WRITE = """create add insert new register post place buy book make open submit send upload update edit modify
change set patch put replace rename move assign reassign unassign delete remove cancel destroy clear archive
unarchive enable disable toggle complete close reopen resolve approve reject start stop pause resume activate
deactivate follow unfollow favorite favourite unfavorite subscribe unsubscribe link unlink attach detach lock
unlock pin unpin star unstar mark merge fork duplicate copy write append share transfer withdraw fund pay
refund reserve reschedule schedule invite accept decline dismiss push request label tag
run mkdir rm mv cp touch"""
READ_WORDS = frozenset(_READ.split())
WRITE_WORDS = frozenset(_WRITE.split())


def words(name: str) -> tuple[str, ...]:
    """Lower-case words of a camelCase, snake_case or kebab-case name."""
    spaced = re.sub(
        r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", lambda m: f"{m[1] or m[3]} {m[2] or m[4]}", name
    )
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)


def writes(tool: ToolSpec) -> bool:
    """True when the document, the HTTP method or the name's verb says that the tool changes something."""
    if tool.read_only is not None:
        return not tool.read_only
    name = words(tool.name)
    verb = next((word for word in name if word in READ_WORDS or word in WRITE_WORDS), "")
    if tool.method:
        reads_by_post = tool.method == "post" and verb in READ_WORDS and name[:1] != ("post",)
        reads_by_post = reads_by_post or (
            tool.method == "post" and {"search", "query", "login"} & set(name[:2]) != set()
        )
        return tool.method in {"post", "put", "patch", "delete"} and not reads_by_post
    return verb in WRITE_WORDS


def clean_name(name: str, pointer: str) -> str:
    """A tool name of letters, digits and ``_ - .``. Raises DocumentError when nothing is left or too much."""
    cleaned = re.sub(r"[^A-Za-z0-9_.\-]+", "_", name.strip()).strip("_")
    if not cleaned or len(cleaned) > MAX_NAME:
        raise DocumentError(
            f"{pointer}: tool name {name[:60]!r} has {len(cleaned)} usable characters, expected 1 to "
            f"{MAX_NAME}"
        )
    return cleaned


def unique_tools(tools: list[ToolSpec], source: str) -> tuple[ToolSpec, ...]:
    """The tools, after a check that there is one and that no two share a name. Raises DocumentError."""
    if not tools:
        raise DocumentError(
            f"{source}: the document describes no tool; expected at least one operation or function"
        )
    first: dict[str, str] = {}
    for tool in tools:
        if tool.name in first:
            raise DocumentError(
                f"{source}: two tools are called {tool.name!r}: {first[tool.name]} and "
                f"{tool.pointer}; rename one"
            )
        first[tool.name] = tool.pointer
    return tuple(tools)
