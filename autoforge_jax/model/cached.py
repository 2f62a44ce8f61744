"""Qwen3 with a key/value store: prefill of new tokens and a decode loop on the device. Same layers as
`qwen3.forward`.

A store has one row per session and one per shared prefix. A batch is a list of **tiles** of `TILE` rows that
all follow the same prefix: the prefix's keys are read once per tile instead of once per row, as one matrix
product. Three sources of keys meet in a row's attention, and are merged by their softmax sums: the prefix,
the row's own cache, and what this call itself has added. Keys lie as [..., head_dim, position] and values as
[..., position, head_dim], the layouts in which a query of one token reads memory in order (3–5 times faster
on CPU than the other way round).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from autoforge_jax.compilation import target_platform
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import (
    Layer,
    Weights,
    embed,
    finish_layer,
    project_qkv,
    rms_norm,
    rotary,
    unembedding,
)
from autoforge_jax.model.spread import by_heads, everywhere, whole_rows
from autoforge_jax.numerics.attention import HIDDEN
from autoforge_jax.numerics.sampling import sample_tokens

TILE = 4
"""Rows that share one copy of a prefix."""
FEW_QUERIES = 4
"""Up to so many queries per key/value head, attention over a cache is a multiply-and-sum instead of a matrix
product."""


class KVStore(NamedTuple):
    """Keys and values of all sessions and prefixes, in the compute type."""

    keys: Float[Array, "L N K d S"]
    values: Float[Array, "L N K S d"]


class Rows(NamedTuple):
    """Where the B rows of a batch live. B is a multiple of `TILE`."""

    row: Int[Array, " B"]
    """Store row; padding rows point at a scratch row."""
    length: Int[Array, " B"]
    """Tokens in the row's own cache (without the prefix)."""
    prefix_row: Int[Array, " tiles"]
    prefix_length: Int[Array, " tiles"]

    def position(self) -> Int[Array, " B"]:
        """Position of the next token of each row."""
        return self.length + jnp.repeat(self.prefix_length, TILE)


class Sampling(NamedTuple):
    """Per-row sampling settings of a decode call."""

    uniform: Float[Array, "B M"]
    """One number in [0, 1) per row and step."""
    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    stop_ids: Int[Array, "B n"]
    """Padded with -1."""
    budget: Int[Array, " B"]
    """Tokens the row may still sample; 0 for padding rows."""


class Decoded(NamedTuple):
    """What a decode call sampled: the first `sampled` entries of each row."""

    ids: Int[Array, "B M"]
    logprobs: Float[Array, "B M"]
    sampled: Int[Array, " B"]
    stopped: Bool[Array, " B"]
    """The last id is a stop id."""
    steps: Int[Array, ""]


class _State(NamedTuple):
    """What the decode loop carries."""

    token: Int[Array, " B"]
    """Next input of each row."""
    done: Bool[Array, " B"]
    recent: list[tuple[Float[Array, "B K d M"], Float[Array, "B K M d"]]]
    """Keys and values of this call, per layer: separate arrays, since a slice of a stacked one would be
    copied at every step."""
    out: Decoded


class _Part(NamedTuple):
    """Attention over one source of keys, before the softmax is closed: peak score, sum of weights, weighted
    values."""

    peak: Float[Array, "*N 1"]
    total: Float[Array, "*N 1"]
    values: Float[Array, "*N d"]


def new_store(config: Qwen3Config, rows: int, capacity: int) -> KVStore:
    """An empty store of `rows` × `capacity` positions."""
    shape = (config.num_layers, rows, config.num_kv_heads)
    return KVStore(
        jnp.zeros((*shape, config.head_dim, capacity), config.dtype),
        jnp.zeros((*shape, capacity, config.head_dim), config.dtype),
    )


def _part(q: Array, keys: Array, values: Array, mask: Array) -> _Part:
    """q [N, K, Q, d], keys [N, K, d, S], values [N, K, S, d], mask broadcastable to [N, K, Q, S]."""
    # One token per row is bound by reading the cache: a fused multiply-and-sum reads it once and in order
    # (CPU seconds of a decode step: 23 against 27 ms with batched matrix products of two rows each).
    # A single query must not be written so: XLA makes a matrix product of it that packs the whole cache at
    # every step (jax 0.10.2, 128 rows of 256: 188 ms a step, against 20 as written here).
    # On a TPU it is a matrix product or none: XLA would write the cache out in float32 at every step.
    few = q.shape[2] <= FEW_QUERIES and target_platform() != "tpu"
    one = few and q.shape[2] == 1
    if few and not one:
        scores = jnp.sum(q[..., None].astype(jnp.float32) * keys[:, :, None].astype(jnp.float32), axis=3)
    else:
        scores = jnp.einsum("nkqd,nkds->nkqs", q, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(jnp.broadcast_to(mask, scores.shape), scores, HIDDEN)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - peak)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if one:
        out = jnp.sum(weights[:, :, 0, :, None] * values.astype(jnp.float32), axis=2)[:, :, None]
    elif few:
        out = jnp.sum(weights[..., None] * values[:, :, None].astype(jnp.float32), axis=3)
    else:
        out = jnp.einsum(
            "nkqs,nksd->nkqd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
    return _Part(peak, total, out)


def _merge(parts: list[_Part]) -> Array:
    """Close the softmax over all parts. A part with nothing visible has peak `HIDDEN` and vanishes."""
    peak = parts[0].peak
    for part in parts[1:]:
        peak = jnp.maximum(peak, part.peak)
    scales = [jnp.exp(part.peak - peak) for part in parts]
    total = sum((p.total * s for p, s in zip(parts, scales, strict=True)), jnp.zeros_like(peak))
    return (
        sum((p.values * s for p, s in zip(parts, scales, strict=True)), jnp.zeros_like(parts[0].values))
        / total
    )


def _prefix_part(q: Array, keys: Array, values: Array, lengths: Array) -> _Part:
    """q [B, K, Q, d] of B rows over the prefix of their tile: keys [tiles, K, d, P]."""
    batch, shared, queries, _ = q.shape
    tiles = batch // TILE

    def to_tiles(x: Array) -> Array:
        apart = by_heads(x.reshape(tiles, TILE, shared, queries, -1), 2).swapaxes(1, 2)
        return by_heads(by_heads(apart).reshape(tiles, shared, TILE * queries, -1))

    def to_rows(x: Array) -> Array:
        apart = by_heads(x.reshape(tiles, shared, TILE, queries, -1)).swapaxes(1, 2)
        return by_heads(by_heads(apart, 2).reshape(batch, shared, queries, -1))

    mask = jnp.arange(keys.shape[-1])[None, None, None, :] < lengths[:, None, None, None]
    part = _part(to_tiles(q), keys, values, mask)
    return _Part(to_rows(part.peak), to_rows(part.total), to_rows(part.values))


def _attend(
    q: Float[Array, "B C H d"],
    new: tuple[Array, Array],
    own: tuple[Array, Array],
    prefix: tuple[Array, Array] | None,
    rows: Rows,
    new_mask: Array,
    config: Qwen3Config,
) -> Float[Array, "B C H d"]:
    batch, chunk, heads, width = q.shape
    shared, groups = config.num_kv_heads, heads // config.num_kv_heads
    q = q * jnp.asarray(width**-0.5, q.dtype)
    q = by_heads(
        q.reshape(batch, chunk, shared, groups, width)
        .transpose(0, 2, 3, 1, 4)
        .reshape(batch, shared, -1, width)
    )
    own_mask = jnp.arange(own[0].shape[-1])[None, None, None, :] < rows.length[:, None, None, None]
    parts = [_part(q, *new, new_mask), _part(q, *own, own_mask)]
    if prefix is not None:
        parts.append(_prefix_part(q, *prefix, rows.prefix_length))
    out = _merge(parts).astype(q.dtype).reshape(batch, shared, groups, chunk, width)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, chunk, heads, width)


def _read(store: KVStore, layer: int | Array, rows: Int[Array, " n"], width: int) -> tuple[Array, Array]:
    """The first `width` positions of `rows` in one layer: keys [n, K, d, width], values [n, K, width, d]."""
    if target_platform() != "tpu":
        return store.keys[layer, rows, :, :, :width], store.values[layer, rows, :, :width]

    # XLA:TPU lays the whole store out anew for such a gather, in every call. Slices it takes where they lie.
    def copy(part: Array, sizes: tuple[int, int]) -> Array:
        shape = (part.shape[2], *sizes)
        zero = jnp.zeros((), jnp.int32)

        def one(i: Array, out: Array) -> Array:
            at = (jnp.asarray(layer, jnp.int32), rows[i], zero, zero, zero)
            piece = jax.lax.dynamic_slice(part, at, (1, 1, *shape))
            return jax.lax.dynamic_update_slice(out, piece[0], (i, zero, zero, zero))

        out = jnp.zeros((rows.shape[0], *shape), part.dtype)
        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(rows.shape[0]), one, out)

    head = store.values.shape[-1]
    return copy(store.keys, (head, width)), copy(store.values, (width, head))


def _layers(weights: Weights, depth: int) -> Callable[[Array], list[Layer]]:
    """Every layer's weights, for the steps of a loop.

    Cut apart before the loop. On a TPU that would be a copy of the whole model in every call, and the
    compiler makes it of cuts within the loop too, unless they depend on the step as far as it can see.
    """

    def cut(step: int | Array) -> list[Layer]:
        return [jax.tree.map(lambda x, i=i: x[i + step], weights["layers"]) for i in range(depth)]

    if target_platform() == "tpu":
        return lambda step: cut(jnp.minimum(step, 0))
    layers = cut(0)
    return lambda step: layers


def _write(
    store: KVStore, rows: Rows, keys: Float[Array, "L B K d C"], values: Float[Array, "L B K C d"]
) -> KVStore:
    """Append a block to every row at its length, one contiguous copy a row. The store has room for the whole
    block; what the block holds beyond the row's new length is hidden until it is overwritten."""

    def copy(i: Array, store: KVStore) -> KVStore:
        zero = jnp.zeros((), jnp.int32)
        row, at = rows.row[i], rows.length[i]
        key_block = jax.lax.dynamic_slice_in_dim(keys, i, 1, axis=1)
        value_block = jax.lax.dynamic_slice_in_dim(values, i, 1, axis=1)
        return KVStore(
            jax.lax.dynamic_update_slice(store.keys, key_block, (zero, row, zero, zero, at)),
            jax.lax.dynamic_update_slice(store.values, value_block, (zero, row, zero, at, zero)),
        )

    return jax.lax.fori_loop(jnp.int32(0), jnp.int32(rows.row.shape[0]), copy, store)


def prefill(
    weights: Weights,
    store: KVStore,
    rows: Rows,
    tokens: Int[Array, "B C"],
    *,
    config: Qwen3Config,
    own_width: int,
    prefix_width: int,
) -> KVStore:
    """Append C tokens to the cache of every row (rows with fewer are padded at the end; the caller keeps the
    lengths).

    own_width, prefix_width: positions of the caches that are read, at least the longest row's; 0 prefix = no
    prefix.
    """
    chunk = tokens.shape[1]
    groups = config.num_heads // config.num_kv_heads
    cos, sin = rotary(rows.position()[:, None] + jnp.arange(chunk, dtype=jnp.int32)[None], config)
    causal = jnp.arange(chunk)[None, :] <= jnp.tile(jnp.arange(chunk), groups)[:, None]

    def step(x: Array, scanned: tuple[Layer, Array]) -> tuple[Array, tuple[Array, Array]]:
        layer, index = scanned
        q, k, v = project_qkv(layer, x, cos, sin, config)
        new = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        own = _read(store, index, rows.row, own_width)
        prefix = _read(store, index, rows.prefix_row, prefix_width) if prefix_width else None
        attended = _attend(q, new, own, prefix, rows, causal[None, None], config)
        return finish_layer(layer, x, attended, config), new

    layers = (weights["layers"], jnp.arange(config.num_layers))
    _, (keys, values) = jax.lax.scan(step, embed(weights, tokens, config), layers)
    return _write(store, rows, keys, values)


def decode(
    weights: Weights,
    store: KVStore,
    rows: Rows,
    tokens: Int[Array, " B"],
    sampling: Sampling,
    enough: Int[Array, ""],
    *,
    config: Qwen3Config,
    own_width: int,
    prefix_width: int,
    block: int,
    filtered: bool,
) -> tuple[KVStore, Decoded]:
    """Feed `tokens` (the last token of each row, not yet cached) and sample on, at most `block` tokens a row.

    Ends when no more than `enough` rows are still going, so that the caller can go on with a smaller batch.
    Every row's cache grows by its `sampled`.
    """
    batch = tokens.shape[0]
    depth, shared, width = config.num_layers, config.num_kv_heads, config.head_dim
    layers = _layers(weights, depth)
    own = [_read(store, i, rows.row, own_width) for i in range(depth)]
    prefix = [_read(store, i, rows.prefix_row, prefix_width) if prefix_width else None for i in range(depth)]
    first = rows.position()
    output = unembedding(weights).astype(config.dtype)

    def going(state: _State) -> Array:
        return (state.out.steps < block) & (jnp.sum(~state.done, dtype=jnp.int32) > enough)

    def body(state: _State) -> _State:
        step, out = state.out.steps, state.out
        cos, sin = rotary((first + step)[:, None], config)
        new_mask = (jnp.arange(block, dtype=jnp.int32) <= step)[None, None, None]

        x = embed(weights, state.token[:, None], config)
        recent: list[tuple[Array, Array]] = []
        for i, layer in enumerate(layers(step)):
            q, k, v = project_qkv(layer, x, cos, sin, config)
            # rows advance in step, so a block is written at one index for all of them: no scatter in the loop
            keys, values = state.recent[i]
            keys = jax.lax.dynamic_update_slice_in_dim(keys, k.transpose(0, 2, 3, 1), step, axis=3)
            values = jax.lax.dynamic_update_slice_in_dim(values, v.transpose(0, 2, 1, 3), step, axis=2)
            recent.append((keys, values))
            x = finish_layer(
                layer, x, _attend(q, (keys, values), own[i], prefix[i], rows, new_mask, config), config
            )
        hidden = rms_norm(x[:, 0], weights["final_norm"], config.rms_norm_eps)
        logits = jnp.einsum("bd,vd->bv", hidden, output, preferred_element_type=jnp.float32)
        uniform = jax.lax.dynamic_index_in_dim(sampling.uniform, step, axis=1, keepdims=False)
        ids, logprobs = everywhere(
            *sample_tokens(
                whole_rows(logits),
                uniform,
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                filtered=filtered,
            )
        )
        ids = jnp.where(state.done, state.token, ids)
        count = out.sampled + jnp.where(state.done, 0, 1).astype(jnp.int32)
        stopped = out.stopped | (~state.done & jnp.any(ids[:, None] == sampling.stop_ids, axis=-1))
        out = Decoded(
            jax.lax.dynamic_update_slice_in_dim(out.ids, ids[:, None], step, axis=1),
            jax.lax.dynamic_update_slice_in_dim(out.logprobs, logprobs[:, None], step, axis=1),
            count,
            stopped,
            step + 1,
        )
        return _State(ids, state.done | stopped | (count >= sampling.budget), recent, out)

    out = Decoded(
        jnp.zeros((batch, block), jnp.int32),
        jnp.zeros((batch, block), jnp.float32),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
        jnp.zeros((), jnp.int32),
    )
    recent = [
        (
            jnp.zeros((batch, shared, width, block), config.dtype),
            jnp.zeros((batch, shared, block, width), config.dtype),
        )
        for _ in range(depth)
    ]
    state = jax.lax.while_loop(going, body, _State(tokens, sampling.budget <= 0, recent, out))
    keys, values = (jnp.stack(part) for part in zip(*state.recent, strict=True))
    return _write(store, rows, keys, values), state.out
