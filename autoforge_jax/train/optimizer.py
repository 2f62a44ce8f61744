"""OptimizerConfig -> optax chain: clip by global norm, then AdamW or Muon, with warm-up and decay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from autoforge_jax.config import OptimizerConfig
from autoforge_jax.plan.possible import check_schedule

MUON_CONSISTENT_RMS = 0.2
"""Gives Muon's updates the root mean square of AdamW's, so that one learning rate fits both (arXiv
2502.16982).
"""


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Learning rate by number of updates done: linear from 0 over `warmup_steps`, then constant, or down to
    `end_fraction` of the peak at `total_steps`. The first update has rate peak / warmup_steps, not 0.
    ConfigError when the warm-up fills the training; a phase of no steps needs no schedule.
    """
    check_schedule(config, total_steps)
    peak, end = config.learning_rate, config.learning_rate * config.end_fraction
    decay_steps = total_steps - config.warmup_steps
    if config.schedule == "constant" or total_steps == 0:
        after = optax.constant_schedule(peak)
    elif config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, decay_steps, alpha=config.end_fraction)
    else:
        after = optax.linear_schedule(peak, end, decay_steps)
    if config.warmup_steps == 0:
        return after
    warmup = optax.linear_schedule(peak / config.warmup_steps, peak, config.warmup_steps - 1)
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformationExtraArgs:
    """The optimiser of one phase. Weight decay applies to matrices only (no norm scales, no biases, no
    embeddings).

    `muon` takes the projection matrices, which lie stacked as [layer, in, out]; each layer's matrix is
    orthogonalised by itself. Embeddings, the output matrix and vectors go to AdamW (with Nesterov
    momentum: optax has one switch for both parts), as Muon's authors do.

    ``update(..., grad_norm=...)`` takes the gradients' global norm from a caller that has it.
    """
    schedule = make_schedule(config, total_steps)
    if config.kind == "adamw":
        inner = optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            weight_decay=config.weight_decay,
            mask=lambda params: _map(is_matrix, params),
        )
    else:
        inner = contrib.muon(
            schedule,
            weight_decay=config.weight_decay,
            adam_b1=config.b1,
            adam_b2=config.b2,
            adam_weight_decay=0.0,
            adam_learning_rate=lambda count: config.adam_fraction * schedule(count),
            muon_weight_dimension_numbers=lambda params: _map(_muon_axes, params),
            consistent_rms=MUON_CONSISTENT_RMS,
        )
    return _standard_promotion(optax.chain(_clip(config.max_grad_norm), inner))


def _clip(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """`optax.clip_by_global_norm` for a caller that knows the norm (`grad_norm`), so that it is computed
    once, and with one factor for all: a division per number makes XLA:CPU keep a second copy of the gradient.
    """

    def init(_: optax.Params) -> optax.OptState:
        return optax.EmptyState()

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        grad_norm: jax.Array | None = None,
        **_: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        norm = optax.tree.norm(updates) if grad_norm is None else grad_norm
        factor = jnp.minimum(1.0, max_norm / norm)
        return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates), state

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]  as below


def _standard_promotion(
    inner: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """The same transformation, traced under JAX's standard dtype promotion: optax raises floats to integer
    powers, which strict promotion refuses. Our own code stays strict.
    """

    def init(params: optax.Params) -> optax.OptState:
        with jax.numpy_dtype_promotion("standard"):
            return inner.init(params)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]  optax types updates as Any-tree


def is_matrix(path: tuple[Any, ...], leaf: jax.Array) -> bool:
    """True for a projection: the last two axes are [in, out], any axes before them are a stack.

    Judged by name, because a stacked norm scale [layer, width] has the rank of a matrix.
    """
    name = jax.tree_util.keystr(path).lower()
    stacked = "layers" in name
    return leaf.ndim >= (3 if stacked else 2) and not any(
        word in name for word in ("norm", "bias", "embed", "lm_head")
    )


def _muon_axes(path: tuple[Any, ...], leaf: jax.Array) -> contrib.MuonDimensionNumbers | None:
    return contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1) if is_matrix(path, leaf) else None


def _map(function: Any, params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(function, params)
