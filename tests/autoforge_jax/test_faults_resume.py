"""Faults 26, 27, 28 and 30 of this field (design notes, FAULTS.md), each under its number: restored memory,
resume, several hosts, configs and displays. Whole runs that are killed are in test_loop.py and
benchmarks/kill_resume.py; whole runs of two processes in test_two_processes.py."""

import errno
import gc
import io
import resource
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

from autoforge_jax.config import MeshConfig, OptimizerConfig, SFTConfig, load_config
from autoforge_jax.errors import CheckpointError, ConfigError, TrainingError
from autoforge_jax.train.checkpoint import CheckpointMeta, CheckpointStore, check_draws
from autoforge_jax.train.distributed import Membership, join
from autoforge_jax.train.metrics import MetricsLog, Reporter, read_jsonl
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.sft import ReferenceBatches, run_sft
from autoforge_jax.train.state import TrainState, init_state
from autoforge_jax.train.step import make_train_step
from autoforge_jax.train.together import batches_digest
from tests.autoforge_jax.mock_board import together
from tests.autoforge_jax.mock_learner import ROWS, fresh_state, leaves, samples, step_of, tiny_qwen3

ROOT = Path(__file__).resolve().parents[2]
CONFIG = SFTConfig(steps=6, trajectories_per_step=4)
BATCHES = ReferenceBatches(samples(), CONFIG, ROWS, pad_id=0, seed=1)
"""Eight samples, four a step: an epoch ends after every second step."""


def equal(a: object, b: object) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def trained(steps: int) -> TrainState:
    return run_sft(
        fresh_state(), step_of(SupervisedObjective()), BATCHES, CONFIG.model_copy(update={"steps": steps})
    ).state


def pointers(state: TrainState) -> list[int]:
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]


# ------------------------------------------------------------------------------------------------------- 26
def test_fault_26_restored_arrays_can_be_donated(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(trained(2), CheckpointMeta("sft", 2, 2))
    restored, _ = store.restore(fresh_state(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of buffers that cannot be donated
        step_of(SupervisedObjective())(restored, BATCHES(2))
    gone = [leaf.is_deleted() for leaf in jax.tree.leaves((restored.params, restored.opt_state))]
    assert all(gone), f"{gone.count(False)} of {len(gone)} restored arrays were not donated"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_fault_26_no_buffer_is_donated_twice(kind: str, tmp_path: Path) -> None:
    _, params = tiny_qwen3()
    optimizer = make_optimizer(OptimizerConfig(kind=kind), 4)  # type: ignore[arg-type]
    state = init_state(params, optimizer)
    assert len(set(pointers(state))) == len(pointers(state))
    assert not set(pointers(state)) & {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params)}
    store = CheckpointStore(tmp_path)
    store.save(state, CheckpointMeta("sft", 0, 0))
    restored, _ = store.restore(state)
    assert len(set(pointers(restored))) == len(pointers(restored))


def test_fault_26_the_optimiser_state_is_restored_and_matters(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(trained(3), CheckpointMeta("sft", 3, 3))
    restored, _ = store.restore(fresh_state())
    assert equal(restored.opt_state, trained(3).opt_state)
    step = step_of(SupervisedObjective())
    forgot = init_state(
        jax.tree.map(np.asarray, restored.params),
        make_optimizer(OptimizerConfig(learning_rate=0.1, schedule="cosine", warmup_steps=2), 40),
    )
    want = step(trained(3), BATCHES(3))[0].params
    assert equal(step(restored, BATCHES(3))[0].params, want)
    assert not equal(step(forgot, BATCHES(3))[0].params, want), "this test could not see a dropped optimiser"


# ------------------------------------------------------------------------------------------------------- 27
@pytest.mark.parametrize("at", range(1, 6))
def test_fault_27_a_resume_trains_on_the_batches_it_would_have_had(at: int, tmp_path: Path) -> None:
    # steps 2 and 4 are epoch boundaries: not one step may be left out there, and none done again
    store = CheckpointStore(tmp_path)
    store.save(trained(at), CheckpointMeta("sft", at, at))
    state, meta = store.restore(fresh_state(3))
    seen: list[int] = []

    def batches(step: int) -> list:
        seen.append(step)
        return BATCHES(step)

    result = run_sft(state, step_of(SupervisedObjective()), batches, CONFIG, start_step=meta.step)
    assert seen == list(range(at, 6)) and result.steps == 6 and int(result.state.step) == 6
    assert equal(result.state, trained(6))


def test_fault_27_a_finished_phase_does_no_step_again(tmp_path: Path) -> None:
    result = run_sft(trained(6), step_of(SupervisedObjective()), BATCHES, CONFIG, start_step=6)
    assert result.steps == 6 and equal(result.state, trained(6))


def test_fault_27_other_random_draws_than_saved_are_noticed() -> None:
    saved = CheckpointMeta("sft", 2, 2, cursor={"draws": batches_digest(BATCHES(2))})
    check_draws(saved, batches_digest(ReferenceBatches(samples(), CONFIG, ROWS, pad_id=0, seed=1)(2)))
    for other in (BATCHES(3), ReferenceBatches(samples(), CONFIG, ROWS, pad_id=0, seed=2)(2)):
        with pytest.raises(CheckpointError, match=r"sft: step 3 would draw other tasks or batches"):
            check_draws(saved, batches_digest(other))


@contextmanager
def full_disk() -> Iterator[None]:
    """Files may not grow beyond 512 bytes: what a full disk does to a checkpoint."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# The writer has many writes under way; those that fail after the first report to an event loop that orbax has
# closed by then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fault_27_a_save_that_fails_in_the_background_is_heard_of(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first = store.save(fresh_state(1), CheckpointMeta("sft", 1, 1))
    with full_disk():
        store.start(fresh_state(2), CheckpointMeta("sft", 2, 2))
        with pytest.raises(CheckpointError, match=r"step_00000002 could not be written .*disk full"):
            store.start(fresh_state(3), CheckpointMeta("sft", 3, 3))
    newest = store.latest()
    assert newest is not None and newest.path == first
    store.wait()  # told once
    store.save(fresh_state(4), CheckpointMeta("sft", 4, 4))
    assert store.steps() == [1, 4] and not list(tmp_path.glob(".*"))
    store.close()
    gc.collect()  # what the closed loop left is told here, not in whatever test runs next


def test_fault_27_a_checkpoint_still_being_written_is_not_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    store, go = CheckpointStore(tmp_path), threading.Event()
    store.save(fresh_state(1), CheckpointMeta("sft", 1, 1))
    finish = store._finish
    monkeypatch.setattr(store, "_finish", lambda *a: (go.wait(10), finish(*a)))
    store.start(fresh_state(2), CheckpointMeta("sft", 2, 2))
    assert store.steps() == [1]
    go.set()
    store.wait()
    assert store.steps() == [1, 2]


def test_fault_27_the_line_of_a_step_is_there_before_its_checkpoint() -> None:
    import inspect

    from autoforge_jax.train import phase_erpo, phase_sft

    for body in (phase_erpo.train_erpo, phase_sft.warm_start):
        text = inspect.getsource(body)
        assert text.index("log.write(") < text.index("assembly.save("), body


# ------------------------------------------------------------------------------------------------------- 28
def test_fault_28_a_barrier_ends_and_names_the_late_host() -> None:
    late = together(3, lambda crew: None if crew.index == 2 else crew.meet("step 12"), timeout_s=0.2)
    for error in late[:2]:
        assert isinstance(error, TrainingError)
        assert "step 12: process 2 (" in str(error) and "did not come within 0.2 s" in str(error)


def test_fault_28_a_coordinator_that_is_not_there_is_an_error_not_a_hang() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with pytest.raises(TrainingError, match=rf"process 1: nobody answers at localhost:{port} within 1 s"):
        join(MeshConfig(timeout_s=1), Membership(f"localhost:{port}", 2, 1))


def test_fault_28_a_coordinator_port_in_use_is_an_error_not_a_hang() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TrainingError, match=rf"cannot listen on port {port} .*another run"):
            join(MeshConfig(timeout_s=1), Membership(f"localhost:{port}", 2, 0))


def test_fault_28_saving_works_with_the_preemption_service_off(tmp_path: Path) -> None:
    before = jax.config.jax_enable_preemption_service  # type: ignore[attr-defined]
    jax.config.update("jax_enable_preemption_service", False)
    try:
        CheckpointStore(tmp_path).save(fresh_state(1), CheckpointMeta("sft", 1, 1))
    finally:
        jax.config.update("jax_enable_preemption_service", before)
    assert CheckpointStore(tmp_path).steps() == [1]


# ------------------------------------------------------------------------------------------------------- 30
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("erpo.group_sizes=4", r"unknown key 'erpo.group_sizes'; known here: .*group_size"),
        ("erpo.optimizer.learnin_rate=1e-3", r"unknown key 'erpo.optimizer.learnin_rate'"),
        ("meshes.data=2", r"unknown key 'meshes'"),
    ],
)
def test_fault_30_a_mistyped_key_is_an_error_that_lists_the_known_ones(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(ROOT / "configs/debug/tiny.toml", [override])


class _Broken(io.StringIO):
    """A pipe whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_fault_30_a_display_that_breaks_does_not_end_a_training(tmp_path: Path) -> None:
    reporter = Reporter(_Broken(), every_s=0.0)
    log = MetricsLog(tmp_path / "metrics.jsonl")

    def on_step(done: int, state: TrainState, metrics: dict[str, float]) -> None:
        log.write("warm start", done, metrics)
        bar.update(done, loss=metrics["loss"])

    with reporter.bar("warm start", 6) as bar:
        result = run_sft(fresh_state(), step_of(SupervisedObjective()), BATCHES, CONFIG, on_step=on_step)
    reporter.phase("warm start", "done", 1.0)
    assert result.steps == 6 and [row["step"] for row in read_jsonl(log.path)] == list(range(1, 7))


def test_batches_that_may_not_be_used_change_nothing() -> None:
    def refuse(batches: object) -> None:
        raise TrainingError("batches differ between processes: process 1 (b) has 2, the others 1")

    from tests.autoforge_jax.mock_learner import OPTIMIZER, table_forward

    step = make_train_step(table_forward, OPTIMIZER, SupervisedObjective(), chunk_size=16, agree=refuse)
    state = fresh_state()
    with pytest.raises(TrainingError, match="process 1"):
        step(state, BATCHES(0))
    assert equal(state, fresh_state())
