"""Why a final state is not an accepted one, and how near it came (DESIGN.md §6).

Minted records are paired by likeness, so that a note with a wrong title is one wrong field, not one note
missing and one too many.

**Partial credit** counts changes: each field of a record that had to change is one, a deletion is one, a new
record is as many as it has fields. ``(made - side effects) / required``, not below 0. A required field with a
wrong value is not made; a change nobody wanted is a side effect, and so is a broken trace constraint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envgen.runtime.canonical import Canonical, Rules, canonical_record, refs_in, substitute
from envgen.runtime.matching import Node, match_nodes, pair_leftovers
from envgen.runtime.sides import Side, rule_of
from envgen.types import FieldDifference, Record, StateData

_MISSING = object()


@dataclass(frozen=True)
class Explanation:
    """How one end state differs from one accepted state."""

    differences: tuple[FieldDifference, ...]
    required: int
    """Changes the accepted state asks for."""
    made: int
    side_effects: int

    def credit(self, answers: int, wrong_answers: int, broken: int) -> float:
        """Partial credit with answer slots (each one a required change) and broken trace constraints; below 1
        for anything that is not a success."""
        required = max(1, self.required + answers)
        made = self.made + max(0, answers - wrong_answers)
        points = made - self.side_effects - broken - max(0, wrong_answers - answers)
        return max(0.0, min(points, required - 1) / required)


@dataclass(frozen=True)
class _Pair:
    """A record here and the one it is held against; None where there is none."""

    place: Node
    got: Canonical | None
    wanted: Canonical | None
    before: Canonical | None
    raw_got: Record | None
    raw_wanted: Record | None
    key: str
    """Key field: no change of its own."""

    def changes(self, record: Canonical | None) -> frozenset[str]:
        """Fields in which a record differs from before; a deletion is the field ``""``."""
        if record is None:
            return frozenset() if self.before is None else frozenset([""])
        if self.before is None:
            return frozenset(name for name in record if name != self.key) or frozenset([self.key])
        return frozenset(
            name
            for name in {**self.before, **record}
            if self.before.get(name, _MISSING) != record.get(name, _MISSING)
        )


def explain(got: Side, wanted: Side, base: StateData, rules: Mapping[str, Rules]) -> Explanation:
    """Field by field, whether they are equal or not. Costs more than the comparison (``same_side``)."""
    matched = pair_leftovers(got.graph(), wanted.graph(), {n: r.label for n, r in rules.items()})
    names = {mine: theirs[1] for mine, theirs in matched if mine is not None and theirs is not None}
    differences: list[FieldDifference] = []
    required = made = side_effects = 0
    for pair in _pairs(got, wanted, matched, base, rules):
        wrong = _wrong_fields(pair, names)
        differences += _described(pair, wrong)
        asked, done = pair.changes(pair.wanted), pair.changes(pair.got)
        required += len(asked)
        if pair.wanted is None and pair.before is not None:  # to be deleted
            made += pair.got is None
            continue
        made += 0 if pair.got is None else len(asked - wrong)
        side_effects += len(done - asked)
    if not differences and match_nodes(got.graph(), wanted.graph()) is None:
        # Equal record by record under this pairing, yet no renaming makes all equal at once: name the
        # references.
        differences = [
            FieldDifference(collection=name, key=key, field="", got="refers to other new records")
            for name, key in got.nodes
        ]
    return Explanation(tuple(differences), required, made, side_effects)


def _pairs(
    got: Side,
    wanted: Side,
    matched: list[tuple[Node | None, Node | None]],
    base: StateData,
    rules: Mapping[str, Rules],
) -> Iterator[_Pair]:
    for place in sorted({*got.old, *wanted.old}):
        name, key = place
        rule = rule_of(rules, name)
        record = base[name][key]
        before = canonical_record(record, rule, {})
        yield _Pair(
            place,
            got.old.get(place, before),
            wanted.old.get(place, before),
            before,
            got.raw.get(place, record),
            wanted.raw.get(place, record),
            rule.key,
        )
    for place in sorted({*got.named, *wanted.named}):
        yield _Pair(
            place,
            got.named.get(place),
            wanted.named.get(place),
            None,
            got.raw.get(place),
            wanted.raw.get(place),
            rule_of(rules, place[0]).key,
        )
    for mine, theirs in matched:
        place = mine or theirs
        assert place is not None
        yield _Pair(
            place,
            None if mine is None else got.nodes[mine],
            None if theirs is None else wanted.nodes[theirs],
            None,
            None if mine is None else got.raw[mine],
            None if theirs is None else wanted.raw[theirs],
            rule_of(rules, place[0]).key,
        )


def _wrong_fields(pair: _Pair, names: Mapping[Node, str]) -> frozenset[str]:
    """Fields that differ between the two records; the field ``""`` where one of them is not there."""
    if pair.got is None or pair.wanted is None:
        return frozenset() if pair.got is pair.wanted else frozenset([""])
    return frozenset(
        name
        for name in {**pair.wanted, **pair.got}
        if not _same(pair.got.get(name, _MISSING), pair.wanted.get(name, _MISSING), names)
    )


def _same(got: Any, wanted: Any, names: Mapping[Node, str]) -> bool:
    if got is _MISSING or wanted is _MISSING:
        return got is wanted
    renaming = {(r.collection, r.key): names.get((r.collection, r.key), "?" + r.key) for r in refs_in(got)}
    return substitute(got, renaming) == wanted


def _described(pair: _Pair, wrong: frozenset[str]) -> Iterator[FieldDifference]:
    collection, key = pair.place
    if "" in wrong:
        yield FieldDifference(
            collection=collection,
            key=key,
            field="",
            expected=None if pair.wanted is None else pair.raw_wanted,
            got=None if pair.got is None else pair.raw_got,
        )
        return
    for name in {**(pair.wanted or {}), **(pair.got or {})}:
        if name in wrong:
            yield FieldDifference(
                collection=collection,
                key=key,
                field=name,
                expected=(pair.raw_wanted or {}).get(name),
                got=(pair.raw_got or {}).get(name),
            )
