"""`autoforge plan CONFIG`: will it fit, how long will a step take, and what limits it. No accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoforge_jax.config import Config, ModelConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.hf_config import stored_shape
from autoforge_jax.numerics.kernels import kernel_of
from autoforge_jax.plan.batch import BatchPlan, Flops, batch_plan, flops
from autoforge_jax.plan.chips import Chip, chip_named
from autoforge_jax.plan.memory import Part, adapter_weights, engine_parts, learner_parts
from autoforge_jax.plan.possible import check_possible, check_tokenizer

USABLE = 0.92
"""Part of a chip's memory that a program gets: the rest is the runtime's, and fragments."""

_SHAPE = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads")


@dataclass(frozen=True)
class StepTime:
    """Seconds of one ERPO step's updates at the chip's peak numbers, by resource. Rollouts are not in it."""

    compute: float
    memory: float
    links: float

    @property
    def limit(self) -> str:
        """The resource that takes longest."""
        return max(("compute", "memory", "links"), key=lambda name: getattr(self, name))

    @property
    def seconds(self) -> float:
        """The longest of the three: they overlap at best."""
        return max(self.compute, self.memory, self.links)


@dataclass(frozen=True)
class Plan:
    """Everything that `autoforge plan` prints."""

    config: Config
    model: Qwen3Config
    shape_from: str
    chip: Chip
    batch: BatchPlan
    flops: Flops
    parts: tuple[Part, ...]
    time: StepTime

    @property
    def takes_turns(self) -> bool:
        """The engine gives its memory back while the learner updates (`Assembly.rest`)."""
        rollout = self.config.rollout
        shared = rollout.engine == "jax" or rollout.sglang.share_device
        return shared and not self.config.erpo.max_staleness

    @property
    def updating(self) -> float:
        """Bytes on one chip during an update."""
        return sum(part.bytes for part in self.parts if part.learner or not self.takes_turns)

    @property
    def rolling_out(self) -> float:
        """Bytes on one chip during rollouts, once the learner has given back what only updates need."""
        return sum(part.bytes for part in self.parts if part.stays or not part.learner)

    @property
    def total(self) -> float:
        """Bytes on one chip; of two that take turns, at the fuller of the two times."""
        return max(self.updating, self.rolling_out if self.takes_turns else 0.0)

    @property
    def room(self) -> float:
        """Bytes that one chip offers."""
        return USABLE * self.chip.memory

    @property
    def fits(self) -> bool:
        """The parts are within the room."""
        return self.total <= self.room


def model_shape(config: Config) -> tuple[Qwen3Config, str]:
    """The model's shape and where it is from: the folder `model.init_from` when it is there (as training
    reads it), else the `[model]` section with `tokenizer.vocab_size`."""
    folder = config.model.init_from
    if folder and (Path(folder) / "config.json").is_file():
        shape = stored_shape(Path(folder), config.model)
        return shape, f"{folder}/config.json"
    where = "[model]"
    if folder:
        where += f" ({folder} is not here)"
        if all(getattr(config.model, name) == getattr(ModelConfig(), name) for name in _SHAPE):
            raise ConfigError(
                f"model.init_from {folder!r} is not here, and [model] says no shape: nothing can be planned. "
                f"Get the folder, or write {', '.join(_SHAPE)} and tokenizer.vocab_size into the config"
            )
    return Qwen3Config.from_model_config(config.model, config.tokenizer.vocab_size), where


def step_time(config: Config, model: Qwen3Config, plan: BatchPlan, work: Flops, chip: Chip) -> StepTime:
    """Seconds by resource of all updates of a step.

    Memory: each micro-batch reads the parameters for the forward and the backward pass (once more with remat)
    and reads and writes two gradient arrays; each update passes over parameters, two moments and gradients,
    twice. Links: fsdp (and expert) gathers the parameters for the forward and the backward pass and scatters
    the gradients, once per micro-batch; expert also gathers tokens and scatters their results; data adds
    gradients up once (both ways round a ring); tensor adds up activations twice per layer in each pass.
    """
    mesh = config.mesh
    count = plan.updates * plan.microbatches
    itemsize = 2 if model.dtype == "bfloat16" else 4
    share = model.num_parameters / mesh.tensor
    if model.experts is not None:  # a chip gathers its own experts only
        experts = model.num_layers * model.experts.layer_parameters(model.hidden_size) / mesh.tensor
        share -= experts * (1 - 1 / mesh.expert)
    trained = adapter_weights(model, config.lora) / mesh.tensor or share
    shared = mesh.fsdp * mesh.expert
    own = trained / shared
    compute = work.hardware / (chip.peak(model.dtype) * mesh.size)
    passes = 3 if model.remat else 2
    traffic = count * (passes * share * itemsize + 4 * own * 4) + plan.updates * 2 * 4 * own * 4
    sent = 0.0
    tokens = (plan.rows * plan.row_tokens + plan.prefix_tokens) / (mesh.data * shared)
    if shared > 1:
        sent += count * (shared - 1) / shared * (share * passes * itemsize + trained * 4)
    if mesh.expert > 1:
        # tokens gathered and their float32 results scattered, in each pass
        moved = (mesh.expert - 1) * tokens * model.hidden_size * (itemsize + 4)
        sent += count * model.num_layers * (passes + 1) * moved
    if mesh.data > 1:
        sent += count * 2 * (mesh.data - 1) / mesh.data * own * 4
    if mesh.tensor > 1:
        sums = 2 * model.num_layers * (passes + 1)
        sent += count * sums * 2 * (mesh.tensor - 1) / mesh.tensor * tokens * model.hidden_size * itemsize
    return StepTime(compute, traffic / chip.bandwidth, sent / chip.links)


def make_plan(config: Config, chip: str = "") -> Plan:
    """Plan a config for the chip it names, or for another. ConfigError for an unknown chip, a batch that
    cannot be, and what `check_possible` finds."""
    model, shape_from = model_shape(config)
    check_possible(config, model)
    check_tokenizer(config, model)
    # whether the machine has the kernel is not the plan's to say, whether config and model allow it is
    own = {"cudnn": "gpu", "splash": "tpu"}.get(config.model.attention)
    if own is not None:
        kernel_of(config, model, own)
    config = config.model_copy(
        update={"mesh": config.mesh.model_copy(update={"chip": chip or config.mesh.chip})}
    )
    found = chip_named(config.mesh.chip)
    batch = batch_plan(config)
    work = flops(model, batch, adapter_weights(model, config.lora))
    parts = (*learner_parts(config, model, batch), *engine_parts(config, model, found.memory))
    return Plan(
        config, model, shape_from, found, batch, work, parts, step_time(config, model, batch, work, found)
    )


def plan_text(plan: Plan) -> str:
    """The plan as a page of text."""
    mesh, batch, time, model = plan.config.mesh, plan.batch, plan.time, plan.model
    lines = [
        f"model       {model.num_parameters:,} parameters from {plan.shape_from}; {model.num_layers} layers, "
        f"width {model.hidden_size}, {model.num_heads}/{model.num_kv_heads} heads, vocabulary "
        f"{model.vocab_size:,}; {model.dtype}, {'remat' if model.remat else 'no remat'}",
        *_variant(plan),
        f"chips       {mesh.size} × {plan.chip.name} as {mesh.describe()}",
        f"peaks       {plan.chip.source}",
        "",
        f"batch       {plan.config.erpo.tasks_per_step} tasks × {plan.config.erpo.group_size} rollouts = "
        f"{batch.trajectories} trajectories of at most {plan.config.rollout.max_trajectory_tokens} tokens",
        f"            {batch.per_row} such per row of {batch.row_tokens}, {batch.rows} rows per micro-batch, "
        f"{batch.microbatches} micro-batches × {batch.updates} updates = {batch.computed_tokens:,} tokens",
        "",
        "memory of one chip",
        *(f"  {part.name:<34}{size_text(part.bytes):>10}" for part in plan.parts),
        *_turns(plan),
        f"  {'total':<34}{size_text(plan.total):>10}   of {size_text(plan.room)} usable "
        f"({USABLE:.0%} of {size_text(plan.chip.memory)})",
        "",
        f"work        {plan.flops.model / 1e12:,.2f} TFLOP a step (layers {plan.flops.layers / 1e12:,.2f}, "
        f"attention {plan.flops.attention / 1e12:,.2f}, output {plan.flops.output / 1e12:,.2f}), and "
        f"{plan.flops.recomputed / 1e12:,.2f} computed twice",
        f"time        at least {_seconds(time.seconds)} a step at peak, limited by {time.limit} (compute "
        f"{_seconds(time.compute)}, memory {_seconds(time.memory)}, links {_seconds(time.links)}); "
        f"{_seconds(2 * time.seconds)} at half of it. Rollouts come on top",
        "",
        _verdict(plan),
    ]
    return "\n".join(lines)


def _variant(plan: Plan) -> list[str]:
    """Lines on experts and adapters."""
    model, lora = plan.model, plan.config.lora
    lines: list[str] = []
    if model.experts is not None:
        outside = model.num_layers * model.active_layer_weights
        lines.append(
            f"experts     {model.experts.count} in each layer, {model.experts.per_token} per token, width "
            f"{model.experts.width}, dropless; {outside:,} weights active per token in the layers"
        )
    if lora.rank:
        count = adapter_weights(model, lora)
        lines.append(f"adapters    {count:,} trained numbers, rank {lora.rank} on {', '.join(lora.targets)}")
    return lines


def _turns(plan: Plan) -> list[str]:
    """The two times of a chip that learner and engine take turns on."""
    if not plan.takes_turns:
        return []
    return [
        f"  {'during an update (engine at rest)':<34}{size_text(plan.updating):>10}",
        f"  {'during rollouts':<34}{size_text(plan.rolling_out):>10}",
    ]


def _verdict(plan: Plan) -> str:
    if plan.fits:
        return f"fits: {size_text(plan.room - plan.total)} to spare on each chip"
    largest = max(plan.parts, key=lambda part: part.bytes)
    return (
        f"does not fit: {size_text(plan.total - plan.room)} too much on each chip; the largest part is "
        f"{largest.name} ({size_text(largest.bytes)}). {_advice(plan.parts, largest, plan.model.remat)}"
    )


def _advice(parts: Sequence[Part], largest: Part, remat: bool) -> str:
    if largest.name in ("engine: KV store", "engine: rows being decoded"):
        return "Lower rollout.slots or rollout.max_trajectory_tokens"
    if not remat and largest.name.startswith("activations"):
        return "Set model.remat = true, or lower batch.rows_per_microbatch"
    if largest.name.startswith(("activations", "working")):
        return "Lower batch.rows_per_microbatch or batch.row_tokens"
    if largest.name == "engine: weights":
        return "The engine's copy is split over the chips of one process only; take hosts with more of them"
    return "Raise mesh.fsdp or mesh.tensor"


def size_text(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.2f} MB"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.3g} s"
