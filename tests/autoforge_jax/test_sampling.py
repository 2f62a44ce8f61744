"""The draw itself: inverse of the cumulative distribution, top-k, top-p, and the uniform numbers behind
them."""

import jax
import numpy as np

from autoforge_jax.numerics.sampling import invert, kept, uniforms


def test_uniforms_are_a_function_of_seed_and_position():
    seeds = np.array([[0], [1], [2**64 - 1]], np.uint64)
    table = uniforms(seeds, np.arange(5)[None])
    assert table.dtype == np.float32
    assert len(np.unique(table)) == 15
    np.testing.assert_array_equal(uniforms(seeds[1:2], np.array([[3]])), table[1:2, 3:4])
    # SplitMix64 by plain integers
    mask = 2**64 - 1

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    assert table[1, 4] == (mix((mix((1 + gamma) & mask) + 4 * gamma) & mask) >> 40) / 2**24


def test_uniforms_look_uniform_and_unrelated():
    table = uniforms(np.arange(2000, dtype=np.uint64)[:, None], np.arange(50)[None]).astype(np.float64)
    assert table.min() >= 0.0 and table.max() < 1.0
    counts = np.histogram(table, bins=20, range=(0, 1))[0]
    expected = table.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    for a, b in (
        (table[:-1], table[1:]),
        (table[:, :-1], table[:, 1:]),
    ):  # neighbouring seeds, neighbouring positions
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.015


def test_invert_equals_a_search_in_the_cumulated_mass():
    rng = np.random.default_rng(0)
    mass = rng.random((64, 37)).astype(np.float32) * (rng.random((64, 37)) < 0.4)
    mass[:, 20] += 0.01
    uniform = rng.random(64).astype(np.float32)
    uniform[:2] = 0.0, 1 - 2.0**-24
    got = np.asarray(jax.jit(invert)(mass, uniform))
    for row, u, i in zip(mass, uniform, got, strict=True):
        cumulated = np.cumsum(row.astype(np.float64))
        assert row[i] > 0
        assert cumulated[i] - row[i] - 1e-5 <= u * cumulated[-1] <= cumulated[i] + 1e-5


def test_kept_by_hand():
    probs = np.array([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], np.float32)

    def run(k, p):
        return np.asarray(jax.jit(kept)(probs, np.full(2, k, np.int32), np.full(2, p, np.float32))).tolist()

    assert run(0, 1.0) == [[True] * 4] * 2
    assert run(2, 1.0) == [[False, True, False, True], [True, True, False, False]]
    assert run(0, 0.65) == [[False, True, False, True], [True, True, True, False]]
    assert run(2, 0.5) == [
        [False, True, False, False],
        [True, False, False, False],
    ]  # 0.4/0.7 reaches 0.5 alone
    assert run(0, 1e-6) == [[False, True, False, False], [True, False, False, False]]
