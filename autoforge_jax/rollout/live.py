"""One live episode: its environment, its token ledger and its turns so far.

The pool (rollout.pool) decides when a turn is sampled and when the environment answers; what either of them
does here is a value: the next request, or a named ending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoforge_jax.errors import ConfigError, LedgerError
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits
from autoforge_jax.rollout.ledger import TokenLedger, check_trajectory, turn_hash
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.turn_contexts import rewritten_context, user_spoke
from autoforge_jax.types import (
    PolicyContext,
    SampleOutput,
    SampleRequest,
    SamplingParams,
    Trajectory,
    Turn,
)
from envgen.interface import Env, Message, StepResult, StopReason, Verdict


@dataclass(frozen=True)
class PartialEpisode:
    """An unfinished episode as what its engine said so far: enough to go on, since environments are functions
    of the job and the actions."""

    job: EpisodeJob
    outputs: tuple[SampleOutput, ...]
    token_ids: tuple[int, ...]
    """The context of the next turn, to see that a replay came out the same."""


class LiveEpisode:
    """Built closed: `open` makes the environment, which may take as long as its user does."""

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
        self._outputs: list[SampleOutput] = []
        self._earlier: list[PolicyContext] = []
        self._pieces: list[tuple[bool, tuple[int, ...]]] = []
        """(sampled, ids) after the prefix, in order: what a context is written anew from."""
        self.context_changed = False
        """The next request does not continue the last one: the engine must forget the session first."""
        self._opening: tuple[Message, ...] = ()
        self._verdict: Verdict | None = None
        self.stop_reason: StopReason | None = None
        self._failure = ""
        self._env: Env | None = None
        self._abandoned = False

    # ------------------------------------------------------------------------------------------ the turns
    def open(self) -> None:
        """Make the environment and read its user's first words."""
        self._guarded(self._open)

    def _open(self) -> None:
        env = self._conditions.open(self.job, self._limits)
        opening = tuple(env.start())
        if self._abandoned:
            return
        self._env, self._opening = env, opening
        if env.stop_reason is not None:  # the user could not even open
            self.stop_reason = env.stop_reason
            return
        self._append(self._renderer.opening(opening), opening)

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
            turn=len(self._turns),
        )

    def take(self, request: SampleRequest, output: SampleOutput) -> None:
        """Record one sampled turn and let the environment answer it."""
        action = self.record(request, output)
        if action is not None:
            self._guarded(lambda: self._answered(self.env.step(action)))

    @property
    def env(self) -> Env:
        """The environment, once it is open."""
        assert self._env is not None
        return self._env

    def answered(self, result: StepResult | Exception) -> None:
        """Take in what the environment said to the action that `record` gave, or the error it ended with."""

        def take_in() -> None:
            if isinstance(result, Exception):
                raise result
            self._answered(result)

        self._guarded(take_in)

    def record(self, request: SampleRequest, output: SampleOutput) -> Message | None:
        """Record one sampled turn: the action that the environment has to answer, None when that was the
        end."""
        if output.stop == "abort":
            reason = StopReason.TIMEOUT if output.timed_out else StopReason.POLICY_ERROR
            self.fail(reason, output.reason or "the engine aborted this request")
            return None
        start, end = self.ledger.append_action(output, request.params)
        self.context_changed = False
        self._outputs.append(output)
        self._pieces.append((True, output.token_ids))
        action = self._renderer.parse_action(output.token_ids, turn=len(self._turns))
        # Recorded before the environment runs: its ids stand in the ledger already, also when it breaks.
        self._turns.append(
            Turn(
                action,
                (),
                start,
                end,
                output.stop,
                policy_version=output.policy_version,
                context=len(self._earlier),
                seen=turn_hash(request.token_ids, output.token_ids, output.logprobs),
            )
        )
        if output.stop == "length":
            truncated = request.params.max_turn_tokens == self._limits.max_turn_tokens
            self.stop_reason = StopReason.TURN_TRUNCATED if truncated else StopReason.TOKEN_BUDGET
            return None
        return action

    def _answered(self, result: StepResult) -> None:
        assert self._env is not None
        if self._abandoned:
            return
        self._turns[-1] = replace(
            self._turns[-1], observations=result.observations, tool_errors=result.tool_errors
        )
        if result.stop_reason is not None:
            self.stop_reason = result.stop_reason
            if result.stop_reason.is_environment_fault:
                self._failure = self._env.defect
            return
        self._append(self._renderer.observations(result.observations), result.observations)

    def _append(self, ids: Sequence[int], messages: Sequence[Message]) -> None:
        ids = tuple(ids)
        if not self._renderer.config.interleaved_thinking and self._turns and user_spoke(messages):
            return self._rewrite(ids)
        # At least one token must be left to sample, and nothing longer than the budget may reach the learner.
        if len(self.ledger) + len(ids) >= self._longest:
            self.stop_reason = StopReason.TOKEN_BUDGET
            return None
        self._pieces.append((False, ids))
        return self.ledger.append_observation(ids)

    def _rewrite(self, ids: tuple[int, ...]) -> None:
        """The user spoke: go on in a new context, without what was thought before."""
        pieces = [*self._pieces, (False, ids)]
        prefix = self.ledger.token_ids[: self.ledger.prefix_length]
        body = rewritten_context(pieces, self._renderer)
        if len(prefix) + len(body) >= self._longest:
            self.stop_reason = StopReason.TOKEN_BUDGET
            return
        self._pieces = pieces
        self._earlier.append(
            PolicyContext(self.ledger.token_ids, self.ledger.action_mask, self.ledger.logprobs)
        )
        self.ledger = TokenLedger(prefix)
        self.ledger.append_observation(body)
        self.context_changed = True

    def _guarded(self, action: Callable[[], None]) -> None:
        """The boundary to the environment: a defect of generated code ends this episode, and no other."""
        try:
            action()
        except (LedgerError, ConfigError):
            raise
        except Exception as error:  # the one place: environments run code that a proposer wrote
            if not self._abandoned:
                self.fail(StopReason.ENV_ERROR, f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------------------ endings
    def fail(self, reason: StopReason, message: str) -> None:
        """End with an exclusion."""
        self.stop_reason = reason
        self._failure = message

    def abandon(self, message: str) -> None:
        """End with TIMEOUT while the environment still works: whatever it says later is not heard."""
        self._abandoned = True
        self.fail(StopReason.TIMEOUT, message)

    def finish(self) -> Trajectory:
        """Grade and record."""
        assert self.stop_reason is not None
        if not self._failure:
            self._guarded(self._grade)
        return self.trajectory()

    def _grade(self) -> None:
        assert self._env is not None and self.stop_reason is not None
        if self._env.stop_reason is None:
            self._env.close(self.stop_reason)  # a token budget or the engine ended it: the user is judged now
        verdict = self._env.verdict()
        if not self._abandoned:
            self._verdict = verdict

    def trajectory(self) -> Trajectory:
        """The record of an ended episode."""
        assert self.stop_reason is not None
        verdict, task, actions = self._verdict, self.job.task, [turn.action for turn in self._turns]
        env = None if self._abandoned else self._env
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
            user_error=env is not None and env.user_error,
            user_error_reason=str(env.user_verdict) if env is not None else "",
            reward=1.0 if success else 0.0,
            success=success,
            stop_reason=self.stop_reason,
            policy_version=min((turn.policy_version for turn in self._turns), default=-1),
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
            earlier_contexts=tuple(self._earlier),
        )
        check_trajectory(trajectory)
        return trajectory

    # ------------------------------------------------------------------------------------------ checkpoints
    def partial(self) -> PartialEpisode:
        """What a checkpoint keeps of it."""
        return PartialEpisode(self.job, tuple(self._outputs), self.ledger.token_ids)

    def replay(self, partial: PartialEpisode) -> bool:
        """Play the recorded turns again on a fresh environment. True when it stands where it stood: same
        context, not over. False otherwise (a model user who words it differently): start a new one."""
        self.open()
        for output in partial.outputs:
            if self.stop_reason is not None:
                return False
            self.take(self.request(), output)
        return self.stop_reason is None and self.ledger.token_ids == partial.token_ids
