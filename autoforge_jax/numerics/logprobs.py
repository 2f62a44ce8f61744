"""Log-probabilities of given tokens, without ever holding [rows, tokens, vocabulary].

Only positions under a mask are computed. They are gathered to the front of one buffer, which is then worked
through in chunks of `chunk_size` positions; a chunk without any position is skipped (`lax.cond`), so the cost
of the unembedding follows the number of wanted tokens while every shape stays fixed. Chunk logits are
recomputed in the backward pass.

Definition, on both sides (engine and learner): log softmax(logits / temperature), not renormalised for top-k
or top-p. Sums over the vocabulary are float32 whatever the compute type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

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
    chunk_size = min(chunk_size, max(mask.shape[0], 1))
    settings = _Settings(float(temperature), chunk_size, mapped_axes)
    outputs: Any = _logprobs(hidden, unembedding, predictors, targets, mask, settings)
    return TokenLogprobs(*outputs)


class _Settings(NamedTuple):
    temperature: float
    chunk_size: int
    mapped_axes: tuple[str, ...]

    def if_wanted(
        self, keep: jax.Array, work: Callable[..., Any], skip: Callable[..., Any], *args: Any
    ) -> Any:
        """`work` on a chunk in which any position is kept, else `skip`."""
        wanted = jnp.any(keep)
        if self.mapped_axes:
            wanted = jax.lax.pmax(wanted.astype(jnp.int32), self.mapped_axes) > 0
        return jax.lax.cond(wanted, work, skip, *args)


class _Chunks(NamedTuple):
    """Wanted positions first, in order, then the others; every array is [chunks, chunk_size]."""

    positions: Int[Array, "chunks size"]
    """In the arrays of the caller."""
    predictors: Int[Array, "chunks size"]
    targets: Int[Array, "chunks size"]
    keep: Bool[Array, "chunks size"]

    @classmethod
    def of(cls, predictors: jax.Array, targets: jax.Array, mask: jax.Array, size: int) -> _Chunks:
        short = -mask.shape[0] % size
        predictors, targets, mask = (jnp.pad(x, (0, short)) for x in (predictors, targets, mask))
        order = jnp.argsort(~mask, stable=True).astype(jnp.int32)
        return cls(*(x.reshape(-1, size) for x in (order, predictors[order], targets[order], mask[order])))

    def back(self, values: Shaped[Array, "chunks size"], count: int) -> Shaped[Array, " n"]:
        """In the caller's order."""
        return values.reshape(-1)[jnp.argsort(self.positions.reshape(-1))][:count]


_Outputs = tuple[Float[Array, " n"], Float[Array, " n"], Bool[Array, " n"]]
"""The fields of `TokenLogprobs`."""


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _logprobs(
    hidden: Array, unembedding: Array, predictors: Array, targets: Array, mask: Array, settings: _Settings
) -> _Outputs:
    return _logprobs_forward(hidden, unembedding, predictors, targets, mask, settings)[0]


def _logprobs_forward(
    hidden: Array, unembedding: Array, predictors: Array, targets: Array, mask: Array, settings: _Settings
) -> tuple[_Outputs, tuple[Array, Array, _Chunks, Array]]:
    chunks = _Chunks.of(predictors, targets, mask, settings.chunk_size)
    weights = unembedding.astype(hidden.dtype)

    def chunk(_: None, inputs: _Chunks) -> tuple[None, tuple[Array, ...]]:
        def work() -> tuple[Array, ...]:
            return _chunk_logprobs(weights, hidden[inputs.predictors], inputs, settings.temperature)

        def skip() -> tuple[Array, ...]:
            zeros = jnp.zeros(inputs.keep.shape, jnp.float32)
            return zeros, zeros, jnp.zeros(inputs.keep.shape, jnp.bool_), zeros

        return None, settings.if_wanted(inputs.keep, work, skip)

    _, (logprobs, entropy, is_argmax, normaliser) = jax.lax.scan(chunk, None, chunks)
    logprobs, entropy, is_argmax = (chunks.back(x, mask.shape[0]) for x in (logprobs, entropy, is_argmax))
    return (logprobs, entropy, is_argmax), (hidden, unembedding, chunks, normaliser)


def _logprobs_backward(
    settings: _Settings, kept: tuple[Array, Array, _Chunks, Array], gradients: tuple[Array, Array, Any]
) -> tuple[Array, Array, None, None, None]:
    """``d logprob / d logits = onehot(target) - softmax``; the softmax comes from the logits, computed again,
    and their normaliser. The sums over chunks are float32. Entropy carries no gradient."""
    hidden, unembedding, chunks, normaliser = kept
    weights = unembedding.astype(hidden.dtype)
    count, size = gradients[0].shape[0], settings.chunk_size
    of_tokens = jnp.pad(gradients[0], (0, -count % size))[chunks.positions]
    of_tokens = jnp.where(chunks.keep, of_tokens, 0.0) / settings.temperature

    def chunk(sums: tuple[Array, Array], inputs: tuple[_Chunks, Array, Array]) -> tuple[Any, None]:
        def work(to_hidden: Array, to_weights: Array) -> tuple[Array, Array]:
            places, normaliser, gradient = inputs
            states = hidden[places.predictors]
            logits = _logits(weights, states, settings.temperature)
            softmax = jnp.exp(logits - normaliser[:, None])
            is_target = places.targets[:, None] == jnp.arange(logits.shape[1])[None]
            to_logits = (jnp.where(is_target, 1.0, 0.0) - softmax) * gradient[:, None]
            to_logits = to_logits.astype(hidden.dtype)
            to_states = jnp.einsum("nv,vd->nd", to_logits, weights, preferred_element_type=jnp.float32)
            more = jnp.einsum("nv,nd->vd", to_logits, states, preferred_element_type=jnp.float32)
            return to_hidden.at[places.predictors].add(to_states), to_weights + more

        return settings.if_wanted(inputs[0].keep, work, lambda *sums: sums, *sums), None

    zeros = jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(weights.shape, jnp.float32)
    (to_hidden, to_weights), _ = jax.lax.scan(chunk, zeros, (chunks, normaliser, of_tokens))
    return to_hidden.astype(hidden.dtype), to_weights.astype(unembedding.dtype), None, None, None


_logprobs.defvjp(_logprobs_forward, _logprobs_backward)


def _logits(weights: Array, states: Array, temperature: float) -> Float[Array, "n v"]:
    logits = jnp.einsum("nd,vd->nv", states, weights, preferred_element_type=jnp.float32)
    return logits / jnp.asarray(temperature, jnp.float32)


def _chunk_logprobs(
    weights: Array, states: Array, chunk: _Chunks, temperature: float
) -> tuple[Array, Array, Array, Array]:
    """Log-prob, entropy, is-argmax, and the logarithm of the softmax's denominator."""
    logits = _logits(weights, states, temperature)
    chosen = jnp.take_along_axis(logits, chunk.targets[:, None], axis=-1)[:, 0]
    peak = jnp.max(logits, axis=-1)
    shares = jnp.exp(logits - peak[:, None])
    total = jnp.sum(shares, axis=-1)
    normaliser = peak + jnp.log(total)
    entropy = normaliser - jnp.sum(shares * logits, axis=-1) / total
    zero = jnp.zeros((), jnp.float32)
    return (
        jnp.where(chunk.keep, chosen - normaliser, zero),
        jnp.where(chunk.keep, entropy, zero),
        chunk.keep & (chosen >= peak),
        normaliser,
    )
