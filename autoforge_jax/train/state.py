"""TrainState: everything an optimiser update reads and writes, as one pytree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from autoforge_jax import compilation
from autoforge_jax.model.sharding import Layout

Params = Any
"""A pytree of float32 arrays: ``nnx.split(model, nnx.Param)[1]``."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Parameters and optimiser state. A train step consumes it: its buffers are donated, use the returned
    one.
    """

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]
    """i32; optimiser updates applied. A skipped update does not count."""
    skipped: Int[Array, ""]
    """i32; updates left out because a gradient was not finite or there was nothing to learn from."""


def init_state(
    params: Params, optimizer: optax.GradientTransformation, layout: Layout | None = None
) -> TrainState:
    """A fresh state over a copy of `params`: the caller's arrays outlive the first (donating) step.

    With a layout every leaf is made where it belongs; no device ever holds the whole state.
    """
    if layout is not None:

        def make(params: Params) -> TrainState:
            zero = jnp.zeros((), jnp.int32)
            return TrainState(params, optimizer.init(params), zero, zero)

        shardings = layout.of_state(jax.eval_shape(make, params))
        return compilation.jit(make, out_shardings=shardings)(layout.place(params, shardings.params))
    params = copy_tree(params)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def copy_tree(tree: Any) -> Any:
    """A deep copy on the device: new buffers that XLA owns, so that they may be donated or outlive a
    donation.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)
