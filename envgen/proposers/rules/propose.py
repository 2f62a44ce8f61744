"""`propose`: a tool document in, an environment draft out, with an account of every tool."""

from __future__ import annotations

import re

from envgen.errors import RefusedDocument
from envgen.proposers.rules.describe import agent_tool, policy_text
from envgen.proposers.rules.entities import build_entities
from envgen.proposers.rules.entity import Entity, address_params
from envgen.proposers.rules.kinds import recognise, scalar_list
from envgen.proposers.rules.limits import with_stated_rules
from envgen.proposers.rules.parts import Refused, World
from envgen.proposers.rules.semantics import semantics_of
from envgen.proposers.rules.targets import Target, general_refusal, resolve
from envgen.proposers.rules.words import a
from envgen.synthesis.functions import generate_source
from envgen.types import (
    Collection,
    EnvironmentDraft,
    LintFinding,
    StateField,
    StateSchema,
    ToolDecision,
    ToolDoc,
    ToolSemantics,
)

SESSION = "session"


def propose(doc: ToolDoc) -> EnvironmentDraft:
    """Infer state structure, semantics and Python of the tools of a document (METHOD.md §1), without a model.

    Every tool is in ``decisions``: implemented, or refused with the reason. Raises RefusedDocument when
    nothing that can
    be changed and looked up remains.
    """
    targets = resolve(doc)
    recognise(targets)
    for target in targets:
        target.refusal = general_refusal(target.tool, target) or target.refusal
    semantics, world = _settle(targets)
    schema = StateSchema(collections=_collections(world, semantics))
    decisions = tuple(
        ToolDecision(tool=t.tool.name, implemented=not t.refusal, reason=t.refusal, pointer=t.tool.pointer)
        for t in targets
    )
    check_usable(doc, schema, semantics, decisions)
    specs = {tool.name: tool for tool in doc.tools}
    draft = EnvironmentDraft(
        name=slug(doc.title),
        state_schema=schema,
        semantics=semantics,
        tools=tuple(agent_tool(specs[item.tool], item, schema) for item in semantics),
        source=generate_source(schema, semantics),
        policy=policy_text(schema, semantics),
        decisions=decisions,
    )
    return with_stated_rules(doc, draft)


def slug(title: str) -> str:
    """Short name of an environment: first telling words of the title."""
    words = [w for w in re.split(r"[^a-z0-9]+", title.lower()) if w]
    kept = [
        w for w in words if w not in {"api", "and", "the", "tools", "json", "openapi", "mcp", "server", "v1"}
    ]
    return "_".join((kept or words or ["environment"])[:3])


def _settle(targets: list[Target]) -> tuple[tuple[ToolSemantics, ...], World]:
    """Semantics of all tools. A refusal takes away what it taught about the records, so repeat until nothing
    changes."""
    while True:
        entities = build_entities(targets)
        world = World(entities, _children(entities), address_params(targets))
        result: list[ToolSemantics] = []
        refused = False
        for target in targets:
            if target.refusal:
                continue
            try:
                result.append(semantics_of(target, world))
            except Refused as reason:
                target.refusal, refused = str(reason), True
        if not refused:
            refused = _refuse_unfilled(targets, entities)
        if not refused:
            return tuple(result), world


def _refuse_unfilled(targets: list[Target], entities: dict[tuple[str, ...], Entity]) -> bool:
    """Refuse reads of collections of which the document says nothing but the key, and reads of what is only
    another
    view of a collection that other tools write (it would fall apart into two truths)."""
    changed = False
    address = address_params(targets)
    for target in targets:
        if target.refusal:
            continue
        entity = entities[target.entity]
        plain = [
            n for n, f in entity.fields.items() if n != entity.key and not f.references and n not in address
        ]
        keys_alone = scalar_list(target.tool.output) is not None  # the document says that it shows no more
        if not plain and not keys_alone and target.verb in ("get", "list", "search", "count"):
            target.refusal = f"the document does not say what {a(entity.entity)} record holds"
            changed = True
        twin = _twin(entity, targets, entities)
        if twin is not None:
            target.refusal = f"it shows {twin.name} in another form, with properties that no tool writes"
            changed = True
    return changed


def _twin(entity: Entity, targets: list[Target], entities: dict[tuple[str, ...], Entity]) -> Entity | None:
    """Another collection with the same key and nearly the same fields that tools write, when no tool writes
    this one."""
    written = {t.entity for t in targets if not t.refusal and t.verb in ("create", "update", "set", "delete")}
    if entity.words in written or len(entity.fields) < 5:
        return None
    for other in entities.values():
        shared = set(other.fields) & set(entity.fields)
        if other.words in written and other.key == entity.key and len(shared) * 10 >= len(entity.fields) * 7:
            return other
    return None


def _children(entities: dict[tuple[str, ...], Entity]) -> dict[str, list[tuple[str, str, bool]]]:
    result: dict[str, list[tuple[str, str, bool]]] = {}
    for child in entities.values():
        for item in child.fields.values():
            if item.references:
                result.setdefault(item.references, []).append((child.name, item.name, item.required))
    return result


def _collections(world: World, semantics: tuple[ToolSemantics, ...]) -> tuple[Collection, ...]:
    """Collections that a tool uses or that a used one refers to, parents first, and the session when one is
    needed."""
    used = {item.collection for item in semantics}
    frozen = {e.name: e.collection() for e in world.entities.values()}
    if world.session is None and any(
        e.acting_user for n, e in ((e.name, e) for e in world.entities.values()) if n in used
    ):
        world.session = StateField(
            name="username",
            type="string",
            required=True,
            description="who is logged in",
            provenance="assumption: one user is logged in for the whole conversation",
        )
    if world.session is not None and world.session.references:
        used.add(world.session.references)
    grown = True
    while grown:
        more = {f.references for n in used for f in frozen[n].fields if f.references} - used
        used |= more
        grown = bool(more)
    result = [c for name, c in frozen.items() if name in used]
    if world.session is not None:
        result.append(_session(world.session))
    return tuple(result)


def _session(item: StateField) -> Collection:
    return Collection(
        name=SESSION,
        entity="session",
        key="id",
        key_generated=False,
        singleton=True,
        fields=(
            StateField(
                name="id", type="string", required=True, default="self", provenance="assumption: one record"
            ),
            item,
        ),
        provenance=item.provenance,
    )


def check_usable(
    doc: ToolDoc,
    schema: StateSchema,
    semantics: tuple[ToolSemantics, ...],
    decisions: tuple[ToolDecision, ...],
) -> None:
    """Raises RefusedDocument when nothing that looks records up is left. An environment that only reads can
    ask questions (`envgen.synthesis.questions`)."""
    findings: list[LintFinding] = []
    known = {c.name for c in schema.collections if c.singleton or not c.key_generated}
    if not any(item.many or (item.verb == "get" and item.collection in known) for item in semantics):
        if not any(item.writes_state for item in semantics):
            text = "no tool that changes the state survives"
            findings.append(LintFinding(level="refusal", code="no-write-tool", message=text))
        text = "no tool that lists or searches survives, so no id can be looked up"
        findings.append(LintFinding(level="refusal", code="no-lookup-tool", message=text))
    if findings:
        findings += [
            LintFinding(
                level="warning", code="tool-refused", message=f"{d.tool}: {d.reason}", pointer=d.pointer
            )
            for d in decisions
            if not d.implemented
        ]
        raise RefusedDocument(f"{doc.source}: no environment: {findings[0].message}", tuple(findings))
