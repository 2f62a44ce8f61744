"""The JSON result of a tool: from the document's response schema, or the record itself; and what can be read
out of it."""

from __future__ import annotations

from typing import Any

from envgen.proposers.rules.entity import Entity, is_alias, is_status_text, referenced, unwrap
from envgen.proposers.rules.kinds import WHOLE, scalar_list
from envgen.proposers.rules.targets import Target
from envgen.proposers.rules.words import split_words
from envgen.synthesis.schema import paging_kind
from envgen.types import FieldSpec, OutputBinding, ResultNode

Entities = dict[tuple[str, ...], Entity]
LISTED = "the result schema shows one record, the description speaks of several: the result is a list of it"
Result = tuple[ResultNode | None, tuple[OutputBinding, ...], list[str]]


def result_of(target: Target, entity: Entity, everyone: Entities, *, verb: str, many: bool) -> Result:
    """Result shape, output bindings, and assumptions about properties the state cannot fill."""
    notes: list[str] = []
    if verb == "aggregate":
        return _stats(entity, everyone)
    if verb == "delete" and target.tool.output is not None:
        told = target.tool.output.properties
        if told and all(is_status_text(p) for p in told):
            return _object(target.tool.output, entity, everyone, target, notes), (), notes
    if verb == "delete":
        binding = OutputBinding(path="deleted", collection=entity.name, field=entity.key)
        return None, (binding,), notes
    if verb == "count":
        return None, (), notes
    output = target.tool.output
    if output is None or (not output.properties and output.items is None and output.format != "binary"):
        shown = (
            f"the {entity.entity} as other tools show it" if entity.record is not None else "the whole record"
        )
        notes.append(f"no result schema: the result is {shown}{', in a list' if many else ''}")
    plain = scalar_list(output)
    if plain is not None and verb in ("list", "search", "create") and not entity.variants:
        return _plain_values(plain, entity, verb)
    if target.part and output is not None and verb == "get":
        return _part(target, entity)
    wrapper, record, listed = unwrap(output, entity.words)
    if many and output is not None and output.properties and not listed:
        notes.append(LISTED)
    if output is None or record is None or not record.properties or listed != many:
        if output is not None and not many and output.properties:
            node = _object(output, entity, everyone, target, notes)
            if node.children:
                return node, _outputs(node, entity, everyone, ""), notes
        base = "[]." if many else ""
        return None, _record_outputs(entity, base), notes
    view = ResultNode(
        kind="view",
        name=wrapper,
        collection=entity.name,
        many=many,
        children=_children(record, entity, everyone, target, notes),
    )
    if not view.children:
        return None, _record_outputs(entity, "[]." if many else ""), notes
    if not wrapper:
        return view, _outputs(view, entity, everyone, ""), notes
    children: list[ResultNode] = []
    for prop in output.properties:
        if prop.name == wrapper:
            children.append(view)
        else:
            node = _beside(prop, notes)
            if node is not None:
                children.append(node)
    node = ResultNode(kind="object", children=tuple(children))
    return node, _outputs(node, entity, everyone, ""), notes


def _plain_values(name: str, entity: Entity, verb: str) -> Result:
    """A list of keys: of the records found, or of all there are once one was added."""
    kind = "all" if verb == "create" else "values"
    node = ResultNode(kind=kind, name=name, collection=entity.name, field=entity.key)
    binding = OutputBinding(path=f"{name}[]", collection=entity.name, field=entity.key)
    notes = [f"the values listed are the {entity.key} of each {entity.entity}"]
    return (ResultNode(kind="object", children=(node,)) if name else node), (binding,), notes


def _part(target: Target, entity: Entity) -> Result:
    """One field of a record under the name that the result schema gives it."""
    name, field = next((n, f) for n, f in target.part.items() if n != "words")
    output = target.tool.output
    if field == WHOLE and output is not None:
        keys = [p.name for p in output.properties if split_words(p.name) in (["sid"], ["id"])]
        nodes = [ResultNode(kind="field", name=n, field=entity.key) for n in keys]
        shown = [OutputBinding(path=n, collection=entity.name, field=entity.key) for n in keys]
        shown += [OutputBinding(path=f"{name}.{f}", collection=entity.name, field=f) for f in entity.fields]
        left = [p.name for p in output.properties if p.name not in (*keys, name)]
        notes = [
            f"{name} holds the {entity.entity}, of which there is one at most under each key",
            *(f"{n} is left out of the result" for n in left),
        ]
        whole = ResultNode(kind="record", name=name)
        return ResultNode(kind="object", children=(*nodes, whole)), tuple(shown), notes
    node = ResultNode(kind="field", name=name, field=field)
    binding = OutputBinding(path=name, collection=entity.name, field=field)
    notes = [f"{name} is what {field} was set to"]
    return ResultNode(kind="object", children=(node,)), (binding,), notes


def _record_outputs(entity: Entity, base: str) -> tuple[OutputBinding, ...]:
    return tuple(
        OutputBinding(path=f"{base}{name}", collection=entity.name, field=name) for name in entity.fields
    )


def _children(
    record: FieldSpec, entity: Entity, everyone: Entities, target: Target, notes: list[str]
) -> tuple[ResultNode, ...]:
    nodes: list[ResultNode] = []
    for prop in record.properties:
        item = entity.fields.get(prop.name)
        other = referenced(prop, entity, everyone)
        if other is not None and item is not None and item.references == other.name:
            inner = _children(prop, other, everyone, target, notes)
            nodes.append(
                ResultNode(
                    kind="follow", name=prop.name, collection=other.name, field=prop.name, children=inner
                )
            )
        elif is_alias(prop, entity):
            nodes.append(ResultNode(kind="field", name=prop.name, field=entity.key))
        elif is_status_text(prop):
            value: Any = (
                True if prop.type == "boolean" else f"{entity.entity.capitalize()} {_past(target.word)}."
            )
            notes.append(f"{prop.name} of the result is a fixed text: {prop.description.strip()[:60]}")
            nodes.append(ResultNode(kind="constant", name=prop.name, value=value))
        elif item is not None:
            nodes.append(ResultNode(kind="field", name=prop.name, field=prop.name))
        elif prop.name.startswith("new_") and prop.name.removeprefix("new_") in entity.fields:
            nodes.append(ResultNode(kind="field", name=prop.name, field=prop.name.removeprefix("new_")))
        else:
            node = _made(prop, entity, target, notes)
            if node is not None:
                nodes.append(node)
    # Fields keep the reading order of the record itself; what is no field comes before label and key.
    return tuple(
        sorted(nodes, key=lambda node: entity.reading_order(node.field) if node.kind == "field" else 0)
    )


def _past(word: str) -> str:
    """Past participle of a regular verb."""
    if word.endswith("e"):
        return word + "d"
    return {"set": "set", "put": "put", "buy": "bought", "withdraw": "withdrawn", "": "done"}.get(
        word, word + "ed"
    )


def _made(prop: FieldSpec, entity: Entity, target: Target, notes: list[str]) -> ResultNode | None:
    """A property that is no field of the record: a fixed confirmation text, a code made of the key, else
    left out."""
    words = split_words(prop.name)
    if words == ["message"] or words == ["success"]:
        value: Any = True if prop.type == "boolean" else f"{entity.entity.capitalize()} created."
        notes.append(f"{prop.name} of the result is a fixed text")
        return ResultNode(kind="constant", name=prop.name, value=value)
    if words[-1:] == ["code"] and prop.type == "string":
        notes.append(f"{prop.name} of the result is made of the key")
        return ResultNode(kind="code", name=prop.name, value=entity.words[-1])
    if prop.required:
        notes.append(f"{prop.name} is missing in the result: the state does not hold it")
    return None


def _beside(prop: FieldSpec, notes: list[str]) -> ResultNode | None:
    """A property beside the wrapped records: counts and paging numbers."""
    flat = prop.name.lower().replace("_", "")
    if prop.type == "object" and prop.properties:
        inner = [n for p in prop.properties if (n := _beside(p, notes)) is not None]
        return ResultNode(kind="object", name=prop.name, children=tuple(inner)) if inner else None
    if flat in ("itemcount", "totalcount", "total", "totalitems") or (
        flat.endswith("count") and "page" not in flat
    ):
        return ResultNode(kind="count", name=prop.name)
    if flat in ("pagecount", "totalpages", "pages"):
        return ResultNode(kind="page", name=prop.name, field="pages")
    kind = paging_kind(prop.name)
    if kind in ("page", "size"):
        return ResultNode(kind="page", name=prop.name, field=kind)
    notes.append(f"{prop.name} is left out of the result: the state does not hold it")
    return None


def _object(
    output: FieldSpec, entity: Entity, everyone: Entities, target: Target, notes: list[str]
) -> ResultNode:
    """A flat result object made of fields of the record acted on (``{"status": …}``)."""
    return ResultNode(
        kind="view",
        collection=entity.name,
        children=tuple(n for n in _children(output, entity, everyone, target, notes)),
    )


def _outputs(node: ResultNode, entity: Entity, everyone: Entities, base: str) -> tuple[OutputBinding, ...]:
    """Bindings of every field that a result shows, with its path."""
    path = f"{base}.{node.name}" if base and node.name else (node.name or base)
    match node.kind:
        case "field":
            return (OutputBinding(path=path, collection=entity.name, field=node.field),)
        case "view":
            inner = f"{path}[]" if node.many else path
            return tuple(b for child in node.children for b in _outputs(child, entity, everyone, inner))
        case "object":
            return tuple(b for child in node.children for b in _outputs(child, entity, everyone, path))
        case "follow":
            other = next(e for e in everyone.values() if e.name == node.collection)
            return tuple(b for child in node.children for b in _outputs(child, other, everyone, path))
        case _:
            return ()


def _stats(entity: Entity, everyone: Entities) -> Result:
    """Numbers of records below one record, level by level; done and not done apart where a boolean says
    so."""
    nodes = [ResultNode(kind="field", name=entity.key, field=entity.key)]
    seen = [entity.name]
    frontier = [entity.name]
    while frontier:
        parent = frontier.pop(0)
        for child in everyone.values():
            owned = any(i.references == parent and i.required for i in child.fields.values())
            if owned and child.name not in seen:
                seen.append(child.name)
                frontier.append(child.name)
                nodes.append(ResultNode(kind="children", name=child.name, collection=child.name))
                if "completed" in child.fields:
                    nodes.append(
                        ResultNode(
                            kind="children",
                            name=f"completed_{child.name}",
                            collection=child.name,
                            field="completed",
                        )
                    )
    binding = OutputBinding(path=entity.key, collection=entity.name, field=entity.key)
    return ResultNode(kind="object", children=tuple(nodes)), (binding,), []
