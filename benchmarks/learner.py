"""One policy-gradient update, side by side: this learner, Tunix, and torch + transformers.

    python benchmarks/learner.py --tunix TUNIX_PYTHON --torch TORCH_PYTHON [--remat] [--rounds 7]
        [--compiles 5] [--core 1]

Each side runs in a process of its own, under the Python it is given (its own virtual environment:
google-tunix 0.1.7; torch 2.13 with transformers and safetensors), on one pinned core with one thread, without
a compile cache. A side that is not named is left out. All start from the same Hugging Face folder (float32
weights, written here) and take the same batch: 8 sequences of 512 tokens, 128 of prompt and 384 of
completion, one clipped policy-gradient loss (clip 0.2, token mean, no KL), entropy as a metric, gradient
clipped by norm 1, AdamW. The first losses and gradient norms must agree to 1e-3 relative, or the run stops:
same work.

No side recomputes layers in the backward pass, which is the default of all three (model.remat = false;
Tunix's RematConfig.NONE; transformers without gradient checkpointing). `--remat` adds both JAX sides with it
(model.remat = true; RematConfig.DECODER). Ours computes scores, logits, norms and activations again in any
case.

Sides take turns, one update each per round; CPU seconds (user and system) are the process's own. Memory: the
process's high-water mark after these rounds, and the same minus what it held after its imports.

Compile seconds are JAX's own (tracing, lowering and XLA together, as `jax.monitoring` gives them) in an
update after `jax.clear_caches()`: `--compiles` times, sides taking turns, the median. `first` is the CPU time
of a process's first update beyond the median of the others: what a user waits for, with whatever libraries
import and set up late, and with the first touch of the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

SHAPE = {
    "vocab_size": 8192, "num_layers": 8, "hidden_size": 256, "intermediate_size": 768,
    "num_heads": 8, "num_kv_heads": 4, "head_dim": 64, "rope_theta": 1e6,
}  # fmt: skip
"""Rotary base 1e6: Tunix 0.1.7 turns by 1e6 whatever its config's `rope_theta` says."""
ROWS, PROMPT, LENGTH = 8, 128, 512
CLIP, LEARNING_RATE, BETAS = 0.2, 1e-4, (0.9, 0.95)
Step = Callable[[], tuple[float, float]]
"""One update; returns (loss, gradient norm before clipping)."""


def data() -> dict[str, Any]:
    """The batch in plain numpy."""
    import numpy as np

    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(4, SHAPE["vocab_size"], (ROWS, LENGTH)).astype(np.int32),
        "old": (-9.0 + 0.1 * rng.normal(size=(ROWS, LENGTH - PROMPT))).astype(np.float32),
        "advantages": rng.normal(size=ROWS).astype(np.float32),
    }


def ours(folder: Path, *, remat: bool = False) -> Step:
    """autoforge_jax, in a process prepared as `autoforge` does."""
    from flax import nnx

    from autoforge_jax.config import BatchConfig, OptimizerConfig
    from autoforge_jax.data.batch import pack
    from autoforge_jax.model.hf_config import read_hf_config
    from autoforge_jax.model.load_hf import load_hf
    from autoforge_jax.model.qwen3 import Qwen3
    from autoforge_jax.numerics.losses import PolicyLossConfig
    from autoforge_jax.train.forward import forward_of
    from autoforge_jax.train.objectives import PolicyObjective
    from autoforge_jax.train.optimizer import make_optimizer
    from autoforge_jax.train.state import init_state
    from autoforge_jax.train.step import make_train_step
    from autoforge_jax.types import TrainingSample
    from autoforge_jax.xla_flags import prepare_process

    prepare_process()
    batch = data()
    config = replace(read_hf_config(folder), remat=remat)
    graphdef = nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))), nnx.Param)[0]
    b1, b2 = BETAS
    optimizer = make_optimizer(OptimizerConfig(learning_rate=LEARNING_RATE, b1=b1, b2=b2), 1000)
    objective = PolicyObjective(PolicyLossConfig(clip_low=CLIP, clip_high=CLIP), 1.0)
    step = make_train_step(forward_of(graphdef), optimizer, objective)
    state = init_state(load_hf(folder, config), optimizer)
    mask = (False,) * PROMPT + (True,) * (LENGTH - PROMPT)
    samples = [
        TrainingSample(
            token_ids=tuple(map(int, batch["ids"][row])),
            action_mask=mask,
            loss_mask=mask,
            rollout_logprobs=(float("nan"),) * PROMPT + tuple(map(float, batch["old"][row])),
            advantage=float(batch["advantages"][row]),
            prefix_length=PROMPT,
            environment_id=f"e{row}",
            task_id=f"t{row}",
            group=row,
            weight=1.0,
        )
        for row in range(ROWS)
    ]
    batches = pack(samples, BatchConfig(row_tokens=LENGTH, rows_per_microbatch=ROWS), 0)

    def update() -> tuple[float, float]:
        nonlocal state
        state, numbers = step(state, batches)
        return numbers["loss"], numbers["grad_norm"]

    return update


def tunix(folder: Path, *, remat: bool = False) -> Step:
    """Tunix's Qwen3, GRPO loss and trainer step."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from tunix.models.qwen3 import model as qwen3
    from tunix.models.qwen3 import params as loader
    from tunix.rl import algo_core, common
    from tunix.rl.grpo import grpo_learner
    from tunix.sft import peft_trainer

    batch = data()
    config = qwen3.ModelConfig(
        num_layers=SHAPE["num_layers"],
        vocab_size=SHAPE["vocab_size"],
        embed_dim=SHAPE["hidden_size"],
        hidden_dim=SHAPE["intermediate_size"],
        num_heads=SHAPE["num_heads"],
        head_dim=SHAPE["head_dim"],
        num_kv_heads=SHAPE["num_kv_heads"],
        rope_theta=1_000_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
        remat_config=qwen3.RematConfig.DECODER if remat else qwen3.RematConfig.NONE,
    )
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    model = loader.create_model_from_safe_tensors(str(folder), config, mesh, dtype=jnp.float32)
    b1, b2 = BETAS
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, b1, b2, weight_decay=0)
    )
    trainer = peft_trainer.PeftTrainer(model, optimizer, peft_trainer.TrainingConfig(eval_every_n_steps=1000))
    algorithm = grpo_learner.GRPOConfig(loss_agg_mode="token-mean", beta=0.0, epsilon=CLIP)
    algorithm.temperature = 1.0  # as its learner sets it from the rollout's settings

    def loss(model: Any, train_example: Any) -> Any:
        return algo_core.grpo_loss_fn(model, train_example, algorithm, pad_id=0, eos_id=1)

    trainer.with_loss_fn(loss, has_aux=True)
    trainer.with_gen_model_input_fn(lambda example: {"train_example": example})
    example = common.TrainExample(
        prompt_ids=jnp.asarray(batch["ids"][:, :PROMPT]),
        prompt_mask=jnp.ones((ROWS, PROMPT), jnp.int32),
        completion_ids=jnp.asarray(batch["ids"][:, PROMPT:]),
        completion_mask=jnp.ones((ROWS, LENGTH - PROMPT), jnp.int32),
        advantages=jnp.asarray(batch["advantages"]),
        ref_per_token_logps=None,
        old_per_token_logps=jnp.asarray(batch["old"]),
    )
    with mesh:
        step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)

    def update() -> tuple[float, float]:
        with mesh:
            loss, aux, norm = step(example)
        jax.tree.map(np.asarray, aux)  # the numbers a trainer logs; waits for the device
        return float(loss), float(norm)

    return update


def torch(folder: Path) -> Step:
    """transformers' Qwen3 with torch's own attention."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    batch = {name: torch.from_numpy(value) for name, value in data().items()}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
    ids, completion = batch["ids"].long(), batch["ids"][:, PROMPT:].long()

    def update() -> tuple[float, float]:
        logits = model(input_ids=ids, logits_to_keep=LENGTH - PROMPT + 1, use_cache=False).logits[:, :-1]
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
        chosen = logprobs.gather(-1, completion[..., None])[..., 0]
        ratio = (chosen - batch["old"]).clamp(-20, 20).exp()
        advantage = batch["advantages"][:, None]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(entropy)
        return float(loss.detach()), float(norm)

    return update


REMAT = "+remat"
SIDES: dict[str, Callable[[Path], Step]] = {
    "ours": ours,
    "tunix": tunix,
    "torch": torch,
    f"ours{REMAT}": partial(ours, remat=True),
    f"tunix{REMAT}": partial(tunix, remat=True),
}
IMPORTS = {"ours": "autoforge_jax.train.step", "tunix": "tunix.rl.grpo.grpo_learner", "torch": "transformers"}


COMPILATION = "/jax/core/compile/"
"""Beginning of the names of JAX's events."""


def memory(key: str) -> float:
    """Megabytes of VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {key}; this benchmark needs Linux")


def worker(side: str, folder: Path, core: int) -> None:
    """One side: a JSON line after its first update, then one per update that is asked for: "step", or
    "compile" for an update that compiles everything again."""
    os.sched_setaffinity(0, {core})
    replies, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    __import__(IMPORTS[side.removesuffix(REMAT)])
    imported = memory("VmRSS")
    step = SIDES[side](folder)

    compiled = [0.0]
    if side != "torch":
        import jax

        def listen(event: str, seconds: float, **_: object) -> None:
            compiled[0] += seconds if event.startswith(COMPILATION) else 0.0

        jax.monitoring.register_event_duration_secs_listener(listen)

    def measured() -> dict[str, float]:
        compiled[0] = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        loss, norm = step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {
            "loss": loss,
            "norm": norm,
            "wall": wall,
            "cpu": cpu,
            "compiled": compiled[0],
            "peak": memory("VmHWM"),
        }

    def reply(values: dict[str, float]) -> None:
        print(json.dumps(values), file=replies, flush=True)

    reply(measured() | {"imported": imported})
    for line in sys.stdin:
        if line.strip() == "compile":
            jax.clear_caches()  # pyright: ignore[reportPossiblyUnboundVariable]  torch is never asked
        reply(measured())


def write_model(folder: Path) -> None:
    """The start of all sides."""
    from flax import nnx

    from autoforge_jax.model.config import Qwen3Config
    from autoforge_jax.model.export_hf import export_hf
    from autoforge_jax.model.qwen3 import Qwen3

    config = Qwen3Config(**SHAPE)
    export_hf(folder, nnx.split(Qwen3(config, rngs=nnx.Rngs(0)), nnx.Param)[1], config)


class Side:
    """A worker process and what it said."""

    def __init__(self, name: str, python: str, folder: Path, core: int, log: Path) -> None:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]) if name.startswith("ours") else "",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
        }
        command = [python, str(Path(__file__).resolve()), "--side", name, "--folder", str(folder)]
        self.name, self.log = name, log
        self._process = subprocess.Popen(
            [*command, "--core", str(core)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
        )  # fmt: skip
        self.first = self._read()
        self.updates: list[dict[str, float]] = []
        self.compiles: list[float] = []

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.name} ended with {self._process.wait()}:\n{self.log.read_text()[-2000:]}"
            )
        return json.loads(line)

    def step(self, command: str = "step") -> dict[str, float]:
        """One update."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._read()

    def finish(self) -> list[str]:
        """End the process; a row of the table."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        cpu = [update["cpu"] for update in self.updates]
        first = self.first["cpu"] - statistics.median(cpu)
        peak = self.updates[-1]["peak"]
        compiled = spread(self.compiles) if self.compiles else ""
        above = peak - self.first["imported"]
        return [self.name, spread(cpu), compiled, f"{first:.1f}", f"{peak:.0f}", f"{above:.0f}"]


def spread(values: list[float]) -> str:
    """Median [least, most]."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> None:
    """Run all sides that are named and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tunix", help="Python of a virtual environment with google-tunix")
    parser.add_argument("--torch", help="Python of a virtual environment with torch and transformers")
    parser.add_argument("--remat", action="store_true", help="both JAX sides with remat too")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compiles", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side:
        worker(chosen.side, chosen.folder, chosen.core)
        return
    pythons = {"ours": sys.executable, "tunix": chosen.tunix, "torch": chosen.torch}
    if chosen.remat:
        pythons |= {f"{name}{REMAT}": pythons[name] for name in ("ours", "tunix")}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_model(folder)
        sides = [
            Side(name, python, folder, chosen.core, Path(place) / f"{name}.log")
            for name, python in pythons.items()
            if python
        ]
        for side in sides:
            found = f"first loss {side.first['loss']:.6f}, norm {side.first['norm']:.6f}"
            print(f"{side.name:<12} {found}", flush=True)
            for key in ("loss", "norm"):
                want = sides[0].first[key]
                if abs(side.first[key] - want) > 1e-3 * abs(want):
                    raise SystemExit(f"{side.name} computes another {key}: not the same work")
        for _ in range(chosen.rounds):
            for side in sides:
                side.updates.append(side.step())
        for _ in range(chosen.compiles):
            for side in sides:
                if side.name != "torch":
                    side.compiles.append(side.step("compile")["compiled"])
        rows = [side.finish() for side in sides]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{chosen.rounds} rounds, core {chosen.core}, Python {sys.version.split()[0]}, load {load}")
    titles = ["side", "CPU s", "compile s", "first", "peak MB", "above imports"]
    for row in [titles, *rows]:
        print("".join(f"{cell:<{width}}" for cell, width in zip(row, (13, 22, 20, 8, 9, 13), strict=True)))


if __name__ == "__main__":
    main()
