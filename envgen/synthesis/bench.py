"""What the tasks of one environment share: its catalog, its loaded functions, its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.runtime.context import KeyStyle, key_styles
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.remote_tools import remote_tools
from envgen.runtime.isolation.vetting import is_vetted
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.tools import ToolTable, compile_tools
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.values import ValuePool
from envgen.types import TraceConstraint


@dataclass(frozen=True)
class Workbench:
    """What the tasks of one environment share: catalog, loaded functions, vocabulary. Made by `workbench`."""

    catalog: Catalog
    environment_id: str
    tools: dict[str, Tool]
    table: ToolTable
    styles: dict[str, KeyStyle]
    pool: ValuePool
    rules: tuple[TraceConstraint, ...] = ()
    """Rules about the trace that every task is graded by."""

    @property
    def held(self) -> frozenset[str]:
        """Names of the tools that only the user holds."""
        return frozenset(tool.name for tool in self.catalog.draft.user_tools)


def workbench(
    catalog: Catalog, environment_id: str, seed: int, rules: tuple[TraceConstraint, ...] = ()
) -> Workbench:
    """Load a draft's functions: in a worker, unless our own templates wrote them. Raises UnsafeCodeError for
    code outside the allow-list, IsolationError when this machine cannot give a worker."""
    draft = catalog.draft
    styles = key_styles(draft.state_schema)
    tools = load_tools(draft.source) if is_vetted(draft) else remote_tools(WorkerPool(draft.source, styles))
    return Workbench(
        catalog=catalog,
        environment_id=environment_id,
        tools=dict(tools),
        table=compile_tools((*draft.tools, *draft.user_tools)),
        styles=dict(styles),
        pool=ValuePool(seed),
        rules=rules,
    )
