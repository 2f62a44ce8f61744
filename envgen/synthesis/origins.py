"""The origins of a draft, collected from its document and its own notes (`envgen.provenance`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envgen.provenance import CollectionSource, Provenance, RuleSource, Source, ToolSource, ToolTests
from envgen.synthesis.toolproof.prove import ToolProof
from envgen.types import EnvironmentDraft, FieldSpec, ToolDoc, ToolSemantics, ToolSpec

_ASSUMED = re.compile(r"\(?\bassumption: (.*?)\)?$")
_NOT_SAID = "the document does not say where"


def origins(doc: ToolDoc, draft: EnvironmentDraft, proofs: Mapping[str, ToolProof]) -> Provenance:
    """Every tool, parameter, rule, collection and field of ``draft`` with its place in ``doc``, or the
    assumption behind it. ``proofs``: by tool name."""
    specs = {tool.name: tool for tool in doc.tools}
    return Provenance(
        documents={doc.source: doc.sha256},
        tools={s.tool: _tool(specs.get(s.tool), s, proofs.get(s.tool)) for s in draft.semantics},
        collections={
            c.name: CollectionSource(
                source=source_of(c.provenance, f"{c.entity}: named by the tools that use it"),
                fields={f.name: source_of(f.provenance, f"{c.entity} holds {f.name}") for f in c.fields},
            )
            for c in draft.state_schema.collections
        },
    )


def source_of(text: str, otherwise: str = _NOT_SAID) -> Source:
    """``pointer``, ``assumption: why`` or ``pointer (assumption: why)`` taken apart."""
    found = _ASSUMED.search(text)
    pointer = (text[: found.start()] if found else text).strip()
    if pointer == "model":  # a collection that a language model proposed
        return Source(assumption="proposed by the model")
    if pointer.startswith("model"):
        return Source(assumption=pointer)
    assumption = found.group(1) if found else ""
    return Source(pointer=pointer, assumption=assumption if pointer or assumption else otherwise)


def _tool(spec: ToolSpec | None, sem: ToolSemantics, proof: ToolProof | None) -> ToolSource:
    params = {p.name: p for p in spec.params} if spec is not None else {}
    own = spec.pointer if spec is not None else ""
    key = (sem.key,) if sem.key else ()
    named = [b.param for b in (*key, *sem.scope, *sem.filters, *sem.writes, *sem.amounts)]
    named += [*sem.paging, *sem.ignored]
    rules = tuple(
        RuleSource(rule=rule.message or rule.kind, source=source_of(rule.provenance or own))
        for rule in sem.preconditions
    )
    return ToolSource(
        source=source_of(own),
        params={name: _param(name, params) for name in dict.fromkeys(named)},
        rules=rules,
        assumptions=sem.assumptions,
        tests=ToolTests(successes=proof.successes, refusals=proof.refusals, misfits=proof.misfits)
        if proof is not None
        else None,
    )


def _param(path: str, params: Mapping[str, FieldSpec]) -> Source:
    """The place of a parameter; of a member of an object parameter where the path is dotted."""
    root, *inner = path.split(".")
    node = params.get(root)
    for name in inner:
        deeper = next((p for p in node.properties if p.name == name), None) if node is not None else None
        node = deeper or node
    return source_of(node.pointer if node is not None else "", f"{path}: {_NOT_SAID}")
