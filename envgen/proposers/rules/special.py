"""Semantics of the kinds that `envgen.proposers.rules.kinds` recognises."""

from __future__ import annotations

import re

from envgen.proposers.rules.entity import Entity
from envgen.proposers.rules.kinds import BALANCES
from envgen.proposers.rules.parts import Parts, Refused, World, common
from envgen.proposers.rules.targets import Target
from envgen.types import Delta, OutputBinding, ParamBinding, ResultNode, ToolSemantics


def amount_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    """A deposit or withdrawal. Raises Refused when no field holds the balance."""
    param = target.tool.params[0]
    field = next(
        (n for n, f in entity.fields.items() if n.lower() in BALANCES and f.type in ("number", "integer")), ""
    )
    if not field:
        raise Refused(f"no field of {entity.entity} holds the amount it changes")
    down = target.verb == "withdraw"
    if down:
        parts.assumptions.append(f"{field} cannot fall below zero")
    parts.assumptions.append(f"{param.name} must be more than zero; only {field} changes")
    change = Delta(
        param=param.name,
        field=field,
        sign=-1 if down else 1,
        message=f"The {field} is less than {{{param.name}}}." if down else "",
    )
    return common(target, entity, world, parts, verb="update", writes_state=True, deltas=(change,))


def lookup_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    """The key of the record that a name belongs to."""
    param, shown = target.tool.params[0], target.tool.output
    assert shown is not None, "kinds gives this verb only to tools with a result schema"
    if param.name not in entity.fields:
        raise Refused(f"its parameter {param.name!r} is no field of {entity.entity}")
    parts.filters.append(
        ParamBinding(param=param.name, collection=entity.name, field=param.name, required=True)
    )
    prop = shown.properties[0]
    otherwise = re.search(r"[\"“']([^\"”']+)[\"”'] if not", prop.description)
    if otherwise is None:
        parts.assumptions.append(f"{prop.name} is null when no {entity.entity} has that {param.name}")
    node = ResultNode(
        kind="first", name=prop.name, field=entity.key, value=otherwise.group(1) if otherwise else None
    )
    return common(
        target,
        entity,
        world,
        parts,
        verb="search",
        result=ResultNode(kind="object", children=(node,)),
        outputs=(OutputBinding(path=prop.name, collection=entity.name, field=entity.key),),
    )


def tally_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    """How many records there are for each value of a field."""
    field = target.part.get("by", "")
    if field not in entity.fields:
        raise Refused(f"what it counts by, {field!r}, is no field of {entity.entity}")
    parts.assumptions.append(f"values of {field} that no {entity.entity} has are left out")
    return common(
        target,
        entity,
        world,
        parts,
        verb="aggregate",
        result=ResultNode(kind="tally", field=field),
        outputs=(),
    )
