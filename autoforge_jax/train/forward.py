"""A model's forward function as the learner calls it, and the log-probs of a batch under it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from autoforge_jax.data.batch import Batch
from autoforge_jax.model.sharding import over_rows, row_axes
from autoforge_jax.numerics.logprobs import DEFAULT_CHUNK, TokenLogprobs, row_logprobs
from autoforge_jax.train.state import Params

Forward = Callable[..., tuple[Any, ...]]
"""(params, tokens, positions, segment_ids[, prefixes]) -> (hidden [rows, tokens, D], unembedding [V, D][,
`RowPenalty`]). Prefixes are passed only for batches that have them; hidden is then [rows, 1 + tokens, D]
(`Qwen3.__call__`).
"""


class RowPenalty(NamedTuple):
    """What a model adds to the loss by itself, per row [rows]. A row counts by its share of the step's loss
    weight, so the sum does not depend on how rows are split into micro-batches."""

    loss: jax.Array
    balance: jax.Array
    """The load-balancing loss before its coefficient; a metric, as is `peak_load` (`model.moe.Balance`)."""
    peak_load: jax.Array


def batch_logprobs(
    forward: Forward, params: Params, batch: Batch, temperature: float, chunk_size: int = DEFAULT_CHUNK
) -> TokenLogprobs:
    """Log-probs [rows, tokens] of the batch's loss tokens under `params`; 0 elsewhere."""
    return evaluate_batch(forward, params, batch, temperature, chunk_size)[0]


def evaluate_batch(
    forward: Forward, params: Params, batch: Batch, temperature: float, chunk_size: int
) -> tuple[TokenLogprobs, RowPenalty | None]:
    """`batch_logprobs`, and what the model itself adds to the loss."""
    prefixes = () if batch.prefixes is None else (batch.prefixes,)
    hidden, unembedding, *rest = forward(params, batch.tokens, batch.positions, batch.segment_ids, *prefixes)
    logprobs = partial(row_logprobs, temperature=temperature, chunk_size=chunk_size, mapped_axes=row_axes())
    tokens = over_rows(logprobs, (True, False, True, True, True))(
        hidden, unembedding, batch.tokens, batch.predictor_index, batch.loss_mask
    )
    return tokens, rest[0] if rest else None
