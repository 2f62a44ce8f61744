"""Tokens, FLOPs and MFU by hand; compile clock and profiler traces."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from autoforge_jax.config import BatchConfig
from autoforge_jax.data.batch import pack
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.train import instruments
from autoforge_jax.train.instruments import StepTrace, compile_clock, device_memory_gb, host_memory_gb
from autoforge_jax.train.throughput import Meter, Work, model_flops, throughput, work_of
from tests.autoforge_jax.mock_learner import PREFIX, sample

MODEL = Qwen3Config(
    vocab_size=30, num_layers=3, hidden_size=10, intermediate_size=20, num_heads=2, num_kv_heads=1, head_dim=4
)
TWO = [sample(0, 6), sample(1, 9)]
"""Two samples of one environment: 5 tokens of prefix, then 6 and 9."""


def seen(prefix: int, *bodies: int) -> int:
    """Pairs of bodies that follow one prefix: of the prefix once, and of each body after it."""
    return sum(range(1, prefix + 1)) + sum(sum(range(prefix + 1, prefix + n + 1)) for n in bodies)


def test_work_counts_what_sees_what_in_every_layout() -> None:
    loss = sum(sum(s.loss_mask) for s in TWO)
    shared = work_of(pack(TWO, BatchConfig(row_tokens=32, rows_per_microbatch=2), 0))
    assert shared == Work(2 * 32, PREFIX + 15, 2 * sum(range(33)), seen(PREFIX, 6, 9), loss)
    copied = work_of(pack(TWO, BatchConfig(row_tokens=32, rows_per_microbatch=1, share_prefix=False), 0))
    assert (copied.useful_tokens, copied.useful_pairs) == (25, seen(PREFIX, 6) + seen(PREFIX, 9))
    apart = BatchConfig(row_tokens=16, rows_per_microbatch=2, prefix_tokens=8, prefixes_per_microbatch=2)
    work = work_of(pack(TWO, apart, 0))
    assert work.useful_tokens == 20 and work.useful_pairs == shared.useful_pairs
    assert work.computed_tokens == 2 * 16 + 2 * 8
    assert work.computed_pairs == 2 * sum(range(17)) + 2 * 16 * 8 + 2 * sum(range(9))


def test_flops_by_hand_of_dense_experts_and_adapters() -> None:
    weights = 10 * (2 * 8 + 2 * 4 + 3 * 20)
    dense = 3 * 2 * 3 * weights * 7 + 3 * 4 * 8 * 3 * 11 + 3 * 2 * 30 * 10 * 5
    assert model_flops(MODEL, 7, 11, 5) == dense
    experts = Qwen3Config(**(vars(MODEL) | {"experts": Experts(count=16, per_token=2, width=6)}))
    active = 10 * (2 * 8 + 2 * 4) + 10 * 16 + 2 * 3 * 10 * 6
    assert model_flops(experts, 7, 0, 0) == 6 * 3 * active * 7
    # a frozen matrix has no gradient of its own: 4 per weight instead of 6
    assert model_flops(MODEL, 7, 0, 5, adapters=40) == 4 * 3 * weights * 7 + 6 * 40 * 7 + 4 * 30 * 10 * 5


def test_mfu_counts_padding_and_useful_mfu_does_not() -> None:
    work = Work(computed_tokens=100, useful_tokens=60, computed_pairs=5050, useful_pairs=900, loss_tokens=20)
    found = throughput(work, MODEL, 2.0, 1e6)
    assert (found["tokens_per_s"], found["useful_tokens_per_s"]) == (50, 30)
    assert found["mfu"] == pytest.approx(model_flops(MODEL, 100, 5050, 20) / 2e6)
    assert found["useful_mfu"] == pytest.approx(model_flops(MODEL, 60, 900, 20) / 2e6)
    assert found["useful_mfu"] < found["mfu"]
    assert found["tflops"] == pytest.approx(found["useful_mfu"] * 1e-6)
    assert "mfu" not in throughput(work, MODEL, 2.0, None) and throughput(work, MODEL, 0.0, 1e6) == {}


def test_a_meter_adds_up_the_batches_of_a_step() -> None:
    meter = Meter(MODEL, None)
    batches = pack(TWO, BatchConfig(row_tokens=16, rows_per_microbatch=1, share_prefix=False), 0)
    assert len(batches) == 2
    for batch in batches:
        meter.seen([batch])
    assert meter.take(1.0)["useful_tokens_per_s"] == 25
    assert meter.take(1.0)["tokens_per_s"] == 0


def test_the_compile_clock_counts_programs_and_their_seconds() -> None:
    clock = compile_clock()
    before, seconds = clock.count, clock.seconds
    jax.jit(lambda x: jnp.sin(x) * 3.25)(jnp.ones(5)).block_until_ready()
    assert clock.count > before and clock.seconds > seconds and compile_clock() is clock
    count = clock.count
    clock.heard("/jax/another/event", 9.0)
    assert clock.count == count


def test_memory_is_the_fullest_devices_or_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert device_memory_gb() is None  # CPU
    assert 0.05 < host_memory_gb() < 100
    told = [SimpleNamespace(memory_stats=lambda n=n: {"peak_bytes_in_use": n}) for n in (2e9, 5e9)]
    monkeypatch.setattr(instruments.jax, "local_devices", lambda: told)
    assert device_memory_gb() == 5.0


def test_a_trace_covers_the_steps_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(instruments.jax.profiler, "start_trace", lambda folder: calls.append("start"))
    monkeypatch.setattr(instruments.jax.profiler, "stop_trace", lambda: calls.append("stop"))
    for first, steps, want in ((2, 2, [1, 3]), (1, 1, [0, 1]), (4, 9, [3, 5]), (0, 1, [])):
        calls.clear()
        trace = StepTrace(tmp_path, first, steps)
        changes: list[int] = []
        for done in range(6):
            before = len(calls)
            trace.reached(done)
            changes += [done] * (len(calls) - before)
        if len(calls) == 1:  # the phase ended first
            trace.close()
            changes.append(done)
        trace.close()
        assert changes == want and calls == ["start", "stop"][: len(want)]


def test_a_trace_is_written(tmp_path: Path) -> None:
    trace = StepTrace(tmp_path / "trace", 1, 1)
    trace.reached(0)
    jnp.ones(3).block_until_ready()
    trace.reached(1)
    assert [p for p in (tmp_path / "trace").rglob("*") if p.is_file()]
