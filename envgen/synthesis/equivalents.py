"""Other right ways to do a task: legal orders of its blueprint, extra reads, retries, other minted ids.

`settle` executes every legal order of the writes (up to `MAX_ORDERS`) before a task is certified. Where an
order ends in another state, the fields that differ depend on the order although the task does not name one:
that state is accepted too (DESIGN.md §6). Gate 5 then plays equivalent runs and rejects a task whose grader
refuses one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from envgen.errors import TaskError
from envgen.runtime.context import ToolContext, mix
from envgen.runtime.criteria import ANSWER
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.blueprint import fetch, split_reference
from envgen.synthesis.graph import keyed_collection
from envgen.synthesis.runner import Runner, Write
from envgen.synthesis.schema import place_argument
from envgen.types import GateResult, ParamBinding, Task

MAX_ORDERS = 24
"""All orders of four independent writes."""
MAX_STATES = 6
"""Accepted states of one task at most: a task that ends in more is not well defined."""


@dataclass(frozen=True)
class Settled:
    """A task with every end state that a legal order reaches."""

    task: Task
    orders: int
    """Legal orders executed besides the reference's."""
    refused: int
    """Orders in which the environment refused a call: not legal after all."""
    fields: tuple[str, ...]
    """``collection.field`` of what depends on the order; a record that is there or not has no field."""


def orders_of(task: Task, writes: Sequence[int], rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Legal orders of the reference's write steps, in random order without repetition: a step comes after
    every write that its blueprint node depends on, directly or through reads and reasoning."""
    needs = _needs(task, writes)

    def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(writes):
            yield done
            return
        ready = [step for step in writes if step not in done and needs[step] <= set(done)]
        for step in rng.sample(ready, len(ready)):
            yield from extend((*done, step))

    yield from extend(())


def _needs(task: Task, writes: Sequence[int]) -> dict[int, set[int]]:
    before: dict[str, set[str]] = {}
    for edge in task.blueprint.edges:
        before.setdefault(edge.target, set()).add(edge.source)
    step_of = {task.reference[step].node: step for step in writes}
    out: dict[int, set[int]] = {}
    for step in writes:
        seen: set[str] = set()
        waiting = [task.reference[step].node]
        while waiting:
            found = before.get(waiting.pop(), set()) - seen
            seen |= found
            waiting += found
        out[step] = {step_of[node] for node in seen if node in step_of}
    return out


class Equivalents(Runner):
    """Plays equivalent runs of tasks of one environment."""

    def settle(self, task: Task) -> Settled:
        """The task with the end states of all legal orders among its accepted ones.

        Raises TaskError when there are more than `MAX_STATES`.
        """
        steps = self._write_steps(task)
        tried = refused = 0
        fields: set[str] = set()
        for order in self._orders(task, steps):
            state = self._run(task, order)
            tried += 1
            if state is None:
                refused += 1
                continue
            if self.accepts(task, state):
                continue
            if len(task.accepted_states) == MAX_STATES:
                raise TaskError(f"{task.id}: its legal orders end in more than {MAX_STATES} states")
            found = self.grader(task).judge(state.delta()).differences
            fields |= {f"{d.collection}.{d.field}".rstrip(".") for d in found if d.collection != ANSWER}
            task = task.model_copy(update={"accepted_states": (*task.accepted_states, state.snapshot())})
        return Settled(task, tried, refused, tuple(sorted(fields)))

    def gate(self, task: Task) -> GateResult:
        """Gate 5: other legal orders, extra reads, a retry after an error, and other minted ids are all
        accepted."""
        steps = self._write_steps(task)
        reads = [
            Write(s.tool, s.arguments)
            for s in task.reference
            if s.kind == "call" and not self.catalog.semantics[s.tool].writes_state
        ]
        tried = 0
        runs: list[tuple[str, State | None]] = [
            (f"order {order}", self._run(task, order)) for order in self._orders(task, steps)
        ]
        runs.append(("extra reads", self._run(task, steps, before=lambda _: reads)))
        runs.append(("a retry after an error", self._run(task, steps, before=lambda s: self._wrong(task, s))))
        runs.append(("other ids", self._run(task, steps, seed=1)))
        for label, state in runs:
            if state is None:
                if label.startswith("order"):
                    continue  # the environment does not allow this order: no run is equivalent to it
                return GateResult(gate="equivalents", passed=False, tried=tried, detail=f"{label}: refused")
            tried += 1
            if not self.accepts(task, state):
                return GateResult(gate="equivalents", passed=False, tried=tried, detail=f"{label}: rejected")
        return GateResult(gate="equivalents", passed=True, tried=tried)

    def _write_steps(self, task: Task) -> tuple[int, ...]:
        return tuple(
            index
            for index, step in enumerate(task.reference)
            if step.kind != "ask" and self.catalog.semantics[step.tool].writes_state
        )

    def _orders(self, task: Task, steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Legal orders other than the reference's."""
        orders = orders_of(task, steps, random.Random(f"orders/{task.seed}"))
        for tried, order in enumerate(orders):
            if tried == MAX_ORDERS:
                return
            if order != steps:
                yield order

    def _run(
        self,
        task: Task,
        order: Sequence[int],
        *,
        before: Callable[[int], list[Write]] | None = None,
        seed: int = 0,
    ) -> State | None:
        """The state after the writes in this order, or None when one of them is refused.

        Arguments that name a record made by an earlier write follow it to the key that it has in this run.
        ``before`` gives calls to make before a step, whatever they answer.
        """
        state = State(task.initial_state, self._names)
        context = ToolContext(task.clock, task.seed if seed == 0 else mix(task.seed, seed), self.bench.styles)

        def call(tool: str, arguments: Mapping[str, Any]) -> Any:
            outcome = call_tool(self.bench.tools, self.bench.table, state, context, tool, arguments)
            return None if outcome.is_error else (orjson.loads(outcome.text),)

        results: dict[int, Any] = {}
        for index in order:
            for extra in before(index) if before is not None else ():
                call(extra.tool, extra.arguments)
            answer = call(task.reference[index].tool, self._bound(task, index, results))
            if answer is None:
                return None
            results[index] = answer[0]
        return state

    def _bound(self, task: Task, index: int, results: Mapping[int, Any]) -> dict[str, Any]:
        step = task.reference[index]
        arguments = orjson.loads(orjson.dumps(step.arguments))
        for source in step.sources:
            if source.kind != "output":
                continue
            at, path = split_reference(source.detail)
            if at in results:
                place_argument(arguments, source.param, fetch(path, results[at]))
        return arguments

    def _keyed(self, binding: ParamBinding) -> bool:
        """True when a parameter names a record, and not just says a word."""
        return bool(keyed_collection(self.catalog.schema, binding.collection, binding.field))

    def _wrong(self, task: Task, index: int) -> list[Write]:
        """The step's call with a record that does not exist; where it names none, without arguments."""
        step = task.reference[index]
        semantics = self.catalog.semantics[step.tool]
        named = next((b for b in (semantics.key, *semantics.scope) if b is not None and self._keyed(b)), None)
        if named is None or (semantics.verb == "create" and named is semantics.key):
            return [Write(step.tool, {})] if self.catalog.required(step.tool) else []
        schema = self.catalog.parameter(step.tool, named.param)
        arguments = orjson.loads(orjson.dumps(step.arguments))
        nobody = 987654321 if schema.get("type") == "integer" else "no-such-record"
        place_argument(arguments, named.param, nobody)
        return [Write(step.tool, arguments)]
