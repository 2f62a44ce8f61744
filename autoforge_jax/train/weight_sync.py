"""Learner -> engine, with proof of arrival: what every hand-over reports, and the one in one process
(`train.disk_sync`: to servers).

The learner's buffers are donated by its next update, so an engine copies what it is given. A checksum per
leaf is computed on the learner's side before and on the engine's side after; any difference is a WeightsError
that names the leaf (DESIGN.md §10).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.sharding import path_name
from autoforge_jax.train.state import Params


class WeightTarget(Protocol):
    """What an engine offers: take parameters under a version, and show what it holds."""

    @property
    def version(self) -> int:
        """Version of the parameters in use."""
        ...

    @property
    def weights(self) -> Params:
        """The parameters in use, as they arrived. Leaf names must be those that were loaded."""
        ...

    def load(self, params: Params, version: int) -> None:
        """Use a copy of these parameters from now on; drops every cache made with others."""
        ...


@dataclass(frozen=True)
class SyncReport:
    """One hand-over."""

    version: int
    leaves: int
    """Tensors whose checksum was compared."""
    checksum: int
    """Of all leaves, 32 bits; equal parameters have equal checksums."""
    seconds: float
    bytes: int = 0
    """Written to disk for it."""
    write_seconds: float = 0.0
    """Of `seconds`: copying from the device, hashing and writing."""


def sync_weights(params: Params, version: int, engine: WeightTarget) -> SyncReport:
    """Hand `params` over to `engine` as `version` and verify what arrived, leaf by leaf.

    Raises WeightsError when the engine reports another version, another structure, or other bytes.
    """
    start = time.perf_counter()
    sent = leaf_checksums(params)
    engine.load(params, version)
    if engine.version != version:
        raise WeightsError(
            f"engine reports policy version {engine.version} after loading {version}; the weights were not "
            "taken over"
        )
    arrived = leaf_checksums(engine.weights)
    if sent.keys() != arrived.keys():
        names = sorted(sent.keys() ^ arrived.keys())[:4]
        raise WeightsError(
            f"engine holds other parameters than it was given, e.g. {names}; do the model definitions differ?"
        )
    wrong = [name for name in sent if sent[name] != arrived[name]]
    if wrong:
        raise WeightsError(
            f"{len(wrong)} of {len(sent)} parameters arrived changed, first {wrong[0]}; cast or "
            "transformed after load?"
        )
    return SyncReport(version, len(sent), total_checksum(sent), time.perf_counter() - start)


def total_checksum(leaves: Mapping[str, int]) -> int:
    """One 32-bit number of all leaves' checksums, in their order."""
    total = 0
    for value in leaves.values():
        total = (total * 31 + value) % 2**32
    return total


def leaf_checksums(params: Params) -> dict[str, int]:
    """Path -> 32-bit checksum of the leaf's bits, computed on its device. Sensitive to the value and place of
    every element.
    """
    paths = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    return dict(zip(paths, checksums(jax.tree.leaves(params)), strict=True))


def checksums(leaves: Sequence[jax.Array]) -> list[int]:
    """One 32-bit checksum per array, computed where it lies; a mesh, also one of several processes, gives
    what one device gives."""
    values: Any = jax.device_get(_checksums(list(leaves)))
    return [int(value) for value in values]


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(leaf) for leaf in leaves]


def _checksum(leaf: jax.Array) -> jax.Array:
    width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(leaf, width).astype(jnp.uint32)
    # The place of an element, counted along every axis: flattened, an array that is split over a mesh would
    # have to be gathered first.
    place = jnp.zeros(leaf.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(leaf.ndim)):
        place += jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= leaf.shape[axis]
    # Odd multipliers are invertible modulo 2^32: no single changed element can cancel out.
    return jnp.sum(bits * (place * jnp.uint32(2_654_435_762) + jnp.uint32(1)), dtype=jnp.uint32)
