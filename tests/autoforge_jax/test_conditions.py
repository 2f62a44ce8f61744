"""From the config to the loss: a trajectory with a user error is counted and left out, never scored 0."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autoforge_jax.config import ERPOConfig, RolloutConfig, parse_config
from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.samples import samples_from_groups
from autoforge_jax.errors import ConfigError
from autoforge_jax.rollout.collect import collect
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.episode import reference_policy, run_episodes
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits
from autoforge_jax.train.records import trajectory_row
from autoforge_jax.types import SamplingParams, Trajectory
from envgen.interface import StopReason, ToolFailureSettings, UserError, UserReply
from tests.autoforge_jax.mock_rollout import items, renderer
from tests.envgen.llm_server import scripted_server

LIMITS = EpisodeLimits(max_turns=12, max_turn_tokens=90, max_trajectory_tokens=1600)


def conditions(**sections: Any) -> Conditions:
    return Conditions.of(parse_config(sections))


def played(given: Conditions, samples: int = 1, todo: Sequence[EpisodeJob] | None = None) -> list[Trajectory]:
    jobs = todo or [EpisodeJob(b, task, sample) for b, task in items() for sample in range(samples)]
    policy = reference_policy(items(), renderer())
    return run_episodes(
        policy, jobs, renderer(), sampling=SamplingParams(), limits=LIMITS, slots=8, conditions=given
    )


def test_the_default_is_the_scripted_user_without_a_judge() -> None:
    assert conditions() == Conditions()
    assert all(t.success and t.valid and t.user_error_reason == "" for t in played(conditions()))


def test_faults_of_the_user_are_excluded_with_their_reason_and_change_no_advantage() -> None:
    faulty = conditions(
        user={"fault_rate": 1.0, "fault_kinds": ["wrong_value", "silence", "early_stop"]},
        judge={"kind": "rules"},
    )
    erpo = ERPOConfig(tasks_per_step=3, group_size=4, sampling_budget=1.0, dynamic_sampling=False)
    rollout = RolloutConfig(slots=8, max_trajectory_tokens=1600, max_turn_tokens=90)
    found = collect(
        reference_policy(items(), renderer()), items(), renderer(), erpo, rollout, seed=5, step=0,
        conditions=faulty,
    )  # fmt: skip
    every = [t for group in found.groups for t in group.trajectories]
    blamed = [t for t in every if t.user_error]
    assert 4 <= len(blamed) < len(every)  # notes-3 is asked; some tasks give a fault no chance
    assert found.metrics["rollout/user_errors"] == len(blamed)
    assert all(not t.valid and "(rules): " in t.user_error_reason and t.excluded == "" for t in blamed)
    assert {trajectory_row(t, stage="erpo")["user_error_reason"] for t in blamed} == {
        t.user_error_reason for t in blamed
    }
    result = compute_advantages(found.groups, "environment", 1e-6)
    assert (result.excluded, result.valid) == (len(blamed), len(every) - len(blamed))
    assert result.reward_mean == sum(t.reward for t in every if t.valid) / result.valid
    for group, values in zip(found.groups, result.advantages, strict=True):
        assert [v is None for v in values] == [t.user_error for t in group.trajectories]

    # The blamed ones' rewards are never read: any other number there gives the same advantages.
    def spoil(t: Trajectory) -> Trajectory:
        return replace(t, reward=math.nan) if t.user_error else t

    spoiled = [replace(g, trajectories=tuple(map(spoil, g.trajectories))) for g in found.groups]
    assert compute_advantages(spoiled, "environment", 1e-6).advantages == result.advantages
    assert len(samples_from_groups(found.groups, result)) == result.valid


def test_a_user_that_gives_up_is_no_failure_of_the_policy() -> None:
    class Mute:
        def opening(self) -> str:
            return "Please delete a note."

        def reply(self, message: str) -> UserReply:
            raise UserError("nothing fits")

    given = Conditions(make_user=lambda task, seed: Mute())
    asked = [t for t in played(given) if t.task_id == "notes-3"]
    assert [(t.stop_reason, t.user_error, t.valid) for t in asked] == [(StopReason.USER_ERROR, True, False)]
    assert "nothing fits" in asked[0].user_error_reason

    class Absent(Mute):
        def opening(self) -> str:
            raise UserError("nobody there")

    gone = played(Conditions(make_user=lambda task, seed: Absent()))
    assert {(t.stop_reason, t.turns, t.valid) for t in gone} == {(StopReason.USER_ERROR, (), False)}


def test_wording_depends_on_the_episode_and_can_be_repeated() -> None:
    given = conditions(user={"kind": "varied"})
    first, again = played(given, 6), played(given, 6)
    assert [t.opening for t in first] == [t.opening for t in again]
    assert len({t.opening[0].content for t in first if t.task_id == "notes-1"}) > 1
    assert all(t.success for t in first)


def test_a_model_user_and_judge_from_the_config_side_by_side() -> None:
    """Over HTTP to a server with SCRIPTED answers; several episodes wait for it at once."""
    task = items()[0][1]

    def script(body: dict[str, Any]) -> str:
        judging = "Did the user give any wrong information?" in body["messages"][0]["content"]
        return '{"wrong": "no", "turn": -1, "reason": "fine"}' if judging else task.instruction

    with scripted_server(script) as server:
        where = {"base_url": server.base_url, "model": "scripted-model", "retries": 0}
        given = conditions(
            user={"kind": "model", "server": where}, judge={"kind": "rules_then_model", "server": where}
        )
        assert given.workers == 16
        jobs = [EpisodeJob(items()[0][0], task, sample) for sample in range(6)]
        trajectories = played(given, todo=jobs)
    assert [t.success and t.valid for t in trajectories] == [True] * 6
    assert [t.sample_index for t in trajectories] == list(range(6))
    assert len(server.requests) == 12


def test_tools_that_fail_show_in_the_transcript_and_are_a_function_of_the_job() -> None:
    given = conditions(tool_failures={"transient": 0.9, "max_in_a_row": 1})
    assert isinstance(given.failures, ToolFailureSettings)
    first = played(given)
    assert any("503" in o.content for t in first for turn in t.turns for o in turn.observations)
    assert [t.token_ids for t in first] == [t.token_ids for t in played(given)]
    assert sum(t.tool_errors for t in first) == 0


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"user": {"kind": "model"}}, "needs server.base_url and server.model"),
        ({"judge": {"kind": "model", "server": {"model": "m"}}}, "judge: kind 'model' needs server.base_url"),
        ({"user": {"server": {"base_url": "localhost"}}}, "user.server.base_url"),
        ({"user": {"fault_kinds": ["typo"]}}, "user.fault_kinds.0"),
        ({"user": {"fault_rate": 0.5, "fault_kinds": []}}, "name at least one kind"),
        ({"tool_failures": {"timeout": 0.6, "slow": 0.6}}, "add up to 1.2"),
        ({"tool_failures": {"tmeout": 0.6}}, "unknown key 'tool_failures.tmeout'"),
        ({"judge": {"server": {"api_key": "x"}}}, "unknown key 'judge.server.api_key'"),
    ],
)
def test_settings_that_make_no_sense(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(sections)
