"""Experts: blocks against sums by hand, dropless routing, the balance loss, and a mesh with experts."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from autoforge_jax.compilation import compiling_for
from autoforge_jax.config import MeshConfig, parse_config
from autoforge_jax.errors import ConfigError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.fit import check_mesh
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.moe import moe_mlp
from autoforge_jax.model.qwen3 import Qwen3, forward_with_balance, parameter_shapes, weights_of
from autoforge_jax.model.sharding import LOGICAL_AXES
from autoforge_jax.numerics.expert_blocks import Matrices, assign_blocks, block_size, sum_by_blocks
from autoforge_jax.train.forward import forward_of
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.step import make_train_step
from tests.autoforge_jax.mock_learner import OPTIMIZER, ROWS, VOCABULARY, leaves, samples
from tests.autoforge_jax.test_qwen3 import golden_folder

ROOT = Path(__file__).resolve().parents[2]
MOE = Qwen3Config(
    vocab_size=VOCABULARY,
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    experts=Experts(count=4, per_token=2, width=8),
)


def choices_of(case: str) -> np.ndarray:
    """[11, 2] of three experts; 3 and -1 = not here."""
    rng = np.random.default_rng(0)
    if case == "none here":
        return np.tile(np.array([3, -1], np.int32), (11, 1))
    if case == "all the same":
        return np.tile(np.array([2, 0], np.int32), (11, 1))
    return np.stack([rng.permutation(np.arange(-1, 4))[:2] for _ in range(11)]).astype(np.int32)


@pytest.mark.parametrize("case", ["mixed", "all the same", "none here"])
@pytest.mark.parametrize("size", [1, 2, 4, 64])
def test_blocks_of_experts_and_their_gradients_equal_a_sum_by_hand(size: int, case: str) -> None:
    """Values, and gradients for tokens, weights and all three matrices."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape).astype(np.float32))

    tokens, weights = normal(11, 5), normal(11, 2)
    matrices = normal(3, 5, 6), normal(3, 5, 6), normal(3, 6, 5)
    chosen = choices_of(case)

    def ours(tokens: jax.Array, weights: jax.Array, matrices: Matrices) -> jax.Array:
        return sum_by_blocks(tokens, weights, matrices, assign_blocks(jnp.asarray(chosen), 3, size))

    def by_hand(tokens: jax.Array, weights: jax.Array, matrices: Matrices) -> jax.Array:
        total = jnp.zeros_like(tokens)
        for token, choice in np.argwhere((chosen >= 0) & (chosen < 3)):
            gate, up, down = (matrix[chosen[token, choice]] for matrix in matrices)
            result = (jax.nn.silu(tokens[token] @ gate) * (tokens[token] @ up)) @ down
            total = total.at[token].add(weights[token, choice] * result)
        return total

    asked = normal(11, 5)
    arguments = (tokens, weights, matrices)
    with jax.numpy_dtype_promotion("strict"):
        got = jax.jit(lambda *a: jax.vjp(ours, *a)[0])(*arguments)
        grads = jax.jit(lambda *a: jax.vjp(ours, *a)[1](asked))(*arguments)
    want, pulled_back = jax.vjp(by_hand, *arguments)
    np.testing.assert_allclose(got, want, atol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(pulled_back(asked)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert (case == "none here") == (not np.any(got))


def test_blocks_in_bfloat16_add_up_in_float32() -> None:
    """1,024 tokens ask one expert for the same: its gradient is exactly 1,024 times that of one. Blocks of 8
    each add to it, and a sum in bfloat16 would stop growing long before."""
    one = jnp.ones((1024, 8), jnp.bfloat16)
    matrices = tuple(jnp.ones((1, 8, 8), jnp.bfloat16) for _ in range(3))
    weights, chosen = jnp.ones((1024, 1), jnp.bfloat16), jnp.zeros((1024, 1), jnp.int32)

    def total(matrices: Any, count: int) -> jax.Array:
        blocks = assign_blocks(chosen[:count], 1, 8)
        return jnp.sum(sum_by_blocks(one[:count], weights[:count], matrices, blocks))

    single, many = (jax.grad(total)(matrices, count) for count in (1, 1024))
    for a, b in zip(single, many, strict=True):
        assert b.dtype == jnp.bfloat16
        np.testing.assert_array_equal(1024 * np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_every_platforms_blocks_give_the_same_layer(platform: str) -> None:
    """The largest blocks of each, several of them for one expert."""
    rng = np.random.default_rng(2)
    experts = Experts(count=3, per_token=2, width=4)
    layer = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in experts.layer_shapes(4).items()
    }
    h, valid = rng.normal(size=(4, 1100, 4)).astype(np.float32), np.ones((4, 1100), bool)

    def gradient(layer: Any, h: jax.Array) -> Any:
        return jax.grad(lambda layer, h: jnp.sum(moe_mlp(layer, h, valid, experts)[0] ** 2), (0, 1))(layer, h)

    want = jax.jit(gradient)(layer, h)
    with compiling_for(platform):
        sizes = {"cpu": 128, "gpu": 2048, "tpu": 1024}
        assert block_size(8800, 3, platform) == sizes[platform]
        got = jax.jit(lambda *a: gradient(*a))(layer, h)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_blocks_hold_every_pair_once_and_each_one_expert() -> None:
    chosen = np.array([[2, 0], [2, 5], [0, 2], [2, -1]], np.int32)  # 5 and -1 = not here; 1 is empty
    blocks = assign_blocks(jnp.asarray(chosen), 3, 2)
    assert blocks.pairs.shape == (6, 2)  # 8 pairs and one spare place for each expert, in blocks of 2
    assert int(blocks.used) == 3
    held = {}
    for pairs, expert in zip(blocks.pairs[:3], blocks.expert[:3], strict=True):
        for pair in np.asarray(pairs):
            if pair < 8:
                assert pair not in held
                held[int(pair)] = int(expert)
    assert held == {i: e for i, e in enumerate(chosen.ravel().tolist()) if 0 <= e < 3}
    assert np.all(np.asarray(blocks.pairs[3:]) == 8)
    assert [block_size(*sizes) for sizes in ((8, 4, "cpu"), (4096, 4, "cpu"), (9**6, 4, "cuda"))] == [
        8,
        128,
        2048,
    ]
    assert block_size(4096, 4, "tpu") == 1024


def test_every_token_gets_all_its_experts_however_uneven_the_load() -> None:
    rng = np.random.default_rng(1)
    experts = Experts(count=4, per_token=2, width=6)
    layer = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in experts.layer_shapes(5).items()
    }
    h = rng.normal(size=(2, 7, 5)).astype(np.float32)
    h[0] = h[0, :1]  # a row of one token repeated: two experts take everything
    valid = np.ones((2, 7), bool)
    valid[1, 4:] = False
    got, balance = jax.jit(moe_mlp, static_argnums=3)(layer, h, valid, experts)
    wide = {name: value.astype(np.float64) for name, value in layer.items()}
    for b in range(2):
        load, mean = np.zeros(4), np.zeros(4)
        for t in range(7):
            x = h[b, t].astype(np.float64)
            logits = x @ wide["router"]
            p = np.exp(logits - logits.max())
            p /= p.sum()
            chosen = np.argsort(-p)[:2]
            want = np.zeros(5)
            for e in chosen if valid[b, t] else ():
                gate, up = x @ wide["expert_gate"][e], x @ wide["expert_up"][e]
                want += p[e] / p[chosen].sum() * ((gate / (1 + np.exp(-gate)) * up) @ wide["expert_down"][e])
                load[e] += 1 / valid[b].sum()
            mean += p * valid[b, t] / valid[b].sum()
            np.testing.assert_allclose(got[b, t], want, atol=2e-4)
        assert float(balance.penalty[b]) == pytest.approx(4 * load @ mean, rel=1e-5)
        assert float(balance.peak_load[b]) == pytest.approx(load.max() * 4 / 2, rel=1e-5)
    assert float(balance.peak_load[0]) == pytest.approx(2.0)  # all tokens at each of two of four


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_unnormalised"])
def test_the_balance_loss_is_transformers_for_one_row_and_layer(name: str, tmp_path: Path) -> None:
    folder, golden = golden_folder(name, tmp_path)
    config = Qwen3Config.from_hf(json.loads((folder / "config.json").read_text()))
    segments = np.full_like(golden["tokens"], 2)
    weights = weights_of(load_hf(folder, config))
    _, balance = jax.jit(forward_with_balance, static_argnums=1)(
        weights, config, golden["tokens"], golden["positions"], segments
    )
    assert balance is not None
    np.testing.assert_allclose(balance.penalty, golden["balance"].mean(axis=1), rtol=1e-5)


def step_of(config: Qwen3Config) -> tuple[Any, Any]:
    """(step, parameters of seed 0)."""
    graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)), nnx.Param)
    return make_train_step(forward_of(graphdef), OPTIMIZER, SupervisedObjective(), chunk_size=16), params


def test_loss_gradient_and_balance_do_not_depend_on_the_split() -> None:
    from autoforge_jax.data.batch import pack

    config = dataclasses.replace(MOE, experts=dataclasses.replace(MOE.experts, balance=0.1))  # type: ignore[type-var]
    step, params = step_of(config)
    whole = pack(samples(), ROWS, 0)
    split = pack(samples(), ROWS.model_copy(update={"rows_per_microbatch": 1}), 0)
    assert len(split) > len(whole) == 1
    loss, grads, metrics = step.loss_and_gradient(params, whole)
    other, _ = step_of(config)
    again, parts, parts_metrics = other.loss_and_gradient(params, split)
    assert loss == pytest.approx(again, rel=1e-6)
    for a, b in zip(leaves(grads), leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name, value in metrics.items():
        assert parts_metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    # the loss without the balance term, plus 0.1 times the metric (all weights are 1 here)
    plain, _ = step_of(MOE)
    alone, _, plain_metrics = plain.loss_and_gradient(params, whole)
    assert loss == pytest.approx(alone + 0.1 * metrics["router_balance"], rel=1e-6)
    assert metrics["router_balance"] >= 2 * 0.99 and 1.0 <= metrics["router_load_max"] <= 2.0
    assert plain_metrics["router_balance"] == pytest.approx(metrics["router_balance"])
    router = grads["layers"]["router"]
    assert np.any(np.asarray(jax.tree.leaves(router)[0]) != 0)


def test_the_embedded_engine_samples_with_the_learners_log_probs() -> None:
    from autoforge_jax.model.qwen3 import forward, unembedding
    from autoforge_jax.rollout.engine_jax import JaxEngine
    from autoforge_jax.types import SampleRequest, SamplingParams

    graphdef, params = nnx.split(Qwen3(MOE, rngs=nnx.Rngs(0)), nnx.Param)
    engine = JaxEngine(graphdef, MOE, slots=2, max_length=48, pad_id=0, prefixes=1)
    engine.load(params, version=1)
    ids = (3, 9, 4, 17, 6)
    settings = SamplingParams(max_turn_tokens=12, stop_token_ids=(1,), temperature=1.0)
    output = engine.sample([SampleRequest("a", ids, settings, 5, 0)])[0]
    whole = np.array([ids + output.token_ids], np.int32)
    positions = np.arange(whole.shape[1], dtype=np.int32)[None]
    weights = weights_of(params)
    hidden = forward(weights, MOE, whole, positions, np.full_like(whole, 2))
    table = np.asarray(jax.nn.log_softmax(hidden @ unembedding(weights).T, axis=-1))[0]
    assert len(output.token_ids) > 1
    want = [table[i - 1, whole[0, i]] for i in range(len(ids), whole.shape[1])]
    np.testing.assert_allclose(output.logprobs, want, atol=1e-4)


def test_shapes_counts_axes_and_configs() -> None:
    shapes = parameter_shapes(MOE)
    assert sum(int(np.prod(s)) for s in shapes.values()) == MOE.num_parameters
    assert all(len(LOGICAL_AXES[name]) == len(shape) for name, shape in shapes.items())
    # by hand: 24·16 + 2·(2·16·16 + 2·16·8 + 2·16 + 2·8 + 16·4 + 4·3·16·8) + 16
    assert MOE.num_parameters == 384 + 2 * (512 + 256 + 32 + 16 + 64 + 1536) + 16
    assert Qwen3Config.from_hf(MOE.to_hf()) == MOE
    tree = MOE.to_hf()
    tree["num_local_experts"] = tree.pop("num_experts")  # how transformers 5 writes it
    assert Qwen3Config.from_hf(tree) == MOE
    with pytest.raises(WeightsError, match="mlp_only_layers"):
        Qwen3Config.from_hf({**MOE.to_hf(), "mlp_only_layers": [0]})
    with pytest.raises(ConfigError, match=r"per_token is 8 and experts.count 4"):
        parse_config({"model": {"experts": {"count": 4}}})
    with pytest.raises(ConfigError, match="dense layers"):
        parse_config({"model": {"init": "retrieval", "num_kv_heads": 4, "experts": {"count": 16}}})
    config = parse_config({"model": {"experts": {"count": 4, "per_token": 2, "width": 8, "balance": 0.01}}})
    assert Qwen3Config.from_model_config(config.model, 24).experts == Experts(4, 2, 8, balance=0.01)


@pytest.mark.parametrize(
    ("mesh", "rows", "message"),
    [
        ({"expert": 3}, 3, r"mesh.expert is 3, which does not divide model.experts.count = 4"),
        ({"expert": 2}, 3, r"mesh.data × mesh.fsdp × mesh.expert = 2 must divide it"),
        ({"tensor": 3}, 3, r"mesh.tensor is 3, which does not divide model.num_heads"),
        ({"fsdp": 16, "expert": 2}, 32, r"mesh.fsdp × mesh.expert is 32, which does not divide"),
    ],
)
def test_a_mesh_that_does_not_fit_says_which_number(mesh: dict[str, int], rows: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_mesh(MeshConfig.model_validate(mesh), MOE, rows)


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What moe_mesh_cases.py finds on 8 devices."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.autoforge_jax.moe_mesh_cases", str(ROOT / ".jax_cache")],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["expert", "expert_fsdp", "all", "apart"])
def test_a_mesh_with_experts_gives_the_loss_and_gradient_of_one_device(
    facts: dict[str, Any], mesh: str
) -> None:
    found = facts[mesh]
    assert found["same_start"]
    assert found["loss_error"] < 1e-6
    assert found["gradient_error"] < 1e-5
    assert found["metric_error"] < 1e-5


@pytest.mark.slow
def test_experts_and_everything_else_are_split_over_the_expert_axis(facts: dict[str, Any]) -> None:
    shares = facts["expert_fsdp"]["shares"]
    assert shares["layers/expert_up"] == shares["layers/expert_down"] == 1 / 8
    assert shares["layers/query"] == shares["embedding"] == 1 / 8
    assert facts["all"]["shares"]["layers/expert_gate"] == 1 / 8  # fsdp × expert × tensor
