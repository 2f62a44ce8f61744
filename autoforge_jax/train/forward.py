"""A model's forward function as the learner calls it, and the log-probs of a batch under it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from autoforge_jax.data.batch import Batch
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.lora import with_adapters
from autoforge_jax.model.moe import Balance
from autoforge_jax.model.prefix import SharedPrefixes
from autoforge_jax.model.qwen3 import forward_with_balance, unembedding, weights_of
from autoforge_jax.model.sharding import Layout, over_rows, row_axes
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


class Adapted(NamedTuple):
    """A model with adapters, as the learner's forward function takes it."""

    frozen: Params
    """Parameters of the model (`nnx.State`); never differentiated."""
    adapters: Params
    """`model.lora.Adapters`."""


def on_layout(layout: Layout | None) -> AbstractContextManager[None]:
    """Trace for `layout`, or for one device."""
    return nullcontext() if layout is None else layout.active()


def penalty_of(config: Qwen3Config, balance: Balance | None) -> tuple[RowPenalty, ...]:
    """The last result of a forward function: nothing for a dense model."""
    if balance is None or config.experts is None:
        return ()
    coefficient = jnp.float32(config.experts.balance)
    return (RowPenalty(coefficient * balance.penalty, balance.penalty, balance.peak_load),)


def forward_of(graphdef: nnx.GraphDef) -> Forward:
    """The forward function of a model that was split with ``nnx.split(model, nnx.Param)``. A model with
    experts adds ``experts.balance`` × the load-balancing loss, mean over layers."""

    def forward(
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        prefixes: SharedPrefixes | None = None,
    ) -> tuple[Any, ...]:
        model: Any = nnx.merge(graphdef, params)
        hidden, balance = model.with_balance(tokens, positions, segment_ids, prefixes)
        return hidden, model.unembedding(), *penalty_of(model.config, balance)

    return forward


def adapted_forward(config: Qwen3Config, scale: float) -> Forward:
    """`forward_of` of a model with adapters: its first argument is an `Adapted`."""

    def forward(
        params: Adapted,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        prefixes: SharedPrefixes | None = None,
    ) -> tuple[Any, ...]:
        weights = weights_of(params.frozen)
        whole = with_adapters(weights, params.adapters, scale)
        hidden, balance = forward_with_balance(whole, config, tokens, positions, segment_ids, prefixes)
        return hidden, unembedding(weights), *penalty_of(config, balance)

    return forward


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
