"""Run by test_moe.py in a process of its own with 8 CPU devices: one JSON line of facts."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

from autoforge_jax.config import BatchConfig, MeshConfig
from autoforge_jax.data.batch import pack
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.sharding import Layout, make_layout
from autoforge_jax.train.assembly import create_params
from autoforge_jax.train.forward import forward_of
from autoforge_jax.train.step import TrainStep, make_train_step
from tests.autoforge_jax.mesh_cases import OBJECTIVE, OPTIMIZER, relative, shares
from tests.autoforge_jax.mock_learner import VOCABULARY, leaves, samples

MODEL = Qwen3Config(
    vocab_size=VOCABULARY,
    num_layers=2,
    hidden_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    attention_chunk=32,
    remat=True,
    experts=Experts(count=8, per_token=3, width=8, balance=0.05),
)
ROWS = BatchConfig(row_tokens=28, rows_per_microbatch=8)
# two prefixes on a mesh of eight rows: they stay whole, and so do the experts' tokens
APART = BatchConfig(row_tokens=24, rows_per_microbatch=8, prefix_tokens=8, prefixes_per_microbatch=2)
MESHES = {
    "expert": (MeshConfig(expert=8), ROWS),
    "expert_fsdp": (MeshConfig(fsdp=2, expert=4), ROWS),
    "all": (MeshConfig(fsdp=2, tensor=2, expert=2), ROWS),
    "apart": (MeshConfig(data=2, expert=4), APART),
}


def learner(layout: Layout | None) -> tuple[TrainStep, Any]:
    """Step and parameters of seed 0."""
    graphdef, params = create_params(MODEL, 0, layout)
    return make_train_step(forward_of(graphdef), OPTIMIZER, OBJECTIVE, chunk_size=8, layout=layout), params


def reference(batch: BatchConfig) -> list[Any]:
    """Batches with numbers in every field."""
    from dataclasses import replace

    return [replace(b, ref_logprobs=b.rollout_logprobs * np.float32(1.1)) for b in pack(samples(), batch, 0)]


Single = tuple[list[Any], Any, tuple[float, Any, dict[str, float]]]


def one(batch: BatchConfig) -> Single:
    """Batches, parameters and (loss, gradient, metrics) on one device."""
    step, params = learner(None)
    batches = reference(batch)
    return batches, params, step.loss_and_gradient(params, batches)


def compare(layout: Layout, single: Single) -> dict[str, Any]:
    """What the mesh computes against one device."""
    batches, params, (loss, grads, metrics) = single
    step, ours = learner(layout)
    got_loss, got_grads, got_metrics = step.loss_and_gradient(ours, batches)
    return {
        "same_start": all(np.array_equal(a, b) for a, b in zip(leaves(ours), leaves(params), strict=True)),
        "loss_error": abs(got_loss - loss) / abs(loss),
        "gradient_error": max(relative(a, b) for a, b in zip(leaves(got_grads), leaves(grads), strict=True)),
        "metric_error": max(abs(got_metrics[k] - v) / max(abs(v), 1e-3) for k, v in metrics.items()),
        "shares": shares(ours),
    }


def main() -> None:
    """Print the facts."""
    singles = {id(batch): one(batch) for batch in (ROWS, APART)}
    facts: dict[str, Any] = {}
    for name, (config, batch) in MESHES.items():
        layout = make_layout(config, MODEL, batch.rows_per_microbatch, jax.devices()[: config.size])
        assert layout is not None
        facts[name] = compare(layout, singles[id(batch)])
    print(json.dumps(facts))


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    main()
