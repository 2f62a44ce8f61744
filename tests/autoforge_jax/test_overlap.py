"""Rollouts beside learning: order, bound, partial rollouts, what a checkpoint keeps."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from autoforge_jax.config import ERPOConfig, RolloutConfig
from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.samples import samples_from_groups
from autoforge_jax.errors import CheckpointError, LedgerError, TrainingError
from autoforge_jax.rollout.collect import Collection
from autoforge_jax.rollout.overlap import OverlappedRollouts
from autoforge_jax.types import SampleRequest
from tests.autoforge_jax.delayed_policy import Delayed
from tests.autoforge_jax.mock_rollout import renderer
from tests.autoforge_jax.test_collect import many, playing

ROLLOUT = RolloutConfig(slots=8, max_trajectory_tokens=1200, max_turn_tokens=90)
TODO = many(12)


@contextmanager
def overlapped(
    policy: Any, *, step: int = 0, restored: Any = None, rollout: RolloutConfig = ROLLOUT, **changes: Any
) -> Iterator[OverlappedRollouts]:
    fields: dict[str, Any] = {"tasks_per_step": 2, "group_size": 2, "max_staleness": 1} | changes
    rollouts = OverlappedRollouts(
        policy, TODO, renderer(), ERPOConfig(**fields), rollout, seed=3, restored=restored
    )
    rollouts.start(step)
    try:
        yield rollouts
    finally:
        rollouts.close()


def learn(rollouts: OverlappedRollouts, policy: Any, steps: range) -> list[Collection]:
    """Steps of a learner that takes no time: take, then hand over the next version."""
    out: list[Collection] = []
    for step in steps:
        out.append(rollouts.take(step))
        with rollouts.paused():
            policy.version = step + 1
        rollouts.weights_changed(step + 1)
    return out


def names(collections: list[Collection]) -> list[str]:
    return [group.task_id for collection in collections for group in collection.groups]


def late_first(request: SampleRequest) -> float:
    """Every third task is slow."""
    return 0.03 if int(request.session_id.split("/")[-2].split("-")[1]) % 3 == 0 else 0.0


def test_groups_are_taken_in_the_order_in_which_they_were_begun() -> None:
    """Whatever is done first: slow tasks are neither late nor lost (prime-rl#2960)."""
    orders = []
    for delay in (late_first, lambda _: 0.0):
        policy = Delayed(playing({}), delay)
        with overlapped(policy) as rollouts:
            steps = learn(rollouts, policy, range(5))
        orders.append(names(steps))
        assert all(c.metrics["rollout/stale_groups"] == 0 for c in steps)
        assert all(len(c.selected) == 2 for c in steps)
    assert orders[0] == orders[1] and len(orders[0]) == 10


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_no_token_is_older_than_the_bound_and_the_bound_is_used(bound: int) -> None:
    policy = Delayed(playing({}), late_first)
    with overlapped(policy, max_staleness=bound) as rollouts:
        steps = learn(rollouts, policy, range(8))
    ages = [
        step - turn.policy_version
        for step, collection in enumerate(steps)
        for group in collection.groups
        for t in group.trajectories
        for turn in t.turns
    ]
    assert max(ages) == bound and min(ages) >= 0
    assert max(c.metrics["rollout/staleness_max"] for c in steps) == bound
    assert sum(c.metrics["rollout/stale_groups"] for c in steps) == 0


def test_what_is_too_old_is_dropped_counted_and_its_length_shown() -> None:
    policy = playing({})
    with overlapped(policy, max_staleness=1) as rollouts:
        rollouts.take(0)
        while len([g for g in rollouts._queue if g.ready]) < 2:
            pass
        with rollouts.paused():
            policy.version = 3
        rollouts.weights_changed(3)
        taken = rollouts.take(3)
    assert taken.metrics["rollout/stale_groups"] >= 2
    assert taken.metrics["rollout/stale_tokens_mean"] > 0
    assert {t.policy_version for g in taken.groups for t in g.trajectories} <= {2, 3}
    assert len(taken.selected) == 2


def test_an_engine_that_is_too_far_behind_is_an_error_not_an_endless_loop() -> None:
    with (
        overlapped(playing({})) as rollouts,
        pytest.raises(TrainingError, match="Hand the weights over first"),
    ):
        rollouts.take(5)


def test_an_episode_goes_on_across_an_update_and_each_token_keeps_its_version() -> None:
    policy = Delayed(playing({}), lambda r: 8 * late_first(r) if r.turn else 0.0)
    mixed = []
    with overlapped(policy, max_staleness=2) as rollouts:
        for step, collection in enumerate(learn(rollouts, policy, range(6))):
            for group in collection.groups:
                result = compute_advantages([group])
                for sample in samples_from_groups([group], result):
                    assert len(sample.versions) == len(sample.token_ids)
                    known = {v for v, m in zip(sample.versions, sample.action_mask, strict=True) if m}
                    assert {v for v in sample.versions if v >= 0} == known
                    assert min(known) == sample.policy_version and max(known) <= step
                    mixed.append(len(known) > 1)
    assert any(mixed)


def test_a_checkpoint_loses_no_group_and_repeats_none() -> None:
    def play(policy: Any, saved: Any, steps: range) -> tuple[list[str], Any]:
        with overlapped(policy, step=steps.start, restored=saved) as rollouts:
            seen = names(learn(rollouts, policy, steps))
            while sum(g.ready for g in rollouts._queue) < 2:
                time.sleep(0.001)
            with rollouts.paused():
                return seen, json.loads(json.dumps(rollouts.to_json()))

    whole, _ = play(playing({}), None, range(3))
    first = playing({})
    seen, saved = play(first, None, range(2))
    begun = [(g["task_id"], g["generation"]) for g in saved["groups"]]
    assert begun and len(set(begun)) == len(begun)
    second = playing({})
    second.version = 2
    more, _ = play(second, saved, range(2, 4))
    assert (seen + more)[: len(whole)] == whole
    assert more[: len(begun)] == [task for task, _ in begun][: len(more)]
    # what was sampled before the checkpoint is not sampled again
    done = [t for g in saved["groups"] for t in g["done"]]
    assert done and all(
        f"train/{g['generation']}/{g['environment_id']}/{g['task_id']}/{t['sample_index']}" not in second.log
        for g in saved["groups"]
        for t in g["done"]
    )
    saved["groups"][0]["task_id"] = "gone"
    with (
        pytest.raises(CheckpointError, match="no training task of this run"),
        overlapped(second, restored=saved),
    ):
        pass


def test_an_error_of_the_thread_reaches_the_learner() -> None:
    policy = playing({})
    policy.sample = lambda requests: (_ for _ in ()).throw(LedgerError("the context changed"))  # type: ignore
    with overlapped(policy) as rollouts, pytest.raises(LedgerError, match="context changed"):
        rollouts.take(0)
    idle = OverlappedRollouts(playing({}), TODO, renderer(), ERPOConfig(), ROLLOUT, seed=0)
    with pytest.raises(TrainingError, match="call start"):
        idle.take(0)


def test_dynamic_sampling_has_a_budget_here_too() -> None:
    flat = {f"task-{i}": "none" for i in range(12)}
    policy = playing(flat)
    with overlapped(policy, sampling_budget=3.0) as rollouts:
        taken = rollouts.take(0)
    assert len(taken.groups) == 6 and taken.selected == ()
    assert taken.metrics["rollout/budget_spent"] == 1
    with overlapped(playing(flat), dynamic_sampling=False) as rollouts:
        assert len(rollouts.take(0).selected) == 2


def test_the_engine_stands_still_while_paused() -> None:
    policy = Delayed(playing({}), lambda _: 0.002)
    with overlapped(policy, max_staleness=3) as rollouts:
        rollouts.take(0)
        with rollouts.paused():
            live = set(rollouts._pool._live)
            before = len(policy.submitted)
            assert live <= set(policy.inner.released)
            time.sleep(0.02)
            assert len(policy.submitted) == before
        for _ in range(8):
            rollouts.take(0)
        assert len(policy.submitted) > before
