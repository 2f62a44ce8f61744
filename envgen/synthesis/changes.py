"""Tasks that change the state, as plans for the rounds (`envgen.synthesis.rounds`)."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.synthesis.bench import Workbench
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.planner import ShapePlanner
from envgen.synthesis.plans import Candidate
from envgen.synthesis.shapes import DemandShape
from envgen.synthesis.tasks import TaskMaker
from envgen.types import Task


@dataclass(frozen=True)
class ChangePlan:
    """A task that changes the state. ``nested`` and ``crowd``: see `envgen.synthesis.tasks.TaskMaker.make`;
    ``level``: the difficulty level it was drawn for."""

    shapes: tuple[DemandShape, ...]
    nested: tuple[tuple[int, int], ...] = ()
    level: int = 1
    crowd: int = 0

    def make(self, bench: Workbench, seed: int, task_id: str) -> Task:
        """See `Plan.make`."""
        return TaskMaker(bench, seed).make(task_id, list(self.shapes), dict(self.nested), self.crowd).task


class ChangePlanner:
    """Plans of tasks that change the state (`envgen.synthesis.rounds.Planner`)."""

    def __init__(
        self, catalog: Catalog, seed: int, levels: int | tuple[int, ...], max_demands: int = 0
    ) -> None:
        self.shapes = ShapePlanner(catalog, seed, levels, max_demands)

    def draw(self, attempt: int) -> Candidate | None:
        """See `envgen.synthesis.rounds.Planner.draw`."""
        drawn = self.shapes.draw()
        if drawn is None:
            return None
        shapes, nested = drawn
        self.shapes.mark(shapes)
        wanted = self.shapes.wanted
        return Candidate(
            attempt, ChangePlan(tuple(shapes), tuple(nested.items()), wanted.number, wanted.crowd)
        )

    def keeps(self, candidate: Candidate, task: Task) -> bool:
        """See `envgen.synthesis.rounds.Planner.keeps`."""
        return self.shapes.keeps(task)

    def failed(self, candidate: Candidate) -> None:
        """See `envgen.synthesis.rounds.Planner.failed`."""
        self.shapes.mark(self._plan(candidate).shapes, -1)

    def kept(self, candidate: Candidate, task: Task) -> None:
        """See `envgen.synthesis.rounds.Planner.kept`."""
        plan = self._plan(candidate)
        self.shapes.mark(plan.shapes, -1)  # what was counted at the draw is counted by `note`
        self.shapes.note(task, plan.shapes, plan.level)

    def _plan(self, candidate: Candidate) -> ChangePlan:
        assert isinstance(candidate.plan, ChangePlan)
        return candidate.plan
