"""The learner's update on an accelerator: tokens per second, MFU, memory, kernel. One command:

    python benchmarks/accelerator.py --chip h200                  # Qwen3-0.6B and 4B whole, and 4B by LoRA
    python benchmarks/accelerator.py --chip h200 --case 4b --rows 4 --steps 10
    python benchmarks/accelerator.py --chip cpu --case 0.6b --rows 1 \\
        --set model.num_layers=2 --set batch.row_tokens=256 --set rollout.max_trajectory_tokens=256 \\
        --set tokenizer.vocab_size=2048 --set model.dtype=float32      # tries the script itself, on a CPU

Shapes are those of configs/train with weights drawn at random (no download): bf16 compute, float32 master
weights and moments, AdamW, remat as the config says. Rows of `batch.row_tokens` (8,192) are packed with
trajectories of length 512 to `rollout.max_trajectory_tokens`, a third of each a prompt without loss. One
micro-batch an update. Reported are the median of the updates after the first two, and their spread; formulas
of tokens per second and MFU: autoforge_jax/train/throughput.py. Peak FLOPs are the chip's of plan/chips.toml
times the devices of `[mesh]`. Every case has a process of its own, so that peak memory is its own.

The machine must have what the mesh of the config wants; other meshes by --set mesh.fsdp=8 and so on.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from autoforge_jax.config import Config, load_config
from autoforge_jax.data.batch import pack
from autoforge_jax.errors import AutoforgeError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.lora import frozen_copy, init_adapters
from autoforge_jax.model.sharding import make_layout
from autoforge_jax.numerics.kernels import choose_kernel
from autoforge_jax.plan.chips import chip_named
from autoforge_jax.plan.memory import adapter_weights
from autoforge_jax.train.assembly import create_params
from autoforge_jax.train.forward import adapted_forward, forward_of
from autoforge_jax.train.instruments import compile_clock, device_memory_gb, host_memory_gb
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.state import init_state
from autoforge_jax.train.step import make_train_step
from autoforge_jax.train.throughput import throughput, work_of
from autoforge_jax.types import TrainingSample

TRAIN = Path(__file__).resolve().parents[1] / "configs/train"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "0.6b": ("single_gpu_qwen3_0_6b.toml", ()),
    "4b": ("single_gpu_qwen3_4b_lora.toml", ("lora.rank=0",)),
    "4b-lora": ("single_gpu_qwen3_4b_lora.toml", ()),
}
"""Name -> config, overrides."""
WARM_UP = 2
"""Updates that are not counted: the first compiles."""


def samples(config: Config, vocabulary: int, rows: int) -> list[TrainingSample]:
    """Trajectories that fill `rows` rows, as ERPO makes them."""
    rng = np.random.default_rng(0)
    longest = config.rollout.max_trajectory_tokens
    shortest = min(512, longest)
    made: list[TrainingSample] = []
    room = [config.batch.row_tokens] * rows
    while True:
        length = int(rng.integers(shortest, longest + 1))
        row = next((i for i, left in enumerate(room) if left >= length), None)
        if row is None:
            length = max(room)
            if length < 64:
                return made
            row = room.index(length)
        room[row] -= length
        prompt = length // 3
        mask = (False,) * prompt + (True,) * (length - prompt)
        made.append(
            TrainingSample(
                token_ids=tuple(rng.integers(4, vocabulary, length).tolist()),
                action_mask=mask,
                loss_mask=mask,
                rollout_logprobs=(float("nan"),) * prompt + (-np.log(vocabulary),) * (length - prompt),
                advantage=float(rng.normal()),
                prefix_length=prompt,
                environment_id=f"e{len(made)}",
                task_id=f"t{len(made)}",
                group=len(made),
                weight=1.0,
            )
        )


def measure(name: str, chip: str, rows: int, steps: int, overrides: list[str]) -> str:
    """One line of the table."""
    file, fixed = CASES[name]
    sets = [*fixed, "model.init_from=", f"batch.rows_per_microbatch={rows}", f"mesh.chip={chip}", *overrides]
    config = load_config(TRAIN / file, sets)
    shape = Qwen3Config.from_model_config(config.model, config.tokenizer.vocab_size)
    kernel = choose_kernel(
        config.model.attention, platform=jax.default_backend(), dtype=shape.dtype, head_dim=shape.head_dim,
        row_tokens=config.batch.row_tokens, shared_prefixes=config.batch.share_prefix,
    )  # fmt: skip
    shape = replace(shape, attention=kernel)
    layout = make_layout(config.mesh, shape, rows)
    clock = compile_clock()
    graphdef, params = create_params(shape, config.run.seed, layout)
    forward, frozen = forward_of(graphdef), None
    if config.lora.rank:
        frozen = jax.jit(lambda params: frozen_copy(params, shape))(params)
        forward = adapted_forward(shape, config.lora.scale)
        params = init_adapters(shape, config.lora, config.run.seed)
        if layout is not None:
            params = layout.place(params, layout.of_state(params))
    optimizer = make_optimizer(config.erpo.optimizer, 1000)
    objective = PolicyObjective.from_config(config.erpo, config.rollout.temperature)
    step = make_train_step(forward, optimizer, objective, layout=layout, frozen=frozen)
    state = init_state(params, optimizer, layout)
    del params
    batches = pack(samples(config, shape.vocab_size, rows), config.batch, 0)
    work = work_of(batches)
    seconds: list[float] = []
    numbers: dict[str, float] = {}
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        state, numbers = step(state, batches)
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - began)
    assert numbers["update_skipped"] == 0 and np.isfinite(numbers["loss"]), numbers
    counted = seconds[WARM_UP:]
    peak = chip_named(chip).peak(shape.dtype) * config.mesh.size
    adapters = adapter_weights(shape, config.lora)
    speed, low, high = (
        throughput(work, shape, s, peak, adapters)
        for s in (statistics.median(counted), max(counted), min(counted))
    )
    memory = device_memory_gb()
    where = f"{memory:.1f} GB device" if memory is not None else f"{host_memory_gb():.1f} GB host"
    return (
        f"{name:9}{shape.num_parameters:>15,}{work.computed_tokens:>9,}{statistics.median(counted):>9.3f}"
        f"{speed['useful_tokens_per_s']:>11,.0f} ({low['useful_tokens_per_s']:,.0f}–"
        f"{high['useful_tokens_per_s']:,.0f})  {speed['mfu']:>6.1%} {speed['useful_mfu']:>6.1%}  {where}  "
        f"{kernel}{', remat' if shape.remat else ''}  {clock.seconds:.0f} s compiling"
    )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__
    )
    parser.add_argument("--chip", required=True, help="whose peak MFU is of: a name of plan/chips.toml")
    parser.add_argument("--case", choices=tuple(CASES), action="append", help="may be repeated; all without")
    parser.add_argument("--rows", type=int, default=2, help="rows of a micro-batch")
    parser.add_argument("--steps", type=int, default=8, help="updates that count")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override of the config"
    )
    options = parser.parse_args()
    if len(options.case or CASES) > 1:
        for name in options.case or CASES:
            words = ["--chip", options.chip, "--rows", str(options.rows), "--steps", str(options.steps)]
            words += [word for text in options.set for word in ("--set", text)]
            subprocess.run([sys.executable, __file__, "--case", name, *words], check=False)
        return
    devices = jax.devices()
    versions = f"jax {jax.__version__}, Python {platform.python_version()}"
    print(f"{len(devices)} × {devices[0].device_kind}, {versions}")
    print(
        "case          parameters   tokens  seconds  useful tokens/s (spread)        MFU useful  peak memory"
    )
    try:
        print(measure(options.case[0], options.chip, options.rows, options.steps, options.set))
    except (AutoforgeError, jax.errors.JaxRuntimeError) as error:
        sys.exit(f"{options.case[0]}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
