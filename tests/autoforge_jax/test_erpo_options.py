"""Every option of the ERPO loss against float64 numpy (loss and gradient), and for any split into
micro-batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from autoforge_jax.config import ERPOConfig, parse_config
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.erpo import ERPOLearner
from autoforge_jax.train.logprob_pass import LogprobPass, ReferenceLogprobs
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.train.old_policy import reject_sequences, sequence_gaps, with_old_logprobs
from autoforge_jax.train.step import TrainStep, make_train_step
from autoforge_jax.types import TrainingSample
from tests.autoforge_jax.mock_learner import (
    OPTIMIZER,
    ROWS,
    as_sampled,
    fresh_state,
    group,
    leaves,
    sample,
    samples,
    table_forward,
    table_logprobs,
    table_params,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip_low": 0.05, "clip_high": 0.5},
    "sequence_mean": {"aggregation": "sequence_mean"},
    "sequence_ratio": {"ratio": "sequence"},
    "sequence_ratio_sum": {"ratio": "sequence", "ratio_length_normalised": False, "clip_high": 4.0},
    "kl_reference": {"kl_coefficient": 0.3},
    "kl_old": {"kl_coefficient": 0.3, "kl_target": "rollout"},
    "old_learner": {"old_policy": "learner"},
    "kl_old_learner": {"old_policy": "learner", "kl_coefficient": 0.3, "kl_target": "rollout"},
    "correct_token": {"old_policy": "learner", "correction": "token", "correction_cap": 1.1},
    "correct_sequence": {"old_policy": "learner", "correction": "sequence", "correction_cap": 1.5},
    "correct_all": {
        "old_policy": "learner", "correction": "token", "correction_cap": 1.1, "ratio": "sequence",
        "aggregation": "sequence_mean", "kl_coefficient": 0.3,
    },
}  # fmt: skip
OLD, REFERENCE = table_params(), table_params(3)


@cache
def own_step(objective: PolicyObjective) -> TrainStep:
    """Not the one of the other tests: batches here carry more arrays, which is another program."""
    return make_train_step(table_forward, OPTIMIZER, objective, chunk_size=16)


def later(scale: float = 0.05) -> dict[str, Any]:
    """The policy some updates after `OLD`: ratios differ from 1."""
    rng = np.random.default_rng(9)
    return {k: v + np.asarray(rng.normal(size=v.shape) * scale, np.float32) for k, v in OLD.items()}


def engine_samples() -> list[TrainingSample]:
    """Samples whose engine log-probs lie near the old policy's, as a real engine's do, with weights."""
    out: list[TrainingSample] = []
    for index, item in enumerate(samples()):
        noise = np.random.default_rng([5, index]).normal(size=len(item.token_ids)) * 0.2
        known = table_logprobs(OLD, item.token_ids) + noise
        logprobs = [
            float(np.float32(x)) if m else math.nan for x, m in zip(known, item.action_mask, strict=True)
        ]
        out.append(replace(item, rollout_logprobs=tuple(logprobs), weight=1.0 + 0.25 * (index % 3)))
    return out


def numpy_loss(params: dict[str, Any], items: Sequence[TrainingSample], config: ERPOConfig) -> float:
    """METHOD.md §4 eq. 2 with the options, written out per token; nothing of the package in it."""
    total = denominator = 0.0
    for item in items:
        at = [t for t, masked in enumerate(item.loss_mask) if masked]
        now, old, reference = (table_logprobs(p, item.token_ids)[at] for p in (params, OLD, REFERENCE))
        engine = np.array(item.rollout_logprobs)[at]
        if config.old_policy == "engine":
            old = engine
        log_ratio = now - old
        if config.ratio == "sequence":
            one = log_ratio.mean() if config.ratio_length_normalised else log_ratio.sum()
            log_ratio = np.full(len(at), one)
        ratio = np.exp(log_ratio)
        cut = np.minimum(np.maximum(ratio, 1 - config.clip_low), 1 + config.clip_high)
        value = np.minimum(ratio * item.advantage, cut * item.advantage)
        log_weight = old - engine
        if config.correction == "sequence":
            log_weight = np.full(len(at), log_weight.sum())
        if config.correction != "none":
            value = value * np.minimum(np.exp(log_weight), config.correction_cap)
        loss = -value
        if config.kl_coefficient:
            d = (old if config.kl_target == "rollout" else reference) - now
            loss = loss + config.kl_coefficient * (np.exp(d) - 1 - d)
        share = item.weight if config.aggregation == "token_mean" else item.weight / len(at)
        total += share * loss.sum()
        denominator += share * len(at)
    return total / denominator


def numpy_gradient(
    params: dict[str, Any], items: Sequence[TrainingSample], config: ERPOConfig
) -> dict[str, np.ndarray]:
    """Central differences of `numpy_loss`."""
    plain = {k: np.asarray(v, np.float64) for k, v in params.items()}
    out: dict[str, np.ndarray] = {}
    for name, value in plain.items():
        gradient = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            kept, sides = value[place], []
            for step in (1e-5, -1e-5):
                value[place] = kept + step
                sides.append(numpy_loss(plain, items, config))
            value[place] = kept
            gradient[place] = (sides[0] - sides[1]) / 2e-5
        out[name] = gradient
    return out


@dataclass
class Case:
    """One option, ready to run."""

    config: ERPOConfig
    step: TrainStep

    def batches(self, parts: Sequence[Sequence[TrainingSample]]) -> list[Batch]:
        """Packed, with the log-probs that the option needs."""
        out = [batch for part in parts for batch in pack(part, ROWS, 0)]
        if self.config.kl_coefficient and self.config.kl_target == "reference":
            out = ReferenceLogprobs(table_forward, REFERENCE, 1.0, chunk_size=16)(out)
        if self.config.old_policy == "learner":
            out = with_old_logprobs(LogprobPass(table_forward, 1.0, chunk_size=16), OLD, out)
        return out


def case(name: str) -> Case:
    config = ERPOConfig(**OPTIONS[name])
    return Case(config, own_step(PolicyObjective.from_config(config, 1.0)))


@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_gradient_against_numpy(name: str) -> None:
    run, items, params = case(name), engine_samples(), later()
    loss, gradient, _ = run.step.loss_and_gradient(params, run.batches([items]))
    assert loss == pytest.approx(numpy_loss(params, items, run.config), rel=1e-4, abs=1e-6)
    want = numpy_gradient(params, items, run.config)
    largest = max(np.abs(part).max() for part in want.values())
    assert largest > 1e-3
    for key, part in want.items():
        np.testing.assert_allclose(np.asarray(gradient[key]), part, rtol=2e-3, atol=2e-4 * largest)


@pytest.mark.parametrize("name", OPTIONS)
def test_micro_batches_change_nothing(name: str) -> None:
    run, items, params = case(name), engine_samples(), later()
    whole = run.step.loss_and_gradient(params, run.batches([items]))
    for parts in ([items[:3], items[3:]], [[item] for item in items], [items[i::3] for i in range(3)]):
        loss, gradient, numbers = run.step.loss_and_gradient(params, run.batches(parts))
        assert loss == pytest.approx(whole[0], rel=1e-4, abs=1e-6)
        for a, b in zip(leaves(whole[1]), leaves(gradient), strict=True):
            np.testing.assert_allclose(a, b, rtol=5e-4, atol=5e-6)
        assert numbers == pytest.approx(whole[2], rel=1e-4, abs=1e-6)


def test_the_options_differ_from_each_other() -> None:
    """So that none of the tests above compares a default with itself."""
    losses = {name: numpy_loss(later(), engine_samples(), case(name).config) for name in OPTIONS}
    assert len({round(loss, 7) for loss in losses.values()}) == len(OPTIONS)


def test_truncation_is_seen_and_cuts_from_above_only() -> None:
    items = engine_samples()
    run = case("correct_token")
    _, _, numbers = run.step.loss_and_gradient(OLD, run.batches([items]))
    weights = [
        math.exp(a - b)
        for item in items
        for a, b, m in zip(
            table_logprobs(OLD, item.token_ids), item.rollout_logprobs, item.loss_mask, strict=True
        )
        if m
    ]
    assert numbers["correction_truncated"] == pytest.approx(np.mean([w > 1.1 for w in weights]), rel=1e-5)
    assert 0 < numbers["correction_truncated"] < 1
    assert numbers["correction_mean"] == pytest.approx(np.mean([min(w, 1.1) for w in weights]), rel=1e-4)
    assert numbers["correction_max"] == pytest.approx(1.1, rel=1e-5)
    assert min(weights) < 0.9  # kept: truncation is one-sided


def shifted(item: TrainingSample, by: float) -> TrainingSample:
    return replace(item, rollout_logprobs=tuple(value - by for value in item.rollout_logprobs))


def test_rejection_is_per_sequence_and_leaves_the_denominator() -> None:
    items = engine_samples()
    spoiled = [shifted(item, 2.0) if index in (1, 4) else item for index, item in enumerate(items)]
    run = case("sequence_mean")
    old = LogprobPass(table_forward, 1.0, chunk_size=16)
    batches = with_old_logprobs(old, OLD, pack(spoiled, ROWS, 0))
    gaps = sequence_gaps(batches)
    for index, item in enumerate(spoiled):
        gap = np.abs(table_logprobs(OLD, item.token_ids) - np.array(item.rollout_logprobs))
        assert gaps[index] == pytest.approx(np.nanmean(gap[np.array(item.loss_mask)]), rel=1e-3)
    kept, metrics = reject_sequences(batches, 1.0)
    assert metrics["sequences_rejected"] == 2 and metrics["sequences_rejected_share"] == 0.25
    assert metrics["rejected_tokens_mean"] == sum(sum(items[i].loss_mask) for i in (1, 4)) / 2
    others = [item for index, item in enumerate(items) if index not in (1, 4)]
    for objective in ("sequence_mean", "plain"):
        run = case(objective)
        with_, without = (
            run.step.loss_and_gradient(later(), part)
            for part in (kept, with_old_logprobs(old, OLD, pack(others, ROWS, 0)))
        )
        assert with_[0] == pytest.approx(without[0], rel=1e-5)
        for a, b in zip(leaves(with_[1]), leaves(without[1]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    untouched, metrics = reject_sequences(batches, 100.0)
    assert metrics["sequences_rejected"] == 0
    for a, b in zip(untouched, batches, strict=True):
        np.testing.assert_array_equal(a.loss_weight, b.loss_weight)


def test_a_step_corrects_rejects_and_reports() -> None:
    config = ERPOConfig(
        old_policy="learner", correction="token", reject_sequence_gap=0.5, max_agreement_gap=9, minibatches=2
    )
    old = LogprobPass(table_forward, 1.0, chunk_size=16)
    step = own_step(PolicyObjective.from_config(config, 1.0))
    learner = ERPOLearner(step, config, ROWS, 0, old=old)
    real = group([1, 0, 0, 1])
    members = []
    for index, t in enumerate(real.trajectories):
        known = table_logprobs(OLD, t.token_ids) - (3.0 if index == 2 else 0.0)
        logprobs = [float(x) if m else math.nan for x, m in zip(known, t.action_mask, strict=True)]
        members.append(as_sampled(replace(t, rollout_logprobs=tuple(logprobs))))
    state, numbers = learner.update(fresh_state(), [replace(real, trajectories=tuple(members))])
    assert int(state.step) == 2
    assert numbers["sequences_rejected"] == 1 and numbers["tokens"] == 3 * 4
    # the second update takes its ratio against the step's beginning too
    assert numbers["ratio_max"] > 1.001 and numbers["correction_mean"] == pytest.approx(1, abs=1e-4)
    with pytest.raises(TrainingError, match="one needs the other"):
        ERPOLearner(step, config, ROWS, 0)
    with pytest.raises(TrainingError, match="one needs the other"):
        ERPOLearner(own_step(PolicyObjective.from_config(ERPOConfig(), 1.0)), ERPOConfig(), ROWS, 0, old=old)


def test_agreement_is_judged_on_fresh_tokens_only() -> None:
    """Stale tokens differ from the learner on purpose; their gap must neither hide nor raise an alarm."""
    config = ERPOConfig(max_agreement_gap=0.5)
    # with the staleness in its batches the step is another program than without
    step = make_train_step(table_forward, OPTIMIZER, PolicyObjective.from_config(config, 1.0), chunk_size=16)
    learner = ERPOLearner(step, config, ROWS, 0)
    real = group([1, 0])

    def members(gaps: tuple[float, float], versions: tuple[int, int]) -> Any:
        out = []
        for t, gap, version in zip(real.trajectories, gaps, versions, strict=True):
            known = table_logprobs(OLD, t.token_ids) - gap
            logprobs = [float(x) if m else math.nan for x, m in zip(known, t.action_mask, strict=True)]
            turns = tuple(replace(turn, policy_version=version) for turn in t.turns)
            changed = replace(t, rollout_logprobs=tuple(logprobs), turns=turns, policy_version=version)
            out.append(as_sampled(changed))
        return [replace(real, trajectories=tuple(out))]

    _, numbers = learner.update(fresh_state(), members((3.0, 0.0), (4, 7)), version=7)
    assert numbers["fresh/tokens"] == 4 and numbers["fresh/logprob_gap_mean"] < 1e-5
    assert numbers["logprob_gap_mean"] == pytest.approx(1.5, rel=1e-4)
    assert (numbers["staleness_mean"], numbers["staleness_max"]) == (1.5, 3.0)
    with pytest.raises(TrainingError, match="engine and learner disagree"):
        learner.update(fresh_state(), members((0.0, 3.0), (4, 7)), version=7)
    with pytest.raises(TrainingError, match="ahead of the learner"):
        learner.update(fresh_state(), members((0.0, 0.0), (4, 8)), version=7)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"correction": "token"}, "set old_policy to learner"),
        ({"reject_sequence_gap": 0.5}, "set old_policy to learner"),
        ({"environment_std": "running", "advantage": "group"}, 'belongs to "environment"'),
        ({"environment_weights": {"a": 0.0}}, "expected some above 0"),
        ({"environment_weights": {"a": -1.0, "b": 2.0}}, "expected some above 0"),
        ({"aggregation": "mean"}, "aggregation"),
    ],
)
def test_options_that_do_not_fit(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"erpo": tree})


def test_bodies_of_one_loss_token_have_their_own_ratio() -> None:
    """Sum and mean of one token are the same, whatever stands beside it in the row."""
    item = sample(1, 5)
    one = replace(item, loss_mask=(*(False,) * 9, True), action_mask=(*(False,) * 9, True))
    losses = []
    for normalised in (True, False):
        config = ERPOConfig(ratio="sequence", ratio_length_normalised=normalised)
        step = own_step(PolicyObjective.from_config(config, 1.0))
        losses.append(step.loss_and_gradient(later(), pack([one], ROWS, 0))[0])
    assert losses[0] == losses[1] != 0
