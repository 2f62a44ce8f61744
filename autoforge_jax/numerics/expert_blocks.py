"""The experts of a mixture-of-experts layer, block by block, without dropping any pair (token, choice).

Pairs are sorted by expert and each expert's begin a new *block*, so that a block has one expert's matrices to
multiply with. The room for blocks is fixed (the worst case: every pair is kept and every expert's last block
is nearly empty), but a loop walks only those in use. A block's tokens are read where they lie and its results
are added where they belong: no array holds something for every pair. The backward pass walks the same blocks
and computes gate and up once more.

(Two products that XLA has for this were left: `jax.lax.ragged_dot` on TPUs makes of the gradient for the
matrices a product of every pair with every expert, and elsewhere already of the product itself.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

SMALLEST_BLOCK = 8
LARGEST_BLOCK = {"cpu": 128, "tpu": 1024}
"""Pairs in a block at most, by platform; else 2,048: a GPU's host starts every block, so each must be worth
it. On TPUs a block must outweigh the reading and writing of its expert's gradients."""

Matrices = tuple[Float[Array, "E D F"], Float[Array, "E D F"], Float[Array, "E F D"]]
"""gate, up, down."""


class Blocks(NamedTuple):
    """Where the pairs of N tokens × k choices lie in blocks of S places."""

    pairs: Int[Array, "blocks S"]
    """``token · k + choice``; N · k where there is none."""
    expert: Int[Array, " blocks"]
    """Meaningless after the blocks in use."""
    used: Int[Array, ""]


def block_size(pairs: int, experts: int, platform: str) -> int:
    """Places in a block: about half an expert's share of the pairs, as a power of two."""
    share = 1 << max(0, pairs // experts).bit_length()
    return min(max(share // 2, SMALLEST_BLOCK), LARGEST_BLOCK.get(platform, 2048))


def assign_blocks(chosen: Int[Array, "N k"], experts: int, size: int) -> Blocks:
    """Places for the pairs whose expert is ``0 … experts - 1``; any other number means: not here.

    Pairs of one expert keep their order.
    """
    pairs = chosen.size
    places = -(-(pairs + experts * (size - 1)) // size) * size
    flat = chosen.reshape(-1)
    flat = jnp.where((flat >= 0) & (flat < experts), flat, experts)
    order = jnp.argsort(flat, stable=True).astype(jnp.int32)
    held = jnp.zeros(experts + 1, jnp.int32).at[flat].add(1)[:experts]
    room = -(-held // size) * size
    ends = jnp.cumsum(room)
    by_expert = flat[order]
    here = by_expert < experts
    known = jnp.where(here, by_expert, 0)
    shift = ends - room - (jnp.cumsum(held) - held)
    place = jnp.where(here, jnp.arange(pairs, dtype=jnp.int32) + shift[known], places)
    begins = jnp.arange(places // size, dtype=jnp.int32) * size
    expert = jnp.searchsorted(ends, begins, side="right").astype(jnp.int32)
    return Blocks(
        pairs=jnp.full(places, pairs, jnp.int32).at[place].set(order, mode="drop").reshape(-1, size),
        expert=jnp.minimum(expert, experts - 1),
        used=ends[-1] // size,
    )


@jax.custom_vjp
def sum_by_blocks(
    tokens: Float[Array, "N D"], weights: Float[Array, "N k"], matrices: Matrices, blocks: Blocks
) -> Float[Array, "N D"]:
    """Σ of a token's pairs: weight × SwiGLU expert(token), summed in float32. A token that has no pair gets
    zeros.

    matrices: of the tokens' type. blocks: of ``[N, k]`` choices, in which a token names an expert once at
    most.
    """
    walk = _Walk(tokens, weights, matrices, blocks)
    down = matrices[2]

    def one(index: Array, total: Array) -> Array:
        block = walk.block(index)
        hidden = _swiglu(*walk.gate_and_up(block))
        result = _matmul(hidden, down[block.expert]).astype(tokens.dtype)
        return block.add(total, _wide(result) * _wide(block.weight)[:, None])

    return walk.over(one, jnp.zeros(tokens.shape, jnp.float32))


def _forward(tokens: Array, weights: Array, matrices: Matrices, blocks: Blocks) -> tuple[Array, Any]:
    return sum_by_blocks(tokens, weights, matrices, blocks), (tokens, weights, matrices, blocks)


def _backward(kept: Any, gradient: Array) -> tuple[Array, Array, Matrices, Any]:
    tokens, weights, matrices, blocks = kept
    walk = _Walk(tokens, weights, matrices, blocks)
    gate, up, down = matrices
    gradient = gradient.astype(tokens.dtype)

    def one(index: Array, sums: tuple[Array, Array, tuple[Array, ...]]) -> Any:
        to_tokens, to_weights, to_matrices = sums
        block = walk.block(index)
        e, x = block.expert, block.tokens
        hidden, pulled_back = jax.vjp(_swiglu, *walk.gate_and_up(block))
        asked = block.read(gradient)
        # of the expert's result before it was weighted
        back = _matmul(asked, down[e].T)
        to_gate, to_up = pulled_back((back * _wide(block.weight)[:, None]).astype(x.dtype))
        to_x = _matmul(to_gate, gate[e].T) + _matmul(to_up, up[e].T)
        more = (
            _matmul(x.T, to_gate),
            _matmul(x.T, to_up),
            _matmul((_wide(hidden) * _wide(block.weight)[:, None]).astype(x.dtype).T, asked),
        )
        to_pair = jnp.sum(back * _wide(hidden), axis=1)
        return (
            block.add(to_tokens, to_x),
            to_weights.at[block.pair].set(to_pair, mode="drop", unique_indices=True),
            tuple(_add_at(total, e, part) for total, part in zip(to_matrices, more, strict=True)),
        )

    start = (
        jnp.zeros(tokens.shape, jnp.float32),
        jnp.zeros(weights.size, jnp.float32),
        tuple(jnp.zeros(matrix.shape, jnp.float32) for matrix in matrices),
    )
    to_tokens, to_weights, to_matrices = walk.over(one, start)
    return (
        to_tokens.astype(tokens.dtype),
        to_weights.reshape(weights.shape).astype(weights.dtype),
        tuple(total.astype(matrix.dtype) for total, matrix in zip(to_matrices, matrices, strict=True)),
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), blocks),
    )


sum_by_blocks.defvjp(_forward, _backward)


class _Block(NamedTuple):
    """One block's pairs. Places without a pair read zeros and are added nowhere."""

    expert: Int[Array, ""]
    pair: Int[Array, " S"]
    """Beyond all pairs, each another, where there is none."""
    token: Int[Array, " S"]
    tokens: Float[Array, "S D"]
    weight: Float[Array, " S"]

    def read(self, values: Float[Array, "N D"]) -> Float[Array, "S D"]:
        return values.at[self.token].get(mode="fill", fill_value=0)

    def add(self, total: Float[Array, "N D"], values: Float[Array, "S D"]) -> Float[Array, "N D"]:
        return total.at[self.token].add(values, mode="drop", unique_indices=True)


class _Walk(NamedTuple):
    """The loop over the blocks in use."""

    tokens: Float[Array, "N D"]
    weights: Float[Array, "N k"]
    matrices: Matrices
    blocks: Blocks

    def block(self, index: Array) -> _Block:
        choices = self.weights.shape[1]
        found = self.blocks.pairs[index]
        spare = self.weights.size + jnp.arange(found.shape[0], dtype=jnp.int32) * choices
        pair = jnp.where(found < self.weights.size, found, spare)
        token = pair // choices
        return _Block(
            expert=self.blocks.expert[index],
            pair=pair,
            token=token,
            tokens=self.tokens.at[token].get(mode="fill", fill_value=0),
            weight=self.weights.reshape(-1).at[pair].get(mode="fill", fill_value=0),
        )

    def gate_and_up(self, block: _Block) -> list[Array]:
        gate, up, _ = self.matrices
        x = block.tokens
        return [_matmul(x, matrix[block.expert]).astype(x.dtype) for matrix in (gate, up)]

    def over(self, one: Callable[[Array, Any], Any], start: Any) -> Any:
        return jax.lax.fori_loop(jnp.zeros((), self.blocks.used.dtype), self.blocks.used, one, start)


def _add_at(total: Array, index: Array, part: Array) -> Array:
    old = jax.lax.dynamic_index_in_dim(total, index, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(total, old + part, index, axis=0)


def _swiglu(gate: Array, up: Array) -> Array:
    return jax.nn.silu(gate) * up


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32)
