"""Plans: what a planner decided about a task before any value exists, of whatever kind the task is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envgen.synthesis.bench import Workbench
from envgen.types import Task


class Plan(Protocol):
    """What a planner decided about one task before any value exists. Picklable."""

    def make(self, bench: Workbench, seed: int, task_id: str) -> Task:
        """The task. Raises TaskError when the draw does not work out."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A plan and the number of its attempt."""

    attempt: int
    plan: Plan
