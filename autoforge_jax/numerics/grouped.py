"""Matrix products of tokens with the matrix of the group each belongs to, without dropping any: the experts
of a mixture-of-experts layer.

A pair (token, choice) gets a *slot*. Slots of one group lie side by side and each group begins at a multiple
of the block size, so that a block of slots belongs to one group. The number of slots is fixed (the worst
case: every pair kept); what is computed follows the pairs that there are.

TPUs run `jax.lax.ragged_dot`, which has a kernel there. Elsewhere XLA expands that to a product with every
group's matrix; there a loop walks the blocks in use, one dense product each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

SMALLEST_BLOCK = 8
LARGEST_BLOCK = {"cpu": 128}
"""Slots in a block at most, by platform; else 512: enough rows for a full matrix product on a GPU."""


class Slots(NamedTuple):
    """Where M = N × k pairs lie among R slots of G groups. Padding slots hold no pair."""

    slot_of_pair: Int[Array, "N k"]
    """R for a pair of no group."""
    token_of_slot: Int[Array, " R"]
    """N for a padding slot."""
    pair_of_slot: Int[Array, " R"]
    """N · k for a padding slot."""
    sizes: Int[Array, " G"]
    """Slots of each group, padding included."""
    group_of_block: Int[Array, " blocks"]
    """Meaningless after the blocks in use."""
    blocks_used: Int[Array, ""]


def block_size(pairs: int, groups: int, platform: str) -> int:
    """Slots per block: about a group's share of the pairs, as a power of two; 1 where `ragged_dot` takes
    groups of any size."""
    if platform == "tpu":
        return 1
    share = 1 << max(0, pairs // groups).bit_length()
    return min(max(share // 2, SMALLEST_BLOCK), LARGEST_BLOCK.get(platform, 512))


def assign_slots(groups: Int[Array, "N k"], count: int, block: int) -> Slots:
    """Slots for pairs whose group is ``0 … count - 1``; any other number means that the pair is not here.

    Pairs of one group keep their order.
    """
    tokens, choices = groups.shape
    pairs = tokens * choices
    total = -(-(pairs + count * (block - 1)) // block) * block
    flat = groups.reshape(-1)
    flat = jnp.where((flat >= 0) & (flat < count), flat, count)
    order = jnp.argsort(flat, stable=True).astype(jnp.int32)
    held = jnp.zeros(count + 1, jnp.int32).at[flat].add(1)[:count]
    sizes = -(-held // block) * block
    begins = jnp.cumsum(sizes) - sizes
    before = jnp.cumsum(held) - held
    sorted_groups = flat[order]
    here = sorted_groups < count
    known = jnp.where(here, sorted_groups, 0)
    places = begins[known] + jnp.arange(pairs, dtype=jnp.int32) - before[known]
    places = jnp.where(here, places, total).astype(jnp.int32)
    slot_of_pair = jnp.zeros(pairs, jnp.int32).at[order].set(places, unique_indices=True)
    pair_of_slot = jnp.full(total, pairs, jnp.int32).at[places].set(order, mode="drop")
    blocks = jnp.arange(total // block, dtype=jnp.int32) * block
    of_block = jnp.searchsorted(jnp.cumsum(sizes), blocks, side="right").astype(jnp.int32)
    return Slots(
        slot_of_pair=slot_of_pair.reshape(tokens, choices),
        token_of_slot=jnp.where(pair_of_slot < pairs, pair_of_slot // choices, tokens),
        pair_of_slot=pair_of_slot,
        sizes=sizes,
        group_of_block=jnp.minimum(of_block, count - 1),
        blocks_used=jnp.sum(sizes) // block,
    )


@jax.custom_vjp
def to_slots(x: Float[Array, "N D"], slots: Slots) -> Float[Array, "R D"]:
    """The token of every slot; zeros in padding slots. The gradient gathers too, instead of adding up row by
    row."""
    return x.at[slots.token_of_slot].get(mode="fill", fill_value=0)


def _to_slots(x: Array, slots: Slots) -> tuple[Array, Slots]:
    return to_slots(x, slots), slots


def _from_slots(slots: Slots, gradient: Array) -> tuple[Array, Any]:
    pairs = gradient.at[slots.slot_of_pair].get(mode="fill", fill_value=0)
    return jnp.sum(pairs, axis=1, dtype=jnp.float32).astype(gradient.dtype), _no_gradient(slots)


to_slots.defvjp(_to_slots, _from_slots)


@jax.custom_vjp
def to_pairs(y: Float[Array, "R D"], slots: Slots) -> Float[Array, "N k D"]:
    """The slot of every pair; zeros for a pair of no group."""
    return y.at[slots.slot_of_pair].get(mode="fill", fill_value=0)


def _to_pairs(y: Array, slots: Slots) -> tuple[Array, Slots]:
    return to_pairs(y, slots), slots


def _from_pairs(slots: Slots, gradient: Array) -> tuple[Array, Any]:
    flat = gradient.reshape(-1, gradient.shape[-1])
    return flat.at[slots.pair_of_slot].get(mode="fill", fill_value=0), _no_gradient(slots)


to_pairs.defvjp(_to_pairs, _from_pairs)


def _no_gradient(slots: Slots) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), slots)


def grouped_dot(x: Float[Array, "R D"], matrices: Float[Array, "G D F"], slots: Slots) -> Float[Array, "R F"]:
    """``x[slot] @ matrices[group of the slot]``, summed in float32, in x's type. Zeros in padding slots when
    x is zero there."""
    if slots.group_of_block.shape[0] == x.shape[0]:
        product = jax.lax.ragged_dot(x, matrices, slots.sizes, preferred_element_type=jnp.float32)
        # what lies behind the last group is not defined
        used = jnp.arange(x.shape[0]) < jnp.sum(slots.sizes)
        return jnp.where(used[:, None], product, 0.0).astype(x.dtype)
    return _blocked(x, matrices, slots)


@jax.custom_vjp
def _blocked(x: Array, matrices: Array, slots: Slots) -> Array:
    return _walk(x, matrices, slots)


def _walk(x: Array, matrices: Array, slots: Slots) -> Array:
    """Blocks in use times their matrix; a group's matrix is read where it lies."""
    block = x.shape[0] // slots.group_of_block.shape[0]

    def one(index: Array, out: Array) -> Array:
        matrix = jax.lax.dynamic_index_in_dim(matrices, slots.group_of_block[index], keepdims=False)
        rows = jax.lax.dynamic_slice_in_dim(x, index * block, block)
        product = jnp.matmul(rows, matrix, preferred_element_type=jnp.float32).astype(x.dtype)
        return jax.lax.dynamic_update_slice_in_dim(out, product, index * block, axis=0)

    start = jnp.zeros((x.shape[0], matrices.shape[2]), x.dtype)
    return jax.lax.fori_loop(jnp.zeros((), slots.blocks_used.dtype), slots.blocks_used, one, start)


def _blocked_forward(x: Array, matrices: Array, slots: Slots) -> tuple[Array, tuple[Array, Array, Slots]]:
    return _walk(x, matrices, slots), (x, matrices, slots)


def _blocked_backward(kept: tuple[Array, Array, Slots], gradient: Array) -> tuple[Array, Array, Any]:
    x, matrices, slots = kept
    block = x.shape[0] // slots.group_of_block.shape[0]

    def one(index: Array, total: Array) -> Array:
        group = slots.group_of_block[index]
        rows = jax.lax.dynamic_slice_in_dim(x, index * block, block)
        asked = jax.lax.dynamic_slice_in_dim(gradient, index * block, block)
        more = jnp.matmul(rows.T, asked, preferred_element_type=jnp.float32)
        old = jax.lax.dynamic_index_in_dim(total, group, keepdims=True)
        return jax.lax.dynamic_update_slice_in_dim(total, old + more[None], group, axis=0)

    start = jnp.zeros(matrices.shape, jnp.float32)
    first = jnp.zeros((), slots.blocks_used.dtype)
    total = jax.lax.fori_loop(first, slots.blocks_used, one, start)
    to_x = _walk(gradient, matrices.swapaxes(1, 2), slots)
    return to_x, total.astype(matrices.dtype), _no_gradient(slots)


_blocked.defvjp(_blocked_forward, _blocked_backward)
