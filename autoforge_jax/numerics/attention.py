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

from autoforge_jax.compilation import target_platform

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
    query_segments: Int[Array, "B Q"], key_segments: Int[Array, "B S"], query_start: int | Array
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
        by_row = target_platform() == "cpu"
    return _attention(q, k, v, segment_ids, keys, tile_size(q.shape[1], chunk, by_row), by_row)


def tile_size(length: int, chunk: int, by_row: bool) -> int:
    """Queries and keys in a tile: `chunk` on a CPU, whose cache holds little; up to 4 × `chunk` elsewhere, a
    quarter of the row in between."""
    return chunk if by_row else min(max(chunk, -(-length // 4)), 4 * chunk)


class _Tiling(NamedTuple):
    """Queries and keys of a row in tiles of one size, so that one piece of code serves all of them."""

    query_tiles: int
    queries: int
    """In a tile; the last tile ends with padding."""
    key_tiles: int
    keys: int
    """In a tile; the last tile ends with padding."""
    ahead: int
    """Keys before the first query: query i sees keys up to ``ahead + i``."""

    @classmethod
    def of(cls, queries: int, keys: int, size: int) -> _Tiling:
        """Tiles of at most `size`."""
        query_tiles, key_tiles = (max(-(-length // size), 1) for length in (queries, keys))
        return cls(query_tiles, -(-queries // query_tiles), key_tiles, -(-keys // key_tiles), keys - queries)

    def key_end(self, i: Array) -> Array:
        """The number of key tiles that a tile of queries reaches. The others are never computed: nearly half
        of the causal square."""
        return jnp.minimum((self.ahead + self.queries * (i + 1) - 1) // self.keys + 1, self.key_tiles)

    def query_start(self, j: Array) -> Array:
        """The first tile of queries that reaches a tile of keys."""
        return jnp.maximum(self.keys * j - self.ahead, 0) // self.queries

    def queries_of(self, x: Float[Array, "T H d"], shared: int) -> Float[Array, "K n g t d"]:
        """By the key/value head they share (g heads each), in tiles."""
        return _tiled(x, shared, self.query_tiles, self.queries)

    def keys_of(self, x: Float[Array, "S K d"]) -> Float[Array, "K m s d"]:
        """By head, in tiles."""
        return _tiled(x, x.shape[1], self.key_tiles, self.keys)[:, :, 0]

    def segments_of(
        self, segments: Int[Array, " T"], keys: Int[Array, " S"]
    ) -> tuple[Int[Array, "n t"], Int[Array, "m s"]]:
        """Of queries and keys, in tiles."""
        return (
            _padded(segments, self.query_tiles * self.queries).reshape(self.query_tiles, self.queries),
            _padded(keys, self.key_tiles * self.keys).reshape(self.key_tiles, self.keys),
        )


class _Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    q: Float[Array, "B T H d"]
    k: Float[Array, "B S K d"]
    v: Float[Array, "B S K d"]
    segments: Int[Array, "B T"]
    keys: Int[Array, "B S"]
    out: Float[Array, "B T H d"]
    normaliser: Float[Array, "B K n g t 1"]
    """log Σ exp(score), in tiles; `FLOOR` for a query that sees nothing."""


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attention(q: Array, k: Array, v: Array, segments: Array, keys: Array, size: int, by_row: bool) -> Array:
    return _attention_forward(q, k, v, segments, keys, size, by_row)[0]


def _attention_forward(
    q: Array, k: Array, v: Array, segments: Array, keys: Array, size: int, by_row: bool
) -> tuple[Array, _Kept]:
    row = partial(_forward_row, _Tiling.of(q.shape[1], k.shape[1], size), by_row)
    out, normaliser = _over(row, by_row)(q, k, v, segments, keys)
    return out, _Kept(q, k, v, segments, keys, out, normaliser)


def _attention_backward(
    size: int, by_row: bool, kept: _Kept, gradient: Array
) -> tuple[Array, Array, Array, None, None]:
    row = partial(_backward_row, _Tiling.of(kept.q.shape[1], kept.k.shape[1], size), by_row)
    q, k, v = _over(row, by_row)(gradient, *kept)
    return q, k, v, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _over(function: Callable[..., Any], one_by_one: bool) -> Callable[..., Any]:
    """`function` over the leading axis of all its arguments, one after another or all at once."""
    if one_by_one:
        return lambda *arrays: jax.lax.map(lambda xs: function(*xs), arrays)
    return jax.vmap(function)


def _forward_row(
    tiling: _Tiling, one_by_one: bool, q: Array, k: Array, v: Array, segments: Array, keys: Array
) -> tuple[Float[Array, "T H d"], Float[Array, "K n g t 1"]]:
    scaled = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    by_head = tiling.queries_of(scaled, k.shape[1]), tiling.keys_of(k), tiling.keys_of(v)
    tile = partial(_attend, tiling, tiling.segments_of(segments, keys), one_by_one)
    _, (out, normaliser) = _over_tiles(tile, by_head, tiling.query_tiles, None, one_by_one)
    return _untiled(out, q.shape[0]), normaliser


def _backward_row(
    tiling: _Tiling,
    one_by_one: bool,
    gradient: Array,
    q: Array,
    k: Array,
    v: Array,
    segments: Array,
    keys: Array,
    out: Array,
    normaliser: Array,
) -> tuple[Float[Array, "T H d"], Float[Array, "S K d"], Float[Array, "S K d"]]:
    scale, wide = jnp.asarray(q.shape[-1] ** -0.5, q.dtype), jnp.float32
    # the softmax's own part of the gradient: one number per query
    inner = jnp.sum(gradient.astype(wide) * out.astype(wide), axis=-1, keepdims=True)
    of_queries = partial(tiling.queries_of, shared=k.shape[1])
    by_head = (
        of_queries(q * scale),
        tiling.keys_of(k),
        tiling.keys_of(v),
        of_queries(gradient),
        of_queries(inner),
        normaliser,
    )
    start = jnp.zeros((tiling.query_tiles, q.shape[2], q.shape[1] // k.shape[1], tiling.queries), wide)
    tile = partial(_differentiate, tiling, tiling.segments_of(segments, keys), one_by_one)
    to_q, (to_k, to_v) = _over_tiles(tile, by_head, tiling.key_tiles, start, one_by_one)
    to_q = _untiled(to_q.transpose(0, 1, 3, 4, 2), q.shape[0]) * scale.astype(wide)
    return (
        to_q.astype(q.dtype),
        _untiled(to_k[:, :, None], k.shape[0]),
        _untiled(to_v[:, :, None], v.shape[0]),
    )


def _over_tiles(
    body: Callable[..., tuple[Any, Any]],
    by_head: tuple[Array, ...],
    count: int,
    carry: Array | None,
    one_by_one: bool,
) -> tuple[Any, Any]:
    """``carry, result = body(by_head, place, carry, i)`` for i < count, of every head of a row.

    One by one, `place` is (head,), the arrays and the carry are those of all heads, and one loop walks all
    their tiles; else `place` is empty, the arrays and the carry are one head's, and heads are computed
    together. Carries and results come back as [head, …] and [head, tile, …].
    """
    if not one_by_one:

        def head(*by_head: Array) -> tuple[Any, Any]:
            return jax.lax.scan(lambda carry, i: body(by_head, (), carry, i), carry, jnp.arange(count))

        return jax.vmap(head)(*by_head)
    heads = by_head[0].shape[0]
    if carry is not None:
        carry = jnp.broadcast_to(carry, (heads, *carry.shape))

    def step(carry: Any, n: Array) -> tuple[Any, Any]:
        return body(by_head, (n // count,), carry, n % count)

    carry, results = jax.lax.scan(step, carry, jnp.arange(heads * count))
    return carry, jax.tree.map(lambda x: x.reshape(heads, count, *x.shape[1:]), results)


def _tiled(x: Float[Array, "T H d"], shared: int, tiles: int, size: int) -> Float[Array, "K n g t d"]:
    _, heads, width = x.shape
    whole = _padded(x, tiles * size).reshape(tiles, size, shared, heads // shared, width)
    return whole.transpose(2, 0, 3, 1, 4)


def _untiled(x: Float[Array, "K n g t d"], length: int) -> Float[Array, "T H d"]:
    shared, tiles, groups, size, width = x.shape
    return x.transpose(1, 3, 0, 2, 4).reshape(tiles * size, shared * groups, width)[:length]


def _padded(x: Array, length: int) -> Array:
    return jnp.pad(x, ((0, length - x.shape[0]), *((0, 0) for _ in x.shape[1:])))


def _at(array: Array, *place: Array) -> Array:
    """``array[place]``, without a test whether it lies inside."""
    rest = array.shape[len(place) :]
    zero = jnp.zeros((), jnp.int32)
    starts = (*place, *(zero for _ in rest))
    return jax.lax.dynamic_slice(array, starts, (*(1 for _ in place), *rest)).reshape(rest)


def _bias(
    tiling: _Tiling, segments: tuple[Array, Array], i: Array, j: Array, apart: bool
) -> Float[Array, "t s"]:
    """0 where a key of tile j is seen by a query of tile i, `HIDDEN` elsewhere. `apart`: computed once for
    all heads of a group; beside each exponential, the comparisons would take a CPU longer than it does."""
    start = tiling.ahead + i * tiling.queries - j * tiling.keys
    mask = visible(_at(segments[0], i)[None], _at(segments[1], j)[None], start)[0]
    bias = jnp.where(mask, 0.0, HIDDEN).astype(jnp.float32)
    return jax.lax.optimization_barrier(bias) if apart else bias


def _attend(
    tiling: _Tiling,
    segments: tuple[Array, Array],
    apart: bool,
    by_head: tuple[Array, ...],
    place: tuple[Array, ...],
    carry: None,
    i: Array,
) -> tuple[None, tuple[Float[Array, "g t d"], Float[Array, "g t 1"]]]:
    """One tile of queries: its output, and the logarithm of every query's denominator.

    It goes over the tiles of keys that it reaches with the highest score so far and, relative to that, the
    sum of the exponentials and of the weighted values (the online softmax)."""
    q, k, v = by_head
    rows = _at(q, *place, i)
    groups, queries, width = rows.shape
    rows = rows.reshape(-1, width)

    def tile(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        out, peak, total = carry
        scores = jnp.einsum("qd,sd->qs", rows, _at(k, *place, j), preferred_element_type=jnp.float32)
        bias = _bias(tiling, segments, i, j, apart)
        scores = scores.reshape(groups, queries, -1) + bias[None]
        higher = jnp.maximum(peak, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - higher)
        fade = jnp.exp(peak - higher)
        total = total * fade + jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights.astype(v.dtype).reshape(groups * queries, -1)
        more = jnp.einsum("qs,sd->qd", weights, _at(v, *place, j), preferred_element_type=jnp.float32)
        return out * fade + more.reshape(out.shape), higher, total

    one = (groups, queries, 1)
    nothing = jnp.zeros((groups, queries, width), jnp.float32), jnp.full(one, FLOOR), jnp.zeros(one)
    out, peak, total = jax.lax.fori_loop(0, tiling.key_end(i), tile, nothing)
    total = jnp.where(total > 0.0, total, 1.0)
    return carry, ((out / total).astype(v.dtype), peak + jnp.log(total))


def _differentiate(
    tiling: _Tiling,
    segments: tuple[Array, Array],
    apart: bool,
    by_head: tuple[Array, ...],
    place: tuple[Array, ...],
    to_q: Float[Array, "*place n d g t"],
    j: Array,
) -> tuple[Array, tuple[Float[Array, "s d"], Float[Array, "s d"]]]:
    """One tile of keys: its gradients, over the tiles of queries that reach it, and its part of theirs.

    Scores lie with keys as rows, and gradients to q with tokens as columns, so that none of the five products
    turns an operand in the inner loop: XLA:CPU has its faster kernels for such."""
    q, k, v, gradient, inner, normaliser = by_head
    k, v = _at(k, *place, j), _at(v, *place, j)
    turned = k.T
    groups, queries, width = q.shape[-3:]
    dtype, wide = q.dtype, jnp.float32

    def tile(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        to_q, to_k, to_v = carry
        rows, asked = (_at(x, *place, i).reshape(-1, width) for x in (q, gradient))
        offset, norm = (_at(x, *place, i).reshape(1, groups, queries) for x in (inner, normaliser))
        bias = _bias(tiling, segments, i, j, apart)
        scores = jnp.einsum("sd,qd->sq", k, rows, preferred_element_type=wide)
        scores = scores.reshape(-1, groups, queries) + bias.T[:, None]
        weights = jnp.exp(scores - norm)
        to_weights = jnp.einsum("sd,qd->sq", v, asked, preferred_element_type=wide)
        to_scores = weights * (to_weights.reshape(scores.shape) - offset)
        weights, to_scores = (x.astype(dtype).reshape(k.shape[0], -1) for x in (weights, to_scores))
        to_v = to_v + jnp.einsum("sq,qd->sd", weights, asked, preferred_element_type=wide)
        to_k = to_k + jnp.einsum("sq,qd->sd", to_scores, rows, preferred_element_type=wide)
        more = jnp.einsum("ds,sq->dq", turned, to_scores, preferred_element_type=wide)
        more = _at(to_q, *place, i) + more.reshape(width, groups, queries)
        zero = jnp.zeros((), jnp.int32)
        more = more.reshape(*(1 for _ in place), 1, *more.shape)
        return jax.lax.dynamic_update_slice(to_q, more, (*place, i, zero, zero, zero)), to_k, to_v

    nothing = jnp.zeros(k.shape, wide), jnp.zeros(v.shape, wide)
    to_q, to_k, to_v = jax.lax.fori_loop(tiling.query_start(j), tiling.query_tiles, tile, (to_q, *nothing))
    return to_q, (to_k.astype(k.dtype), to_v.astype(v.dtype))
