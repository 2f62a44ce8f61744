"""The old policy by the learner's own numbers: `old_logprobs` of a step's batches, and what they say of the
engine.

The engine that sampled and the learner that trains compute the same distribution in different programs, and
the weights that sampled may be some versions old. `old_policy = "learner"` takes the ratio against the
learner's log-probs before the first update; what is left between them and the engine's is corrected by a
truncated importance weight (`losses.correction_weights`) or, where a whole trajectory is off, by leaving it
out here, before denominators are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoforge_jax.data.batch import Batch
from autoforge_jax.train.logprob_pass import OldLogprobs
from autoforge_jax.train.state import Params


def with_old_logprobs(old: OldLogprobs, params: Params, batches: Sequence[Batch]) -> list[Batch]:
    """The batches with `old_logprobs` under `params`, as numpy arrays (one process)."""
    return [
        replace(batch, old_logprobs=np.asarray(found))
        for batch, (_, found) in zip(batches, old(params, batches), strict=True)
    ]


def sequence_gaps(batches: Sequence[Batch]) -> dict[int, float]:
    """Sample id -> mean |old − rollout log-prob| over its loss tokens, in nats; samples without any are left
    out. ValueError when `old_logprobs` are missing."""
    gaps: dict[int, float] = {}
    for batch in batches:
        if batch.old_logprobs is None:
            raise ValueError("no old_logprobs in the batch; call with_old_logprobs first")
        mask, ids = np.asarray(batch.loss_mask), np.asarray(batch.sample_ids)
        gap = np.abs(
            np.asarray(batch.old_logprobs, np.float64) - np.asarray(batch.rollout_logprobs, np.float64)
        )
        for sample in np.unique(ids[mask]):
            gaps[int(sample)] = float(gap[mask & (ids == sample)].mean())
    return gaps


def reject_sequences(batches: Sequence[Batch], limit: float) -> tuple[list[Batch], dict[str, float]]:
    """The batches without the loss of samples whose `sequence_gaps` is above `limit`, and the count of them
    with the tokens that they had: a limit that bites long trajectories alone shows there.

    Their means and std were taken with them: a rejected rollout was graded like any other, only its
    log-probs are not to be trusted. Sample ids must be unique over the batches (one `pack` call).
    """
    gaps = sequence_gaps(batches)
    rejected = {sample for sample, gap in gaps.items() if gap > limit}
    out: list[Batch] = []
    tokens = 0
    for batch in batches:
        off = np.isin(np.asarray(batch.sample_ids), list(rejected)) & np.asarray(batch.loss_mask)
        tokens += int(np.count_nonzero(off))
        out.append(
            replace(
                batch,
                loss_mask=np.asarray(batch.loss_mask) & ~off,
                loss_weight=np.where(off, np.float32(0), np.asarray(batch.loss_weight)),
            )
        )
    metrics = {
        "sequences_rejected": float(len(rejected)),
        "sequences_rejected_share": len(rejected) / len(gaps) if gaps else 0.0,
        "rejected_tokens_mean": tokens / len(rejected) if rejected else 0.0,
        "sequence_gap_max": max(gaps.values(), default=0.0),
    }
    return out, metrics
