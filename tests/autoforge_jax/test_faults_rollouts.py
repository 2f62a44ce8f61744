"""Faults 13–20 (rollouts, token data): those without a test elsewhere, and where the others have theirs."""

import math
import time
from typing import Any

import numpy as np
import pytest

from autoforge_jax.config import ERPOConfig
from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.batch import pack
from autoforge_jax.data.samples import samples_from_groups
from autoforge_jax.errors import LedgerError, TrainingError
from autoforge_jax.rollout.collect import collect
from autoforge_jax.rollout.jobs import EpisodeLimits
from autoforge_jax.rollout.ledger import check_output
from autoforge_jax.rollout.pool import run_episodes
from autoforge_jax.rollout.shaping import shaped
from autoforge_jax.types import SampleOutput, SamplingParams, Trajectory, TrajectoryGroup
from envgen.interface import StopReason
from tests.autoforge_jax.delayed_policy import Delayed
from tests.autoforge_jax.fault_index import Index, missing
from tests.autoforge_jax.mock_learner import ROWS, group, sample, trajectory
from tests.autoforge_jax.mock_rollout import Recorder, renderer, tokenizer
from tests.autoforge_jax.test_collect import ROLLOUT, many, playing
from tests.autoforge_jax.test_episode import jobs, pick
from tests.autoforge_jax.test_overlap import overlapped

A = "autoforge_jax/"
ELSEWHERE: Index = {
    "13 history tokenised again": [
        A + "test_episode.py::test_learner_ids_are_engine_ids_for_any_tokens",
        A + "test_ledger.py::test_sessions_may_only_grow",
        A + "test_turn_contexts.py::test_every_context_is_what_the_engine_saw_and_said",
    ],
    "14 templates that delete earlier thinking": [
        A + "test_render.py::test_chat_template_renders_the_same",
        A + "test_turn_contexts.py::test_thinking_goes_when_the_user_speaks_and_not_before",
    ],
    "15 missing log-probs become zeros": [
        A + "test_ledger.py::test_outputs_that_break_the_contract",
        A + "test_samples.py::test_broken_ledgers",
        A + "test_engine_sglang.py::test_answers_that_cannot_be_learned_from_stop_the_run",
    ],
    "16 log-probs before or after temperature": [
        A + "test_engine_jax.py::test_top_k_and_top_p_restrict_the_draw_and_leave_log_probs_alone",
        A + "test_erpo.py::test_disagreement_of_engine_and_learner_stops_training",
        "sglang/test_contract.py::test_logprobs_are_the_learners_for_every_sampling_setting",
    ],
    "17 malformed tool JSON": [A + "test_render.py::test_malformed_calls"],
    "17 a hung tool or user stalls the step": [
        A + "test_pool.py::test_an_environment_past_its_deadline_is_a_value_even_when_all_workers_hang",
        A + "test_pool.py::test_nobody_waits_for_the_slowest",
    ],
    "17 timed-out requests keep decoding": [
        A + "test_engine_sglang.py::test_a_deadline_aborts_and_is_not_tried_again",
        A + "test_pool.py::test_a_turn_past_its_deadline_is_a_value",
    ],
    "17 one exception ends training": [
        A + "test_episode.py::test_an_engine_failure_excludes_one_and_spares_its_siblings",
        A + "test_episode.py::test_a_defect_of_the_environment_is_excluded",
    ],
    "18 staleness off by one": [
        A + "test_overlap.py::test_no_token_is_older_than_the_bound_and_the_bound_is_used",
    ],
    "18 the bound is not checked where it counts": [
        A + "test_overlap.py::test_what_is_too_old_is_dropped_counted_and_its_length_shown",
    ],
    "18 discarding stale groups favours short ones": [
        A + "test_overlap.py::test_groups_are_taken_in_the_order_in_which_they_were_begun",
    ],
    "18 dynamic sampling without a budget, or never used": [
        A + "test_collect.py::test_the_budget_is_kept_and_what_there_is_is_used",
        A + "test_collect.py::test_dynamic_sampling_goes_on_until_it_has_enough",
        A + "test_overlap.py::test_dynamic_sampling_has_a_budget_here_too",
    ],
    "19 stale prefix cache after an update": [
        A + "test_engine_jax.py::test_new_weights_drop_every_cache",
        "sglang/test_contract.py::test_an_update_changes_outputs_and_version_and_leaves_no_stale_cache",
    ],
    "19 a sync that reports success with garbage, or transformed weights": [
        A + "test_weight_sync.py::test_what_did_not_arrive_is_named",
        A + "test_engine_sglang.py::test_what_did_not_arrive_is_named",
        "sglang/test_contract.py::test_weights_that_arrive_changed_are_noticed",
    ],
    "20 evaluation with training settings": [
        A + "test_evaluate.py::test_sampling_comes_from_the_evaluation_alone",
    ],
}


@pytest.mark.parametrize("clause", ELSEWHERE)
def test_a_fault_tested_elsewhere_is_still_tested(clause: str) -> None:
    assert ELSEWHERE[clause] and missing(ELSEWHERE[clause]) == []
    assert missing([A + "test_pool.py::test_that_nobody_wrote"]) != []


def played(script: Any, limits: EpisodeLimits, count: int = 2) -> tuple[list[Trajectory], Recorder]:
    policy = Recorder(script)
    todo = jobs(count)
    params = SamplingParams()
    return run_episodes(policy, todo, renderer(), sampling=params, limits=limits, slots=8), policy


def test_fault_14_only_what_was_sampled_is_trained() -> None:
    """Not the line break after an end token, not an assistant turn of the prompt, not the next prompt; and
    all of what was sampled, the first token of a turn and its end token too."""
    limits = EpisodeLimits(max_turns=5, max_turn_tokens=60, max_trajectory_tokens=900)
    out, policy = played(pick, limits, 4)
    newline = tokenizer().encode_text("\n")[0]
    ends = seen = 0
    for job, t in zip(jobs(4), out, strict=True):
        t_group = TrajectoryGroup(t.task_id, t.environment_id, (t,))
        for item in samples_from_groups([t_group], compute_advantages([t_group])):
            trained = {i for i, m in enumerate(item.loss_mask) if m}
            sampled: set[int] = set()
            for request, output in policy.log[job.session_id]:
                at = len(request.token_ids)
                sampled |= set(range(at, at + len(output.token_ids)))
                after = at + len(output.token_ids)
                if output.stop == "stop":
                    ends += 1
                    assert after - 1 in trained and item.token_ids[after - 1] in renderer().stop_ids
                    if after < len(item.token_ids):
                        assert item.token_ids[after] == newline and after not in trained
            assert trained == sampled
            seen += len(sampled)
    assert ends and seen


def test_fault_14_no_end_token_is_appended_to_a_truncated_turn() -> None:
    limits = EpisodeLimits(max_turns=5, max_turn_tokens=7, max_trajectory_tokens=900)
    out, _ = played(lambda request, turn: "word " * 40, limits)
    for t in out:
        assert t.stop_reason is StopReason.TURN_TRUNCATED
        assert t.token_ids[-1] not in renderer().stop_ids and t.action_mask[-1]
        assert t.sampled_tokens == 7 == sum(t.action_mask)
    kept, _ = played(lambda request, turn: "Done.", limits)
    assert all(t.token_ids[t.turns[-1].action_end - 1] in renderer().stop_ids for t in kept)


@pytest.mark.parametrize("share", [True, False])
def test_fault_14_the_first_sampled_token_has_a_predictor(share: bool) -> None:
    """Directly after the shared prefix too: it is predicted by the prefix's last token."""
    first = sample(3, 6)
    mask = (*(False,) * first.prefix_length, *(True,) * 6)
    item = type(first)(**{**vars(first), "action_mask": mask, "loss_mask": mask,
                          "rollout_logprobs": tuple(-1.0 if m else math.nan for m in mask)})  # fmt: skip
    (batch,) = pack([item], ROWS.model_copy(update={"share_prefix": share}), 0)
    rows, columns = np.nonzero(batch.loss_mask)
    assert len(rows) == 6
    at = columns[0]
    predictor = batch.predictor_index[rows[0], at]
    assert predictor == at - 1 and batch.tokens[rows[0], predictor] == item.token_ids[first.prefix_length - 1]


def test_fault_15_zeros_for_missing_log_probs_never_come_from_us() -> None:
    """An aborted or failed turn leaves no token behind that would need one."""

    class Aborting(Recorder):
        def sample(self, requests: Any) -> list[SampleOutput]:
            return [SampleOutput((), (), "abort", 0, "gone") for _ in requests]

    policy = Aborting(pick)
    limits = EpisodeLimits()
    out = run_episodes(policy, jobs(1), renderer(), sampling=SamplingParams(), limits=limits, slots=4)
    assert all(t.excluded == "policy_error" and not any(t.action_mask) for t in out)
    params = SamplingParams(stop_token_ids=(2,))
    check_output(SampleOutput((5, 2), (-0.5, 0.0), "stop", 0), params)  # a certain token is 0, rightly
    with pytest.raises(LedgerError, match="each id needs its own"):
        check_output(SampleOutput((5, 2), (-0.5,), "stop", 0), params)


def test_fault_17_a_malformed_call_is_an_observation_and_no_ending() -> None:
    bad = '<tool_call>\n{"name": oops\n</tool_call>'
    limits = EpisodeLimits(max_turns=4, max_turn_tokens=60, max_trajectory_tokens=900)
    out, _ = played(lambda request, turn: "Done." if turn else bad, limits, 1)
    for t in out:
        assert len(t.turns) == 2 and t.malformed_calls == 1 and t.valid
        assert "malformed" in t.turns[0].observations[0].content
        assert t.stop_reason is StopReason.USER_DONE and not t.success


def test_fault_18_after_an_update_all_slots_are_filled_again() -> None:
    """Not one group at a time (prime-rl#1372)."""
    policy = Delayed(playing({}), lambda _: 0.02)
    with overlapped(policy, max_staleness=3, tasks_per_step=4) as rollouts:
        rollouts.take(0)
        with rollouts.paused():
            policy.version = 1
        rollouts.weights_changed(1)
        until = time.monotonic() + 20
        while rollouts._pool.live < 8 and time.monotonic() < until:
            time.sleep(0.001)
        assert rollouts._pool.live == 8 == ROLLOUT.slots


def test_fault_18_strictly_on_policy_runs_can_be_repeated() -> None:
    erpo = ERPOConfig(tasks_per_step=4, group_size=4)

    def strict(order: int) -> list[Any]:
        policy = playing({})
        rollout = ROLLOUT.model_copy(update={"slots": order})
        out = collect(policy, many(12), renderer(), erpo, rollout, seed=1, step=5)
        return [(t.task_id, t.token_ids, t.reward) for g in out.groups for t in g.trajectories]

    assert strict(3) == strict(8) == strict(8)


def test_fault_18_a_token_from_the_future_is_an_error() -> None:
    policy = playing({})
    with overlapped(policy) as rollouts, pytest.raises(TrainingError, match="Hand the weights over"):
        rollouts.take(2)


def limit_of(t: Trajectory) -> EpisodeLimits:
    return EpisodeLimits(max_trajectory_tokens=len(t.token_ids) + 10)


def test_running_out_of_tokens_is_kept_masked_or_charged_as_the_config_says() -> None:
    ok = trajectory(1.0)
    cut = trajectory(0.0, index=1, stop_reason=StopReason.TURN_TRUNCATED)
    full = trajectory(0.0, index=2, stop_reason=StopReason.TOKEN_BUDGET)
    for t in (ok, cut, full):
        assert shaped(t, ERPOConfig(), limit_of(t)) == t
    mask = ERPOConfig(overlong="mask")
    assert [shaped(t, mask, limit_of(t)).excluded for t in (ok, cut, full)] == ["", "overlong", "overlong"]
    charge = ERPOConfig(overlong="penalty", overlong_buffer_tokens=40, overlong_penalty=0.8)
    rewards = [shaped(t, charge, limit_of(t)).reward for t in (ok, cut, full)]
    # 10 tokens before the limit is 30 of the 40 of the buffer
    assert rewards == pytest.approx([1.0 - 0.8 * 30 / 40, -0.8, -0.8])
    far = EpisodeLimits(max_trajectory_tokens=len(ok.token_ids) + 40)
    assert shaped(ok, charge, far).reward == 1.0
    lost = trajectory(0.0, excluded="env_error", stop_reason=StopReason.TOKEN_BUDGET)
    assert shaped(lost, mask, far) == lost and shaped(lost, charge, far).reward == 0.0


def test_user_errors_are_masked_unless_the_ablation_says_otherwise() -> None:
    wrong = trajectory(0.0, user_error=True)
    assert not shaped(wrong, ERPOConfig(), EpisodeLimits()).valid
    kept = shaped(wrong, ERPOConfig(mask_user_errors=False), EpisodeLimits())
    assert kept.valid and kept.user_error
    assert group([1, 0]).valid
