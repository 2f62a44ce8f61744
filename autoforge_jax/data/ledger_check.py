"""End-to-end check of the token ledger: packed training rows against what the engine had. No JAX.

The pool records, where it hands a request to the engine and takes its answer, a hash of that turn: the ids
that were sent, the ids that came back, their log-probs (`rollout.ledger.turn_hash`). Here the same hash is
computed from the packed arrays, the last thing on the host before the learner computes: prefix, body,
positions, action mask and log-probs as they stand in the rows. Everything in between (ledger, trajectory,
checkpoint, exchange between processes, sample, packing) has then changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoforge_jax.data.batch import PREFIX_SEGMENT, Batch
from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.ledger import turn_hash
from autoforge_jax.types import TrainingSample


@dataclass(frozen=True)
class LedgerCheck:
    """What was compared in one step."""

    checked_tokens: int
    """Tokens of the packed rows, up to the last sampled one of each sample: all of them are in a hash."""
    turns: int
    mismatches: int
    """Turns that the rows show otherwise than the engine had them, and turns without a record."""
    first: str = ""
    """Which the first one is, in words."""

    def metrics(self) -> dict[str, float]:
        """As they stand in metrics.jsonl."""
        return {
            "rollout/ledger_checked_tokens": float(self.checked_tokens),
            "rollout/ledger_checked_turns": float(self.turns),
            "rollout/ledger_mismatches": float(self.mismatches),
        }

    def raise_if_broken(self) -> None:
        """LedgerError unless everything agreed."""
        if self.mismatches:
            raise LedgerError(
                f"{self.mismatches} of {self.turns} sampled turns stand otherwise in the training batch than "
                f"the engine had them, first {self.first}; nothing was learned from this step"
            )


@dataclass(frozen=True)
class _Packed:
    """One sample as the rows have it, prefix included."""

    ids: np.ndarray
    logprobs: np.ndarray
    sampled: np.ndarray
    in_order: bool
    """Positions count up from 0 without a gap."""


def check_batches(samples: Sequence[TrainingSample], batches: Sequence[Batch]) -> LedgerCheck:
    """Compare every sampled turn of `samples` with the rows that `pack` made of them (numpy batches, their
    `sample_ids` counting in `samples`)."""
    packed: dict[int, _Packed] = {}
    for batch in batches:
        for index, found in _samples_of(batch):
            packed[index] = found
    tokens = turns = mismatches = 0
    first = ""
    for index, sample in enumerate(samples):
        wrong = _differing_turns(sample, packed.get(index))
        turns += len(sample.seen)
        tokens += sample.seen[-1].end if sample.seen and not wrong else 0
        if wrong and not first:
            first = f"turn {wrong[0]} of sample {index} (task {sample.task_id})"
        mismatches += len(wrong)
    return LedgerCheck(tokens, turns, mismatches, first)


def _differing_turns(sample: TrainingSample, packed: _Packed | None) -> list[int]:
    """Indices of the sample's turns that are not what the engine had; all of them where the row as a whole is
    off: missing, out of order, or with other sampled positions than the turns'."""
    if packed is None or not packed.in_order or len(packed.ids) != len(sample.token_ids):
        return list(range(max(1, len(sample.seen))))
    spans = np.zeros(len(packed.ids), np.bool_)
    for turn in sample.seen:
        spans[turn.start : turn.end] = True
    if not np.array_equal(spans, packed.sampled):
        return list(range(max(1, len(sample.seen))))
    return [
        number
        for number, turn in enumerate(sample.seen)
        if turn.hash
        != turn_hash(
            packed.ids[: turn.start].tolist(),
            packed.ids[turn.start : turn.end].tolist(),
            packed.logprobs[turn.start : turn.end].tolist(),
        )
    ]


def _samples_of(batch: Batch) -> Iterator[tuple[int, _Packed]]:
    """(index, sample) of everything that was packed into a micro-batch."""
    tokens, positions = np.asarray(batch.tokens), np.asarray(batch.positions)
    sample_ids, segments = np.asarray(batch.sample_ids), np.asarray(batch.segment_ids)
    logprobs, sampled = np.asarray(batch.rollout_logprobs), np.asarray(batch.action_mask)
    for row in range(tokens.shape[0]):
        prefix = _prefix(batch, row, tokens[row], segments[row])
        for index in np.unique(sample_ids[row][sample_ids[row] >= 0]):
            own = sample_ids[row] == index
            yield (
                int(index),
                _Packed(
                    ids=np.concatenate([prefix, tokens[row][own]]),
                    logprobs=np.concatenate([np.zeros(len(prefix), np.float32), logprobs[row][own]]),
                    sampled=np.concatenate([np.zeros(len(prefix), np.bool_), sampled[row][own]]),
                    in_order=np.array_equal(
                        positions[row][own], np.arange(len(prefix), len(prefix) + np.count_nonzero(own))
                    ),
                ),
            )


def _prefix(batch: Batch, row: int, tokens: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """The shared prefix that a row's samples see; empty when they have their own copies."""
    if batch.prefixes is None:
        return tokens[segments == PREFIX_SEGMENT]
    place = int(np.asarray(batch.prefixes.row_prefix)[row])
    return np.asarray(batch.prefixes.tokens)[place, : int(np.asarray(batch.prefixes.lengths)[place])]
