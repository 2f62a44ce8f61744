"""Kinds of tasks in one bundle: changes, questions, and requests that a rule forbids, in wanted shares."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from envgen.errors import RefusedDocument
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.forbidden import ForbiddenPlanner, refusing
from envgen.synthesis.plans import Candidate
from envgen.synthesis.questions import QuestionPlanner, asking
from envgen.synthesis.rounds import Planner
from envgen.types import EnvironmentDraft, LintFinding, Task

LEAST_WEIGHT = 0.03
"""Chance of a kind that has its share already."""


@dataclass(frozen=True)
class Shares:
    """Shares of a bundle's tasks that are questions, and that a rule forbids; the rest are changes."""

    answer_share: float = 0.0
    forbidden_share: float = 0.0

    @classmethod
    def of(cls, draft: EnvironmentDraft, answer_share: float, forbidden_share: float) -> Shares:
        """The shares of an environment: one without a write tool has nothing but questions."""
        if not any(item.writes_state for item in draft.semantics):
            return cls(answer_share=1.0)
        return cls(answer_share, forbidden_share)

    def said(self) -> dict[str, float]:
        """As the manifest says them; nothing where there are changes only."""
        return {name: share for name, share in vars(self).items() if share}

    def prepared(self, draft: EnvironmentDraft) -> EnvironmentDraft:
        """The environment whose policy says how these kinds of tasks are ended."""
        if self.forbidden_share:
            draft = refusing(draft)
        return asking(draft) if self.answer_share else draft

    def planner(self, catalog: Catalog, seed: int, changes: Planner) -> Planner:
        """The planner of a bundle. Raises RefusedDocument when a kind that is wanted cannot be had."""
        kinds: dict[str, tuple[float, Planner]] = {}
        rest = 1.0 - self.answer_share - self.forbidden_share
        if rest > 0:
            kinds["change"] = (rest, changes)
        if self.answer_share:
            questions = QuestionPlanner(catalog, seed)
            if not questions.locators:
                raise _none(
                    catalog, "no-question", "no tool lists records with a value that could be asked for"
                )
            kinds["answer"] = (self.answer_share, questions)
        if self.forbidden_share:
            forbidden = ForbiddenPlanner(catalog, seed)
            if not forbidden.options:
                raise _none(
                    catalog,
                    "no-rule",
                    "no rule about a state or number that a look-up shows; leave --forbidden-share out",
                )
            kinds["forbidden"] = (self.forbidden_share, forbidden)
        if len(kinds) == 1:
            return next(iter(kinds.values()))[1]
        return MixedPlanner(kinds, seed)


def _none(catalog: Catalog, code: str, reason: str) -> RefusedDocument:
    message = f"{catalog.draft.name}: {reason}"
    return RefusedDocument(message, (LintFinding(level="refusal", code=code, message=message),))


class MixedPlanner:
    """Several planners under one (`envgen.synthesis.rounds.Planner`): the kind that lags behind its share the
    most is the likeliest to be drawn."""

    def __init__(self, kinds: dict[str, tuple[float, Planner]], seed: int) -> None:
        self.kinds = kinds
        self.rng = random.Random(f"kinds/{seed}")
        self.counts: Counter[str] = Counter()
        self._kind_of: dict[int, str] = {}
        """Attempt -> kind, of the plans that are being tried."""

    def draw(self, attempt: int) -> Candidate | None:
        """See `envgen.synthesis.rounds.Planner.draw`."""
        total = sum(self.counts.values()) + 1
        weights = [
            max(share * total - self.counts[name], LEAST_WEIGHT * share)
            for name, (share, _) in self.kinds.items()
        ]
        kind = self.rng.choices(list(self.kinds), weights)[0]
        candidate = self.kinds[kind][1].draw(attempt)
        if candidate is not None:
            self._kind_of[attempt] = kind
            self.counts[kind] += 1
        return candidate

    def keeps(self, candidate: Candidate, task: Task) -> bool:
        """See `envgen.synthesis.rounds.Planner.keeps`."""
        return self.kinds[self._kind_of[candidate.attempt]][1].keeps(candidate, task)

    def failed(self, candidate: Candidate) -> None:
        """See `envgen.synthesis.rounds.Planner.failed`."""
        kind = self._kind_of.pop(candidate.attempt)
        self.counts[kind] -= 1
        self.kinds[kind][1].failed(candidate)

    def kept(self, candidate: Candidate, task: Task) -> None:
        """See `envgen.synthesis.rounds.Planner.kept`."""
        self.kinds[self._kind_of.pop(candidate.attempt)][1].kept(candidate, task)
