"""`autoforge plan CONFIG --compile`: the run's own programs, compiled for its chips on a machine that has
none. What fails there, a kernel, a mesh, a program that does not fit, would fail on the pod.

For TPUs libtpu brings the compiler and knows the chips by the name of their topology (``v5p:4x4x4``). For
NVIDIA's GPUs JAX's CUDA plugin does, and is told what a chip is (`_HOPPER`); what cuDNN needs for itself, and
which of several kernels is fastest, it finds out on the chip only. Both are loaded for compiling alone:
JAX_PLATFORMS must be ``cpu`` when JAX is imported, whatever the machine has.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from autoforge_jax.compilation import compiling_for, target_platform
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.lora import frozen_copy, init_adapters
from autoforge_jax.model.sharding import MESH_AXES, Layout, device_mesh, make_layout
from autoforge_jax.numerics.kernels import Kernel, kernel_of
from autoforge_jax.plan.chips import Chip
from autoforge_jax.plan.memory import abstract_batch, abstract_params, engine_size, process_chips
from autoforge_jax.plan.report import Plan, size_text
from autoforge_jax.rollout.engine_layout import layout_over
from autoforge_jax.rollout.engine_programs import engine_programs
from autoforge_jax.train.forward import adapted_forward, forward_of
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.step import make_train_step

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
CUDA_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    # a run on this machine's own TPU may be under way
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  l2_cache_size: 52428800 clock_rate_ghz: 1.98
  memory_bandwidth: {bandwidth:.0f} device_memory_size: {memory:.0f}
  cuda_compute_capability {{ major: 9 minor: 0 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{name}"
"""
"""XLA's GpuTargetConfigProto of an H100 or H200 SXM, from NVIDIA's data sheets and deviceQuery."""


@dataclass(frozen=True)
class Program:
    """One compiled program, on one chip. Sizes in bytes."""

    name: str
    seconds: float
    """Wall clock: lowering and compiling."""
    arguments: int
    temporaries: int
    """The most at one time. On TPUs without the gaps between them, some per cent."""
    outputs: int
    """That do not take an argument's memory."""
    code: int
    collectives: Mapping[str, int]
    """Operation -> how often it stands in the program; one in a loop counts once."""
    beside: float = 0.0
    """What the chip holds meanwhile that is no argument."""

    @property
    def total(self) -> float:
        """Bytes on the chip while it runs."""
        return self.arguments + self.temporaries + self.outputs + self.code + self.beside


@dataclass(frozen=True)
class Compiled:
    """The programs of a config for a topology."""

    topology: str
    chips: int
    compiler: str
    kernel: Kernel
    programs: tuple[Program, ...]

    @property
    def largest(self) -> Program:
        """The one that needs most."""
        return max(self.programs, key=lambda program: program.total)


def topology_of(chip: str, axes: int, count: int) -> str:
    """The usual shape of a slice of `count` chips: ``v5e:4x4``, ``v5p:2x4x4``. axes: of the chip's torus.
    ConfigError for a number that is no power of two."""
    if count < 1 or count & (count - 1):
        raise ConfigError(
            f"the mesh has {count} chips; slices have a power of two. Name the topology: --topology {chip}:…"
        )
    sides = [1] * axes if count == 1 else [2, 2, *[1] * (axes - 2)]  # a host holds 2 × 2
    while math.prod(sides) < count:
        shortest = max(i for i, side in enumerate(sides) if side == min(sides))
        sides[shortest] *= 2
    return f"{chip}:{'x'.join(map(str, sides))}"


def compile_plan(plan: Plan, topology: str = "", slices: int = 1) -> Compiled:
    """Compile the learner's programs of a plan, and the embedded engine's largest.

    topology: of one TPU slice; without it the usual one of that many chips. slices: of TPUs, or hosts of
    GPUs. ConfigError without the compiler, for a chip that it does not know, a topology of another size than
    the mesh, a mesh that does not fit it, or a program that the compiler refuses, in its words.
    """
    config, mesh, platform = plan.config, plan.config.mesh, plan.chip.platform
    if slices < 1 or mesh.size % slices:
        raise ConfigError(f"{slices} slices do not divide the mesh's {mesh.size} chips")
    if platform == "tpu":
        topology = topology or topology_of(mesh.chip, plan.chip.torus, mesh.size // slices)
        compiler, devices = _tpus(topology, slices)
    elif platform == "gpu":
        if topology:
            raise ConfigError(f"--topology {topology} is for TPUs; of GPUs --slices says the number of hosts")
        topology = f"{slices} host{'s' if slices > 1 else ''} of {mesh.size // slices}"
        compiler, devices = _gpus(plan.chip, slices, mesh.size // slices)
    else:
        raise ConfigError(f"mesh.chip is {mesh.chip!r}: its programs are compiled when they are run here")
    if len(devices) != mesh.size:
        raise ConfigError(
            f"{slices} × {topology} is {len(devices)} chips, the mesh ({mesh.describe()}) has {mesh.size}; "
            "they must agree"
        )
    kernel = kernel_of(config, plan.model, platform)
    plan = replace(plan, model=replace(plan.model, attention=kernel))
    alone = config.model_copy(update={"mesh": mesh.model_copy(update={"coordinator": "", "processes": 1})})
    layout = make_layout(alone.mesh, plan.model, plan.batch.rows, devices)
    with compiling_for(platform):
        programs = _learner_programs(plan, layout or _single(devices[0]))
        if config.rollout.engine == "jax":
            programs += _engine_programs(plan)
    return Compiled(topology, len(devices), compiler, kernel, programs)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _tpus(topology: str, slices: int) -> tuple[str, list[Any]]:
    """The compiler's name, and chips of a topology that are not here."""
    found = _version("libtpu")
    if not found:
        raise ConfigError(
            "libtpu is not installed, which compiles for TPUs; no TPU is needed: pip install "
            "'autoforge-jax[tpu]' into an environment of its own (JAX looks for TPUs wherever libtpu is)"
        )
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    sides = topology.partition(":")[2].split("x")
    single = {"chips_per_host_bounds": [1, 1, 1]} if all(side == "1" for side in sides) else {}
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, num_slices=slices, **single
        )
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise ConfigError(
            f"libtpu knows no topology {topology!r} ({error}); expected e.g. v5e:4x4"
        ) from error
    return f"libtpu {found}", list(described.devices)


def _gpus(chip: Chip, hosts: int, count: int) -> tuple[str, list[Any]]:
    """The compiler's name, and GPUs that are not here."""
    plugin = next((name for name in CUDA_PLUGINS if _version(name)), "")
    if not plugin:
        raise ConfigError(
            "JAX's CUDA plugin is not installed, which compiles for NVIDIA's GPUs; no GPU is needed: "
            "pip install 'autoforge-jax[gpu]'"
        )
    described = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        topology=f"1x{hosts}x{count}",
        target_config=_HOPPER.format(name=chip.name, bandwidth=chip.bandwidth, memory=chip.memory),
    )
    return f"{plugin} {_version(plugin)}", list(described.devices)


def _single(device: Any) -> Layout:
    """One chip that is not there: programs must say where they run all the same."""
    return Layout(device_mesh((1,) * len(MESH_AXES), [device]))


def _learner_programs(plan: Plan, layout: Layout) -> tuple[Program, ...]:
    config, model, batch = plan.config, plan.model, plan.batch
    graphdef, params = abstract_params(model)
    forward, frozen = forward_of(graphdef), None
    if config.lora.rank:
        frozen = jax.eval_shape(lambda p: frozen_copy(p, model), params)
        forward = adapted_forward(model, config.lora.scale)
        params = jax.eval_shape(lambda: init_adapters(model, config.lora, 0))
    steps = config.erpo.optimizer.warmup_steps + 2  # the programs do not depend on it
    optimizer = make_optimizer(config.erpo.optimizer, steps)
    objective = PolicyObjective.from_config(config.erpo, config.rollout.temperature)
    step = make_train_step(forward, optimizer, objective, layout=layout, frozen=frozen)
    count: Any = jax.ShapeDtypeStruct((), jnp.int32)
    state = TrainState(params, jax.eval_shape(optimizer.init, params), count, count)
    optimiser = sum(part.bytes for part in plan.parts if part.name.startswith("optimiser"))
    kept = sum(part.bytes for part in plan.parts if part.name.startswith("frozen"))
    engine = 0.0 if plan.takes_turns else sum(part.bytes for part in plan.parts if not part.learner)
    micro_batch = abstract_batch(batch, batch.rows, batch.prefixes)
    return (
        _compiled("micro-batch", lambda: step.lower(params, micro_batch), optimiser + engine),
        _compiled("update", lambda: step.lower_update(state), kept + engine),
    )


def _engine_programs(plan: Plan) -> tuple[Program, ...]:
    """Of the engine of one process, on chips of its own slice or host. How long shared prefixes are is known
    once there are environments: a quarter of a trajectory stands in."""
    config, mesh = plan.config, plan.config.mesh
    count = process_chips(mesh)
    if plan.chip.platform == "tpu":
        _, devices = _tpus(topology_of(mesh.chip, plan.chip.torus, count), 1)
    else:
        _, devices = _gpus(plan.chip, 1, count)
    size = replace(engine_size(config), prefix_tokens=config.rollout.max_trajectory_tokens // 4)
    lowered = engine_programs(plan.model, size, layout_over(devices, mesh.tensor))
    kept = sum(p.bytes for p in plan.parts if p.learner and (p.stays or not plan.takes_turns))
    return tuple(
        _compiled(f"engine: {name}", lambda name=name: lowered[name], kept) for name in ("prefill", "decode")
    )


def _compiled(name: str, lower: Any, beside: float) -> Program:
    began = time.perf_counter()
    try:
        done = lower().compile()
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"the {name} program does not compile: {error}") from error
    seconds = time.perf_counter() - began
    memory = done.memory_analysis()
    arguments, outputs = (
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
    )
    temporaries = memory.temp_size_in_bytes
    if target_platform() == "tpu":
        # Each of libtpu's two accounts holds more than must fit. `temp_size_in_bytes`: programs compile for
        # which it is more than the chip has; what it refuses them by is the peak. That in turn counts the
        # chip's VMEM too, most of a small program.
        temporaries = min(temporaries, memory.peak_memory_in_bytes - arguments - outputs)
    found = Counter(re.findall(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(", done.as_text()))
    return Program(
        name=name,
        seconds=seconds,
        arguments=arguments,
        temporaries=temporaries,
        outputs=outputs,
        code=memory.generated_code_size_in_bytes,
        collectives={kind: found[kind] for kind in COLLECTIVES if found[kind]},
        beside=beside,
    )


def compiled_text(compiled: Compiled, plan: Plan) -> str:
    """What was compiled, as lines to follow the plan's."""
    lines = [
        "",
        f"compiled    by {compiled.compiler} for {compiled.chips} chips ({compiled.topology}), attention "
        f"{compiled.kernel}",
    ]
    for program in compiled.programs:
        beside = f", beside it {size_text(program.beside)}" if program.beside else ""
        lines.append(
            f"  {program.name:<16}{size_text(program.total):>10}   arguments {size_text(program.arguments)}, "
            f"temporaries {size_text(program.temporaries + program.outputs)}, code "
            f"{size_text(program.code)}{beside}; {program.seconds:.0f} s"
        )
        if program.collectives:
            counts = ", ".join(f"{count} {kind}" for kind, count in program.collectives.items())
            lines.append(f"  {'':<16}{'':>10}   {counts}")
    if compiled.kernel == "cudnn":
        lines.append("  what cuDNN's attention needs for itself comes on top; only the GPU tells")
    largest = compiled.largest
    verdict = "fits" if largest.total <= plan.room else "does not fit"
    lines.append(
        f"{verdict}: {size_text(largest.total)} of {size_text(plan.room)} usable by the compiler's account, "
        f"where the plan says {size_text(plan.total)}"
    )
    return "\n".join(lines)
