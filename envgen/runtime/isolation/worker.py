"""The isolated worker: a fresh, small interpreter that holds the states of many episodes of one bundle.

Its first message is its limits; it confines itself, reports how, and only then is sent tool code. It never
sees a task's accepted states, reference or facts: initial state, clock and seed are all that an episode
needs. Kept free of pydantic and of everything else that is slow to import.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from envgen.errors import ToolError, UnsafeCodeError
from envgen.runtime.context import KeyStyle, ToolContext
from envgen.runtime.isolation.confine import confine
from envgen.runtime.isolation.protocol import read_frame, write_frame
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.state import Delta, State

_MAX_DETAIL = 400
Loader = Callable[[str], Mapping[str, Tool]]


def _delta(delta: Delta) -> dict[str, Any]:
    return {"inserted": delta.inserted, "updated": delta.updated, "deleted": delta.deleted}


class _Server:
    """Tools, bases and live episodes of one worker."""

    def __init__(self, load: Loader) -> None:
        self.load_source = load
        self.tools: Mapping[str, Tool] = {}
        self.styles: dict[str, KeyStyle] = {}
        self.bases: dict[int, Any] = {}
        self.episodes: dict[int, tuple[State, ToolContext]] = {}

    # ---------------------------------------------------------------- operations
    def load(self, source: str, styles: dict[str, tuple[str, bool]]) -> list[str]:
        """Check and load the functions; their names."""
        self.styles = {name: KeyStyle(prefix, integer) for name, (prefix, integer) in styles.items()}
        self.tools = self.load_source(source)
        return list(self.tools)

    def base(self, number: int, data: Any) -> None:
        """Keep an initial state that episodes share."""
        self.bases[number] = data
        gc.freeze()  # the collector need not walk through it again and again

    def drop_base(self, number: int) -> None:
        """Forget an initial state."""
        self.bases.pop(number, None)

    def open(self, number: int, base: int, clock: str, seed: int) -> None:
        """Start an episode on a base."""
        state = State(self.bases[base], self.styles)
        self.episodes[number] = (state, ToolContext(clock, seed, self.styles))

    def delta(self, number: int) -> dict[str, Any]:
        """What an episode has changed so far."""
        return _delta(self.episodes[number][0].delta())

    def call(self, number: int, tool: str, arguments: dict[str, Any]) -> tuple[str, bytes]:
        """One tool call as a transaction: status and JSON. The same steps as ``tools.call_tool``."""
        state, ctx = self.episodes[number]
        return self._call(state, ctx, tool, arguments)

    def many(self, number: int, calls: list[list[Any]]) -> bytes:
        """The answer to calls of several episodes, in order; see ``protocol``."""
        heads: list[tuple[str, int]] = []
        values: list[bytes] = []
        for opening, *call in calls:
            if opening is not None:
                self.open(*opening)
            status, value = self.call(*call)
            heads.append((status, len(value)))
            values.append(value)
        return b"".join((orjson.dumps([number, "ok", heads]), b"\n", *values))

    def once(
        self, data: Any, context: dict[str, Any], tool: str, arguments: dict[str, Any]
    ) -> tuple[str, bytes]:
        """One call on a state that travels with it: ``[result, delta, context]`` for ``ok``."""
        state, ctx = State(data, self.styles), ToolContext.revived(context, self.styles)
        status, value = self._call(state, ctx, tool, arguments)
        if status != "ok":
            return status, value
        rest = orjson.dumps([_delta(state.delta()), ctx.saved()])
        return status, b"[" + value + b"," + rest[1:]

    def _call(
        self, state: State, ctx: ToolContext, tool: str, arguments: dict[str, Any]
    ) -> tuple[str, bytes]:
        state.begin()
        ctx.begin_call(state)
        try:
            value = orjson.dumps(self.tools[tool](state, ctx, **arguments))
        except ToolError as error:
            status, text = "error", str(error)
        except MemoryError:
            raise
        except BaseException as error:  # the boundary to tool code, also to its SystemExit
            status, text = "defect", f"{type(error).__name__}: {error}"[:_MAX_DETAIL]
        else:
            state.commit()
            return "ok", value
        state.rollback()
        ctx.rollback()
        return status, orjson.dumps(text.encode("utf-8", "replace").decode())

    # ---------------------------------------------------------------- loop
    def answer(self, body: bytes) -> bytes:
        """The answer to one request."""
        number, operation, dropped, opening, *operands = orjson.loads(body)
        for episode in dropped:
            self.episodes.pop(episode, None)
        try:
            if opening is not None:
                self.open(*opening)
            if operation == "many":
                return self.many(number, *operands)
            if operation == "call":
                status, value = self.call(*operands)
            elif operation == "once":
                status, value = self.once(*operands)
            else:
                run = {
                    "load": self.load,
                    "base": self.base,
                    "drop_base": self.drop_base,
                    "delta": self.delta,
                }[operation]
                status, value = "ok", orjson.dumps(run(*operands))
        except MemoryError:
            status, value = "memory", b"null"
        except UnsafeCodeError as error:
            status, value = "unsafe", orjson.dumps(str(error).encode("utf-8", "replace").decode())
        return b'[%d,"%b",%b]' % (number, status.encode(), value)


def main(load: Loader = load_tools) -> None:
    """Serve on the descriptor named by the first command line argument, until the parent closes it."""
    fd = int(sys.argv[1])
    first = read_frame(fd)
    if first is None:
        return
    # Loaded lazily by the interpreter otherwise, and then it is too late to open files.
    "".encode("utf-8", "replace").decode("utf-8", "replace")
    write_frame(fd, orjson.dumps(confine(orjson.loads(first), fd)))
    server = _Server(load)
    while True:
        body = read_frame(fd)
        if body is None:
            os._exit(0)
        write_frame(fd, server.answer(body))
