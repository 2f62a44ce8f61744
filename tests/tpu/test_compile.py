"""The run's programs, compiled by libtpu for chips that are not here (`make test-tpu`): what the tests on
CPUs cannot see of a TPU's compiler, kernels and tori."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autoforge_jax.cli import app
from autoforge_jax.config import Config, parse_config
from autoforge_jax.errors import ConfigError
from autoforge_jax.plan.compiled import CUDA_PLUGINS, Compiled, compile_plan
from autoforge_jax.plan.report import Plan, make_plan

ROOT = Path(__file__).resolve().parents[2]
needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is tested by make test-tpu")

MODEL = {
    "num_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 128, "remat": True, "dtype": "bfloat16",
}  # fmt: skip
EXPERTS = {"count": 8, "per_token": 2, "width": 128, "balance": 1e-3}


def config(mesh: dict[str, Any], **sections: dict[str, Any]) -> Config:
    """A small model of bfloat16 on TPUs, with SGLang elsewhere."""
    batch = {"row_tokens": 1024, "rows_per_microbatch": 8, "share_prefix": False}
    tree: dict[str, Any] = {
        "model": MODEL | sections.pop("model", {}),
        "batch": batch | sections.pop("batch", {}),
        "tokenizer": {"vocab_size": 4096},
        "rollout": {"engine": "sglang", "sglang": {"urls": ["http://gpu:1"]}, "max_trajectory_tokens": 512},
        "mesh": {"chip": "v5e"} | mesh,
    }
    return parse_config(tree | sections)


def compiled(made: Config, topology: str = "", slices: int = 1) -> tuple[Plan, Compiled]:
    plan = make_plan(made)
    return plan, compile_plan(plan, topology, slices)


@needs_libtpu
def test_the_update_of_one_chip_and_its_arguments_by_hand() -> None:
    plan, done = compiled(config({}))
    assert (done.topology, done.chips, done.kernel) == ("v5e:1x1", 1, "splash")
    micro_batch, update = done.programs
    weights = 4 * plan.model.num_parameters
    batch = 8 * 1024 * (8 * 4 + 2 * 1)  # eight arrays of four bytes, two masks
    assert micro_batch.arguments == pytest.approx(2 * weights + batch, rel=0.05)
    assert update.arguments == pytest.approx(4 * weights, rel=0.01)
    # donated: sums and state are updated where they lie
    assert micro_batch.outputs < 1e5 and update.outputs < 1e5
    assert update.temporaries < weights, "a second copy of the state would be three times that"
    assert not micro_batch.collectives and done.largest is micro_batch


@needs_libtpu
def test_the_plan_and_the_compiler_agree() -> None:
    """Large enough that the chip's VMEM counts for little; more cases in benchmarks/plan_memory.py --tpu."""
    wide = {"num_layers": 8, "hidden_size": 1024, "intermediate_size": 3072, "num_heads": 8}
    plan, done = compiled(config({}, model=wide))
    planned = sum(part.bytes for part in plan.parts if part.learner)
    assert planned == pytest.approx(done.programs[0].total, rel=0.1)


@needs_libtpu
@pytest.mark.parametrize(
    ("mesh", "sections", "topology", "kernel"),
    [
        ({"fsdp": 2, "tensor": 2}, {}, "v5e:2x2", "splash"),
        ({"fsdp": 4}, {"batch": {"share_prefix": True}}, "v5e:2x2", "xla"),
        ({"fsdp": 2, "expert": 4, "chip": "v5p"}, {"model": {"experts": EXPERTS}}, "v5p:2x2x2", "splash"),
        ({"fsdp": 4}, {"lora": {"rank": 4}}, "v5e:2x2", "splash"),
    ],
    ids=["fsdp and tensor", "shared prefixes", "experts", "adapters"],
)
def test_meshes(mesh: dict[str, Any], sections: dict[str, Any], topology: str, kernel: str) -> None:
    _, done = compiled(config(mesh, **sections))
    assert (done.topology, done.kernel) == (topology, kernel)
    assert done.programs[0].collectives


@needs_libtpu
def test_an_axis_that_is_a_part_of_the_torus() -> None:
    """8 × 8 on 4 × 4 × 4, as configs/train/tpu_v5p_64_qwen3_30b_a3b.toml has it: `jax.make_mesh` refuses."""
    made = config(
        {"fsdp": 8, "expert": 8, "chip": "v5p"},
        model={"experts": EXPERTS},
        batch={"rows_per_microbatch": 64},
    )
    _, done = compiled(made)
    assert (done.topology, done.chips) == ("v5p:4x4x4", 64)


@needs_libtpu
def test_two_slices() -> None:
    _, done = compiled(config({"data": 2, "fsdp": 4}), slices=2)
    assert (done.topology, done.chips) == ("v5e:2x2", 8)
    with pytest.raises(ConfigError, match="data is 1 and fsdp 1, but the devices are 2 slices or hosts"):
        compiled(config({"tensor": 2}), topology="v5e:1x1", slices=2)


@needs_libtpu
def test_what_the_compiler_refuses_is_said_in_its_words() -> None:
    """16 GB of a v5e chip."""
    made = config({}, model={"remat": False, "num_layers": 24}, batch={"rows_per_microbatch": 96})
    with pytest.raises(ConfigError, match=r"micro-batch program does not compile: .* exceeds available HBM"):
        compiled(made)


@needs_libtpu
def test_topologies_that_do_not_go() -> None:
    plan = make_plan(config({"fsdp": 4}))
    with pytest.raises(ConfigError, match=r"1 × v5e:2x4 is 8 chips, the mesh .* has 4"):
        compile_plan(plan, "v5e:2x4")
    with pytest.raises(ConfigError, match="libtpu knows no topology 'v5e:3x3'"):
        compile_plan(plan, "v5e:3x3")


@pytest.mark.skipif(
    not any(find_spec(name.replace("-", "_")) for name in CUDA_PLUGINS),
    reason="no CUDA plugin of JAX (several GB; no GPU is needed)",
)
@pytest.mark.parametrize(
    ("mesh", "hosts", "kernel"),
    [({}, 1, "cudnn"), ({"data": 2, "fsdp": 4}, 2, "cudnn")],
    ids=["one", "two hosts"],
)
def test_for_gpus(mesh: dict[str, Any], hosts: int, kernel: str) -> None:
    _, done = compiled(config({"chip": "h100"} | mesh, batch={"share_prefix": True}), slices=hosts)
    assert (done.chips, done.kernel) == (max(1, 8 * (hosts - 1)), "cudnn")
    assert done.programs[0].outputs < 1e5 and bool(done.programs[0].collectives) == (hosts > 1)


@needs_libtpu
def test_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'extends = "{ROOT / "configs/train/tpu_v5e_16_qwen3_4b.toml"}"\n')
    words = ["plan", str(file), "--compile"]
    for change in ("model.num_layers=2", "tokenizer.vocab_size=4096", "model.init_from="):
        words += ["--set", change]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "for 16 chips (v5e:4x4), attention xla" in done.output
    assert "\n  micro-batch " in done.output and "\nfits: " in done.output
