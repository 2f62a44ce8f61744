"""Episodes over a scripted engine: what the learner gets is what the engine saw and said, whatever the policy
does."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoforge_jax.errors import ConfigError, LedgerError, PolicyError, TrainingError
from autoforge_jax.rollout import conditions as conditions_module
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.episode import (
    reference_actions,
    reference_policy,
    reference_trajectories,
    reference_trajectory,
    run_episodes,
)
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, stable_hash
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.scripted import ScriptedPolicy
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams, Trajectory
from envgen.interface import (
    NO_ERROR,
    EnvLimits,
    Message,
    StopReason,
    Task,
    UserVerdict,
    open_env,
)
from envgen.synthesis.pipeline import make_bundle
from tests.autoforge_jax.mock_rollout import Recorder, bundle, items, renderer, tokenizer
from tests.envgen.dual_domain import ASK, dual_bundle
from tests.envgen.mock_domain import DOC, mock_draft

SAMPLING = SamplingParams(temperature=0.7, top_p=0.9, top_k=5)
LIMITS = EpisodeLimits(max_turns=6, max_turn_tokens=60, max_trajectory_tokens=900)
GARBAGE = [
    "<think>\nhm\n</think>\n\nWhat is the title?<|im_end|>",
    '<tool_call>\n{"name":"list_notebooks","arguments":{}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name":"list_notes","arguments":{"notebook_id":"NB1"}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name":"delete_note","arguments":{"note_id":"N12"}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name":"nope"}\n</tool_call><tool_call>{</tool_call>x<|im_end|>',
    "<think>\nunclosed<|im_end|>",
    "<|im_start|>assistant\n<|im_start|><|im_end|>",
    "<|im_end|>",
    "Done.<|im_end|>",
    "word " * 80,
]


def jobs(samples: int = 2, **changes: Any) -> list[EpisodeJob]:
    return [
        EpisodeJob(b, task, sample, run_seed=7, **changes) for b, task in items() for sample in range(samples)
    ]


def run(policy: Policy, todo: Sequence[EpisodeJob], **changes: Any) -> list[Trajectory]:
    options: dict[str, Any] = {"sampling": SAMPLING, "limits": LIMITS, "slots": 4} | changes
    return run_episodes(policy, todo, renderer(), **options)


def pick(request: SampleRequest, turn: int) -> str:
    """A garbage action that depends on the seed alone."""
    return GARBAGE[request.seed % len(GARBAGE)]


def random_ids(choices: Sequence[int]) -> Any:
    """Actions of arbitrary ids, special ones included, a function of the request."""

    def script(request: SampleRequest, turn: int) -> tuple[int, ...]:
        start = stable_hash(request.seed, turn) % len(choices)
        rotated = [*choices[start:], *choices[:start]]
        return tuple(i % tokenizer().vocab_size for i in rotated) + ((2,) if start % 3 else ())

    return script


def comparable(trajectory: Trajectory) -> Trajectory:
    """NaN differs from itself: replaced for comparisons."""
    logprobs = tuple(9.0 if math.isnan(x) else x for x in trajectory.rollout_logprobs)
    return replace(trajectory, rollout_logprobs=logprobs)


def check_ledger(policy: Recorder, todo: Sequence[EpisodeJob], trajectories: Sequence[Trajectory]) -> None:
    """Rebuild every trajectory from what the engine was asked and what it said: an account of its own."""
    for job, trajectory in zip(todo, trajectories, strict=True):
        turns = policy.log[job.session_id]
        last_request, last_output = turns[-1]
        assert trajectory.token_ids == last_request.token_ids + last_output.token_ids
        sampled: dict[int, float] = {}
        for request, output in turns:
            at = len(request.token_ids)
            assert trajectory.token_ids[:at] == request.token_ids
            assert trajectory.token_ids[at : at + len(output.token_ids)] == output.token_ids
            sampled |= {at + i: value for i, value in enumerate(output.logprobs)}
        assert [i for i, own in enumerate(trajectory.action_mask) if own] == list(sampled)
        for i, value in enumerate(trajectory.rollout_logprobs):
            assert value == sampled[i] if i in sampled else math.isnan(value)
        assert len(trajectory.token_ids) <= LIMITS.max_trajectory_tokens
        assert trajectory.token_ids[: trajectory.prefix_length] == renderer().prefix(job.bundle)
        for turn, (request, output) in zip(trajectory.turns, turns, strict=True):
            assert (turn.action_start, turn.stop) == (len(request.token_ids), output.stop)
            assert turn.action_end == turn.action_start + len(output.token_ids)


@given(st.lists(st.integers(0, 8) | st.integers(0, 699), min_size=1, max_size=70))
@settings(max_examples=60, deadline=None)
def test_learner_ids_are_engine_ids_for_any_tokens(choices: list[int]) -> None:
    policy, todo = Recorder(random_ids(choices)), jobs(1)
    check_ledger(policy, todo, run(policy, todo))


def test_learner_ids_are_engine_ids_for_plausible_actions() -> None:
    policy, todo = Recorder(pick), jobs(30)
    trajectories = run(policy, todo, slots=16)
    check_ledger(policy, todo, trajectories)
    reasons = {t.stop_reason for t in trajectories}
    assert {StopReason.USER_DONE, StopReason.TURN_TRUNCATED, StopReason.MAX_TURNS} <= reasons
    assert set(policy.released) == {job.session_id for job in todo}
    assert max(policy.batches) == 16
    assert sum(t.malformed_calls for t in trajectories) > 0


def test_interleaved_episodes_equal_separate_ones() -> None:
    todo = jobs(8)
    together = run(Recorder(pick), todo, slots=5)
    alone = [run(Recorder(pick), [job], slots=1)[0] for job in todo]
    assert [comparable(t) for t in together] == [comparable(t) for t in alone]


def test_seeds_are_stable_and_distinct() -> None:
    job = jobs(1)[0]
    assert stable_hash("a", 1) == 12862172079206045376  # the same in every process
    seeds = {
        replace(job, **{key: value}).turn_seed(turn)
        for key, value in (
            ("run_seed", 7),
            ("run_seed", 8),
            ("step", 1),
            ("sample_index", 1),
            ("purpose", "eval"),
        )
        for turn in range(3)
    }
    assert len(seeds) == 15
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_requests_carry_sampling_budget_and_prefix() -> None:
    policy = Recorder(pick)
    run(policy, jobs(1))
    for turns in policy.log.values():
        for request, _ in turns:
            assert (request.params.temperature, request.params.top_p, request.params.top_k) == (0.7, 0.9, 5)
            assert request.params.stop_token_ids == (2, 0)
            assert request.prefix_length == len(renderer().prefix(bundle()))
            left = LIMITS.max_trajectory_tokens - len(request.token_ids)
            assert request.params.max_turn_tokens == min(60, left)


# ------------------------------------------------------------------------------------------------ endings
def script_of(*texts: str) -> Recorder:
    return Recorder(lambda _request, turn: texts[min(turn, len(texts) - 1)])


def test_the_reference_of_every_task_succeeds() -> None:
    for (_, task), trajectory in zip(items(), reference_trajectories(items(), renderer()), strict=True):
        assert (trajectory.reward, trajectory.success, trajectory.valid) == (1.0, True, True)
        assert trajectory.stop_reason is StopReason.USER_DONE
        assert [turn.action for turn in trajectory.turns] == reference_actions(task)
        assert trajectory.partial_credit == 1.0
        assert (trajectory.pattern, trajectory.difficulty) == (task.pattern, task.difficulty)
        assert trajectory.tool_calls == sum(step.kind == "call" for step in task.reference)
        assert trajectory.tool_errors == trajectory.malformed_calls == 0
        assert {x for x in trajectory.rollout_logprobs if not math.isnan(x)} == {0.0}


def test_a_reference_that_does_not_succeed_is_an_error() -> None:
    b, task = items()[0]
    with pytest.raises(TrainingError, match="notes-1 ended with max_turns, reward 0"):
        reference_trajectory(b, task, renderer(), EpisodeLimits(max_turns=2, max_trajectory_tokens=5000))


def test_doing_nothing_fails_and_says_what_differs() -> None:
    (trajectory,) = run(script_of("Done."), jobs(1)[:1])
    assert (trajectory.reward, trajectory.success, trajectory.excluded) == (0.0, False, "")
    assert trajectory.partial_credit == 0.0 and trajectory.violations == ()
    assert [(d.collection, d.key, d.field, d.expected) for d in trajectory.differences] == [
        ("notes", "N11", "priority", 5)
    ]


def test_turn_truncation_ends_the_episode_and_runs_nothing() -> None:
    (trajectory,) = run(script_of(GARBAGE[1].replace("{}", "{" + " " * 200 + "}")), jobs(1)[:1])
    assert trajectory.stop_reason is StopReason.TURN_TRUNCATED
    (turn,) = trajectory.turns
    assert (turn.stop, turn.observations, turn.action_end - turn.action_start) == ("length", (), 60)
    assert trajectory.malformed_calls == 1


def test_token_budget_ends_before_a_too_long_observation() -> None:
    todo = jobs(1)[:1]
    (full,) = run(script_of(*GARBAGE[1:3], "Done."), todo)
    second = full.turns[1]
    # one token short of what the second result needs
    limits = replace(LIMITS, max_trajectory_tokens=full.turns[2].action_start)
    (cut,) = run(script_of(*GARBAGE[1:3], "Done."), todo, limits=limits)
    assert cut.stop_reason is StopReason.TOKEN_BUDGET
    assert cut.token_ids == full.token_ids[: second.action_end]
    assert cut.turns[1].observations == second.observations
    # one token more: the third turn has room for one token only
    limits = replace(LIMITS, max_trajectory_tokens=full.turns[2].action_start + 1)
    (cut,) = run(script_of(*GARBAGE[1:3], "Done."), todo, limits=limits)
    assert cut.stop_reason is StopReason.TOKEN_BUDGET
    assert cut.token_ids == full.token_ids[: full.turns[2].action_start + 1]


def test_a_body_ends_where_its_row_ends_however_short_the_prefix_is() -> None:
    """Found in a study: with prefixes apart a row holds bodies only, and after a short prefix the
    trajectory budget left room for more body than a row has."""
    todo = jobs(1)[:1]
    (full,) = run(script_of(*GARBAGE[1:3], "Done."), todo)
    row = full.turns[2].action_start - full.prefix_length  # one token short of what the second result needs
    (cut,) = run(script_of(*GARBAGE[1:3], "Done."), todo, limits=replace(LIMITS, max_body_tokens=row))
    assert cut.stop_reason is StopReason.TOKEN_BUDGET
    assert cut.token_ids == full.token_ids[: full.turns[1].action_end]
    (whole,) = run(script_of(*GARBAGE[1:3], "Done."), todo, limits=replace(LIMITS, max_body_tokens=row + 1))
    assert len(whole.token_ids) == full.prefix_length + row + 1


def test_a_prompt_over_budget_is_a_failure_without_turns() -> None:
    policy = script_of("Done.")
    (trajectory,) = run(policy, jobs(1)[:1], limits=replace(LIMITS, max_trajectory_tokens=20))
    assert (trajectory.stop_reason, trajectory.turns, trajectory.reward) == (StopReason.TOKEN_BUDGET, (), 0.0)
    assert policy.calls == 0


def test_budgets_of_the_environment_are_passed_on() -> None:
    call = GARBAGE[1]
    (turns,) = run(script_of(call), jobs(1)[:1], limits=replace(LIMITS, max_turns=3))
    assert (turns.stop_reason, len(turns.turns)) == (StopReason.MAX_TURNS, 3)
    (calls,) = run(script_of(call), jobs(1)[:1], limits=replace(LIMITS, max_tool_calls=2))
    assert calls.stop_reason is StopReason.MAX_TOOL_CALLS
    (errors,) = run(
        script_of('<tool_call>{"name":"x"}</tool_call>'),
        jobs(1)[:1],
        limits=replace(LIMITS, max_tool_errors=1),
    )
    assert (errors.stop_reason, errors.tool_errors) == (StopReason.MAX_TOOL_ERRORS, 2)


# ------------------------------------------------------------------------------------------------ failures
class Failing(Recorder):
    """Raises for the sessions named, alone or in a batch."""

    def __init__(self, bad: str, error: Exception) -> None:
        super().__init__(pick)
        self.bad, self.error = bad, error

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        if any(self.bad in request.session_id for request in requests):
            raise self.error
        return super().sample(requests)


@pytest.mark.parametrize("error", [PolicyError("slot lost"), ConnectionResetError("gone")])
def test_an_engine_failure_excludes_one_and_spares_its_siblings(error: Exception) -> None:
    todo = jobs(3)
    good = run(Recorder(pick), todo)
    mixed = run(Failing("notes-2/1", error), todo)
    for job, before, after in zip(todo, good, mixed, strict=True):
        if "notes-2/1" in job.session_id:
            assert (after.stop_reason, after.excluded) == (StopReason.POLICY_ERROR, "policy_error")
            assert str(error) in after.failure
            assert not after.valid
        else:
            assert comparable(after) == comparable(before)


class Aborting(Recorder):
    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        outputs = super().sample(requests)
        return [
            SampleOutput((), (), "abort", 0, "too slow") if "notes-1/0" in request.session_id else output
            for request, output in zip(requests, outputs, strict=True)
        ]


def test_an_aborted_request_excludes_its_trajectory() -> None:
    first, *rest = run(Aborting(pick), jobs(2))
    assert first.excluded == "policy_error" and first.turns == ()
    assert first.failure == "too slow"
    assert all(not t.excluded for t in rest)


class Broken(Recorder):
    """Breaks the ledger in one way."""

    def __init__(self, fault: str) -> None:
        super().__init__(pick)
        self.fault = fault

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        outputs = super().sample(requests)
        if self.fault == "missing output":
            return outputs[1:]
        if self.fault == "no log-probs":
            return [replace(output, logprobs=()) for output in outputs]
        return [replace(output, logprobs=(*output.logprobs[:-1], math.nan)) for output in outputs]


@pytest.mark.parametrize("fault", ["missing output", "no log-probs", "nan"])
def test_a_broken_ledger_stops_the_run(fault: str) -> None:
    policy = Broken(fault)
    with pytest.raises(LedgerError):
        run(policy, jobs(2))
    assert policy.released  # no orphan sessions stay at the engine


def test_a_changed_prefix_is_an_error_at_the_engine() -> None:
    policy = script_of("x")
    params = SamplingParams(stop_token_ids=(2,))
    policy.sample([SampleRequest("s", (1, 3), params, 0)])
    with pytest.raises(LedgerError, match="changed at position 1"):
        policy.sample([SampleRequest("s", (1, 4, 5, 6, 7, 8), params, 0)])


def test_a_defect_of_the_environment_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_action: Message) -> Any:
        yield from ()
        return 1 / 0

    def flawed(b: Any, task: Any, **options: Any) -> Any:
        env = open_env(b, task, **options)
        if task.id == "notes-2":
            monkeypatch.setattr(env, "play", broken)  # what `step` and `step_all` both drive
        return env

    monkeypatch.setattr(conditions_module, "open_env", flawed)
    first, second, third = run(reference_policy(items(), renderer()), jobs(1))
    assert (first.success, third.success) == (True, True)
    assert (second.stop_reason, second.excluded) == (StopReason.ENV_ERROR, "env_error")
    assert "ZeroDivisionError" in second.failure


def test_user_errors_are_judged_once_at_every_ending() -> None:
    seen: list[tuple[Message, ...]] = []

    def hook(task: Task, transcript: tuple[Message, ...]) -> UserVerdict:
        seen.append(transcript)
        wrong = transcript[0].content.startswith("Please delete")
        return UserVerdict(wrong, "wrong_value", f"judged {task.id}", 0, "test") if wrong else NO_ERROR

    trajectories = run(Recorder(pick), jobs(4), conditions=Conditions(judge=hook))
    assert len(seen) == len(trajectories)
    assert [t.user_error for t in trajectories] == [t.task_id == "notes-3" for t in trajectories]
    blamed = [t for t in trajectories if t.task_id == "notes-3"]
    assert not any(t.valid for t in blamed)
    assert {t.user_error_reason for t in blamed} == {"wrong_value at message 0 (test): judged notes-3"}
    assert {t.user_error_reason for t in trajectories if t.task_id != "notes-3"} == {""}


def test_jobs_that_share_a_session_are_refused() -> None:
    with pytest.raises(ConfigError, match="share the session"):
        run(Recorder(pick), [*jobs(1), *jobs(1)])
    with pytest.raises(ConfigError, match="slots is 0"):
        run(Recorder(pick), jobs(1), slots=0)


def test_the_scripted_policy_says_when_it_has_nothing_to_say() -> None:
    policy = ScriptedPolicy({"s": ["x"]})
    with pytest.raises(PolicyError, match="encode"):
        policy.sample([SampleRequest("s", (1,), SAMPLING, 0)])
    with pytest.raises(PolicyError, match="has 0 turns"):
        policy.sample([SampleRequest("other", (1,), SAMPLING, 0)])
    assert isinstance(policy, Policy)


def test_limits_come_from_the_config() -> None:
    from autoforge_jax.config import BatchConfig, RolloutConfig

    config = RolloutConfig(
        max_turns=3, max_tool_calls=5, max_tool_errors=2, max_turn_tokens=9, max_trajectory_tokens=99
    )
    assert EpisodeLimits.of(config) == EpisodeLimits(3, 5, 2, 9, 99)
    batch = BatchConfig(row_tokens=50, prefix_tokens=60)
    assert EpisodeLimits.of(config, batch) == EpisodeLimits(3, 5, 2, 9, 99, max_body_tokens=50)
    # row_tokens 50 after a short prefix of 20; the trajectory's own budget after a long one
    assert [EpisodeLimits.of(config, batch).context(n) for n in (20, 49, 60)] == [70, 99, 99]
    whole = BatchConfig(row_tokens=120, prefix_tokens=0)
    assert EpisodeLimits.of(config, whole) == EpisodeLimits.of(config)
    assert EpisodeLimits.of(config).env == EnvLimits(max_turns=3, max_tool_calls=5, max_tool_errors=2)


def test_a_reference_asks_the_user_to_act_and_its_tools_stay_out_of_the_prompt() -> None:
    """Dual control through the trainer's own loop: the request is an ordinary message of the agent."""
    dual = dual_bundle()
    played = reference_trajectory(
        dual, dual.tasks[0], renderer(), EpisodeLimits(max_turns=9, max_trajectory_tokens=5000)
    )
    assert played.success and played.partial_credit == 1.0
    assert [turn.action.content for turn in played.turns if turn.action.content] == [ASK, "Done."]
    assert played.tool_calls == len(played.turns) - 2
    prefix = renderer().tokenizer.decode(played.token_ids[: played.prefix_length])
    assert "update_note" in prefix and "delete_note" not in prefix


def test_references_that_end_in_an_answer_or_a_refusal_are_played_like_any_other() -> None:
    """The closing message carries the typed slots through renderer, ledger and Env."""
    made = make_bundle(DOC, mock_draft(), tasks=8, heldout=2, seed=3, answer_share=0.9)
    answering = [task for task in made.tasks if task.answers]
    assert len(answering) >= 4
    limits = EpisodeLimits(max_turns=12, max_turn_tokens=400, max_trajectory_tokens=9000)
    for task in answering:
        played = reference_trajectory(made, task, renderer(), limits)
        assert played.success and played.partial_credit == 1.0
        assert played.turns[-1].action.content == task.closing and '{"answer":' in task.closing
        silent = task.model_copy(update={"closing": "Done."})
        with pytest.raises(TrainingError, match="reward 0"):
            reference_trajectory(made, silent, renderer(), limits)
