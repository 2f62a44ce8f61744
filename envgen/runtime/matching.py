"""Matching of minted records between two end states, up to renaming of their keys.

Two states with new records are equal when a bijection of the new keys makes all records equal. That is an
isomorphism of small coloured graphs: colours start from content without references, are refined by who
refers to whom until they stand still, and ties are broken by trying (individualise and refine, with
backtracking), so the answer is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from envgen.runtime.canonical import Canonical, refs_in, substitute

Node = tuple[str, str]
"""(collection, key)."""
Graph = tuple[dict[Node, Canonical], dict[Node, Canonical]]
"""Minted records, and the other records (which keep their names) that may refer to them."""


def _shape(record: Canonical, colours: dict[Node, Any]) -> tuple[Any, ...]:
    return tuple(sorted(((k, substitute(v, colours)) for k, v in record.items()), key=repr))


class _Colours:
    """Colours of the nodes of two graphs from one palette: same colour, same look so far."""

    def __init__(self, left: Graph, right: Graph) -> None:
        self.graphs = (left, right)

    def start(self) -> tuple[dict[Node, Any], dict[Node, Any]]:
        return tuple(dict.fromkeys(nodes, 0) for nodes, _ in self.graphs)  # type: ignore[return-value]

    def refine(
        self, colours: tuple[dict[Node, Any], dict[Node, Any]]
    ) -> tuple[dict[Node, Any], dict[Node, Any]] | None:
        """Refined until stable; None when the two sides no longer have the same colours equally often."""
        classes = 0
        while True:
            palette: dict[Any, int] = {}
            refined = tuple(
                self._round(graph, colour, palette)
                for graph, colour in zip(self.graphs, colours, strict=True)
            )
            left, right = refined
            if Counter(left.values()) != Counter(right.values()):
                return None
            if len(palette) == classes:
                return left, right
            classes = len(palette)
            colours = (left, right)

    def _round(self, graph: Graph, colours: dict[Node, Any], palette: dict[Any, int]) -> dict[Node, Any]:
        nodes, others = graph
        incoming: dict[Node, list[Any]] = {node: [] for node in nodes}
        for node, record in nodes.items():
            for name, value in record.items():
                for ref in refs_in(value):
                    target = (ref.collection, ref.key)
                    if target != node:
                        incoming[target].append(("new", colours[node], name))
        for place, record in others.items():
            for name, value in record.items():
                for ref in refs_in(value):
                    incoming[ref.collection, ref.key].append(("old", place, name))
        out: dict[Node, Any] = {}
        for node, record in nodes.items():
            look = (node[0], colours[node], _shape(record, colours), tuple(sorted(incoming[node], key=repr)))
            out[node] = palette.setdefault(look, len(palette))
        return out


def refined_shapes(graph: Graph) -> tuple[list[Any], dict[Node, Any]]:
    """What refinement sees of one graph: a shape for each minted record (in no order of meaning), and one for
    each other record; none of them holds the name of a minted record. Equal graphs have equal shapes.

    A shape unfolds the neighbourhood as far as there are minted records, which is as far as it can matter.
    """
    nodes, others = graph
    looks: dict[Node, Any] = {node: node[0] for node in nodes}
    for _ in range(len(nodes)):
        incoming: dict[Node, list[Any]] = {node: [] for node in nodes}
        for owner, records in (("new", nodes), ("old", others)):
            for place, record in records.items():
                for name, value in record.items():
                    for ref in refs_in(value):
                        target = (ref.collection, ref.key)
                        if target != place:
                            incoming[target].append((owner, looks[place] if owner == "new" else place, name))
        refined = {
            node: _digest((node[0], looks[node], _shape(record, looks), sorted(incoming[node], key=repr)))
            for node, record in nodes.items()
        }
        if len(set(refined.values())) == len(set(looks.values())):
            looks = refined
            break
        looks = refined
    return list(looks.values()), {place: _shape(record, looks) for place, record in others.items()}


def _digest(value: Any) -> str:
    return blake2b(repr(value).encode(), digest_size=16).hexdigest()


def _verify(left: Graph, right: Graph, names: dict[Node, Node]) -> bool:
    """Exactly equal under this renaming, in the minted records and in all the others."""
    keys = {mine: theirs[1] for mine, theirs in names.items()}

    def renamed(record: Canonical) -> Canonical:
        return {k: substitute(v, keys) for k, v in record.items()}

    return all(renamed(record) == right[0][names[node]] for node, record in left[0].items()) and all(
        renamed(record) == right[1].get(place) for place, record in left[1].items()
    )


def _only_choice(left: Graph, right: Graph) -> dict[Node, Node] | None:
    """The renaming when each collection has one new record at most: the common case, without any search."""
    mine = {node[0]: node for node in left[0]}
    theirs = {node[0]: node for node in right[0]}
    if len(mine) < len(left[0]) or len(theirs) < len(right[0]) or mine.keys() != theirs.keys():
        return None
    return {node: theirs[collection] for collection, node in mine.items()}


def match_nodes(left: Graph, right: Graph) -> dict[Node, Node] | None:
    """A renaming of the minted records of ``left`` under which it equals ``right``, or None. Exact."""
    if left[1].keys() != right[1].keys():
        return None
    forced = _only_choice(left, right)
    if forced is not None:
        return forced if _verify(left, right, forced) else None
    palette = _Colours(left, right)
    first = palette.refine(palette.start())
    return None if first is None else _search(palette, first)


def _search(palette: _Colours, colours: tuple[dict[Node, Any], dict[Node, Any]]) -> dict[Node, Node] | None:
    mine, theirs = colours
    members: dict[Any, list[Node]] = {}
    for node, colour in theirs.items():
        members.setdefault(colour, []).append(node)
    tied = [c for c, nodes in members.items() if len(nodes) > 1]
    if not tied:
        names = {node: members[colour][0] for node, colour in mine.items()}
        return names if _verify(*palette.graphs, names) else None
    colour = min(tied, key=lambda c: (len(members[c]), c))
    node = next(n for n, c in mine.items() if c == colour)
    for candidate in members[colour]:
        # A colour of their own for these two, then look what follows.
        refined = palette.refine(({**mine, node: ("=", 0)}, {**theirs, candidate: ("=", 0)}))
        if refined is not None:
            found = _search(palette, refined)
            if found is not None:
                return found
    return None


def pair_leftovers(
    left: Graph, right: Graph, labels: Mapping[str, str]
) -> list[tuple[Node | None, Node | None]]:
    """A pairing for explanations when there is no renaming: most similar first, the rest alone. ``labels``
    names the field of each collection that people know a record by: it decides between equals. Deterministic.
    """
    exact = match_nodes(left, right)
    if exact is not None:
        return list(exact.items())
    mine, theirs = list(left[0]), list(right[0])
    blank_left = dict.fromkeys(mine, "")
    blank_right = dict.fromkeys(theirs, "")
    scored: list[tuple[int, int, int]] = []
    for i, a in enumerate(mine):
        shape_a = {k: substitute(v, blank_left) for k, v in left[0][a].items()}
        for j, b in enumerate(theirs):
            if a[0] == b[0]:
                shape_b = {k: substitute(v, blank_right) for k, v in right[0][b].items()}
                differing = [k for k in {**shape_a, **shape_b} if shape_a.get(k) != shape_b.get(k)]
                scored.append((2 * len(differing) + (labels[a[0]] in differing), i, j))
    pairs: list[tuple[Node | None, Node | None]] = []
    used_left: set[int] = set()
    used_right: set[int] = set()
    for _, i, j in sorted(scored):
        if i not in used_left and j not in used_right:
            used_left.add(i)
            used_right.add(j)
            pairs.append((mine[i], theirs[j]))
    pairs += [(node, None) for i, node in enumerate(mine) if i not in used_left]
    pairs += [(None, node) for j, node in enumerate(theirs) if j not in used_right]
    return pairs
