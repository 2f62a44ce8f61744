"""One end state as the grader sees it: what really differs from the initial state, in canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envgen.errors import TaskError
from envgen.runtime.canonical import Canonical, NewIds, Rules, canonical_record
from envgen.runtime.matching import Graph, Node, match_nodes
from envgen.runtime.state import Delta, same_json
from envgen.types import Record, StateData


def delta_of(base: StateData, state: StateData) -> Delta:
    """The delta of plain state data against ``base``: what ``State.delta`` gives without a ``State``."""
    inserted: dict[str, dict[str, Record]] = {}
    updated: dict[str, dict[str, Record]] = {}
    deleted: dict[str, tuple[str, ...]] = {}
    empty: dict[str, Record] = {}
    for name in {**base, **state}:
        before, after = base.get(name, empty), state.get(name, empty)
        if same_json(before, after):
            continue
        new = {k: r for k, r in after.items() if k not in before}
        changed = {k: r for k, r in after.items() if k in before and not same_json(r, before[k])}
        gone = tuple(sorted(k for k in before if k not in after))
        if new:
            inserted[name] = new
        if changed:
            updated[name] = changed
        if gone:
            deleted[name] = gone
    return Delta(inserted, updated, deleted)


@dataclass(frozen=True)
class Side:
    """One end state, record by record. Places are ``(collection, key)``; collections that are not graded are
    left out."""

    old: dict[Node, Canonical | None]
    """Records of the base that really differ, or None where one was deleted."""
    raw: dict[Node, Record]
    named: dict[Node, Canonical]
    """New records under keys that the caller chose: compared by key."""
    nodes: dict[Node, Canonical]
    """New records under minted keys: compared up to renaming."""
    new: NewIds

    @property
    def empty(self) -> bool:
        """True when nothing that is graded differs from the initial state."""
        return not (self.old or self.named or self.nodes)

    def graph(self) -> Graph:
        """The minted records, and everything else that may refer to them."""
        others = {place: record for place, record in self.old.items() if record is not None}
        return self.nodes, {**others, **self.named}


def rule_of(rules: Mapping[str, Rules], name: str) -> Rules:
    """The rules of a collection. Raises TaskError when the schema does not know it."""
    found = rules.get(name)
    if found is None:
        raise TaskError(f"the state has a collection {name!r} that the schema does not know: {sorted(rules)}")
    return found


def side_of(delta: Delta, base: StateData, rules: Mapping[str, Rules]) -> Side:
    """The canonical difference of a state from ``base``. Costs what changed."""
    new: NewIds = {
        name: frozenset(records)
        for name, records in delta.inserted.items()
        if records and rule_of(rules, name).renamable and rule_of(rules, name).graded
    }
    side = Side({}, {}, {}, {}, new)
    for name, records in delta.updated.items():
        rule = rule_of(rules, name)
        for key, record in records.items() if rule.graded else ():
            canonical = canonical_record(record, rule, new)
            if canonical != canonical_record(base[name][key], rule, {}):
                side.old[name, key] = canonical
                side.raw[name, key] = record
    for name, keys in delta.deleted.items():
        if rule_of(rules, name).graded:
            side.old.update(((name, key), None) for key in keys)
    for name, records in delta.inserted.items():
        rule = rule_of(rules, name)
        into = side.nodes if rule.renamable else side.named
        for key, record in records.items() if rule.graded else ():
            into[name, key] = canonical_record(record, rule, new)
            side.raw[name, key] = record
    return side


def same_side(got: Side, wanted: Side) -> bool:
    """Equal up to renaming of minted keys. Exact."""
    if (
        got.old.keys() != wanted.old.keys()
        or got.named.keys() != wanted.named.keys()
        or len(got.nodes) != len(wanted.nodes)
    ):
        return False
    if not got.nodes:
        return got.old == wanted.old and got.named == wanted.named
    if {n: len(k) for n, k in got.new.items()} != {n: len(k) for n, k in wanted.new.items()}:
        return False
    if any((record is None) != (wanted.old[place] is None) for place, record in got.old.items()):
        return False
    return match_nodes(got.graph(), wanted.graph()) is not None


Outline = tuple[dict[str, int], frozenset[Node]]
"""New records per collection, and what was deleted: equal in equal states."""


def outline_of(delta: Delta, rules: Mapping[str, Rules]) -> Outline:
    """The outline of a state, made without looking into any record."""
    graded = {name for name in (*delta.inserted, *delta.deleted) if rule_of(rules, name).graded}
    added = {name: len(records) for name, records in delta.inserted.items() if records and name in graded}
    return added, frozenset(
        (name, key) for name, keys in delta.deleted.items() for key in keys if name in graded
    )
