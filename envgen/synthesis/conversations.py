"""Whole conversations of a reference, with the scripted user: what rules about the trace are proved on.

The gate ``confirmation`` stands in the certificate of every task that wants a go-ahead before some call: the
reference is accepted, and it is rejected when one of the questions is left out or when the user says no.
"""

from __future__ import annotations

from collections.abc import Collection

import orjson

from envgen.runtime.context import ToolContext
from envgen.runtime.grader import grader_of
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.runner import Runner
from envgen.types import GateResult, Message, Task, ToolCall, Verdict
from envgen.users.actions import told
from envgen.users.scripted import ScriptedUser


class Conversations(Runner):
    """Plays references of one environment as conversations, and judges them by all criteria."""

    def verdict(self, task: Task, *, without: Collection[int] = (), refused: bool = False) -> Verdict:
        """The verdict after the reference, the steps ``without`` left out. ``refused``: the user says no to
        every question for a go-ahead, and the agent does not listen."""
        user = ScriptedUser(task.model_copy(update={"consent": "no"}) if refused else task)
        state = State(task.initial_state, self._names)
        context = ToolContext(task.clock, task.seed, self.bench.styles)
        transcript = [Message(role="user", content=user.opening())]
        for index, step in enumerate(task.reference):
            if index in without:
                continue
            if step.kind == "ask":
                transcript.append(Message(role="assistant", content=step.text))
                transcript.append(Message(role="user", content=user.reply(step.text).text))
                continue
            outcome = call_tool(self.bench.tools, self.bench.table, state, context, step.tool, step.arguments)
            if step.kind == "act":
                transcript.append(Message(role="assistant", content=step.text))
                transcript.append(Message(role="user", content=told(outcome)))
                continue
            call = ToolCall(id=f"c{index}", name=step.tool, arguments=orjson.dumps(step.arguments).decode())
            transcript.append(Message(role="assistant", tool_calls=(call,)))
            transcript.append(Message(role="tool", content=outcome.text, tool_call_id=call.id))
        transcript.append(Message(role="assistant", content=task.closing))
        return grader_of(task, self.schema).judge(state.delta(), transcript)

    def gate(self, task: Task) -> GateResult:
        """See the module docstring."""
        whole = self.verdict(task)
        if not whole.success:
            detail = f"the reference is rejected: {'; '.join(whole.violations) or 'another state'}"
            return GateResult(gate="confirmation", passed=False, tried=1, detail=detail)
        guarded = {tool for rule in task.constraints if rule.kind == "confirm_before" for tool in rule.tools}
        calls = [i for i, s in enumerate(task.reference) if s.kind == "call" and s.tool in guarded]
        tried = 1
        for index in calls:
            tried += 1
            if self.verdict(task, without={index - 1}).success:
                detail = f"{task.reference[index].tool} without asking is accepted"
                return GateResult(gate="confirmation", passed=False, tried=tried, detail=detail)
        if calls:
            tried += 1
            if self.verdict(task, refused=True).success:
                detail = "calls that the user said no to are accepted"
                return GateResult(gate="confirmation", passed=False, tried=tried, detail=detail)
        return GateResult(gate="confirmation", passed=True, tried=tried)


def confirms(task: Task) -> bool:
    """True when a rule of the task wants a go-ahead before some call."""
    return any(rule.kind == "confirm_before" for rule in task.constraints)
