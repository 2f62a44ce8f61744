"""Collections from targets: keys, fields, labels, relations."""

from __future__ import annotations

from envgen.proposers.rules.entity import (
    Entity,
    address_params,
    flat,
    is_alias,
    is_confirmation,
    is_paging,
    is_status_text,
    referenced,
    unwrap,
    variant_field,
    writable,
)
from envgen.proposers.rules.fields import state_field
from envgen.proposers.rules.kinds import scalar_list
from envgen.proposers.rules.relations import acting_user, implied_fields, parents, relations, required_fields
from envgen.proposers.rules.targets import Target, named_params
from envgen.proposers.rules.words import RUN, id_stem, plural, split_words
from envgen.types import FieldSpec, StateField


def build_entities(targets: list[Target]) -> dict[tuple[str, ...], Entity]:
    """All collections that targets without a refusal act on, with keys, fields and relations."""
    live = [t for t in targets if not t.refusal]
    result: dict[tuple[str, ...], Entity] = {}
    for target in live:
        for words in [*(parent for parent, _ in target.parents), target.entity]:
            result.setdefault(words, Entity(words, provenance=target.tool.pointer))
        if target.singleton:
            result[target.entity].singleton = True
    for target in live:
        entity = result[target.entity]
        entity.read_back = entity.read_back or target.verb in ("get", "list", "search")
        if target.verb in ("create", "update", "set"):
            entity.offered |= {p.name for p in target.tool.params}
        _read_output(entity, target)
    for target in targets:  # GET /users/me shows a user, though whose it is no state says
        if target.refusal and target.after in _ONESELF and target.entity in result:
            _read_shown(result[target.entity], target)
    for words, entity in result.items():
        _find_key(entity, [t for t in live if t.entity == words], live)
    for target in live:
        if target.verb == "create" and target.before:
            result[target.entity].variants.append("_".join(target.before))
    for target in live:
        _read_params(result[target.entity], target, result)
    address = address_params(targets)
    for target in live:
        for spec in target.tool.params:
            entity = result[target.entity]
            if spec.name in address and spec.name != entity.key and spec.name != target.key_param:
                entity.put(state_field(spec, required=True))
    for entity in result.values():
        implied_fields(entity, [t for t in live if t.entity == entity.words])
    for entity in result.values():
        relations(entity, result)
    for target in live:
        if target.verb == "create" and target.word in RUN:
            name = "run_at"
            result[target.entity].put(
                StateField(
                    name=name,
                    type="datetime",
                    required=True,
                    policy="exempt",
                    description=f"when {target.tool.name} was called",
                    provenance=f"assumption: {target.tool.name} leaves an entry in the history",
                )
            )
    for target in live:
        parents(result, target)
    for entity in result.values():
        acting_user(entity, [t for t in live if t.entity == entity.words])
        required_fields(entity, [t for t in live if t.entity == entity.words])
    return result


_ONESELF = (("me",), ("self",), ("current",))


def _read_shown(entity: Entity, target: Target) -> None:
    """The record schema from a read of one's own record, when no other tool of the family gives one."""
    _, record, _ = unwrap(target.tool.output, entity.words)
    if entity.record is None and record is not None and record.properties:
        entity.record = record


def _read_output(entity: Entity, target: Target) -> None:
    """Record schema from results of plain reads and writes of the entity itself."""
    if target.verb in ("stats", "count", "history", "run") or (
        target.after and target.verb not in ("set", "list", "search")
    ):
        return
    if target.verb in ("deposit", "withdraw", "lookup", "tally") or target.part:
        return
    if target.verb in ("create", "list", "search") and scalar_list(target.tool.output) is not None:
        return  # a list of plain values: keys of records, no field of one
    _, record, _ = unwrap(target.tool.output, entity.words)
    if record is None or not record.properties:
        return
    if record.ref and target.verb in ("get", "list", "search", "create", "update", "set"):
        entity.refs.add(record.ref)
    if target.verb == "create" and entity.record is not None and not entity.record.truncated:
        return
    known = {p.name for p in entity.record.properties} if entity.record is not None else set[str]()
    if entity.record is None or len({p.name for p in record.properties} - known) > 0:
        extra = [p for p in record.properties if p.name not in known]
        base = entity.record if entity.record is not None else record.model_copy(update={"properties": ()})
        entity.record = base.model_copy(update={"properties": (*base.properties, *extra)})


def _find_key(entity: Entity, own: list[Target], everyone: list[Target]) -> None:
    """The primary key field: from the record schema if it has one, else named as the key parameter."""
    if entity.singleton:
        return
    props = {p.name: p for p in entity.record.properties} if entity.record is not None else {}
    params = [t.key_param for t in own if t.key_param]
    params += [param for t in everyone for parent, param in t.parents if parent == entity.words]
    params += [p.name for t in everyone for p in t.tool.params if id_stem(p.name) == entity.words]
    specs: dict[str, FieldSpec] = {}
    for spec in (p for t in everyone for p in t.tool.params if p.name in params):
        specs.setdefault(spec.name, spec)
    joined, last = "".join(entity.words), entity.words[-1]
    wishes = [*params, "id", "sid", joined + "id", last + "id", joined + "_id"]
    lower = {name.lower().replace("_", ""): name for name in props}
    by_param = next((name for name in params if name in props), "")
    chosen = by_param or next(
        (lower[w.lower().replace("_", "")] for w in wishes if w.lower().replace("_", "") in lower), ""
    )
    if not chosen:
        chosen = params[0] if params else ""
    if not chosen and props:
        first = next((p for p in props.values() if p.required and p.type in ("string", "integer")), None)
        chosen = first.name if first is not None else ""
    if not chosen:
        chosen = "_".join((*entity.words, "id"))
    creators = [t for t in own if t.verb == "create"]
    if creators and id_stem(chosen) is None and chosen not in ("id", "sid") and not props:
        offered_names = [{p.name for p in t.tool.params} for t in creators]
        if not any(chosen in names for names in offered_names) and all(
            "name" in names for names in offered_names
        ):
            chosen = "name"  # create_repository(name) makes what delete_repository(repo) names
    entity.key = chosen
    entity.key_spec = props.get(chosen) or specs.get(params[0] if params else chosen)
    named = any(p.name == chosen and p.required for t in creators for p in t.tool.params)
    wordy = split_words(chosen)[-1:] in (["name"], ["username"], ["symbol"], ["code"], ["login"])
    offered = any(p.name == chosen for t in creators for p in t.tool.params)
    entity.generated = not (named or (wordy and (offered or not creators)) or _natural(entity, creators))
    spec = entity.key_spec
    key_type = "integer" if spec is not None and spec.type in ("integer", "number") else "id"
    natural = state_field(spec).type if spec is not None and not entity.generated else key_type
    entity.put(
        StateField(
            name=chosen,
            type=key_type if entity.generated else natural,
            required=True,
            description=spec.description[:120] if spec is not None else "",
            provenance=spec.pointer
            if spec is not None and spec.pointer
            else f"assumption: key of {entity.entity}",
        )
    )


def _natural(entity: Entity, creators: list[Target]) -> bool:
    """A table nobody creates records of and whose key is no id is keyed by what the document shows (a date,
    a code)."""
    if creators or entity.key_spec is None:
        return False
    words = split_words(entity.key)
    return (
        not (words and words[-1] in {"id", "uuid", "sid", "number", "slug"})
        and entity.key_spec.format != "uuid"
    )


def _read_params(entity: Entity, target: Target, everyone: dict[tuple[str, ...], Entity]) -> None:
    record = entity.record
    if record is not None:
        for prop in record.properties:
            if (
                prop.name == entity.key
                or is_confirmation(prop, entity)
                or is_alias(prop, entity)
                or is_status_text(prop)
            ):
                continue
            if "password" in split_words(prop.name):
                continue
            if not _is_reference_object(prop, entity, everyone):
                entity.put(state_field(prop, required=prop.required))
    if record is not None and target.verb in ("list", "search", "lookup"):
        for spec in target.tool.params:
            words = split_words(spec.name)
            plain = spec.type == "string" and spec.required and not spec.enum and id_stem(spec.name) is None
            if (
                plain
                and spec.name not in entity.fields
                and words == _said_by(target, words)
                and not is_paging(spec.name)
            ):
                why = f"{target.tool.name} goes by it, so {entity.entity} records have it"
                noted = f"{spec.pointer} (assumption: {why})"
                entity.put(state_field(spec, required=True).model_copy(update={"provenance": noted}))
    named = named_params(target)
    if target.verb in ("create", "update", "set", "move"):
        for spec in target.tool.params:
            if writable(target, entity, spec) and (not named or spec.name in named):
                for _, inner in flat(spec, entity):
                    if not variant_field(inner.name, entity):
                        entity.put(state_field(inner))


def _said_by(target: Target, words: list[str]) -> list[str]:
    """The words of a parameter when the description speaks of them together with the records it selects."""
    said = set(split_words(target.tool.description))
    about = set(target.entity) | {plural(target.entity[-1])}
    return words if set(words) <= said and about & said else []


def _is_reference_object(prop: FieldSpec, entity: Entity, everyone: dict[tuple[str, ...], Entity]) -> bool:
    """An object property whose schema is another collection's record: stored as a foreign key."""
    target = referenced(prop, entity, everyone)
    if target is None:
        return False
    entity.put(
        StateField(
            name=prop.name,
            type="id",
            required=prop.required,
            references=target.name,
            description=prop.description[:120],
            provenance=prop.pointer or f"assumption: {prop.name} is a {target.entity}",
        )
    )
    return True
