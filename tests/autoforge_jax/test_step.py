"""The train step against numpy, and that it does not depend on split, packing, padding or prefix sharing."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.config import BatchConfig, ERPOConfig
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.train.instruments import CompileClock
from autoforge_jax.train.logprob_pass import ReferenceLogprobs
from autoforge_jax.train.objectives import PolicyObjective, SupervisedObjective
from autoforge_jax.train.step import make_train_step
from tests.autoforge_jax.mock_learner import (
    OPTIMIZER,
    ROWS,
    fresh_state,
    leaves,
    samples,
    step_of,
    table_forward,
    table_logprobs,
    table_params,
    tiny_qwen3,
)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_policy_loss_against_numpy(temperature: float) -> None:
    params, items = table_params(), [replace(s, weight=1.0 + i) for i, s in enumerate(samples())]
    objective = PolicyObjective.from_config(ERPOConfig(clip_low=0.2, clip_high=0.28), temperature)
    loss, _, numbers = step_of(objective).loss_and_gradient(params, pack(items, ROWS, 0))
    total = weights = 0.0
    gaps: list[float] = []
    for item in items:
        logprobs = table_logprobs(params, item.token_ids, temperature)
        for t, masked in enumerate(item.loss_mask):
            if masked:
                gap = logprobs[t] - item.rollout_logprobs[t]
                ratio = math.exp(gap)
                clipped = min(max(ratio, 0.8), 1.28)
                total -= item.weight * min(ratio * item.advantage, clipped * item.advantage)
                weights += item.weight
                gaps.append(abs(gap))
    assert loss == pytest.approx(total / weights, rel=1e-5)
    assert numbers["tokens"] == len(gaps)
    assert numbers["logprob_gap_mean"] == pytest.approx(np.mean(gaps), rel=1e-5)
    assert numbers["logprob_gap_max"] == pytest.approx(np.max(gaps), rel=1e-5)


def test_supervised_loss_and_gradient_against_numpy() -> None:
    params, items = table_params(), samples()
    batches = pack(items, ROWS, 0, observation_weight=0.25)
    loss, grads, _ = step_of(SupervisedObjective()).loss_and_gradient(params, batches)
    table, out = (np.asarray(params[k], np.float64) for k in ("table", "out"))
    want = {"table": np.zeros_like(table), "out": np.zeros_like(out)}
    total = denominator = 0.0
    pieces = []
    for item in items:
        for t in range(item.prefix_length, len(item.token_ids)):
            pieces.append((item.token_ids[t - 1], item.token_ids[t], 1.0 if item.loss_mask[t] else 0.25))
    denominator = sum(w for *_, w in pieces)
    for before, token, weight in pieces:
        logits = out @ table[before]
        softmax = np.exp(logits) / np.exp(logits).sum()
        total -= weight * math.log(softmax[token])
        error = (softmax - np.eye(len(softmax))[token]) * weight / denominator
        want["table"][before] += error @ out
        want["out"] += np.outer(error, table[before])
    assert loss == pytest.approx(total / denominator, rel=1e-5)
    for name in want:
        np.testing.assert_allclose(grads[name], want[name], rtol=1e-4, atol=1e-6)


OBJECTIVES = {
    "supervised": SupervisedObjective(),
    "token": PolicyObjective.from_config(ERPOConfig(), 1.0),
    "sequence": PolicyObjective.from_config(ERPOConfig(ratio="sequence", aggregation="sequence_mean"), 1.0),
}


def layouts(weight: float) -> list[list[Batch]]:
    """The same samples in 1, 2 and 4 micro-batches, and with a prefix of their own; all of one shape, so that
    one program serves."""
    items = [replace(s, weight=1.0 + 0.1 * i) for i, s in enumerate(samples())]
    own = ROWS.model_copy(update={"share_prefix": False})
    parts = [[items], [items[:3], items[3:]], [items[i::4] for i in range(4)]]
    shared = [
        [b for part in split for b in pack(part, ROWS, 0, observation_weight=weight)] for split in parts
    ]
    padded = [b for item in items for b in pack([item], own, 5, observation_weight=weight)]
    return [*shared, pack(items, own, 5, observation_weight=weight), padded]


@pytest.mark.parametrize(
    ("name", "real"), [("supervised", True), ("supervised", False), ("token", False), ("sequence", False)]
)
def test_same_loss_and_gradient_for_any_split_and_packing(name: str, real: bool) -> None:
    if real:
        forward, params = tiny_qwen3()
        step = make_train_step(forward, OPTIMIZER, OBJECTIVES[name], chunk_size=16)
    else:
        step, params = step_of(OBJECTIVES[name]), table_params()
    first, *others = layouts(0.3 if name == "supervised" else 0.0)
    assert [len(batches) for batches in (first, *others)] == [1, 2, 4, 1, 8]
    loss, grads, numbers = step.loss_and_gradient(params, first)
    assert loss != 0 and max(np.abs(g).max() for g in leaves(grads)) > 1e-4
    for batches in others:
        other_loss, other_grads, other_numbers = step.loss_and_gradient(params, batches)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for a, b in zip(leaves(grads), leaves(other_grads), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
        assert other_numbers == pytest.approx(numbers, rel=1e-4)
    assert step.compile_count <= 2


@pytest.mark.parametrize("bound", ["nothing", "state", "params", "step"])
def test_nothing_is_compiled_after_the_first_update_whatever_is_bound_to_its_device(bound: str) -> None:
    """Restored arrays are bound (committed) to their device, fresh ones are not, and a new phase may begin
    with restored parameters and a fresh optimiser."""
    step = make_train_step(table_forward, OPTIMIZER, SupervisedObjective(), chunk_size=16)
    state, here = fresh_state(), jax.devices()[0]
    if bound == "state":
        state = jax.device_put(state, here)
    elif bound != "nothing":
        state = replace(state, **{bound: jax.device_put(getattr(state, bound), here)})
    assert {leaf.committed for leaf in jax.tree.leaves(state)} == {
        "nothing": {False}, "state": {True}, "params": {False, True}, "step": {False, True}
    }[bound]  # fmt: skip
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.heard)
    try:
        after_each: list[int] = []
        for count in (2, 1, 3, 2):
            batches = pack(samples()[:count], BatchConfig(row_tokens=20, rows_per_microbatch=1), 0)
            state, _ = step(state, batches)
            after_each.append(clock.count)
    finally:
        jax.monitoring.unregister_event_duration_listener(clock.heard)
    assert after_each == [after_each[0]] * 4 and step.compile_count == 2
    assert int(state.step) == 4


def test_updates_compile_once_and_donate() -> None:
    step = make_train_step(table_forward, OPTIMIZER, SupervisedObjective(), chunk_size=16)
    state = fresh_state()
    counts = []
    losses = []
    for count in (1, 2, 8, 3):
        before = state
        state, numbers = step(
            state, pack(samples()[:count], BatchConfig(row_tokens=20, rows_per_microbatch=1), 0)
        )
        counts.append(step.compile_count)
        losses.append(numbers["loss"])
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
    assert counts == [2, 2, 2, 2]
    assert (int(state.step), int(state.skipped)) == (4, 0)
    assert numbers["update_skipped"] == 0 and numbers["grad_norm"] > 0
    for _ in range(5):
        state, numbers = step(
            state, pack(samples()[:3], BatchConfig(row_tokens=20, rows_per_microbatch=1), 0)
        )
    assert numbers["loss"] < losses[-1]


def test_update_without_loss_tokens_or_with_a_bad_gradient_is_skipped_and_counted() -> None:
    step = step_of(PolicyObjective.from_config(ERPOConfig(), 1.0))
    state = fresh_state()
    before = leaves((state.params, state.opt_state))
    (batch,) = pack(samples(), ROWS, 0)
    empty = replace(
        batch, loss_mask=np.zeros_like(batch.loss_mask), loss_weight=np.zeros_like(batch.loss_weight)
    )
    poisoned = replace(batch, advantages=np.full_like(batch.advantages, np.inf))
    for batches in ([], [empty], [poisoned]):
        state, numbers = step(state, batches)
        assert numbers["update_skipped"] == 1
    assert (int(state.step), int(state.skipped)) == (0, 3)
    for a, b in zip(before, leaves((state.params, state.opt_state)), strict=True):
        np.testing.assert_array_equal(a, b)
    state, numbers = step(state, [batch])
    assert (int(state.step), int(state.skipped), numbers["update_skipped"]) == (1, 3, 0)


def test_pad_id_equal_to_a_trained_token_changes_nothing() -> None:
    step = step_of(SupervisedObjective())
    eos = samples()[0].token_ids[-1]
    results = [step.loss_and_gradient(table_params(), pack(samples(), ROWS, pad)) for pad in (eos, 0)]
    assert results[0][0] == results[1][0]
    for a, b in zip(leaves(results[0][1]), leaves(results[1][1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_reference_logprobs_fill_the_batches() -> None:
    reference = ReferenceLogprobs(table_forward, table_params(3), 1.0, chunk_size=16)
    config = ERPOConfig(kl_coefficient=0.5)
    objective = PolicyObjective.from_config(config, 1.0)
    assert objective.needs_reference and not PolicyObjective.from_config(ERPOConfig(), 1.0).needs_reference
    items = samples()
    (batch,) = reference(pack(items, ROWS, 0))
    for index, item in enumerate(items):
        want = table_logprobs(table_params(3), item.token_ids)
        rows, columns = np.nonzero(batch.sample_ids == index)
        got = np.asarray(batch.ref_logprobs)[rows, columns]
        masked = np.array(item.loss_mask[5:])
        np.testing.assert_allclose(got[masked], want[5:][masked], rtol=1e-4)
    with_kl, _, numbers = step_of(objective).loss_and_gradient(table_params(), [batch])
    assert with_kl == pytest.approx(-numbers["surrogate"] + 0.5 * numbers["kl"], rel=1e-5)
    assert numbers["kl"] > 0


def test_loss_and_gradient_needs_batches() -> None:
    with pytest.raises(ValueError, match="no batches"):
        step_of(SupervisedObjective()).loss_and_gradient({"table": jnp.zeros((2, 2))}, [])
