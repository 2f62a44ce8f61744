"""Causal attention with segments and a shared prefix, in query blocks.

Who sees whom, by row index i (query) and j (key): ``j <= i`` and (same segment, or key segment is
`PREFIX_SEGMENT`), and neither is padding (segment 0). Positions play no part here: they only turn queries and
keys before they come.

The gradient is written out (FlashAttention-2's, arXiv 2307.08691 §3.1): the forward pass keeps its output and
one number per query, the logarithm of its softmax's denominator, and weights are computed again from scores
and that. Automatic differentiation would repeat the softmax and the product with the values too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PADDING_SEGMENT = 0
"""Visible to nobody, sees nothing: its output is zero."""
PREFIX_SEGMENT = 1
"""The row's shared prompt prefix: every later segment of the row sees it."""

HIDDEN = -1e30
"""Score of a key that must not be seen."""
FLOOR = -1e20
"""Lowest peak that is subtracted: far above `HIDDEN`, so that a query that sees nothing has weights
exp(HIDDEN - FLOOR) = 0 instead of exp(0)."""


def visible(
    query_segments: Int[Array, "B Q"], key_segments: Int[Array, "B S"], query_start: int
) -> Bool[Array, "B Q S"]:
    """Visibility of keys at row indices ``0 …`` to queries at row indices ``query_start …``."""
    q, s = query_segments.shape[1], key_segments.shape[1]
    causal = jnp.arange(s)[None, :] <= (query_start + jnp.arange(q))[:, None]
    queries, keys = query_segments[:, :, None], key_segments[:, None, :]
    same = (queries == keys) | (keys == PREFIX_SEGMENT)
    return same & (keys != PADDING_SEGMENT) & (queries != PADDING_SEGMENT) & causal[None]


def segment_attention(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B S K d"],
    v: Float[Array, "B S K d"],
    segment_ids: Int[Array, "B T"],
    *,
    chunk: int,
    key_segments: Int[Array, "B S"] | None = None,
    by_row: bool | None = None,
) -> Float[Array, "B T H d"]:
    """Grouped-query attention over whole rows; scores and softmax in float32, output in q's type.

    With `key_segments` the keys are a row of their own that ends with the queries' tokens: the S - T keys
    before those (a prefix computed elsewhere) come before every query.

    Scores are recomputed in the backward pass. On CPU rows, and in a row key/value heads, go one after
    another: what one of them needs stays in cache, where the whole batch would write and read tens of
    megabytes of fresh memory. Other devices take all at once, and so does the CPU with `by_row` False. A
    query that sees nothing gives zeros, also in the gradient.
    """
    keys = segment_ids if key_segments is None else key_segments
    if by_row is None:
        by_row = jax.default_backend() == "cpu"
    return _attention(q, k, v, segment_ids, keys, chunk, by_row)


class _Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    q: Float[Array, "B T H d"]
    k: Float[Array, "B S K d"]
    v: Float[Array, "B S K d"]
    segments: Int[Array, "B T"]
    keys: Int[Array, "B S"]
    out: Float[Array, "B T H d"]
    normaliser: Float[Array, "B K g T"]
    """log Σ exp(score); `FLOOR` for a query that sees nothing."""


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attention(q: Array, k: Array, v: Array, segments: Array, keys: Array, chunk: int, by_row: bool) -> Array:
    return _attention_forward(q, k, v, segments, keys, chunk, by_row)[0]


def _attention_forward(
    q: Array, k: Array, v: Array, segments: Array, keys: Array, chunk: int, by_row: bool
) -> tuple[Array, _Kept]:
    out, normaliser = _over(partial(_attend, chunk=chunk, one_by_one=by_row), by_row)(q, k, v, segments, keys)
    return out, _Kept(q, k, v, segments, keys, out, normaliser)


def _attention_backward(
    chunk: int, by_row: bool, kept: _Kept, gradient: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v = _over(partial(_differentiate, chunk=chunk, one_by_one=by_row), by_row)(gradient, *kept)
    return q, k, v, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _over(function: Callable[..., Any], one_by_one: bool) -> Callable[..., Any]:
    """`function` over the leading axis of all its arguments, one after another or all at once."""
    if one_by_one:
        return lambda *arrays: jax.lax.map(lambda xs: function(*xs), arrays)
    return jax.vmap(function)


def _blocks(length: int, chunk: int) -> list[tuple[int, int]]:
    """(first, end) of blocks of `chunk` to 4 × `chunk` queries. A block reads only keys up to its last query,
    so about half of the causal square is never computed. Every block is code of its own: with more than four,
    compiling costs more than the skipped triangle saves."""
    size = min(max(chunk, -(-length // 4)), 4 * chunk)
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def _grouped(x: Float[Array, "T H d"], shared: int) -> Float[Array, "K g T d"]:
    """Query heads by the key/value head they share: one product per key/value head and block, with the query
    heads of a group as more rows of it."""
    length, heads, width = x.shape
    return x.reshape(length, shared, heads // shared, width).transpose(1, 2, 0, 3)


def _ungrouped(x: Float[Array, "K g T d"]) -> Float[Array, "T H d"]:
    shared, groups, length, width = x.shape
    return x.transpose(2, 0, 1, 3).reshape(length, shared * groups, width)


def _biases(segments: Int[Array, " T"], keys: Int[Array, " S"], blocks: list[tuple[int, int]]) -> list[Array]:
    """Per block [queries, keys]: 0 where a key is seen, `HIDDEN` elsewhere. Heads that go one after another
    read them from memory: computed beside each exponential, the comparisons would take longer than it does.
    """
    before = keys.shape[0] - segments.shape[0]
    masks = [
        visible(segments[None, start:stop], keys[None, : before + stop], before + start)[0]
        for start, stop in blocks
    ]
    return [jnp.where(mask, 0.0, HIDDEN).astype(jnp.float32) for mask in masks]


def _attend(
    q: Array, k: Array, v: Array, segments: Array, keys: Array, *, chunk: int, one_by_one: bool
) -> tuple[Float[Array, "T H d"], Float[Array, "K g T"]]:
    """One row: its output, and the logarithm of every query's denominator."""
    shared, width = k.shape[1:]
    blocks = _blocks(q.shape[0], chunk)
    biases = _biases(segments, keys, blocks)

    def head(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        out: list[Array] = []
        normalisers: list[Array] = []
        for (start, stop), bias in zip(blocks, biases, strict=True):
            seen = bias.shape[1]
            rows = q[:, start:stop].reshape(-1, width)
            scores = jnp.einsum("qd,sd->qs", rows, k[:seen], preferred_element_type=jnp.float32)
            scores = scores.reshape(-1, stop - start, seen) + bias[None]
            peak = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), FLOOR)
            weights = jnp.exp(scores - peak)
            total = jnp.sum(weights, axis=-1, keepdims=True)
            total = jnp.where(total > 0.0, total, 1.0)
            weights = weights.astype(v.dtype).reshape(-1, seen)
            block = jnp.einsum("qs,sd->qd", weights, v[:seen], preferred_element_type=jnp.float32)
            # dividing after the product touches d numbers per query instead of T
            block = block.reshape(-1, stop - start, width) / total
            out.append(block.astype(v.dtype))
            normalisers.append((peak + jnp.log(total))[..., 0])
        return jnp.concatenate(out, axis=1), jnp.concatenate(normalisers, axis=1)

    grouped = _grouped(q * jnp.asarray(width**-0.5, q.dtype), shared)
    out, normaliser = _over(head, one_by_one)(grouped, k.swapaxes(0, 1), v.swapaxes(0, 1))
    return _ungrouped(out), normaliser


def _differentiate(
    gradient: Array,
    q: Array,
    k: Array,
    v: Array,
    segments: Array,
    keys: Array,
    out: Array,
    normaliser: Array,
    *,
    chunk: int,
    one_by_one: bool,
) -> tuple[Float[Array, "T H d"], Float[Array, "S K d"], Float[Array, "S K d"]]:
    """One row: gradients to q, k, v. Scores lie with keys as rows, so that one product of five has a turned
    left side and not two: XLA:CPU has its faster kernels for the others."""
    shared, width = k.shape[1:]
    scale, dtype, wide = width**-0.5, q.dtype, jnp.float32
    blocks = _blocks(q.shape[0], chunk)
    biases = [bias.T for bias in _biases(segments, keys, blocks)]
    # the softmax's own part of the gradient: one number per query
    inner = jnp.sum(_grouped(gradient.astype(wide) * out.astype(wide), shared), axis=-1)

    def head(q: Array, k: Array, v: Array, gradient: Array, inner: Array, normaliser: Array) -> Any:
        groups = q.shape[0]
        to_q: list[Array] = []
        to_k, to_v = jnp.zeros(k.shape, wide), jnp.zeros(v.shape, wide)
        for (start, stop), bias in zip(blocks, biases, strict=True):
            seen, size = bias.shape
            rows, asked = (x[:, start:stop].reshape(-1, width) for x in (q, gradient))
            scores = jnp.einsum("sd,qd->sq", k[:seen], rows, preferred_element_type=wide)
            scores = scores.reshape(seen, groups, size) + bias[:, None]
            weights = jnp.exp(scores - normaliser[None, :, start:stop])
            to_weights = jnp.einsum("sd,qd->sq", v[:seen], asked, preferred_element_type=wide)
            to_weights = to_weights.reshape(seen, groups, size)
            to_scores = weights * (to_weights - inner[None, :, start:stop])
            weights, to_scores = (x.astype(dtype).reshape(seen, -1) for x in (weights, to_scores))
            to_v = to_v.at[:seen].add(jnp.einsum("sq,qd->sd", weights, asked, preferred_element_type=wide))
            to_k = to_k.at[:seen].add(jnp.einsum("sq,qd->sd", to_scores, rows, preferred_element_type=wide))
            block = jnp.einsum("sq,sd->qd", to_scores, k[:seen], preferred_element_type=wide)
            to_q.append(block.reshape(groups, size, width))
        joined = jnp.concatenate(to_q, axis=1) * scale
        return joined.astype(dtype), to_k.astype(k.dtype), to_v.astype(v.dtype)

    to_q, to_k, to_v = _over(head, one_by_one)(
        _grouped(q * jnp.asarray(scale, dtype), shared),
        k.swapaxes(0, 1),
        v.swapaxes(0, 1),
        _grouped(gradient, shared),
        inner,
        normaliser,
    )
    return _ungrouped(to_q), to_k.swapaxes(0, 1), to_v.swapaxes(0, 1)
