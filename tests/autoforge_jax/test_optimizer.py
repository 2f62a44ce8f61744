"""Schedules by hand, one AdamW step by hand, and what Muon does to stacked matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from autoforge_jax.config import OptimizerConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.optimizer import make_optimizer, make_schedule
from tests.autoforge_jax.mock_learner import tiny_qwen3


def rates(steps: int, total: int, **fields: object) -> list[float]:
    schedule = make_schedule(OptimizerConfig(learning_rate=1.0, **fields), total)  # type: ignore[arg-type]
    return [float(schedule(jnp.asarray(i))) for i in range(steps)]


def test_schedules() -> None:
    assert rates(3, 3) == [1, 1, 1]
    assert rates(5, 5, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert rates(2, 5, warmup_steps=1) == [1, 1]
    assert rates(6, 6, schedule="linear", warmup_steps=2, end_fraction=0.2) == pytest.approx(
        [0.5, 1, 1, 0.8, 0.6, 0.4]
    )
    cosine = rates(5, 4, schedule="cosine", end_fraction=0.1)
    assert cosine == pytest.approx([0.1 + 0.45 * (1 + np.cos(np.pi * i / 4)) for i in range(5)])
    with pytest.raises(ConfigError, match="leaves nothing of 10 steps"):
        make_schedule(OptimizerConfig(schedule="cosine", warmup_steps=10), 10)
    # a phase that is left out (sft.steps = 0 of a pretrained policy) keeps its default schedule
    make_schedule(OptimizerConfig(schedule="cosine", warmup_steps=10), 0)


def test_adamw_step_clips_and_decays_matrices_only() -> None:
    config = OptimizerConfig(learning_rate=0.1, b1=0.9, b2=0.95, weight_decay=0.5, max_grad_norm=1.0)
    params = {
        "layers": {"query": jnp.ones((1, 2, 2)), "input_norm": jnp.ones((1, 2))},
        "embedding": jnp.ones((3, 2)),
    }
    grads = jax.tree.map(lambda p: jnp.full(p.shape, 3.0), params)
    optimizer = make_optimizer(config, 10)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
    # The first Adam step is the sign of the gradient whatever its (clipped) size; decay adds lr × 0.5 × 1.
    np.testing.assert_allclose(updates["layers"]["query"], np.full((1, 2, 2), -0.1 - 0.05), rtol=1e-4)
    np.testing.assert_allclose(updates["layers"]["input_norm"], np.full((1, 2), -0.1), rtol=1e-4)
    np.testing.assert_allclose(updates["embedding"], np.full((3, 2), -0.1), rtol=1e-4)


def test_gradients_are_clipped_by_the_norm_of_all_of_them() -> None:
    """As optax.clip_by_global_norm, whether the norm is given or computed."""
    config = OptimizerConfig(
        kind="adamw", learning_rate=1.0, b1=0.0, b2=0.0, max_grad_norm=1.0, weight_decay=0
    )
    optimizer = make_optimizer(config, 10)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e3, 0.0):
        grads = {name: jnp.asarray(scale * rng.normal(size=(3, 2)), jnp.float32) for name in "ab"}
        clipped, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
        state = optimizer.init(grads)
        for extra in ({}, {"grad_norm": optax.tree.norm(grads)}):
            _, after = optimizer.update(grads, state, grads, **extra)
            first_moment = optax.tree.get(after, "mu")  # b1 = 0: the clipped gradient itself
            for name in grads:
                np.testing.assert_allclose(first_moment[name], clipped[name], rtol=1e-6)


def test_muon_orthogonalises_each_layer_by_itself_and_leaves_the_rest_to_adam() -> None:
    rng = np.random.default_rng(0)
    params = {
        "layers": {"query": jnp.zeros((2, 8, 4)), "query_norm": jnp.ones((2, 4))},
        "embedding": jnp.zeros((6, 4)),
        "final_norm": jnp.ones(4),
    }
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params)
    # Layers of very different gradient size get updates of one size only when they are treated apart.
    grads["layers"]["query"] = grads["layers"]["query"] * jnp.asarray([1e-3, 1.0]).reshape(2, 1, 1)
    config = OptimizerConfig(kind="muon", learning_rate=0.1, adam_fraction=0.3, max_grad_norm=1e6)
    optimizer = make_optimizer(config, 10)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
    for layer in np.asarray(updates["layers"]["query"]):
        singular = np.linalg.svd(layer, compute_uv=False) / (0.1 * 0.2 * np.sqrt(8))
        assert np.all((singular > 0.5) & (singular < 1.5))
    # optax gives the AdamW part Nesterov momentum too: a first step of b1 (1-b1)/(1-b1²) + 1 times the sign.
    first = -0.3 * 0.1 * (0.9 * 0.1 / (1 - 0.81) + 1)
    for name in ("embedding", "final_norm"):
        np.testing.assert_allclose(updates[name], first * np.sign(grads[name]), rtol=1e-3)
    np.testing.assert_allclose(
        updates["layers"]["query_norm"], first * np.sign(grads["layers"]["query_norm"]), rtol=1e-3
    )


def test_muon_takes_the_projections_of_the_real_model() -> None:
    _, params = tiny_qwen3()
    state = make_optimizer(OptimizerConfig(kind="muon"), 10).init(params)
    paths = {
        jax.tree_util.keystr(p)
        for p, _ in jax.tree_util.tree_flatten_with_path(optax.tree.get(state, "mu", filtering=_is_muon))[0]
    }
    assert {p.split("'")[3] for p in paths if "layers" in p} == {
        "query",
        "key",
        "value",
        "output",
        "gate",
        "up",
        "down",
    }
    assert not any("embedding" in p or "norm" in p for p in paths)


def _is_muon(path: tuple, value: object) -> bool:
    return any(getattr(key, "tuple_name", "") == "MuonState" for key in path)
