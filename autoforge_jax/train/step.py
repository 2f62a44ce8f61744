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
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from autoforge_jax.config import ERPOConfig
from autoforge_jax.data.batch import Batch
from autoforge_jax.model.prefix import SharedPrefixes
from autoforge_jax.model.sharding import Layout
from autoforge_jax.numerics.logprobs import DEFAULT_CHUNK, TokenLogprobs
from autoforge_jax.numerics.losses import (
    LossOutput,
    MetricSums,
    PolicyLossConfig,
    PolicyLossInputs,
    SupervisedLossInputs,
    add_metrics,
    mean_metrics,
    policy_loss,
    supervised_loss,
    token_shares,
)
from autoforge_jax.train.forward import (
    Adapted,
    Forward,
    batch_logprobs,
    evaluate_batch,
    on_layout,
    penalty_of,
)
from autoforge_jax.train.state import Params, TrainState


def forward_of(graphdef: nnx.GraphDef) -> Forward:
    """The forward function of a model that was split with ``nnx.split(model, nnx.Param)``. A model with
    experts adds ``experts.balance`` × the load-balancing loss, mean over layers."""

    def forward(
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        prefixes: SharedPrefixes | None = None,
    ) -> tuple[Any, ...]:
        model: Any = nnx.merge(graphdef, params)
        hidden, balance = model.with_balance(tokens, positions, segment_ids, prefixes)
        return hidden, model.unembedding(), *penalty_of(model.config, balance)

    return forward


class Objective(Protocol):
    """A loss over a batch; a frozen dataclass, so that it is a static part of the compiled step."""

    @property
    def temperature(self) -> float:
        """Of the distribution whose log-probs the loss reads."""
        ...

    def denominator(self, batches: Sequence[Batch]) -> float:
        """The loss's denominator over the whole step, in numpy."""
        ...

    def row_shares(self, batch: Batch) -> jax.Array:
        """What each row [rows] contributes to the denominator."""
        ...

    def __call__(self, tokens: TokenLogprobs, batch: Batch, denominator: jax.Array) -> LossOutput:
        """The micro-batch's share of the step's loss."""
        ...


@dataclass(frozen=True)
class SupervisedObjective:
    """Weighted negative log-likelihood at temperature 1 (the SFT variant of METHOD.md §5)."""

    temperature: float = 1.0

    def denominator(self, batches: Sequence[Batch]) -> float:
        """Σ loss weights."""
        return float(sum(np.sum(np.asarray(b.loss_weight), dtype=np.float64) for b in batches))

    def row_shares(self, batch: Batch) -> jax.Array:
        """Σ loss weights of each row."""
        return jnp.sum(batch.loss_weight, axis=1)

    def __call__(self, tokens: TokenLogprobs, batch: Batch, denominator: jax.Array) -> LossOutput:
        """See `losses.supervised_loss`."""
        inputs = SupervisedLossInputs(
            policy_logprobs=tokens.logprobs,
            loss_mask=batch.loss_mask,
            loss_weight=batch.loss_weight,
            action_mask=batch.action_mask,
            entropy=tokens.entropy,
            is_argmax=tokens.is_argmax,
        )
        return supervised_loss(inputs, denominator)


@dataclass(frozen=True)
class PolicyObjective:
    """The ERPO objective (METHOD.md §4 eq. 2) under the rollouts' temperature."""

    loss: PolicyLossConfig
    temperature: float

    @classmethod
    def from_config(cls, config: ERPOConfig, temperature: float) -> PolicyObjective:
        """`temperature` is the rollouts' (`rollout.temperature`)."""
        names = PolicyLossConfig.__dataclass_fields__
        return cls(PolicyLossConfig(**{name: getattr(config, name) for name in names}), temperature)

    @property
    def needs_reference(self) -> bool:
        """True when batches must carry `ref_logprobs`."""
        return self.loss.kl_coefficient > 0 and self.loss.kl_target == "reference"

    def denominator(self, batches: Sequence[Batch]) -> float:
        """Σ token shares: weighted loss tokens, or weighted trajectories that have any."""
        shares = [token_shares(b.loss_weight, b.sample_loss_tokens, self.loss.aggregation) for b in batches]
        return float(sum(np.sum(np.asarray(share), dtype=np.float64) for share in shares))

    def row_shares(self, batch: Batch) -> jax.Array:
        """Σ token shares of each row."""
        return jnp.sum(
            token_shares(batch.loss_weight, batch.sample_loss_tokens, self.loss.aggregation), axis=1
        )

    def __call__(self, tokens: TokenLogprobs, batch: Batch, denominator: jax.Array) -> LossOutput:
        """See `losses.policy_loss`."""
        inputs = PolicyLossInputs(
            policy_logprobs=tokens.logprobs,
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            loss_mask=batch.loss_mask,
            loss_weight=batch.loss_weight,
            segment_ids=batch.segment_ids,
            sample_loss_tokens=batch.sample_loss_tokens,
            entropy=tokens.entropy,
            ref_logprobs=batch.ref_logprobs,
            old_logprobs=batch.old_logprobs,
            staleness=batch.staleness,
        )
        return policy_loss(inputs, self.loss, denominator)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Sums:
    """What micro-batches add up."""

    grads: Params
    loss: jax.Array
    metrics: MetricSums


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
        self._forward, self._optimizer, self._chunk_size = forward, optimizer, chunk_size
        self._traces = 0
        self._metrics: MetricSums | None = None
        self._add: Any = jax.jit(self._add_micro_batch, donate_argnums=(0,))
        self._apply: Any = jax.jit(self._update, donate_argnums=(0,))
        self._zeros: Any = None
        self._applied_on_mesh = False

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
        sums = self._accumulate(state.params, batches, denominator)
        loss, metrics = sums.loss, sums.metrics
        state, grad_norm, applied = self._apply_update(state, sums.grads, loss)
        host: Any = jax.device_get((loss, grad_norm, applied, metrics))
        numbers = mean_metrics(host[3])
        return state, {
            "loss": float(host[0]),
            "grad_norm": float(host[1]),
            "update_skipped": float(not host[2]),
            **numbers,
        }

    def loss_and_gradient(
        self, params: Params, batches: Sequence[Batch]
    ) -> tuple[float, Params, dict[str, float]]:
        """The step's loss, gradient and metrics without an update; for tests and diagnosis. Raises ValueError
        without batches.
        """
        if not batches:
            raise ValueError("no batches, no gradient; pass at least one")
        sums = self._accumulate(params, batches, self.objective.denominator(batches))
        return float(sums.loss), sums.grads, mean_metrics(sums.metrics)

    def lower(self, params: Params, batch: Batch) -> jax.stages.Lowered:
        """The micro-batch program for arrays or shapes, not compiled: for its memory and cost analysis."""
        scale = jax.ShapeDtypeStruct((), jnp.float32)
        sums = jax.eval_shape(self._sums, params, batch, scale, self._frozen)
        return self._add.lower(sums, params, batch, scale, self._frozen)

    def _accumulate(self, params: Params, batches: Sequence[Batch], denominator: float) -> _Sums:
        if self.layout is not None:
            return self._accumulate_on(self.layout, params, batches, denominator)
        scale = jnp.asarray(denominator, jnp.float32)
        place = self._bound_to(params)
        if self._metrics is None:
            self._metrics = jax.eval_shape(self.loss, params, batches[0], scale, self._frozen)[1]
        # Starting from zeros costs nothing and saves compiling a second program without an addition.
        sums = _Sums(
            grads=jax.tree.map(jnp.zeros_like, params),
            loss=jnp.zeros((), jnp.float32, device=place),
            metrics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=place), self._metrics),
        )
        for batch in batches:
            sums = self._add(sums, params, batch, scale, self._frozen)
        return sums

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

    def _accumulate_on(
        self, layout: Layout, params: Params, batches: Sequence[Batch], denominator: float
    ) -> _Sums:
        """`_accumulate` on a mesh: rows split over devices, sums where the parameters are."""
        scale = np.float32(denominator)
        if self._zeros is None:
            shapes = jax.eval_shape(self._sums, params, batches[0], scale, self._frozen)
            owned = layout.of_state(params)
            rest: Any = layout.replicated
            places = _Sums(owned, rest, jax.tree.map(lambda _: rest, shapes.metrics))
            rows = jax.tree.map(layout.of_rows, batches[0])
            self._zeros = jax.jit(
                lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
                out_shardings=places,
            )
            self._add = jax.jit(
                self._add_micro_batch,
                in_shardings=(places, owned, rows, rest, layout.of_state(self._frozen)),
                out_shardings=places,
                donate_argnums=(0,),
            )
        sums = self._zeros()
        for batch in batches:
            placed = layout.place(batch, jax.tree.map(layout.of_rows, batch))
            sums = self._add(sums, params, placed, scale, self._frozen)
        return sums

    def _apply_update(
        self, state: TrainState, grads: Params, loss: jax.Array
    ) -> tuple[TrainState, jax.Array, jax.Array]:
        if self.layout is not None and not self._applied_on_mesh:
            places = self.layout.of_state(state)
            rest = self.layout.replicated
            self._apply = jax.jit(
                self._update,
                in_shardings=(places, places.params, rest),
                out_shardings=(places, rest, rest),
                donate_argnums=(0,),
            )
            self._applied_on_mesh = True
        return self._apply(state, grads, loss)

    def _add_micro_batch(
        self, sums: _Sums, params: Params, batch: Batch, denominator: jax.Array, frozen: Params | None
    ) -> _Sums:
        self._traces += 1
        more = self._sums(params, batch, denominator, frozen)
        return _Sums(
            grads=jax.tree.map(jnp.add, sums.grads, more.grads),
            loss=sums.loss + more.loss,
            metrics=add_metrics(sums.metrics, more.metrics),
        )

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

    def _sums(
        self, params: Params, batch: Batch, denominator: jax.Array, frozen: Params | None = None
    ) -> _Sums:
        with on_layout(self.layout):
            (loss, metrics), grads = jax.value_and_grad(self.loss, has_aux=True)(
                params, batch, denominator, frozen
            )
        return _Sums(grads=grads, loss=loss, metrics=metrics)

    def _update(
        self, state: TrainState, grads: Params, loss: jax.Array
    ) -> tuple[TrainState, jax.Array, jax.Array]:
        self._traces += 1
        grad_norm = optax.tree.norm(grads)
        applied = jnp.isfinite(grad_norm) & jnp.isfinite(loss)
        updates, opt_state = self._optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        one = applied.astype(jnp.int32)
        new = TrainState(
            params=_choose(applied, params, state.params),
            opt_state=_choose(applied, opt_state, state.opt_state),
            step=state.step + one,
            skipped=state.skipped + jnp.ones((), jnp.int32) - one,
        )
        return new, grad_norm, applied


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


OldLogprobs = Callable[[Params, Sequence[Batch]], list[tuple[Batch, jax.Array]]]
"""What a `LogprobPass` is to those who call it; with adapters, one that puts the model beside them first."""


class LogprobPass:
    """Log-probs of batches under given parameters, without a gradient: one program for all calls."""

    def __init__(
        self,
        forward: Forward,
        temperature: float,
        *,
        chunk_size: int = DEFAULT_CHUNK,
        layout: Layout | None = None,
    ) -> None:
        self._layout = layout

        def logprobs(params: Params, batch: Batch) -> jax.Array:
            with on_layout(layout):
                return batch_logprobs(forward, params, batch, temperature, chunk_size).logprobs

        self._function = jax.jit(logprobs, out_shardings=None if layout is None else layout.rows)

    def __call__(self, params: Params, batches: Sequence[Batch]) -> list[tuple[Batch, jax.Array]]:
        """Each batch (on a mesh: placed on it) with its log-probs [rows, tokens], 0 off the loss mask."""
        if self._layout is not None:
            layout = self._layout
            batches = [layout.place(batch, jax.tree.map(layout.of_rows, batch)) for batch in batches]
        return [(batch, self._function(params, batch)) for batch in batches]


class ReferenceLogprobs:
    """Fills `ref_logprobs` of batches under fixed parameters (the policy before ERPO). Keeps a copy of
    `params`' references only: hand it arrays that no step donates.
    """

    def __init__(
        self,
        forward: Forward,
        params: Params,
        temperature: float,
        *,
        chunk_size: int = DEFAULT_CHUNK,
        layout: Layout | None = None,
    ) -> None:
        self._params = params
        self._pass = LogprobPass(forward, temperature, chunk_size=chunk_size, layout=layout)

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        """The batches with `ref_logprobs` filled in."""
        return [replace(batch, ref_logprobs=found) for batch, found in self._pass(self._params, batches)]


def _choose(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
