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

from autoforge_jax.compilation import compiling_for
from autoforge_jax.config import Config, LoRAConfig, MeshConfig
from autoforge_jax.data.batch import Batch
from autoforge_jax.model.cached import TILE
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.lora import adapter_shapes, frozen_copy, init_adapters
from autoforge_jax.model.prefix import SharedPrefixes
from autoforge_jax.model.qwen3 import Qwen3, parameter_shapes
from autoforge_jax.model.sharding import MESH_AXES, Layout
from autoforge_jax.numerics.attention import tile_size
from autoforge_jax.numerics.kernels import kernel_of
from autoforge_jax.numerics.logprobs import DEFAULT_CHUNK
from autoforge_jax.plan.batch import BatchPlan
from autoforge_jax.plan.chips import chip_named
from autoforge_jax.rollout.engine_layout import engine_tensor
from autoforge_jax.rollout.engine_rows import DECODE_WIDTH, EngineSize, prefix_rows
from autoforge_jax.train.forward import adapted_forward, forward_of
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.step import TrainStep, make_train_step

LOGITS_COPIES = 2
"""Logits-sized float32 arrays alive while a chunk is differentiated: logits, and their gradient (on TPUs in
the compute type)."""
LIGHT_IN_MEMORY = 0.7
"""Share of a layer's elementwise results that are in memory while it is differentiated; the compiler computes
the others where they are read."""
LAYER_ON_TPU = 0.5
"""Share of that and of a layer's gradients that is in memory at one time on a TPU, with remat."""
ADAPTED_ON_TPU = 0.65
"""The same with adapters."""
SCORE_COPIES = 2
"""Score-sized float32 arrays alive while a tile of attention is differentiated."""


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


def expert_bytes(model: Qwen3Config, tokens: int, parts: int) -> float:
    """What a layer of experts needs when it is differentiated, beside what it keeps: the gradient of its
    result, and in float32 those for its tokens and its matrices. Shared over `parts` chips, each holds the
    tokens of all of them and a part of the experts."""
    experts = model.experts
    if experts is None:
        return 0.0
    compute = np.dtype(jnp.dtype(model.dtype)).itemsize
    copies = compute + 4 + (compute if parts > 1 else 0)
    matrices = 3 * experts.count // parts * model.hidden_size * experts.width
    return float(copies * tokens * parts * model.hidden_size + 4 * matrices)


def adapter_weights(model: Qwen3Config, lora: LoRAConfig) -> int:
    """Trained numbers with `[lora]`; 0 without."""
    return sum(math.prod(s) for s in adapter_shapes(model, lora).values()) if lora.rank else 0


def learner_parts(config: Config, model: Qwen3Config, plan: BatchPlan) -> list[Part]:
    """Memory of the learner's update on one chip: the chip's own program is traced, but for cuDNN's
    attention, which can be traced on its GPUs only (XLA's stands in, which needs more)."""
    platform = chip_named(config.mesh.chip).platform
    kernel = kernel_of(config, model, "tpu") if platform == "tpu" else "xla"
    with compiling_for(platform):
        return _learner_parts(config, replace(model, attention=kernel), plan, platform)


def _fuller_on_tpu(
    *,
    gradients: float,
    one_layer: float,
    logits: float,
    table: float,
    compute: int,
    gathered: float,
    split: bool,
) -> list[Part]:
    """The fuller of two times in a micro-batch, as libtpu's compiler lays them out: while a chunk of logits
    is differentiated, and while a layer is. All in bytes.

    `table` is a float32 embedding table as one chip sees it, whole over fsdp when `split`; then the output's
    gradient is whole too until it is scattered."""
    at_logits = [
        Part("working set (logits chunk)", logits * (1 + compute / 4)),
        Part("gathered table, gradient", table * compute / 4 + (table if split else 0.0)),
    ]
    at_layer = [
        Part("gradients (micro-batch)", gradients),
        Part("working set (one layer)", one_layer),
        Part("gathered layer, table gradient", gathered + (table if split else 0.0)),
    ]
    return max(at_layer, at_logits, key=lambda parts: sum(part.bytes for part in parts))


def _learner_parts(config: Config, model: Qwen3Config, plan: BatchPlan, platform: str) -> list[Part]:
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
    # within experts only a block of tokens is widened
    inner = local.intermediate_size if experts is None else 0
    cotangents = tokens * (model.hidden_size + inner) * compute
    if lora is not None:
        # Every adapted projection writes its own output and its adapter's before they are added, and so do
        # their gradients.
        cotangents = 2 * cotangents + 2 * tokens * inner * compute
    on_cpu = platform == "cpu"
    size = tile_size(plan.row_tokens, model.attention_chunk, on_cpu)
    tile = min(size, plan.row_tokens) * min(size, plan.row_tokens + plan.prefix_width)
    # on a CPU one row and one key/value head of it at a time
    together = local.num_heads // local.num_kv_heads if on_cpu else rows * local.num_heads
    scores = 4.0 * SCORE_COPIES * together * tile if model.attention == "xla" else 0.0
    one_layer = layer_bytes(local, batch, lora) + cotangents
    if platform == "tpu" and model.remat:
        one_layer *= LAYER_ON_TPU if lora is None else ADAPTED_ON_TPU
    one_layer += scores + expert_bytes(local, rows * plan.row_tokens, mesh.expert)
    logits = 4.0 * min(DEFAULT_CHUNK, rows * plan.row_tokens) * local.vocab_size
    table = 4.0 * local.vocab_size * model.hidden_size
    stack = sum(math.prod(s) for n, s in parameter_shapes(local).items() if n.startswith("layers/"))
    used = stack
    if experts is not None:  # a chip gathers its own experts only
        used -= (
            model.num_layers * 3 * experts.count * model.hidden_size * experts.width * (1 - 1 / mesh.expert)
        )
    split = mesh.fsdp * mesh.expert > 1
    if platform == "tpu":
        # All layers are cast at once, before the loop over them and before any is gathered.
        cast = compute * stack / (mesh.fsdp * mesh.expert) if compute != 4 and lora is None else 0.0
        most = _fuller_on_tpu(
            gradients=own, one_layer=one_layer, logits=logits, table=table, compute=compute,
            gathered=compute * used / model.num_layers if split else 0.0, split=split and lora is None,
        )  # fmt: skip
        most.append(Part("cast weights", cast))
    else:
        width = compute if lora is not None else 4.0
        gathered = 0.0
        if split:
            gathered = width * used / model.num_layers + table * (width + compute) / 4
        elif compute != 4 and lora is None:
            gathered = table * compute / 4
        # Logits are differentiated before the layers are: the same memory serves both.
        working = {"working set (logits chunk)": LOGITS_COPIES * logits, "working set (one layer)": one_layer}
        largest = max(working, key=lambda name: working[name])
        most = [
            Part("gradients (micro-batch)", own),
            Part(largest, working[largest]),
            Part("gathered weights" if split else "cast weights", gathered),
        ]
    parts = [
        Part(f"{'adapters' if lora else 'parameters'} (f32 master)", own, stays=True),
        Part(f"optimiser ({config.erpo.optimizer.kind})", moments, stays=True),
        Part("gradients (running sum)", own),
        Part(f"activations kept ({'remat' if model.remat else 'no remat'})", kept),
        *most,
    ]
    if lora is not None:
        frozen = bytes_on_one(jax.eval_shape(lambda p: frozen_copy(p, model), whole), layout)
        parts.insert(0, Part(f"frozen model ({model.dtype})", frozen, stays=True))
    return parts


def engine_parts(config: Config, model: Qwen3Config, chip_bytes: float) -> list[Part]:
    """Memory of the embedded engine on the same chip: its copy of the weights in the compute type, its
    key/value store, and what a decode program copies of it; all split over the chips that share an engine. Of
    servers what they hold of the learner's chip (`rollout.sglang.memory_fraction` of `chip_bytes`)."""
    if config.rollout.engine != "jax":
        share = config.rollout.sglang.memory_fraction
        return [Part("SGLang server", share * chip_bytes, learner=False)] if share else []
    itemsize = 2 if model.dtype == "bfloat16" else 4
    tensor = engine_tensor(config.mesh.tensor, process_chips(config.mesh))
    with compiling_for(chip_named(config.mesh.chip).platform):
        size = engine_size(config)
        row = 2.0 * model.num_layers * model.num_kv_heads * model.head_dim * itemsize / tensor
        store = row * size.store_rows * size.capacity
        read = row * size.buckets[-1] * TILE * size.own_width(size.max_length, DECODE_WIDTH)
    return [
        Part("engine: weights", float(itemsize) * model.num_parameters / tensor, learner=False),
        Part("engine: KV store", store, learner=False),
        Part("engine: rows being decoded", read, learner=False),
    ]


def process_chips(mesh: MeshConfig) -> int:
    """Chips of one process: an engine lives within it."""
    return max(1, mesh.size // mesh.processes) if mesh.coordinator else mesh.size


def engine_size(config: Config) -> EngineSize:
    """What the embedded engine has room for. The length of shared prefixes is known once there are
    environments."""
    rollout, named = config.rollout, config.synthesis
    environments = len({*named.documents, *named.bundles, *named.heldout_documents})
    return EngineSize(rollout.slots, rollout.max_trajectory_tokens, prefix_rows(environments))
