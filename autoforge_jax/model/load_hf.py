"""Read a Hugging Face Qwen3 or Llama folder (config.json + safetensors) into our parameter tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from safetensors import SafetensorError, safe_open

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3, Weights, parameter_shapes

LAYER_NAMES: dict[str, tuple[str, bool]] = {
    "input_norm": ("input_layernorm.weight", False),
    "query": ("self_attn.q_proj.weight", True),
    "key": ("self_attn.k_proj.weight", True),
    "value": ("self_attn.v_proj.weight", True),
    "query_norm": ("self_attn.q_norm.weight", False),
    "key_norm": ("self_attn.k_norm.weight", False),
    "output": ("self_attn.o_proj.weight", True),
    "post_norm": ("post_attention_layernorm.weight", False),
    "gate": ("mlp.gate_proj.weight", True),
    "up": ("mlp.up_proj.weight", True),
    "down": ("mlp.down_proj.weight", True),
}
"""Our name in ``layers/`` -> (name under ``model.layers.N.``, whether the two are transposes). A Llama has no
query and key norms."""
TOP_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}


def read_hf_config(folder: Path) -> Qwen3Config:
    """`config.json` of a folder; WeightsError when it is absent, broken or of another architecture."""
    path = Path(folder) / "config.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; expected a Hugging Face model folder") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WeightsError(f"{path} is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise WeightsError(f"{path} holds {type(tree).__name__}, expected an object")
    return Qwen3Config.from_hf(tree)


def load_hf(folder: Path, config: Qwen3Config | None = None) -> nnx.State:
    """The parameters of the model in `folder`, float32, with the structure of ``nnx.split(Qwen3(config),
    nnx.Param)[1]``.

    config: what the caller expects; read from the folder when None. Raises WeightsError that names the tensor
    when one is missing, unknown, or of another shape, and the key when `config` and the folder's config.json
    disagree.
    """
    folder = Path(folder)
    stored = read_hf_config(folder)
    config = config or stored
    # what no tensor's shape can show
    for name in ("architecture", "tie_embeddings", "rope_theta", "rope_scaling", "rms_norm_eps"):
        if getattr(config, name) != getattr(stored, name):
            raise WeightsError(
                f"{folder.name}/config.json: {name} is {getattr(stored, name)}, the run expects "
                f"{getattr(config, name)}"
            )
    tensors = _read_tensors(folder)
    if config.tie_embeddings:
        _drop_tied_copy(tensors)
    expected = hf_shapes(config)
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        raise WeightsError(f"{folder.name}: missing tensors {missing[:5]}, unknown tensors {extra[:5]}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise WeightsError(f"{folder.name}: {name} has shape {tensors[name].shape}, expected {shape}")
    of_layer = {name: LAYER_NAMES[name] for name in layer_names(config)}
    weights: Weights = {ours: tensors[theirs] for ours, theirs in TOP_NAMES.items() if theirs in expected}
    weights["layers"] = {
        ours: jnp.stack(
            [
                tensors[f"model.layers.{i}.{theirs}"].T
                if transposed
                else tensors[f"model.layers.{i}.{theirs}"]
                for i in range(config.num_layers)
            ]
        )
        for ours, (theirs, transposed) in of_layer.items()
    }
    _, params = nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))), nnx.Param)
    nnx.replace_by_pure_dict(params, weights)
    return params


def layer_names(config: Qwen3Config) -> tuple[str, ...]:
    """The names of `LAYER_NAMES` that a model has, in file order."""
    ours = parameter_shapes(config)
    return tuple(name for name in LAYER_NAMES if f"layers/{name}" in ours)


def hf_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor of the model, in file order."""
    ours = parameter_shapes(config)
    shapes = {TOP_NAMES["embedding"]: ours["embedding"]}
    for i in range(config.num_layers):
        for name in layer_names(config):
            theirs, transposed = LAYER_NAMES[name]
            shape = ours[f"layers/{name}"][1:]
            shapes[f"model.layers.{i}.{theirs}"] = shape[::-1] if transposed else shape
    shapes[TOP_NAMES["final_norm"]] = ours["final_norm"]
    if "lm_head" in ours:
        shapes[TOP_NAMES["lm_head"]] = ours["lm_head"]
    return shapes


def _read_tensors(folder: Path) -> dict[str, jax.Array]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{folder}: no *.safetensors file; other formats are not read")
    tensors: dict[str, jax.Array] = {}
    for path in files:
        try:
            with safe_open(path, framework="flax") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    if name in tensors:
                        raise WeightsError(f"{path.name}: tensor {name} stands in more than one file")
                    tensors[name] = _widen(file.get_tensor(name), name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: not a readable safetensors file: {error}") from error
    return tensors


def _widen(value: Any, name: str) -> jax.Array:
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise WeightsError(
            f"tensor {name} is {value.dtype}, expected a floating type; quantised weights are not read"
        )
    return jnp.asarray(value).astype(jnp.float32)


def _drop_tied_copy(tensors: dict[str, jax.Array]) -> None:
    """Some writers store the tied output matrix too. A true copy is redundant; another matrix means it was
    not tied."""
    head, embedding = tensors.get(TOP_NAMES["lm_head"]), tensors.get(TOP_NAMES["embedding"])
    if head is None or embedding is None:
        return
    if head.shape != embedding.shape or not bool(jnp.all(head == embedding)):
        raise WeightsError(
            "lm_head.weight differs from the embedding although config.json says they are tied"
        )
    del tensors[TOP_NAMES["lm_head"]]
