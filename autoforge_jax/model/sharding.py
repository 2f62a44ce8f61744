"""Logical axis names -> mesh axes: how parameters, optimiser state, batches and activations lie on devices.

Every array names its axes (`LOGICAL_AXES`); one table (`RULES`) says which mesh axes each name is split over;
`Layout.spec` joins the two and refuses what cannot be: two axes of one array on the same mesh axis, or a
length that its mesh axes do not divide. `data` repeats parameters, `fsdp` splits them over the devices that
share the rows, `tensor` splits heads, the hidden layer of the MLP and the vocabulary, `expert` splits
experts, and everything else as `fsdp` does.

On one device there is no layout (`make_layout` returns None) and every function here is the identity, so the
one-device programs are those of a library without meshes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey, keystr, tree_flatten_with_path

from autoforge_jax.config import MeshConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.fit import check_devices, check_mesh

LOGICAL_AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", "embed"),
    "lm_head": ("vocab", "embed"),
    "final_norm": ("embed",),
    "layers/input_norm": ("layers", "embed"),
    "layers/query": ("layers", "embed", "heads"),
    "layers/key": ("layers", "embed", "kv_heads"),
    "layers/value": ("layers", "embed", "kv_heads"),
    "layers/query_norm": ("layers", None),
    "layers/key_norm": ("layers", None),
    "layers/output": ("layers", "heads", "embed"),
    "layers/post_norm": ("layers", "embed"),
    "layers/gate": ("layers", "embed", "mlp"),
    "layers/up": ("layers", "embed", "mlp"),
    "layers/down": ("layers", "mlp", "embed"),
    "layers/router": ("layers", "embed", None),
    "layers/expert_gate": ("layers", "experts", "expert_embed", "mlp"),
    "layers/expert_up": ("layers", "experts", "expert_embed", "mlp"),
    "layers/expert_down": ("layers", "experts", "mlp", "expert_embed"),
}
LOGICAL_AXES |= {
    f"layers/{name}_lora_{side}": ("layers", *ends)
    for name in ("query", "key", "value", "output", "gate", "up", "down")
    for side, ends in (
        ("a", (LOGICAL_AXES[f"layers/{name}"][1], None)),
        ("b", (None, LOGICAL_AXES[f"layers/{name}"][2])),
    )
}
"""Path of the parameter -> one name per axis (None: never split). `heads` and `kv_heads` count heads ×
head_dim, so a mesh axis on them must divide the number of heads."""

RULES: dict[str, tuple[str, ...]] = {
    "rows": ("data", "fsdp", "expert"),
    "vocab": ("tensor",),
    "embed": ("fsdp", "expert"),
    "expert_embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "experts": ("expert",),
    "layers": (),
}
"""Logical axis -> the mesh axes that it is split over. `rows` is the first axis of a batch and of
activations; `experts` is the leading axis of expert weights. Outside the experts the `expert` axis is one
more `fsdp`: rows and parameters are split over it (model.moe)."""

MESH_AXES = ("data", "fsdp", "tensor", "expert")
"""Slowest to fastest over the devices, except that `tensor`, which talks most, should lie within a host."""


@dataclass(frozen=True)
class Layout:
    """A mesh and the table that maps logical axes onto it. Hashable: a static part of compiled programs."""

    mesh: Mesh
    rules: tuple[tuple[str, tuple[str, ...]], ...] = tuple(RULES.items())

    def split(self, axis: str) -> int:
        """Number of parts that a logical axis is cut into."""
        return math.prod(self.mesh.shape[name] for name in dict(self.rules).get(axis, ()))

    def spec(self, name: str, axes: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """The partition of one array. ConfigError for an axis without a rule, two axes on one mesh axis
        (names both), or a length that the mesh axes do not divide."""
        rules = dict(self.rules)
        owner: dict[str, str] = {}
        parts: list[tuple[str, ...] | None] = []
        for axis, length in zip(axes, shape, strict=True):
            if axis is not None and axis not in rules:
                raise ConfigError(f"{name}: axis {axis!r} has no sharding rule; known: {sorted(rules)}")
            mine = () if axis is None else rules[axis]
            for mesh_axis in mine:
                if mesh_axis in owner:
                    raise ConfigError(
                        f"{name}: axes {owner[mesh_axis]!r} and {axis!r} are both split over mesh axis "
                        f"{mesh_axis!r}; one array can use it once, so change one of the two rules"
                    )
                owner[mesh_axis] = str(axis)
            count = math.prod(self.mesh.shape[n] for n in mine)
            if length % count:
                raise ConfigError(
                    f"{name}: axis {axis!r} has length {length}, which mesh axes {'×'.join(mine)} = {count} "
                    "do not divide; choose another mesh"
                )
            parts.append(tuple(n for n in mine if self.mesh.shape[n] > 1) or None)
        return PartitionSpec(*parts)

    def sharding(self, name: str, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """`spec` on this mesh."""
        return NamedSharding(self.mesh, self.spec(name, axes, shape))

    @property
    def replicated(self) -> NamedSharding:
        """The whole array on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def rows(self) -> NamedSharding:
        """First axis over the row axes."""
        return NamedSharding(self.mesh, PartitionSpec(dict(self.rules)["rows"]))

    def of_rows(self, value: Any) -> NamedSharding:
        """First axis over the row axes when they divide it (a batch's rows always; shared prefixes where they
        can), else replicated."""
        shape = np.shape(value)
        if not shape or shape[0] % self.split("rows"):
            return self.replicated
        return self.sharding("batch", ("rows", *(None,) * (len(shape) - 1)), shape)

    def of_state(self, tree: Any, model_axes: Mapping[str, Sequence[str | None]] = LOGICAL_AXES) -> Any:
        """Shardings of parameters, gradients or an optimiser state (arrays or their shapes).

        A leaf belongs to the parameter whose path its own path ends with, when the ranks agree (moments of
        AdamW and Muon); everything else (counts, scalars) is replicated.
        """
        leaves, structure = tree_flatten_with_path(tree)
        return jax.tree.unflatten(structure, [self._of_leaf(path, leaf, model_axes) for path, leaf in leaves])

    def _of_leaf(self, path: Any, leaf: Any, model_axes: Mapping[str, Sequence[str | None]]) -> NamedSharding:
        name = path_name(path)
        shape = np.shape(leaf)
        for parameter, axes in model_axes.items():
            if (name == parameter or name.endswith("/" + parameter)) and len(shape) == len(axes):
                return self.sharding(name, axes, shape)
        return self.replicated

    def place(self, tree: Any, shardings: Any) -> Any:
        """Put host values (equal in every process) or arrays on the mesh; each process writes its part."""
        return jax.tree.map(self._place_leaf, tree, shardings)

    def _place_leaf(self, value: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
            return value
        host = np.asarray(value)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    @contextmanager
    def active(self) -> Iterator[None]:
        """While a program is traced: `constrain` and `over_rows` follow this layout."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[Layout | None] = ContextVar("layout", default=None)


def active_layout() -> Layout | None:
    """The layout that the program being traced is for; None on one device."""
    return _ACTIVE.get()


def constrain(x: jax.Array) -> jax.Array:
    """Activations [rows, …] stay split by rows and whole otherwise, so that it is the weights that travel."""
    layout = active_layout()
    return x if layout is None else jax.lax.with_sharding_constraint(x, layout.of_rows(x))


def gather_for_lookup(table: jax.Array) -> jax.Array:
    """An embedding table [vocab, D] before rows are looked up: whole in D, still split by vocabulary. Without
    it the compiler gathers the activations instead, on every device."""
    layout = active_layout()
    if layout is None:
        return table
    sharding = layout.sharding("embedding lookup", ("vocab", None), table.shape)
    return jax.lax.with_sharding_constraint(table, sharding)


def over_rows(function: Callable[..., Any], by_rows: Sequence[bool]) -> Callable[..., Any]:
    """`function` of arrays, run by each group of devices on its own rows; the result is split by rows.

    `by_rows` says which arguments have a leading row axis; the others come whole (and their gradients are
    summed). The mesh axes that are not row axes stay with the compiler. The identity on one device.
    """
    layout = active_layout()
    if layout is None or layout.split("rows") == 1:
        return function
    axes = dict(layout.rules)["rows"]
    rows, whole = PartitionSpec(axes), PartitionSpec()
    return jax.shard_map(
        function,
        mesh=layout.mesh,
        in_specs=tuple(rows if by else whole for by in by_rows),
        out_specs=rows,
        axis_names=set(axes),
        check_vma=False,
    )


def row_axes() -> tuple[str, ...]:
    """Mesh axes that `over_rows` maps over; empty when it is the identity."""
    layout = active_layout()
    return () if layout is None or layout.split("rows") == 1 else dict(layout.rules)["rows"]


def path_name(path: tuple[Any, ...]) -> str:
    """``layers/query`` for a leaf of an `nnx.State` and of its plain dict alike, with any prefix it has."""
    return keystr(
        tuple(key for key in path if not (isinstance(key, GetAttrKey) and key.name == "value")),
        simple=True,
        separator="/",
    )


def make_layout(
    config: MeshConfig, model: Qwen3Config, rows: int, devices: Sequence[Any] | None = None
) -> Layout | None:
    """The layout that `[mesh]` describes over this run's devices; None for a mesh of one.

    rows: rows of a micro-batch. devices: others than all of this run's. ConfigError when the mesh does not
    fit the devices, the model or the rows.
    """
    check_mesh(config, model, rows)
    found = jax.devices() if devices is None else list(devices)
    check_devices(config, len(found), jax.process_count())
    if config.size == 1:
        return None
    shape = tuple(getattr(config, name) for name in MESH_AXES)
    return Layout(device_mesh(shape, found))


def device_mesh(sizes: Sequence[int], devices: Sequence[Any]) -> Mesh:
    """Devices in the order that suits their links; sizes: of `MESH_AXES`.

    A mesh axis may take a part of a physical one (8 of a 4 × 4 × 4 torus), which `jax.make_mesh` refuses.
    Slices of TPUs, and hosts of GPUs, that only the data-centre network joins are spread over `data`, else
    over `fsdp`. ConfigError when neither is a multiple of their number.
    """
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices == 1:
        placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    else:
        named = dict(zip(MESH_AXES, sizes, strict=True))
        over = next((axis for axis in ("data", "fsdp") if named[axis] % slices == 0), None)
        if over is None:
            raise ConfigError(
                f"mesh: data is {named['data']} and fsdp {named['fsdp']}, but the devices are {slices} "
                f"slices or hosts that only the network joins; one of the two must be a multiple of {slices}"
            )
        across = [slices if axis == over else 1 for axis in MESH_AXES]
        within = [size // count for size, count in zip(sizes, across, strict=True)]
        placed = mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def gather_to_host(tree: Any) -> Any:
    """Every array whole, as numpy, in every process: one leaf at a time, by all processes together."""
    return jax.tree.map(_gather, tree)


def _gather(leaf: jax.Array) -> np.ndarray:
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        return np.asarray(leaf)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
