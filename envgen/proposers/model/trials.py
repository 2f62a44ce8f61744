"""A function against its statement, by execution: our templates write a second function from the statement,
and both run on the same states with the same arguments. They must refuse the same calls, leave the same state
and show the same records. A function that reports success without doing it, writes elsewhere, or answers
otherwise the second time is found here, before any task is made.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from envgen.errors import ToolBreach, ToolDefect, UnsafeCodeError
from envgen.proposers.model.arguments import ArgumentMaker
from envgen.proposers.model.asking import Wrong
from envgen.proposers.model.code import assemble
from envgen.proposers.rules.describe import agent_tool
from envgen.runtime.context import ToolContext, key_styles
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.remote_tools import remote_tools
from envgen.runtime.isolation.vetting import is_vetted
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.state import State, same_json
from envgen.runtime.tools import ToolOutcome, call_tool, checked_call, compile_tools
from envgen.synthesis.blueprint import fetch, resolve
from envgen.synthesis.catalog import container
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.choices import Needs
from envgen.synthesis.functions import generate_source
from envgen.synthesis.values import ValueMaker, ValuePool
from envgen.synthesis.world import build_world
from envgen.types import (
    AgentTool,
    EnvironmentDraft,
    StateData,
    StateSchema,
    ToolSemantics,
    ToolSpec,
)

CLOCK = "2026-03-02T09:00:00"
WORLDS = 5
CALLS = 16
"""Calls on each world."""
LEAST_SUCCESSES = 3
LEAST_REFUSALS = 2
LIMITS = WorkerLimits(call_timeout_s=2.0)
"""A tool that takes longer than two seconds on a dozen records does not end."""
_loading = threading.Lock()  # the table of loaded modules is shared by the threads that ask


@dataclass(frozen=True)
class Trial:
    """How often a function was tried, and how."""

    successes: int
    refusals: int


def try_function(schema: StateSchema, sem: ToolSemantics, spec: ToolSpec, code: str, seed: int = 0) -> Trial:
    """Run ``code`` beside the templates' function of ``sem``. Raises Wrong with the first contradiction,
    IsolationError when this machine cannot run code that is not vetted."""
    tool = agent_tool(spec, sem, schema)
    draft = _oracle(schema, sem, tool)
    if not is_vetted(draft):
        raise Wrong("names, parameters and texts of the statement must be plain, and fit the state structure")
    try:
        with _loading:
            oracle = load_tools(draft.source)
    except UnsafeCodeError as error:
        raise Wrong(f"no function can be written from the statement: {error}") from error
    pool: WorkerPool | None = None
    try:
        pool = WorkerPool(assemble(schema, (), {sem.tool: code}), key_styles(schema), LIMITS)
        return _Bench(schema, sem, tool, draft, oracle, remote_tools(pool)).run(seed)
    except (UnsafeCodeError, ToolBreach, ToolDefect) as error:
        raise Wrong(f"code: {error}") from error
    finally:
        if pool is not None:
            pool.close()


def _oracle(schema: StateSchema, sem: ToolSemantics, tool: AgentTool) -> EnvironmentDraft:
    """The environment of the one tool as our templates write it; its results are whole records."""
    plain = sem.model_copy(update={"result": None})
    return EnvironmentDraft(
        name="trial",
        state_schema=schema,
        semantics=(plain,),
        tools=(tool,),
        source=_generated(schema, plain),
        policy="",
        decisions=(),
    )


def _generated(schema: StateSchema, sem: ToolSemantics) -> str:
    try:
        return generate_source(schema, (sem,))
    except (KeyError, ValueError, TypeError) as error:
        raise Wrong(f"no function can be written from the statement: {error}") from error


class _Bench:
    def __init__(
        self,
        schema: StateSchema,
        sem: ToolSemantics,
        tool: AgentTool,
        draft: EnvironmentDraft,
        oracle: Any,
        candidate: Any,
    ) -> None:
        self.schema = schema
        self.sem = sem
        self.tool = tool
        self.catalog = build_catalog(draft)
        self.oracle: dict[str, Tool] = dict(oracle)
        self.candidate: dict[str, Tool] = dict(candidate)
        self.table = compile_tools((tool,))
        self.styles = key_styles(schema)
        self.exempt = {
            c.name: frozenset(f.name for f in c.fields if f.policy == "exempt") for c in schema.collections
        }

    def run(self, seed: int) -> Trial:
        successes = refusals = 0
        refused_as = ""
        for number, (base, arguments) in enumerate(self._cases(seed)):
            wanted, before, after = self._call(self.oracle, base, arguments, number)
            if wanted.is_error and isinstance(
                checked_call(self.oracle, self.table, self.tool.name, arguments), ToolOutcome
            ):
                refused_as = str(wanted.value)
                continue  # the schema refused it: no function has run
            got, _, got_after = self._call(self.candidate, base, arguments, number)
            self._same(arguments, wanted, got, after, got_after)
            if number % 5 == 0:
                again, _, again_after = self._call(self.candidate, base, arguments, number)
                if again.text != got.text or not same_json(again_after, got_after):
                    raise Wrong(f"code: {_said(arguments)}: it answers otherwise when it is called again")
            if wanted.is_error:
                refusals += 1
                continue
            successes += 1
            self._shows(arguments, wanted.value, got.value, before)
        if successes < LEAST_SUCCESSES:
            why = f"; arguments were refused: {refused_as}" if refused_as else ""
            raise Wrong(f"only {successes} of {WORLDS * CALLS} calls that fit the statement succeeded{why}")
        if refusals < LEAST_REFUSALS and self._can_refuse():
            raise Wrong(f"only {refusals} calls were refused, although the statement names reasons to refuse")
        return Trial(successes, refusals)

    def _cases(self, seed: int) -> Iterator[tuple[StateData, dict[str, Any]]]:
        names = {(c.name, f.name) for c in self.schema.collections for f in c.fields}
        for number in range(WORLDS):
            rng = random.Random(f"trial/{seed}/{self.sem.tool}/{number}")
            maker = ValueMaker(ValuePool(seed), rng, date(2026, 3, 2))
            needs = names if number % 2 == 0 else set[tuple[str, str]]()
            world = build_world(
                self.catalog, maker, rng, Needs(needs, Counter(c.name for c in self.schema.collections))
            )
            arguments = ArgumentMaker(self.schema, self.sem, self.tool, world.state, maker, rng)
            for call in range(CALLS):
                yield world.state, arguments.draw(refused=call % 6 == 5)

    def _call(
        self, tools: dict[str, Tool], base: StateData, arguments: dict[str, Any], seed: int
    ) -> tuple[ToolOutcome, StateData, StateData]:
        state = State(base, [c.name for c in self.schema.collections])
        before = state.snapshot()
        context = ToolContext(CLOCK, seed, self.styles)
        outcome = call_tool(tools, self.table, state, context, self.tool.name, arguments)
        return outcome, before, state.snapshot()

    def _same(
        self,
        arguments: dict[str, Any],
        wanted: ToolOutcome,
        got: ToolOutcome,
        after: StateData,
        got_after: StateData,
    ) -> None:
        if wanted.is_error != got.is_error:
            words = f"refuses ({wanted.value})" if wanted.is_error else "succeeds"
            other = f"refuses ({got.value})" if got.is_error else "reports success"
            raise Wrong(f"code: {_said(arguments)}: by the statement the call {words}, the function {other}")
        if got.is_error and not str(got.value).strip():
            raise Wrong(f"code: {_said(arguments)}: it refuses without saying why")
        for name, table in after.items():
            mine = got_after[name]
            for key in (*table, *(k for k in mine if k not in table)):
                expected, found = table.get(key), mine.get(key)
                if not same_json(self._plain(name, expected), self._plain(name, found)):
                    raise Wrong(
                        f"code: {_said(arguments)}: by the statement {name}[{key}] is then "
                        f"{expected!r:.300}, the function leaves {found!r:.300}"
                    )

    def _plain(self, collection: str, record: Any) -> Any:
        if not isinstance(record, dict):
            return record
        return {k: v for k, v in record.items() if k not in self.exempt[collection]}  # pyright: ignore[reportUnknownVariableType]

    def _shows(self, arguments: dict[str, Any], wanted: Any, got: Any, before: StateData) -> None:
        """The result holds at the stated paths what the records hold."""
        if not self.sem.outputs:
            return
        records: list[Any] = list(wanted) if self.sem.many else [wanted]
        key = self.schema.collection(self.sem.collection).key
        if self.sem.verb == "delete":
            records = [r for r in before[self.sem.collection].values() if r.get(key) == wanted["deleted"]]
        pattern = container(self.sem.outputs[0].path)[0]
        elements = [value for _, value in resolve(pattern, got)] if pattern else [got]
        hidden = self.exempt[self.sem.collection]
        paths = [(container(o.path)[1], o.field) for o in self.sem.outputs if o.field not in hidden]
        shown = [[fetch(path, element) if path else element for path, _ in paths] for element in elements]
        stored = [[record.get(name) for _, name in paths] for record in records]
        if not self.sem.paging:  # without pages the order of a list is the function's own affair
            shown, stored = sorted(shown, key=repr), sorted(stored, key=repr)
        if not same_json(shown, stored):
            raise Wrong(
                f"code: {_said(arguments)}: at the stated output paths the result shows {shown!r:.300}, the "
                f"records hold {stored!r:.300}"
            )

    def _can_refuse(self) -> bool:
        return bool(self.sem.preconditions or self.sem.paging)


def _said(arguments: dict[str, Any]) -> str:
    return f"called with {arguments!r:.300}"
