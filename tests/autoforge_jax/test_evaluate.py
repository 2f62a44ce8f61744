"""Evaluation: its own sampling settings, honest counts, oracle and do-nothing rows."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autoforge_jax.config import EvalConfig, RolloutConfig
from autoforge_jax.errors import ConfigError, PolicyError, TrainingError
from autoforge_jax.rollout.episode import reference_policy
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.train.evaluate import evaluate, run_evaluation, summarise
from autoforge_jax.train.statistics import wilson_interval
from autoforge_jax.types import EvalReport, SampleOutput, SampleRequest
from tests.autoforge_jax.mock_rollout import Recorder, items, renderer

ROLLOUT = RolloutConfig(
    slots=3, temperature=1.7, top_p=0.5, top_k=9, max_trajectory_tokens=1200, max_turn_tokens=90
)


def evaluated(policy: Policy, config: EvalConfig, **changes: Any) -> EvalReport:
    options: dict[str, Any] = {"name": "heldout_tasks", "seed": 5} | changes
    return evaluate(policy, items(), config, ROLLOUT, renderer(), **options)


def test_the_oracle_solves_everything_and_doing_nothing_solves_nothing() -> None:
    oracle = evaluated(reference_policy(items(), renderer()), EvalConfig())
    assert (oracle.success, oracle.interval, oracle.tasks, oracle.attempts) == (
        1.0,
        wilson_interval(3, 3),
        3,
        3,
    )
    assert oracle.mean_turns == pytest.approx((4 + 3 + 5) / 3)
    assert oracle.mean_tool_calls == pytest.approx((3 + 2 + 3) / 3)
    assert (oracle.tool_error_rate, oracle.malformed_rate, oracle.excluded) == (0.0, 0.0, 0)
    assert oracle.stop_reasons == {"user_done": 3}
    assert oracle.by_environment == {"notes": 1.0}
    assert oracle.by_pattern == {task.pattern: 1.0 for _, task in items()}
    assert [o.task_id for o in oracle.outcomes] == ["notes-1", "notes-2", "notes-3"]
    nothing = evaluated(Recorder(lambda _r, _t: "Done."), EvalConfig())
    assert (nothing.success, nothing.interval) == (0.0, wilson_interval(0, 3))


def test_sampling_comes_from_the_evaluation_alone() -> None:
    policy = Recorder(lambda _r, _t: "Done.")
    config = EvalConfig(temperature=0.3, top_p=0.8, top_k=4, attempts=2, k=(1, 2))
    report = evaluated(policy, config)
    requests = [request for turns in policy.log.values() for request, _ in turns]
    assert len(requests) == 6
    for request in requests:
        assert (request.params.temperature, request.params.top_p, request.params.top_k) == (0.3, 0.8, 4)
    assert report.sampling == {"temperature": 0.3, "top_p": 0.8, "top_k": 4, "seed": 5}


def test_the_same_seed_gives_the_same_random_numbers_whatever_the_name() -> None:
    seeds = []
    for name, seed in (("before", 5), ("after", 5), ("after", 6)):
        policy = Recorder(lambda _r, _t: "Done.")
        evaluated(policy, EvalConfig(temperature=1.0, attempts=2), name=name, seed=seed)
        seeds.append([request.seed for turns in policy.log.values() for request, _ in turns])
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"attempts": 2}, "greedy attempts are all alike"),
        ({"temperature": 1.0, "attempts": 2, "k": (1, 3)}, "k is"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        EvalConfig(**settings)


def test_no_tasks_is_an_error_and_max_tasks_cuts() -> None:
    policy = reference_policy(items(), renderer())
    with pytest.raises(ConfigError, match="got no tasks"):
        evaluate(policy, (), EvalConfig(), ROLLOUT, renderer(), name="empty", seed=0)
    assert evaluated(policy, EvalConfig(max_tasks=2)).tasks == 2


class Flaky(Recorder):
    """Plays the oracle; attempts named in `bad` fail at the engine, those in `idle` do nothing."""

    def __init__(self, bad: set[str], idle: set[str]) -> None:
        self.oracle = reference_policy(items(), renderer())
        self.bad, self.idle = bad, idle
        super().__init__(lambda _r, _t: "Done.")

    def release(self, session_id: str) -> None:
        super().release(session_id)
        self.oracle.release(session_id)

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        outputs = []
        for request in requests:
            attempt = request.session_id.split("/", 3)[3]
            if attempt in self.bad:
                raise PolicyError("lost")
            outputs += (super() if attempt in self.idle else self.oracle).sample([request])
        return outputs


def test_several_attempts_by_hand() -> None:
    config = EvalConfig(temperature=1.0, attempts=4, k=(1, 2, 4))
    idle = {"notes-1/0", "notes-2/0", "notes-2/1", "notes-2/2"}
    report = evaluated(Flaky(set(), idle), config)
    assert [o.successes for o in report.outcomes] == [3, 1, 4]
    assert report.success == pytest.approx((3 / 4 + 1 / 4 + 1) / 3)
    assert report.pass_at_k == pytest.approx({1: (0.75 + 0.25 + 1) / 3, 2: (1 + 0.5 + 1) / 3, 4: 1.0})
    assert report.pass_hat_k == pytest.approx({1: (0.75 + 0.25 + 1) / 3, 2: (0.5 + 0 + 1) / 3, 4: 1 / 3})
    assert (report.tasks, report.attempts) == (3, 12)
    low, high = report.interval
    assert 0.25 <= low < report.success < high <= 1.0


def test_failed_attempts_are_left_out_and_counted() -> None:
    config = EvalConfig(temperature=1.0, attempts=2, k=(1, 2))
    report = evaluated(Flaky({"notes-1/0", "notes-2/0", "notes-2/1"}, {"notes-3/0"}), config)
    assert [(o.task_id, o.successes, o.attempts) for o in report.outcomes] == [
        ("notes-1", 1, 1),
        ("notes-3", 1, 2),
    ]
    assert (report.tasks, report.attempts, report.excluded) == (2, 3, 3)
    assert report.success == pytest.approx((1 + 0.5) / 2)
    assert report.pass_at_k == {1: 0.75, 2: 1.0}  # k = 2 from notes-3 only
    assert report.stop_reasons == {"policy_error": 3, "user_done": 3}


def test_nothing_left_is_an_error() -> None:
    everything = {f"{task.id}/0" for _, task in items()}
    with pytest.raises(TrainingError, match="every attempt was excluded"):
        evaluated(Flaky(everything, set()), EvalConfig())


def test_stored_trajectories_give_the_same_report() -> None:
    config = EvalConfig()
    done = run_evaluation(
        reference_policy(items(), renderer()), items(), config, ROLLOUT, renderer(), name="x", seed=5
    )
    again = summarise(
        done.trajectories, config, name="x", policy_version=0, seconds=done.report.seconds, seed=5
    )
    assert again == done.report
    flagged = [replace(t, user_error=True) for t in done.trajectories[:1]] + list(done.trajectories[1:])
    assert summarise(flagged, config, name="x", policy_version=0).excluded == 1
    one = summarise(
        done.trajectories, EvalConfig(temperature=1.0, attempts=2, k=(2,)), name="x", policy_version=0
    )
    assert math.isnan(one.pass_at_k[2])  # no task has two attempts: not a number rather than a guess
