"""Draw one token per row from a uniform number per row: a row's draw never depends on its neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Uniform float32 in [0, 1), a function of (seed, position) alone; inputs broadcast.

    SplitMix64 (Steele et al. 2014) with a mixed seed, so that neighbouring seeds give unrelated streams. On
    the host: it costs microseconds, and keeps a counter-based generator out of every compiled decode program.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        state = _mix(seeds.astype(np.uint64) + _GAMMA) + positions.astype(np.uint64) * _GAMMA
        return ((_mix(state) >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sample_tokens(
    logits: Float[Array, "B V"],
    uniform: Float[Array, " B"],
    temperature: Float[Array, " B"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
    *,
    filtered: bool,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Sampled ids and their log-probs (nats).

    temperature 0 takes the argmax and reports its log-prob at temperature 1. Log-probs are those of
    softmax(logits / temperature) before top-k and top-p. filtered: whether any row uses top_k (> 0) or top_p
    (< 1), which costs a sort; rows that use neither are drawn alike either way.
    """
    greedy = temperature <= 0.0
    scaled = logits.astype(jnp.float32) / jnp.where(greedy, 1.0, temperature)[:, None]
    log_probs = jax.nn.log_softmax(scaled, axis=-1)
    mass = jnp.exp(log_probs)
    if filtered:
        mass = jnp.where(kept(mass, top_k, top_p), mass, 0.0)
    ids = jnp.where(greedy, jnp.argmax(scaled, axis=-1).astype(jnp.int32), invert(mass, uniform))
    return ids, jnp.take_along_axis(log_probs, ids[:, None], axis=-1)[:, 0]


def invert(mass: Float[Array, "B V"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """First id whose cumulated mass exceeds uniform × total; never one without mass.

    In two levels of about sqrt(V), each cumulated by a product with a triangle: a plain cumsum over V
    compiles ten times slower.
    """
    batch, vocab = mass.shape
    width = max(1, int(np.ceil(np.sqrt(vocab))))
    blocks = jnp.pad(mass, ((0, 0), (0, width * width - vocab))).reshape(batch, width, width)
    block_mass = jnp.sum(blocks, axis=-1)
    block, rest = _first_above(block_mass, uniform * jnp.sum(block_mass, axis=-1))
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    index, _ = _first_above(inside, rest)
    return block * width + index


def _first_above(
    mass: Float[Array, "B n"], target: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """First index with mass whose cumulated mass exceeds the target (the last with mass, when rounding leaves
    none), and what is left of the target there."""
    n = mass.shape[-1]
    triangle = jnp.asarray(np.triu(np.ones((n, n), np.float32)))
    total = jnp.matmul(mass, triangle, precision=jax.lax.Precision.HIGHEST)
    hit = (total > target[:, None]) & (mass > 0.0)
    last = n - 1 - jnp.argmax((mass > 0.0)[:, ::-1], axis=-1)
    index = jnp.where(jnp.any(hit, axis=-1), jnp.argmax(hit, axis=-1), last).astype(jnp.int32)
    before = jnp.take_along_axis(total - mass, index[:, None], axis=-1)[:, 0]
    return index, target - before


def kept(
    probs: Float[Array, "B V"], top_k: Int[Array, " B"], top_p: Float[Array, " B"]
) -> Bool[Array, "B V"]:
    """Which ids survive top-k, then top-p among those (the most likely always does). Ties go to the lower
    id."""
    order = jnp.argsort(-probs, axis=-1, stable=True)
    ranks = jnp.argsort(order, axis=-1)
    ordered = jnp.take_along_axis(probs, order, axis=-1)
    width = jnp.where(top_k > 0, top_k, probs.shape[-1])[:, None]
    inside = jnp.where(jnp.arange(probs.shape[-1])[None] < width, ordered, 0.0)
    inside = inside / jnp.sum(inside, axis=-1, keepdims=True)
    before = jnp.cumsum(inside, axis=-1) - inside
    survives = (before < top_p[:, None]) & (inside > 0.0)
    return jnp.take_along_axis(survives, ranks, axis=-1)
