"""Losses as pure functions: dataclass in, dataclass out (METHOD.md §4, eq. 2).

Denominators come from outside and belong to the whole step, so that the losses of micro-batches add up to the
loss of the step for any split. Metrics are sums and maxima for the same reason; `mean_metrics` turns them
into numbers.

Extreme log-ratios: differences of log-probs are clamped to ±`MAX_LOG_RATIO` before `exp`, so nothing
overflows; beyond it the gradient is 0, where the clipped surrogate's would be 0 or useless anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from autoforge_jax.numerics.masked import masked_max, masked_sum, masked_sums, require_same_shape

MAX_LOG_RATIO = 20.0
"""nats; exp(20) = 4.9e8."""


@dataclass(frozen=True)
class PolicyLossConfig:
    """Static choices of the policy loss; the fields of `ERPOConfig` of the same names."""

    ratio: Literal["token", "sequence"] = "token"
    """`sequence`: one ratio per trajectory, exp of the mean log-ratio over its loss tokens, or of their sum
    without `ratio_length_normalised`.
    """
    ratio_length_normalised: bool = True
    old_policy: Literal["engine", "learner"] = "engine"
    """Whose log-probs the ratio is taken against: `rollout_logprobs` or `old_logprobs`."""
    correction: Literal["none", "token", "sequence"] = "none"
    """Truncated importance weight old / engine on the surrogate; needs `old_policy` learner."""
    correction_cap: float = 2.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """`token_mean`: every loss token counts its weight; `sequence_mean`: every trajectory counts its weight,
    tokens share it.
    """
    kl_coefficient: float = 0.0
    kl_target: Literal["reference", "rollout"] = "reference"
    """`rollout`: the old policy, whoever computed it."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PolicyLossInputs:
    """Per token, all [rows, tokens]; log-probs in nats and of one temperature."""

    policy_logprobs: Float[Array, "rows tokens"]
    rollout_logprobs: Float[Array, "rows tokens"]
    advantages: Float[Array, "rows tokens"]
    loss_mask: Bool[Array, "rows tokens"]
    loss_weight: Float[Array, "rows tokens"]
    segment_ids: Int[Array, "rows tokens"]
    """A trajectory is one segment of one row."""
    sample_loss_tokens: Float[Array, "rows tokens"]
    """Loss tokens of the token's trajectory."""
    entropy: Float[Array, "rows tokens"]
    ref_logprobs: Float[Array, "rows tokens"] | None = None
    old_logprobs: Float[Array, "rows tokens"] | None = None
    """The learner's own before the first update of the step; constants."""
    staleness: Int[Array, "rows tokens"] | None = None
    """Versions between the weights that sampled the token and the learner's; None: all are 0."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SupervisedLossInputs:
    """Per token, all [rows, tokens]."""

    policy_logprobs: Float[Array, "rows tokens"]
    loss_mask: Bool[Array, "rows tokens"]
    loss_weight: Float[Array, "rows tokens"]
    action_mask: Bool[Array, "rows tokens"]
    entropy: Float[Array, "rows tokens"]
    is_argmax: Bool[Array, "rows tokens"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetricSums:
    """Sums and maxima that add up over micro-batches. `sums["tokens"]` counts loss tokens and divides the
    others, except those named ``action/…``, which `sums["action/tokens"]` divides.
    """

    sums: dict[str, Float[Array, ""]] = field(default_factory=dict)
    maxima: dict[str, Float[Array, ""]] = field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossOutput:
    """This micro-batch's part of the step's loss, and its metrics."""

    loss: Float[Array, ""]
    metrics: MetricSums


def add_metrics(left: MetricSums, right: MetricSums) -> MetricSums:
    """Combine the metrics of two micro-batches, on the host."""
    return MetricSums(
        sums=jax.tree.map(lambda a, b: np.float64(a) + np.float64(b), left.sums, right.sums),
        maxima=jax.tree.map(np.maximum, left.maxima, right.maxima),
    )


def mean_metrics(metrics: MetricSums) -> dict[str, float]:
    """Plain numbers: means per token, counts (`tokens`), maxima as they are. Means over nothing are 0."""
    sums = {name: float(value) for name, value in metrics.sums.items()}
    out: dict[str, float] = {}
    for name, value in sums.items():
        prefix, _, short = name.rpartition("/")
        count = sums[f"{prefix}/tokens" if prefix else "tokens"]
        out[name] = value if short == "tokens" else value / count if count else 0.0
    return out | {name: float(value) for name, value in metrics.maxima.items()}


def token_shares(
    loss_weight: Float[Array, "rows tokens"],
    sample_loss_tokens: Float[Array, "rows tokens"],
    aggregation: Literal["token_mean", "sequence_mean"],
) -> Float[Array, "rows tokens"]:
    """What each token contributes to the denominator: its weight, or its weight shared among its trajectory's
    loss tokens.

    The loss of a step is ``Σ shares × token loss / Σ shares`` with both sums over the whole step.
    """
    require_same_shape(loss_weight=loss_weight, sample_loss_tokens=sample_loss_tokens)
    if aggregation == "token_mean":
        return loss_weight
    if aggregation != "sequence_mean":
        raise ValueError(f"aggregation {aggregation!r}; expected token_mean or sequence_mean")
    return loss_weight / jnp.maximum(sample_loss_tokens, jnp.ones((), loss_weight.dtype))


def policy_loss(
    inputs: PolicyLossInputs, config: PolicyLossConfig, denominator: Float[Array, ""]
) -> LossOutput:
    """Clipped surrogate, optional KL (METHOD.md §4 eq. 2), as this micro-batch's share of the step.

    Token loss ``-w min(r A, clip(r, 1-clip_low, 1+clip_high) A) + kl_coefficient × k3`` with w the truncated
    importance weight of `correction_weights`, 1 without. `denominator` is Σ `token_shares` over all
    micro-batches of the step; 0 gives loss 0. Raises ValueError for shapes that differ, or log-probs that
    the config needs and the inputs lack.

    Metrics named ``fresh/…`` speak of tokens that the learner's own version sampled (all of them, unless
    `staleness` says otherwise): only there is a gap between engine and learner a disagreement.
    """
    require_same_shape(
        policy_logprobs=inputs.policy_logprobs,
        rollout_logprobs=inputs.rollout_logprobs,
        advantages=inputs.advantages,
        loss_mask=inputs.loss_mask,
        loss_weight=inputs.loss_weight,
        segment_ids=inputs.segment_ids,
        sample_loss_tokens=inputs.sample_loss_tokens,
        entropy=inputs.entropy,
        ref_logprobs=inputs.ref_logprobs,
        old_logprobs=inputs.old_logprobs,
        staleness=inputs.staleness,
    )
    mask = inputs.loss_mask
    old = _old_logprobs(inputs, config)
    gap = _where(mask, inputs.policy_logprobs - inputs.rollout_logprobs)
    log_ratio = _where(mask, inputs.policy_logprobs - old)
    if config.ratio == "sequence":
        log_ratio = _over_sequence(log_ratio, inputs, config.ratio_length_normalised)
    ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    surrogate = jnp.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    sums: dict[str, tuple[jax.Array, jax.Array]] = {}
    maxima: dict[str, jax.Array] = {}
    if config.correction != "none":
        weights, truncated = correction_weights(inputs, config)
        surrogate = weights * surrogate
        sums["correction_mean"] = weights, mask
        sums["correction_truncated"] = truncated, mask
        maxima["correction_max"] = masked_max(weights, mask)
    token_loss = -surrogate
    if config.kl_coefficient > 0:
        target = old if config.kl_target == "rollout" else inputs.ref_logprobs
        if target is None:
            raise ValueError(
                "kl_coefficient > 0 with kl_target 'reference' needs ref_logprobs; compute them under the "
                "reference params"
            )
        kl = k3_divergence(inputs.policy_logprobs, target, mask)
        token_loss = token_loss + jnp.asarray(config.kl_coefficient, kl.dtype) * kl
        sums["kl"] = kl, mask
    shares = token_shares(inputs.loss_weight, inputs.sample_loss_tokens, config.aggregation)
    loss = _share(masked_sum(shares * token_loss, mask), denominator)
    outside = clipped * inputs.advantages < ratio * inputs.advantages
    fresh = mask if inputs.staleness is None else mask & (inputs.staleness == 0)
    sums |= {
        "tokens": (mask, mask),
        "surrogate": (surrogate, mask),
        "ratio_mean": (ratio, mask),
        "clip_fraction": (outside, mask),
        "entropy": (inputs.entropy, mask),
        "approx_kl": (k3_divergence(inputs.policy_logprobs, inputs.rollout_logprobs, mask), mask),
        "logprob_gap_mean": (jnp.abs(gap), mask),
        "policy_logprob": (inputs.policy_logprobs, mask),
        "fresh/tokens": (fresh, fresh),
        "fresh/logprob_gap_mean": (jnp.abs(gap), fresh),
    }
    if inputs.staleness is not None:
        sums["staleness_mean"] = inputs.staleness, mask
        maxima["staleness_max"] = masked_max(inputs.staleness.astype(jnp.float32), mask)
    maxima |= {"ratio_max": masked_max(ratio, mask), "logprob_gap_max": masked_max(jnp.abs(gap), mask)}
    return LossOutput(loss=loss, metrics=_metrics(sums, maxima))


def supervised_loss(inputs: SupervisedLossInputs, denominator: Float[Array, ""]) -> LossOutput:
    """Weighted negative log-likelihood, as this micro-batch's share: ``Σ weight × -logprob / denominator`` (0
    for denominator 0).

    `denominator` is Σ weight over all micro-batches of the step. Metrics named ``action/…`` are means over
    action tokens.
    """
    require_same_shape(
        policy_logprobs=inputs.policy_logprobs,
        loss_mask=inputs.loss_mask,
        loss_weight=inputs.loss_weight,
        action_mask=inputs.action_mask,
        entropy=inputs.entropy,
        is_argmax=inputs.is_argmax,
    )
    mask, action = inputs.loss_mask, inputs.loss_mask & inputs.action_mask
    loss = _share(masked_sum(-inputs.policy_logprobs * inputs.loss_weight, mask), denominator)
    sums = {
        "tokens": (mask, mask),
        "nll": (-inputs.policy_logprobs, mask),
        "action/tokens": (action, action),
        "action/nll": (-inputs.policy_logprobs, action),
        "action/entropy": (inputs.entropy, action),
        "action/accuracy": (inputs.is_argmax, action),
    }
    return LossOutput(loss=loss, metrics=_metrics(sums, {}))


def k3_divergence(
    policy_logprobs: Float[Array, "*shape"],
    target_logprobs: Float[Array, "*shape"],
    mask: Bool[Array, "*shape"],
) -> Float[Array, "*shape"]:
    """Per-token estimate of KL(policy ‖ target) from sampled tokens: ``exp(d) - d - 1`` with ``d = target -
    policy``; 0 off the mask.

    Never negative (Schulman's k3).
    """
    difference = jnp.clip(_where(mask, target_logprobs - policy_logprobs), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jnp.expm1(difference) - difference


def correction_weights(
    inputs: PolicyLossInputs, config: PolicyLossConfig
) -> tuple[Float[Array, "rows tokens"], Bool[Array, "rows tokens"]]:
    """(weights, where they were cut): min(π_old / π_engine, `correction_cap`) of every loss token, or of its
    whole trajectory (the product of its tokens'); 1 off the mask, no gradient.

    The truncated importance sampling of Yao et al. (2025, "Your efficient RL framework secretly brings you
    off-policy RL training"): the engine samples from another distribution than the learner computes.
    """
    old = _old_logprobs(inputs, config)
    log_weight = _where(inputs.loss_mask, old - inputs.rollout_logprobs)
    if config.correction == "sequence":
        log_weight = _over_sequence(log_weight, inputs, normalised=False)
    weights = jnp.exp(jnp.clip(log_weight, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    cap = jnp.asarray(config.correction_cap, weights.dtype)
    return jax.lax.stop_gradient(jnp.minimum(weights, cap)), inputs.loss_mask & (weights > cap)


def _old_logprobs(inputs: PolicyLossInputs, config: PolicyLossConfig) -> jax.Array:
    if config.old_policy == "engine":
        if config.correction != "none":
            raise ValueError('correction compares the learner with the engine; it needs old_policy "learner"')
        return inputs.rollout_logprobs
    if inputs.old_logprobs is None:
        raise ValueError(
            "old_policy 'learner' needs old_logprobs; compute them before the first update of the step"
        )
    return inputs.old_logprobs


def _over_sequence(values: jax.Array, inputs: PolicyLossInputs, normalised: bool) -> jax.Array:
    """Each token gets the mean (or the sum) of `values` over the loss tokens of its segment."""
    rows, length = values.shape
    # Segment ids go up to tokens + 1: a row of one-token samples after a one-token prefix.
    slots = length + 2
    offsets = (jnp.arange(rows, dtype=inputs.segment_ids.dtype) * slots)[:, None]
    keys = inputs.segment_ids + jnp.broadcast_to(offsets, (rows, length))
    totals = jax.ops.segment_sum(values.reshape(-1), keys.reshape(-1), num_segments=rows * slots)[keys]
    if normalised:
        totals = totals / jnp.maximum(inputs.sample_loss_tokens, jnp.ones((), values.dtype))
    return _where(inputs.loss_mask, totals)


def _where(mask: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(mask, values, jnp.zeros((), values.dtype))


def _share(total: jax.Array, denominator: jax.Array) -> jax.Array:
    denominator = jnp.asarray(denominator, total.dtype)
    one = jnp.ones((), total.dtype)
    return jnp.where(
        denominator > 0, total / jnp.where(denominator > 0, denominator, one), jnp.zeros((), total.dtype)
    )


def _metrics(sums: dict[str, tuple[jax.Array, jax.Array]], maxima: dict[str, jax.Array]) -> MetricSums:
    """Of per-token values where their masks are; without a gradient."""
    return jax.tree.map(jax.lax.stop_gradient, MetricSums(masked_sums(sums), maxima))
