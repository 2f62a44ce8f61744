"""Segment attention against a float64 loop over queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.numerics.attention import segment_attention

SEGMENTS = np.array(
    [
        [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0, 0],  # a prefix, two samples, padding at the end
        [2, 2, 2, 2, 0, 0, 3, 3, 3, 1, 1, 4],  # no leading prefix, padding inside, a late prefix
        [0] * 12,  # nothing but padding
    ],
    np.int32,
)


def by_hand(q, k, v, segments):
    """One query, one head at a time."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    batch, length, heads, width = q.shape
    out = np.zeros_like(q)
    for b in range(batch):
        for i in range(length):
            keys = [
                j
                for j in range(i + 1)
                if segments[b, i] != 0
                and segments[b, j] != 0
                and (segments[b, j] == segments[b, i] or segments[b, j] == 1)
            ]
            if not keys:
                continue
            for h in range(heads):
                shared = h // (heads // k.shape[2])
                scores = k[b, keys, shared] @ q[b, i, h] / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                out[b, i, h] = weights @ v[b, keys, shared] / weights.sum()
    return out


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, 12, heads, 8)).astype(np.float32) * 2 for heads in (4, 2, 2)]


@pytest.mark.parametrize("chunk", [3, 64])
def test_matches_a_loop_over_queries(arrays, chunk):
    q, k, v = arrays
    got = jax.jit(segment_attention, static_argnames="chunk")(q, k, v, SEGMENTS, chunk=chunk)
    np.testing.assert_allclose(got, by_hand(q, k, v, SEGMENTS), atol=3e-6)
    assert np.all(np.asarray(got)[2] == 0.0), "a row of padding gives zeros"


def test_gradients_do_not_depend_on_the_chunk_and_padding_has_none(arrays):
    def gradients(chunk):
        def loss(q, k, v):
            return jnp.sum(jnp.sin(segment_attention(q, k, v, jnp.asarray(SEGMENTS), chunk=chunk)))

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arrays)

    chunked, whole = gradients(3), gradients(12)
    for a, b in zip(chunked, whole, strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_allclose(a, b, atol=1e-5)
        assert np.all(np.asarray(a)[SEGMENTS == 0] == 0.0)


def test_gradient_agrees_with_finite_differences(arrays):
    q, k, v = (x[:1].astype(np.float64) for x in arrays)
    direction = np.random.default_rng(1).normal(size=k.shape)

    def loss(k):
        return float(np.sum(np.sin(by_hand(q, k, v, SEGMENTS[:1]))))

    expected = (loss(k + 1e-5 * direction) - loss(k - 1e-5 * direction)) / 2e-5
    q32, k32, v32 = (jnp.asarray(x, jnp.float32) for x in (q, k, v))
    segments = jnp.asarray(SEGMENTS[:1])
    grad = jax.jit(jax.grad(lambda k: jnp.sum(jnp.sin(segment_attention(q32, k, v32, segments, chunk=3)))))
    assert float(np.sum(np.asarray(grad(k32)) * direction)) == pytest.approx(expected, rel=1e-4)
