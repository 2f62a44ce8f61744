"""The stages in order: tools (prose only), state structure, one question per tool, dependence. A draft comes
out with an account of every tool, or RefusedDocument says why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.errors import ProseError, RefusedDocument
from envgen.llm.port import ChatClient
from envgen.proposers.model.answers import StructureAnswer, ToolAnswer
from envgen.proposers.model.asking import Asker, AskSettings, Attempt, NoAnswer, Wrong
from envgen.proposers.model.code import assemble, check_form, function_head, function_names
from envgen.proposers.model.prompts import prompt_hashes, render
from envgen.proposers.model.prose import read_prose
from envgen.proposers.model.statements import build_statement, hidden_params
from envgen.proposers.model.structure import build_structure
from envgen.proposers.model.trials import try_function
from envgen.proposers.rules import propose as propose_by_rules
from envgen.proposers.rules.describe import agent_tool, json_schema, policy_text
from envgen.proposers.rules.propose import check_usable, slug
from envgen.proposers.rules.words import a
from envgen.synthesis.schema import children_of, keys_needed, keys_shown
from envgen.synthesis.source_text import identifier
from envgen.tooldocs.read import read_tool_doc
from envgen.types import (
    EnvironmentDraft,
    LintFinding,
    Precondition,
    StateSchema,
    ToolDecision,
    ToolDoc,
    ToolSemantics,
    ToolSpec,
)


@dataclass(frozen=True)
class ModelDraft:
    """What came of asking: the document as it was read, the draft, and every attempt."""

    doc: ToolDoc
    draft: EnvironmentDraft
    attempts: tuple[Attempt, ...]
    hybrid: bool

    @property
    def provenance(self) -> dict[str, Any]:
        """For the bundle's manifest: model, prompts, calls, repairs, tokens, and what was written by whom."""
        return {
            "proposer": "hybrid" if self.hybrid else "model",
            "model": {
                "ids": sorted({a.model for a in self.attempts if a.model}),
                "prompts": prompt_hashes(),
                "calls": len(self.attempts),
                "repairs": sum(a.number > 1 for a in self.attempts),
                "prompt_tokens": sum(a.prompt_tokens for a in self.attempts),
                "completion_tokens": sum(a.completion_tokens for a in self.attempts),
            },
        }


@dataclass(frozen=True)
class _Made:
    """A tool of the model that passed its trials."""

    semantics: ToolSemantics
    code: str


def propose_with_model(
    document: Path | ToolDoc, client: ChatClient, settings: AskSettings | None = None, *, hybrid: bool = False
) -> ModelDraft:
    """Ask ``client`` for the environment of a document (METHOD.md §1). ``hybrid``: what the rules make of it
    stays, the model is asked for the tools they refuse.

    A tool that fails its checks after all tries is refused by name, with everything that depends on it.
    Raises DocumentError, RefusedDocument, LLMError (also a spent budget), IsolationError.
    """
    asker = Asker(client, settings or AskSettings())
    doc = document if isinstance(document, ToolDoc) else _read(document, asker)
    start = _start(doc) if hybrid else None
    kept = start.semantics if start else ()
    wanted = [tool for tool in doc.tools if tool.name not in {s.tool for s in kept}]
    schema = start.state_schema if start else None
    made: dict[str, _Made] = {}
    reasons: dict[str, str] = {}
    if wanted or schema is None:
        before, schema = schema, _structure(doc, wanted, schema, asker)
        if before is not None:
            kept = tuple(_with_new_children(sem, before, schema) for sem in kept)
        made, reasons = _tools(doc, wanted, schema, asker)
    draft = _draft(doc, schema, kept, made, reasons)
    return ModelDraft(doc, draft, tuple(_in_order(asker.attempts, doc)), hybrid)


def _read(path: Path, asker: Asker) -> ToolDoc:
    try:
        return read_tool_doc(path)
    except ProseError:
        return read_prose(path, asker)


def _start(doc: ToolDoc) -> EnvironmentDraft | None:
    try:
        return propose_by_rules(doc)
    except RefusedDocument:
        return None  # nothing to start from: the model gets the whole document


def _structure(doc: ToolDoc, wanted: list[ToolSpec], kept: StateSchema | None, asker: Asker) -> StateSchema:
    note = ""
    if kept is not None:
        note = (
            "\nThese collections are there already and stay as they are. Answer only what the tools below "
            "need beside them: new collections, and collections of the list with the fields to add.\n"
            + _schema_text(kept)
        )
    prompt = render(
        "state", kept=note, title=doc.title, about=doc.description[:1500], tools=_tool_texts(wanted)
    )
    try:
        return asker.ask("state", doc.title, prompt, StructureAnswer, lambda a: build_structure(a, kept))
    except NoAnswer as error:
        message = f"{doc.source}: no environment: the model's state structure cannot be used: {error}"
        finding = LintFinding(level="refusal", code="no-state", message=str(error))
        raise RefusedDocument(message, (finding,)) from error


def _with_new_children(sem: ToolSemantics, before: StateSchema, after: StateSchema) -> ToolSemantics:
    """A delete of the rules keeps records that a new collection refers to: nothing is left dangling."""
    if sem.verb != "delete":
        return sem
    old = set(children_of(before, sem.collection))
    noun = after.collection(sem.collection).entity
    rules = tuple(
        Precondition(
            kind="no_children",
            collection=child,
            field=name,
            message=f"This {noun} still has {a(after.collection(child).entity)}.",
            provenance="assumption: a record that others refer to is kept",
        )
        for child, name in children_of(after, sem.collection)
        if (child, name) not in old
    )
    return sem.model_copy(update={"preconditions": (*sem.preconditions, *rules)}) if rules else sem


def _tools(
    doc: ToolDoc, wanted: list[ToolSpec], schema: StateSchema, asker: Asker
) -> tuple[dict[str, _Made], dict[str, str]]:
    """Every tool asked for, some at once; the results in the order of the document."""
    about = "\n".join(f"- {t.name}: {' '.join(t.description.split())[:120]}" for t in doc.tools)

    def one(spec: ToolSpec) -> _Made | str:
        prompt = render(
            "tool",
            tool_name=spec.name,
            head=function_head(spec),
            state=_schema_text(schema),
            tools=about,
            tool=_tool_texts([spec]),
        )
        try:
            return asker.ask("tool", spec.name, prompt, ToolAnswer, lambda a: _made(a, spec, schema))
        except NoAnswer as error:
            return str(error)

    with ThreadPoolExecutor(asker.settings.concurrency, thread_name_prefix="ask") as pool:
        futures = [pool.submit(one, spec) for spec in wanted]
        try:
            results = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    made: dict[str, _Made] = {}
    reasons: dict[str, str] = {}
    for spec, result in zip(wanted, results, strict=True):
        if isinstance(result, str):
            reasons[spec.name] = result
        else:
            made[spec.name] = result
    return made, reasons


def _made(answer: ToolAnswer, spec: ToolSpec, schema: StateSchema) -> _Made:
    if not answer.implement:
        if not answer.reason.strip():
            raise Wrong("implement is false without a reason")
        raise NoAnswer(f"the model declines: {answer.reason.strip()}")
    if answer.statement is None:
        raise Wrong("implement is true without a statement")
    semantics = build_statement(answer.statement, spec, schema)
    code = check_form(answer.code, spec)
    try_function(schema, semantics, spec, code)
    return _Made(semantics, code)


# ------------------------------------------------------------------------------------------------ the draft
def _draft(
    doc: ToolDoc,
    schema: StateSchema,
    kept: tuple[ToolSemantics, ...],
    made: dict[str, _Made],
    reasons: dict[str, str],
) -> EnvironmentDraft:
    _drop_namesakes(schema, kept, made, reasons)
    _drop_dependent(schema, kept, made, reasons)
    order = {tool.name: number for number, tool in enumerate(doc.tools)}
    model = {name: made[name].semantics for name in sorted(made, key=order.__getitem__)}
    semantics = tuple(sorted((*kept, *model.values()), key=lambda s: order[s.tool]))
    schema = _used(schema, semantics)
    specs = {tool.name: tool for tool in doc.tools}
    known = {s.tool for s in semantics}
    decisions = tuple(
        ToolDecision(
            tool=t.name,
            implemented=t.name in known,
            reason="" if t.name in known else reasons[t.name],
            pointer=t.pointer,
        )
        for t in doc.tools
    )
    check_usable(doc, schema, semantics, decisions)
    return EnvironmentDraft(
        name=slug(doc.title),
        state_schema=schema,
        semantics=semantics,
        tools=tuple(agent_tool(specs[s.tool], s, schema) for s in semantics),
        source=assemble(schema, kept, {name: made[name].code for name in model}),
        policy=policy_text(schema, semantics),
        decisions=decisions,
    )


def _drop_namesakes(
    schema: StateSchema, kept: tuple[ToolSemantics, ...], made: dict[str, _Made], reasons: dict[str, str]
) -> None:
    """Refuse tools whose functions would have a name that the module has already."""
    taken = function_names(assemble(schema, kept, {}))
    for name in list(made):
        if identifier(name) in taken:
            reasons[name] = f"its function would be a second {identifier(name)!r} in the module"
            del made[name]
        taken.add(identifier(name))


def _drop_dependent(
    schema: StateSchema, kept: tuple[ToolSemantics, ...], made: dict[str, _Made], reasons: dict[str, str]
) -> None:
    """Refuse tools that need keys which no tool that is left shows."""
    while True:
        shown = keys_shown(schema, (*kept, *(m.semantics for m in made.values())))
        gone: dict[str, str] = {}
        for name, item in made.items():
            missing = next((c for c in keys_needed(schema, item.semantics) if c not in shown), None)
            if missing is not None:
                lost = [n for n in reasons if n not in made]
                because = f" (refused: {', '.join(lost[:4])})" if lost else ""
                gone[name] = f"it needs a key of {missing}, and no tool that is left shows one{because}"
        if not gone:
            return
        for name, reason in gone.items():
            reasons[name] = reason
            del made[name]


def _used(schema: StateSchema, semantics: tuple[ToolSemantics, ...]) -> StateSchema:
    """The collections that tools act on, and those they refer to."""
    used = {s.collection for s in semantics} | {c for s in semantics for c in s.cascades}
    used |= {r.collection for s in semantics for r in s.preconditions}
    used |= {c.name for c in schema.collections if c.name == "session"}
    while True:
        more = {f.references for n in used for f in schema.collection(n).fields if f.references} - used
        if not more:
            break
        used |= more
    return StateSchema(collections=tuple(c for c in schema.collections if c.name in used))


def _in_order(attempts: list[Attempt], doc: ToolDoc) -> list[Attempt]:
    """Attempts as the stages ask, whatever thread was first."""
    stages = {"tools": 0, "state": 1, "tool": 2}
    order = {tool.name: number for number, tool in enumerate(doc.tools)}
    return sorted(attempts, key=lambda a: (stages[a.stage], order.get(a.subject, -1), a.number))


# ------------------------------------------------------------------------------------------------ prompts
def _schema_text(schema: StateSchema) -> str:
    rows: list[dict[str, Any]] = []
    for c in schema.collections:
        fields = [
            f.model_dump(exclude_defaults=True, exclude={"provenance", "policy"})
            | ({"clock": True} if f.policy == "exempt" else {})
            for f in c.fields
        ]
        rows.append(c.model_dump(exclude={"fields", "provenance"}) | {"fields": fields})
    return "\n".join(_line(row) for row in rows)


def _tool_texts(tools: list[ToolSpec]) -> str:
    lines: list[str] = []
    for tool in tools:
        hidden = hidden_params(tool)
        row: dict[str, Any] = {
            "name": tool.name,
            "description": " ".join(tool.description.split())[:1200],
            "parameters": {p.name: json_schema(p) for p in tool.params if p.name not in hidden},
            "required": [p.name for p in tool.params if p.required and p.name not in hidden],
        }
        if tool.output is not None:
            row["result"] = json_schema(tool.output)
        if tool.method:
            row["request"] = f"{tool.method.upper()} {tool.path}"
        lines.append(_line(row))
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, sort_keys=False)
