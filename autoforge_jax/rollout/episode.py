"""Episodes: Env × Policy -> Trajectory, many at once, in lock-step batches of turns with refill.

Every round asks the policy once for all live episodes. An episode that fails is a value
(`Trajectory.excluded`) and its siblings go on; only a broken ledger or port contract (LedgerError) stops the
run, because what it would train on is wrong. Seeds are functions of (run seed, purpose, step, task, sample,
turn): slot scheduling cannot change a trajectory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from autoforge_jax.config import RenderConfig
from autoforge_jax.errors import ConfigError, LedgerError, PolicyError, TrainingError
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.ledger import TokenLedger, check_trajectory
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.render import Renderer, action_pieces, compact_json, message_pieces, prefix_pieces
from autoforge_jax.rollout.scripted import ScriptedPolicy
from autoforge_jax.rollout.tokenizer import IM_START
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams, Trajectory, Turn
from envgen.interface import (
    Bundle,
    Env,
    Message,
    ReferenceStep,
    StopReason,
    Task,
    ToolCall,
    Verdict,
    open_env,
)

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class _Episode:
    """One live episode: its Env, its ledger and its turns so far."""

    def __init__(
        self,
        job: EpisodeJob,
        renderer: Renderer,
        sampling: SamplingParams,
        limits: EpisodeLimits,
        conditions: Conditions,
    ) -> None:
        self.job = job
        self._renderer = renderer
        self._limits = limits
        self._conditions = conditions
        self._params = replace(
            sampling, max_turn_tokens=limits.max_turn_tokens, stop_token_ids=renderer.stop_ids
        )
        self.ledger = TokenLedger(renderer.prefix(job.bundle))
        self._longest = limits.context(self.ledger.prefix_length)
        self._turns: list[Turn] = []
        self._version: int | None = None
        self._opening: tuple[Message, ...] = ()
        self._verdict: Verdict | None = None
        self.stop_reason: StopReason | None = None
        self._failure = ""
        self._env: Env | None = None
        self._guarded(self._open)

    def _open(self) -> None:
        self._env = self._conditions.open(self.job, self._limits)
        self._opening = tuple(self._env.start())
        if self._env.stop_reason is not None:  # the user could not even open
            self.stop_reason = self._env.stop_reason
            return
        self._append(self._renderer.opening(self._opening))

    def request(self) -> SampleRequest:
        """The next turn to sample."""
        left = self._longest - len(self.ledger)
        return SampleRequest(
            session_id=self.job.session_id,
            token_ids=self.ledger.token_ids,
            params=self._params
            if left >= self._params.max_turn_tokens
            else replace(self._params, max_turn_tokens=left),
            seed=self.job.turn_seed(len(self._turns)),
            prefix_length=self.ledger.prefix_length,
        )

    def take(self, request: SampleRequest, output: SampleOutput) -> None:
        """Record one sampled turn and let the environment answer it."""
        if output.stop == "abort":
            return self.fail(StopReason.POLICY_ERROR, output.reason or "the engine aborted this request")
        start, end = self.ledger.append_action(output, request.params)
        version = output.policy_version
        self._version = version if self._version is None else min(self._version, version)
        action = self._renderer.parse_action(output.token_ids, turn=len(self._turns))
        if output.stop == "length":
            self._turns.append(Turn(action, (), start, end, output.stop))
            truncated = request.params.max_turn_tokens == self._limits.max_turn_tokens
            self.stop_reason = StopReason.TURN_TRUNCATED if truncated else StopReason.TOKEN_BUDGET
            return None
        return self._guarded(lambda: self._step(action, start, end))

    def _step(self, action: Message, start: int, end: int) -> None:
        assert self._env is not None
        # Recorded before the environment runs: its ids stand in the ledger already, also when it breaks.
        self._turns.append(Turn(action, (), start, end, "stop"))
        result = self._env.step(action)
        self._turns[-1] = Turn(action, result.observations, start, end, "stop", result.tool_errors)
        if result.stop_reason is not None:
            self.stop_reason = result.stop_reason
            if result.stop_reason.is_environment_fault:
                self._failure = self._env.defect
            return
        self._append(self._renderer.observations(result.observations))

    def _append(self, ids: Sequence[int]) -> None:
        # At least one token must be left to sample, and nothing longer than the budget may reach the learner.
        if len(self.ledger) + len(ids) >= self._longest:
            self.stop_reason = StopReason.TOKEN_BUDGET
        else:
            self.ledger.append_observation(ids)

    def _guarded(self, action: Callable[[], None]) -> None:
        """The boundary to the environment: a defect of generated code ends this episode, and no other."""
        try:
            action()
        except (LedgerError, ConfigError):
            raise
        except Exception as error:  # the one place: environments run code that a proposer wrote
            self.fail(StopReason.ENV_ERROR, f"{type(error).__name__}: {error}")

    def fail(self, reason: StopReason, message: str) -> None:
        """End with an exclusion."""
        self.stop_reason = reason
        self._failure = message

    def finish(self) -> Trajectory:
        """Grade and record."""
        assert self.stop_reason is not None
        if not self._failure:
            self._guarded(self._grade)
        verdict, task, actions = self._verdict, self.job.task, [turn.action for turn in self._turns]
        success = verdict is not None and verdict.success
        trajectory = Trajectory(
            task_id=task.id,
            environment_id=self.job.bundle.environment_id,
            environment=self.job.bundle.name,
            sample_index=self.job.sample_index,
            opening=self._opening,
            turns=tuple(self._turns),
            token_ids=self.ledger.token_ids,
            action_mask=self.ledger.action_mask,
            rollout_logprobs=self.ledger.logprobs,
            prefix_length=self.ledger.prefix_length,
            user_error=self._env is not None and self._env.user_error,
            user_error_reason=str(self._env.user_verdict) if self._env is not None else "",
            reward=1.0 if success else 0.0,
            success=success,
            stop_reason=self.stop_reason,
            policy_version=-1 if self._version is None else self._version,
            excluded=self.stop_reason.value if self._failure else "",
            failure=self._failure,
            differences=verdict.differences if verdict is not None else (),
            violations=verdict.violations if verdict is not None else (),
            partial_credit=verdict.partial_credit if verdict is not None else 0.0,
            tool_calls=sum(len(action.tool_calls) for action in actions),
            tool_errors=sum(turn.tool_errors for turn in self._turns),
            malformed_calls=sum(bool(call.parse_error) for action in actions for call in action.tool_calls),
            pattern=task.pattern,
            difficulty=task.difficulty,
        )
        check_trajectory(trajectory)
        return trajectory

    def _grade(self) -> None:
        assert self._env is not None and self.stop_reason is not None
        if self._env.stop_reason is None:
            self._env.close(self.stop_reason)  # a token budget or the engine ended it: the user is judged now
        self._verdict = self._env.verdict()


def run_episodes(
    policy: Policy,
    jobs: Sequence[EpisodeJob],
    renderer: Renderer,
    *,
    sampling: SamplingParams,
    limits: EpisodeLimits,
    slots: int,
    conditions: Conditions | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Run every job and return its trajectory, in the order of the jobs.

    At most ``slots`` episodes live at a time; a slot is refilled in the round after its episode ended.
    ``sampling`` gives temperature, top_p, top_k; its other fields come from ``limits`` and the renderer.
    ``on_done`` is told each finished trajectory (progress). Raises LedgerError; engine and environment
    failures are trajectories with ``excluded`` set.
    """
    if slots < 1:
        raise ConfigError(f"slots is {slots}, expected at least 1")
    names = [job.session_id for job in jobs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(
            f"two jobs of one call share the session {twice!r}; give them different sample_index or step"
        )
    conditions = conditions or Conditions()
    waiting = deque(enumerate(jobs))
    live: dict[int, _Episode] = {}
    done: dict[int, Trajectory] = {}
    spread = _Spread(conditions.workers)
    try:
        while waiting or live:
            new = [waiting.popleft() for _ in range(min(len(waiting), slots - len(live)))]
            opened = spread(lambda pair: _Episode(pair[1], renderer, sampling, limits, conditions), new)
            live |= {index: episode for (index, _), episode in zip(new, opened, strict=True)}
            _round(policy, [episode for episode in live.values() if episode.stop_reason is None], spread)
            ended = [index for index, episode in live.items() if episode.stop_reason is not None]
            for index, trajectory in zip(
                ended, spread(_Episode.finish, [live[i] for i in ended]), strict=True
            ):
                policy.release(live.pop(index).job.session_id)
                done[index] = trajectory
                if on_done is not None:
                    on_done(trajectory)
    finally:
        spread.close()
        for episode in live.values():  # after an error or Ctrl-C: the engine keeps no orphan cache
            policy.release(episode.job.session_id)
    return [done[index] for index in range(len(jobs))]


RunEpisodes = Callable[..., list[Trajectory]]
"""`run_episodes`, or what does the same with the help of other processes."""


class _Spread:
    """``spread(function, items)``: the results in order, of several at a time when there are workers.

    Episodes share nothing that changes, so an answer does not depend on who else is waiting for one.
    """

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, "episode") if workers > 1 else None

    def __call__(self, function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        return list(map(function, items) if self._pool is None else self._pool.map(function, items))

    def close(self) -> None:
        """Wait for nothing that has not begun."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _round(policy: Policy, episodes: list[_Episode], spread: _Spread) -> None:
    if not episodes:
        return
    requests = [episode.request() for episode in episodes]
    outputs = _sample(policy, requests)

    def take(item: tuple[_Episode, SampleRequest, SampleOutput | str]) -> None:
        episode, request, output = item
        if isinstance(output, str):
            episode.fail(StopReason.POLICY_ERROR, output)
        else:
            episode.take(request, output)

    spread(take, list(zip(episodes, requests, outputs, strict=True)))


def _sample(policy: Policy, requests: list[SampleRequest]) -> list[SampleOutput | str]:
    """Outputs, or the reason for a request whose sampling failed.

    When a batch fails, each request is tried alone: one bad request must not cost its siblings. The sessions
    are released first, because the failed call may have moved some of them on; sampling is a function of the
    request.
    """
    try:
        outputs = policy.sample(requests)
    except (PolicyError, OSError) as error:
        if len(requests) == 1:
            return [f"{type(error).__name__}: {error}"]
        for request in requests:
            policy.release(request.session_id)
        return [output for request in requests for output in _sample(policy, [request])]
    if len(outputs) != len(requests):
        raise LedgerError(f"the engine answered {len(requests)} requests with {len(outputs)} outputs")
    return list(outputs)


# ------------------------------------------------------------------------------------------------ references
_REFERENCE_LIMITS = EpisodeLimits(
    max_turns=64, max_tool_calls=64, max_tool_errors=8, max_turn_tokens=4096, max_trajectory_tokens=1 << 16
)


def reference_message(step: ReferenceStep, turn: int) -> Message:
    """One step of the known-good sequence as the assistant turn that a policy would write: thought, then
    call or question.
    """
    if step.kind != "call":
        return Message(role="assistant", thinking=step.thought, content=step.text)
    call = ToolCall(id=f"t{turn}c0", name=step.tool, arguments=compact_json(step.arguments))
    return Message(role="assistant", thinking=step.thought, tool_calls=(call,))


def reference_actions(task: Task) -> list[Message]:
    """The assistant turns of the reference: its steps, then the closing message."""
    actions = [reference_message(step, turn) for turn, step in enumerate(task.reference)]
    return [*actions, Message(role="assistant", content=task.closing)]


def reference_policy(items: Iterable[TaskItem], renderer: Renderer) -> ScriptedPolicy:
    """The oracle: plays every task's reference, each token with log-prob 0 (it is certain). For SFT data and
    the oracle row of a report.
    """
    actions = {
        f"{bundle.environment_id}/{task.id}": [
            renderer.action_ids(action) for action in reference_actions(task)
        ]
        for bundle, task in items
    }

    def script(request: SampleRequest, turn: int) -> tuple[int, ...]:
        known = actions.get(request.session_id.split("/", 2)[2].rpartition("/")[0], [])
        if turn >= len(known):
            raise PolicyError(
                f"session {request.session_id!r}: the reference has {len(known)} turns, not over after them"
            )
        return known[turn]

    return ScriptedPolicy(script, logprob=lambda _index, _token: 0.0)


def reference_trajectories(
    items: Sequence[TaskItem], renderer: Renderer, limits: EpisodeLimits = _REFERENCE_LIMITS
) -> list[Trajectory]:
    """Play the references through the same Env and ledger as any rollout.

    Raises TrainingError when one does not end in success: what it would teach is wrong, or ``limits`` are
    too tight for it.
    """
    jobs = [EpisodeJob(bundle, task, purpose="reference") for bundle, task in items]
    policy = reference_policy(items, renderer)
    trajectories = run_episodes(policy, jobs, renderer, sampling=SamplingParams(), limits=limits, slots=64)
    for trajectory in trajectories:
        if trajectory.reward != 1.0 or trajectory.excluded:
            raise TrainingError(
                f"the reference of task {trajectory.task_id} ended with {trajectory.stop_reason.value}, "
                f"reward {trajectory.reward:g}, {len(trajectory.token_ids)} tokens, {len(trajectory.turns)} "
                f"turns; {trajectory.failure} {list(trajectory.differences[:3])}. Expected success: validate "
                f"the bundle, or widen the limits {limits}"
            )
    return trajectories


def reference_trajectory(
    bundle: Bundle, task: Task, renderer: Renderer, limits: EpisodeLimits = _REFERENCE_LIMITS
) -> Trajectory:
    """`reference_trajectories` for one task."""
    return reference_trajectories([(bundle, task)], renderer, limits)[0]


_PREFIX_EVERY = 8
"""Transcripts per system message in tokenizer training: about as many rollouts share one copy of it."""


def reference_texts(items: Iterable[TaskItem], config: RenderConfig) -> Iterator[str]:
    """Rendered references as text, special tokens spelled out: what a tokenizer is trained on.

    The system message stands before the first of every 8 transcripts of an environment: its words (tool and
    parameter names) weigh what they cost.
    """
    counts: dict[str, int] = {}
    for bundle, task in items:
        count = counts.get(bundle.environment_id, 0)
        counts[bundle.environment_id] = count + 1
        pieces = [] if count % _PREFIX_EVERY else prefix_pieces(bundle.policy, bundle.tools, config)
        env = open_env(bundle, task, seed=0, limits=_REFERENCE_LIMITS.env)
        pieces += message_pieces(env.start())
        for action in reference_actions(task):
            result = env.step(action)
            pieces += (IM_START, "assistant\n", *action_pieces(action), "\n")
            pieces += message_pieces(result.observations)
            if result.done:
                break
        yield "".join(pieces)
