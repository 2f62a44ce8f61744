"""Phase 4: supervised warm start on reference trajectories (the SFT variant of METHOD.md §5).

The driver takes callables and does no IO: what a step trains on is a function of the step's number, so a
resumed run continues with the very batches it would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoforge_jax.config import BatchConfig, SFTConfig
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.errors import TrainingError
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.step import TrainStep
from autoforge_jax.types import TrainingSample

NextBatch = Callable[[int], Sequence[Batch]]
"""Step number (from 0) -> its micro-batches."""
OnStep = Callable[[int, TrainState, dict[str, float]], bool | None]
"""(steps done, state, metrics) -> True to stop here. The state is the live one: copy what must outlive the
next step.
"""
Probe = Callable[[int, TrainState], float]
"""(steps done, state) -> sampled success, 0…1, on probe tasks of the training split."""


@dataclass(frozen=True)
class SFTResult:
    """How a warm start ended."""

    state: TrainState
    steps: int
    """Steps done, those before a resume included."""
    ended: str
    """`steps` (all done), `success` (the probe reached `stop_at_success`), `stopped` (on_step asked)."""
    probe_success: float | None
    """The last probe's value."""


class ReferenceBatches:
    """Step number -> micro-batches of reference samples; epochs in a seeded order, a function of (seed, step)
    alone.

    Raises TrainingError without samples.
    """

    def __init__(
        self, samples: Sequence[TrainingSample], sft: SFTConfig, batch: BatchConfig, *, pad_id: int, seed: int
    ) -> None:
        if not samples:
            raise TrainingError("no reference trajectories to imitate; synthesise training tasks first")
        self._samples, self._sft, self._batch = samples, sft, batch
        self._pad_id, self._seed = pad_id, seed

    def indices(self, step: int) -> list[int]:
        """Indices of the samples of a step: the next `trajectories_per_step` of an endless row of shuffled
        epochs.
        """
        size, count = self._sft.trajectories_per_step, len(self._samples)
        picked: list[int] = []
        position = step * size
        while len(picked) < size:
            epoch, offset = divmod(position, count)
            order = np.random.default_rng([self._seed, epoch]).permutation(count)
            taken = order[offset : offset + size - len(picked)]
            picked += [int(i) for i in taken]
            position += len(taken)
        return picked

    def __call__(self, step: int) -> list[Batch]:
        """The packed micro-batches of a step."""
        chosen = [self._samples[i] for i in self.indices(step)]
        return pack(chosen, self._batch, self._pad_id, observation_weight=self._sft.observation_weight)


class DrillsFirst:
    """`drill_steps` steps of drills alone, then samples of both kinds; still a function of (seed, step)."""

    def __init__(self, drills: NextBatch, both: NextBatch, drill_steps: int) -> None:
        self._drills, self._both, self._drill_steps = drills, both, drill_steps

    def __call__(self, step: int) -> Sequence[Batch]:
        """The packed micro-batches of a step."""
        if step < self._drill_steps:
            return self._drills(step)
        return self._both(step - self._drill_steps)


def run_sft(
    state: TrainState,
    train_step: TrainStep,
    next_batch: NextBatch,
    config: SFTConfig,
    *,
    start_step: int = 0,
    on_step: OnStep | None = None,
    probe: Probe | None = None,
) -> SFTResult:
    """Train from `start_step` to `config.steps`, or until a probe reaches `stop_at_success` (not before
    `min_steps`).

    The probe runs every `probe_every` steps and is left out when `stop_at_success` is 1 (nothing would come
    of it) or none is given. Its value joins that step's metrics as `probe_success`, before `on_step` sees
    them. Consumes `state`.
    """
    success: float | None = None
    for step in range(start_step, config.steps):
        state, metrics = train_step(state, next_batch(step))
        done = step + 1
        probed = probe is not None and config.stop_at_success < 1 and done % config.probe_every == 0
        if probe is not None and probed:
            success = probe(done, state)
            metrics["probe_success"] = success
        stop = on_step(done, state, metrics) if on_step is not None else None
        if probed and success is not None and success >= config.stop_at_success and done >= config.min_steps:
            return SFTResult(state, done, "success", success)
        if stop:
            return SFTResult(state, done, "stopped", success)
    return SFTResult(state, max(start_step, config.steps), "steps", success)
