"""Write our parameters as a Hugging Face folder that transformers opens."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.hf_files import INDEX, shard_names, shard_plan
from autoforge_jax.model.load_hf import LAYER_NAMES, TOP_NAMES, hf_shapes, layer_tensors
from autoforge_jax.model.qwen3 import Weights, weights_of
from autoforge_jax.model.sharding import gather_to_host

SHARD_BYTES = 5_000_000_000
"""Largest file, as transformers'."""


def export_hf(
    folder: Path,
    params: nnx.State | Weights,
    config: Qwen3Config,
    tokenizer_files: Sequence[Path] | Mapping[str, bytes] = (),
    token_ids: Mapping[str, int | list[int]] | None = None,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write config.json, generation_config.json, the tensors in `dtype` and the tokenizer's files; returns
    `folder`. Other arguments: `write_hf`. Raises WeightsError when a parameter does not fit `config`.

    Tensors leave the devices one file's worth at a time.
    """
    weights = weights_of(params) if isinstance(params, nnx.State) else params
    return write_hf(
        folder, _Leaves(weights, config, dtype), config, tokenizer_files, token_ids, shard_bytes=shard_bytes
    )


def write_hf(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    config: Qwen3Config,
    tokenizer_files: Sequence[Path] | Mapping[str, bytes] = (),
    token_ids: Mapping[str, int | list[int]] | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """`export_hf` of tensors that `hf_tensors` gave.

    tokenizer_files: paths to copy, or name -> content. token_ids: ``eos_token_id``, ``pad_token_id``,
    ``bos_token_id`` for both config files. Above `shard_bytes` the tensors go to several files with an index.
    The folder appears whole or not at all: it is written beside itself and renamed; an older one is replaced.
    Raises WeightsError when a tokenizer file would overwrite one of ours.
    """
    folder = Path(folder)
    ids = dict(token_ids or {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        stored = _write_tensors(work, tensors, config, shard_bytes)
        types = {"dtype": stored, "torch_dtype": stored}
        _write_json(work / "config.json", {**config.to_hf(), **types, **ids})
        _write_json(work / "generation_config.json", {"_from_model_config": True, **ids})
        _add_tokenizer(work, tokenizer_files)
        os.chmod(work, 0o755)  # mkdtemp makes it private
        _replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def hf_tensors(
    weights: Weights, config: Qwen3Config, dtype: Literal["float32", "bfloat16"] = "float32"
) -> dict[str, np.ndarray]:
    """Name -> array of every tensor, as Hugging Face lays them out. WeightsError names what does not fit."""
    return dict(_Leaves(weights, config, dtype).items())


class _Leaves(Mapping[str, np.ndarray]):
    """The tensors of a model by Hugging Face name, each fetched from the devices when it is asked for."""

    def __init__(self, weights: Weights, config: Qwen3Config, dtype: str) -> None:
        self._weights, self._dtype = weights, np.dtype(dtype)
        self._shapes = hf_shapes(config)
        self._sources: dict[str, tuple[jax.Array, tuple[int, ...], bool]] = {}
        for ours, theirs in TOP_NAMES.items():
            if ours in weights:
                self._sources[theirs] = (weights[ours], (), False)
        for ours, value in weights["layers"].items():
            if ours not in LAYER_NAMES:
                raise WeightsError(f"cannot export: {ours!r} has no name in Hugging Face's layout")
            for layer in range(value.shape[0]):
                for expert, (theirs, _) in enumerate(layer_tensors(ours, value.shape, layer)):
                    place = (layer, expert) if value.ndim == 4 else (layer,)
                    self._sources[theirs] = (value, place, LAYER_NAMES[ours][1])
        for name in sorted(self._shapes.keys() | self._sources.keys()):
            got = self._shape(name) if name in self._sources else None
            if got != self._shapes.get(name):
                wanted = self._shapes.get(name)
                raise WeightsError(f"cannot export: {name} has shape {got}, the config says {wanted}")

    def _shape(self, name: str) -> tuple[int, ...]:
        value, place, transposed = self._sources[name]
        shape = tuple(value.shape[len(place) :])
        return shape[::-1] if transposed else shape

    def __getitem__(self, name: str) -> np.ndarray:
        value, place, transposed = self._sources[name]
        part = value[place] if place else value
        host = part if isinstance(part, np.ndarray) else gather_to_host(part)
        return np.ascontiguousarray((host.T if transposed else host).astype(self._dtype, copy=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def nbytes(self, name: str) -> int:
        """Size of a tensor without fetching it."""
        return math.prod(self._shapes[name]) * self._dtype.itemsize


def _write_tensors(work: Path, tensors: Mapping[str, np.ndarray], config: Qwen3Config, limit: int) -> str:
    """The files with tensors, and their index when there are several; returns the stored type."""
    if isinstance(tensors, _Leaves):
        sizes = {name: tensors.nbytes(name) for name in tensors}
    else:
        sizes = {name: value.nbytes for name, value in tensors.items()}
    shards = shard_plan(sizes, limit)
    places: dict[str, str] = {}
    stored = "float32"
    for file, names in zip(shard_names(len(shards)), shards, strict=True):
        part = {name: tensors[name] for name in names}
        stored = str(next(iter(part.values())).dtype)
        # transformers refuses a file without this mark
        save_file(part, work / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = {"total_size": sum(sizes.values()), "total_parameters": config.num_parameters}
        _write_json(work / INDEX, {"metadata": total, "weight_map": places})
    return stored


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
