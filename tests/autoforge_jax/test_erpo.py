"""One ERPO step: what is left out, what is learned, what is reported."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoforge_jax.config import ERPOConfig
from autoforge_jax.errors import LedgerError, TrainingError
from autoforge_jax.train.erpo import ERPOLearner, Rollouts, merge_updates, run_erpo, split_minibatches
from autoforge_jax.train.logprob_pass import ReferenceLogprobs
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.train.state import TrainState
from autoforge_jax.types import TrajectoryGroup
from tests.autoforge_jax.mock_learner import (
    ROWS,
    as_sampled,
    fresh_state,
    group,
    leaves,
    samples,
    step_of,
    table_forward,
    table_logprobs,
    table_params,
)


def sampled(groups: list[TrajectoryGroup], temperature: float = 1.0) -> list[TrajectoryGroup]:
    """The groups with the log-probs that the bigram model really gives."""
    out = []
    for item in groups:
        members = []
        for t in item.trajectories:
            logprobs = table_logprobs(table_params(), t.token_ids, temperature)
            known = tuple(float(x) if m else math.nan for x, m in zip(logprobs, t.action_mask, strict=True))
            members.append(as_sampled(replace(t, rollout_logprobs=known)))
        out.append(replace(item, trajectories=tuple(members)))
    return out


def learner(
    reference: ReferenceLogprobs | None = None, temperature: float = 1.0, **fields: object
) -> ERPOLearner:
    config = ERPOConfig(**fields)  # type: ignore[arg-type]
    return ERPOLearner(step_of(PolicyObjective.from_config(config, temperature)), config, ROWS, 0, reference)


GROUPS = [group([1, 0, 0, 0]), group([1, 1], task="t1"), group([0, 1], task="t2", environment="e1")]


def test_dynamic_sampling_leaves_unmixed_groups_out_of_loss_and_std() -> None:
    used = learner()
    state, numbers = used.update(fresh_state(), sampled(GROUPS))
    assert (numbers["groups"], numbers["groups_used"], numbers["samples"]) == (3, 2, 6)
    assert numbers["mixed_share"] == pytest.approx(2 / 3)
    assert numbers["reward"] == pytest.approx(4 / 8)
    # e0: all six collected rewards give the mean; the std is of the one group that is learned from.
    assert numbers["reward/name of e0"] == pytest.approx(3 / 6)
    assert numbers["reward_std/name of e0"] == pytest.approx(math.sqrt(3 / 16))
    assert numbers["reward_std/name of e1"] == pytest.approx(0.5)
    assert numbers["tokens"] == 6 * 4 and (numbers["update_skipped"], int(state.step)) == (0, 1)
    assert numbers["logprob_gap_max"] < 1e-5 and numbers["ratio_max"] == pytest.approx(1, abs=1e-5)
    # Advantages of each group sum to 0, so at ratio 1 the loss of equally long trajectories is 0.
    assert numbers["loss"] == pytest.approx(0, abs=1e-6)
    assert 0 < numbers["packing"] <= 1
    assert (numbers["rollout/ledger_checked_tokens"], numbers["rollout/ledger_mismatches"]) == (6 * 11, 0)
    kept = learner(dynamic_sampling=False)
    _, numbers = kept.update(fresh_state(), sampled(GROUPS))
    assert (numbers["groups_used"], numbers["samples"]) == (3, 8)
    assert numbers["reward_std/name of e0"] == pytest.approx(0.5)


def test_update_raises_the_probability_of_rewarded_actions() -> None:
    groups = sampled([group([1, 0])])
    state = fresh_state()
    work = learner(max_agreement_gap=9)  # the same rollouts three times: old ones after the first update
    for _ in range(3):
        state, _ = work.update(state, groups)
    good, bad = groups[0].trajectories
    for trajectory, sign in ((good, 1), (bad, -1)):
        before = np.nansum(table_logprobs(table_params(), trajectory.token_ids)[7:])
        after = np.nansum(table_logprobs(state.params, trajectory.token_ids)[7:])
        assert sign * (after - before) > 0


def test_one_id_that_the_engine_did_not_see_ends_the_step() -> None:
    groups = sampled([group([1, 0])])
    first, second = groups[0].trajectories
    ids = list(second.token_ids)
    ids[6] = (ids[6] + 1) % 24  # an observation: its log-probs and masks still agree with each other
    broken = [replace(groups[0], trajectories=(first, replace(second, token_ids=tuple(ids))))]
    with pytest.raises(LedgerError, match=r"1 of 2 sampled turns .* first turn 0 of sample 1 \(task t0\)"):
        learner().update(fresh_state(), broken)


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0]])
def test_nothing_to_learn_is_one_skipped_update(rewards: list[float]) -> None:
    state, numbers = learner().update(fresh_state(), sampled([group(rewards)]))
    assert (numbers["update_skipped"], numbers["samples"], numbers["mixed_share"]) == (1, 0, 0)
    assert (int(state.step), int(state.skipped)) == (0, 1)
    for a, b in zip(leaves(state.params), leaves(table_params()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_excluded_trajectories_change_nothing_but_their_count() -> None:
    plain = sampled([group([1, 0])])
    extra = replace(
        plain[0].trajectories[0], sample_index=2, reward=math.nan, user_error=True, rollout_logprobs=()
    )
    spoiled = [replace(plain[0], trajectories=(*plain[0].trajectories, extra))]
    work = learner()
    (one, a), (two, b) = work.update(fresh_state(), plain), work.update(fresh_state(), spoiled)
    assert (a["excluded"], b["excluded"], b["trajectories"]) == (0, 1, 3)
    for x, y in zip(leaves(one.params), leaves(two.params), strict=True):
        np.testing.assert_array_equal(x, y)


def test_minibatches_are_several_updates_and_agreement_is_the_first_ones() -> None:
    state, numbers = learner(minibatches=3, max_agreement_gap=1e-3).update(fresh_state(), sampled(GROUPS))
    assert int(state.step) == 3 and numbers["tokens"] == 24
    assert numbers["logprob_gap_max"] < 1e-5 < numbers["ratio_max"] - 1


def test_sequence_mean_weighs_by_group() -> None:
    # eq. 2 averages within a group first: the group of 4 and the group of 2 count the same.
    groups = sampled([group([1, 0, 0, 0]), group([0, 1], task="t2", environment="e1")])
    work = learner(ratio="sequence", aggregation="sequence_mean")
    _, numbers = work.update(fresh_state(), groups)
    assert numbers["loss"] == pytest.approx(0, abs=1e-6) and numbers["grad_norm"] > 0


def test_disagreement_of_engine_and_learner_stops_training() -> None:
    work = learner()
    with pytest.raises(TrainingError, match=r"engine and learner disagree.*max_agreement_gap"):
        work.update(fresh_state(), sampled(GROUPS, temperature=0.5))
    # The same log-probs under the rollouts' own temperature agree.
    _, numbers = learner(temperature=0.5).update(fresh_state(), sampled(GROUPS, temperature=0.5))
    assert numbers["logprob_gap_max"] < 1e-4


def test_broken_ledger_and_bad_reward_are_errors() -> None:
    (good,) = sampled([group([1, 0])])
    missing = replace(good.trajectories[0], rollout_logprobs=(math.nan,) * 11)
    with pytest.raises(LedgerError):
        learner().update(fresh_state(), [replace(good, trajectories=(missing, good.trajectories[1]))])
    with pytest.raises(TrainingError, match="t0#0 has reward nan"):
        learner().update(fresh_state(), [group([math.nan, 1])])


def test_reference_kl_is_computed_only_when_asked_for() -> None:
    with pytest.raises(TrainingError, match="reference policy's parameters"):
        learner(kl_coefficient=0.5)
    reference = ReferenceLogprobs(table_forward, table_params(1), 1.0, chunk_size=16)
    _, numbers = learner(reference, kl_coefficient=0.5).update(fresh_state(), sampled(GROUPS))
    assert numbers["kl"] > 0
    assert "kl" not in learner(reference).update(fresh_state(), sampled(GROUPS))[1]


def test_split_and_merge() -> None:
    parts = split_minibatches(samples(), 3)
    ids = [[s.task_id for s in part] for part in parts]
    assert ids == [["t0", "t3", "t6"], ["t1", "t4", "t7"], ["t2", "t5"]]
    assert split_minibatches([], 2) == [[]] and len(split_minibatches(samples()[:1], 2)) == 1
    merged = merge_updates(
        [
            {"loss": 1.0, "tokens": 3.0, "ratio_max": 2.0, "logprob_gap_mean": 0.1, "update_skipped": 0.0},
            {"loss": 3.0, "tokens": 4.0, "ratio_max": 1.0, "logprob_gap_mean": 0.9, "update_skipped": 1.0},
        ]
    )
    assert merged == {
        "loss": 2.0,
        "tokens": 7.0,
        "ratio_max": 2.0,
        "logprob_gap_mean": 0.1,
        "update_skipped": 1.0,
    }


def test_run_collects_under_the_live_state_and_stops_on_request() -> None:
    asked: list[tuple[int, int]] = []

    def collect(step: int, state: TrainState) -> Rollouts:
        asked.append((step, int(state.step)))
        return Rollouts([group([0, 1])])

    work = learner(steps=5, max_agreement_gap=99)
    result = run_erpo(fresh_state(), work, collect, start_step=1, on_step=lambda n, s, m, g: n == 3)
    assert asked == [(1, 0), (2, 1)] and (result.steps, result.ended) == (3, "stopped")
    assert run_erpo(result.state, work, collect, start_step=3).steps == 5
