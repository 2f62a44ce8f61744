"""The warm start's driver: which samples a step sees, when it stops, and that it learns."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from autoforge_jax.config import SFTConfig
from autoforge_jax.errors import TrainingError
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.sft import DrillsFirst, ReferenceBatches, run_sft
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.step import TrainStep
from tests.autoforge_jax.mock_learner import (
    ROWS,
    arrays,
    fresh_state,
    samples,
    step_of,
)


def fresh() -> tuple[TrainState, TrainStep]:
    return fresh_state(), step_of(SupervisedObjective())


def references(**fields: object) -> ReferenceBatches:
    return ReferenceBatches(samples(), SFTConfig(**fields), ROWS, pad_id=0, seed=4)  # type: ignore[arg-type]


def test_every_epoch_sees_every_sample_once_in_an_order_of_its_own() -> None:
    batches = references(trajectories_per_step=3)
    seen = [i for step in range(8) for i in batches.indices(step)]
    epochs = [seen[0:8], seen[8:16], seen[16:24]]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert references(trajectories_per_step=3).indices(5) == batches.indices(5)
    assert Counter(references(trajectories_per_step=20).indices(0)).most_common()[-1][1] == 2


def test_batches_are_a_function_of_the_step_and_weigh_observations() -> None:
    one, two = references(observation_weight=0.5)(3), references(observation_weight=0.5)(3)
    for a, b in zip(one, two, strict=True):
        for name, value in arrays(a).items():
            np.testing.assert_array_equal(value, arrays(b)[name])
    assert 0.5 in one[0].loss_weight


def test_no_references_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no reference trajectories"):
        ReferenceBatches([], SFTConfig(), ROWS, pad_id=0, seed=0)


def test_runs_all_steps_learns_and_reports() -> None:
    config = SFTConfig(steps=12, trajectories_per_step=8)
    seen: list[tuple[int, float]] = []
    state, step = fresh()
    result = run_sft(
        state,
        step,
        references(trajectories_per_step=8),
        config,
        on_step=lambda n, s, m: seen.append((n, m["loss"])),
    )
    assert (result.steps, result.ended, result.probe_success) == (12, "steps", None)
    assert [n for n, _ in seen] == list(range(1, 13))
    assert seen[-1][1] < 0.7 * seen[0][1]
    assert int(result.state.step) == 12


def test_stops_at_success_but_not_before_min_steps() -> None:
    config = SFTConfig(steps=30, probe_every=2, stop_at_success=0.5, min_steps=5)
    probed: list[int] = []
    values: dict[int, float] = {}

    def probe(done: int, state: TrainState) -> float:
        assert int(state.step) == done
        probed.append(done)
        return 0.2 * done

    state, step = fresh()
    result = run_sft(
        state,
        step,
        references(),
        config,
        probe=probe,
        on_step=lambda n, s, m: values.update({n: m.get("probe_success", -1)}),
    )
    assert (result.steps, result.ended, result.probe_success) == (6, "success", pytest.approx(1.2))
    assert probed == [2, 4, 6] and values[4] == pytest.approx(0.8) and values[5] == -1


def test_a_probe_that_can_stop_nothing_is_not_run_and_on_step_may_stop() -> None:
    def probe(done: int, state: TrainState) -> float:
        raise AssertionError("stop_at_success is 1")

    state, step = fresh()
    result = run_sft(
        state,
        step,
        references(),
        SFTConfig(steps=9, probe_every=1),
        start_step=3,
        probe=probe,
        on_step=lambda n, s, m: n == 5,
    )
    assert (result.steps, result.ended, int(result.state.step)) == (5, "stopped", 2)


def test_nothing_left_to_do_returns_the_state() -> None:
    state, step = fresh()
    result = run_sft(state, step, references(), SFTConfig(steps=3), start_step=3)
    assert result.state is state and result.steps == 3


def test_drills_come_first_then_both() -> None:
    def source(name: str) -> Any:
        return lambda step: [f"{name}{step}"]

    batches = DrillsFirst(source("drills"), source("both"), 2)
    assert [batches(step) for step in range(4)] == [["drills0"], ["drills1"], ["both0"], ["both1"]]
