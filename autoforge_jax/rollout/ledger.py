"""The token ledger: one append-only sequence per episode, so that what the engine saw is what the learner
trains on (DESIGN.md §9).

Sampled ids are stored as they came and never encoded again; only observations are rendered and appended.
Everything that does not add up is a LedgerError, never a zero.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from autoforge_jax.errors import LedgerError
from autoforge_jax.types import PolicyContext, SampleOutput, SamplingParams, Trajectory, Turn

# Float32 log-softmax of a near-certain token can come out a few ulps above 0.
_MAX_LOGPROB = 1e-4


class TokenLedger:
    """Ids, action mask and log-probs of one episode. Grows only."""

    __slots__ = ("_ids", "_logprobs", "_mask", "prefix_length")

    def __init__(self, prefix: Sequence[int]) -> None:
        """``prefix``: the ids shared by every episode of the environment (system prompt and tools)."""
        self._ids: list[int] = list(prefix)
        self._mask: list[bool] = [False] * len(self._ids)
        self._logprobs: list[float] = [math.nan] * len(self._ids)
        self.prefix_length = len(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The whole context so far: what the engine is asked to continue."""
        return tuple(self._ids)

    @property
    def action_mask(self) -> tuple[bool, ...]:
        """True exactly where the policy sampled the token."""
        return tuple(self._mask)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Log-probs in nats where sampled, NaN elsewhere."""
        return tuple(self._logprobs)

    def append_observation(self, ids: Sequence[int]) -> None:
        """Append rendered ids that the policy did not sample."""
        self._ids.extend(ids)
        self._mask.extend([False] * len(ids))
        self._logprobs.extend([math.nan] * len(ids))

    def append_action(self, output: SampleOutput, params: SamplingParams) -> tuple[int, int]:
        """Append one sampled turn; returns its half-open span. LedgerError when the output breaks the
        contract of the port.
        """
        check_output(output, params)
        start = len(self._ids)
        self._ids.extend(output.token_ids)
        self._mask.extend([True] * len(output.token_ids))
        self._logprobs.extend(output.logprobs)
        return start, len(self._ids)


def check_output(output: SampleOutput, params: SamplingParams) -> None:
    """Raise LedgerError unless ids, log-probs and stop of one sampled turn agree with each other and with
    what was asked.
    """
    ids, logprobs = output.token_ids, output.logprobs
    if not ids:
        raise LedgerError("the engine returned no token for a turn; expected at least the stop token")
    if len(ids) != len(logprobs):
        raise LedgerError(f"got {len(ids)} sampled ids with {len(logprobs)} log-probs; each id needs its own")
    if len(ids) > params.max_turn_tokens:
        raise LedgerError(
            f"got {len(ids)} sampled ids, expected at most max_turn_tokens = {params.max_turn_tokens}"
        )
    if not all(-math.inf < value <= _MAX_LOGPROB for value in logprobs):  # false for NaN too
        for index, value in enumerate(logprobs):
            if -math.inf < value <= _MAX_LOGPROB:
                continue
            raise LedgerError(
                f"log-prob of sampled token {index} (id {ids[index]}) is {value!r}; expected a finite "
                "value ≤ 0: a missing log-prob must never reach the learner"
            )
    stops = params.stop_token_ids
    ended = ids[-1] in stops
    if not set(stops).isdisjoint(ids[:-1]):
        raise LedgerError(
            "a stop token stands before the end of a sampled turn; the engine must stop at the first one"
        )
    if ended != (output.stop == "stop"):
        raise LedgerError(
            f"stop is {output.stop!r} but the last id {ids[-1]} is {'a' if ended else 'no'} stop token "
            f"(these are: {stops})"
        )


def turn_hash(context: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]) -> str:
    """64-bit hash of one turn of an engine: the ids it was sent, the ids it gave back, and their log-probs in
    float32 (what a training batch holds). `data.ledger_check` computes it again from packed rows.
    """
    digest = blake2b(array("i", context), digest_size=8)
    digest.update(array("i", sampled))
    digest.update(array("f", logprobs))
    return digest.hexdigest()


class SessionContexts:
    """What an engine remembers of its sessions' ids, to prove that contexts only grow. For engines without a
    cache of their own.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, ...]] = {}

    def extend(self, session_id: str, context: tuple[int, ...], sampled: Sequence[int]) -> None:
        """Record one turn: ``context`` was read, ``sampled`` came out. LedgerError when the earlier context
        is no prefix of it.
        """
        self.check(session_id, context)
        self._seen[session_id] = (*context, *sampled)

    def check(self, session_id: str, context: tuple[int, ...]) -> None:
        """LedgerError unless ``context`` starts with everything this session has seen and sampled before."""
        earlier = self._seen.get(session_id, ())
        if context[: len(earlier)] != earlier:
            at = next(
                (i for i, (a, b) in enumerate(zip(earlier, context, strict=False)) if a != b),
                min(len(earlier), len(context)),
            )
            raise LedgerError(
                f"session {session_id!r}: the context changed at position {at} of {len(earlier)}; "
                "a session's ids may only be appended to: render new observations, never the history"
            )

    def release(self, session_id: str) -> None:
        """Forget a session."""
        self._seen.pop(session_id, None)


def check_trajectory(trajectory: Trajectory) -> None:
    """LedgerError unless in every context lengths agree, turns tile the action mask, and log-probs are there
    exactly where tokens were sampled; and contexts follow each other with the same prefix.
    """
    where = f"trajectory {trajectory.task_id}#{trajectory.sample_index}"
    contexts = trajectory.contexts
    order = [turn.context for turn in trajectory.turns]
    if order != sorted(order) or not set(order) <= set(range(len(contexts))):
        raise LedgerError(f"{where}: turns in contexts {order}, there are {len(contexts)}, one after another")
    for index, context in enumerate(contexts):
        turns = [turn for turn in trajectory.turns if turn.context == index]
        name = f"{where}, context {index}" if len(contexts) > 1 else where
        _check_context(context, turns, trajectory.prefix_length, name)
        if context.token_ids[: trajectory.prefix_length] != trajectory.token_ids[: trajectory.prefix_length]:
            raise LedgerError(f"{name}: another prefix than the last context's; it is the environment's")


def _check_context(context: PolicyContext, turns: Sequence[Turn], prefix_length: int, where: str) -> None:
    ids, mask, logprobs = context.token_ids, context.action_mask, context.rollout_logprobs
    if not len(ids) == len(mask) == len(logprobs):
        raise LedgerError(
            f"{where}: {len(ids)} ids, {len(mask)} mask values, {len(logprobs)} log-probs; must be equal"
        )
    if not 0 <= prefix_length <= len(ids):
        raise LedgerError(f"{where}: prefix_length {prefix_length} is outside 0..{len(ids)}")
    spans = [False] * len(ids)
    end = prefix_length
    for index, turn in enumerate(turns):
        if not end <= turn.action_start < turn.action_end <= len(ids):
            raise LedgerError(
                f"{where}: turn {index} spans [{turn.action_start}, {turn.action_end}), after {end}"
            )
        end = turn.action_end
        spans[turn.action_start : end] = [True] * (end - turn.action_start)
    if tuple(spans) != tuple(mask):
        raise LedgerError(f"{where}: action_mask differs from the spans of its turns")
    known = [value == value for value in logprobs]  # False for NaN
    if known != list(mask):
        for index, (sampled, has) in enumerate(zip(mask, known, strict=True)):
            if sampled == has:
                continue
            raise LedgerError(
                f"{where}: position {index} is {'sampled without' if sampled else 'not sampled with'} logprob"
            )
