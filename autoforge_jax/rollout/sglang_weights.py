"""What an SGLang server must hold after a weight update: the checksums it should report, worked out from the
learner's tensors.

`/weights_checker` of SGLang 0.5.23 gives, per tensor of its model, the first 8 bytes of the SHA-256 of the
tensor's bytes (on a CPU; on CUDA a hash of its own). Its model differs from the Hugging Face layout in three
ways: query, key and value are one matrix, gate and up are one, and embeddings have rows of zeros up to the
next multiple of 64.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from autoforge_jax.errors import WeightsError
from autoforge_jax.rollout.sglang_http import RankChecksums

DTYPES: Mapping[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
"""Types that a server may keep its weights in."""
_FUSED = {
    "self_attn.q_proj.weight": ("self_attn.qkv_proj.weight", 0),
    "self_attn.k_proj.weight": ("self_attn.qkv_proj.weight", 1),
    "self_attn.v_proj.weight": ("self_attn.qkv_proj.weight", 2),
    "mlp.gate_proj.weight": ("mlp.gate_up_proj.weight", 0),
    "mlp.up_proj.weight": ("mlp.gate_up_proj.weight", 1),
}
_LAYER = re.compile(r"(model\.layers\.\d+\.)(.+)")
_PADDED_ROWS = ("model.embed_tokens.weight", "lm_head.weight")
_ROW_MULTIPLE = 64
_PROBE = "model.norm.weight"
"""Small and in every model: tells the type that the server keeps weights in."""


@dataclass
class PublishedWeights:
    """One set of weights on disk, ready for servers to load."""

    version: int
    """Policy version."""
    tag: str
    """What servers are told as `weight_version`: names the version and the bytes, so equal tags are equal
    weights, whichever run wrote them."""
    folder: Path
    """A Hugging Face folder that trainer and servers see under the same path."""
    tensors: Mapping[str, np.ndarray] | None
    """The learner's: Hugging Face name -> float32 array. Set to None once they are checked: they may be views
    of buffers that the next train step wants. From then on the folder stands for them."""
    _probes: dict[str, str] = field(default_factory=dict)
    _expected: dict[str, dict[str, str]] = field(default_factory=dict)

    def probe(self, dtype: str) -> str:
        """The checksum of one small tensor, for finding out which type a server uses."""
        if dtype not in self._probes:
            tensors = self.tensors or load_file(self.folder / "model.safetensors")
            self._probes[dtype] = server_checksums({_PROBE: tensors[_PROBE]}, DTYPES[dtype])[_PROBE]
        return self._probes[dtype]

    def expected(self, dtype: str) -> dict[str, str]:
        """Checksums of a server that keeps weights as `dtype`; worked out once."""
        if dtype not in self._expected:
            tensors = self.tensors or load_file(self.folder / "model.safetensors")
            self._expected[dtype] = server_checksums(tensors, DTYPES[dtype])
        return self._expected[dtype]


def weights_tag(version: int, tensors: Mapping[str, np.ndarray]) -> str:
    """``v12-<16 hex digits>``: the version and a hash of names, shapes and bytes."""
    hasher = hashlib.sha256()
    for name, value in tensors.items():
        hasher.update(f"{name} {value.dtype} {value.shape}\n".encode())
        hasher.update(_raw(value))
    return f"v{version}-{hasher.hexdigest()[:16]}"


def server_checksums(tensors: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, str]:
    """SGLang's tensor name -> checksum, for a model kept whole on one CPU rank."""
    return {
        name: hashlib.sha256(b"".join(_raw(_cast(part, dtype)) for part in parts)).hexdigest()[:16]
        for name, parts in _server_tensors(tensors).items()
    }


def compare_checksums(ranks: Sequence[RankChecksums], published: PublishedWeights, where: str) -> int:
    """Number of tensors that the server holds bit by bit as published. WeightsError names what differs, or
    why this server's tensors cannot be compared."""
    sizes = sorted({place.size for rank in ranks for place in rank.parallelism_info})
    if sizes != [1]:
        raise WeightsError(
            f"{where}: checksums of {len(ranks)} ranks of {sizes}; only servers of one rank can be compared "
            "tensor "
            'by tensor. Set rollout.sglang.verify = "version" to go by the version alone'
        )
    compared = 0
    for rank in ranks:
        got = rank.checksums
        dtype = next((d for d in DTYPES if published.probe(d) == got.get(_PROBE)), None)
        if dtype is None:
            raise WeightsError(
                f"{where}: {_PROBE} did not arrive as sent, in none of the types {', '.join(DTYPES)}. Either "
                "other weights are served, or this server hashes or stores weights in its own way (CUDA, "
                "AMX, "
                'quantisation): then set rollout.sglang.verify = "version" to go by the version alone'
            )
        expected = published.expected(dtype)
        if expected.keys() != got.keys():
            raise WeightsError(
                f"{where} holds other tensors than were sent: missing "
                f"{sorted(expected.keys() - got.keys())[:3]}, unknown "
                f"{sorted(got.keys() - expected.keys())[:3]}; is it another model?"
            )
        wrong = [name for name in expected if expected[name] != got[name]]
        if wrong:
            raise WeightsError(
                f"{where}: {len(wrong)} of {len(expected)} tensors arrived changed, first {wrong[0]} (as "
                f"{dtype}); the folder was not read whole, or the server transforms weights after loading"
            )
        compared += len(expected)
    return compared


def _server_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """SGLang's name -> the parts of which it is made, in order along axis 0."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, value in tensors.items():
        layer = _LAYER.fullmatch(name)
        fused, place = _FUSED.get(layer[2], (layer[2], 0)) if layer else (name, 0)
        parts.setdefault(layer[1] + fused if layer else fused, {})[place] = value
        if name in _PADDED_ROWS and (missing := -len(value) % _ROW_MULTIPLE):
            parts[name][1] = np.zeros((missing, *value.shape[1:]), value.dtype)
    return {name: [placed[i] for i in sorted(placed)] for name, placed in parts.items()}


def _cast(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):  # float16 overflows to inf, on the server too
        return value.astype(dtype, copy=False)


def _raw(value: np.ndarray) -> memoryview:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
