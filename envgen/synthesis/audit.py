"""What a document lacks for a good environment: its own faults, what the rules make of each tool, and
whether any task can be planned."""

from __future__ import annotations

from envgen.errors import RefusedDocument
from envgen.proposers.rules import propose
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.difficulty import HARDEST
from envgen.synthesis.planner import ShapePlanner
from envgen.synthesis.questions import QuestionPlanner
from envgen.tooldocs.lint import lint
from envgen.types import LintFinding, ToolDoc

DRAWS = 15
"""Plans drawn before a document counts as one without tasks; each tries several shapes."""


def audit(doc: ToolDoc) -> tuple[LintFinding, ...]:
    """`lint`, then ``tool-refused`` for every tool that synthesis would refuse, with its reason.

    Refusals of the whole document: nothing to change and look up is left, or no task can be planned
    (``no-task``).
    """
    found = list(lint(doc))
    try:
        draft = propose(doc)
    except RefusedDocument as error:
        known = {(finding.level, finding.code) for finding in found}
        found += [f for f in error.findings if f.level == "warning" or (f.level, f.code) not in known]
        return _sorted(found)
    for decision in draft.decisions:
        if not decision.implemented:
            message = f"{decision.tool}: {decision.reason}"
            found.append(
                LintFinding(level="warning", code="tool-refused", message=message, pointer=decision.pointer)
            )
    catalog = build_catalog(draft)
    planner = ShapePlanner(catalog, 0, HARDEST)
    questions = bool(QuestionPlanner(catalog, 0).locators)
    if not catalog.writers and questions:
        return _sorted(found)
    if all(planner.draw() is None for _ in range(DRAWS)):
        message = "no look-up chain leads to the arguments of a write tool, so no task can be set"
        if questions:
            message += "; questions can be asked: synth --answer-share 1"
        found.append(LintFinding(level="refusal", code="no-task", message=message, pointer="/"))
    return _sorted(found)


def _sorted(found: list[LintFinding]) -> tuple[LintFinding, ...]:
    """Refusals first, else in the order found."""
    return tuple(sorted(found, key=lambda finding: finding.level == "warning"))
