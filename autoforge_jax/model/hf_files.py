"""Hugging Face safetensors folders: which tensor lies in which file, and pieces of tensors without the rest.

Only headers are read to find and check tensors; values come as slices, so that a process reads what its own
devices hold and no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, safe_open

from autoforge_jax.errors import WeightsError

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Stored types that are read. Eight-bit ones are quantised: they need scales that lie elsewhere."""
_OTHERS = {"I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "BOOL": "bool"}
INDEX = "model.safetensors.index.json"


class HFTensors:
    """The tensors of all ``*.safetensors`` files of a folder; a context manager that keeps the files open."""

    def __init__(self, folder: Path) -> None:
        """WeightsError for a folder without such files, an unreadable one, a tensor that stands in two, or a
        file that the index names and that is not there."""
        self.folder = Path(folder)
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise WeightsError(f"{self.folder}: no *.safetensors file; other formats are not read")
        try:
            for path in paths:
                self._open(path)
            self._check_index({path.name for path in paths})
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, path: Path) -> None:
        try:
            file = self._stack.enter_context(safe_open(path, framework="np"))
            for name in file.keys():  # noqa: SIM118 - not a dict
                if name in self._files:
                    raise WeightsError(f"{path.name}: tensor {name} stands in more than one file")
                part = file.get_slice(name)
                stored = part.get_dtype()
                if stored not in FLOATS:
                    raise WeightsError(
                        f"tensor {name} is {_OTHERS.get(stored, stored)}, expected a floating type; "
                        "quantised weights are not read"
                    )
                self._files[name] = file
                self.shapes[name] = tuple(part.get_shape())
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: not a readable safetensors file: {error}") from error

    def _check_index(self, present: set[str]) -> None:
        path = self.folder / INDEX
        if not path.is_file():
            return
        try:
            named = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{path} is not a safetensors index: {error!r}") from error
        missing = sorted(named - present)
        if missing:
            raise WeightsError(
                f"{self.folder}: {len(missing)} of {len(named)} files are missing, first {missing[0]}; the "
                "download is not complete"
            )

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A piece of a tensor in its stored type."""
        try:
            return self._files[name].get_slice(name)[index]
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{self.folder}: tensor {name} cannot be read: {error}") from error

    def equal(self, first: str, second: str) -> bool:
        """Two matrices hold the same numbers; compared a few rows at a time."""
        if self.shapes[first] != self.shapes[second]:
            return False
        rows, step = self.shapes[first][0], 4096
        parts = ((slice(at, min(at + step, rows)),) for at in range(0, rows, step))
        return all(np.array_equal(self.read(first, part), self.read(second, part)) for part in parts)


def shard_plan(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in order, cut into files of at most `limit` bytes (a tensor that is larger has one of its
    own)."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def shard_names(count: int) -> list[str]:
    """File names of `count` shards, as transformers writes them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
