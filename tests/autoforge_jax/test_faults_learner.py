"""Faults 21–23 (numerics and learner): those without a test elsewhere, and where the others have theirs."""

from dataclasses import replace

import numpy as np
import pytest

from autoforge_jax.config import ERPOConfig
from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.batch import pack
from autoforge_jax.train.erpo import ERPOLearner
from autoforge_jax.train.logprob_pass import ReferenceLogprobs
from autoforge_jax.train.objectives import PolicyObjective
from tests.autoforge_jax.fault_index import Index, missing
from tests.autoforge_jax.mock_learner import (
    ROWS,
    fresh_state,
    group,
    leaves,
    samples,
    step_of,
    table_forward,
    table_params,
)
from tests.autoforge_jax.test_erpo import GROUPS, sampled

A = "autoforge_jax/"
ELSEWHERE: Index = {
    "21 std 0 gives NaN or huge advantages": [A + "test_advantages.py::test_equal_rewards_give_zero"],
    "21 a floor of the variance shrinks advantages": [
        A + "test_advantages.py::test_a_std_at_most_epsilon_gives_zero_and_epsilon_is_not_added",
    ],
    "21 a NaN reward poisons the batch": [
        A + "test_advantages.py::test_reward_that_is_not_finite_names_the_trajectory",
        A + "test_erpo.py::test_excluded_trajectories_change_nothing_but_their_count",
    ],
    "21 an all-masked batch steps the optimiser": [
        A + "test_step.py::test_update_without_loss_tokens_or_with_a_bad_gradient_is_skipped_and_counted",
        A + "test_erpo.py::test_nothing_to_learn_is_one_skipped_update",
    ],
    "22 the loss depends on the split": [
        A + "test_step.py::test_same_loss_and_gradient_for_any_split_and_packing",
        A + "test_erpo_options.py::test_micro_batches_change_nothing",
    ],
    "22 the loss depends on the data-parallel size": [
        A + "test_mesh.py::test_a_mesh_gives_the_loss_and_gradient_of_one_device",
    ],
    "22 importance weights broadcast silently": [A + "test_losses.py::test_shapes_that_differ_raise"],
    "23 pad == eos vanishes": [
        A + "test_step.py::test_pad_id_equal_to_a_trained_token_changes_nothing",
        A + "test_batch.py::test_pad_id_may_be_any_token_of_the_samples",
        A + "test_engine_jax.py::test_pad_that_is_the_stop_token_in_a_context_is_an_ordinary_token",
    ],
    "23 packed segments see each other": [
        A + "test_qwen3.py::test_shared_prefix_row_equals_separate_rows",
        A + "test_attention.py::test_matches_a_loop_over_queries",
    ],
}


@pytest.mark.parametrize("clause", ELSEWHERE)
def test_a_fault_tested_elsewhere_is_still_tested(clause: str) -> None:
    assert ELSEWHERE[clause] and missing(ELSEWHERE[clause]) == []


def test_fault_21_groups_without_a_signal_get_no_kl() -> None:
    """trl#5777. They are left out before the loss; without dynamic sampling they are in it on purpose."""
    config = ERPOConfig(kl_coefficient=0.5)
    reference = ReferenceLogprobs(table_forward, table_params(1), 1.0, chunk_size=16)
    step = step_of(PolicyObjective.from_config(config, 1.0))
    learner = ERPOLearner(step, config, ROWS, 0, reference)
    flat = GROUPS[1]
    assert not flat.mixed
    (with_, a), (without, b) = (
        learner.update(fresh_state(), sampled(part)) for part in (GROUPS, [GROUPS[0], GROUPS[2]])
    )
    assert a["kl"] == b["kl"] > 0
    for x, y in zip(leaves(with_.params), leaves(without.params), strict=True):
        np.testing.assert_array_equal(x, y)
    kept = ERPOConfig(kl_coefficient=0.5, dynamic_sampling=False)
    _, c = ERPOLearner(step, kept, ROWS, 0, reference).update(fresh_state(), sampled(GROUPS))
    assert c["tokens"] > a["tokens"] and c["kl"] != a["kl"]


@pytest.mark.parametrize("rewards", [[1.0] * 7 + [0.0], [1e-4, 0.0], [1e6, 0.0]])
def test_fault_21_advantages_have_the_size_that_the_formula_gives(rewards: list[float]) -> None:
    """Neither shrunk by a floor nor blown up: per environment their root mean square is 1 (one group)."""
    (row,) = compute_advantages([group(rewards)]).advantages
    values = np.array([a for a in row if a is not None])
    assert np.sqrt(np.mean(values**2)) == pytest.approx(1.0) and abs(values.mean()) < 1e-9


def test_fault_22_token_mean_and_sequence_mean_are_what_they_say() -> None:
    """maxtext#4025. Told apart on trajectories of unequal length: scaling one trajectory's weight moves both,
    making it longer moves the token mean alone."""
    items = [replace(s, weight=1.0) for s in samples()]
    tokens = [sum(s.loss_mask) for s in items]
    assert len(set(tokens)) > 2
    batches = pack(items, ROWS, 0)
    totals = {}
    for kind in ("token_mean", "sequence_mean"):
        objective = PolicyObjective.from_config(ERPOConfig(aggregation=kind), 1.0)
        totals[kind] = objective.denominator(batches)
    assert totals["token_mean"] == sum(tokens)
    assert totals["sequence_mean"] == pytest.approx(len(items))


def test_fault_22_excluded_trajectories_are_in_no_denominator() -> None:
    for kind in ("token_mean", "sequence_mean"):
        config = ERPOConfig(aggregation=kind)
        learner = ERPOLearner(step_of(PolicyObjective.from_config(config, 1.0)), config, ROWS, 0)
        plain = sampled([group([1, 0, 0])])
        members = plain[0].trajectories
        wrong = replace(members[0], sample_index=3, user_error=True)
        spoiled = [replace(plain[0], trajectories=(*members, wrong))]
        (one, a), (two, b) = (learner.update(fresh_state(), part) for part in (plain, spoiled))
        assert a["loss"] == b["loss"] and a["tokens"] == b["tokens"]
        for x, y in zip(leaves(one.params), leaves(two.params), strict=True):
            np.testing.assert_array_equal(x, y)


def test_fault_23_every_token_of_a_sample_has_its_own_segment_and_padding_has_none() -> None:
    """maxtext#4016: without segment ids nothing is learned; a token in another's segment would leak."""
    for share in (True, False):
        batches = pack(samples(), ROWS.model_copy(update={"share_prefix": share}), 0)
        for batch in batches:
            ids, segments = np.asarray(batch.sample_ids), np.asarray(batch.segment_ids)
            assert np.all(segments[np.asarray(batch.loss_mask)] >= 2)
            for row in range(ids.shape[0]):
                pairs = {(i, s) for i, s in zip(ids[row], segments[row], strict=True) if i >= 0}
                assert len(pairs) == len({i for i, _ in pairs}) == len({s for _, s in pairs})
                assert set(segments[row][ids[row] < 0]) <= {0, 1}
