"""Losses against numbers worked out by hand in numpy, under jit."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.numerics.losses import (
    MAX_LOG_RATIO,
    PolicyLossConfig,
    PolicyLossInputs,
    SupervisedLossInputs,
    add_metrics,
    k3_divergence,
    mean_metrics,
    policy_loss,
    supervised_loss,
    token_shares,
)

# One row of two trajectories (segments 2 and 3) after a prefix token, and a row of padding.
SEGMENTS = np.array([[1, 2, 2, 2, 3, 3], [0] * 6], np.int32)
MASK = np.array([[0, 0, 1, 1, 1, 0], [0] * 6], bool)
RATIOS = np.array([[1, 1, 1.5, 0.9, 0.5, 1], [1] * 6])
ROLLOUT = np.where(MASK, -1.0, 0.0)
POLICY = np.where(MASK, np.log(RATIOS) + ROLLOUT, 0.0)
ADVANTAGES = np.array([[0, 2, 2, 2, -1, -1], [0] * 6], float)
LENGTHS = np.array([[0, 2, 2, 2, 1, 1], [0] * 6], float)
REFERENCE = np.where(MASK, POLICY - 0.3, 0.0)
CONFIG = PolicyLossConfig(clip_low=0.2, clip_high=0.3)

run = jax.jit(policy_loss, static_argnums=1)
gradient = jax.jit(
    lambda p, inputs, config, d: jax.grad(
        lambda q: policy_loss(replace(inputs, policy_logprobs=q), config, d).loss
    )(p),
    static_argnums=2,
)


def inputs(**changes: np.ndarray | None) -> PolicyLossInputs:
    fields = {
        "policy_logprobs": POLICY,
        "rollout_logprobs": ROLLOUT,
        "advantages": ADVANTAGES,
        "loss_mask": MASK,
        "loss_weight": MASK.astype(float),
        "segment_ids": SEGMENTS,
        "sample_loss_tokens": LENGTHS,
        "entropy": np.where(MASK, 0.5, 0.0),
        "ref_logprobs": None,
    } | changes
    cast = {k: v if v is None or v.dtype != float else v.astype(np.float32) for k, v in fields.items()}
    return PolicyLossInputs(**{k: v if v is None else jnp.asarray(v) for k, v in cast.items()})


def test_token_mean_by_hand() -> None:
    # A=2: r 1.5 is cut to 1.3 -> 2.6; r 0.9 -> 1.8. A=-1: r 0.5 is cut to 0.8 -> -0.8. Mean surrogate 3.6/3.
    out = run(inputs(), CONFIG, 3.0)
    assert float(out.loss) == pytest.approx(-3.6 / 3)
    numbers = mean_metrics(out.metrics)
    gaps = np.abs(np.log([1.5, 0.9, 0.5]))
    assert numbers["tokens"] == 3
    assert numbers["ratio_mean"] == pytest.approx(2.9 / 3)
    assert numbers["ratio_max"] == pytest.approx(1.5)
    assert numbers["clip_fraction"] == pytest.approx(2 / 3)
    assert numbers["entropy"] == pytest.approx(0.5)
    assert numbers["logprob_gap_mean"] == pytest.approx(gaps.mean(), rel=1e-5)
    assert numbers["logprob_gap_max"] == pytest.approx(gaps.max(), rel=1e-5)
    inverse = 1 / np.array([1.5, 0.9, 0.5])
    assert numbers["approx_kl"] == pytest.approx((inverse - 1 - np.log(inverse)).mean(), rel=1e-5)
    # Gradient flows through the unclipped token alone: -A r / 3.
    want = np.zeros((2, 6))
    want[0, 3] = -2 * 0.9 / 3
    np.testing.assert_allclose(gradient(inputs().policy_logprobs, inputs(), CONFIG, 3.0), want, rtol=1e-5)


def test_sequence_mean_and_weights_by_hand() -> None:
    config = replace(CONFIG, aggregation="sequence_mean")
    out = run(inputs(), config, 2.0)
    assert float(out.loss) == pytest.approx(-((2.6 + 1.8) / 2 - 0.8) / 2)
    weights = np.where(MASK, np.where(SEGMENTS == 2, 3.0, 1.0), 0.0)
    shares = token_shares(jnp.asarray(weights), jnp.asarray(LENGTHS), "sequence_mean")
    assert float(jnp.sum(shares)) == pytest.approx(4.0)
    out = run(inputs(loss_weight=weights), config, 4.0)
    assert float(out.loss) == pytest.approx(-(3 * (2.6 + 1.8) / 2 - 0.8) / 4)
    out = run(inputs(loss_weight=weights), CONFIG, 7.0)
    assert float(out.loss) == pytest.approx(-(3 * (2.6 + 1.8) - 0.8) / 7)


def test_sequence_ratio_is_length_normalised() -> None:
    config = replace(CONFIG, ratio="sequence", aggregation="sequence_mean")
    first = math.sqrt(1.5 * 0.9)
    out = run(inputs(), config, 2.0)
    assert float(out.loss) == pytest.approx(-(2 * first - 0.8) / 2, rel=1e-5)
    numbers = mean_metrics(out.metrics)
    assert numbers["ratio_max"] == pytest.approx(first, rel=1e-5)
    assert numbers["ratio_mean"] == pytest.approx((2 * first + 0.5) / 3, rel=1e-5)
    # d/dp of -A exp(mean gap)/2 shared by both tokens of the first trajectory; the second one is clipped.
    want = np.zeros((2, 6))
    want[0, 2:4] = -2 * first / 2 / 2
    np.testing.assert_allclose(gradient(inputs().policy_logprobs, inputs(), config, 2.0), want, rtol=1e-5)


def test_kl_to_reference_and_to_rollout() -> None:
    config = replace(CONFIG, kl_coefficient=0.5)
    k3 = math.exp(-0.3) - 1 + 0.3
    out = run(inputs(ref_logprobs=REFERENCE), config, 3.0)
    assert float(out.loss) == pytest.approx(-3.6 / 3 + 0.5 * k3, rel=1e-5)
    assert mean_metrics(out.metrics)["kl"] == pytest.approx(k3, rel=1e-5)
    inverse = 1 / np.array([1.5, 0.9, 0.5])
    to_rollout = (inverse - 1 - np.log(inverse)).mean()
    out = run(inputs(), replace(config, kl_target="rollout"), 3.0)
    assert float(out.loss) == pytest.approx(-3.6 / 3 + 0.5 * to_rollout, rel=1e-5)
    with pytest.raises(ValueError, match="needs ref_logprobs"):
        run(inputs(), config, 3.0)


def test_all_masked_is_zero_with_zero_gradient() -> None:
    nothing = inputs(loss_mask=np.zeros_like(MASK), policy_logprobs=np.full((2, 6), np.nan))
    for ratio in ("token", "sequence"):
        config = replace(CONFIG, ratio=ratio)
        out = run(nothing, config, 0.0)
        assert float(out.loss) == 0.0
        assert set(mean_metrics(out.metrics).values()) == {0.0}
    safe = inputs(loss_mask=np.zeros_like(MASK))
    assert not np.any(gradient(safe.policy_logprobs, safe, CONFIG, 0.0))


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("gap", [-1e4, -80.0, 80.0, 1e4])
def test_extreme_log_ratios_stay_finite(ratio: str, gap: float) -> None:
    config = replace(CONFIG, ratio=ratio, kl_coefficient=0.1, kl_target="rollout")
    far = inputs(policy_logprobs=np.where(MASK, gap, 0.0), rollout_logprobs=np.zeros((2, 6)))
    out = run(far, config, 3.0)
    assert np.isfinite(out.loss)
    assert all(math.isfinite(v) for v in mean_metrics(out.metrics).values())
    assert np.all(np.isfinite(gradient(far.policy_logprobs, far, config, 3.0)))
    assert mean_metrics(out.metrics)["ratio_max"] <= math.exp(MAX_LOG_RATIO) * 1.001


def test_micro_batches_add_up_to_the_whole() -> None:
    whole = run(inputs(), CONFIG, 3.0)
    parts = []
    for segment in (2, 3):
        mask = MASK & (segment == SEGMENTS)
        parts.append(run(inputs(loss_mask=mask, loss_weight=mask.astype(float)), CONFIG, 3.0))
    assert float(parts[0].loss + parts[1].loss) == pytest.approx(float(whole.loss))
    both = mean_metrics(add_metrics(parts[0].metrics, parts[1].metrics))
    assert both == pytest.approx(mean_metrics(whole.metrics))


@pytest.mark.parametrize("name", ["advantages", "loss_weight", "segment_ids", "ref_logprobs"])
def test_shapes_that_differ_raise(name: str) -> None:
    with pytest.raises(ValueError, match="must have one shape"):
        policy_loss(inputs(**{name: np.ones((2, 1))}), CONFIG, jnp.asarray(1.0))


def test_unknown_aggregation_raises() -> None:
    with pytest.raises(ValueError, match="token_mean or sequence_mean"):
        token_shares(jnp.ones((1, 2)), jnp.ones((1, 2)), "batch_mean")  # type: ignore[arg-type]


def test_k3_is_never_negative_and_zero_at_equality() -> None:
    policy, target = jnp.linspace(-5.0, 0.0, 41), jnp.linspace(0.0, -7.0, 41)
    mask = jnp.ones(41, bool)
    assert np.all(k3_divergence(policy, target, mask) >= 0)
    assert not np.any(k3_divergence(policy, policy, mask))


def test_supervised_by_hand() -> None:
    logprobs = jnp.asarray([[-1.0, -2.0, -4.0, np.nan]], jnp.float32)
    weight = jnp.asarray([[1.0, 1.0, 0.25, 0.0]], jnp.float32)
    action = jnp.asarray([[True, True, False, False]])
    data = SupervisedLossInputs(
        policy_logprobs=logprobs,
        loss_mask=weight > 0,
        loss_weight=weight,
        action_mask=action,
        entropy=jnp.asarray([[0.2, 0.4, 9.0, 9.0]], jnp.float32),
        is_argmax=jnp.asarray([[True, False, True, True]]),
    )
    out = jax.jit(supervised_loss)(data, 2.25)
    assert float(out.loss) == pytest.approx((1 + 2 + 0.25 * 4) / 2.25)
    assert mean_metrics(out.metrics) == pytest.approx(
        {
            "tokens": 3,
            "nll": 7 / 3,
            "action/tokens": 2,
            "action/nll": 1.5,
            "action/entropy": 0.3,
            "action/accuracy": 0.5,
        }
    )
    nothing = replace(data, loss_mask=jnp.zeros((1, 4), bool), loss_weight=jnp.zeros((1, 4)))
    assert float(jax.jit(supervised_loss)(nothing, 0.0).loss) == 0.0
    with pytest.raises(ValueError, match="must have one shape"):
        supervised_loss(replace(data, entropy=jnp.zeros(4)), jnp.asarray(1.0))
