"""What makes the fields of a record fit together, beyond their types: times, days, and kinds of tickets.

A document says ``ticketDate: date`` and ``dates: [date]``; that a ticket is for one of the days on which the
event takes place, it leaves to the reader. The rules here are such readings, by the words of the fields:

past      what happened (``created_at``, ``run_at``, ``purchaseDate``) lies before the task's clock
order     ``start``/``end``, ``open``/``close``, ``created``/``updated`` of one record stand in their order
days      a date of a record that belongs to a parent with days of its own is one of those days
calendar  where a collection is keyed by dates (opening hours), new dates are among them
same      what a record and its parent are both found by (the owner of an issue, and of its repository) agrees
kind      an option named like the parent (``event`` of ``ticketType``) goes with having that parent

They bind the records of a world and the values that users ask for alike. Where a document gives no sign,
there is no rule.
"""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any, cast

from envgen.synthesis.catalog import Catalog, field_words, link_of
from envgen.types import Collection, Record, StateField

DAYS = ("date", "datetime")
_PAST = {
    "created", "updated", "modified", "run", "ran", "executed", "completed", "finished", "published",
    "posted", "joined", "registered", "signed", "purchased", "purchase", "paid", "sent", "received",
    "opened", "started", "last", "birth", "birthday", "born", "founded", "accessed", "pushed", "merged",
    "logged", "issued", "deleted", "archived", "resolved", "timestamp", "added", "edited", "changed",
    "triggered", "hired", "acquired",
}  # fmt: skip
"""Words of dates and times at which something has happened."""
_ORDERED = (
    ("start", "end"), ("begin", "end"), ("starts", "ends"), ("start", "finish"), ("from", "to"),
    ("from", "until"), ("open", "close"), ("opens", "closes"), ("opening", "closing"),
    ("created", "updated"), ("created", "modified"), ("created", "run"), ("created", "completed"),
    ("purchase", "disposal"), ("departure", "arrival"), ("check-in", "check-out"),
    ("checkin", "checkout"), ("min", "max"), ("minimum", "maximum"), ("low", "high"),
    ("published", "expires"), ("issued", "due"),
)  # fmt: skip
"""Words that tell the earlier (smaller) of two fields that are otherwise called the same."""


def has_happened(item: StateField) -> bool:
    """True for the name of a time at which something has happened: it lies before the task's clock."""
    return item.policy == "exempt" or bool(set(field_words(item.name)) & _PAST)


def is_past(item: StateField) -> bool:
    """`has_happened` of a field that holds a date or a time."""
    return item.type in DAYS and has_happened(item)


def ordered_pairs(collection: Collection) -> tuple[tuple[str, str], ...]:
    """``(earlier, later)`` fields of a collection: same type, and names that differ in one word of a pair."""
    found: list[tuple[str, str]] = []
    plain = [f for f in collection.fields if f.type in (*DAYS, "time", "integer", "number")]
    for one in plain:
        for other in plain:
            if one is other or one.type != other.type:
                continue
            mine, theirs = set(field_words(one.name)), set(field_words(other.name))
            only, instead = mine - theirs, theirs - mine
            if any(early in only and late in instead for early, late in _ORDERED):
                found.append((one.name, other.name))
    return tuple(found)


def _between(first: str, last: str) -> list[str]:
    start = date.fromisoformat(first)
    span = (date.fromisoformat(last) - start).days
    return [(start + timedelta(days=n)).isoformat() for n in range(span + 1)]


class Sense:
    """The rules of one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pairs = {name: ordered_pairs(c) for name, c in catalog.collections.items()}
        self.calendars = tuple(
            c.name
            for c in catalog.collections.values()
            if not c.key_generated and any(f.name == c.key and f.type == "date" for f in c.fields)
        )
        """Collections keyed by dates."""
        self.same = {name: self._same(name) for name in catalog.collections}
        """Collection -> (field, foreign key): the record's field is that of its parent."""

    def _same(self, collection: str) -> tuple[tuple[str, str], ...]:
        found: dict[tuple[str, str], None] = {}
        for tool in self.catalog.semantics.values():
            if tool.collection != collection:
                continue
            links = [
                link
                for b in (*tool.scope, *tool.writes)
                if (link := link_of(b, tool, self.catalog.fields, self.catalog.collections))
            ]
            for binding in tool.scope:
                held = self.catalog.fields.get((collection, binding.field))
                if held is None or held.references or binding.collection != collection:
                    continue
                for link in links:
                    if (link.parent, binding.field) in self.catalog.fields and link.parent != collection:
                        found[binding.field, link.foreign_key] = None
        return tuple(found)

    def given(self, collection: str, name: str, parents: dict[str, Record]) -> Any:
        """The value that a field has because a parent has it, or None."""
        held = [
            parents[link].get(name)
            for field, link in self.same[collection]
            if field == name and link in parents
        ]
        return next((value for value in held if value is not None), None)

    def dated(self, collection: str) -> tuple[str, ...]:
        """Date fields of a collection that are planned, not past: those that parents' days bind."""
        if collection in self.calendars:
            return ()
        known = self.catalog.collections[collection]
        return tuple(f.name for f in known.fields if f.type in DAYS and not is_past(f))

    def days(self, collection: str, record: Record) -> list[str] | None:
        """The days on which something below this record can be; None when the collection has none of its own.

        An array of dates gives its items, a first and a last day all that lie between, and one field called
        ``date`` that day.
        """
        known = self.catalog.collections[collection]
        for item in known.fields:
            if item.type == "array" and item.item_type in DAYS:
                held = record.get(item.name)
                return [str(d)[:10] for d in cast("list[Any]", held)] if isinstance(held, list) else []
        ends = [p for p in self.pairs[collection] if all(self._planned(known, name) for name in p)]
        if ends:
            known_ends = [str(record[name])[:10] for name in ends[0] if record.get(name) is not None]
            return _between(*known_ends) if len(known_ends) == 2 else known_ends
        for item in known.fields:
            own = [w for w in field_words(item.name) if w not in field_words(known.entity)]
            if item.type in DAYS and own in (["date"], ["day"]) and not is_past(item):
                return [str(record[item.name])[:10]] if record.get(item.name) is not None else []
        return None

    def _planned(self, collection: Collection, name: str) -> bool:
        return any(f.name == name and f.type in DAYS and not is_past(f) for f in collection.fields)

    def kinds(self, collection: str) -> tuple[tuple[str, str, Any], ...]:
        """``(enum field, foreign key, option)``: records have the option when, and only when, they have the
        parent."""
        known = self.catalog.collections[collection]
        found: list[tuple[str, str, Any]] = []
        for link in known.fields:
            parent = self.catalog.collections.get(link.references)
            if parent is None or link.required:
                continue
            names = {parent.entity.casefold(), field_words(parent.entity)[-1].casefold()}
            for item in known.fields:
                options = [o for o in item.enum if str(o).casefold() in names]
                if options and len(item.enum) > 1:
                    found.append((item.name, link.name, options[0]))
        return tuple(found)

    def problem(self, collection: str, record: Record, parents: dict[str, Record]) -> str:
        """Why a record makes no sense, or empty. ``parents``: foreign key field -> the record behind it."""
        for early, late in self.pairs[collection]:
            first, second = record.get(early), record.get(late)
            if first is None or second is None:
                continue
            if first > second or (first == second and self._is_time(collection, early)):
                return f"{early} {first!r} not before {late} {second!r}"
        for name, link, option in self.kinds(collection):
            if record.get(name) is not None and (record[name] == option) != (record.get(link) is not None):
                return f"{name} {record[name]!r} {'with' if record.get(link) else 'without'} {link}"
        for name, link in self.same[collection]:
            inherited = parents.get(link, {}).get(name)
            if inherited is not None and record.get(name) not in (None, inherited):
                return f"{name} {record[name]!r} is not that of its {link}"
        for link, parent in parents.items():
            owner = self._parent(collection, link)
            days = self.days(owner, parent) if owner else None
            for name in self.dated(collection) if days is not None else ():
                if record.get(name) is not None and str(record[name])[:10] not in (days or []):
                    return f"{name} {record[name]!r} is no day of its {link}"
        return ""

    def _is_time(self, collection: str, name: str) -> bool:
        """True for times of a day: what opens and closes at the same one is never open."""
        return self.catalog.fields[collection, name].type == "time"

    def _parent(self, collection: str, link: str) -> str:
        known = self.catalog.collections[collection]
        return next((f.references for f in known.fields if f.name == link), "")

    def repair(self, collection: str, record: Record, parents: dict[str, Record], rng: random.Random) -> None:
        """Change a record of a world until it makes sense."""
        for early, late in self.pairs[collection]:
            first, second = record.get(early), record.get(late)
            if first is None or second is None:
                continue
            if first > second:
                record[early], record[late] = second, first
            elif first == second and self._is_time(collection, early):
                record[early] = f"{max(0, int(str(first)[:2]) - 2):02d}{str(first)[2:]}"
        for name, link, option in self.kinds(collection):
            if record.get(name) is None:
                continue
            others = [o for o in self.catalog.fields[collection, name].enum if o != option]
            record[name] = option if record.get(link) is not None else rng.choice(others)
        for name, link in self.same[collection]:
            if parents.get(link, {}).get(name) is not None:
                record[name] = parents[link][name]
        for link, parent in parents.items():
            owner = self._parent(collection, link)
            days = self.days(owner, parent) if owner else None
            for name in self.dated(collection) if days else ():
                if record.get(name) is not None and days:
                    record[name] = rng.choice(days) + str(record[name])[10:]
