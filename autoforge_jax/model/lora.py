"""Low-rank adapters (LoRA, arXiv 2106.09685): a frozen model, and per projection two thin matrices that are
trained in its place. ``x @ W + scale · (x @ A) @ B`` with ``scale = alpha / rank``; B starts at zero, so the
adapted model starts as the model.

Adapters lie in ``layers/`` beside their projection as ``NAME_lora_a`` [L, in, rank] and ``NAME_lora_b``
[L, rank, out], so that the scan over layers hands them to the layer that uses them (`qwen3.project`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from autoforge_jax.config import LoRAConfig
from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Weights, parameter_shapes, weights_of

Adapters = dict[str, Any]
"""``{"layers": {"query_lora_a": [L, in, r], "query_lora_b": [L, r, out], …}}``, float32: what is trained."""


def adapter_shapes(config: Qwen3Config, lora: LoRAConfig) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every adapter. WeightsError for a target that the model does not have (a mixture of
    experts has no gate, up and down of its own)."""
    shapes = parameter_shapes(config)
    out: dict[str, tuple[int, ...]] = {}
    for name in lora.targets:
        shape = shapes.get(f"layers/{name}")
        if shape is None:
            raise WeightsError(f"lora.targets: this model has no projection {name!r}; leave it out")
        depth, fan_in, fan_out = shape
        out[f"layers/{name}_lora_a"] = (depth, fan_in, lora.rank)
        out[f"layers/{name}_lora_b"] = (depth, lora.rank, fan_out)
    return out


def init_adapters(config: Qwen3Config, lora: LoRAConfig, seed: int) -> Adapters:
    """A is normal with variance 1/in, B zero; float32. Under `jax.jit` with shardings each device makes its
    own part."""
    key = jax.random.key(seed)
    layers: dict[str, Array] = {}
    for index, (path, shape) in enumerate(adapter_shapes(config, lora).items()):
        name = path.removeprefix("layers/")
        if name.endswith("_lora_b"):
            layers[name] = jnp.zeros(shape, jnp.float32)
        else:
            drawn = jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
            layers[name] = drawn * jnp.float32(shape[1] ** -0.5)
    return {"layers": layers}


def with_adapters(weights: Weights, adapters: Adapters, scale: float) -> Weights:
    """The weights that `qwen3.forward` reads, B scaled."""
    scaled = {
        name: value * jnp.asarray(scale, value.dtype) if name.endswith("_lora_b") else value
        for name, value in adapters["layers"].items()
    }
    return {**weights, "layers": {**weights["layers"], **scaled}}


@partial(jax.jit, static_argnums=2)
def merge(frozen: nnx.State, adapters: Adapters, scale: float) -> nnx.State:
    """The one model that computes the same, float32: for export and for engines. `frozen` and `adapters`
    stay as they are."""
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights_of(frozen))
    layers = dict(weights["layers"])
    for name, a in adapters["layers"].items():
        if name.endswith("_lora_a"):
            target = name.removesuffix("_lora_a")
            layers[target] = layers[target] + _product(a, adapters["layers"][f"{target}_lora_b"], scale)
    merged = jax.tree.map(lambda leaf: leaf, frozen)
    nnx.replace_by_pure_dict(merged, {**weights, "layers": layers})
    return merged


def _product(a: Float[Array, "L i r"], b: Float[Array, "L r o"], scale: float) -> Float[Array, "L i o"]:
    return jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST) * jnp.float32(scale)


def frozen_copy(params: nnx.State, config: Qwen3Config) -> nnx.State:
    """Parameters that are read only, in the compute type; norm scales stay float32, as they are used."""

    def cast(path: Any, leaf: jax.Array) -> jax.Array:
        return leaf if "norm" in jax.tree_util.keystr(path) else leaf.astype(config.dtype)

    return jax.tree_util.tree_map_with_path(cast, params)
