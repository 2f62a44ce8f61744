"""One live, single-use episode: a user opens, the agent calls tools or speaks, until a rule ends it.

What ends an episode (``StopReason``), exactly:

- ``USER_DONE``: the user's rules say so after a message without tool calls (``envgen.users.scripted``);
- ``MAX_TURNS``: ``max_turns`` actions were taken and none of the others applied;
- ``MAX_TOOL_CALLS``: a call beyond ``max_tool_calls`` was tried. It is not run, nor is what follows it in
  the same message;
- ``MAX_TOOL_ERRORS``: more than ``max_tool_errors`` calls were answered with an error;
- ``ENV_ERROR``: a tool function broke. The state is as before that call; ``Env.defect`` says what happened;
- ``TOOL_TIMEOUT``, ``TOOL_BREACH``, ``WORKER_LOST``: the same for a function that is not vetted, which broke
  a limit of its isolated worker or took it down (``envgen.runtime.isolation``);
- ``USER_ERROR``: the user raised UserError; ``Env.user_verdict`` says why. Also right at ``start``;
- anything else comes from outside through ``close(reason)``: token budgets, time-outs.

An action with tool calls runs them in order, one observation for each; its content is kept in the
transcript, and the user is not addressed. An action without calls goes to the user, who may carry out what
it asks for with a tool of its own, run like the agent's (``envgen.users.actions``). An empty one is answered
once (see the user's rules) and counts as a turn like any other. An Env never raises because of what an agent
wrote.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from envgen.errors import EnvUsageError, TaskError, ToolDefect
from envgen.runtime.context import ToolContext, mix
from envgen.runtime.failures import ToolFailures
from envgen.runtime.grader import Grader, grader_of
from envgen.runtime.isolation.episode import IsolatedCall, IsolatedEpisode
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.shared import EnvRuntime, runtime_of
from envgen.runtime.state import State
from envgen.runtime.statehash import StateHasher
from envgen.runtime.stepping import Play, Slow, drive, drive_async
from envgen.runtime.tools import ToolOutcome, ToolTable, call_tool, error_text
from envgen.store import Bundle
from envgen.types import EnvLimits, Message, StepResult, StopReason, Task, ToolCall, UserAction, Verdict
from envgen.users.actions import UserHands
from envgen.users.port import NO_ERROR, NotesActions, User, UserError, UserErrorHook, UserVerdict
from envgen.users.scripted import ScriptedUser

T = TypeVar("T")


@dataclass(frozen=True)
class EnvSnapshot:
    """A point of one episode that ``Env.restore`` goes back to, as often as wanted. Lives in this process: to
    keep a trajectory on disk, store its messages (``envgen.runtime.regrade`` plays them again)."""

    episode: Env
    """A fork that nobody steps."""


class Env:
    """One episode of one task. Made by ``open_env``; ``start`` once, ``step`` until the result is ``done``,
    ``verdict``.

    Attributes: ``task``, ``limits``, ``state``, ``turns``, ``tool_calls``, ``tool_errors`` (counts so far),
    ``stop_reason`` (None while it goes on), ``user_verdict`` (no error until the end), ``defect`` (empty
    unless the environment's code ended it).
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
        self._state = State(task.initial_state, runtime.collections)
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
        minted = task.seed if seed == 0 else mix(task.seed, seed)
        self._context = ToolContext(task.clock, minted, runtime.styles)
        self._isolated = _isolated(runtime, task, minted)
        self._user: User = user or ScriptedUser(task)
        self._hands = UserHands(task.user_actions)
        self._failures = failures
        self._turns_hit = 0
        self._hook = user_error_hook
        self._transcript: list[Message] = []
        self._hasher: StateHasher | None = None

    @property
    def state(self) -> State:
        """The state now. Where it lives in a worker: a copy made for this look, and a ToolDefect when the
        worker cannot give it."""
        return self._state if self._isolated is None else self._isolated.state()

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
        return drive(self.play_opening())

    def step(self, action: Message) -> StepResult:
        """Take one action of the agent; what follows it, and the stop reason if that was the end.

        Raises EnvUsageError before ``start``, after the end, and for a message that is not the assistant's.
        """
        return drive(self.play(action))

    async def start_async(self) -> tuple[Message, ...]:
        """``start`` for asyncio: other tasks run while a user (a model) is waited for."""
        return await drive_async(self.play_opening())

    async def step_async(self, action: Message) -> StepResult:
        """``step`` for asyncio: other tasks run while a worker, a user or a judge is waited for, and calls
        of several episodes go to their worker together."""
        return await drive_async(self.play(action))

    def play_opening(self) -> Play[tuple[Message, ...]]:
        """``start`` as a generator of what it waits for (``envgen.runtime.stepping``)."""
        if self._transcript or self.stop_reason is not None:
            raise EnvUsageError(
                "this Env was started already; an Env is single-use, open another with open_env"
            )
        try:
            opening = Message(role="user", content=(yield from self._asked(self._user.opening)))
        except UserError as error:
            yield from self._end(self._blame(error))
            return ()
        self._transcript.append(opening)
        return (opening,)

    def play(self, action: Message) -> Play[StepResult]:
        """``step`` as a generator of what it waits for (``envgen.runtime.stepping``)."""
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
            observations, reason = yield from self._run_calls(action.tool_calls)
            # The turn that it takes to call again is not taken off the agent's budget.
            self._turns_hit += self._refusals > refused
        else:
            observations, reason = yield from self._ask_user(action.content)
        self._transcript.extend(observations)
        if reason is None and self.turns - self._turns_hit >= self.limits.max_turns:
            reason = StopReason.MAX_TURNS
        if reason is not None:
            yield from self._end(reason)
        return StepResult(
            observations=tuple(observations), stop_reason=reason, tool_errors=self.tool_errors - before
        )

    def _run_calls(self, calls: tuple[ToolCall, ...]) -> Play[tuple[list[Message], StopReason | None]]:
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
                if call.parse_error:
                    made = ToolOutcome(call.parse_error, True, error_text(call.parse_error))
                else:
                    made = self._made(self._runtime.table, call.name, call.arguments)
                outcome = (yield made) if isinstance(made, IsolatedCall) else made
            except ToolDefect as error:
                self.defect = str(error)
                return observations, StopReason(error.reason)
            text = self._observed(call, outcome)
            observations.append(Message(role="tool", content=text, tool_call_id=call.id, name=call.name))
            if outcome.is_error:
                self.tool_errors += 1
                if self.tool_errors > self.limits.max_tool_errors:
                    return observations, StopReason.MAX_TOOL_ERRORS
        return observations, None

    @property
    def _refusals(self) -> int:
        return self._failures.refusals if self._failures is not None else 0

    def _made(
        self, table: ToolTable, name: str, arguments: str | Mapping[str, Any]
    ) -> ToolOutcome | IsolatedCall:
        """A call's outcome, or the call that waits for a worker. Raises ToolDefect."""
        if self._isolated is not None:
            return self._isolated.prepare(name, arguments, table)
        return call_tool(self._runtime.tools, table, self._state, self._context, name, arguments)

    def _observed(self, call: ToolCall, outcome: ToolOutcome) -> str:
        """The text of the observation: the outcome's, or a part of it."""
        if self._failures is not None and not outcome.is_error and call.name in self._runtime.readers:
            part = self._failures.after(outcome.value)
            if part:
                self.tool_calls -= 1
                return part
        return outcome.text

    def _asked(self, question: Callable[..., T], *words: str) -> Play[T]:
        """What the user says; waited for where it may take its time."""
        if isinstance(self._user, ScriptedUser):
            return question(*words)
        return (yield Slow(partial(question, *words)))

    def _ask_user(self, content: str) -> Play[tuple[list[Message], StopReason | None]]:
        try:
            said = self._hands.wanted(content)
            if isinstance(said, UserAction):
                made = self._made(self._runtime.user_table, said.tool, said.arguments)
                outcome = (yield made) if isinstance(made, IsolatedCall) else made
                said = self._hands.carried_out(said, outcome)
            if said is not None:
                if isinstance(self._user, NotesActions):
                    self._user.note_action(content, said)
                return [Message(role="user", content=said)], None
            reply = yield from self._asked(self._user.reply, content)
        except ToolDefect as error:
            self.defect = str(error)
            return [], StopReason(error.reason)
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
        drive(self._end(reason))

    def _end(self, reason: StopReason) -> Play[None]:
        self.stop_reason = reason
        if self._hook is not None and not self.user_error:
            self.user_verdict = yield Slow(partial(self._hook, self.task, self.transcript))

    def verdict(self) -> Verdict:
        """The grader's answer for state and transcript as they are now. May be asked at any time; costs what
        changed.

        From a worker only data is read; raises ToolDefect when it does not give any."""
        return self._grader.judge((self._isolated or self._state).delta(), self._transcript)

    # ---------------------------------------------------------------- branching
    def fork(self) -> Env:
        """A second episode that goes on from here: same state, ids and times to come, transcript, counts,
        and a user in the same frame of mind. Neither sees what the other does. Costs what changed.

        Raises EnvUsageError when the user cannot be copied (one that holds a connection must define
        ``__deepcopy__``).
        """
        other = copy.copy(self)
        other._state = self._state.fork()
        other._isolated = None if self._isolated is None else self._isolated.fork()
        other._context = self._context.fork()
        other._transcript = list(self._transcript)
        other._hasher = None
        other._hands = copy.copy(self._hands)
        other._failures = copy.deepcopy(self._failures)
        try:
            # The task is shared: it is frozen, and as large as the state.
            other._user = copy.deepcopy(self._user, {id(self.task): self.task})
        except TypeError as error:
            raise EnvUsageError(
                f"this episode cannot be forked: its {type(self._user).__name__} does not copy ({error})"
            ) from error
        return other

    def snapshot(self) -> EnvSnapshot:
        """This point of the episode, to come back to with ``restore``."""
        return EnvSnapshot(self.fork())

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Go back to a snapshot of this episode or of a fork of it, also after the end.

        Raises EnvUsageError for a snapshot of another task or bundle.
        """
        kept = snapshot.episode
        if kept.task is not self.task or kept._runtime is not self._runtime:
            raise EnvUsageError(
                f"got a snapshot of task {kept.task.id!r}, this is an episode of {self.task.id!r}; restore "
                "snapshots of the same episode"
            )
        vars(self).update(vars(kept.fork()))

    def state_hash(self) -> str:
        """A hash of the state: equal where the grader finds the states equal (``statehash``)."""
        if self._hasher is None:
            self._hasher = StateHasher(self._grader.schema, self.task.initial_state)
        return self._hasher.of(self.state)


def _isolated(runtime: EnvRuntime, task: Task, seed: int) -> IsolatedEpisode | None:
    if runtime.pool is None:
        return None
    base = runtime.pool.base(task.initial_state)
    names = frozenset((*runtime.collections, *task.initial_state))
    return IsolatedEpisode(runtime.pool, runtime.table, names, base, task.clock, seed)


def open_env(
    bundle: Bundle,
    task: Task,
    *,
    seed: int = 0,
    limits: EnvLimits | None = None,
    user_error_hook: UserErrorHook | None = None,
    isolation: WorkerLimits | None = None,
    user: User | None = None,
    failures: ToolFailures | None = None,
) -> Env:
    """A fresh episode of ``task``. Costs the same for small and large states.

    Replay references with seed 0: where a reference uses an id minted by an earlier call of its own, it holds
    the id of that seed.

    ``seed`` varies the ids that the environment mints (0: as in the reference). ``user_error_hook`` judges
    the transcript at the end. ``user`` is single-use too; the plain scripted one when left out.
    ``failures`` strike at its tools. ``isolation`` limits the workers of a bundle whose functions are not
    vetted (``runtime_of``). Raises TaskError when the task belongs to another environment.
    """
    if task.environment_id != bundle.environment_id:
        raise TaskError(
            f"task {task.id!r} is for environment {task.environment_id!r}, the bundle is "
            f"{bundle.environment_id!r}; take tasks from the bundle they were made for"
        )
    grader = grader_of(task, bundle.state_schema)
    runtime = runtime_of(bundle, isolation)
    return Env(runtime, grader, task, seed, limits or EnvLimits(), user_error_hook, user, failures)
