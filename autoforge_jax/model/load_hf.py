"""Read a Hugging Face Qwen3 or Llama folder (config.json + safetensors) into our parameter tree, straight
onto the devices: each reads its own piece of each parameter, so that a host never holds more than the pieces
of one parameter beside what its devices hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.hf_config import read_hf_config
from autoforge_jax.model.hf_files import HFTensors
from autoforge_jax.model.qwen3 import Qwen3, parameter_shapes
from autoforge_jax.model.sharding import LOGICAL_AXES, Layout

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
    "router": ("mlp.gate.weight", True),
    "expert_gate": ("mlp.experts.{}.gate_proj.weight", True),
    "expert_up": ("mlp.experts.{}.up_proj.weight", True),
    "expert_down": ("mlp.experts.{}.down_proj.weight", True),
}
"""Our name in ``layers/`` -> (name under ``model.layers.N.``, whether the two are transposes). ``{}`` stands
for the expert, whose axis comes second in our array. A model has those whose shapes it has. A Llama has no
query and key norms."""
TOP_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}


def load_hf(
    folder: Path,
    config: Qwen3Config | None = None,
    layout: Layout | None = None,
    dtype: Any = jnp.float32,
) -> nnx.State:
    """The parameters of the model in `folder`, with the structure of ``nnx.split(Qwen3(config),
    nnx.Param)[1]``.

    config: what the caller expects; read from the folder when None. layout: where they go; one device when
    None. dtype: other than the masters' float32 for weights that are not trained. Raises WeightsError that
    names the tensor when one is missing, unknown, or of another shape, and the key when `config` and the
    folder's config.json disagree.
    """
    folder = Path(folder)
    stored = read_hf_config(folder)
    config = config or stored
    # what no tensor's shape can show
    for name in ("architecture", "tie_embeddings", "rope_theta", "rope_scaling", "rms_norm_eps"):
        _must_agree(folder, name, getattr(config, name), getattr(stored, name))
    if config.experts and stored.experts:
        for name in ("per_token", "normalise"):
            _must_agree(folder, f"experts.{name}", *(getattr(c.experts, name) for c in (config, stored)))
    _, params = nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))), nnx.Param)
    with HFTensors(folder) as tensors:
        _check_tensors(tensors, config)
        weights: dict[str, Any] = {"layers": {}}
        for path, shape in parameter_shapes(config).items():
            piece = partial(_piece, tensors, path, shape, np.dtype(dtype))
            group, _, name = path.rpartition("/")
            if layout is None:
                # Not bound to its device, as freshly drawn parameters are not: a step that got both kinds
                # would compile once more when all of its state is bound.
                array = jnp.array(piece((slice(None),) * len(shape)))
            else:
                sharding = layout.sharding(path, LOGICAL_AXES[path], shape)
                array = jax.make_array_from_callback(shape, sharding, piece)
            (weights[group] if group else weights)[name] = array
    nnx.replace_by_pure_dict(params, weights)
    return params


def hf_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor of the model, in file order."""
    ours = parameter_shapes(config)
    shapes = {TOP_NAMES["embedding"]: ours["embedding"]}
    for layer in range(config.num_layers):
        for name, (_, transposed) in LAYER_NAMES.items():
            if (path := f"layers/{name}") in ours:
                for theirs, inner in layer_tensors(path, ours[path], layer):
                    shapes[theirs] = inner[::-1] if transposed else inner
    shapes[TOP_NAMES["final_norm"]] = ours["final_norm"]
    if "lm_head" in ours:
        shapes[TOP_NAMES["lm_head"]] = ours["lm_head"]
    return shapes


def layer_tensors(path: str, shape: Sequence[int], layer: int) -> list[tuple[str, tuple[int, ...]]]:
    """(Hugging Face name, shape in our orientation) of the tensors that make up one layer of a stacked
    parameter: one, or one per expert."""
    name = f"model.layers.{layer}.{LAYER_NAMES[path.removeprefix('layers/')][0]}"
    if "{}" not in name:
        return [(name, tuple(shape[1:]))]
    return [(name.format(expert), tuple(shape[2:])) for expert in range(shape[1])]


def _must_agree(folder: Path, name: str, wanted: object, found: object) -> None:
    if wanted != found:
        raise WeightsError(f"{folder.name}/config.json: {name} is {found}, the run expects {wanted}")


def _check_tensors(tensors: HFTensors, config: Qwen3Config) -> None:
    where, expected, found = tensors.folder.name, hf_shapes(config), dict(tensors.shapes)
    head, embedding = TOP_NAMES["lm_head"], TOP_NAMES["embedding"]
    if config.tie_embeddings and {head, embedding} <= found.keys():
        # Some writers store the tied matrix twice. A true copy is redundant.
        if not tensors.equal(head, embedding):
            raise WeightsError(
                "lm_head.weight differs from the embedding although config.json says they are tied"
            )
        del found[head]
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        raise WeightsError(f"{where}: missing tensors {missing[:5]}, unknown tensors {extra[:5]}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise WeightsError(f"{where}: {name} has shape {found[name]}, expected {shape}")


def _piece(tensors: HFTensors, path: str, shape: tuple[int, ...], dtype: np.dtype, index: Any) -> np.ndarray:
    """The part of one of our parameters that one device holds; index: a slice per axis."""
    spans = [range(*part.indices(length)) for part, length in zip(index, shape, strict=True)]
    if path in TOP_NAMES:
        return tensors.read(TOP_NAMES[path], _slices(spans)).astype(dtype)
    theirs, transposed = LAYER_NAMES[path.removeprefix("layers/")]
    stacked = 2 if "{}" in theirs else 1
    inner = _slices(spans[stacked:])
    out = np.empty([len(span) for span in spans], dtype)
    for place in itertools.product(*(range(len(span)) for span in spans[:stacked])):
        layer, *expert = (span[i] for span, i in zip(spans, place, strict=False))
        name = f"model.layers.{layer}.{theirs.format(*expert)}"
        value = tensors.read(name, inner[::-1] if transposed else inner)
        out[place] = value.T if transposed else value
    return out


def _slices(spans: Sequence[range]) -> tuple[slice, ...]:
    return tuple(slice(span.start, span.stop) for span in spans)
