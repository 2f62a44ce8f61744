"""Gate 7: what the instruction says fits one record only, or every record that it fits is accepted.

The gate looks for other readings instead of trusting how the task was made. For each key in the reference
that a look-up led to, it takes what the user says about that record (the texts of the record and of the
records it belongs to) and searches the whole initial state for others of which the same holds, also where
the reference never looks. Each one found is executed: the reference with that record in its place, later
look-ups and conclusions worked out again. If the run goes through and ends in a state that is not accepted,
the goal is ambiguous. A run that the environment refuses, or in which a later look-up finds nothing, is no
other reading: the agent learns there that it was wrong. A key that a conclusion led to (the cheapest, all
that are open) is bound by the conclusion: no two records may share the extreme value, and the records
compared are those below a record that is looked up, which the search covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from envgen.errors import TaskError
from envgen.runtime.context import ToolContext
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.blueprint import elements_of, fetch, infer, split_reference
from envgen.synthesis.graph import keyed_collection
from envgen.synthesis.knowledge import says
from envgen.synthesis.runner import Runner
from envgen.synthesis.schema import place_argument, read_argument
from envgen.types import ArgumentSource, GateResult, Record, ReferenceStep, StateData, Task

MAX_DEPTH = 3
"""Levels of parents whose names may tell records apart."""
MAX_TRIES = 40
"""Other readings executed for one task at most."""


@dataclass(frozen=True)
class Bound:
    """A record that the goal binds to."""

    collection: str
    key: str


class Bindings(Runner):
    """Looks for other readings of tasks of one environment."""

    def gate(self, task: Task) -> GateResult:
        """Gate 7 on one task. ``tried`` counts the records compared and the runs made."""
        text = _said(task)
        tried = 0
        runs = 0
        for bound in self._bound(task):
            table = task.initial_state.get(bound.collection, {})
            own = table[bound.key]
            told = self.told(task.initial_state, bound.collection, own, text)
            tried += len(table) - 1
            if not told:
                continue  # chosen as the only one in sight, or by a conclusion: gate 6 looks at these
            for key, record in table.items():
                if key == bound.key or self.told(task.initial_state, bound.collection, record, text) != told:
                    continue
                runs += 1
                if runs > MAX_TRIES:
                    detail = f"more than {MAX_TRIES} other readings"
                    return GateResult(gate="binding", passed=False, tried=tried + runs, detail=detail)
                state = self._reading(task, text, bound, key)
                if state is not None and (task.answers or not self.accepts(task, state)):
                    detail = f"the goal also fits {bound.collection}[{key}]: {told[0][1]!r} names both"
                    return GateResult(gate="binding", passed=False, tried=tried + runs, detail=detail)
        tied, compared = self._ties(task)
        return GateResult(gate="binding", passed=not tied, tried=tried + runs + compared, detail=tied)

    # --------------------------------------------------------------------------------------- what is bound
    def _keyed(self, step: ReferenceStep, source: ArgumentSource) -> str:
        """The collection whose key an argument is, or empty."""
        sem = self.catalog.semantics[step.tool]
        bindings = (*((sem.key,) if sem.key else ()), *sem.scope, *sem.filters, *sem.writes)
        found = next((b for b in bindings if b.param == source.param), None)
        return keyed_collection(self.schema, found.collection, found.field) if found is not None else ""

    def _bound(self, task: Task) -> list[Bound]:
        """Every record of the initial state that a look-up of the reference leads to."""
        found: dict[Bound, None] = {}
        for step, source in _lookups(task):
            collection = self._keyed(step, source)
            value = read_argument(step.arguments, source.param)
            for item in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
                if collection and str(item) in task.initial_state.get(collection, {}):  # pyright: ignore[reportUnknownArgumentType]
                    found[Bound(collection, str(item))] = None  # pyright: ignore[reportUnknownArgumentType]
        return list(found)

    def told(
        self, state: StateData, collection: str, record: Record, text: str, depth: int = 0
    ) -> list[tuple[str, Any]]:
        """(path, text) for all texts of a record, and of the records it belongs to, that the user says."""
        found: list[tuple[str, Any]] = []
        for item in self.catalog.collections[collection].fields:
            value = record.get(item.name)
            if item.references and depth < MAX_DEPTH:
                parent = state.get(item.references, {}).get(str(value))
                if parent is not None and item.references != collection:
                    inner = self.told(state, item.references, parent, text, depth + 1)
                    found += [(f"{item.name}.{path}", said) for path, said in inner]
            elif isinstance(value, str) and len(value) > 1 and says(text, value):
                found.append((item.name, value))
        return found

    # ------------------------------------------------------------------------------------- another reading
    def _reading(self, task: Task, text: str, bound: Bound, other: str) -> State | None:
        """The end state of the reference with another record in one's place; None when it does not go
        through."""
        state = State(task.initial_state, self._names)
        context = ToolContext(task.clock, task.seed, self.bench.styles)
        results: list[Any] = []
        try:
            for step in task.reference:
                if step.kind == "ask":
                    results.append(None)
                    continue
                arguments = orjson.loads(orjson.dumps(step.arguments))
                for source in step.sources:
                    if source.kind in ("output", "reasoning"):
                        value = self._worked_out(task, text, step, source, results)
                        swapped = self._keyed(step, source) == bound.collection
                        if swapped and str(value) == bound.key:
                            key = self.catalog.collections[bound.collection].key
                            value = task.initial_state[bound.collection][other].get(key, other)
                        place_argument(arguments, source.param, value)
                outcome = call_tool(self.bench.tools, self.bench.table, state, context, step.tool, arguments)
                if outcome.is_error:
                    return None
                results.append(orjson.loads(outcome.text))
        except TaskError:
            return None
        return state

    def _worked_out(
        self, task: Task, text: str, step: ReferenceStep, source: ArgumentSource, results: list[Any]
    ) -> Any:
        """An argument from the results of this run. Raises TaskError when they do not give it."""
        before = read_argument(step.arguments, source.param)
        if source.kind == "reasoning":
            node = next(n for n in task.blueprint.nodes if n.id == source.detail)
            answers = infer(node, results)
            return before if before in answers or len(answers) != 1 else answers[0]
        at, path = split_reference(source.detail)
        value = fetch(path, results[at])
        collection = self._keyed(step, source)
        table = task.initial_state.get(collection, {})
        if not collection or str(before) not in table or str(value) == str(before):
            return value
        own = self.told(task.initial_state, collection, table[str(before)], text, MAX_DEPTH)
        shown = orjson.dumps(results[at]).decode()
        alike = [
            record.get(self.catalog.collections[collection].key, key)
            for key, record in table.items()
            if f'"{key}"' in shown
            and self.told(task.initial_state, collection, record, text, MAX_DEPTH) == own
        ]
        if len(alike) != 1:
            raise TaskError(f"{task.id}: {len(alike)} records of the other reading fit")
        return alike[0]

    def _ties(self, task: Task) -> tuple[str, int]:
        """A conclusion that two records share, or empty; and how many records were compared."""
        compared = 0
        try:
            outputs = self.outputs(task)
        except TaskError as error:
            return str(error), compared
        for node in task.blueprint.nodes:
            if node.kind != "reasoning" or not node.order:
                continue
            elements = elements_of(node, outputs)
            if node.names:
                elements = [e for e in elements if fetch(node.among, e) in node.names]
            values = [fetch(node.over, e) for e in elements]
            compared += len(values)
            best = min(values) if node.order == "min" else max(values)
            if values.count(best) != 1:
                return (
                    f"{values.count(best)} records share the {node.order} of {node.over}: {best!r}",
                    compared,
                )
        return "", compared


def _lookups(task: Task) -> Iterator[tuple[ReferenceStep, ArgumentSource]]:
    for step in task.reference:
        if step.kind != "ask":
            for source in step.sources:
                if source.kind == "output":
                    yield step, source


def _said(task: Task) -> str:
    """All that the user says or would say when asked."""
    return "\n".join([task.instruction, *(fact.sentence for fact in task.facts)])
