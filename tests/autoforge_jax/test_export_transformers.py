"""An exported mixture in several files opens in transformers and computes the same.

Needs AUTOFORGE_TORCH_PYTHON: the Python of a virtual environment with torch and transformers.
"""

import os
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.export_hf import export_hf
from autoforge_jax.model.qwen3 import Qwen3, forward, unembedding, weights_of

PYTHON = os.environ.get("AUTOFORGE_TORCH_PYTHON", "")
READ = """
import sys, numpy, torch
from transformers import AutoModelForCausalLM
folder, tokens, out = sys.argv[1:]
model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert not any(info.values()), info
with torch.no_grad():
    logits = model.eval()(torch.from_numpy(numpy.load(tokens)).long()).logits
numpy.save(out, logits.numpy())
"""


@pytest.mark.skipif(not PYTHON, reason="AUTOFORGE_TORCH_PYTHON is not set")
def test_a_mixture_exported_in_several_files_has_the_same_logits_in_transformers(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=96, num_layers=2, hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2,
        head_dim=8, tie_embeddings=False, experts=Experts(count=8, per_token=3, width=16),
    )  # fmt: skip
    params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)), nnx.Param)[1]
    folder = export_hf(tmp_path / "model", params, config, shard_bytes=20_000)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 40)).astype(np.int32)
    positions = np.broadcast_to(np.arange(40, dtype=np.int32), tokens.shape)
    weights = weights_of(params)
    hidden = jax.jit(forward, static_argnums=1)(
        weights, config, tokens, positions, np.full((2, 40), 2, np.int32)
    )
    ours = np.asarray(hidden @ unembedding(weights).T)
    np.save(tmp_path / "tokens.npy", tokens)
    paths = [str(folder), str(tmp_path / "tokens.npy"), str(tmp_path / "logits.npy")]
    done = subprocess.run([PYTHON, "-c", READ, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(ours, np.load(tmp_path / "logits.npy"), atol=2e-5)
