"""What a run measures of itself beside losses: compilation, device memory, a profiler trace."""

from __future__ import annotations

import resource
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax


class CompileClock:
    """Programs that XLA has compiled in this process (the learner's, the engine's, small ones), and the
    seconds that took. Programs read from the compile cache are not in it."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def heard(self, event: str, duration_secs: float, **_: Any) -> None:
        """Listener of `jax.monitoring`."""
        if event == "/jax/core/compile/backend_compile_duration":
            self.count += 1
            self.seconds += duration_secs


@cache
def compile_clock() -> CompileClock:
    """The clock of this process; counts from the first call on."""
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.heard)
    return clock


def device_memory_gb() -> float | None:
    """Most memory in use so far on this process's fullest device; None where it does not say (CPU)."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [s["peak_bytes_in_use"] for s in stats if s and "peak_bytes_in_use" in s]
    return max(peaks) / 1e9 if peaks else None


def host_memory_gb() -> float:
    """Most memory that this process has had on the host so far. On CPU that is all there is."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


class StepTrace:
    """A `jax.profiler` trace of some steps of a phase, to open with TensorBoard or Perfetto."""

    def __init__(self, folder: Path, first_step: int, steps: int) -> None:
        """first_step: counted from 1; 0 = no trace."""
        self._folder, self._first, self._steps = Path(folder), first_step, steps
        self._running = False

    def reached(self, done: int) -> None:
        """Tell that `done` steps are done: before the first step, and after each."""
        if self._running and done >= self._first + self._steps - 1:
            self.close()
        if self._first and not self._running and done == self._first - 1:
            self._folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def close(self) -> None:
        """End a trace that is running; write it."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
