"""Memory of one chip by part, without the chip.

Parameters, optimiser and gradients follow from shapes and the sharding rules. What the forward pass keeps for
the backward pass is not written down as a formula: the program's own derivative is traced on abstract arrays
of one chip's size (`jax.vjp` under `jax.eval_shape`) and its residuals are added up, so that a change of the
model or of its remat choice is in the figure at once. What XLA needs on top while one layer, or one chunk of
logits, is differentiated is an estimate, checked against `compiled.memory_analysis()` by
benchmarks/plan_memory.py.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from autoforge_jax.config import Config, LoRAConfig, MeshConfig
from autoforge_jax.data.batch import Batch
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.lora import adapter_shapes, frozen_copy, init_adapters
from autoforge_jax.model.moe import expert_sum
from autoforge_jax.model.prefix import SharedPrefixes
from autoforge_jax.model.qwen3 import Qwen3, parameter_shapes
from autoforge_jax.model.sharding import MESH_AXES, Layout
from autoforge_jax.numerics.logprobs import DEFAULT_CHUNK
from autoforge_jax.plan.batch import BatchPlan
from autoforge_jax.rollout.engine_rows import BLOCK, CHUNK, prefix_rows
from autoforge_jax.train.forward import adapted_forward
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.step import SupervisedObjective, TrainStep, forward_of, make_train_step

LOGITS_COPIES = 3
"""Logits-sized float32 arrays alive while a chunk is differentiated: logits, probabilities, gradient."""
LIGHT_IN_MEMORY = 0.7
"""Share of a layer's elementwise results that are in memory while it is differentiated; the compiler computes
the others where they are read."""
SCORE_COPIES = 2
"""Score-sized float32 arrays alive while a query block is differentiated."""


@dataclass(frozen=True)
class Part:
    """One line of the memory table."""

    name: str
    bytes: float
    learner: bool = True
    """Belongs to the learner's step; else to the engine or server that shares the chip."""
    stays: bool = False
    """Of the learner: there during rollouts too."""


def local_model(model: Qwen3Config, mesh: MeshConfig) -> Qwen3Config:
    """The model as one chip computes it: `tensor` splits heads, MLP and vocabulary."""
    t = mesh.tensor
    return replace(
        model,
        vocab_size=model.vocab_size // t,
        num_heads=model.num_heads // t,
        num_kv_heads=model.num_kv_heads // t,
        intermediate_size=model.intermediate_size // t,
        experts=model.experts and replace(model.experts, width=model.experts.width // t),
    )


def abstract_layout(mesh: MeshConfig) -> Layout:
    """The layout of a mesh whose devices need not exist."""
    sizes = tuple(getattr(mesh, name) for name in MESH_AXES)
    found: Any = AbstractMesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
    return Layout(found)


def abstract_params(model: Qwen3Config) -> tuple[nnx.GraphDef[Qwen3], Any]:
    """(graphdef, shapes of the parameters); nothing is computed."""
    graphdef, params = nnx.split(nnx.eval_shape(lambda: Qwen3(model, rngs=nnx.Rngs(0))), nnx.Param)
    return graphdef, params


def bytes_on_one(tree: Any, layout: Layout) -> float:
    """Bytes of a tree of shapes on one device of a layout."""
    shardings = jax.tree.leaves(layout.of_state(tree))
    total = 0.0
    for leaf, sharding in zip(jax.tree.leaves(tree), shardings, strict=True):
        shape = sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * np.dtype(leaf.dtype).itemsize
    return total


def abstract_batch(plan: BatchPlan, rows: int, prefixes: int) -> Batch:
    """A micro-batch of shapes."""
    shape = (rows, plan.row_tokens)
    i32, f32, flag = (jax.ShapeDtypeStruct(shape, t) for t in (jnp.int32, jnp.float32, jnp.bool_))
    apart: Any = None
    if plan.prefixes:
        apart = SharedPrefixes(
            jax.ShapeDtypeStruct((prefixes, plan.prefix_width), jnp.int32),  # type: ignore[arg-type]
            jax.ShapeDtypeStruct((prefixes,), jnp.int32),  # type: ignore[arg-type]
            jax.ShapeDtypeStruct((rows,), jnp.int32),  # type: ignore[arg-type]
        )
    fields: dict[str, Any] = {
        "tokens": i32, "positions": i32, "segment_ids": i32, "predictor_index": i32, "action_mask": flag,
        "loss_mask": flag, "loss_weight": f32, "rollout_logprobs": f32, "advantages": f32,
        "sample_ids": i32, "sample_loss_tokens": f32,
    }  # fmt: skip
    return Batch(**fields, prefixes=apart)


def residual_bytes(model: Qwen3Config, batch: Batch, lora: LoRAConfig | None = None) -> float:
    """What the forward pass of one micro-batch keeps for the backward pass, beside parameters and batch."""
    graphdef, params = abstract_params(model)
    frozen = None
    forward = forward_of(graphdef)
    if lora is not None:
        frozen = jax.eval_shape(lambda p: frozen_copy(p, model), params)
        params = jax.eval_shape(lambda: init_adapters(model, lora, 0))
        forward = adapted_forward(model, lora.scale)
    step: TrainStep = make_train_step(
        forward, make_optimizer(Config().erpo.optimizer, 10), SupervisedObjective(), frozen=frozen
    )
    scale = jax.ShapeDtypeStruct((), jnp.float32)

    def pulled_back(params: Any, batch: Batch, scale: jax.Array, frozen: Any) -> Any:
        return jax.vjp(lambda p: step.loss(p, batch, scale, frozen)[0], params)[1]

    kept = jax.tree.leaves(jax.eval_shape(pulled_back, params, batch, scale, frozen))
    return _beside(kept, (params, batch, frozen))


def _beside(kept: list[Any], inputs: Any) -> float:
    """Bytes of the arrays that are not inputs (one of each shape and type for every input of it)."""
    known = Counter((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(inputs))
    total = 0.0
    for leaf in kept:
        kind = (leaf.shape, leaf.dtype)
        if known[kind] > 0:  # an input of the step, not a copy
            known[kind] -= 1
            continue
        total += math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
    return total


def layer_bytes(model: Qwen3Config, batch: Batch, lora: LoRAConfig | None = None) -> float:
    """What one layer needs of its forward pass when it is differentiated, beside what is kept of it: with
    remat everything, else what norms, rotations and activation come to (`qwen3._lean`). The difference that a
    second layer makes."""

    def one_more(model: Qwen3Config) -> float:
        one, two = (residual_bytes(replace(model, num_layers=n), batch, lora) for n in (1, 2))
        return two - one

    kept = one_more(replace(model, remat=False))
    light = one_more(replace(model, remat=True, remat_saves="everything")) - kept
    return LIGHT_IN_MEMORY * light + (kept if model.remat else 0.0)


def exchanged_bytes(model: Qwen3Config, tokens: int, parts: int) -> float:
    """What a layer of experts needs more on a mesh that shares them over `parts` chips: each holds the tokens
    of all of them, in slots for the worst case, and a part of the experts."""
    experts = model.experts
    if experts is None or parts == 1:
        return 0.0

    def kept(tokens: int, count: int) -> float:
        def shape(*sizes: int, dtype: Any = model.dtype) -> Any:
            return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))

        d, f, k = model.hidden_size, experts.width, experts.per_token
        x, weights, chosen = shape(tokens, d), shape(tokens, k), shape(tokens, k, dtype=jnp.int32)
        matrices = (shape(count, d, f), shape(count, d, f), shape(count, f, d))

        def pulled_back(x: Any, weights: Any, chosen: Any, *matrices: Any) -> Any:
            return jax.vjp(lambda x, w, *m: expert_sum(x, chosen, w, *m), x, weights, *matrices)[1]

        left = jax.tree.leaves(jax.eval_shape(pulled_back, x, weights, chosen, *matrices))
        return _beside(left, (x, weights, chosen, matrices))

    return kept(tokens * parts, experts.count // parts) - kept(tokens, experts.count)


def adapter_weights(model: Qwen3Config, lora: LoRAConfig) -> int:
    """Trained numbers with `[lora]`; 0 without."""
    return sum(math.prod(s) for s in adapter_shapes(model, lora).values()) if lora.rank else 0


def learner_parts(config: Config, model: Qwen3Config, plan: BatchPlan) -> list[Part]:
    """Memory of the learner's update on one chip."""
    mesh = config.mesh
    layout = abstract_layout(mesh)
    lora = config.lora if config.lora.rank else None
    _, whole = abstract_params(model)
    steps = config.erpo.optimizer.warmup_steps + 2  # the shapes of the state do not depend on it
    optimizer = make_optimizer(config.erpo.optimizer, steps)
    params: Any = whole if lora is None else jax.eval_shape(lambda: init_adapters(model, lora, 0))
    own = bytes_on_one(params, layout)
    moments = bytes_on_one(jax.eval_shape(optimizer.init, params), layout)
    shared = layout.split("rows")
    rows = plan.rows // shared
    prefixes = plan.prefixes // shared if plan.prefixes % shared == 0 else plan.prefixes
    batch = abstract_batch(plan, rows, prefixes)
    local = local_model(model, mesh)
    compute = np.dtype(jnp.dtype(model.dtype)).itemsize
    kept = residual_bytes(local, batch, lora)
    tokens = rows * plan.row_tokens + prefixes * plan.prefix_width
    experts = local.experts
    inner = local.intermediate_size if experts is None else experts.per_token * experts.width
    cotangents = tokens * (model.hidden_size + inner) * compute
    if experts is not None:
        # Per choice of a token: of the token, of gate and up; and what is read back for them, which the loops
        # over experts need as arrays of their own.
        slots = tokens * experts.per_token * (model.hidden_size + 2 * experts.width) * compute
        cotangents += slots if model.remat else 2 * slots
    if lora is not None:
        # Every adapted projection writes its own output and its adapter's before they are added, and so do
        # their gradients.
        cotangents = 2 * cotangents + 2 * tokens * inner * compute
    query_block = min(max(model.attention_chunk, -(-plan.row_tokens // 4)), 4 * model.attention_chunk)
    seen = plan.row_tokens + plan.prefix_width
    # on a CPU one row and one key/value head of it at a time
    per_row = local.num_heads // local.num_kv_heads if config.mesh.chip == "cpu" else rows * local.num_heads
    scores = 4.0 * SCORE_COPIES * per_row * min(query_block, plan.row_tokens) * seen
    chunk = min(DEFAULT_CHUNK, rows * plan.row_tokens)
    logits = 4.0 * LOGITS_COPIES * chunk * local.vocab_size
    table = 4.0 * local.vocab_size * model.hidden_size
    # Logits are differentiated before the layers are: the same memory serves both.
    one_layer = layer_bytes(local, batch, lora) + cotangents + scores
    one_layer += exchanged_bytes(local, rows * plan.row_tokens, mesh.expert)
    working = {"working set (logits chunk)": logits, "working set (one layer)": one_layer}
    largest = max(working, key=lambda name: working[name])
    gathered = 0.0
    width = compute if lora is not None else 4.0
    if mesh.fsdp * mesh.expert > 1:
        stack = sum(math.prod(s) for n, s in parameter_shapes(local).items() if n.startswith("layers/"))
        if experts is not None:  # a chip gathers its own experts only
            own_experts = model.num_layers * 3 * experts.count * model.hidden_size * experts.width
            stack -= own_experts * (1 - 1 / mesh.expert)
        gathered = width * stack / model.num_layers + table * width / 4 + table * compute / 4
    elif compute != 4 and lora is None:
        gathered = table * compute / 4
    parts = [
        Part(f"{'adapters' if lora else 'parameters'} (f32 master)", own, stays=True),
        Part(f"optimiser ({config.erpo.optimizer.kind})", moments, stays=True),
        Part("gradients (running sum)", own),
        Part("gradients (micro-batch)", own),
        Part(f"activations kept ({'remat' if model.remat else 'no remat'})", kept),
        Part(largest, working[largest]),
        Part("gathered weights" if mesh.fsdp * mesh.expert > 1 else "cast weights", gathered),
    ]
    if lora is not None:
        frozen = bytes_on_one(jax.eval_shape(lambda p: frozen_copy(p, model), whole), layout)
        parts.insert(0, Part(f"frozen model ({model.dtype})", frozen, stays=True))
    return parts


def engine_parts(config: Config, model: Qwen3Config, chip_bytes: float) -> list[Part]:
    """Memory of the embedded engine on the same chip: its copy of the weights, and its key/value store; of
    servers what they hold of the learner's chip (`rollout.sglang.memory_fraction` of `chip_bytes`).

    The store is not split over chips today; the weights lie as the learner's do (in several processes: over
    the chips of one process).
    """
    if config.rollout.engine != "jax":
        share = config.rollout.sglang.memory_fraction
        return [Part("SGLang server", share * chip_bytes, learner=False)] if share else []
    _, params = abstract_params(model)
    mesh = config.mesh
    if mesh.coordinator:
        local = max(1, mesh.size // mesh.processes)
        weights = 4.0 * model.num_parameters / local
    else:
        weights = bytes_on_one(params, abstract_layout(mesh))
    rollout = config.rollout
    named = config.synthesis
    environments = len({*named.documents, *named.bundles, *named.heldout_documents})
    rows = rollout.slots + prefix_rows(environments) + 1
    capacity = rollout.max_trajectory_tokens + max(CHUNK, BLOCK)
    itemsize = 2 if model.dtype == "bfloat16" else 4
    cache = 2.0 * model.num_layers * rows * model.num_kv_heads * model.head_dim * capacity * itemsize
    return [
        Part("engine: weights", weights, learner=False),
        Part("engine: KV store", cache, learner=False),
    ]
