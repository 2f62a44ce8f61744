"""One live, single-use episode: a user opens, the agent calls tools or speaks, until a rule ends it.

What ends an episode (``StopReason``), exactly:

- ``USER_DONE``: the user's rules say so after a message without tool calls (``envgen.users.scripted``);
- ``MAX_TURNS``: ``max_turns`` actions were taken and none of the others applied;
- ``MAX_TOOL_CALLS``: a call beyond ``max_tool_calls`` was tried. It is not run, nor is what follows it in
  the same message;
- ``MAX_TOOL_ERRORS``: more than ``max_tool_errors`` calls were answered with an error;
- ``ENV_ERROR``: a tool function broke. The state is as before that call; ``Env.defect`` says what happened;
- ``USER_ERROR``: the user raised UserError; ``Env.user_verdict`` says why. Also right at ``start``;
- anything else comes from outside through ``close(reason)``: token budgets, time-outs.

An action with tool calls runs them in order, one observation for each; its content is kept in the
transcript, and the user is not addressed. An action without calls goes to the user. An empty one is
answered once (see the user's rules) and counts as a turn like any other. An Env never raises because of
what an agent wrote.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from envgen.errors import BundleError, EnvUsageError, TaskError, ToolDefect
from envgen.runtime.context import KeyStyle, ToolContext, key_styles, mix
from envgen.runtime.failures import ToolFailures
from envgen.runtime.grader import Grader, grader_of
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.state import State
from envgen.runtime.tools import ToolTable, call_tool, compile_tools, error_text
from envgen.store import Bundle
from envgen.types import EnvLimits, Message, StepResult, StopReason, Task, ToolCall, Verdict
from envgen.users.port import NO_ERROR, User, UserError, UserErrorHook, UserVerdict
from envgen.users.scripted import ScriptedUser


@dataclass(frozen=True)
class EnvRuntime:
    """What all episodes of one bundle share, made once: functions, compiled argument checks, key styles.
    Read-only."""

    tools: Mapping[str, Tool]
    table: ToolTable
    styles: Mapping[str, KeyStyle]
    collections: tuple[str, ...]
    readers: frozenset[str] = frozenset()


_runtimes: weakref.WeakKeyDictionary[Bundle, EnvRuntime] = weakref.WeakKeyDictionary()


def runtime_of(bundle: Bundle) -> EnvRuntime:
    """The shared part of a bundle's episodes. Raises UnsafeCodeError for code outside the allow-list.

    Raises BundleError when the tools the agent sees are not exactly those of the code, or have bad schemas.
    """
    runtime = _runtimes.get(bundle)
    if runtime is None:
        tools = load_tools(bundle.source)
        odd = sorted(set(tools) ^ {tool.name for tool in bundle.tools})
        if odd:
            raise BundleError(
                f"bundle {bundle.name!r}: tools.json and TOOLS of tools.py differ in {', '.join(odd)}; "
                "every tool the agent sees needs a function, and the other way round"
            )
        runtime = EnvRuntime(
            tools=tools,
            table=compile_tools(bundle.tools),
            styles=key_styles(bundle.state_schema),
            collections=tuple(c.name for c in bundle.state_schema.collections),
            readers=frozenset(s.tool for s in bundle.semantics if not s.writes_state),
        )
        _runtimes[bundle] = runtime
    return runtime


class Env:
    """One episode of one task. Made by ``open_env``; ``start`` once, ``step`` until the result is ``done``,
    ``verdict``.

    Attributes: ``task``, ``limits``, ``state`` (live), ``turns``, ``tool_calls``, ``tool_errors`` (counts
    so far), ``stop_reason`` (None while it goes on), ``user_verdict`` (no error until the end), ``defect``
    (empty unless ENV_ERROR).
    """

    def __init__(
        self,
        runtime: EnvRuntime,
        grader: Grader,
        task: Task,
        seed: int,
        limits: EnvLimits,
        user_error_hook: UserErrorHook | None,
        user: User | None = None,
        failures: ToolFailures | None = None,
    ) -> None:
        self.task = task
        self.limits = limits
        self.state = State(task.initial_state, runtime.collections)
        self.turns = 0
        self.tool_calls = 0
        self.tool_errors = 0
        self.stop_reason: StopReason | None = None
        self.user_verdict: UserVerdict = NO_ERROR
        self.defect = ""
        self._runtime = runtime
        self._grader = grader
        # Seed 0 is the task's own: the reference's ids. Other seeds give other ids, the same for the same
        # seed.
        self._context = ToolContext(
            task.clock, task.seed if seed == 0 else mix(task.seed, seed), runtime.styles
        )
        self._user: User = user or ScriptedUser(task)
        self._failures = failures
        self._turns_hit = 0
        self._hook = user_error_hook
        self._transcript: list[Message] = []

    @property
    def user_error(self) -> bool:
        """True when the user was at fault: by its own word, or by that of ``user_error_hook``."""
        return self.user_verdict.error

    @property
    def transcript(self) -> tuple[Message, ...]:
        """Everything said so far: user, assistant and tool messages in order (the system part belongs to
        the bundle)."""
        return tuple(self._transcript)

    def start(self) -> tuple[Message, ...]:
        """The user's opening message; nothing when the user failed (USER_ERROR).

        Once only; raises EnvUsageError the second time.
        """
        if self._transcript or self.stop_reason is not None:
            raise EnvUsageError(
                "this Env was started already; an Env is single-use, open another with open_env"
            )
        try:
            opening = Message(role="user", content=self._user.opening())
        except UserError as error:
            self._end(self._blame(error))
            return ()
        self._transcript.append(opening)
        return (opening,)

    def step(self, action: Message) -> StepResult:
        """Take one action of the agent; what follows it, and the stop reason if that was the end.

        Raises EnvUsageError before ``start``, after the end, and for a message that is not the assistant's.
        """
        if self.stop_reason is not None:
            raise EnvUsageError(
                f"this episode ended with {self.stop_reason.value}; open another with open_env"
            )
        if not self._transcript:
            raise EnvUsageError("step before start; call start() for the user's opening first")
        if action.role != "assistant":
            raise EnvUsageError(f"got a message of role {action.role!r}; an action has role 'assistant'")
        self._transcript.append(action)
        self.turns += 1
        before, refused = self.tool_errors, self._refusals
        if action.tool_calls:
            observations, reason = self._run_calls(action.tool_calls)
            # The turn that it takes to call again is not taken off the agent's budget.
            self._turns_hit += self._refusals > refused
        else:
            observations, reason = self._ask_user(action.content)
        self._transcript.extend(observations)
        if reason is None and self.turns - self._turns_hit >= self.limits.max_turns:
            reason = StopReason.MAX_TURNS
        if reason is not None:
            self._end(reason)
        return StepResult(
            observations=tuple(observations), stop_reason=reason, tool_errors=self.tool_errors - before
        )

    def _run_calls(self, calls: tuple[ToolCall, ...]) -> tuple[list[Message], StopReason | None]:
        observations: list[Message] = []
        for call in calls:
            refused = self._failures.before() if self._failures is not None and not call.parse_error else ""
            if refused:
                observations.append(
                    Message(role="tool", content=refused, tool_call_id=call.id, name=call.name)
                )
                continue
            if self.tool_calls >= self.limits.max_tool_calls:
                return observations, StopReason.MAX_TOOL_CALLS
            self.tool_calls += 1
            try:
                text, is_error = self._run_call(call)
            except ToolDefect as error:
                self.defect = str(error)
                return observations, StopReason.ENV_ERROR
            observations.append(Message(role="tool", content=text, tool_call_id=call.id, name=call.name))
            if is_error:
                self.tool_errors += 1
                if self.tool_errors > self.limits.max_tool_errors:
                    return observations, StopReason.MAX_TOOL_ERRORS
        return observations, None

    @property
    def _refusals(self) -> int:
        return self._failures.refusals if self._failures is not None else 0

    def _run_call(self, call: ToolCall) -> tuple[str, bool]:
        if call.parse_error:
            return error_text(call.parse_error), True
        runtime = self._runtime
        outcome = call_tool(
            runtime.tools, runtime.table, self.state, self._context, call.name, call.arguments
        )
        if self._failures is not None and not outcome.is_error and call.name in runtime.readers:
            part = self._failures.after(outcome.value)
            if part:
                self.tool_calls -= 1
                return part, False
        return outcome.text, outcome.is_error

    def _ask_user(self, content: str) -> tuple[list[Message], StopReason | None]:
        try:
            reply = self._user.reply(content)
        except UserError as error:
            return [], self._blame(error)
        if reply.done:
            return [], StopReason.USER_DONE
        return [Message(role="user", content=reply.text)], None

    def _blame(self, error: UserError) -> StopReason:
        self.user_verdict = UserVerdict(True, "user", str(error), max(0, len(self._transcript) - 1), "user")
        return StopReason.USER_ERROR

    def close(self, reason: StopReason) -> None:
        """End the episode from outside (token budget, time-out). Raises EnvUsageError when it has ended
        already."""
        if self.stop_reason is not None:
            raise EnvUsageError(f"this episode ended with {self.stop_reason.value} already; close it once")
        self._end(reason)

    def _end(self, reason: StopReason) -> None:
        self.stop_reason = reason
        if self._hook is not None and not self.user_error:
            self.user_verdict = self._hook(self.task, self.transcript)

    def verdict(self) -> Verdict:
        """The grader's answer for the state as it is now. May be asked at any time; costs what changed."""
        return self._grader.judge(self.state.delta())


def open_env(
    bundle: Bundle,
    task: Task,
    *,
    seed: int = 0,
    limits: EnvLimits | None = None,
    user_error_hook: UserErrorHook | None = None,
    user: User | None = None,
    failures: ToolFailures | None = None,
) -> Env:
    """A fresh episode of ``task``. Costs the same for small and large states.

    Replay references with seed 0: where a reference uses an id minted by an earlier call of its own, it holds
    the id of that seed.

    ``seed`` varies the ids that the environment mints (0: as in the reference). ``user_error_hook`` judges
    the transcript at the end. ``user`` is single-use too; the plain scripted one when left out.
    ``failures`` strike at its tools. Raises TaskError when the task belongs to another environment.
    """
    if task.environment_id != bundle.environment_id:
        raise TaskError(
            f"task {task.id!r} is for environment {task.environment_id!r}, the bundle is "
            f"{bundle.environment_id!r}; take tasks from the bundle they were made for"
        )
    grader = grader_of(task, bundle.state_schema)
    return Env(runtime_of(bundle), grader, task, seed, limits or EnvLimits(), user_error_hook, user, failures)
