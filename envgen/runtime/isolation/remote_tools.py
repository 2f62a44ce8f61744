"""Stand-ins for unvetted functions: called like a tool, run in a worker, on a state that is in this process.

For code that holds its own ``State`` and ``ToolContext`` (the gates of a certificate). The state travels with
every call, so this is for small states and few calls; episodes use ``IsolatedEpisode``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from envgen.errors import ToolDefect, ToolError
from envgen.runtime.context import ToolContext
from envgen.runtime.isolation.episode import apply_delta, breach, defect, read_delta
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.process import WorkerGone
from envgen.runtime.sandbox import Tool
from envgen.runtime.state import State


def remote_tools(pool: WorkerPool) -> Mapping[str, Tool]:
    """Tool name -> a function with the signature of a tool that runs the real one in a worker of ``pool``."""
    return {name: _stand_in(pool, name) for name in sorted(pool.tool_names)}


def _stand_in(pool: WorkerPool, name: str) -> Tool:
    def run(state: State, ctx: ToolContext, /, **arguments: Any) -> Any:
        before = state.snapshot()
        # The worker begins the call itself, as tools.call_tool has done here already.
        saved = ctx.saved()
        request = {**saved, "calls": saved["calls"] - 1}
        status: str = "lost"
        value: Any = None
        for attempt in (1, 2):
            try:
                status, value, _ = pool.worker().ask("once", before, request, name, arguments)
                break
            except WorkerGone as gone:
                if gone.kind != "lost" or attempt == 2:
                    raise breach(name, gone) from None
        if status == "error":
            raise ToolError(str(value))
        if status != "ok":
            raise defect(name, arguments, value)
        try:
            result, changes, after = cast("list[Any]", value)
            delta = read_delta(changes, before, frozenset(before))
            made = {str(k): int(v) for k, v in after["made"].items()}
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ToolDefect(
                f"tool {name!r}: its worker answered something that is no result: {error}"
            ) from None
        apply_delta(state, delta)
        ctx.take_made(made)
        return result

    return run
