"""Causal attention with segments and a shared prefix, in query blocks.

Who sees whom, by row index i (query) and j (key): ``j <= i`` and (same segment, or key segment is
`PREFIX_SEGMENT`), and neither is padding (segment 0). Positions play no part here: they only turn queries and
keys before they come.
"""

from __future__ import annotations

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

    Scores and weights are recomputed in the backward pass. On CPU rows go one after another: what one row
    needs stays in cache, where the whole batch would write and read tens of megabytes of fresh memory
    (forward + backward on one core, 16 rows of 320 queries and 620 keys, 2 heads of 64: 88 ms against 158 ms
    with all rows at once and saved weights; 8 rows of 768: 82 against 175). Other devices take all rows at
    once, and so does the CPU with `by_row` False. A query that sees nothing gives zeros, also in the
    gradient.
    """
    keys = segment_ids if key_segments is None else key_segments

    @jax.checkpoint
    def some(rows: tuple[Array, ...]) -> Array:
        return _attend(*rows, chunk=chunk)

    arrays = (q, k, v, segment_ids, keys)
    if not (jax.default_backend() == "cpu" if by_row is None else by_row):
        return some(arrays)
    return jax.lax.map(lambda row: some(tuple(x[None] for x in row))[0], arrays)


def _attend(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B S K d"],
    v: Float[Array, "B S K d"],
    segment_ids: Int[Array, "B T"],
    keys: Int[Array, "B S"],
    *,
    chunk: int,
) -> Float[Array, "B T H d"]:
    """Queries in blocks of `chunk` to 4 × `chunk`: a block reads only keys up to its last query, so about
    half of the causal square is never computed.
    """
    batch, length, heads, width = q.shape
    before = k.shape[1] - length
    shared, groups = k.shape[2], heads // k.shape[2]
    # [B, K, group, T, d]: one product per key/value head and block, with the query heads of a group as more
    # rows of it
    q = q.reshape(batch, length, shared, groups, width).transpose(0, 2, 3, 1, 4)
    q = q * jnp.asarray(width**-0.5, q.dtype)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    # Every block is code of its own: with more than four, compiling costs more than the skipped triangle
    # saves
    size = min(max(chunk, -(-length // 4)), 4 * chunk)
    out: list[Array] = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        seen = before + stop
        rows = q[:, :, :, start:stop].reshape(batch, shared, groups * (stop - start), width)
        scores = jnp.einsum("bkqd,bksd->bkqs", rows, k[:, :, :seen], preferred_element_type=jnp.float32)
        scores = scores.reshape(batch, shared, groups, stop - start, seen)
        mask = visible(segment_ids[:, start:stop], keys[:, :seen], before + start)
        bias = jnp.where(mask, 0.0, HIDDEN).astype(jnp.float32)[:, None, None]
        scores = scores + jnp.broadcast_to(bias, scores.shape)
        # the shift cancels in the quotient, so it carries no gradient
        peak = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), FLOOR))
        weights = jnp.exp(scores - peak)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights.astype(v.dtype).reshape(batch, shared, groups * (stop - start), seen)
        block = jnp.einsum("bkqs,bksd->bkqd", weights, v[:, :, :seen], preferred_element_type=jnp.float32)
        # dividing after the product touches d numbers per query instead of T
        block = block.reshape(batch, shared, groups, stop - start, width) / jnp.where(total > 0.0, total, 1.0)
        out.append(block.astype(v.dtype))
    joined = jnp.concatenate(out, axis=3)
    return joined.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, width)
