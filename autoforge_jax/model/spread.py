"""How the embedded engine's results lie over its devices (the active layout; nothing without one)."""

from __future__ import annotations

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from autoforge_jax.model.sharding import active_layout


def by_heads(x: Array, axis: int = 1) -> Array:
    """[N, K, …] (`axis` counts key/value heads) split over devices as the store's heads are, and by nothing
    else: left to itself the compiler splits tiles too, and sends every query from chip to chip and back."""
    layout = active_layout()
    if layout is None:
        return x
    axes = tuple("kv_heads" if i == axis else None for i in range(x.ndim))
    return jax.lax.with_sharding_constraint(x, layout.sharding("attention", axes, x.shape))


def whole_rows(logits: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """Logits that lie split by vocabulary, split by rows instead where that comes out even: one exchange, and
    each device draws for its own rows. Sums, sorts and draws over a split vocabulary take dozens."""
    layout = active_layout()
    if layout is None:
        return logits
    split = dict(layout.rules)["vocab"]
    even = logits.shape[0] % layout.split("vocab") == 0
    # The first line keeps the output matrix where it is: without it, it is gathered.
    for spec in (PartitionSpec(None, split), PartitionSpec(split if even else None)):
        logits = jax.lax.with_sharding_constraint(logits, NamedSharding(layout.mesh, spec))
    return logits


def everywhere(*arrays: Array) -> tuple[Array, ...]:
    """The arrays whole on every device."""
    layout = active_layout()
    if layout is None:
        return arrays
    return tuple(jax.lax.with_sharding_constraint(x, layout.replicated) for x in arrays)
