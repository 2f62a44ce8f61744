"""Targets and entities to `ToolSemantics`, or a refusal with its reason."""

from __future__ import annotations

from envgen.proposers.rules.entity import (
    Entity,
    is_credential,
    parent_field,
)
from envgen.proposers.rules.parts import (
    Parts,
    Refused,
    World,
    common,
    must_exist,
    param_of,
)
from envgen.proposers.rules.reads import get_semantics, list_semantics, stats_semantics
from envgen.proposers.rules.relations import toggle_field
from envgen.proposers.rules.special import amount_semantics, lookup_semantics, tally_semantics
from envgen.proposers.rules.targets import Target
from envgen.proposers.rules.writes import create_semantics, delete_semantics, set_semantics, update_semantics
from envgen.types import (
    ParamBinding,
    ToolSemantics,
)


def semantics_of(target: Target, world: World) -> ToolSemantics:
    """The semantics of one tool. Raises Refused with the reason when it would have to be faked."""
    entity = world.entities[target.entity]
    parts = Parts()
    _key_and_parents(target, entity, world, parts)
    match target.verb:
        case "get":
            made = get_semantics(target, entity, world, parts)
        case "list" | "search" | "count":
            made = list_semantics(target, entity, world, parts)
        case "create":
            made = create_semantics(target, entity, world, parts)
        case "update" | "move":
            made = update_semantics(target, entity, world, parts)
        case "set":
            made = set_semantics(target, entity, world, parts)
        case "toggle":
            made = common(
                target,
                entity,
                world,
                parts,
                verb="toggle",
                toggles=toggle_field(target),
                writes_state=True,
            )
        case "delete":
            made = delete_semantics(target, entity, world, parts)
        case "stats":
            made = stats_semantics(target, entity, world, parts)
        case "deposit" | "withdraw":
            made = amount_semantics(target, entity, world, parts)
        case "lookup":
            made = lookup_semantics(target, entity, world, parts)
        case "tally":
            made = tally_semantics(target, entity, world, parts)
        case _:
            raise Refused(f"the verb {target.word!r} has no effect that the document defines")
    return made


# -------------------------------------------------------------------------------------- key and parents
def _key_and_parents(target: Target, entity: Entity, world: World, parts: Parts) -> None:
    if target.key_param and target.verb != "create" and not entity.singleton:
        spec = param_of(target, target.key_param)
        parts.key = ParamBinding(
            param=target.key_param, collection=entity.name, field=entity.key, required=True
        )
        parts.rules.append(must_exist(entity, target.key_param, spec.pointer if spec is not None else ""))
    for words, param in target.parents[-1:]:
        parent = world.entities[words]
        name = parent_field(entity, parent, param)
        parts.scope.append(ParamBinding(param=param, collection=entity.name, field=name, required=True))
        parts.rules.append(must_exist(parent, param, target.tool.pointer))
    for spec in target.tool.params:
        if spec.location in ("header", "cookie"):
            parts.ignored.append(spec.name)
        elif is_credential(spec):
            parts.ignored.append(spec.name)
            parts.assumptions.append(f"{spec.name} is not offered: the caller is signed in already")
        elif (
            spec.name in world.address
            and spec.name in entity.fields
            and spec.name not in (target.key_param, entity.key)
        ):
            item = entity.fields[spec.name]
            parts.scope.append(
                ParamBinding(param=spec.name, collection=entity.name, field=spec.name, required=spec.required)
            )
            if item.references:
                parts.rules.append(must_exist(world.by_name(item.references), spec.name, target.tool.pointer))
