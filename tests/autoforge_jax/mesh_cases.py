"""Run by test_mesh.py in a process of its own with 8 CPU devices: one JSON line of facts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from autoforge_jax.config import BatchConfig, ERPOConfig, MeshConfig, OptimizerConfig
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.sharding import Layout, make_layout, path_name
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.engine_layout import engine_layout
from autoforge_jax.train.assembly import create_params
from autoforge_jax.train.checkpoint import CheckpointMeta, CheckpointStore
from autoforge_jax.train.forward import forward_of
from autoforge_jax.train.logprob_pass import ReferenceLogprobs
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.state import TrainState, init_state
from autoforge_jax.train.step import TrainStep, make_train_step
from autoforge_jax.train.weight_sync import sync_weights
from autoforge_jax.types import SampleRequest, SamplingParams
from tests.autoforge_jax.mock_learner import VOCABULARY, leaves, samples

MODEL = Qwen3Config(
    vocab_size=VOCABULARY,
    num_layers=2,
    hidden_size=16,
    intermediate_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    attention_chunk=32,
    remat=True,
)
ROWS = BatchConfig(row_tokens=28, rows_per_microbatch=4)
APART = BatchConfig(row_tokens=24, rows_per_microbatch=4, prefix_tokens=8, prefixes_per_microbatch=2)
MESHES = {
    "fsdp": (MeshConfig(fsdp=4), ROWS),
    "tensor": (MeshConfig(tensor=2), ROWS),
    "mixture": (MeshConfig(data=2, fsdp=2, tensor=2), APART),
}
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1e-2), 10)
# A KL to the reference makes the objective read every field of a batch.
OBJECTIVE = PolicyObjective.from_config(ERPOConfig(kl_coefficient=0.1), 0.8)
Single = tuple[nnx.State, list[Batch], tuple[float, Any, dict[str, float]]]


def relative(got: Any, want: Any) -> float:
    """max |got - want| over max |want| of one array."""
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


def learner(layout: Layout | None) -> tuple[TrainStep, nnx.State, ReferenceLogprobs]:
    """Step, parameters of seed 0, and another reference."""
    graphdef, params = create_params(MODEL, 0, layout)
    forward = forward_of(graphdef)
    step = make_train_step(forward, OPTIMIZER, OBJECTIVE, chunk_size=8, layout=layout)
    other = jax.tree.map(lambda leaf: leaf * np.float32(1.1), params)
    return step, params, ReferenceLogprobs(forward, other, 0.8, chunk_size=8, layout=layout)


def one(config: BatchConfig) -> Single:
    """Parameters, batches and (loss, gradient, metrics) on one device."""
    step, params, reference = learner(None)
    batches = reference(pack(samples(), config, 0))
    return params, batches, step.loss_and_gradient(params, batches)


def compare(layout: Layout, single: Single) -> dict[str, Any]:
    """What the mesh computes against one device."""
    params, batches, (loss, grads, metrics) = single
    step, ours, _ = learner(layout)
    got_loss, got_grads, got_metrics = step.loss_and_gradient(ours, batches)
    return {
        "same_start": all(np.array_equal(a, b) for a, b in zip(leaves(ours), leaves(params), strict=True)),
        "loss_error": abs(got_loss - loss) / abs(loss),
        "gradient_error": max(relative(a, b) for a, b in zip(leaves(got_grads), leaves(grads), strict=True)),
        "metric_error": max(abs(got_metrics[k] - v) / max(abs(v), 1e-3) for k, v in metrics.items()),
        "shares": shares(ours),
    }


def shares(tree: Any) -> dict[str, float]:
    """Path -> the part of the array that one device holds."""
    return {
        path_name(path): leaf.addressable_shards[0].data.size / leaf.size
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def trained(layout: Layout, config: BatchConfig, single: Single) -> tuple[dict[str, Any], TrainState]:
    """Three updates on a mesh, its reference log-probs, and the state after them."""
    step, ours, reference = learner(layout)
    batches = reference(pack(samples(), config, 0))
    error = max(
        float(np.max(np.abs(np.asarray(a.ref_logprobs) - np.asarray(b.ref_logprobs))))
        for a, b in zip(batches, single[1], strict=True)
    )
    state = init_state(ours, OPTIMIZER, layout)
    first = jax.tree.leaves(state.params)
    counts: list[int] = []
    numbers: dict[str, float] = {}
    for _ in range(3):
        state, numbers = step(state, batches)
        counts.append(step.compile_count)
    facts = {
        "reference_error": error,
        "donated": all(leaf.is_deleted() for leaf in first),
        "compiles": counts,
        "skipped": numbers["update_skipped"],
        "shares": shares(state),
    }
    return facts, state


def moved(state: TrainState, target: Layout | None, folder: Path) -> dict[str, Any]:
    """Save a state and restore it on `target`."""
    store = CheckpointStore(folder)
    store.save(state, CheckpointMeta("erpo", 2, 2))
    template = init_state(create_params(MODEL, 0, target)[1], OPTIMIZER, target)
    restored, meta = store.restore(template)
    pairs = list(zip(jax.tree.leaves(restored), jax.tree.leaves(template), strict=True))
    return {
        "equal": all(np.array_equal(a, b) for a, b in zip(leaves(state), leaves(restored), strict=True)),
        "lies_as_template": all(a.sharding.is_equivalent_to(b.sharding, a.ndim) for a, b in pairs),
        "devices": len(pairs[0][0].sharding.device_set),
        "step": meta.step,
    }


def sampled(learner_layout: Layout | None) -> tuple[JaxEngine, list[Any]]:
    """Two turns of five sessions with a shared prefix, by an engine that was handed a learner's weights."""
    graphdef, params = create_params(MODEL, 0, learner_layout)
    layout = engine_layout(learner_layout)
    engine = JaxEngine(graphdef, MODEL, slots=5, max_length=64, layout=layout)
    sync_weights(params, 3, engine)
    chance = np.random.default_rng(0)
    prefix = tuple(int(i) for i in chance.integers(0, VOCABULARY, 9))
    contexts = {
        f"s{n}": (*prefix, *(int(i) for i in chance.integers(0, VOCABULARY, 3 + n))) for n in range(5)
    }
    found: list[Any] = []
    for turn in range(2):
        requests = [
            SampleRequest(name, ids, SamplingParams(max_turn_tokens=6 + turn), 11 * turn + n, len(prefix))
            for n, (name, ids) in enumerate(contexts.items())
        ]
        outputs = engine.sample(requests)
        contexts = {
            r.session_id: (*r.token_ids, *o.token_ids, 1) for r, o in zip(requests, outputs, strict=True)
        }
        found += outputs
    return engine, found


def engines(learner_layout: Layout) -> dict[str, Any]:
    """An engine over `tensor` against one on one device."""
    _, alone = sampled(None)
    engine, together = sampled(learner_layout)
    pairs = list(zip(alone, together, strict=True))
    store = engine._store
    assert store is not None
    return {
        "ids": all(a.token_ids == b.token_ids for a, b in pairs),
        "tokens": sum(len(a.token_ids) for a, _ in pairs),
        "logprob_error": max(float(np.max(np.abs(np.subtract(a.logprobs, b.logprobs)))) for a, b in pairs),
        "shares": shares({"keys": store.keys, "values": store.values, **engine.weights}),
        "compiles": engine.stats()["compiles"],
    }


def main(folder: Path) -> None:
    """Print the facts."""
    singles = {id(batch): one(batch) for batch in (ROWS, APART)}
    facts: dict[str, Any] = {}
    layouts: dict[str, Layout] = {}
    for name, (config, batch) in MESHES.items():
        layout = make_layout(config, MODEL, batch.rows_per_microbatch, jax.devices()[: config.size])
        assert layout is not None
        layouts[name] = layout
        facts[name] = compare(layout, singles[id(batch)])
    facts["trained"], state = trained(layouts["mixture"], APART, singles[id(APART)])
    facts["to_fsdp"] = moved(state, layouts["fsdp"], folder / "a")
    facts["to_one"] = moved(state, None, folder / "b")
    single_state = init_state(create_params(MODEL, 1, None)[1], OPTIMIZER)
    facts["from_one"] = moved(single_state, layouts["mixture"], folder / "c")
    facts["engine"] = engines(layouts["mixture"])
    print(json.dumps(facts))


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_compilation_cache_dir", sys.argv[2])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    main(Path(sys.argv[1]))
