"""The verdict on a final state: does it equal one of the accepted states, canonically?

Only what changed is compared. ``Grader`` reduces each accepted state of a task to its delta against the
initial state once; a final state comes as the delta that its ``State`` kept. Records made in the episode
are matched up to renaming of their keys: colours refined by content and by who refers to whom, then by
trying the ties (``matching``). Any other difference is a failure, also a side effect elsewhere; the verdict
names the nearest accepted state and the fields that differ.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envgen.errors import TaskError
from envgen.runtime.canonical import Canonical, NewIds, Rules, canonical_record, refs_in, rules_of, substitute
from envgen.runtime.matching import Node, match_nodes, pair_leftovers
from envgen.runtime.state import Delta, same_json
from envgen.types import FieldDifference, Record, StateData, StateSchema, Task, Verdict

_MISSING = object()


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
class _Side:
    """One end state as the grader sees it."""

    old: dict[tuple[str, str], Canonical | None]
    """(collection, key) of the base -> canonical record, or None where it was deleted. Only what really
    differs."""
    raw: dict[tuple[str, str], Record]
    named: dict[tuple[str, str], Canonical]
    """New records under keys that the caller chose: compared by key."""
    nodes: dict[tuple[str, str], Canonical]
    """New records under minted keys: compared up to renaming."""
    new: NewIds


class Grader:
    """Judges final states of one task. Accepted states are reduced once, at construction.

    Raises TaskError when the task accepts no state: empty criteria are an error, never a pass.
    """

    def __init__(self, task: Task, schema: StateSchema) -> None:
        if not task.accepted_states:
            raise TaskError(
                f"task {task.id!r} accepts no end state; a task without criteria cannot be graded"
            )
        self.schema = schema
        self._base = task.initial_state
        self._rules = rules_of(schema)
        for name in (*self._base, *(n for s in task.accepted_states for n in s)):
            if name not in self._rules:
                raise TaskError(
                    f"task {task.id!r}: its states have a collection {name!r} that the schema does not know"
                )
        deltas = [delta_of(self._base, state) for state in task.accepted_states]
        self._accepted = [self._side(delta) for delta in deltas]
        self._outlines = [_outline(delta) for delta in deltas]

    # ---------------------------------------------------------------- sides
    def _rule(self, name: str) -> Rules:
        rules = self._rules.get(name)
        if rules is None:
            raise TaskError(
                f"the state has a collection {name!r} that the schema does not know: {sorted(self._rules)}"
            )
        return rules

    def _side(self, delta: Delta) -> _Side:
        new: NewIds = {n: frozenset(rs) for n, rs in delta.inserted.items() if rs and self._rule(n).renamable}
        old: dict[tuple[str, str], Canonical | None] = {}
        raw: dict[tuple[str, str], Record] = {}
        named: dict[tuple[str, str], Canonical] = {}
        nodes: dict[tuple[str, str], Canonical] = {}
        for name, records in delta.updated.items():
            rules = self._rule(name)
            for key, record in records.items():
                canonical = canonical_record(record, rules, new)
                if canonical != canonical_record(self._base[name][key], rules, {}):
                    old[name, key] = canonical
                    raw[name, key] = record
        for name, keys in delta.deleted.items():
            self._rule(name)
            old.update(((name, key), None) for key in keys)
        for name, records in delta.inserted.items():
            rules = self._rule(name)
            into = nodes if rules.renamable else named
            for key, record in records.items():
                into[name, key] = canonical_record(record, rules, new)
                raw[name, key] = record
        return _Side(old, raw, named, nodes, new)

    # ---------------------------------------------------------------- judging
    def judge(self, delta: Delta) -> Verdict:
        """The verdict on the state that differs from the task's initial state by ``delta``."""
        got = self._side(delta)
        for index, wanted in enumerate(self._accepted):
            if _equal(got, wanted):
                return Verdict(success=True, nearest=index)
        best: tuple[FieldDifference, ...] = ()
        nearest = -1
        for index, wanted in enumerate(self._accepted):
            found = self._differences(got, wanted)
            if nearest < 0 or len(found) < len(best):
                nearest, best = index, found
        return Verdict(success=False, nearest=nearest, differences=best)

    def accepts(self, delta: Delta) -> bool:
        """``judge(delta).success`` without the explanation: most wrong states are told apart by how many
        records they add and which they delete, before any record is made canonical."""
        for name in (*delta.inserted, *delta.updated, *delta.deleted):
            self._rule(name)
        outline = _outline(delta)
        alike = [i for i, known in enumerate(self._outlines) if known == outline]
        if not alike:
            return False
        got = self._side(delta)
        return any(_equal(got, self._accepted[i]) for i in alike)

    def judge_state(self, state: StateData) -> Verdict:
        """The verdict on plain state data; compares every record once."""
        return self.judge(delta_of(self._base, state))

    # ---------------------------------------------------------------- explaining
    def _differences(self, got: _Side, wanted: _Side) -> tuple[FieldDifference, ...]:
        pairs = pair_leftovers(_graph(got), _graph(wanted))
        names = {a: b for a, b in pairs if a is not None and b is not None}
        ours = {a: b[1] for a, b in names.items()}
        out: list[FieldDifference] = []
        for place in sorted({*got.old, *wanted.old}):
            out += self._record_difference(
                place, self._full(got, place), self._full(wanted, place), ours, got, wanted
            )
        for place in sorted({*got.named, *wanted.named}):
            out += self._record_difference(
                place, got.named.get(place), wanted.named.get(place), ours, got, wanted
            )
        for mine, theirs in pairs:
            place = mine or theirs
            assert place is not None
            a = got.nodes[mine] if mine else None
            b = wanted.nodes[theirs] if theirs else None
            out += self._record_difference(place, a, b, ours, got, wanted, theirs)
        if not out:
            # Equal record by record under this pairing, yet no renaming makes all equal at once: name the
            # references.
            out = [
                FieldDifference(collection=c, key=k, field="", got="refers to other new records")
                for c, k in got.nodes
            ]
        return tuple(out)

    def _full(self, side: _Side, place: tuple[str, str]) -> Canonical | None:
        if place in side.old:
            return side.old[place]
        return canonical_record(self._base[place[0]][place[1]], self._rule(place[0]), {})

    def _record_difference(
        self,
        place: tuple[str, str],
        got: Canonical | None,
        wanted: Canonical | None,
        names: Mapping[tuple[str, str], str],
        got_side: _Side,
        wanted_side: _Side,
        wanted_place: tuple[str, str] | None = None,
    ) -> list[FieldDifference]:
        collection, key = place
        base = self._base.get(collection, {}).get(key)
        raw_got = got_side.raw.get(place, base) if got is not None else None
        raw_wanted = wanted_side.raw.get(wanted_place or place, base) if wanted is not None else None
        if got is None or wanted is None:
            if got is None and wanted is None:
                return []
            return [
                FieldDifference(collection=collection, key=key, field="", expected=raw_wanted, got=raw_got)
            ]
        out: list[FieldDifference] = []
        for name in {**wanted, **got}:
            a, b = got.get(name, _MISSING), wanted.get(name, _MISSING)
            same = a == b if a is _MISSING or b is _MISSING else _renamed(a, names) == b
            if not same:
                expected = None if raw_wanted is None else raw_wanted.get(name)
                seen = None if raw_got is None else raw_got.get(name)
                out.append(
                    FieldDifference(collection=collection, key=key, field=name, expected=expected, got=seen)
                )
        return out


def _renamed(value: Any, names: Mapping[tuple[str, str], str]) -> Any:
    return substitute(
        value, {(r.collection, r.key): names.get((r.collection, r.key), "?" + r.key) for r in refs_in(value)}
    )


def _graph(side: _Side) -> tuple[dict[Node, Canonical], dict[Node, Canonical]]:
    """The minted records, and everything else that may refer to them."""
    others = {place: record for place, record in side.old.items() if record is not None}
    return side.nodes, {**others, **side.named}


_Outline = tuple[dict[str, int], frozenset[tuple[str, str]]]


def _outline(delta: Delta) -> _Outline:
    """New records per collection, and what was deleted: equal in equal states, since both are compared
    exactly."""
    added = {name: len(records) for name, records in delta.inserted.items() if records}
    return added, frozenset((name, key) for name, keys in delta.deleted.items() for key in keys)


def _equal(got: _Side, wanted: _Side) -> bool:
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
    return match_nodes(_graph(got), _graph(wanted)) is not None


# ---------------------------------------------------------------- cache
_graders: dict[int, tuple[weakref.ref[Task], Grader]] = {}


def grader_of(task: Task, schema: StateSchema) -> Grader:
    """The grader of a task, made once and dropped with the task."""
    key = id(task)
    known = _graders.get(key)
    if known is not None and known[0]() is task and known[1].schema is schema:
        return known[1]
    grader = Grader(task, schema)
    _graders[key] = (weakref.ref(task, lambda _: _graders.pop(key, None)), grader)
    return grader


def grade(state: StateData, task: Task, schema: StateSchema) -> Verdict:
    """Does ``state`` equal one of the task's accepted states? Raises TaskError when the task accepts none.

    Compares plain data; inside an episode ``Env.verdict`` uses the delta and does not look at what was not
    touched.
    """
    return grader_of(task, schema).judge_state(state)


def accepted_any(states: Iterable[StateData], task: Task, schema: StateSchema) -> bool:
    """True when at least one of the states is accepted (for certificate gates that try many)."""
    return any(grade(state, task, schema).success for state in states)
