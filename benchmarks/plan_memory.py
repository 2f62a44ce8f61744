"""`autoforge plan`'s memory figure against XLA's own, `compiled.memory_analysis()`, on this machine's CPU.

    python benchmarks/plan_memory.py
    .venv-tpu/bin/python benchmarks/plan_memory.py --tpu    (.venv-tpu: `make test-tpu`; no TPU is needed)

Compiles the micro-batch program (gradients of one micro-batch added to the running sums) of small models and
prints planned and measured bytes: inputs, outputs that are not inputs, and temporaries. float32, one device;
bfloat16 is left out because XLA:CPU computes it in float32.

`--tpu`: against libtpu's compiler for v5p chips that are not here (`autoforge plan --compile`), in bfloat16,
on meshes too. Of a much smaller program the chip's VMEM holds a good part; the plan is too high there.
"""

from __future__ import annotations

import argparse
import os
import sys

if "--tpu" in sys.argv:
    os.environ["JAX_PLATFORMS"] = "cpu"  # libtpu is for compiling only

import jax

from autoforge_jax.config import Config, parse_config
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.lora import init_adapters
from autoforge_jax.plan.batch import batch_plan
from autoforge_jax.plan.compiled import compile_plan
from autoforge_jax.plan.memory import abstract_batch, abstract_params, learner_parts
from autoforge_jax.plan.report import make_plan
from autoforge_jax.train.forward import adapted_forward, forward_of
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.step import make_train_step

BASE = {"num_layers": 4, "hidden_size": 128, "intermediate_size": 384, "num_heads": 4, "num_kv_heads": 2}
CASES: dict[str, tuple[dict[str, object], dict[str, object], int]] = {
    "plain": (BASE, {"row_tokens": 512, "rows_per_microbatch": 4}, 2048),
    "remat": ({**BASE, "remat": True}, {"row_tokens": 512, "rows_per_microbatch": 4}, 2048),
    "deep": ({**BASE, "num_layers": 8}, {"row_tokens": 768, "rows_per_microbatch": 4}, 1024),
    "wide vocabulary": (BASE, {"row_tokens": 512, "rows_per_microbatch": 2}, 16384),
    "experts": (
        {**BASE, "experts": {"count": 8, "per_token": 2, "width": 192}},
        {"row_tokens": 512, "rows_per_microbatch": 4},
        2048,
    ),
    "experts, remat": (
        {**BASE, "remat": True, "experts": {"count": 8, "per_token": 2, "width": 192}},
        {"row_tokens": 512, "rows_per_microbatch": 4},
        2048,
    ),
    "lora": ({**BASE, "remat": True}, {"row_tokens": 512, "rows_per_microbatch": 4}, 2048),
    "lora, no remat": (
        {**BASE, "num_layers": 6, "hidden_size": 192},
        {"row_tokens": 384, "rows_per_microbatch": 3},
        4096,
    ),
    "prefixes apart": (
        BASE,
        {"row_tokens": 384, "rows_per_microbatch": 6, "prefix_tokens": 128, "prefixes_per_microbatch": 2},
        2048,
    ),
}
"""Name -> ([model], [batch], vocabulary)."""

WIDE = {
    "num_layers": 4, "hidden_size": 2048, "intermediate_size": 6144, "num_heads": 16, "num_kv_heads": 8,
    "head_dim": 128, "max_position": 4096, "dtype": "bfloat16", "remat": True,
}  # fmt: skip
MIXTURE = {**WIDE, "experts": {"count": 32, "per_token": 8, "width": 768, "balance": 1e-3}}
TPU_CASES: dict[str, tuple[dict[str, object], dict[str, object], dict[str, object]]] = {
    "plain, remat": (WIDE, {}, {}),
    "no remat": ({**WIDE, "remat": False}, {}, {}),
    "fsdp 4": (WIDE, {"fsdp": 4}, {}),
    "fsdp 4, shared prefixes": (WIDE, {"fsdp": 4}, {"batch": {"share_prefix": True}}),
    "fsdp 4, lora": (WIDE, {"fsdp": 4}, {"lora": {"rank": 16}}),
    "experts": (MIXTURE, {}, {}),
    "experts, fsdp 2, expert 4": (MIXTURE, {"fsdp": 2, "expert": 4}, {}),
}
"""Name -> ([model], [mesh], other sections). 8 rows of 4,096 tokens, 16 on a mesh; vocabulary 32,768."""


def on_tpu(name: str) -> tuple[float, float]:
    """(planned, compiled) bytes of the learner on one v5p chip, during a micro-batch."""
    model, mesh, sections = TPU_CASES[name]
    batch = {"row_tokens": 4096, "rows_per_microbatch": 16 if mesh else 8, "share_prefix": False}
    tree: dict[str, object] = {
        "model": model,
        "tokenizer": {"vocab_size": 32768},
        "rollout": {
            "engine": "sglang", "sglang": {"urls": ["http://gpu:1"]}, "max_trajectory_tokens": 4096,
        },
        "mesh": {"chip": "v5p", **mesh},
    }  # fmt: skip
    other = {key: value for key, value in sections.items() if key != "batch"}
    changed = sections.get("batch", {})
    assert isinstance(changed, dict)
    plan = make_plan(parse_config({**tree, **other, "batch": {**batch, **changed}}))
    micro_batch = compile_plan(plan).programs[0]
    return sum(part.bytes for part in plan.parts if part.learner), micro_batch.total


def case(name: str) -> tuple[Config, Qwen3Config]:
    """Config and model of one case."""
    model, batch, vocabulary = CASES[name]
    longest = int(str(batch["row_tokens"]))
    tree: dict[str, object] = {"model": model, "batch": batch, "rollout": {"max_trajectory_tokens": longest}}
    if name.startswith("lora"):
        tree["lora"] = {"rank": 8}
    config = parse_config(tree)
    return config, Qwen3Config.from_model_config(config.model, vocabulary)


def planned(config: Config, model: Qwen3Config) -> float:
    """Bytes of the micro-batch program by the plan: everything but the optimiser."""
    parts = learner_parts(config, model, batch_plan(config))
    return sum(part.bytes for part in parts if not part.name.startswith("optimiser"))


def measured(config: Config, model: Qwen3Config) -> float:
    """Bytes of the compiled program: inputs + temporaries + outputs that do not reuse an input's memory."""
    plan = batch_plan(config)
    graphdef, params = abstract_params(model)
    optimizer = make_optimizer(config.erpo.optimizer, 10)
    forward, frozen = forward_of(graphdef), None
    if config.lora.rank:
        frozen, forward = params, adapted_forward(model, config.lora.scale)
        params = jax.eval_shape(lambda: init_adapters(model, config.lora, 0))
    step = make_train_step(forward, optimizer, SupervisedObjective(), frozen=frozen)
    memory = step.lower(params, abstract_batch(plan, plan.rows, plan.prefixes)).compile().memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return float(memory.argument_size_in_bytes + memory.temp_size_in_bytes + outputs)


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tpu", action="store_true", help="for TPUs, with libtpu's compiler")
    parser.add_argument("names", nargs="*", help="of the cases; all when none is given")
    chosen = parser.parse_args()
    cases = list(TPU_CASES if chosen.tpu else CASES)
    print(f"jax {jax.__version__}, " + ("libtpu for v5p, bfloat16" if chosen.tpu else "cpu, float32"))
    print(f"{'case':<28}{'planned MB':>12}{'measured MB':>13}{'off by':>9}")
    for name in chosen.names or cases:
        if chosen.tpu:
            want, got = on_tpu(name)
        else:
            config, model = case(name)
            want, got = planned(config, model), measured(config, model)
        print(f"{name:<28}{want / 1e6:>12.1f}{got / 1e6:>13.1f}{want / got - 1:>+9.1%}", flush=True)


if __name__ == "__main__":
    main()
