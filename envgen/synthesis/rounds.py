"""The task stage: rounds of candidates until there are enough tasks, each round kept on disk when it is done.

A round draws its plans here, one after the other (the planner learns from what was kept before), has them
tried wherever the executor runs, and takes the tasks that passed in the order of their attempts. How many
plans a round draws follows from the rounds before it and from nothing else, so that workers change neither
the tasks nor their order. A round that is kept from an earlier run is read instead of tried; its plans are
drawn again all the same, which brings the planner to where it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from envgen.errors import RefusedDocument
from envgen.synthesis.candidates import Job, Outcome, Recipe, named, try_candidates
from envgen.synthesis.certify import Duplicates
from envgen.synthesis.executors import Executor
from envgen.synthesis.plans import Candidate
from envgen.synthesis.replay_stream import Replayers
from envgen.synthesis.workspace import Workspace, key_of
from envgen.types import GateResult, LintFinding, Task

ROUND = 16
"""Candidates of a round at most: what is lost when the process is killed, and what runs at once in one
bundle."""
LEAST = 4
ATTEMPTS_PER_TASK = 60
"""Draws allowed per wanted task before synthesis gives up."""
HOPELESS = 600
"""Attempts without a single task after which a document is refused."""
STAGE = "rounds"

Progress = Callable[[str, int, int], None]
"""Called with a stage name, done and total."""


class Planner(Protocol):
    """Draws plans, and learns what became of them."""

    def draw(self, attempt: int) -> Candidate | None:
        """The plan of one attempt; None when the draw led nowhere. What is drawn counts as used until
        `failed` says otherwise, so that the plans of one round differ."""
        ...

    def keeps(self, candidate: Candidate, task: Task) -> bool:
        """False for a task that adds nothing; it is dropped as a ``repeat``."""
        ...

    def failed(self, candidate: Candidate) -> None:
        """The candidate came to nothing."""
        ...

    def kept(self, candidate: Candidate, task: Task) -> None:
        """The candidate became a task of the bundle."""
        ...


@dataclass(frozen=True)
class Certified:
    """A task with the results of all its gates."""

    task: Task
    gates: tuple[GateResult, ...]


class TaskRounds:
    """Makes ``wanted`` certified tasks. Iterate it once; ``sampled``, ``made`` and ``dropped`` are the
    account so far. ``address`` names what recipe and planner are made from: the place of the rounds in the
    workspace."""

    def __init__(
        self,
        recipe: Recipe,
        planner: Planner,
        wanted: int,
        *,
        address: str,
        executor: Executor,
        replayers: Replayers,
        workspace: Workspace | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.recipe = recipe
        self.planner = planner
        self.wanted = wanted
        self.address = address
        self.executor = executor
        self.replayers = replayers
        self.workspace = workspace
        self.progress = progress
        self.attempts = 0
        self.sampled = 0
        self.made = 0
        self.dropped: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.duplicates = Duplicates()

    def __iter__(self) -> Iterator[tuple[Certified, ...]]:
        """The tasks round by round. Raises RefusedDocument, naming counts, when the bounded attempts do not
        give enough."""
        budget = ATTEMPTS_PER_TASK * (self.wanted + 10)
        number = 0
        while self.made < self.wanted:
            drawn = self._draw(budget)
            kept: list[Certified] = []
            if drawn:
                kept = self._settle(drawn, self._outcomes(number, drawn))
                number += 1
            if self.progress:
                self.progress("tasks", self.made, self.wanted)
            if kept:
                yield tuple(kept)
            if self.made < self.wanted and (
                self.attempts >= budget or (self.attempts >= HOPELESS and not self.made)
            ):
                raise self._impossible()

    def _draw(self, budget: int) -> list[Candidate]:
        """The plans of the next round: about as many as the missing tasks take at the rate so far."""
        rate = (self.made + 1) / (self.sampled + 2)
        size = min(ROUND, max(LEAST, math.ceil((self.wanted - self.made) / rate)))
        drawn: list[Candidate] = []
        while (
            len(drawn) < size
            and self.attempts < budget
            and (self.made or self.sampled or self.attempts < HOPELESS)
        ):
            self.attempts += 1
            candidate = self.planner.draw(self.attempts)
            if candidate is None:
                self.reasons["no look-up chain leads to the arguments of a write tool"] += 1
            else:
                drawn.append(candidate)
        return drawn

    # ---------------------------------------------------------------------------------------- one round
    def _outcomes(self, number: int, drawn: Sequence[Candidate]) -> list[Outcome]:
        """What became of the plans: from an earlier run when it is kept, else tried and replayed now."""
        attempts = [candidate.attempt for candidate in drawn]
        key = key_of(self.address, number, attempts)
        if self.workspace is not None:
            known = self.workspace.read(STAGE, key)
            if known is not None:
                return _loads(known)
        self.replayers.start()
        size = (
            math.ceil(len(drawn) / (2 * self.executor.workers)) if self.executor.workers > 1 else len(drawn)
        )
        jobs = [Job(self.recipe, tuple(drawn[at : at + size])) for at in range(0, len(drawn), size)]
        tried = [o for part in self.executor.map(try_candidates, jobs) for o in part]
        outcomes = self._replayed(tried)
        if self.workspace is not None:
            self.workspace.write(STAGE, key, _dumps(outcomes))
        return outcomes

    def _replayed(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Gate 1 on the tasks among some outcomes."""
        ready = [named(o, f"attempt-{o.attempt}") for o in outcomes if o.task is not None]
        results = self.replayers.results([o.task for o in ready if o.task is not None])
        out: list[Outcome] = []
        for outcome in outcomes:
            if outcome.task is None:
                out.append(outcome)
                continue
            gate = results[f"attempt-{outcome.attempt}"]
            if gate.passed:
                out.append(Outcome(outcome.attempt, outcome.task, (gate, *outcome.gates)))
            else:
                out.append(Outcome(outcome.attempt, None, dropped="replay", reason=f"replay: {gate.detail}"))
        return out

    def _settle(self, drawn: Sequence[Candidate], outcomes: Sequence[Outcome]) -> list[Certified]:
        """Take what is wanted, in the order of the attempts."""
        kept: list[Certified] = []
        for candidate, outcome in zip(drawn, outcomes, strict=True):
            if self.made == self.wanted:
                self.planner.failed(candidate)  # one too many
                continue
            self.sampled += 1
            if outcome.task is None:
                self._drop(candidate, outcome.dropped, outcome.reason)
                continue
            if not self.planner.keeps(candidate, outcome.task):
                self._drop(candidate, "repeat", "")
                continue
            duplicate = self.duplicates.gate(outcome.task)
            if not duplicate.passed:
                self._drop(candidate, "duplicate", "duplicate: the instruction is that of another task")
                continue
            task = named(outcome, f"{self.recipe.draft.name}-{self.made:04d}").task
            assert task is not None
            self.duplicates.note(task)
            self.planner.kept(candidate, task)
            self.made += 1
            kept.append(Certified(task, (*outcome.gates, duplicate)))
        return kept

    def _drop(self, candidate: Candidate, gate: str, reason: str) -> None:
        self.dropped[gate] += 1
        if reason:
            self.reasons[reason] += 1
        self.planner.failed(candidate)

    def _impossible(self) -> RefusedDocument:
        name = self.recipe.draft.name
        counts = ", ".join(f"{gate} {count}" for gate, count in self.dropped.most_common()) or "none"
        common = "; ".join(f"{reason} ({count})" for reason, count in self.reasons.most_common(3))
        advice = "ask for fewer tasks" if self.made else "this document gives no multi-step task"
        message = (
            f"{name}: got {self.made} of {self.wanted} certified tasks in {self.attempts} attempts (dropped: "
            f"{counts}); {advice}. Most frequent: {common}"
        )
        return RefusedDocument(
            message, (LintFinding(level="refusal", code="too-few-tasks", message=message),)
        )


# ---------------------------------------------------------------------------------------------------- on disk
def _dumps(outcomes: Sequence[Outcome]) -> bytes:
    return orjson.dumps(
        [
            {
                "attempt": o.attempt,
                "task": None if o.task is None else o.task.model_dump(mode="json"),
                "gates": [gate.model_dump(mode="json") for gate in o.gates],
                "dropped": o.dropped,
                "reason": o.reason,
            }
            for o in outcomes
        ]
    )


def _loads(data: bytes) -> list[Outcome]:
    return [
        Outcome(
            o["attempt"],
            None if o["task"] is None else Task.model_validate(o["task"]),
            tuple(GateResult.model_validate(gate) for gate in o["gates"]),
            o["dropped"],
            o["reason"],
        )
        for o in orjson.loads(data)
    ]
