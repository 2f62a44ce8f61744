"""How the embedded engine lies on the learner's devices: weights and key/value store over `tensor`.

An engine lives within one process, on the devices of the learner's mesh that belong to it; several processes
have an engine each. There `tensor` splits heads, MLP, vocabulary and the cached keys and values; the devices
of other axes hold copies. The rows of the learner's `fsdp` are gathered when weights are handed over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from autoforge_jax.model.cached import KVStore
from autoforge_jax.model.sharding import MESH_AXES, RULES, Layout, device_mesh

ENGINE_RULES = RULES | {"rows": (), "embed": ()}
"""The learner's table without what splits by rows or gathers weights."""
STORE_AXES = {
    "keys": ("layers", None, "kv_heads", None, None),
    "values": ("layers", None, "kv_heads", None, None),
}
"""Logical axes of `KVStore`."""


def engine_layout(learner: Layout | None) -> Layout | None:
    """The layout of this process's engine; None on one device.

    `tensor` is the learner's, or what of it lies within this process.
    """
    if learner is None:
        return None
    own = [d for d in learner.mesh.devices.flat if d.process_index == jax.process_index()]
    return layout_over(own, int(learner.mesh.shape["tensor"])) if len(own) > 1 else None


def layout_over(devices: Sequence[Any], tensor: int) -> Layout:
    """The layout of an engine on these devices, when the learner's mesh has so many in `tensor`."""
    tensor = engine_tensor(tensor, len(devices))
    sizes = {"data": len(devices) // tensor, "tensor": tensor}
    shape = tuple(sizes.get(name, 1) for name in MESH_AXES)
    return Layout(device_mesh(shape, devices), tuple(ENGINE_RULES.items()))


def engine_tensor(tensor: int, devices: int) -> int:
    """How many of a process's devices share one copy of the engine."""
    return math.gcd(tensor, devices)


def store_shardings(layout: Layout, store: KVStore) -> KVStore:
    """Where the parts of a store (arrays or shapes) lie."""
    parts: dict[str, NamedSharding] = {
        name: layout.sharding(f"store {name}", axes, getattr(store, name).shape)
        for name, axes in STORE_AXES.items()
    }
    return KVStore(**parts)  # type: ignore[arg-type]  # shardings in the places of arrays


def hand_over(layout: Layout | None, weights: Any) -> Any:
    """A copy of the learner's weights where the engine wants them: a train step may donate its own."""
    if layout is None:
        return jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), weights)
    return jax.tree.map(
        lambda leaf, place: jax.device_put(leaf, place, may_alias=False), weights, layout.of_state(weights)
    )
