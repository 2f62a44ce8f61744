"""Running calls on a task's state without an Env: what the gates are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from envgen.errors import TaskError
from envgen.runtime.context import ToolContext
from envgen.runtime.grader import Grader, grader_of
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.bench import Workbench
from envgen.types import Message, Task


@dataclass(frozen=True)
class Write:
    """One state-changing call."""

    tool: str
    arguments: dict[str, Any]


class Runner:
    """Plays calls on tasks of one environment."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.catalog = bench.catalog
        self.schema = bench.catalog.schema
        self._names = [c.name for c in self.schema.collections]
        self._plain: dict[str, tuple[Task, Task]] = {}
        """The last task with constraints, and the same without."""

    def play(self, task: Task, writes: Sequence[Write]) -> State:
        """The state after some calls; a refused call changes nothing."""
        state = State(task.initial_state, self._names)
        context = ToolContext(task.clock, task.seed, self.bench.styles)
        for write in writes:
            call_tool(self.bench.tools, self.bench.table, state, context, write.tool, write.arguments)
        return state

    def accepts(self, task: Task, state: State, *, silent: bool = False) -> bool:
        """The grader's verdict on a state, after the reference's closing message (``silent``: after none).

        Trace constraints are left to gate 1, which plays whole conversations.
        """
        closing = () if silent else (Message(role="assistant", content=task.closing),)
        return self.grader(task).accepts(state.delta(), closing)

    def grader(self, task: Task) -> Grader:
        """The grader of states and answers of a task. Raises TaskError for criteria that cannot be judged."""
        if task.constraints:
            known = self._plain.get(task.id)
            if known is None or known[0] is not task:
                self._plain = {task.id: (task, task.model_copy(update={"constraints": ()}))}
            task = self._plain[task.id][1]
        return grader_of(task, self.schema)

    def outputs(self, task: Task) -> list[Any]:
        """Results of the reference, one for each step (None for a question). Raises TaskError when a call
        is refused."""
        state = State(task.initial_state, self._names)
        context = ToolContext(task.clock, task.seed, self.bench.styles)
        results: list[Any] = []
        for step in task.reference:
            if step.kind == "ask":
                results.append(None)
                continue
            outcome = call_tool(self.bench.tools, self.bench.table, state, context, step.tool, step.arguments)
            if outcome.is_error:
                raise TaskError(f"{task.id}: the reference call {step.tool} is refused: {outcome.value}")
            results.append(orjson.loads(outcome.text))
        if not self.accepts(task, state):
            raise TaskError(f"{task.id}: the reference does not reach an accepted state")
        return results

    def writes(self, task: Task) -> list[Write]:
        """The reference's state-changing calls."""
        return [
            Write(step.tool, step.arguments)
            for step in task.reference
            if step.kind != "ask" and self.catalog.semantics[step.tool].writes_state
        ]
