"""Semantics of tools that write: create, update, set a state, delete."""

from __future__ import annotations

import re

from envgen.proposers.rules.entity import (
    Entity,
    flat,
    variant_field,
    writable,
)
from envgen.proposers.rules.parts import (
    Parts,
    Refused,
    World,
    common,
    drop_optional,
    free_params,
    must_exist,
    param_of,
)
from envgen.proposers.rules.relations import state_change
from envgen.proposers.rules.targets import Target, named_params
from envgen.proposers.rules.words import a, split_words
from envgen.types import (
    ParamBinding,
    Precondition,
    StateField,
    ToolSemantics,
)


# ------------------------------------------------------------------------------------------------ writes
def _write_params(target: Target, entity: Entity, world: World, parts: Parts) -> None:
    named = named_params(target)
    for spec in free_params(target, parts):
        if not writable(target, entity, spec) or (named and spec.name not in named):
            if spec.required and spec.name != entity.key:
                raise Refused(
                    f"its required parameter {spec.name!r} is stored in no field of {entity.entity}"
                )
            parts.ignored.append(spec.name)
            why = "the environment makes it" if spec.name == entity.key else "no tool shows or uses it"
            parts.assumptions.append(f"{spec.name} is not offered: {why}")
            continue
        for path, inner in flat(spec, entity):
            name = variant_field(inner.name, entity) or inner.name
            if name not in entity.fields:
                raise Refused(f"its parameter {spec.name!r} is stored in no field of {entity.entity}")
            item = entity.fields[name]
            named_key = target.verb == "create" and name == entity.key
            if named_key and not spec.required:
                parts.assumptions.append(f"{spec.name} must be given: it is the key of a new {entity.entity}")
            needed = named_key or (spec.required and inner.required)
            binding = ParamBinding(param=path, collection=entity.name, field=name, required=needed)
            owned = target.verb == "create" and item.references and item.required and spec.required
            owned = owned and not named_key
            (parts.scope if owned else parts.writes).append(binding)
            if item.references:
                parts.rules.append(must_exist(world.by_name(item.references), path, target.tool.pointer))
            if "unique" in inner.description.lower() and "must" in inner.description.lower():
                parts.rules.append(
                    Precondition(
                        kind="unique",
                        collection=entity.name,
                        field=name,
                        message=f"Another {entity.entity} has {name} {{{path}}}.",
                        provenance=inner.pointer,
                    )
                )
            if target.verb == "create" and spec.default not in (None, "None", "null") and path == spec.name:
                parts.defaults[path] = spec.default


def create_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    if any(p.name == "body" and p.type == "array" for p in target.tool.params):
        raise Refused(
            "it creates several records from one array, which one call of this environment does not do"
        )
    _write_params(target, entity, world, parts)
    written = {b.field for b in (*parts.writes, *parts.scope)}
    if target.before and entity.variants:
        parts.constants["type"] = "_".join(target.before)
    from_session: dict[str, str] = {}
    if entity.acting_user and entity.acting_user not in written:
        from_session[entity.acting_user] = "username"
        parts.assumptions.append(f"{entity.acting_user} of a new {entity.entity} is the one who is logged in")
    for name, item in entity.fields.items():
        if name in written or not item.references or not item.required:
            continue
        owner = world.by_name(item.references)
        if owner.generated:
            raise Refused(
                f"a new {entity.entity} needs {name}, and no parameter says which {owner.entity} it is"
            )
        world.session = StateField(
            name="username",
            type="id",
            required=True,
            references=owner.name,
            description="who is logged in",
            provenance=f"assumption: one {owner.entity} is logged in for the whole conversation",
        )
        from_session[name] = "username"
        parts.assumptions.append(f"{name} of a new {entity.entity} is the one who is logged in")
    if not parts.writes and not from_session and not parts.scope:
        raise Refused(f"it gives a new {entity.entity} no field")
    return common(target, entity, world, parts, verb="create", writes_state=True, from_session=from_session)


def update_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    if entity.singleton:
        _write_params(target, entity, world, parts)
        return common(target, entity, world, parts, verb="update", writes_state=True)
    if parts.key is None:
        spec = param_of(target, entity.key)
        if spec is None:
            raise Refused(f"no parameter says which {entity.entity} it changes")
        parts.key = ParamBinding(param=spec.name, collection=entity.name, field=entity.key, required=True)
        parts.rules.append(must_exist(entity, spec.name, spec.pointer))
        if not spec.required:
            parts.assumptions.append(f"{spec.name} must be given: it says which {entity.entity} is changed")
    _write_params(target, entity, world, parts)
    parts.writes = [b for b in parts.writes if b.field != entity.key]
    if not parts.writes:
        raise Refused("it has no parameter that is stored in a field")
    _only_while(target, entity, parts)
    if target.tool.method == "put":
        parts.assumptions.append("fields that are not given keep their value")
    return common(target, entity, world, parts, verb="update", writes_state=True)


def _only_while(target: Target, entity: Entity, parts: Parts) -> None:
    """``Modify an existing pending order``: refused once the order is in another state."""
    for name in ("status", "state"):
        item = entity.fields.get(name)
        for value in item.enum[:1] if item is not None and item.default in item.enum[:1] else ():
            if re.search(
                rf"\b{re.escape(str(value))}\s+{re.escape(entity.entity)}\b", target.tool.description
            ):
                key = parts.key.param if parts.key is not None else entity.key
                parts.rules.append(
                    Precondition(
                        kind="field_equals",
                        collection=entity.name,
                        field=name,
                        value=value,
                        message=f"{entity.entity.capitalize()} {{{key}}} is not {value}.",
                        provenance=target.tool.pointer,
                    )
                )


def set_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    if parts.key is None:
        raise Refused(f"no parameter says which {entity.entity} it changes")
    name, value = state_change(entity, target.word)
    _write_params(target, entity, world, parts)
    increments: dict[str, int] = {}
    counter = _counter(entity, target.word)
    if counter and isinstance(value, bool):
        increments[counter] = 1 if value else -1
    _only_while(target, entity, parts)
    shown = str(value) if isinstance(value, str) else {"following": "followed"}.get(name, name)
    how = "not" if value is False else "already"
    said = f"{entity.entity.capitalize()} {{{target.key_param}}} is {how} {shown}."
    if target.tool.idempotent is True:
        parts.assumptions.append(
            f"{target.word} of what is so already changes nothing: it is marked idempotent"
        )
    elif "no-op" not in target.tool.description.lower():
        parts.rules.append(
            Precondition(
                kind="field_not_equals",
                collection=entity.name,
                field=name,
                value=value,
                message=said,
                provenance=f"assumption: {target.word} of what is so already is refused",
            )
        )
    return common(
        target,
        entity,
        world,
        parts,
        verb="set",
        constants={name: value},
        increments=increments,
        writes_state=True,
    )


def _counter(entity: Entity, word: str) -> str:
    """``favoritesCount`` goes with ``favorite``."""
    root = word.removeprefix("un")
    for name, item in entity.fields.items():
        words = split_words(name)
        if item.type == "integer" and words[-1:] == ["count"] and words[0].startswith(root.rstrip("e")):
            return name
    return ""


def delete_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    drop_optional(target, parts, "a delete stores nothing")
    cascades: list[str] = []
    frontier = [entity.name]
    while frontier:
        parent = frontier.pop(0)
        for child, foreign, required in world.children.get(parent, []):
            if required and child not in cascades and child != entity.name:
                cascades.append(child)
                frontier.append(child)
            elif not required and parent == entity.name:
                noun = world.by_name(child).entity
                parts.rules.append(
                    Precondition(
                        kind="no_children",
                        collection=child,
                        field=foreign,
                        message=f"{entity.entity.capitalize()} {{{target.key_param}}} still has {a(noun)}.",
                        provenance=f"assumption: {a(entity.entity)} that {a(noun)} names is kept",
                    )
                )
    if cascades:
        nouns = ", ".join(world.by_name(c).entity for c in cascades)
        parts.assumptions.append(f"deleting {a(entity.entity)} deletes what belongs to it: {nouns}")
    return common(target, entity, world, parts, verb="delete", writes_state=True, cascades=tuple(cascades))
