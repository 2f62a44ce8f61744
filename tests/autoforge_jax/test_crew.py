"""Processes that exchange values: in order, in any size, and every wait ends and says who is late."""

import numpy as np
import pytest

from autoforge_jax.errors import CheckpointError, TrainingError
from autoforge_jax.rollout.episode import run_episodes
from autoforge_jax.train.crew import PIECE_BYTES, Crew
from autoforge_jax.train.interrupt import Interrupted, StopFlag
from autoforge_jax.train.together import batches_digest, shared_episodes
from tests.autoforge_jax.mock_board import MemoryBoard, together
from tests.autoforge_jax.mock_learner import ROWS, samples


def test_values_come_in_the_order_of_the_processes_in_any_size() -> None:
    def work(crew: Crew) -> list[bytes]:
        crew.gather("small", crew.index)
        return crew.gather("large", bytes([crew.index]) * (crew.index * PIECE_BYTES * 2 + crew.index))

    for got in together(3, work):
        assert [len(value) for value in got] == [0, 2 * PIECE_BYTES + 1, 4 * PIECE_BYTES + 2]
        assert [set(value) for value in got] == [set(), {1}, {2}]


def test_old_values_are_deleted() -> None:
    board = MemoryBoard()
    from concurrent.futures import ThreadPoolExecutor

    crews = [Crew(index, 2, board) for index in range(2)]

    def work(crew: Crew) -> None:
        for step in range(20):
            assert crew.gather("x", (crew.index, step)) == [(0, step), (1, step)]
            assert crew.of_first("y", lambda step=step: step) == step

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, crews))
    calls = {key.split("/")[1] for key in board.values if key.startswith("call/")}
    assert len(calls) <= 3, sorted(calls)


def test_who_is_late_is_named_with_the_place_it_was_at() -> None:
    def work(crew: Crew) -> None:
        crew.meet("start")
        if crew.index != 1:
            crew.meet("step 7")

    zero, one, two = together(3, work, timeout_s=0.2)
    assert one is None
    for error in (zero, two):
        assert isinstance(error, TrainingError)
        assert str(error).startswith("step 7: process 1 (")
        assert "last at 'start', did not come within 0.2 s" in str(error)


def test_a_process_that_fails_is_heard_of_before_the_timeout() -> None:
    def work(crew: Crew) -> None:
        if crew.index == 1:
            crew.fail("TrainingError: no space left")
        else:
            crew.meet("step 7")

    zero, _ = together(2, work, timeout_s=60)
    assert "process 1" in str(zero) and "has failed: TrainingError: no space left" in str(zero)


def test_the_process_that_differs_is_named() -> None:
    def work(crew: Crew) -> None:
        batches = samples()
        changed = crew.index == 2
        from autoforge_jax.data.batch import pack

        packed = pack(batches[:-1] if changed else batches, ROWS, 0)
        crew.agree("batches", batches_digest(packed))

    for error in together(3, work):
        assert isinstance(error, TrainingError)
        assert str(error).startswith("batches differ between processes: process 2 (")


def test_the_first_computes_for_all_and_raises_for_all() -> None:
    assert together(2, lambda crew: crew.of_first("x", lambda: crew.index + 7)) == [7, 7]

    def broken() -> int:
        raise CheckpointError("half")

    def stopped() -> int:
        raise Interrupted("after step 3", 0)

    for error in together(2, lambda crew: crew.of_first("x", broken)):
        assert isinstance(error, CheckpointError) and str(error) == "half"
    for error in together(2, lambda crew: crew.of_first("x", stopped)):
        assert isinstance(error, Interrupted) and error.exit_code == 0


def test_a_signal_to_one_process_stops_all_at_the_same_step() -> None:
    def work(crew: Crew) -> int:
        stop = StopFlag()
        stop.share(lambda number: max(crew.gather("stop", number)))
        for step in range(5):
            if crew.index == 1 and step == 2:
                stop.request(15)
            if stop.requested:
                return step
        return -1

    assert together(3, work) == [2, 2, 2]


def test_episodes_are_shared_out_and_all_get_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def fake(policy: object, jobs: list[str], renderer: object, **settings: object) -> list[str]:
        ran.append(jobs)
        return [job + "!" for job in jobs]

    monkeypatch.setattr("autoforge_jax.train.together.run_episodes", fake)
    jobs = list("abcdefg")
    every = [job + "!" for job in jobs]
    assert together(3, lambda crew: shared_episodes(crew, by_all=True)(None, jobs, None)) == [every] * 3  # type: ignore[arg-type]
    assert sorted(ran) == [list("adg"), list("be"), list("cf")]
    ran.clear()
    assert together(2, lambda crew: shared_episodes(crew, by_all=False)(None, jobs, None)) == [every] * 2  # type: ignore[arg-type]
    assert sorted(ran) == [[], jobs]


def test_alone_everything_is_the_plain_thing() -> None:
    crew = Crew()
    assert crew.first and crew.gather("x", 3) == [3] and crew.of_first("x", lambda: 4) == 4
    crew.meet("x")
    crew.agree("x", "y")
    assert shared_episodes(crew, by_all=True) is run_episodes
    with pytest.raises(ValueError, match="2 processes need a board"):
        Crew(0, 2)
    assert np.array_equal(crew.gather("x", np.ones(2))[0], np.ones(2))
