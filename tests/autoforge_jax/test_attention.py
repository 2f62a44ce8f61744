"""Segment attention against a float64 loop over queries."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.errors import ConfigError
from autoforge_jax.numerics.attention import segment_attention
from autoforge_jax.numerics.kernels import attend, choose_kernel, masked_attention, splash_attention

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


def test_bfloat16_has_the_gradients_of_float32(arrays):
    def gradients(dtype):
        def loss(q, k, v):
            out = segment_attention(q, k, v, jnp.asarray(SEGMENTS), chunk=5, by_row=True)
            return jnp.sum(jnp.sin(out.astype(jnp.float32)))

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*(jnp.asarray(x, dtype) for x in arrays))

    for got, want in zip(gradients(jnp.bfloat16), gradients(jnp.float32), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.03 * float(jnp.max(jnp.abs(want))))


def kernel_case(kernel):
    """(function of q, k, v, segments; its arguments) for one kernel. Splash takes blocks of 128 and has no
    shared prefix."""
    rng = np.random.default_rng(2)
    if kernel == "splash":
        segments = np.repeat(
            np.array([[2, 2, 3, 4, 0, 0, 5, 0], [2, 3, 3, 3, 3, 4, 4, 4]], np.int32), 16, axis=1
        )

        def function(q, k, v, segments):
            return splash_attention(q, k, v, segments, interpret=True)
    else:
        segments = SEGMENTS

        def function(q, k, v, segments):
            if kernel == "cudnn":  # the same code with XLA's product in place of the kernel
                return masked_attention(q, k, v, segments, implementation="xla")
            return attend(q, k, v, segments, kernel="xla", chunk=4)

    shape = segments.shape
    return function, [rng.normal(size=(*shape, n, 8)).astype(np.float32) for n in (4, 2, 2)], segments


@pytest.mark.parametrize("kernel", ["xla", "cudnn", "splash"])
def test_every_kernel_matches_the_loop_and_has_the_same_gradients(kernel):
    function, (q, k, v), segments = kernel_case(kernel)
    got = jax.jit(function)(q, k, v, segments)
    np.testing.assert_allclose(got, by_hand(q, k, v, segments), atol=5e-6)
    assert np.all(np.asarray(got)[segments == 0] == 0.0)
    weight = np.random.default_rng(3).normal(size=q.shape).astype(np.float32)

    def gradients(function):
        def loss(q, k, v):
            return jnp.sum(function(q, k, v, jnp.asarray(segments)) * weight)

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)

    def plain(q, k, v, segments):
        return segment_attention(q, k, v, segments, chunk=64)

    for a, b in zip(gradients(function), gradients(plain), strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_allclose(a, b, atol=2e-5)
        assert np.all(np.asarray(a)[segments == 0] == 0.0)


def test_cudnn_is_not_asked_for_a_gradient_of_the_mask(monkeypatch):
    """Nobody reads it, and cuDNN takes gigabytes for it. Traced only: this machine need not have cuDNN."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 92800)
    q, k, v = (jax.ShapeDtypeStruct((2, 64, n, 64), jnp.bfloat16) for n in (4, 2, 2))
    segments = jnp.ones((2, 64), jnp.int32)

    def loss(q, k, v):
        return jnp.sum(masked_attention(q, k, v, segments, implementation="cudnn").astype(jnp.float32))

    text = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v))
    assert "dot_product_attention_bwd" in text
    assert re.findall(r"variadic_args=\((\w+), (\w+)\)", text) == [("True", "False")] * 2, (
        "bias, its gradient"
    )
    assert fused_attention_stablehlo.should_export_dbias(None, None, None), "as JAX has it afterwards"


def test_keys_of_a_prefix_in_another_row_are_seen_by_the_masked_kernel_too():
    rng = np.random.default_rng(4)
    segments, keys = np.array([[2, 2, 3, 0]], np.int32), np.array([[1, 1, 0, 2, 2, 3, 0]], np.int32)
    q = rng.normal(size=(1, 4, 4, 8)).astype(np.float32)
    k, v = (rng.normal(size=(1, 7, 2, 8)).astype(np.float32) for _ in range(2))
    want = segment_attention(q, k, v, segments, chunk=4, key_segments=keys)
    got = masked_attention(q, k, v, segments, keys, implementation="xla")
    np.testing.assert_allclose(got, want, atol=3e-6)
    # splash has no such form: the call falls back
    np.testing.assert_allclose(attend(q, k, v, segments, kernel="splash", chunk=4, key_segments=keys), want)


def test_the_kernel_follows_the_platform_and_a_wrong_wish_says_why():
    def chosen(wanted, platform, dtype="bfloat16", head_dim=128, row_tokens=8192, shared=False):
        return choose_kernel(
            wanted,
            platform=platform,
            dtype=dtype,
            head_dim=head_dim,
            row_tokens=row_tokens,
            shared_prefixes=shared,
        )

    assert [chosen("auto", p) for p in ("gpu", "cuda", "tpu", "cpu")] == ["cudnn", "cudnn", "splash", "xla"]
    assert chosen("auto", "gpu", dtype="float32") == "xla" == chosen("xla", "gpu")
    assert chosen("auto", "gpu", shared=True) == "cudnn" and chosen("auto", "tpu", shared=True) == "xla"
    with pytest.raises(ConfigError, match=r"'splash', but .*share_prefix = false"):
        chosen("splash", "tpu", shared=True)
    with pytest.raises(ConfigError, match=r"row_tokens is 100, it takes multiples of 128"):
        chosen("splash", "tpu", row_tokens=100)
    with pytest.raises(
        ConfigError, match=r"'cudnn', but this machine has cpu, no NVIDIA GPU; model.dtype is float32"
    ):
        chosen("cudnn", "cpu", dtype="float32")
