"""Masked reductions against numpy, under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.numerics.masked import (
    masked_max,
    masked_mean,
    masked_sum,
    masked_sums,
    require_same_shape,
)

VALUES = np.array([[1.0, np.nan, -3.0], [np.inf, 5.0, 2.0]], np.float32)
MASK = np.array([[True, False, True], [False, True, False]])


@pytest.mark.parametrize(("function", "expected"), [(masked_sum, 3.0), (masked_mean, 1.0), (masked_max, 5.0)])
def test_values_off_the_mask_are_never_read(function, expected) -> None:  # type: ignore[no-untyped-def]
    assert float(jax.jit(function)(VALUES, MASK)) == expected


def test_many_sums_are_each_as_one() -> None:
    parts = {"values": (VALUES, MASK), "nothing": (VALUES, ~MASK & False), "count": (MASK, MASK)}
    sums = jax.jit(masked_sums)(parts)
    assert {name: float(total) for name, total in sums.items()} == {
        "values": 3.0,
        "nothing": 0.0,
        "count": 3.0,
    }
    assert all(total.dtype == jnp.float32 for total in sums.values())
    with pytest.raises(ValueError, match="must have one shape"):
        masked_sums({"a": (jnp.ones((2, 3)), jnp.ones((2, 3), bool)), "b": (jnp.ones(3), jnp.ones(3, bool))})
    with pytest.raises(TypeError, match="must be boolean"):
        masked_sums({"a": (jnp.ones((2, 3)), jnp.ones((2, 3)))})


def test_empty_mask_is_defined_and_has_no_gradient() -> None:
    nothing = np.zeros_like(MASK)
    assert float(masked_sum(jnp.asarray(VALUES), jnp.asarray(nothing))) == 0.0
    assert float(jax.jit(lambda v, m: masked_mean(v, m, empty=7.0))(VALUES, nothing)) == 7.0
    assert float(jax.jit(lambda v, m: masked_max(v, m, empty=-1.0))(VALUES, nothing)) == -1.0
    gradient = jax.jit(jax.grad(masked_mean))(jnp.ones((2, 3)), nothing)
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))
    assert float(masked_max(jnp.zeros((0,)), jnp.zeros((0,), bool), empty=3.0)) == 3.0


def test_gradient_of_the_mean() -> None:
    gradient = jax.jit(jax.grad(masked_mean))(jnp.asarray(VALUES), MASK)
    np.testing.assert_allclose(gradient, MASK / 3)


@pytest.mark.parametrize("function", [masked_sum, masked_mean, masked_max])
def test_nothing_is_broadcast(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="must have one shape"):
        function(jnp.ones((2, 3)), jnp.ones((2,), bool))
    with pytest.raises(ValueError, match="must have one shape"):
        function(jnp.ones((2, 3)), jnp.ones((2, 1), bool))
    with pytest.raises(TypeError, match="must be boolean"):
        function(jnp.ones((2, 3)), jnp.ones((2, 3)))


def test_require_same_shape_skips_none() -> None:
    require_same_shape(a=jnp.ones(3), b=None)
