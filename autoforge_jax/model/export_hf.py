"""Write our parameters as a Hugging Face folder that transformers opens."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.load_hf import LAYER_NAMES, TOP_NAMES, hf_shapes, layer_names
from autoforge_jax.model.qwen3 import Weights, weights_of


def export_hf(
    folder: Path,
    params: nnx.State | Weights,
    config: Qwen3Config,
    tokenizer_files: Sequence[Path] | Mapping[str, bytes] = (),
    token_ids: Mapping[str, int | list[int]] | None = None,
) -> Path:
    """Write config.json, generation_config.json, model.safetensors (float32) and the tokenizer's files;
    returns `folder`. Arguments: `write_hf`. Raises WeightsError when a parameter does not fit `config`.
    """
    weights = weights_of(params) if isinstance(params, nnx.State) else params
    return write_hf(folder, hf_tensors(weights, config), config, tokenizer_files, token_ids)


def write_hf(
    folder: Path,
    tensors: dict[str, np.ndarray],
    config: Qwen3Config,
    tokenizer_files: Sequence[Path] | Mapping[str, bytes] = (),
    token_ids: Mapping[str, int | list[int]] | None = None,
) -> Path:
    """`export_hf` of tensors that `hf_tensors` gave.

    tokenizer_files: paths to copy, or name -> content. token_ids: ``eos_token_id``, ``pad_token_id``,
    ``bos_token_id`` for both config files. The folder appears whole or not at all: it is written beside
    itself and renamed; an older one is replaced. Raises WeightsError when a tokenizer file would overwrite
    one of ours.
    """
    folder = Path(folder)
    ids = dict(token_ids or {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_json(work / "config.json", {**config.to_hf(), **ids})
        _write_json(work / "generation_config.json", {"_from_model_config": True, **ids})
        # transformers refuses a file without this mark
        save_file(tensors, work / "model.safetensors", metadata={"format": "pt"})
        _add_tokenizer(work, tokenizer_files)
        os.chmod(work, 0o755)  # mkdtemp makes it private
        _replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def hf_tensors(weights: Weights, config: Qwen3Config) -> dict[str, np.ndarray]:
    """Name -> float32 array of every tensor, as Hugging Face lays them out. WeightsError names what does not
    fit."""
    tensors: dict[str, np.ndarray] = {}
    for ours, theirs in TOP_NAMES.items():
        if ours in weights:
            tensors[theirs] = np.asarray(weights[ours], np.float32)
    for ours in layer_names(config):
        theirs, transposed = LAYER_NAMES[ours]
        stacked = np.asarray(weights["layers"][ours], np.float32)
        for i, value in enumerate(stacked):
            tensors[f"model.layers.{i}.{theirs}"] = np.ascontiguousarray(value.T if transposed else value)
    expected = hf_shapes(config)
    for name in sorted(expected.keys() | tensors.keys()):
        got = tensors[name].shape if name in tensors else None
        if got != expected.get(name):
            raise WeightsError(f"cannot export: {name} has shape {got}, the config says {expected.get(name)}")
    return {name: tensors[name] for name in expected}


def _write_json(path: Path, tree: Mapping[str, object]) -> None:
    path.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _add_tokenizer(work: Path, files: Sequence[Path] | Mapping[str, bytes]) -> None:
    contents = (
        dict(files) if isinstance(files, Mapping) else {Path(f).name: Path(f).read_bytes() for f in files}
    )
    for name, content in contents.items():
        target = work / name
        if target.parent != work or target.exists():
            raise WeightsError(
                f"tokenizer file {name!r} would leave the folder or overwrite one of the model's files"
            )
        target.write_bytes(content)


def _replace(work: Path, folder: Path) -> None:
    """Rename `work` to `folder`; an older folder is moved aside first, since a directory cannot be renamed
    over a full one."""
    if folder.exists():
        old = work.with_name(work.name + ".old")
        os.rename(folder, old)
        os.rename(work, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(work, folder)
