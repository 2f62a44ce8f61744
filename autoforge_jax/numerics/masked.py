"""Masked reductions that refuse to broadcast and define the empty mask.

A value under a False mask is never read: NaN or inf there does not reach the result. Its *gradient* is
another matter: `where` selects with a zero cotangent, but a function upstream of a masked inf or NaN may
still multiply that zero by inf. Compute masked values safely (clamp before exp, or pick safe inputs where the
mask is False) instead of relying on the mask.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped


def require_same_shape(**arrays: jax.Array | None) -> None:
    """Raise ValueError unless all named arrays (None is skipped) have one shape: nothing here broadcasts."""
    shapes = {name: jnp.shape(value) for name, value in arrays.items() if value is not None}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"arrays must have one shape, got {shapes}; nothing is broadcast here: reshape or repeat "
            "explicitly"
        )


def masked_sum(values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Float[Array, ""]:
    """Sum of `values` where `mask`; 0 for an empty mask. Shapes must be equal (ValueError), the mask boolean
    (TypeError).
    """
    _check(values, mask)
    return jnp.sum(jnp.where(mask, values, jnp.zeros((), values.dtype)))


def masked_sums(
    parts: dict[str, tuple[Shaped[Array, "*shape"], Bool[Array, "*shape"]]],
) -> dict[str, Float[Array, ""]]:
    """`masked_sum` of each (values, mask), all of one shape: one reduction, and on a mesh one exchange, for
    all of them. Values of any type (booleans are counted) are added as float32. Raises as `masked_sum`.
    """
    for values, mask in parts.values():
        _check(values, mask)
    require_same_shape(**{name: values for name, (values, _) in parts.items()})
    zero = jnp.zeros((), jnp.float32)
    stacked = jnp.stack([jnp.where(mask, v.astype(jnp.float32), zero) for v, mask in parts.values()])
    totals = jnp.sum(stacked, axis=tuple(range(1, stacked.ndim)))
    return dict(zip(parts, totals, strict=True))


def masked_mean(
    values: Float[Array, "*shape"], mask: Bool[Array, "*shape"], *, empty: float = 0.0
) -> Float[Array, ""]:
    """Mean of `values` where `mask`; `empty` (with gradient 0) for an empty mask. Raises as `masked_sum`."""
    total = masked_sum(values, mask)
    count = jnp.sum(mask.astype(values.dtype))
    one = jnp.ones((), values.dtype)
    return jnp.where(count > 0, total / jnp.maximum(count, one), jnp.asarray(empty, values.dtype))


def masked_max(
    values: Float[Array, "*shape"], mask: Bool[Array, "*shape"], *, empty: float = 0.0
) -> Float[Array, ""]:
    """Maximum of `values` where `mask`; `empty` for an empty mask. Raises as `masked_sum`."""
    _check(values, mask)
    top = jnp.max(jnp.where(mask, values, jnp.full((), -jnp.inf, values.dtype)), initial=-jnp.inf)
    return jnp.where(jnp.any(mask), top, jnp.asarray(empty, values.dtype))


def _check(values: jax.Array, mask: jax.Array) -> None:
    require_same_shape(values=values, mask=mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(
            f"mask must be boolean, got {mask.dtype}; write `weights > 0` so that the meaning is said"
        )
