"""One optimiser update over any number of micro-batches of one shape.

Gradients of micro-batches are summed; the loss's denominator belongs to the whole step, so the update does
not depend on the split. A Python loop walks the micro-batches: their number may change from step to step
without a new compilation. Buffers of the state and of the running sums are donated.

An update with a gradient that is not finite, or without a loss token, is not applied: parameters, optimiser
state and `step` stay, `skipped` grows by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from autoforge_jax import compilation
from autoforge_jax.data.batch import Batch
from autoforge_jax.model.sharding import Layout
from autoforge_jax.numerics.logprobs import DEFAULT_CHUNK
from autoforge_jax.numerics.losses import MetricSums, add_metrics, mean_metrics
from autoforge_jax.train.forward import Adapted, Forward, evaluate_batch, on_layout
from autoforge_jax.train.objectives import Objective
from autoforge_jax.train.state import Params, TrainState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Sums:
    """What micro-batches add up on the device; their metrics are added up on the host."""

    grads: Params
    loss: jax.Array


class TrainStep:
    """Compiled update: ``state, metrics = step(state, batches)``. Made by `make_train_step`."""

    def __init__(
        self,
        forward: Forward,
        optimizer: optax.GradientTransformation,
        objective: Objective,
        *,
        chunk_size: int = DEFAULT_CHUNK,
        layout: Layout | None = None,
        frozen: Params | None = None,
        agree: Callable[[Sequence[Batch]], None] | None = None,
    ) -> None:
        self.objective = objective
        self._frozen = frozen
        self.layout = layout
        self._agree = agree
        self._forward, self._chunk_size = forward, chunk_size
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._traces = 0
        self._zeros: dict[Any, Any] = {}
        self._add: Any = None
        self._apply: Any = None

    @property
    def compile_count(self) -> int:
        """Programs traced so far: at most 2 (micro-batch, update), whatever the number of batches."""
        return self._traces

    def __call__(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, dict[str, float]]:
        """One update; consumes `state`. No batches, or none with a loss token, is a skipped update.

        Metrics: `loss`, `grad_norm` (before clipping), `update_skipped` (0/1), and the objective's. Waits for
        the device.
        """
        if self._agree is not None:
            self._agree(batches)
        denominator = self.objective.denominator(batches)
        if not batches or denominator <= 0:
            state = replace(state, skipped=state.skipped + np.int32(1))
            return state, {"loss": 0.0, "grad_norm": 0.0, "update_skipped": 1.0, "tokens": 0.0}
        state = self._bound_alike(state)
        sums, metrics = self._accumulate(state.params, batches, denominator)
        loss = sums.loss
        state, grad_norm, applied = self._apply_program(state)(state, sums.grads, loss)
        loss, grad_norm, applied = jax.device_get((loss, grad_norm, applied))
        return state, {
            "loss": float(loss),
            "grad_norm": float(grad_norm),
            "update_skipped": float(not applied),
            **metrics,
        }

    def loss_and_gradient(
        self, params: Params, batches: Sequence[Batch]
    ) -> tuple[float, Params, dict[str, float]]:
        """The step's loss, gradient and metrics without an update; for tests and diagnosis. Raises ValueError
        without batches.
        """
        if not batches:
            raise ValueError("no batches, no gradient; pass at least one")
        sums, metrics = self._accumulate(params, batches, self.objective.denominator(batches))
        return float(sums.loss), sums.grads, metrics

    def lower(self, params: Params, batch: Batch) -> jax.stages.Lowered:
        """The micro-batch program for arrays or shapes, not compiled: for its memory and cost analysis."""
        scale: Any = jax.ShapeDtypeStruct((), jnp.float32)
        sums = _Sums(params, scale)
        return self._add_program(params, batch).lower(sums, params, batch, scale, self._frozen)

    def lower_update(self, state: TrainState) -> jax.stages.Lowered:
        """The update program, as `lower`."""
        loss: Any = jax.ShapeDtypeStruct((), jnp.float32)
        return self._apply_program(state).lower(state, state.params, loss)

    def _accumulate(
        self, params: Params, batches: Sequence[Batch], denominator: float
    ) -> tuple[_Sums, dict[str, float]]:
        """Sums over the micro-batches, and the step's metrics as plain numbers."""
        layout, scale = self.layout, np.float32(denominator)
        add = self._add_program(params, batches[0])
        # Starting from zeros costs nothing and saves compiling a second program without an addition.
        sums = self._new_sums(params)
        metrics: list[MetricSums] = []
        for batch in batches:
            placed = batch if layout is None else layout.place(batch, jax.tree.map(layout.of_rows, batch))
            sums, more = add(sums, params, placed, scale, self._frozen)
            metrics.append(more)
        return sums, mean_metrics(reduce(add_metrics, jax.device_get(metrics)))

    def _bound_to(self, tree: Any) -> jax.sharding.Sharding | None:
        """Where arrays of `tree` or the frozen model are bound to (JAX calls them committed); None when none
        is."""
        leaves = jax.tree.leaves((tree, self._frozen))
        return next(
            (leaf.sharding for leaf in leaves if isinstance(leaf, jax.Array) and leaf.committed), None
        )

    def _bound_alike(self, state: TrainState) -> TrainState:
        """On one device: all of the state is bound to it, or nothing. What a program returns is bound as soon
        as one input is (a restored array is, a fresh one is not), and JAX compiles a program of its own for
        each such pattern: a mixed state would cost a second compilation at the second update."""
        place = None if self.layout is not None else self._bound_to(state)
        return state if place is None else jax.device_put(state, place)

    def _new_sums(self, params: Params) -> _Sums:
        """Zeros, where the parameters are."""
        layout = self.layout
        place = self._bound_to(params) if layout is None else None
        if place not in self._zeros:
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)

            def make() -> _Sums:
                return _Sums(
                    jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), jnp.zeros(())
                )

            rest: Any = None if layout is None else layout.replicated
            shardings = place if layout is None else _Sums(layout.of_state(params), rest)
            self._zeros[place] = compilation.jit(make, out_shardings=shardings)
        return self._zeros[place]()

    def _add_program(self, params: Params, batch: Batch) -> Any:
        """Made at its first use: on a mesh it says where its arguments lie, rows split over devices and sums
        where the parameters are."""
        layout = self.layout
        if self._add is not None:
            return self._add
        if layout is None:
            self._add = compilation.jit(self._add_micro_batch, donate_argnums=(0,))
        else:
            rest: Any = layout.replicated
            sums = _Sums(layout.of_state(params), rest)
            rows = jax.tree.map(layout.of_rows, batch)
            self._add = compilation.jit(
                self._add_micro_batch,
                in_shardings=(sums, sums.grads, rows, rest, layout.of_state(self._frozen)),
                out_shardings=(sums, rest),
                donate_argnums=(0,),
            )
        return self._add

    def _apply_program(self, state: TrainState) -> Any:
        layout = self.layout
        if self._apply is not None:
            return self._apply
        if layout is None:
            self._apply = compilation.jit(self._update, donate_argnums=(0,))
        else:
            places, rest = layout.of_state(state), layout.replicated
            self._apply = compilation.jit(
                self._update,
                in_shardings=(places, places.params, rest),
                out_shardings=(places, rest, rest),
                donate_argnums=(0,),
            )
        return self._apply

    def _add_micro_batch(
        self, sums: _Sums, params: Params, batch: Batch, denominator: jax.Array, frozen: Params | None
    ) -> tuple[_Sums, MetricSums]:
        self._traces += 1
        with on_layout(self.layout):
            (loss, metrics), grads = jax.value_and_grad(self.loss, has_aux=True)(
                params, batch, denominator, frozen
            )
        return _Sums(jax.tree.map(jnp.add, sums.grads, grads), sums.loss + loss), metrics

    def loss(
        self, params: Params, batch: Batch, denominator: jax.Array, frozen: Params | None = None
    ) -> tuple[jax.Array, MetricSums]:
        """A micro-batch's share of the loss, and its metrics; traceable. frozen: the model under adapters."""
        given = params if frozen is None else Adapted(frozen, params)
        tokens, penalty = evaluate_batch(
            self._forward, given, batch, self.objective.temperature, self._chunk_size
        )
        output = self.objective(tokens, batch, denominator)
        if penalty is None:
            return output.loss, output.metrics
        added = jnp.sum(penalty.loss * self.objective.row_shares(batch)) / denominator
        loss_tokens = jnp.sum(batch.loss_mask, axis=1, dtype=jnp.float32)
        metrics = MetricSums(
            sums=output.metrics.sums | {"router_balance": jnp.sum(penalty.balance * loss_tokens)},
            maxima=output.metrics.maxima | {"router_load_max": jnp.max(penalty.peak_load)},
        )
        return output.loss + added, metrics

    def _update(
        self, state: TrainState, grads: Params, loss: jax.Array
    ) -> tuple[TrainState, jax.Array, jax.Array]:
        """An update that is not applied goes another way: selecting among results would keep a second copy of
        the state."""
        self._traces += 1
        grad_norm = optax.tree.norm(grads)
        applied = jnp.isfinite(grad_norm) & jnp.isfinite(loss)

        def apply(state: TrainState, grads: Params) -> TrainState:
            updates, opt_state = self._optimizer.update(
                grads, state.opt_state, state.params, grad_norm=grad_norm
            )
            params = optax.apply_updates(state.params, updates)
            return replace(state, params=params, opt_state=opt_state, step=state.step + 1)

        def skip(state: TrainState, _: Params) -> TrainState:
            return replace(state, skipped=state.skipped + 1)

        return jax.lax.cond(applied, apply, skip, state, grads), grad_norm, applied


def make_train_step(
    forward: Forward,
    optimizer: optax.GradientTransformation,
    objective: Objective,
    *,
    chunk_size: int = DEFAULT_CHUNK,
    layout: Layout | None = None,
    frozen: Params | None = None,
    agree: Callable[[Sequence[Batch]], None] | None = None,
) -> TrainStep:
    """The train step of one phase. Keep it for the whole phase: its compiled programs belong to it.

    frozen: with `lora.adapted_forward`, the model whose adapters the state's parameters are; it is read only.
    With a layout the state it is given must lie as ``layout.of_state`` says (`init_state`, a restore).
    `agree` sees the batches of every update first and raises when they may not be used.
    """
    return TrainStep(
        forward, optimizer, objective, chunk_size=chunk_size, layout=layout, frozen=frozen, agree=agree
    )
