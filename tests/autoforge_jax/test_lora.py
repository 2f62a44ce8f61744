"""Adapters: only they are trained, they start as nothing, and merging them changes no logit."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from autoforge_jax.config import LoRAConfig, MeshConfig, OptimizerConfig, parse_config
from autoforge_jax.data.batch import pack
from autoforge_jax.errors import CheckpointError, ConfigError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.export_hf import export_hf
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.lora import adapter_shapes, frozen_copy, init_adapters, merge
from autoforge_jax.model.qwen3 import Qwen3
from autoforge_jax.model.sharding import LOGICAL_AXES
from autoforge_jax.plan.memory import abstract_layout
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.forward import Adapted, adapted_forward
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.phase_synthesis import Environments
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.state import TrainState, init_state
from autoforge_jax.train.step import TrainStep, make_train_step
from tests.autoforge_jax.mock_learner import ROWS, VOCABULARY, leaves, samples
from tests.autoforge_jax.mock_rollout import renderer, tokenizer

MODEL = Qwen3Config(
    vocab_size=VOCABULARY,
    num_layers=2,
    hidden_size=16,
    intermediate_size=24,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)
LORA = LoRAConfig(rank=2, alpha=6.0)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.05, weight_decay=0.1), 10)


@pytest.fixture(scope="module")
def base() -> nnx.State:
    """The model under the adapters."""
    return nnx.split(Qwen3(MODEL, rngs=nnx.Rngs(0)), nnx.Param)[1]


@pytest.fixture(scope="module")
def trained(base: nnx.State) -> tuple[TrainStep, TrainState, list[np.ndarray]]:
    """A step, the state after three updates, and the adapters before."""
    step = make_train_step(
        adapted_forward(MODEL, LORA.scale), OPTIMIZER, SupervisedObjective(), chunk_size=16, frozen=base
    )
    state = init_state(init_adapters(MODEL, LORA, 1), OPTIMIZER)
    before = leaves(state.params)
    batches = pack(samples(), ROWS, 0)
    losses: list[float] = []
    for _ in range(3):
        state, numbers = step(state, batches)
        losses.append(numbers["loss"])
        assert step.compile_count == 2 and numbers["update_skipped"] == 0
    assert losses[2] < losses[1] < losses[0]
    return step, state, before


def logits(params: Any) -> np.ndarray:
    """Of a row of 12 tokens under an `Adapted` or a whole model."""
    tokens = np.arange(12, dtype=np.int32)[None] % VOCABULARY
    inputs = tokens, np.arange(12, dtype=np.int32)[None], np.full((1, 12), 2, np.int32)
    if isinstance(params, Adapted):
        hidden, matrix = adapted_forward(MODEL, LORA.scale)(params, *inputs)
    else:
        graphdef = nnx.split(nnx.eval_shape(lambda: Qwen3(MODEL, rngs=nnx.Rngs(0))), nnx.Param)[0]
        model: Any = nnx.merge(graphdef, params)
        hidden, matrix = model(*inputs), model.unembedding()
    return np.asarray(hidden @ matrix.T)


def test_fresh_adapters_change_nothing(base: nnx.State) -> None:
    adapters = init_adapters(MODEL, LORA, 1)
    np.testing.assert_array_equal(logits(Adapted(base, adapters)), logits(base))
    a = np.asarray(adapters["layers"]["down_lora_a"])
    assert a.shape == (2, 24, 2) and np.std(a) == pytest.approx(24**-0.5, rel=0.2)


def test_only_adapters_have_gradients_and_optimiser_state(
    trained: tuple[TrainStep, TrainState, list[np.ndarray]], base: nnx.State
) -> None:
    step, state, before = trained
    count = sum(int(np.prod(shape)) for shape in adapter_shapes(MODEL, LORA).values())
    # by hand: 2 layers × rank 2 × Σ (in + out): q 16+16, k, v 16+8, o 16+16, gate, up 16+24, down 24+16
    assert count == 2 * 2 * (32 + 24 + 24 + 32 + 40 + 40 + 40)
    moved = leaves(state.params)
    assert sum(leaf.size for leaf in moved) == count
    moments = sum(leaf.size for leaf in leaves(state.opt_state) if leaf.ndim)
    assert moments == 2 * count
    assert all(np.any(a != b) for a, b in zip(before, moved, strict=True))
    _, grads, _ = step.loss_and_gradient(state.params, pack(samples(), ROWS, 0))
    assert jax.tree.structure(grads) == jax.tree.structure(state.params)
    untouched = nnx.split(Qwen3(MODEL, rngs=nnx.Rngs(0)), nnx.Param)[1]
    for a, b in zip(leaves(base), leaves(untouched), strict=True):
        np.testing.assert_array_equal(a, b)


def test_merged_equals_unmerged_also_after_an_export(
    trained: tuple[TrainStep, TrainState, list[np.ndarray]], base: nnx.State, tmp_path: Path
) -> None:
    adapters = trained[1].params
    whole = merge(base, adapters, LORA.scale)
    assert jax.tree.structure(whole) == jax.tree.structure(base)
    want = logits(Adapted(base, adapters))
    assert np.max(np.abs(want - logits(base))) > 0.1
    np.testing.assert_allclose(logits(whole), want, atol=2e-5)
    folder = export_hf(tmp_path / "merged", whole, MODEL)
    np.testing.assert_array_equal(logits(load_hf(folder)), logits(whole))


def test_the_gradient_is_that_of_the_merged_model_through_the_product(base: nnx.State) -> None:
    adapters = init_adapters(MODEL, LORA, 1)
    layers = dict(adapters["layers"])
    rng = np.random.default_rng(0)
    layers["up_lora_b"] = jnp.asarray(rng.normal(size=layers["up_lora_b"].shape), jnp.float32)
    adapters = {"layers": layers}

    def loss(adapters: Any) -> jax.Array:
        tokens = jnp.arange(12, dtype=jnp.int32)[None]
        inputs = tokens, tokens, jnp.full((1, 12), 2, jnp.int32)
        hidden, _ = adapted_forward(MODEL, LORA.scale)(Adapted(base, adapters), *inputs)
        return jnp.sum(jnp.sin(hidden))

    def merged_loss(adapters: Any) -> jax.Array:
        graphdef = nnx.split(nnx.eval_shape(lambda: Qwen3(MODEL, rngs=nnx.Rngs(0))), nnx.Param)[0]
        model: Any = nnx.merge(graphdef, merge(base, adapters, LORA.scale))
        tokens = jnp.arange(12, dtype=jnp.int32)[None]
        return jnp.sum(jnp.sin(model(tokens, tokens, jnp.full((1, 12), 2, jnp.int32))))

    got, want = jax.jit(jax.grad(loss))(adapters), jax.jit(jax.grad(merged_loss))(adapters)
    for a, b in zip(leaves(got), leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


def test_frozen_weights_take_the_compute_type_but_norms(base: nnx.State) -> None:
    frozen = frozen_copy(base, dataclasses.replace(MODEL, dtype="bfloat16"))
    types = {
        "norm" in jax.tree_util.keystr(path): leaf.dtype
        for path, leaf in jax.tree_util.tree_flatten_with_path(frozen)[0]
    }
    assert types == {True: jnp.float32, False: jnp.bfloat16}


def test_shapes_axes_and_refusals() -> None:
    shapes = adapter_shapes(MODEL, LORA)
    assert all(len(LOGICAL_AXES[path]) == len(shape) for path, shape in shapes.items())
    layout = abstract_layout(MeshConfig(fsdp=2, tensor=2))
    assert layout.spec("a", LOGICAL_AXES["layers/up_lora_a"], shapes["layers/up_lora_a"])[1] == "fsdp"
    assert layout.spec("b", LOGICAL_AXES["layers/up_lora_b"], shapes["layers/up_lora_b"])[2] == "tensor"
    with pytest.raises(WeightsError, match="no projection 'gate'"):
        adapter_shapes(dataclasses.replace(MODEL, experts=Experts(4, 2, 8)), LORA)
    experts = {"count": 4, "per_token": 2}
    with pytest.raises(ConfigError, match="gate, up or down"):
        parse_config({"model": {"experts": experts}, "lora": {"rank": 2}})
    with pytest.raises(ConfigError, match="each once"):
        parse_config({"lora": {"rank": 2, "targets": ["query", "query"]}})


SHAPE = {"num_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "head_dim": 8}


def assembled(root: Path, **model: object) -> Assembly:
    """A run with adapters."""
    tree = {
        "run": {"compile_cache": ""},
        "model": SHAPE | model,
        "lora": {"rank": 2, "targets": ["query", "down"]},
        "rollout": {"slots": 2},
    }
    run = RunDir(root, parse_config(tree))
    if not run.tokenizer.is_dir():
        tokenizer().save(run.tokenizer)
    return Assembly(run, renderer(), Environments((), (), {}))


def test_a_run_saves_adapters_hands_over_the_merged_model_and_knows_its_base(tmp_path: Path) -> None:
    made = assembled(tmp_path / "run")
    state = made.fresh_state("erpo")
    assert made.parameters == 2 * (16 + 16) * 2 == sum(leaf.size for leaf in leaves(state.params))
    doubled = jax.tree.map(lambda leaf: leaf + jnp.float32(0.5), state.params)
    state = dataclasses.replace(state, params=doubled)
    report = made.sync(state.params, 3)
    assert report.leaves == len(leaves(made.whole(state.params))) > len(leaves(state.params))
    for a, b in zip(leaves(made.engine.weights), leaves(made.whole(state.params)), strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(a, b)
    made.save("erpo", state, 3, 3)
    made.close()  # checkpoints are written in the background
    again = assembled(tmp_path / "run")
    restored = again.restore("erpo")
    assert restored is not None and restored[1].step == 3
    for a, b in zip(leaves(restored[0].params), leaves(doubled), strict=True):
        np.testing.assert_array_equal(a, b)
    # the same folder name, another model in it
    folder = tmp_path / "model"
    other = nnx.split(Qwen3(made.model_config, rngs=nnx.Rngs(5)), nnx.Param)[1]
    export_hf(folder, other, made.model_config)
    one = assembled(tmp_path / "from_hf", init_from=str(folder))
    one.save("erpo", one.fresh_state("erpo"), 1, 1)
    one.close()
    shutil.rmtree(folder)
    export_hf(folder, nnx.split(Qwen3(made.model_config, rngs=nnx.Rngs(6)), nnx.Param)[1], made.model_config)
    with pytest.raises(CheckpointError, match="adapters of another model"):
        assembled(tmp_path / "from_hf", init_from=str(folder)).restore("erpo")
