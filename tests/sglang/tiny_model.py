"""A model small enough for a server on a CPU, made on the spot: `python -m tests.sglang.tiny_model FOLDER
[SEED]`.

Two layers of Qwen3 with random weights and the tokenizer that the mock environment's references give: the
architecture and the files of a real run, nothing of its skill.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from flax import nnx

from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.export_hf import hf_tensors, write_hf
from autoforge_jax.model.qwen3 import Qwen3, Weights, weights_of
from autoforge_jax.rollout.sglang_weights import PublishedWeights, weights_tag
from tests.autoforge_jax.mock_rollout import tokenizer

MODEL = Qwen3Config(
    vocab_size=tokenizer().vocab_size,
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=2048,
)
"""An odd vocabulary (the server pads it), grouped queries, tied embeddings."""


@cache
def weights(seed: int) -> Weights:
    """Random parameters."""
    return weights_of(nnx.split(Qwen3(MODEL, rngs=nnx.Rngs(seed)), nnx.Param)[1])


def publish_to(folder: Path, seed: int, version: int = 0) -> PublishedWeights:
    """Write the model of a seed as a Hugging Face folder."""
    tensors = hf_tensors(weights(seed), MODEL)
    files = folder.parent / "tokenizer"
    tokenizer().save(files)
    ids: dict[str, int | list[int]] = {
        "pad_token_id": tokenizer().pad_id,
        "eos_token_id": list(tokenizer().stop_ids),
    }
    write_hf(folder, tensors, MODEL, sorted(files.glob("*.json")), ids)
    return PublishedWeights(version, weights_tag(version, tensors), folder, tensors)


if __name__ == "__main__":
    publish_to(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
