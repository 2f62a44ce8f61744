"""The pool: slots kept full, nobody waits for anybody, deadlines are values, unfinished work can go on."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from autoforge_jax.errors import ConfigError, LedgerError, PolicyError
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits
from autoforge_jax.rollout.live import PartialEpisode
from autoforge_jax.rollout.policy import AsyncPolicy
from autoforge_jax.rollout.pool import Deadlines, EpisodePool, run_episodes
from autoforge_jax.rollout.scripted import default_logprob
from autoforge_jax.rollout.snapshot import (
    partial_from_json,
    partial_to_json,
    trajectory_from_json,
    trajectory_to_json,
)
from autoforge_jax.types import SampleRequest, SamplingParams, Trajectory
from envgen.interface import StopReason, UserSettings, user_maker
from tests.autoforge_jax.delayed_policy import Delayed
from tests.autoforge_jax.mock_rollout import Recorder, items, renderer
from tests.autoforge_jax.test_episode import comparable, jobs, pick

LIMITS = EpisodeLimits(max_turns=6, max_turn_tokens=60, max_trajectory_tokens=900)
SAMPLING = SamplingParams()
LOOK = '<tool_call>\n{"name":"list_notebooks","arguments":{}}\n</tool_call>'
"""A call that ends nothing."""


def run(policy: Any, todo: list[EpisodeJob], slots: int = 4, **options: Any) -> list[Trajectory]:
    return run_episodes(policy, todo, renderer(), sampling=SAMPLING, limits=LIMITS, slots=slots, **options)


def pool(policy: Any, slots: int = 4, **options: Any) -> EpisodePool:
    return EpisodePool(policy, renderer(), sampling=SAMPLING, limits=LIMITS, slots=slots, **options)


def hang_on(*names: str) -> Any:
    return lambda request: None if any(name in request.session_id for name in names) else 0.0


def test_both_kinds_of_engines_give_the_same_trajectories() -> None:
    todo = jobs(6)
    assert isinstance(Delayed(Recorder(pick)), AsyncPolicy) and not isinstance(Recorder(pick), AsyncPolicy)
    batched = run(Recorder(pick), todo)
    one_by_one = run(Delayed(Recorder(pick), lambda r: (r.seed % 7) * 1e-3), todo)
    assert [comparable(t) for t in batched] == [comparable(t) for t in one_by_one]


def test_nobody_waits_for_the_slowest() -> None:
    gate = threading.Event()
    slow = Delayed(Recorder(pick), hang_on("notes-1/0"))
    todo, ended = jobs(4), []
    work = pool(slow, slots=3)
    work.add(todo)
    while len(ended) < len(todo) - 1:
        ended += [job.session_id for job, _ in work.advance()]
        # slots are refilled while one of them hangs
        assert work.live == min(3, work.unfinished)
    assert not any("notes-1/0" in name for name in ended) and not gate.is_set()
    work.close()
    assert slow.cancelled == [todo[0].session_id] and todo[0].session_id in slow.inner.released


def test_slots_stay_full_while_there_is_work() -> None:
    work = pool(Delayed(Recorder(pick), lambda r: (r.seed % 5) * 1e-3), slots=5)
    work.add(jobs(8))
    seen: list[int] = []
    while work.unfinished:
        work.advance()
        if work.unfinished > 10:
            seen.append(work.live)
    assert set(seen) == {5}


def test_a_turn_past_its_deadline_is_a_value() -> None:
    policy = Delayed(Recorder(pick), hang_on("notes-2/1"))
    todo = jobs(2)
    out = run(policy, todo, deadlines=Deadlines(turn_s=0.2))
    for job, trajectory in zip(todo, out, strict=True):
        late = "notes-2/1" in job.session_id
        assert (trajectory.stop_reason is StopReason.TIMEOUT) == late
        assert trajectory.excluded == ("timeout" if late else "") and trajectory.valid != late
    assert policy.cancelled == [job.session_id for job in todo if "notes-2/1" in job.session_id]
    assert "rollout.turn_timeout_s" in next(t.failure for t in out if t.excluded)


def test_an_environment_past_its_deadline_is_a_value_even_when_all_workers_hang() -> None:
    gate = threading.Event()
    plain = user_maker(UserSettings())

    def make(task: Any, seed: int) -> Any:
        if task.id in ("notes-1", "notes-2"):
            gate.wait(30)
        return plain(task, seed)

    todo = jobs(2)
    try:
        conditions = Conditions(make_user=make, workers=2)
        out = run(Recorder(pick), todo, conditions=conditions, deadlines=Deadlines(environment_s=0.2))
    finally:
        gate.set()
    hung = [t.stop_reason is StopReason.TIMEOUT for t in out]
    assert hung == ["/notes-3/" not in job.session_id for job in todo]
    assert all(
        "rollout.environment_timeout_s" in t.failure for t, late in zip(out, hung, strict=True) if late
    )
    clean = run(Recorder(pick), todo, conditions=Conditions(make_user=plain))
    assert [comparable(t) for t in out[4:]] == [comparable(t) for t in clean[4:]]


def test_an_episode_past_its_deadline_is_a_value() -> None:
    policy = Delayed(Recorder(lambda request, turn: LOOK), lambda _: 0.08)
    out = run(policy, jobs(1), deadlines=Deadlines(episode_s=0.1))
    assert [t.stop_reason for t in out] == [StopReason.TIMEOUT] * 3
    assert all(t.excluded == "timeout" and t.turns and "episode_timeout_s" in t.failure for t in out)
    out = run(Recorder(lambda request, turn: LOOK), jobs(1), deadlines=Deadlines(episode_s=60))
    assert [t.stop_reason for t in out] == [StopReason.MAX_TURNS] * 3


def test_errors_of_one_request_are_values_and_those_of_the_ledger_stop_the_run() -> None:
    def fails(error: Exception) -> Any:
        def script(request: SampleRequest, turn: int) -> Any:
            if "notes-1/0" in request.session_id:
                raise error
            return pick(request, turn)

        return Delayed(Recorder(script))

    out = run(fails(PolicyError("slot lost")), jobs(1))
    assert [t.stop_reason is StopReason.POLICY_ERROR for t in out] == [True, False, False]
    with pytest.raises(LedgerError, match="changed"):
        run(fails(LedgerError("the context changed")), jobs(1))


def test_unfinished_episodes_go_on_where_they_stood() -> None:
    todo = jobs(3)
    whole = run(Recorder(pick), todo, slots=3)
    first = pool(Recorder(pick), slots=3)
    first.add(todo)
    ended = {job.session_id: t for _ in range(3) for job, t in first.advance()}
    ended |= {job.session_id: t for job, t in first.drain()}
    left = first.partials()
    first.close()
    assert any(isinstance(p, PartialEpisode) and p.outputs for p in left) and ended
    saved = json.loads(
        json.dumps([partial_to_json(p) if isinstance(p, PartialEpisode) else None for p in left])
    )
    again = [
        partial_from_json(value, p.job) if isinstance(p, PartialEpisode) else p
        for p, value in zip(left, saved, strict=True)
    ]
    policy = Recorder(pick)
    second = pool(policy, slots=3)
    second.add(again)
    while second.unfinished:
        ended |= {job.session_id: t for job, t in second.advance()}
    assert second.restarted == 0
    assert [comparable(ended[job.session_id]) for job in todo] == [comparable(t) for t in whole]
    # what the engine said before is not asked for again
    partial = next(p for p in again if isinstance(p, PartialEpisode) and p.outputs)
    asked = policy.log[partial.job.session_id]
    assert asked[0][0].token_ids == partial.token_ids


def test_an_episode_that_does_not_come_out_the_same_begins_anew() -> None:
    work = pool(Recorder(pick), slots=1)
    todo = jobs(1)[:1]
    work.add(todo)
    work.advance()
    (partial,) = work.partials()
    assert isinstance(partial, PartialEpisode)
    changed = replace(partial, token_ids=(*partial.token_ids, 5))
    again = pool(Recorder(pick), slots=1)
    again.add([changed])
    out: list[Trajectory] = []
    while again.unfinished:
        out += [t for _, t in again.advance()]
    assert again.restarted == 1
    assert comparable(out[0]) == comparable(run(Recorder(pick), todo)[0])


def test_partials_need_a_drained_pool_and_sessions_are_distinct() -> None:
    work = pool(Delayed(Recorder(pick), hang_on("notes-1/0")), slots=2)
    work.add(jobs(1))
    work._fill()
    work._settle()
    work._sample()
    with pytest.raises(ConfigError, match=r"drain\(\) before partials"):
        work.partials()
    with pytest.raises(ConfigError, match="share the session"):
        work.add(jobs(1))
    work.close()


def test_a_turn_says_which_weights_sampled_it() -> None:
    policy = Recorder(
        lambda request, turn: '<tool_call>\n{"name":"list_notebooks","arguments":{}}\n</tool_call>'
    )
    work = pool(policy)
    work.add(jobs(1)[:1])
    work.advance()
    policy.version = 1
    work.drain()
    work.forget_sessions()  # as an update of the weights does
    ended: list[Trajectory] = []
    while work.unfinished:
        ended += [t for _, t in work.advance()]
    (trajectory,) = ended
    versions = [turn.policy_version for turn in trajectory.turns]
    assert versions[0] == 0 and set(versions[1:]) == {1} and trajectory.policy_version == 0
    for turn in trajectory.turns:  # and keeps its log-probs
        place = slice(turn.action_start, turn.action_end)
        said = [default_logprob(i, token) for i, token in enumerate(trajectory.token_ids[place])]
        assert list(trajectory.rollout_logprobs[place]) == said


def test_trajectories_survive_json_exactly() -> None:
    for trajectory in run(Recorder(pick), jobs(6)):
        back = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory))))
        assert comparable(back) == comparable(trajectory)


def test_no_slots_is_an_error() -> None:
    with pytest.raises(ConfigError, match="slots is 0"):
        pool(Recorder(pick), slots=0)
    assert len(items()) == 3
