"""From a plan to a task with proofs, as a function of data alone: what executors run anywhere.

A `Candidate` is a plan with the number of its attempt, which seeds it. `try_candidates` makes the task and
runs every gate that looks at one task (all but replay and duplicate). Nothing depends on what ran before in
the same process: the same job gives the same outcomes on every worker.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property

from envgen.errors import TaskError
from envgen.runtime.context import mix
from envgen.synthesis.bench import workbench
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover
from envgen.synthesis.plans import Candidate
from envgen.synthesis.workspace import key_of
from envgen.types import EnvironmentDraft, GateResult, Task, TraceConstraint

KEPT_BENCHES = 2
"""Environments that one process keeps loaded."""
UNNAMED = "candidate"
"""Id of a task until it is kept: ids number the tasks that are."""


@dataclass(frozen=True)
class Recipe:
    """All that the tasks of one environment depend on, beside the plan and its attempt number."""

    draft: EnvironmentDraft
    environment_id: str
    seed: int
    levels: tuple[int, ...]
    """Difficulty levels that are wanted."""
    rules: tuple[TraceConstraint, ...] = ()

    @cached_property
    def key(self) -> str:
        """Its address."""
        parts = (self.environment_id, self.seed, self.levels)
        return key_of(
            self.draft.model_dump(mode="json"), parts, [rule.model_dump(mode="json") for rule in self.rules]
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate: a task that passed its gates, or where it was dropped and why."""

    attempt: int
    task: Task | None
    gates: tuple[GateResult, ...] = ()
    dropped: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Job:
    """Some candidates of one environment."""

    recipe: Recipe
    candidates: tuple[Candidate, ...]


_loaded: OrderedDict[str, Prover] = OrderedDict()


def prover_of(recipe: Recipe) -> Prover:
    """The environment of a recipe, loaded; the last `KEPT_BENCHES` are kept in this process.

    Raises what `envgen.synthesis.tasks.workbench` raises.
    """
    known = _loaded.pop(recipe.key, None)
    if known is None:
        catalog = build_catalog(recipe.draft)
        known = Prover(workbench(catalog, recipe.environment_id, recipe.seed, recipe.rules))
    _loaded[recipe.key] = known
    while len(_loaded) > KEPT_BENCHES:
        _loaded.popitem(last=False)
    return known


def try_candidates(job: Job) -> list[Outcome]:
    """The outcomes of a job's candidates, in order."""
    prover = prover_of(job.recipe)
    return [_try(prover, job.recipe, candidate) for candidate in job.candidates]


def _try(prover: Prover, recipe: Recipe, candidate: Candidate) -> Outcome:
    attempt = candidate.attempt
    try:
        task = candidate.plan.make(prover.bench, mix(recipe.seed, attempt), UNNAMED)
    except TaskError as error:
        return Outcome(attempt, None, dropped="sampling", reason=str(error))
    if task.difficulty not in recipe.levels:
        return Outcome(attempt, None, dropped="difficulty")
    try:
        task = prover.equivalents.settle(task).task
    except TaskError as error:
        return Outcome(attempt, None, dropped="equivalents", reason=f"equivalents: {error}")
    gates = prover.gates(task)
    failed = next((gate for gate in gates if not gate.passed), None)
    if failed is not None:
        return Outcome(attempt, None, dropped=failed.gate, reason=f"{failed.gate}: {failed.detail}")
    return Outcome(attempt, task, tuple(gates))


def named(outcome: Outcome, task_id: str) -> Outcome:
    """The outcome of a task that is kept, under its id."""
    if outcome.task is None:
        raise ValueError(f"got attempt {outcome.attempt}, which was dropped; expected one with a task")
    return replace(outcome, task=outcome.task.model_copy(update={"id": task_id}))
