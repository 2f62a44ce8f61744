"""Tools that fail their tests leave the draft, with every tool that cannot be used without them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envgen.proposers.rules.propose import check_usable
from envgen.runtime.parsing import parse_source
from envgen.synthesis.functions import generate_source
from envgen.synthesis.schema import keys_needed, keys_shown
from envgen.synthesis.source_text import identifier, literal
from envgen.synthesis.toolproof.prove import ToolBench, ToolProof, counts, tools_of
from envgen.types import EnvironmentDraft, StateSchema, ToolDoc, ToolSemantics


@dataclass(frozen=True)
class Proven:
    """A draft whose tools have all passed, and the proofs of all that were tried."""

    draft: EnvironmentDraft
    proofs: dict[str, ToolProof]

    @property
    def account(self) -> dict[str, Any]:
        """For the bundle's manifest: failed tools by the check they failed; empty when all passed."""
        failed = counts(tuple(self.proofs.values()))
        return {"tools_failed": failed} if failed else {}


def prove_tools(draft: EnvironmentDraft, doc: ToolDoc, seed: int = 0) -> Proven:
    """Try every tool; drop those that fail and those that need a key which no tool left shows.

    Raises RefusedDocument when nothing usable is left, UnsafeCodeError, IsolationError.
    """
    proofs: dict[str, ToolProof] = {}
    bench = ToolBench(draft, doc, seed)
    tools, pool = tools_of(draft)
    try:
        proofs.update((sem.tool, bench.prove(sem, tools)) for sem in draft.semantics)
    finally:
        if pool is not None:
            pool.close()
    reasons = {
        p.tool: f"its tests fail ({p.kind}): {p.detail}"[:400] for p in proofs.values() if not p.passed
    }
    if not reasons:
        return Proven(draft, proofs)
    kept = tuple(s for s in draft.semantics if s.tool not in reasons)
    reasons |= dependents(draft.state_schema, draft.semantics, kept, reasons)
    return Proven(without(draft, doc, reasons), proofs)


def dependents(
    schema: StateSchema,
    before: tuple[ToolSemantics, ...],
    kept: tuple[ToolSemantics, ...],
    lost: Mapping[str, str],
) -> dict[str, str]:
    """Tool -> reason, for tools of ``kept`` that need a key which ``before`` showed and ``kept`` does not."""
    had = keys_shown(schema, before)
    reasons: dict[str, str] = {}
    while True:
        left = tuple(s for s in kept if s.tool not in reasons)
        missing = had - keys_shown(schema, left)
        found = {s.tool: c for s in left for c in keys_needed(schema, s) if c in missing}
        if not found:
            return reasons
        gone = ", ".join([*lost][:4])
        reasons |= {
            tool: f"it needs a key of {collection}, and what showed one is gone ({gone})"
            for tool, collection in found.items()
        }


def without(draft: EnvironmentDraft, doc: ToolDoc, reasons: Mapping[str, str]) -> EnvironmentDraft:
    """The draft without some tools, and without the collections that only they used. Raises
    RefusedDocument when nothing that changes and looks up is left."""
    semantics = tuple(s for s in draft.semantics if s.tool not in reasons)
    decisions = tuple(
        d.model_copy(update={"implemented": False, "reason": reasons[d.tool]}) if d.tool in reasons else d
        for d in draft.decisions
    )
    schema = used_schema(draft.state_schema, semantics)
    check_usable(doc, schema, semantics, decisions)
    ours = generate_source(draft.state_schema, draft.semantics) == draft.source
    return draft.model_copy(
        update={
            "state_schema": schema,
            "semantics": semantics,
            "tools": tuple(t for t in draft.tools if t.name not in reasons),
            "user_tools": tuple(t for t in draft.user_tools if t.name not in reasons),
            "source": generate_source(schema, semantics) if ours else _cut(draft.source, semantics, reasons),
            "decisions": decisions,
        }
    )


def used_schema(schema: StateSchema, semantics: tuple[ToolSemantics, ...]) -> StateSchema:
    """The collections that tools act on, check or cascade to, and those that these refer to."""
    used = {s.collection for s in semantics} | {c for s in semantics for c in s.cascades}
    used |= {r.collection for s in semantics for r in s.preconditions}
    used |= {o.collection for s in semantics for o in s.outputs}
    if any(s.from_session or s.where_session for s in semantics):
        used.add("session")
    while True:
        more = {f.references for c in schema.collections if c.name in used for f in c.fields if f.references}
        if more <= used:
            return StateSchema(collections=tuple(c for c in schema.collections if c.name in used))
        used |= more


def _cut(source: str, semantics: tuple[ToolSemantics, ...], gone: Mapping[str, str]) -> str:
    """The module's text without some tools' functions; the rest stays as it was written."""
    tree = parse_source(source)
    names = {identifier(tool) for tool in gone} - {identifier(s.tool) for s in semantics}
    parts = [
        ast.get_source_segment(source, node) or ""
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name in names)
        and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TOOLS")
    ]
    table = "\n".join(f"    {literal(s.tool)}: {identifier(s.tool)}," for s in semantics)
    return "\n\n\n".join([*parts, f"TOOLS = {{\n{table}\n}}"]) + "\n"
