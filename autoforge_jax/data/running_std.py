"""A standard deviation per environment that remembers earlier batches (`erpo.environment_std = "running"`).

Eq. 4 of METHOD.md divides by the standard deviation of the environment in the batch. With a handful of groups
per environment that number jumps from step to step, and with it the size of the environment's advantages.
Here the moments of the rewards (count, sum, sum of squares) decay by a factor per step and are taken over all
that is left:

    n ← decay · n + n_batch     s ← decay · s + Σ R     q ← decay · q + Σ R²     std = sqrt(q/n − (s/n)²)

The batch is taken in before its own advantages are computed, so that the first step is eq. 4 exactly. An
environment that a step does not reach keeps its moments. Not the paper's: an option, off by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoforge_jax.errors import TrainingError
from autoforge_jax.types import TrajectoryGroup

_ROUNDING = 1e-12
"""Of a mean of squares: a variance at or below it (relative) is that of equal rewards."""


@dataclass
class RunningStd:
    """Decayed moments of the valid rewards per environment. Goes into checkpoints (`to_json`)."""

    decay: float
    moments: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """environment_id -> (count, sum, sum of squares)."""

    def update(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Take in the groups of one step's batch; excluded trajectories count for nothing."""
        rewards: dict[str, list[float]] = {}
        for group in groups:
            rewards.setdefault(group.environment_id, []).extend(t.reward for t in group.valid)
        for environment_id, values in rewards.items():
            if not values:
                continue
            count, total, squares = self.moments.get(environment_id, (0.0, 0.0, 0.0))
            self.moments[environment_id] = (
                self.decay * count + len(values),
                self.decay * total + math.fsum(values),
                self.decay * squares + math.fsum(value * value for value in values),
            )

    def std(self, environment_id: str) -> float:
        """Population standard deviation of what is remembered; 0 for an unseen environment."""
        count, total, squares = self.moments.get(environment_id, (0.0, 0.0, 0.0))
        if count <= 0:
            return 0.0
        mean_square = squares / count
        variance = mean_square - (total / count) ** 2
        return math.sqrt(variance) if variance > _ROUNDING * mean_square else 0.0

    def to_json(self) -> dict[str, list[float]]:
        """Plain values, exact."""
        return {name: list(values) for name, values in sorted(self.moments.items())}

    @classmethod
    def from_json(cls, decay: float, value: Mapping[str, Any]) -> RunningStd:
        """What `to_json` wrote. TrainingError for anything else."""
        try:
            moments = {str(k): (float(n), float(s), float(q)) for k, (n, s, q) in value.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TrainingError(
                f"the checkpoint's running std is {value!r}, expected environment -> [count, sum, squares]; "
                "start the phase over with --fresh"
            ) from error
        return cls(decay, moments)
