"""The nouns of the trainer in flow order. No JAX here; numpy arrays only where a batch is meant.

    SamplingParams, SampleRequest -> SampleOutput        rollout.policy      one turn of the policy
    Turn, Trajectory -> TrajectoryGroup                  rollout.episode     one episode; the rollouts of one
    task
    TrainingSample                                       data.samples        what the learner gets of a
    trajectory
    Batch                                                data.batch          packed arrays (a pytree)
    EvalReport                                           train.evaluate

Log-probabilities are in nats and belong to the distribution that was sampled (after temperature).
Staleness is counted in policy versions. `action_mask` is True only where the policy sampled the token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from envgen.interface import FieldDifference, Message, StopReason


@dataclass(frozen=True)
class SamplingParams:
    """How one turn is sampled.

    temperature 0 is greedy: the argmax, with its log-prob under temperature 1. For temperature > 0 the
    log-prob is that of
    softmax(logits / temperature), not renormalised for top_k/top_p (SGLang's meaning).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    max_turn_tokens: int = 96
    """Sampled tokens at most in this turn; reaching it without a stop token is stop = "length"."""
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SampleRequest:
    """One turn to sample: the whole context so far, as ids. An engine may keep a cache per `session_id`; the
    context of a session
    only ever grows, and an engine that sees another prefix raises LedgerError."""

    session_id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """Sampling is a function of (weights, token_ids, params, seed)."""
    prefix_length: int = 0
    """The first so many ids are shared by every session of the same environment (system prompt and tools): a
    hint."""
    turn: int | None = None
    """Which turn of its episode this is, from 0; None when the caller does not count."""


@dataclass(frozen=True)
class SampleOutput:
    """Sampled ids with their log-probs. The stop token, when one was sampled, is the last id."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Literal["stop", "length", "abort"]
    policy_version: int
    reason: str = ""
    """Why, when `stop` is "abort"; its ids are never used."""
    timed_out: bool = False
    """With "abort": a deadline passed."""


@dataclass(frozen=True)
class Turn:
    """One policy action and what followed, as messages and as a span of the ledger."""

    action: Message
    observations: tuple[Message, ...]
    action_start: int
    """Index in `Trajectory.token_ids` of the first sampled token."""
    action_end: int
    """One past the last sampled token."""
    stop: Literal["stop", "length", "abort"]
    tool_errors: int = 0
    policy_version: int = 0
    """Of the weights that sampled the action: one engine call, one version."""
    context: int = 0
    """Which of `Trajectory.contexts` the span lies in."""
    seen: str = ""
    """`rollout.ledger.turn_hash` of what the engine was sent and gave back; empty where none was asked."""


@dataclass(frozen=True)
class PolicyContext:
    """One append-only token sequence that the policy continued. Lengths are equal; log-probs are NaN where
    the mask is False."""

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    rollout_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Trajectory:
    """The record of one episode: one append-only token sequence and everything needed to read it.

    `token_ids`, `action_mask` and `rollout_logprobs` have equal length; log-probs are NaN where the mask is
    False, never where it
    is True (LedgerError).
    """

    task_id: str
    environment_id: str
    environment: str
    """The bundle's name, for people."""
    sample_index: int
    """0 … group_size-1 within the group."""
    opening: tuple[Message, ...]
    turns: tuple[Turn, ...]
    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    rollout_logprobs: tuple[float, ...]
    prefix_length: int
    """Tokens shared by all trajectories of this environment (system prompt and tools)."""
    reward: float
    success: bool
    stop_reason: StopReason
    policy_version: int
    """The oldest one that sampled a turn of it; -1 when none was sampled."""
    user_error: bool = False
    """Set by the user-error hook (MEU): excluded from mean, std, loss and denominators, never scored 0."""
    keep_user_error: bool = False
    """The ablation `erpo.mask_user_errors = false`: a user error is counted, and learned from all the same.
    """
    user_error_reason: str = ""
    """Which kind, at which message, who says so and why, when `user_error` is set."""
    excluded: str = ""
    """Why this trajectory may not be learned from (`env_error`, `policy_error`, …); empty when it may."""
    failure: str = ""
    """What happened, in words, when `excluded` is set."""
    differences: tuple[FieldDifference, ...] = ()
    violations: tuple[str, ...] = ()
    """Rules about the trace that were broken, in words."""
    partial_credit: float = 0.0
    """Share of the required changes made minus side effects, 0 to 1: reported beside the reward, and the
    reward itself where `erpo.reward` says so."""
    tool_calls: int = 0
    tool_errors: int = 0
    malformed_calls: int = 0
    pattern: str = ""
    difficulty: int = 0
    earlier_contexts: tuple[PolicyContext, ...] = ()
    """Without interleaved thinking (rollout.turn_contexts): the contexts before the last one, which is
    `token_ids`; each ended when the user spoke again and earlier thinking was deleted."""

    @property
    def valid(self) -> bool:
        """True when it counts in means and losses: 1_MEU of METHOD.md §4, and no failure of ours."""
        return (not self.user_error or self.keep_user_error) and not self.excluded

    @property
    def contexts(self) -> tuple[PolicyContext, ...]:
        """All token sequences of the episode, in order; `Turn.context` counts in them."""
        last = PolicyContext(self.token_ids, self.action_mask, self.rollout_logprobs)
        return (*self.earlier_contexts, last)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, in all contexts."""
        return sum(turn.action_end - turn.action_start for turn in self.turns)

    @property
    def overlong(self) -> bool:
        """It ended because a turn or the whole ran out of tokens."""
        return self.stop_reason in (StopReason.TOKEN_BUDGET, StopReason.TURN_TRUNCATED)


@dataclass(frozen=True)
class TrajectoryGroup:
    """The rollouts of one task (M_i of METHOD.md §4)."""

    task_id: str
    environment_id: str
    trajectories: tuple[Trajectory, ...]

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The trajectories that count."""
        return tuple(t for t in self.trajectories if t.valid)

    @property
    def mixed(self) -> bool:
        """True when the valid rewards differ: the only groups with a signal (dynamic sampling)."""
        return len({t.reward for t in self.valid}) > 1


@dataclass(frozen=True)
class SeenTurn:
    """One sampled turn as the engine had it: it read `token_ids[:start]` of its context and sampled what
    stands up to `end`."""

    start: int
    end: int
    hash: str
    """`Turn.seen`."""


@dataclass(frozen=True)
class TrainingSample:
    """What the learner gets of one trajectory. All sequences have equal length L; position t's values speak
    of token t."""

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    loss_mask: tuple[bool, ...]
    """action_mask minus exclusions. Supervised samples: the reference's action tokens."""
    rollout_logprobs: tuple[float, ...]
    """NaN where not sampled, and for supervised samples everywhere."""
    advantage: float
    """One per trajectory; 0 in supervised samples is never read."""
    prefix_length: int
    environment_id: str
    task_id: str
    group: int = 0
    """Index of the group in its batch: sequence-level aggregation and metrics need it."""
    policy_version: int = 0
    """The oldest one that sampled a token of it."""
    weight: float = 1.0
    versions: tuple[int, ...] = ()
    """Policy version of every sampled token, -1 elsewhere; empty in supervised samples."""
    seen: tuple[SeenTurn, ...] = ()
    """Its sampled turns, to compare packed rows with (data.ledger_check); empty in supervised samples."""


@dataclass(frozen=True)
class TaskOutcome:
    """All attempts at one task in an evaluation."""

    task_id: str
    environment: str
    pattern: str
    difficulty: int
    successes: int
    attempts: int


@dataclass(frozen=True)
class EvalReport:
    """One evaluation of one policy version on one set of tasks."""

    name: str
    """`heldout_tasks`, `heldout_bundle`, `train_tasks`."""
    policy_version: int
    success: float
    """Mean over tasks of successes/attempts."""
    interval: tuple[float, float]
    """95 %, over tasks."""
    pass_at_k: dict[int, float]
    pass_hat_k: dict[int, float]
    tasks: int
    attempts: int
    mean_turns: float
    mean_tool_calls: float
    tool_error_rate: float
    """Errors per call."""
    malformed_rate: float
    """Malformed calls per turn."""
    stop_reasons: dict[str, int]
    by_environment: dict[str, float]
    by_pattern: dict[str, float]
    outcomes: tuple[TaskOutcome, ...]
    sampling: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    excluded: int = 0
    """Attempts left out: engine or environment failures, user errors. In `stop_reasons` they are counted all
    the same."""
