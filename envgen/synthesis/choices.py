"""Concrete demands as data: which records and values a shape got, and what it reads and writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from envgen.errors import TaskError
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.shapes import DemandShape, Pick, ValuePlan
from envgen.types import Record, ToolSemantics


class Unfit(TaskError):
    """This shape cannot be realised in this world: draw again."""


@dataclass(frozen=True)
class Choice:
    """A pick with its records. ``parents[i]`` is the chosen parent for ``pick.locator.access.links[i]``."""

    pick: Pick
    anchor: Record
    """The record singled out; for ``filter`` and ``all`` the first of several."""
    chosen: tuple[Record, ...]
    parents: tuple[Choice, ...] = ()
    value: Any = None
    """What the filter or lookup field must equal."""
    names: tuple[str, ...] = ()
    """Labels of the two records compared."""
    given: tuple[tuple[str, Any], ...] = ()
    """(parameter, value) of the look-up's required filters."""

    @property
    def collection(self) -> str:
        """Collection of the chosen records."""
        return self.pick.locator.collection if self.pick.locator else self.pick.yields


@dataclass(frozen=True)
class Value:
    """One written argument: its plan, and the value or the choice it comes from."""

    plan: ValuePlan
    value: Any = None
    choice: Choice | None = None


@dataclass(frozen=True)
class Demand:
    """A shape with records and values."""

    shape: DemandShape
    target: Choice | None
    values: tuple[Value, ...]

    @property
    def semantics(self) -> ToolSemantics:
        """The write tool's semantics."""
        return self.shape.semantics


@dataclass
class Footprint:
    """What demands read and write, to keep merged demands independent of each other's order."""

    reads: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    writes: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    read_records: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    written_records: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    named_records: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Records that are only called by their names: they must be there, whatever else happens to them."""
    unsettled_records: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Written records whose names may change, or that go."""

    def clashes(self, other: Footprint) -> bool:
        """True when the order of the two could matter, or both touch one record."""
        return (
            _overlap(self.writes, other.reads)
            or _overlap(other.writes, self.reads)
            or bool(self.written_records & (other.read_records | other.written_records))
            or bool(other.written_records & self.read_records)
            or bool(self.unsettled_records & other.named_records)
            or bool(other.unsettled_records & self.named_records)
        )


def _overlap(writes: set[tuple[str, str]], reads: set[tuple[str, str]]) -> bool:
    return any(
        owner == other and ("*" in (name, seen) or name == seen)
        for owner, name in writes
        for other, seen in reads
    )


@dataclass
class Needs:
    """What a world must offer for the shapes of a task."""

    fields: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """(collection, field) that records carry."""
    uses: Counter[str] = field(default_factory=Counter[str])
    """Collection -> how many times the task looks at it."""
    where: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    """(collection, field or path, value) that most of its records meet."""


def needs_of(catalog: Catalog, shapes: list[DemandShape]) -> Needs:
    """What the world must offer for some shapes."""
    found = Needs()
    needs, busy = found.fields, found.uses
    for shape in shapes:
        busy[shape.semantics.collection] += 1
        for rule in shape.semantics.preconditions:
            if rule.field:
                needs.add((rule.collection, rule.field))
        needs.update((shape.semantics.collection, b.field) for b in shape.semantics.scope)
        needs.update((b.collection, b.field) for b in shape.semantics.amounts)
        if shape.target is not None:
            needs.update((shape.semantics.collection, name) for name in shape.semantics.constants)
            if shape.semantics.toggles:
                needs.add((shape.semantics.collection, shape.semantics.toggles))
        for pick in shape.picks:
            if pick.selector.field:
                needs.add((pick.locator.collection if pick.locator else pick.yields, pick.selector.field))
            if pick.locator is None:
                busy[pick.yields] += 1
                continue
            needs.add((pick.locator.collection, pick.answer))
            queue = [pick.locator]
            while queue:
                locator = queue.pop()
                busy[locator.collection] += 1
                found.where += [(locator.collection, path, value) for path, value in locator.access.where]
                needs.update((locator.collection, name) for name in locator.answers if name)
                needs.update((locator.collection, link.foreign_key) for link in locator.access.links)
                needs.update((locator.collection, name) for _, name in locator.access.given)
                queue.extend(p for p in locator.parents if p is not None)
    return found


def static_footprint(catalog: Catalog, shape: DemandShape) -> Footprint:
    """The fields a shape reads by reasoning and writes, before records are chosen; ``*`` stands for whole
    records."""
    print_ = Footprint()
    semantics = shape.semantics
    name = semantics.collection
    for pick in shape.picks:
        if pick.locator is None:
            continue
        collection = pick.locator.collection
        if pick.selector.kind in ("label", "only", "compare"):
            continue  # named records: nothing but a change of these very records matters
        if pick.selector.field:
            print_.reads.add((collection, pick.selector.field))
        elif pick.selector.kind in ("all", "filter"):
            print_.reads.add((collection, "*"))
        if pick.answer != catalog.collections[collection].key:
            print_.reads.add((collection, pick.answer))
    if semantics.verb in ("create", "delete"):
        print_.writes.add((name, "*"))
    if semantics.verb == "delete":
        for child in (*semantics.cascades, *catalog.descendants(name)):
            print_.writes.add((child, "*"))
    if semantics.verb != "create":
        toggled = (semantics.toggles,) if semantics.toggles else ()
        print_.writes.update(
            (name, f)
            for f in (
                *(v.binding.field for v in shape.values),
                *semantics.constants,
                *semantics.increments,
                *toggled,
            )
        )
    return print_
