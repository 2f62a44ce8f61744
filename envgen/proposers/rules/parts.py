"""What semantics of one tool are put together from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envgen.proposers.rules.entity import (
    Entity,
)
from envgen.proposers.rules.results import result_of
from envgen.proposers.rules.targets import Target
from envgen.types import (
    Collection,
    FieldSpec,
    Ordering,
    ParamBinding,
    Precondition,
    StateField,
    ToolSemantics,
)


class Refused(Exception):
    """A tool cannot be given honest semantics; the text is the reason."""


@dataclass
class World:
    """All that semantics of one tool may look at."""

    entities: dict[tuple[str, ...], Entity]
    children: dict[str, list[tuple[str, str, bool]]] = field(
        default_factory=dict[str, list[tuple[str, str, bool]]]
    )
    """Collection -> ``(child collection, foreign key, required)``."""
    address: set[str] = field(default_factory=set[str])
    """Parameters that say where, not what."""
    session: StateField | None = None
    """The field of the session singleton that names the current user, once something needs it."""

    def by_name(self, collection: str) -> Entity:
        """The entity of a collection."""
        return next(e for e in self.entities.values() if e.name == collection)


@dataclass
class Parts:
    """Semantics under construction."""

    key: ParamBinding | None = None
    scope: list[ParamBinding] = field(default_factory=list[ParamBinding])
    filters: list[ParamBinding] = field(default_factory=list[ParamBinding])
    writes: list[ParamBinding] = field(default_factory=list[ParamBinding])
    ignored: list[str] = field(default_factory=list[str])
    paging: list[str] = field(default_factory=list[str])
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    rules: list[Precondition] = field(default_factory=list[Precondition])
    assumptions: list[str] = field(default_factory=list[str])
    ordering: Ordering | None = None
    where: dict[str, Any] = field(default_factory=dict[str, Any])
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    where_session: dict[str, str] = field(default_factory=dict[str, str])


def common(target: Target, entity: Entity, world: World, parts: Parts, **more: Any) -> ToolSemantics:
    many = bool(more.get("many", False))
    verb = more["verb"]
    result, outputs, notes = result_of(target, entity, world.entities, verb=verb, many=many)
    if verb == "create":  # what no argument, default or session fills is not there to be shown
        filled = {b.field for b in (*parts.scope, *parts.writes)} | {entity.key, *parts.constants}
        filled |= {*more.get("constants", {}), *more.get("from_session", {})}
        filled |= {n for n, f in entity.fields.items() if f.policy == "exempt"}
        filled |= {n for n, f in entity.fields.items() if f.required and f.default is not None}
        outputs = tuple(o for o in outputs if o.collection != entity.name or o.field in filled)
    if "result" not in more:
        more["result"] = result
        more["outputs"] = outputs
    return ToolSemantics(
        tool=target.tool.name,
        collection=entity.name,
        key=parts.key,
        scope=tuple(parts.scope),
        filters=tuple(parts.filters),
        writes=tuple(parts.writes),
        ignored=tuple(parts.ignored),
        paging=tuple(parts.paging),
        defaults=parts.defaults,
        preconditions=tuple(parts.rules),
        ordering=parts.ordering,
        where=parts.where,
        where_session=parts.where_session,
        constants={**parts.constants, **more.pop("constants", {})},
        assumptions=(*parts.assumptions, *notes),
        **more,
    )


def must_exist(owner: Entity | Collection, param: str, pointer: str) -> Precondition:
    """A call is refused where ``param`` is the key of no record; ``pointer``: where the document has it."""
    return Precondition(
        kind="exists",
        collection=owner.name,
        field=owner.key,
        message=f"No {owner.entity} {{{param}}}.",
        provenance=pointer,
    )


def param_of(target: Target, name: str) -> FieldSpec | None:
    return next((p for p in target.tool.params if p.name == name), None)


def free_params(target: Target, parts: Parts) -> list[FieldSpec]:
    """Parameters that are not yet explained."""
    used = {b.param.split(".")[0] for b in (*parts.scope, *parts.filters, *parts.writes)} | set(parts.ignored)
    if parts.key is not None:
        used.add(parts.key.param)
    used |= {param for _, param in target.parents}
    return [p for p in target.tool.params if p.name not in used and p.name not in parts.paging]


def drop_optional(target: Target, parts: Parts, why: str) -> None:
    for spec in free_params(target, parts):
        if spec.required:
            raise Refused(
                f"its required parameter {spec.name!r} has no meaning that the document's schemas define"
            )
        parts.ignored.append(spec.name)
        parts.assumptions.append(f"{spec.name} is not offered: {why}")
