"""Experts: grouped products against a loop, dropless routing, the balance loss, and a mesh with experts."""

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

from autoforge_jax.config import MeshConfig, parse_config
from autoforge_jax.errors import ConfigError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.fit import check_mesh
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.moe import moe_mlp
from autoforge_jax.model.qwen3 import Qwen3, forward_with_balance, parameter_shapes, weights_of
from autoforge_jax.model.sharding import LOGICAL_AXES
from autoforge_jax.numerics.grouped import assign_slots, block_size, grouped_dot, to_pairs, to_slots
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


@pytest.mark.parametrize("block", [1, 4])
def test_grouped_products_and_their_gradients_equal_a_loop(block: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(9, 5)).astype(np.float32), rng.normal(size=(3, 5, 6)).astype(np.float32)
    groups = rng.integers(0, 4, (9, 2)).astype(np.int32)  # 3 = not here
    groups[:, 0] = 1  # one group takes half of everything: nothing is dropped

    def ours(x: jax.Array, w: jax.Array) -> jax.Array:
        slots = assign_slots(jnp.asarray(groups), 3, block)
        return to_pairs(grouped_dot(to_slots(x, slots), w, slots), slots)

    def by_hand(x: jax.Array, w: jax.Array) -> jax.Array:
        padded = jnp.concatenate([w, jnp.zeros((1, 5, 6), jnp.float32)])
        return jnp.einsum("nd,nkdf->nkf", x, padded[groups])

    np.testing.assert_allclose(jax.jit(ours)(x, w), by_hand(jnp.asarray(x), jnp.asarray(w)), atol=1e-5)
    weight = rng.normal(size=(9, 2, 6)).astype(np.float32)
    got = jax.jit(jax.grad(lambda x, w: jnp.sum(ours(x, w) * weight), (0, 1)))(x, w)
    want = jax.grad(lambda x, w: jnp.sum(by_hand(x, w) * weight), (0, 1))(x, w)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_slots_hold_every_pair_once_and_blocks_one_group() -> None:
    groups = np.array([[2, 0], [2, 5], [0, 2], [2, 2]], np.int32)  # 5 = not here; group 1 is empty
    slots = assign_slots(jnp.asarray(groups), 3, 2)
    total = slots.token_of_slot.shape[0]
    assert total == 12  # 8 pairs and one padding slot for each group, in blocks of 2
    places = np.asarray(slots.slot_of_pair)
    assert places[1, 1] == total and len(set(places.ravel())) == 8
    assert np.asarray(slots.sizes).tolist() == [2, 0, 6] and int(slots.blocks_used) == 4
    for token, row in enumerate(places):
        for choice, place in enumerate(row):
            if place < total:
                assert slots.group_of_block[place // 2] == groups[token, choice]
                assert slots.token_of_slot[place] == token
    assert [block_size(*sizes) for sizes in ((8, 4, "cpu"), (4096, 4, "cpu"), (9**6, 4, "cuda"))] == [
        8,
        128,
        512,
    ]
    assert block_size(4096, 4, "tpu") == 1


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
