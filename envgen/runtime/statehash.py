"""A hash of a state that is the same for equal states, as the grader understands equal.

Field policies, record order and the names of minted ids do not enter it. It is kept incrementally: what is
hashed is the difference from the base, each changed record is made canonical once and remembered until it is
replaced, and the parts are added up, so that the cost grows with what changed since the last time.

Equal states have equal hashes. States that differ have different ones (up to collisions of BLAKE2b), except
where only the wiring of look-alike minted records differs (a ring of six against two rings of three): the
grader tells those apart by search, colour refinement cannot.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import NamedTuple

from envgen.runtime.canonical import Canonical, NewIds, Rules, canonical_record, refs_in, rules_of
from envgen.runtime.matching import Node, refined_shapes
from envgen.runtime.sides import rule_of
from envgen.runtime.state import State
from envgen.types import Record, StateData, StateSchema

_MODULUS = 1 << 128


class _Known(NamedTuple):
    record: Record
    canonical: Canonical
    refers: bool
    """Some value names a minted record."""
    number: int
    """What this record adds to the hash; 0 where nothing graded differs from the base."""


class StateHasher:
    """Hashes the states over one base. Make one per episode (or per fork): it remembers records by place."""

    def __init__(self, schema: StateSchema, base: StateData) -> None:
        self._rules = rules_of(schema)
        self._base = base
        self._known: dict[Node, _Known] = {}
        self._new: NewIds = {}

    def of(self, state: State) -> str:
        """32 hex digits. Raises TaskError for a collection that the schema does not know."""
        delta = state.delta()
        new: NewIds = {
            name: frozenset(records)
            for name, records in delta.inserted.items()
            if self._rule(name).renamable and self._rule(name).graded
        }
        if new != self._new:
            self._new, self._known = new, {}  # a text may name a record that was made just now
        total = 0
        nodes: dict[Node, Canonical] = {}
        others: dict[Node, Canonical] = {}
        for name, records in (*delta.updated.items(), *delta.inserted.items()):
            rule = self._rule(name)
            for key, record in records.items() if rule.graded else ():
                place = (name, key)
                known = self._look(place, record, rule)
                if key in new.get(name, ()):
                    nodes[place] = known.canonical
                elif known.refers:
                    others[place] = known.canonical
                else:
                    total += known.number
        for name, keys in delta.deleted.items():
            if self._rule(name).graded:
                total += sum(_number(("deleted", name, key)) for key in keys)
        if nodes:
            shapes, outside = refined_shapes((nodes, others))
            total += sum(_number((shape, count)) for shape, count in Counter(map(repr, shapes)).items())
            total += sum(_number((place, shape)) for place, shape in outside.items())
        return f"{total % _MODULUS:032x}"

    def _rule(self, name: str) -> Rules:
        return rule_of(self._rules, name)

    def _look(self, place: Node, record: Record, rule: Rules) -> _Known:
        known = self._known.get(place)
        if known is None or known.record is not record:
            canonical = canonical_record(record, rule, self._new)
            refers = any(True for value in canonical.values() for _ in refs_in(value))
            before = self._base.get(place[0], {}).get(place[1])
            same = before is not None and canonical == canonical_record(before, rule, {})
            number = 0 if same else _number((place, sorted(canonical.items(), key=repr)))
            known = self._known[place] = _Known(record, canonical, refers, number)
        return known


def _number(value: object) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=16).digest(), "big")
