"""Log-probabilities of given tokens, without ever holding [rows, tokens, vocabulary].

Only positions under a mask are computed. They are gathered to the front of one buffer, which is then worked
through in chunks of `chunk_size` positions; a chunk without any position is skipped (`lax.cond`), so the cost
of the unembedding follows the number of wanted tokens while every shape stays fixed. Chunk logits are
recomputed in the backward pass.

Definition, on both sides (engine and learner): log softmax(logits / temperature), not renormalised for top-k
or top-p. Sums over the vocabulary are float32 whatever the compute type.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from autoforge_jax.numerics.masked import require_same_shape

DEFAULT_CHUNK = 512
"""Positions per chunk: [512, 1024] float32 logits are 2 MB and stay in cache on a small CPU."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenLogprobs:
    """Per token, in nats; 0/False where the mask was False."""

    logprobs: Float[Array, "*shape"]
    entropy: Float[Array, "*shape"]
    """Of the whole next-token distribution at the same temperature; carries no gradient."""
    is_argmax: Bool[Array, "*shape"]
    """The token is the most likely one."""


def row_logprobs(
    hidden: Float[Array, "rows states width"],
    unembedding: Float[Array, "vocabulary width"],
    tokens: Int[Array, "rows tokens"],
    predictor_index: Int[Array, "rows tokens"],
    mask: Bool[Array, "rows tokens"],
    *,
    temperature: float = 1.0,
    chunk_size: int = DEFAULT_CHUNK,
    mapped_axes: tuple[str, ...] = (),
) -> TokenLogprobs:
    """Log-probs [rows, tokens] of `tokens` under the hidden states that `predictor_index` (index in the row)
    names. A row may have more hidden states than tokens.
    """
    require_same_shape(tokens=tokens, predictor_index=predictor_index, mask=mask)
    rows, states, width = hidden.shape
    length = tokens.shape[1]
    if tokens.shape[0] != rows or length > states:
        raise ValueError(f"hidden is for [rows, tokens] = {(rows, states)}, tokens are {tokens.shape}")
    offsets = (jnp.arange(rows, dtype=jnp.int32) * states)[:, None]
    predictors = (predictor_index + jnp.broadcast_to(offsets, (rows, length))).reshape(-1)
    flat = flat_logprobs(
        hidden.reshape(rows * states, width),
        unembedding,
        predictors,
        tokens.reshape(-1),
        mask.reshape(-1),
        temperature=temperature,
        chunk_size=chunk_size,
        mapped_axes=mapped_axes,
    )
    return jax.tree.map(lambda value: value.reshape(rows, length), flat)


def flat_logprobs(
    hidden: Float[Array, "positions width"],
    unembedding: Float[Array, "vocabulary width"],
    predictors: Int[Array, " n"],
    targets: Int[Array, " n"],
    mask: Bool[Array, " n"],
    *,
    temperature: float = 1.0,
    chunk_size: int = DEFAULT_CHUNK,
    mapped_axes: tuple[str, ...] = (),
) -> TokenLogprobs:
    """Log-probs [n] of `targets` under ``softmax(hidden[predictors] @ unembedding.T / temperature)`` where
    `mask`, else 0.

    mapped_axes: mesh axes that the caller maps over (`shard_map`); their devices skip a chunk together or not
    at all, so that none waits for a collective that another has skipped.

    Raises ValueError for shapes that differ, a temperature that is not positive, or chunk_size < 1.
    """
    require_same_shape(predictors=predictors, targets=targets, mask=mask)
    if hidden.ndim != 2 or unembedding.ndim != 2 or hidden.shape[1] != unembedding.shape[1]:
        raise ValueError(
            f"hidden {hidden.shape} and unembedding {unembedding.shape} must be [positions, D] and "
            "[vocabulary, D]"
        )
    if not temperature > 0:
        raise ValueError(
            f"temperature {temperature}; log-probs need one above 0 (greedy rollouts report temperature 1)"
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size {chunk_size}; expected at least 1")
    count = mask.shape[0]
    chunk_size = min(chunk_size, max(count, 1))
    chunks = -(-count // chunk_size)
    # Wanted positions first, in order; the tail is filled with `count`, which no gather or scatter reads.
    order = jnp.nonzero(mask, size=chunks * chunk_size, fill_value=count)[0].astype(jnp.int32)
    wanted = order < count
    safe = jnp.where(wanted, order, 0)
    weights = unembedding.astype(hidden.dtype)

    @jax.checkpoint
    def chunk(
        weights: jax.Array, states: jax.Array, ids: jax.Array, keep: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        wanted_here = jnp.any(keep)
        if mapped_axes:
            wanted_here = jax.lax.pmax(wanted_here.astype(jnp.int32), mapped_axes) > 0
        return jax.lax.cond(
            wanted_here, _chunk_logprobs, _skipped_chunk, weights, states, ids, keep, temperature
        )

    def body(
        _: None, inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[None, tuple[jax.Array, jax.Array, jax.Array]]:
        return None, chunk(weights, *inputs)

    shaped = (chunks, chunk_size)
    _, (logprobs, entropy, is_argmax) = jax.lax.scan(
        body,
        None,
        (
            hidden[predictors[safe]].reshape(*shaped, hidden.shape[1]),
            targets[safe].reshape(shaped),
            wanted.reshape(shaped),
        ),
    )

    def back(values: jax.Array) -> jax.Array:
        return jnp.zeros((count,), values.dtype).at[order].set(values.reshape(-1), mode="drop")

    return TokenLogprobs(logprobs=back(logprobs), entropy=back(entropy), is_argmax=back(is_argmax))


def _chunk_logprobs(
    weights: jax.Array, states: jax.Array, ids: jax.Array, keep: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    logits = jnp.einsum("nd,vd->nv", states, weights, preferred_element_type=jnp.float32)
    logits = logits / jnp.asarray(temperature, jnp.float32)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    fixed = jax.lax.stop_gradient(logits)
    log_normaliser = jax.lax.stop_gradient(normaliser)
    probabilities = jnp.exp(fixed - log_normaliser[:, None])
    entropy = log_normaliser - jnp.sum(probabilities * fixed, axis=-1)
    is_argmax = jax.lax.stop_gradient(chosen) >= jnp.max(fixed, axis=-1)
    zero = jnp.zeros((), jnp.float32)
    return jnp.where(keep, chosen - normaliser, zero), jnp.where(keep, entropy, zero), keep & is_argmax


def _skipped_chunk(
    weights: jax.Array, states: jax.Array, ids: jax.Array, keep: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    zeros = jnp.zeros(ids.shape, jnp.float32)
    return zeros, zeros, jnp.zeros(ids.shape, jnp.bool_)
