"""What all episodes of one bundle share: loaded functions, compiled checks, the workers of code that is not
vetted."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

from envgen.errors import BundleError
from envgen.runtime.context import KeyStyle, key_styles
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.remote_tools import remote_tools
from envgen.runtime.isolation.vetting import is_vetted
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.tools import Signature, ToolTable, compile_tools
from envgen.store import Bundle


@dataclass(frozen=True, kw_only=True)
class EnvRuntime:
    """What all episodes of one bundle share, made once: functions, compiled argument checks, key styles.
    Read-only.

    ``pool`` holds the workers of a bundle that is not vetted; ``tools`` are then stand-ins that run there."""

    tools: Mapping[str, Tool]
    table: ToolTable
    styles: Mapping[str, KeyStyle]
    collections: tuple[str, ...]
    pool: WorkerPool | None = None
    readers: frozenset[str] = frozenset()
    user_table: ToolTable = field(default_factory=dict[str, Signature])
    """The user's tools, ``table`` the agent's: neither side can call the other's."""


_runtimes: weakref.WeakKeyDictionary[Bundle, dict[WorkerLimits | None, EnvRuntime]] = (
    weakref.WeakKeyDictionary()
)


def runtime_of(bundle: Bundle, isolation: WorkerLimits | None = None) -> EnvRuntime:
    """The shared part of a bundle's episodes. Raises UnsafeCodeError for code outside the allow-list.

    Functions of our own rules run here; all others in isolated workers, with the limits ``isolation`` (see
    ``envgen.runtime.isolation.vetting``). Raises BundleError when the tools the agent sees are not exactly
    those of the code, or have bad schemas, IsolationError when this machine cannot give a worker.
    """
    known = _runtimes.setdefault(bundle, {})
    runtime = known.get(isolation)
    if runtime is None:
        runtime = known[isolation] = make_runtime(
            bundle, None if is_vetted(bundle) else isolation or WorkerLimits()
        )
    return runtime


def make_runtime(bundle: Bundle, isolation: WorkerLimits | None) -> EnvRuntime:
    """A bundle's shared part, in workers when limits are given: ``runtime_of`` decides whether they are."""
    styles = key_styles(bundle.state_schema)
    pool = None if isolation is None else WorkerPool(bundle.source, styles, isolation)
    tools = load_tools(bundle.source) if pool is None else remote_tools(pool)
    odd = sorted(set(tools) ^ {tool.name for tool in (*bundle.tools, *bundle.user_tools)})
    if odd:
        raise BundleError(
            f"bundle {bundle.name!r}: tools.json and TOOLS of tools.py differ in {', '.join(odd)}; "
            "every tool the agent (or the user) holds needs a function, and the other way round"
        )
    return EnvRuntime(
        tools=tools,
        table=compile_tools(bundle.tools),
        user_table=compile_tools(bundle.user_tools),
        styles=styles,
        collections=tuple(c.name for c in bundle.state_schema.collections),
        readers=frozenset(s.tool for s in bundle.semantics if not s.writes_state),
        pool=pool,
    )
