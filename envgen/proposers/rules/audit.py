"""What a document lacks for a good environment: its own faults, and what the rules make of each tool."""

from __future__ import annotations

from envgen.errors import RefusedDocument
from envgen.proposers.rules.propose import propose
from envgen.tooldocs.lint import lint
from envgen.types import LintFinding, ToolDoc


def audit(doc: ToolDoc) -> tuple[LintFinding, ...]:
    """`lint`, then ``tool-refused`` for every tool that synthesis would refuse, with its reason; a refusal
    of the whole document when nothing that can be changed and looked up would be left."""
    found = list(lint(doc))
    try:
        draft = propose(doc)
    except RefusedDocument as error:
        known = {(finding.level, finding.code) for finding in found}
        found += [f for f in error.findings if f.level == "warning" or (f.level, f.code) not in known]
    else:
        found += [
            LintFinding(
                level="warning", code="tool-refused", message=f"{d.tool}: {d.reason}", pointer=d.pointer
            )
            for d in draft.decisions
            if not d.implemented
        ]
    return tuple(sorted(found, key=lambda finding: finding.level == "warning"))
