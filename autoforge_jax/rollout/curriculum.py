"""Which tasks are worth rolling out: a record of success per kind of task, and the weight it gives a task.

A group teaches something only when its rollouts disagree, and the size of what it teaches grows with the
variance p (1 - p) of its success. Tasks are drawn in proportion to the variance seen for their kind, their
*learnability* (Rutherford et al., "No Regrets", arXiv 2408.15099, who score levels so), with a floor, so that
no kind is given up: what is at 0 today is tried again as the policy improves.

A kind is (environment, pattern): single tasks are met too rarely for a rate of their own. Evaluations are not
touched; they take their tasks as they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoforge_jax.errors import TrainingError
from autoforge_jax.rollout.jobs import TaskItem
from autoforge_jax.types import TrajectoryGroup

DECAY = 0.9
"""What a step leaves of the counts before it: a memory of about ten steps, since the policy moves."""
FLOOR = 0.1
"""Least weight; a kind with success 1/2 has 1."""


@dataclass
class SuccessRecord:
    """Decayed counts of valid rollouts and successes per kind. Goes into checkpoints (`to_json`), so that a
    resumed run draws the same tasks."""

    counts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """kind -> (rollouts, successes)."""

    def weight(self, item: TaskItem) -> float:
        """4 p (1 - p) of the task's kind, at least `FLOOR`; p is smoothed by one success and one failure, so
        that an unseen kind has weight 1."""
        bundle, task = item
        rollouts, successes = self.counts.get(kind(bundle.environment_id, task.pattern), (0.0, 0.0))
        p = (successes + 1.0) / (rollouts + 2.0)
        return max(FLOOR, 4.0 * p * (1.0 - p))

    def update(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Take in all groups of one step. Excluded trajectories count for nothing."""
        self.counts = {name: (n * DECAY, s * DECAY) for name, (n, s) in self.counts.items()}
        for group in groups:
            for trajectory in group.valid:
                name = kind(trajectory.environment_id, trajectory.pattern)
                rollouts, successes = self.counts.get(name, (0.0, 0.0))
                self.counts[name] = (rollouts + 1.0, successes + float(trajectory.success))

    def to_json(self) -> dict[str, list[float]]:
        """Plain values, exact."""
        return {name: list(pair) for name, pair in sorted(self.counts.items())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SuccessRecord:
        """The record that `to_json` wrote. TrainingError for anything else."""
        try:
            return cls({str(name): (float(n), float(s)) for name, (n, s) in value.items()})
        except (AttributeError, TypeError, ValueError) as error:
            raise TrainingError(
                f"the checkpoint's success record is {value!r}, expected kind -> [rollouts, successes]; "
                "start the phase over with --fresh"
            ) from error


def kind(environment_id: str, pattern: str) -> str:
    """The name under which a task's successes are counted."""
    return f"{environment_id}/{pattern}"
