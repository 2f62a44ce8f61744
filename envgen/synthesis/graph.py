"""The tool graph (METHOD.md §2): an edge where an output of one tool can be an input of another."""

from __future__ import annotations

from collections import defaultdict

from envgen.synthesis.schema import field_of
from envgen.types import EnvironmentDraft, ParamBinding, StateSchema, ToolEdge, ToolGraph, ToolSemantics


def build_graph(draft: EnvironmentDraft) -> ToolGraph:
    """Edges a→b for every output binding of a whose value fits a key, scope or reference parameter of b.

    A value fits when both name the same key: the key field of one collection, or a foreign key into it.
    Texts, numbers and
    dates do not make edges: an equal type is no data flow. Nodes and edges are in document order; a tool may
    feed itself.
    """
    schema = draft.state_schema
    sources: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for tool in draft.semantics:
        if tool.verb == "delete":
            continue  # the key it answers with names a record that is gone
        seen: set[str] = set()
        for output in tool.outputs:
            keyed = keyed_collection(schema, output.collection, output.field)
            if keyed and keyed not in seen:
                seen.add(keyed)
                sources[keyed].append((tool.tool, output.path))
    edges: list[ToolEdge] = []
    for source in draft.semantics:
        for target in draft.semantics:
            for binding in _inputs(target):
                keyed = keyed_collection(schema, binding.collection, binding.field)
                for name, path in sources[keyed] if keyed else ():
                    if name == source.tool:
                        edges.append(
                            ToolEdge(
                                source=name,
                                target=target.tool,
                                output_path=path,
                                param=binding.param,
                                collection=keyed,
                                field=schema.collection(keyed).key,
                            )
                        )
    return ToolGraph(nodes=tuple(tool.tool for tool in draft.semantics), edges=tuple(edges))


def keyed_collection(schema: StateSchema, collection: str, field: str) -> str:
    """The collection whose key a field holds: its own, or the one it references; empty for plain fields."""
    owner = schema.collection(collection)
    item = field_of(owner, field)
    if owner.key == field and not owner.singleton:
        return collection if item is None or item.type not in ("date", "datetime", "time") else ""
    return item.references if item is not None else ""


def _inputs(tool: ToolSemantics) -> list[ParamBinding]:
    key = [tool.key] if tool.key is not None else []
    result: list[ParamBinding] = []
    for binding in (*key, *tool.scope, *tool.filters, *tool.writes):
        if binding.op in ("ge", "le"):
            continue
        if (
            tool.verb == "create"
            and binding.field
            and binding in tool.writes
            and _names_itself(tool, binding)
        ):
            continue
        result.append(binding)
    return result


def _names_itself(tool: ToolSemantics, binding: ParamBinding) -> bool:
    """The key a caller chooses for a new record is no look-up."""
    return tool.key is not None and binding.field == tool.key.field
