"""Whether a mesh, adapters and a start go with a model's shape. No JAX: said before anything is computed."""

from __future__ import annotations

import numpy as np

from autoforge_jax.config import LoRAConfig, MeshConfig
from autoforge_jax.errors import ConfigError, WeightsError
from autoforge_jax.model.config import Qwen3Config

STILL = 0.006
"""Radians per position: rotary pairs that turn more slowly compare content over a few hundred tokens."""


def check_mesh(config: MeshConfig, model: Qwen3Config, rows: int, *, vocabulary: bool = True) -> None:
    """What can be checked without devices; ConfigError that names the number to change.

    rows: of a micro-batch. vocabulary: False while the tokenizer has not been made that decides its size.
    """
    experts = model.experts
    mlp = ("model.intermediate_size", model.intermediate_size)
    lengths = [
        ("model.num_heads", model.num_heads),
        ("model.num_kv_heads", model.num_kv_heads),
        mlp if experts is None else ("model.experts.width", experts.width),
    ]
    if vocabulary:
        lengths.append(("vocabulary", model.vocab_size))
    for what, length in lengths:
        if length % config.tensor:
            raise ConfigError(
                f"mesh.tensor is {config.tensor}, which does not divide {what} = {length}; lower mesh.tensor "
                "and raise mesh.fsdp instead, or take another size"
            )
    if experts is None and config.expert > 1:
        raise ConfigError(f"mesh.expert is {config.expert}, but this model has no experts; set it to 1")
    if experts is not None and experts.count % config.expert:
        raise ConfigError(
            f"mesh.expert is {config.expert}, which does not divide model.experts.count = {experts.count}"
        )
    also = " × mesh.expert" if config.expert > 1 else ""
    shared = config.fsdp * config.expert
    if model.hidden_size % shared:
        raise ConfigError(
            f"mesh.fsdp{also} is {shared}, which does not divide model.hidden_size = {model.hidden_size}; "
            "lower it and raise mesh.data instead"
        )
    groups = config.data * shared
    if rows % groups:
        raise ConfigError(
            f"batch.rows_per_microbatch is {rows}; mesh.data × mesh.fsdp{also} = {groups} must "
            f"divide it, since each of these devices takes whole rows; set it to "
            f"{max(1, round(rows / groups)) * groups}, or choose another mesh"
        )


def check_devices(config: MeshConfig, devices: int, processes: int) -> None:
    """ConfigError when the mesh is of another number than the devices that the run's processes have together
    (one process may use one of several)."""
    if config.size == 1 and processes > 1:
        raise ConfigError(
            f"mesh: one device, but {processes} processes; set mesh.data or mesh.fsdp so that the product is "
            f"{devices}"
        )
    if config.size > 1 and config.size != devices:
        raise ConfigError(
            f"mesh: {config.describe()} is {config.size} devices, this run has {devices}; the "
            "product of the axes must be their number"
        )


def check_targets(lora: LoRAConfig, model: Qwen3Config) -> None:
    """ConfigError for an adapter on a projection that the model does not have."""
    missing = [name for name in lora.targets if name in ("gate", "up", "down")]
    if lora.rank and model.experts is not None and missing:
        raise ConfigError(
            f"lora.targets names {', '.join(missing)}, which a model with experts does not have; use "
            '["query", "key", "value", "output"]'
        )


def still_pairs(model: Qwen3Config) -> np.ndarray:
    """Indices of the channels of a head whose rotary pair turns by less than `STILL` per position."""
    half = model.head_dim // 2
    frequencies = model.rope_theta ** (-np.arange(half) / half)
    return np.flatnonzero(np.concatenate([frequencies, frequencies]) < STILL)


def check_retrieval(model: Qwen3Config) -> None:
    """WeightsError when the shape leaves no room for `model.init = "retrieval"`: fewer than 2 layers or 4
    key/value heads, fewer than 4 rotary pairs that stand still (raise `rope_theta` or `head_dim`), or
    embeddings that are not tied."""
    still = still_pairs(model)
    if model.num_layers < 2 or model.num_kv_heads < 4 or still.size < 8 or model.hidden_size < 64:
        raise WeightsError(
            f"model.init = 'retrieval' got {model.num_layers} layers, {model.num_kv_heads} "
            "key/value heads, "
            f"{model.hidden_size} channels and {still.size // 2} rotary pairs below {STILL} radians per "
            "position; it needs at least 2, 4, 64 and 4 (raise rope_theta or head_dim for more slow pairs)"
        )
    if not model.tie_embeddings:
        raise WeightsError(
            "model.init = 'retrieval' copies through tied embeddings; set tie_embeddings = true"
        )
