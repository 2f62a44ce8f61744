"""Large documents cut into coherent environments: communities of the tool graph.

Two tools belong together when the output of one can be an input of the other (`envgen.synthesis.graph`) or
when they act on the same collection. Communities are found by greedy modularity (Clauset, Newman and Moore
2004; networkx). What a community cannot do without, such as the list that shows the keys it needs, joins it
too, so that a tool may stand in several environments. A community in which nothing can be looked up and
changed joins the one it is tied to most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx

from envgen.errors import RefusedDocument
from envgen.proposers.rules.propose import check_usable
from envgen.synthesis.graph import build_graph
from envgen.synthesis.schema import field_of
from envgen.synthesis.toolproof.drop import used_schema, without
from envgen.types import EnvironmentDraft, ToolDoc, ToolSemantics

LARGE = 100
"""Tools of a document from which on it is cut unless told otherwise."""
LEAST = 4
"""Tools of a community at least."""


@dataclass(frozen=True)
class Community:
    """One coherent part of a large environment."""

    name: str
    """After the collections it is about: ``issues``."""
    tools: tuple[str, ...]
    """In document order; those that were needed from elsewhere included."""
    shared: tuple[str, ...]
    """The tools among them that joined because others need what they show."""


def tie_graph(draft: EnvironmentDraft) -> nx.Graph[str]:
    """Tools as nodes; the weight of an edge counts data flows, and one for a common collection."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(s.tool for s in draft.semantics)
    weights: Counter[tuple[str, str]] = Counter()
    for edge in build_graph(draft).edges:
        if edge.source != edge.target:
            weights[min(edge.source, edge.target), max(edge.source, edge.target)] += 1
    for index, one in enumerate(draft.semantics):
        for other in draft.semantics[index + 1 :]:
            if one.collection == other.collection:
                weights[min(one.tool, other.tool), max(one.tool, other.tool)] += 1
    graph.add_weighted_edges_from((a, b, weight) for (a, b), weight in sorted(weights.items()))
    return graph


def communities(doc: ToolDoc, draft: EnvironmentDraft) -> tuple[Community, ...]:
    """The communities of a draft, largest first; every implemented tool is in one at least. Deterministic.

    Raises RefusedDocument when not even all tools together can look up and change anything.
    """
    graph = tie_graph(draft)
    found = nx.algorithms.community.greedy_modularity_communities(graph, weight="weight")
    parts = [set(part) for part in sorted(found, key=lambda p: (-len(p), min(p)))]
    parts = _joined(doc, draft, graph, parts)
    order = {s.tool: number for number, s in enumerate(draft.semantics)}
    names = _names(draft, parts)
    made: list[Community] = []
    for part, name in zip(parts, names, strict=True):
        tools = _closed(draft, part)
        made.append(
            Community(
                name=name,
                tools=tuple(sorted(tools, key=order.__getitem__)),
                shared=tuple(sorted(tools - part, key=order.__getitem__)),
            )
        )
    return tuple(sorted(made, key=lambda c: (-len(c.tools), c.name)))


def part_of(doc: ToolDoc, draft: EnvironmentDraft, community: Community) -> EnvironmentDraft:
    """The draft of one community; the tools outside are accounted for as being elsewhere."""
    outside = {
        s.tool: f"it is outside of the community {community.name!r} of this document"
        for s in draft.semantics
        if s.tool not in community.tools
    }
    name = f"{draft.name}_{community.name}"
    return (without(draft, doc, outside) if outside else draft).model_copy(update={"name": name})


def chosen(found: tuple[Community, ...], name: str) -> Community:
    """The community called ``name``. Raises RefusedDocument naming those there are."""
    for community in found:
        if community.name == name:
            return community
    known = ", ".join(f"{c.name} ({len(c.tools)} tools)" for c in found)
    raise RefusedDocument(f"no community {name!r}; expected one of {known}", ())


def _joined(
    doc: ToolDoc, draft: EnvironmentDraft, graph: nx.Graph[str], parts: list[set[str]]
) -> list[set[str]]:
    """Communities that are too small or cannot stand alone join the one they are tied to most; without a tie
    to any they stay what they are."""
    alone: list[set[str]] = []
    while True:
        weak = next(
            (p for p in reversed(parts) if p not in alone and (len(p) < LEAST or not _stands(doc, draft, p))),
            None,
        )
        if weak is None:
            return parts
        others = [p for p in parts if p is not weak]
        lone = weak
        best = max(others, key=lambda p: (_ties(graph, lone, p), -len(p)), default=lone)
        if best is lone or not _ties(graph, lone, best):
            alone.append(weak)
            continue
        best |= weak
        parts = others


def _ties(graph: nx.Graph[str], one: set[str], other: set[str]) -> int:
    return sum(int(data["weight"]) for a, b, data in graph.edges(one, data=True) if a in other or b in other)


def _stands(doc: ToolDoc, draft: EnvironmentDraft, part: set[str]) -> bool:
    kept = tuple(s for s in draft.semantics if s.tool in _closed(draft, part))
    try:
        check_usable(doc, used_schema(draft.state_schema, kept), kept, draft.decisions)
    except RefusedDocument:
        return False
    return True


def _closed(draft: EnvironmentDraft, part: set[str]) -> set[str]:
    """The part with the tools that show the keys it needs, the cheapest first: lists before searches."""
    semantics = {s.tool: s for s in draft.semantics}
    tools = set(part)
    while True:
        shown = {
            o.collection for t in tools for o in semantics[t].outputs if _shows(draft, semantics[t], o.field)
        }
        missing = sorted({c for t in tools for c in _keys_needed(draft, semantics[t])} - shown)
        joined = next((t for c in missing if (t := _lister(draft, semantics, c, tools))), None)
        if joined is None:
            return tools
        tools.add(joined)


def _shows(draft: EnvironmentDraft, sem: ToolSemantics, field: str) -> bool:
    return sem.key is None and sem.many and field == draft.state_schema.collection(sem.collection).key


def _lister(
    draft: EnvironmentDraft, semantics: Mapping[str, ToolSemantics], collection: str, tools: set[str]
) -> str:
    key = draft.state_schema.collection(collection).key
    options = [
        s
        for s in semantics.values()
        if s.many
        and s.collection == collection
        and s.tool not in tools
        and any(o.field == key for o in s.outputs)
    ]
    return min(options, key=lambda s: (s.verb != "list", len(s.scope))).tool if options else ""


def _keys_needed(draft: EnvironmentDraft, sem: ToolSemantics) -> list[str]:
    schema = draft.state_schema
    needed: list[str] = []
    if sem.key is not None and sem.verb != "create" and schema.collection(sem.collection).key_generated:
        needed.append(sem.collection)
    for binding in (*sem.scope, *sem.writes):
        item = field_of(schema.collection(binding.collection), binding.field)
        if binding.required and item is not None and item.references:
            needed.append(item.references)
    return needed


def _names(draft: EnvironmentDraft, parts: list[set[str]]) -> list[str]:
    """After the collection most of its tools act on; a second one tells equals apart."""
    about = {s.tool: s.collection for s in draft.semantics}
    names: list[str] = []
    for part in parts:
        ranked = [c for c, _ in Counter(about[t] for t in sorted(part)).most_common()]
        options = [ranked[0], *(f"{ranked[0]}_{other}" for other in ranked[1:])]
        free = [option for option in options if option not in names]
        names.append(free[0] if free else f"{ranked[0]}_{len(names) + 1}")
    return names
