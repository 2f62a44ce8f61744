"""Starting values with which a small policy can look things up before it has learned anything else.

A transformer that starts from noise finds "copy what followed the same words" late and suddenly: no single
matrix helps before the others do. Here the first two layers start as the circuit that such models end up
with (induction heads: Olsson et al. 2022, arXiv:2209.11895), so training only has to refine it. Nothing
about the architecture changes: every number is an ordinary parameter of a dense Qwen3 and is trained.

The residual stream is cut into a constant channel, channels for the token itself, and four blocks that hold
what came before it:

=========  ==========  ==================================================================================
layer      head        does
=========  ==========  ==================================================================================
0          0, 1, 2, 3  write the token 1 back, 2 back, about 3 back and about 5 back into blocks 1 to 4
1          0           looks for a token whose two predecessors are the present token and the one before
1          1           looks for a token that has 5 back what the present one has 3 back: the id that a
                       record gives after its label
1          2           looks for a token whose predecessor but one is the present token: ``price` ... `: ``
1, 2, …    all         copy the token they attend to (output = transposed value projection)
=========  ==========  ==================================================================================

Embeddings of tokens that share words (``price":``, `` price``, ``Price``) share a component.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.fit import check_retrieval, still_pairs
from autoforge_jax.model.qwen3 import Weights

CONSTANT = 0.7
"""Share of an embedding's length in the constant channel, which position-only heads read."""
SPELLING = 0.5
"""Share of an embedding's variance that it has in common with tokens of the same words."""
SHARPNESS = 2.0
"""Query and key norms of the first two layers: scores reach its square times head_dim^0.5."""
SHIFT_STRENGTH = 2.5
"""Length that the heads of layer 0 add, in embedding lengths."""
COPY_STRENGTH = 6.0
"""The same for the three matching heads of layer 1: what they find must be heard over the token itself."""
OTHER_COPY_STRENGTH = 0.3
"""The same for all other heads after layer 0."""
NOISE = 0.02
"""What is left of the random start where a circuit is written."""
TURNING = 0.1
"""Radians per position: rotary pairs that turn faster tell neighbours apart."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_OFFSETS = ((1.0, TURNING, 2.0), (2.0, TURNING, 2.0), (3.0, TURNING, 0.6), (5.0, TURNING, 0.6))
"""Per head of layer 0: how far back, and the band of rotary pairs (radians per position) that says so. A
band without the fastest pairs has a wide peak."""

Array = Float[np.ndarray, "..."]


def words_of(piece: str) -> tuple[str, ...]:
    """The words in a token's text, lower case: ``eventDescription":"`` has `event` and `description`.
    Special tokens (``<think>``) have none.
    """
    return () if piece.startswith("<") else tuple(word.lower() for word in _WORDS.findall(piece))


@dataclass(frozen=True)
class _Channels:
    """Who owns which channel of the residual stream; channel 0 is the constant one."""

    token: np.ndarray
    blocks: tuple[np.ndarray, ...]

    @staticmethod
    def of(config: Qwen3Config) -> _Channels:
        width, count = config.hidden_size, len(_OFFSETS)
        block = min(5 * width // 32, config.head_dim)
        first = width - count * block
        return _Channels(
            np.arange(1, first), tuple(first + block * n + np.arange(block) for n in range(count))
        )


def retrieval_weights(weights: Weights, config: Qwen3Config, pieces: Sequence[str], seed: int) -> Weights:
    """`weights` (randomly initialised, as nested dict of arrays) with the circuits written into layers 0 and
    1, float32. `pieces`: text of every token id. Deterministic in `seed`.

    Raises WeightsError when the shape leaves no room (`model.fit.check_retrieval`).
    """
    check_retrieval(config)
    still = still_pairs(config)
    frequencies = config.rope_theta ** (-np.arange(config.head_dim // 2) / (config.head_dim // 2))
    if len(pieces) != config.vocab_size:
        raise WeightsError(f"{len(pieces)} token texts for {config.vocab_size} embeddings")
    out: dict[str, Any] = {name: np.array(value) for name, value in weights.items() if name != "layers"}
    layers = {name: np.array(value) for name, value in weights["layers"].items()}
    rng = np.random.default_rng(seed)
    channels = _Channels.of(config)
    out["embedding"] = _spelled(out["embedding"], channels, pieces, rng)
    for name in ("query_norm", "key_norm"):
        layers[name][:2] = SHARPNESS
    # One projection of token identity for all blocks: what one holds compares with what another holds.
    identity = rng.normal(size=(channels.token.size, channels.blocks[0].size)) * channels.token.size**-0.5
    _shift_heads(layers, config, channels, identity, frequencies)
    _matching_heads(layers, config, channels, identity, still, rng)
    _copying_heads(layers, config, channels, rng)
    return {**_device(out), "layers": _device(layers)}


def _device(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: jnp.asarray(value, jnp.float32) for name, value in arrays.items()}


def _spelled(
    embedding: Array, channels: _Channels, pieces: Sequence[str], rng: np.random.Generator
) -> np.ndarray:
    """Embeddings [V, D]: the constant, the token's own direction and its words', nothing in the blocks."""
    width = embedding.shape[1]
    own = embedding[:, channels.token]
    known: dict[str, np.ndarray] = {}
    for index, piece in enumerate(pieces):
        words = words_of(piece)
        if not words:
            continue
        for word in words:
            if word not in known:
                known[word] = rng.normal(size=channels.token.size) * width**-0.5
        shared = sum((known[word] for word in words), np.zeros(channels.token.size)) * len(words) ** -0.5
        own[index] = (1 - SPELLING) ** 0.5 * own[index] + SPELLING**0.5 * shared
    out = np.zeros_like(embedding)
    out[:, 0] = CONSTANT
    out[:, channels.token] = own * ((1 - CONSTANT**2) * width / channels.token.size) ** 0.5
    return out


def _shift_heads(
    layers: dict[str, np.ndarray],
    config: Qwen3Config,
    channels: _Channels,
    identity: np.ndarray,
    frequencies: np.ndarray,
) -> None:
    """Layer 0: queries and keys are constant, so rotary angles alone decide; the score of a key n back is
    Σ cos(f · (n - offset)) over the band's pairs."""
    width, group = config.head_dim, config.num_heads // config.num_kv_heads
    query, key, value, output = (layers[name][0] for name in ("query", "key", "value", "output"))
    for index, (offset, slowest, fastest) in enumerate(_OFFSETS):
        band = ((frequencies > slowest) & (frequencies < fastest)).astype(np.float32)
        own = slice(index * width, (index + 1) * width)
        asking = slice(index * group * width, (index * group + 1) * width)
        key[:, own] *= NOISE
        key[0, own] += np.concatenate([band, np.zeros_like(band)])
        query[:, asking] *= NOISE
        query[0, asking] += np.concatenate(
            [band * np.cos(offset * frequencies), -band * np.sin(offset * frequencies)]
        )
        carried = np.arange(identity.shape[1])
        value[:, own] = 0.0
        value[np.ix_(channels.token, own.start + carried)] = identity
        output[np.ix_(asking.start + carried, channels.blocks[index])] = (
            np.eye(carried.size) * SHIFT_STRENGTH * config.hidden_size**-0.5
        )


def _matching_heads(
    layers: dict[str, np.ndarray],
    config: Qwen3Config,
    channels: _Channels,
    identity: np.ndarray,
    still: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Layer 1: a pair (query block, key block) that goes through the same random matrix scores high where the
    two hold the same token."""
    width, group = config.head_dim, config.num_heads // config.num_kv_heads
    query, key = layers["query"][1], layers["key"][1]
    back1, back2, back3, back5 = channels.blocks
    plans: tuple[tuple[tuple[np.ndarray | None, np.ndarray], ...], ...] = (
        ((None, back1), (back1, back2), (back5, back5)),
        ((back3, back5),),
        ((None, back2),),
    )
    for index, pairs in enumerate(plans):
        asking = index * group * width
        key[:, index * width : (index + 1) * width] *= NOISE
        query[:, asking : asking + width] *= NOISE
        for asked, held in pairs:
            matrix = rng.normal(size=(identity.shape[1], still.size)) * still.size**-0.5
            key[np.ix_(held, index * width + still)] += matrix
            rows = channels.token if asked is None else asked
            query[np.ix_(rows, asking + still)] += identity @ matrix if asked is None else matrix


def _copying_heads(
    layers: dict[str, np.ndarray], config: Qwen3Config, channels: _Channels, rng: np.random.Generator
) -> None:
    """After layer 0: what a head reads of the token it writes back, so attending to a token speaks for it."""
    width, group = config.head_dim, config.num_heads // config.num_kv_heads
    carried = np.arange(min(width, channels.token.size))
    for depth in range(1, config.num_layers):
        value, output = layers["value"][depth], layers["output"][depth]
        for index in range(config.num_kv_heads):
            noise = rng.normal(size=(channels.token.size, carried.size))
            basis = np.linalg.qr(noise)[0]
            strength = COPY_STRENGTH if depth == 1 and index < 3 else OTHER_COPY_STRENGTH
            value[:, index * width : (index + 1) * width] = 0.0
            value[np.ix_(channels.token, index * width + carried)] = basis
            for head in range(index * group, (index + 1) * group):
                output[head * width : (head + 1) * width] = 0.0
                output[np.ix_(head * width + carried, channels.token)] = (
                    basis.T * strength * config.hidden_size**-0.5
                )
