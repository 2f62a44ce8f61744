"""Semantics of tools that read: get, list, search, count, statistics."""

from __future__ import annotations

import re
from typing import Literal

from envgen.proposers.rules.entity import (
    Entity,
    entity_of_param,
    is_cursor,
    is_paging,
)
from envgen.proposers.rules.parts import (
    Parts,
    Refused,
    World,
    common,
    drop_optional,
    free_params,
    must_exist,
)
from envgen.proposers.rules.targets import Target
from envgen.proposers.rules.words import singular, split_words
from envgen.types import (
    FieldSpec,
    Ordering,
    OutputBinding,
    ParamBinding,
    ResultNode,
    StateField,
    ToolSemantics,
)


# ------------------------------------------------------------------------------------------------ reads
def _distinct(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics | None:
    """``GET /tags`` that answers ``{"tags": [text]}``: the values that occur in a list field of another
    collection."""
    output = target.tool.output
    props = output.properties if output is not None else ()
    if (
        len(props) != 1
        or props[0].type != "array"
        or (props[0].items is not None and props[0].items.properties)
    ):
        return None
    word = singular(props[0].name.lower())
    for other in world.entities.values():
        for name, item in other.fields.items():
            if (
                other is entity
                or item.type != "array"
                or split_words(name)[0] not in (word, props[0].name.lower())
            ):
                continue
            node = ResultNode(kind="distinct", name=props[0].name, field=name)
            parts.assumptions.append(f"{props[0].name} are the values that occur in {name} of {other.name}")
            return common(
                target,
                other,
                world,
                parts,
                verb="aggregate",
                result=ResultNode(kind="object", children=(node,)),
                outputs=(OutputBinding(path=f"{props[0].name}[]", collection=other.name, field=name),),
            )
    return None


def get_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    if entity.singleton and not target.tool.params:
        made = _distinct(target, entity, world, parts)
        if made is not None:
            return made
    drop_optional(target, parts, "it only shapes the result")
    return common(target, entity, world, parts, verb="get")


def list_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    specs = {p.name: p for p in target.tool.params}
    for spec in free_params(target, parts):
        if is_cursor(spec.name):
            parts.ignored.append(spec.name)
            parts.assumptions.append(f"{spec.name} is not offered: page cursors are opaque")
        elif is_paging(spec.name) and spec.type in ("integer", "number", "string", "any"):
            parts.paging.append(spec.name)
            if isinstance(spec.default, int) and not isinstance(spec.default, bool):
                parts.defaults[spec.name] = spec.default
    _ordering(entity, specs, parts)
    for spec in free_params(target, parts):
        if parts.ordering is not None and spec.name in (parts.ordering.param, parts.ordering.direction_param):
            continue
        bindings = filter_bindings(spec, entity, world)
        if bindings:
            for binding in bindings:
                if _is_scope(binding, entity) and spec.required:
                    parts.scope.append(binding)
                    parent = world.by_name(entity.fields[binding.field].references)
                    parts.rules.append(must_exist(parent, binding.param, target.tool.pointer))
                else:
                    parts.filters.append(binding)
            if isinstance(spec.default, str | int | float) and spec.default not in ("None", "null"):
                parts.defaults.setdefault(spec.name, spec.default)
            elif "defaults to" in spec.description.lower():
                parts.assumptions.append(f"without {spec.name} nothing is left out")
        elif spec.required:
            raise Refused(
                f"its required parameter {spec.name!r} filters by what no {entity.entity} field holds"
            )
        else:
            parts.ignored.append(spec.name)
            parts.assumptions.append(f"{spec.name} is not offered: no field of {entity.entity} matches it")
    _special_list(target, entity, world, parts)
    _qualified_list(target, entity, parts)
    verb: Literal["list", "search", "count"] = "list"
    if target.verb == "search" or any(b.op == "contains" for b in parts.filters):
        verb = "search"
    if target.verb == "count":
        return common(target, entity, world, parts, verb="count")
    return common(target, entity, world, parts, verb=verb, many=True)


def _special_list(target: Target, entity: Entity, world: World, parts: Parts) -> None:
    """A list behind an action segment (``/articles/feed``) means something only if its description names a
    field."""
    action = [w for w in target.after if w not in ("find", "by", "search", "list", "all")]
    if not action or target.verb != "list" or parts.filters:
        return
    text = target.tool.description.lower()
    if "follow" in text:
        for name, item in entity.fields.items():
            if item.references and "following" in world.by_name(item.references).fields:
                parts.where[f"{name}.following"] = True
                return
    raise Refused(f"what {' '.join(action)!r} selects is not defined by any field of {entity.entity}")


def _qualified_list(target: Target, entity: Entity, parts: Parts) -> None:
    """``list_starred_repositories``: a word before the entity must be a true/false field or a kind of
    record."""
    words = [w for w in target.before if w not in ("open", "scheduled")] if not target.tool.path else []
    if not words:
        return
    name = "_".join(words)
    if name in entity.variants:
        parts.where["type"] = name
    elif name in entity.fields and entity.fields[name].type == "boolean":
        parts.where[name] = True
    elif name in ("user", "my") and "created_by" in entity.fields:
        parts.where_session["created_by"] = "username"
    elif target.verb != "search":
        raise Refused(f"what {' '.join(words)!r} selects is not defined by any field of {entity.entity}")


def _is_scope(binding: ParamBinding, entity: Entity) -> bool:
    item = entity.fields.get(binding.field)
    return item is not None and bool(item.references) and binding.op == "eq"


_START = frozenset({"start", "from", "since", "min", "after", "begin", "minimum"})


_END = frozenset({"end", "to", "until", "max", "before", "maximum", "till"})


def filter_bindings(spec: FieldSpec, entity: Entity, world: World) -> list[ParamBinding]:
    """What a list parameter filters by: an equal field, a bound on a date or number, a word in a text, or
    nothing."""

    def bind(name: str, op: Literal["eq", "contains", "ge", "le", "in"] = "eq") -> ParamBinding:
        return ParamBinding(
            param=spec.name, collection=entity.name, field=name, op=op, required=spec.required
        )

    flat_names = {n.lower().replace("_", ""): n for n in entity.fields}
    wish = spec.name.lower().replace("_", "").replace("-", "")
    last = entity.words[-1]
    direct = next(
        (flat_names[w] for w in (wish, last + wish, "".join(entity.words) + wish) if w in flat_names), None
    )
    if direct is None and wish.endswith("s"):
        direct = flat_names.get(wish[:-1])
    if direct is None:
        direct = flat_names.get(wish + "s") or flat_names.get(wish + "list")
    if direct is not None:
        held = entity.fields[direct].type
        if entity.fields[direct].item_type == "object" and not _named_items(direct, entity):
            return []
        if held == "boolean" and spec.type not in ("boolean", "any"):
            return []
        return [bind(direct, _op(spec, entity.fields[direct]))]
    words = split_words(spec.name)
    if spec.type == "array" and singular(wish) == last and not entity.generated:
        return [bind(entity.key, "in")]  # `stocks: list of stock symbols`
    bound = next((w for w in words if w in _START | _END), None)
    if bound is not None:
        op: Literal["ge", "le"] = "ge" if bound in _START else "le"
        return [bind(name, op) for name in [_bounded_field(words, spec, entity)] if name]
    other = entity_of_param(spec.name, world.entities)
    if other is not None:
        found = [n for n, item in entity.fields.items() if item.references == other.name]
        return [bind(found[0])] if len(found) == 1 else []
    if (
        spec.type in ("string", "any")
        and not spec.enum
        and words[-1] in ("query", "q", "search", "keyword", "text", "by", "term")
    ):
        if words[0] in ("sort", "order", "group"):
            return []
        return [bind(name, "contains") for name in _text_fields(spec, entity)]
    return []


def _named_items(name: str, entity: Entity) -> bool:
    """A list field whose items are objects that have a ``name``."""
    props = entity.record.properties if entity.record is not None else ()
    items = next((p.items for p in props if p.name == name), None)
    return items is not None and any(p.name == "name" for p in items.properties)


def _op(spec: FieldSpec, item: StateField) -> Literal["eq", "contains", "in"]:
    if item.type == "array":
        return "in" if spec.type == "array" else "contains"
    return "in" if spec.type == "array" else "eq"


def _bounded_field(words: list[str], spec: FieldSpec, entity: Entity) -> str:
    rest = [w for w in words if w not in _START | _END]
    names = {n: split_words(n) for n in entity.fields}
    exact = [n for n, w in names.items() if w == rest or "".join(w) == "".join(rest)]
    if exact:
        return exact[0]
    dateish = (
        spec.format in ("date", "date-time") or "date" in rest or "yyyy-mm-dd" in spec.description.lower()
    )
    if dateish:
        dates = [
            n
            for n, i in entity.fields.items()
            if i.type in ("date", "datetime") or i.item_type in ("date", "datetime")
        ]
        return dates[0] if len(dates) == 1 else ""
    numbers = [
        n
        for n, i in entity.fields.items()
        if i.type in ("number", "integer") and rest and rest[-1] in names[n]
    ]
    return numbers[0] if len(numbers) == 1 else ""


def _text_fields(spec: FieldSpec, entity: Entity) -> list[str]:
    """Fields the description names, else the text fields."""
    said = spec.description.lower().replace("_", "")
    texts = [
        n
        for n, i in entity.fields.items()
        if i.type in ("string", "text") and not i.references and n != entity.key
    ]
    named = [n for n in texts if re.search(rf"\b{re.escape(n.lower().replace('_', ''))}\b", said)]
    return named or [n for n in texts if n == entity.label()] or texts[:2]


def _ordering(entity: Entity, specs: dict[str, FieldSpec], parts: Parts) -> None:
    direction = next(
        (n for n, s in specs.items() if {str(v).lower() for v in s.enum} == {"asc", "desc"}), ""
    )  # fmt: skip
    flat_names = {n.lower().replace("_", ""): n for n in entity.fields}
    for name, spec in specs.items():
        words = split_words(name)
        if not spec.enum or name == direction or not words or words[0] not in ("order", "sort"):
            continue
        values: dict[str, str] = {}
        for value in spec.enum:
            wish = str(value).lower().replace("_", "").replace("-", "")
            found = (
                flat_names.get(wish) or flat_names.get(entity.words[-1] + wish) or flat_names.get(wish + "at")
            )
            if found is None and flat_names.get(wish + "id") in entity.fields:
                found = flat_names[wish + "id"]
            if found is not None:
                values[str(value)] = found
        if values:
            parts.ordering = Ordering(param=name, values=values, direction_param=direction)
            missing = [str(v) for v in spec.enum if str(v) not in values]
            if missing:
                parts.assumptions.append(f"{name} has no effect for {', '.join(missing)}: no such field")
            return
    if direction and parts.ordering is None:
        parts.ignored.append(direction)
        parts.assumptions.append(f"{direction} is not offered: nothing to sort by")


def stats_semantics(target: Target, entity: Entity, world: World, parts: Parts) -> ToolSemantics:
    if parts.key is None or not world.children.get(entity.name):
        raise Refused("what it counts is not defined by the document")
    drop_optional(target, parts, "it only shapes the result")
    if target.tool.output is not None and target.tool.output.properties:
        raise Refused("the numbers in its result are not defined by fields of the state")
    parts.assumptions.append(f"statistics are the numbers of records below one {entity.entity}")
    return common(target, entity, world, parts, verb="aggregate")
