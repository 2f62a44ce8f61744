"""`autoforge plan` against arithmetic by hand, and its memory figure against XLA's own."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoforge_jax.cli import app
from autoforge_jax.config import load_config, parse_config
from autoforge_jax.errors import ConfigError
from autoforge_jax.plan import compiled
from autoforge_jax.plan.batch import batch_plan, flops
from autoforge_jax.plan.chips import chip_named, chips
from autoforge_jax.plan.compiled import compile_plan, topology_of
from autoforge_jax.plan.report import Plan, make_plan, model_shape, plan_text
from benchmarks.plan_memory import case, measured, planned

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "configs" / "train"


def parts(plan: Plan) -> dict[str, float]:
    """First word or two of each part -> bytes."""
    return {part.name.partition(" (")[0]: part.bytes for part in plan.parts}


def test_every_chip_has_numbers_and_a_source() -> None:
    known = chips()
    assert set(known) == {"v5e", "v5p", "h100", "h200", "cpu"}
    for chip in known.values():
        assert chip.flops >= chip.flops_f32 > 0 and chip.memory > 1e9 and chip.bandwidth >= chip.links > 0
        assert chip.source
    assert known["v5e"].peak("bfloat16") == 197e12 and known["h200"].peak("float32") == 494e12
    with pytest.raises(ConfigError, match=r"no chip is called 'v9'; known: v5e, v5p, h100"):
        chip_named("v9")


def test_batch_and_flops_by_hand() -> None:
    config = parse_config(
        {
            "model": {
                "num_layers": 3, "hidden_size": 10, "intermediate_size": 20,
                "num_heads": 2, "num_kv_heads": 1, "head_dim": 4,
            },
            "tokenizer": {"vocab_size": 300},
            "batch": {"row_tokens": 100, "rows_per_microbatch": 3},
            "rollout": {"max_trajectory_tokens": 40},
            "erpo": {"tasks_per_step": 5, "group_size": 4, "minibatches": 2},
        }
    )  # fmt: skip
    plan = batch_plan(config)
    # 20 trajectories, 10 per update, 2 per row of 100: 5 rows, so 2 micro-batches of 3
    assert (plan.trajectories, plan.updates, plan.per_row, plan.microbatches) == (20, 2, 2, 2)
    assert plan.computed_tokens == 2 * 2 * 3 * 100
    model, where = model_shape(config)
    assert where == "[model]" and model.vocab_size == 300
    work = flops(model, plan)
    weights = 3 * 10 * (2 * 8 + 2 * 4 + 3 * 20)
    assert work.layers == 6 * weights * 1200
    assert work.attention == 3 * 4 * 8 * 3 * 1200 * 50
    assert work.output == 6 * 300 * 10 * (2 * 2 * 3 * 2 * 40)
    assert work.recomputed == (work.attention + work.output) / 3


def test_prefixes_apart_are_seen_by_every_row_and_by_themselves() -> None:
    settings = {
        "batch": {
            "row_tokens": 64, "rows_per_microbatch": 4, "prefix_tokens": 32, "prefixes_per_microbatch": 2,
        },
        "rollout": {"max_trajectory_tokens": 96},
        "erpo": {"tasks_per_step": 1, "group_size": 4},
    }  # fmt: skip
    config = parse_config(settings)
    plan = batch_plan(config)
    assert (plan.body_tokens, plan.microbatches, plan.prefix_tokens) == (64, 1, 64)
    model, _ = model_shape(config)
    scores = 4 * 128 * 4 * (4 * 64 * (32 + 32) + 2 * 32 * 16)
    assert flops(model, plan).attention == 3 * scores


@pytest.fixture(scope="module")
def single() -> Plan:
    """The plan of the single-GPU config."""
    return make_plan(load_config(TRAIN / "single_gpu_qwen3_0_6b.toml"))


@pytest.mark.slow
def test_single_gpu_config_by_hand(single: Plan) -> None:
    layer = 2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072
    count = 151_936 * 1024 + 28 * (layer + 2 * 1024 + 2 * 128) + 1024
    assert single.model.num_parameters == count == 596_049_920
    found = parts(single)
    assert found["parameters"] == found["gradients"] == 2 * found["engine: weights"] == 4 * count
    assert found["optimiser"] == pytest.approx(8 * count, abs=64)
    # slots, a prompt for each of four environments, one row for padding; a block of 32 more, in whole lanes
    assert found["engine: KV store"] == 2 * 28 * (16 + 4 + 1) * 8 * 128 * (8192 + 128) * 2
    # at most as many tiles as slots and prefixes can need, in the steps of their number
    assert found["engine: rows being decoded"] == 2 * 28 * 32 * 8 * 128 * 8192 * 2
    # the engine rests during an update
    state = found["parameters"] + found["optimiser"]
    engine = sum(size for name, size in found.items() if name.startswith("engine"))
    assert single.total == state + engine
    carries = 28 * 2 * 8192 * 1024 * 2
    assert carries <= found["activations kept"] < 1.6 * carries
    tokens = 256 * 8192
    assert single.batch.computed_tokens == tokens and single.batch.microbatches == 128
    assert single.flops.layers == 6 * 28 * layer * tokens
    assert single.flops.attention == 12 * 2048 * 28 * tokens * 4096
    assert single.time.limit == "compute" and single.time.links == 0
    assert single.time.compute == pytest.approx(single.flops.hardware / 989e12)
    assert single.fits
    text = plan_text(single)
    assert "596,049,920 parameters" in text and text.splitlines()[-1].startswith("fits: ")


@pytest.mark.slow
def test_v5e_config_by_hand() -> None:
    plan = make_plan(load_config(TRAIN / "tpu_v5e_16_qwen3_4b.toml"))
    layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728
    count = 151_936 * 2560 + 36 * (layer + 2 * 2560 + 2 * 128) + 2560
    assert plan.model.num_parameters == count == 4_022_468_096
    found = parts(plan)
    # matrices over 16 chips; norms of the residual stream over the 4 of fsdp, head norms whole
    matrices = 151_936 * 2560 + 36 * layer
    own = 4 * (matrices / 16 + 37 * 2560 / 4 + 36 * 2560 / 4 + 36 * 256)
    assert found["parameters"] == own
    assert found["optimiser"] == pytest.approx(2 * own, abs=64)
    # in bfloat16, over the 4 chips of a process, as its store of 4 slots, 4 prompts and padding
    assert found["engine: weights"] == 2 * count / 4
    assert found["engine: KV store"] == 2 * 36 * 9 * 8 * 128 * (1024 + 128) * 2 / 4
    assert plan.batch.microbatches == 32 and plan.config.mesh.size == 16
    assert plan.time.links > 0
    assert plan.fits


@pytest.mark.slow
def test_lora_config_by_hand() -> None:
    plan = make_plan(load_config(TRAIN / "single_gpu_qwen3_4b_lora.toml"))
    layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728
    norms = 36 * (2 * 2560 + 2 * 128) + 2560
    # in + out of query, key and value, output, gate and up, down
    adapters = 32 * 36 * ((2560 + 4096) + 2 * (2560 + 1024) + (4096 + 2560) + 3 * (2560 + 9728))
    assert adapters == 66_060_288
    found = parts(plan)
    assert found["frozen model"] == 2 * (151_936 * 2560 + 36 * layer) + 4 * norms
    assert found["adapters"] == found["gradients"] == 4 * adapters
    assert found["optimiser"] == pytest.approx(8 * adapters, abs=64)
    assert found["engine: weights"] == 2 * plan.model.num_parameters
    tokens = 256 * 8192
    assert plan.flops.layers == 4 * 36 * layer * tokens + 6 * adapters * tokens
    assert plan.fits
    assert "66,060,288 trained numbers, rank 32 on query, key" in plan_text(plan)


@pytest.mark.slow
def test_mixture_config_by_hand() -> None:
    plan = make_plan(load_config(TRAIN / "tpu_v5p_64_qwen3_30b_a3b.toml"))
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512
    experts = 128 * 3 * 2048 * 768
    layer = attention + experts + 2048 * 128 + 2 * 2048 + 2 * 128
    count = 2 * 151_936 * 2048 + 48 * layer + 2048
    assert plan.model.num_parameters == count == 30_532_122_624
    # the head norms lie whole on every chip, all else over 64
    own = 4 * ((count - 48 * 256) / 64 + 48 * 256)
    found = parts(plan)
    assert found["parameters"] == found["gradients"] == own
    assert found["optimiser"] == pytest.approx(2 * own, abs=64)
    assert not any(name.startswith("engine") for name in found), "servers roll out"
    assert (plan.batch.trajectories, plan.batch.microbatches, plan.batch.per_row) == (256, 4, 1)
    active = attention + 2048 * 128 + 8 * 3 * 2048 * 768
    assert plan.flops.layers == 6 * 48 * active * 256 * 16_384
    assert plan.config.mesh.size == 64 and plan.time.links > 0
    assert plan.fits
    assert "128 in each layer, 8 per token, width 768, dropless" in plan_text(plan)


@pytest.mark.slow
def test_the_command_says_what_does_not_fit() -> None:
    path = str(TRAIN / "single_gpu_qwen3_0_6b.toml")
    result = CliRunner().invoke(app, ["plan", path, "--chip", "v5e"])
    assert result.exit_code == 1, result.output
    assert (
        "does not fit" in result.output and "the largest part is engine: rows being decoded" in result.output
    )
    wrong = CliRunner().invoke(app, ["plan", path, "--chip", "abacus"])
    assert wrong.exit_code == 2 and "no chip is called 'abacus'" in wrong.output
    unfit = CliRunner().invoke(app, ["plan", path, "--set", "mesh.tensor=16"])
    assert unfit.exit_code == 2 and "does not divide model.num_kv_heads = 8" in unfit.output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "remat", "experts", "experts, remat", "lora", "lora, no remat"])
def test_planned_memory_is_within_a_tenth_of_what_xla_says(name: str) -> None:
    config, model = case(name)
    assert planned(config, model) == pytest.approx(measured(config, model), rel=0.1)


def test_a_model_that_is_not_here_is_planned_by_its_own_shape_or_not_at_all() -> None:
    shape, where = model_shape(load_config(ROOT / "configs/train/smollm2_135m_cpu.toml"))
    assert shape.num_parameters == 134_515_008  # what the model card's 135M is, embeddings counted once
    assert where.startswith(("[model] (models/", "models/"))
    with pytest.raises(ConfigError, match=r"is not here, and \[model\] says no shape"):
        model_shape(parse_config({"model": {"init_from": "models/nowhere"}}))


def test_the_usual_shape_of_a_slice() -> None:
    of_v5e = [topology_of("v5e", 2, n) for n in (1, 4, 8, 16, 32, 256)]
    assert of_v5e == [f"v5e:{shape}" for shape in ("1x1", "2x2", "2x4", "4x4", "4x8", "16x16")]
    of_v5p = [topology_of("v5p", 3, n) for n in (4, 8, 16, 32, 64, 128, 512)]
    shapes = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "8x8x8")
    assert of_v5p == [f"v5p:{shape}" for shape in shapes]
    with pytest.raises(ConfigError, match=r"the mesh has 12 chips; .*--topology v5e:"):
        topology_of("v5e", 2, 12)


def test_what_cannot_be_compiled_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_version", lambda _: "")
    gpu = make_plan(load_config(TRAIN / "single_gpu_qwen3_0_6b.toml"))
    with pytest.raises(ConfigError, match=r"CUDA plugin is not installed, .*'autoforge-jax\[gpu\]'"):
        compile_plan(gpu)
    with pytest.raises(ConfigError, match=r"--topology v5e:2x2 is for TPUs"):
        compile_plan(gpu, "v5e:2x2")
    with pytest.raises(ConfigError, match=r"mesh\.chip is 'cpu'"):
        compile_plan(make_plan(load_config(ROOT / "configs" / "quickstart.toml")))
    tpu = make_plan(load_config(TRAIN / "tpu_v5e_16_qwen3_4b.toml"))
    with pytest.raises(ConfigError, match=r"libtpu is not installed, .* pip install 'autoforge-jax\[tpu\]'"):
        compile_plan(tpu)
    with pytest.raises(ConfigError, match="3 slices do not divide the mesh's 16 chips"):
        compile_plan(tpu, slices=3)
