"""Fields that verbs imply, and relations between collections."""

from __future__ import annotations

import re

from envgen.proposers.rules import fields as fieldrules
from envgen.proposers.rules.entity import (
    Entity,
    entity_of_param,
    key_type,
    parent_field,
)
from envgen.proposers.rules.targets import Target
from envgen.proposers.rules.words import STATE_VERBS, split_words
from envgen.types import StateField


def required_fields(entity: Entity, own: list[Target]) -> None:
    """A field is required when results promise it, or when every tool that creates a record gives it a
    value; a list
    that must be filtered by a field needs it too. Required fields that a creation may leave out get a
    default."""
    creators = [t for t in own if t.verb == "create"]
    needed = {
        p.name for t in own if t.verb in ("list", "search") for p in t.tool.params if p.required and p.enum
    }
    for name, item in list(entity.fields.items()):
        if name in (entity.key, entity.acting_user):
            continue
        given = [next((p for p in t.tool.params if p.name == name), None) for t in creators]
        always = bool(creators) and all(
            p is not None and (p.required or p.default is not None) for p in given
        )
        sure = bool(creators) and all(p is not None and p.required for p in given)
        filtered = any(name.lower() in (n.lower(), (entity.words[-1] + n).lower()) for n in needed) and bool(
            item.enum
        )
        update: dict[str, object] = {}
        if always or filtered:
            update["required"] = True
        if filtered and not item.required and not always:
            update["provenance"] = (
                f"{item.provenance} (assumption: {item.enum[0]!r} at first, since lists ask for it)"
            )
        if (
            (item.required or update)
            and item.default is None
            and not sure
            and not item.references
            and creators
        ):
            update["default"] = fieldrules.zero_of(item.type, item.enum)
        if update:
            entity.fields[name] = item.model_copy(update=update)


def implied_fields(entity: Entity, own: list[Target]) -> None:
    """Fields that verbs imply: ``toggle_task_completion`` needs ``completed``, ``enable_task`` needs
    ``enabled``."""
    for target in own:
        if target.verb == "toggle":
            name = toggle_field(target)
            entity.put(_boolean(name, f"assumption: {target.tool.name} flips it"))
        elif target.verb == "set":
            _state_field(entity, target, own)
    if entity.variants:
        entity.put(
            StateField(
                name="type",
                type="enum",
                enum=tuple(dict.fromkeys(entity.variants)),
                required=True,
                default=entity.variants[0],
                description=f"Kind of {entity.entity}",
                provenance="assumption: one value per tool that creates one",
            )
        )
    if entity.singleton and not entity.key:
        entity.key = "id"
        entity.generated = False
        entity.put(
            StateField(
                name="id", type="string", required=True, default="self", provenance="assumption: one record"
            )
        )


def _boolean(name: str, provenance: str) -> StateField:
    return StateField(name=name, type="boolean", required=True, default=False, provenance=provenance)


def toggle_field(target: Target) -> str:
    """The boolean field a toggle flips."""
    words = "_".join(target.after)
    known = {"completion": "completed", "complete": "completed", "status": "enabled", "visibility": "visible"}
    return known.get(words, words or "enabled")


def state_change(entity: Entity, word: str) -> tuple[str, object]:
    """The field a state verb sets on this entity, and the value: a declared enum value where there is one."""
    name, value = STATE_VERBS[word]
    if isinstance(value, str):
        for candidate in ("status", "state"):
            item = entity.fields.get(candidate)
            if item is not None:
                match = next(
                    (v for v in item.enum if str(v).lower() in (value, value.replace("ll", "l"))), None
                )
                return candidate, match if match is not None else value
    return name, value


def _state_field(entity: Entity, target: Target, own: list[Target]) -> None:
    name, value = state_change(entity, target.word)
    if isinstance(value, bool):
        if name not in entity.fields:
            entity.put(_boolean(name, f"assumption: {target.tool.name} sets it"))
        return
    values = list(dict.fromkeys(str(state_change(entity, t.word)[1]) for t in own if t.verb == "set"))
    item = entity.fields.get(name)
    known = [str(v) for v in item.enum] if item is not None else []
    start = [] if known else [_first_state(entity, own)]
    enum = tuple(dict.fromkeys([*known, *start, *values]))
    if item is not None:
        entity.fields[name] = item.model_copy(
            update={"type": "enum", "enum": enum, "required": True, "default": enum[0]}
        )
    else:
        entity.put(
            StateField(
                name=name,
                type="enum",
                enum=enum,
                required=True,
                default=enum[0],
                provenance=f"assumption: {target.tool.name} sets it; new records start as {enum[0]!r}",
            )
        )


def _first_state(entity: Entity, own: list[Target]) -> str:
    """What the document calls a record that nothing happened to yet: ``pending`` in ``Cancel a pending
    order``."""
    for target in own:
        match = re.search(
            rf"\b(pending|open|active|draft|new)\s+{re.escape(entity.entity)}",
            target.tool.description.lower(),
        )
        if match is not None and match.group(1) != "new":
            return match.group(1)
    return "open"


def relations(entity: Entity, everyone: dict[tuple[str, ...], Entity]) -> None:
    """Foreign keys by name: ``task_list_id`` is the key of task lists."""
    for name, item in list(entity.fields.items()):
        own_key = name == entity.key and entity.generated
        if own_key or item.references or item.type not in ("string", "integer", "id", "number"):
            continue
        other = entity_of_param(name, everyone) or _by_natural_key(name, item, everyone)
        if other is not None and other is not entity:
            entity.fields[name] = item.model_copy(update={"references": other.name, "type": key_type(other)})


def _by_natural_key(name: str, item: StateField, everyone: dict[tuple[str, ...], Entity]) -> Entity | None:
    """``symbol: Symbol of the stock to trade`` names a stock where stocks are keyed by their symbol."""
    said = set(split_words(item.description))
    found = [
        e
        for e in everyone.values()
        if not e.generated
        and not e.singleton
        and e.key not in ("name", "id", "date")
        and (name == e.key or name == "_".join(e.words))
        and set(e.words) <= said
        and e.key in said
    ]
    return found[0] if len(found) == 1 else None


def acting_user(entity: Entity, own: list[Target]) -> None:
    """``created_by``, when a list shows what the current user made; ``owner``, when a creation names none."""
    creators = [t for t in own if t.verb == "create"]
    said = {p.name for t in creators for p in t.tool.params}
    if creators and "owner" in entity.fields and entity.fields["owner"].required and "owner" not in said:
        entity.acting_user = "owner"
        return
    asked = any(t.verb == "list" and t.before in (("user",), ("my",)) for t in own)
    item = entity.fields.get("created_by")
    if asked and item is not None and not item.references and "created_by" not in entity.offered:
        entity.acting_user = "created_by"
        entity.fields["created_by"] = item.model_copy(update={"required": True})


def parents(everyone: dict[tuple[str, ...], Entity], target: Target) -> None:
    """Foreign keys from nested paths, and from ``*_id`` parameters of create and list tools."""
    child = everyone[target.entity]
    for words, param in target.parents[-1:]:
        parent = everyone[words]
        name = parent_field(child, parent, param)
        if name not in child.fields:
            child.put(
                StateField(
                    name=name,
                    type="integer" if key_type(parent) == "integer" else "id",
                    required=True,
                    references=parent.name,
                    description=f"{parent.entity} it belongs to",
                    provenance=target.tool.pointer or "assumption: nesting of the path",
                )
            )
