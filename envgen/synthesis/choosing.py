"""Choosing the records of a demand or a question: a pick meets a world, which is tuned where the pick would
have more than one reading.

Records that earlier demands of the task read or change are kept out of its way, so that the order of demands
does not matter.
"""

from __future__ import annotations

import random
from typing import Any

from envgen.synthesis.catalog import Catalog
from envgen.synthesis.choices import Choice, Footprint, Unfit
from envgen.synthesis.fitting import Fitting
from envgen.synthesis.lookups import Locator
from envgen.synthesis.shapes import TEXTS, Pick, Selector
from envgen.synthesis.values import ValueMaker
from envgen.synthesis.world import World, session_value
from envgen.types import Record, ToolSemantics

MOST_AT_ONCE = 5
"""Records that "all orders" may mean at most."""


class RecordChooser(Fitting):
    """Chooses records for picks, tuning the world where a pick needs it."""

    def __init__(self, catalog: Catalog, world: World, maker: ValueMaker, rng: random.Random) -> None:
        super().__init__(catalog, world, maker, rng)
        self.read: set[tuple[str, str]] = set()
        """(collection, key) of records that the demands so far look at."""
        self.named: set[tuple[str, str]] = set()
        """(collection, key) of records that they only call by name."""
        self.written: set[tuple[str, str]] = set()
        """(collection, key) of records that they change."""
        self.gentle = False
        """True while the demand changes nothing that a record could be called by."""
        self.compared: set[tuple[str, str]] = set()
        """(collection, field) that decided some choice: their values stay."""

    def choose(self, pick: Pick, print_: Footprint, acted_on: ToolSemantics | None = None) -> Choice:
        """Single out records for a pick."""
        if pick.locator is None:
            records = self._allowed(self.world.records(pick.yields), pick.yields, acted_on)
            if not records:
                raise Unfit(f"no record of {pick.yields} to name")
            free = [r for r in records if self._free(pick.yields, r, acted_on is not None)]
            anchor = self.rng.choice(free or records)
            self._read(print_, pick.yields, anchor, named=True)
            return Choice(pick, anchor, (anchor,))
        collection = pick.locator.collection
        group = self._group(pick)
        kind, field_name = pick.selector.kind, pick.selector.field
        if acted_on is not None and pick.yields == collection and kind in ("label", "lookup"):
            candidates = self._allowed(group, collection, acted_on)
        else:
            candidates = group
        if kind in ("label", "lookup"):
            candidates = [r for r in candidates if self._free(collection, r, acted_on is not None)]
        if pick.answer != self.catalog.collections[collection].key and kind in ("label", "lookup"):
            candidates = [r for r in candidates if r.get(pick.answer) is not None]
        if kind == "label":
            label = self.catalog.collections[collection].label
            candidates = [r for r in candidates if r.get(label) is not None]
        if kind == "lookup" and collection in self.catalog.variants:
            candidates = [r for r in candidates if r.get(field_name) is not None]
        if not candidates:
            raise Unfit(f"no candidates in {collection}")
        value, names = None, ()
        if kind in ("label", "lookup"):
            anchor = self.rng.choice(candidates)
            chosen = [anchor]
            if kind == "lookup":
                value = anchor.get(field_name)
                if value is None or sum(r.get(field_name) == value for r in group) != 1:
                    raise Unfit(f"{field_name} does not single out one record")
        elif kind == "compare":
            if len(group) < 2:
                raise Unfit("nothing to compare")
            label = self.catalog.collections[collection].label
            free = [r for r in group if self._free(collection, r, acted_on is not None)]
            pair = self.rng.sample(free if len(free) > 1 else group, 2)
            if any(r.get(label) is None for r in pair):
                raise Unfit("a record without a name")
            anchor = self._extreme(pair, field_name, pick.selector.order)
            chosen, names = [anchor], tuple(str(r[label]) for r in pair)
        elif kind == "filter" and not field_name:
            if not 1 < len(group) <= MOST_AT_ONCE:
                raise Unfit(f"{len(group)} records are not acted on at once")
            anchor, chosen = group[0], list(group)
        elif kind == "filter":
            value, chosen = self._filter(group, collection, field_name, acted_on)
            anchor = chosen[0]
        elif kind == "only":
            anchor, chosen = group[0], group[:1]
        elif kind == "all":
            if len(group) < 2 or (field_name and any(r.get(field_name) is None for r in group)):
                raise Unfit("too few records to count or add up")
            anchor, chosen = group[0], list(group)
        else:
            if len(group) < 2:
                raise Unfit("a superlative needs two records or more")
            anchor = self._extreme(group, field_name, pick.selector.order)
            anchor = self._freed(collection, group, anchor, field_name, acted_on is not None)
            chosen = [anchor]
        if field_name:
            self.compared.add((collection, field_name))
        named = kind == "label" and pick.answer == self.catalog.collections[collection].key
        for record in chosen if kind != "all" else ():
            self._read(print_, collection, record, named=named)
        if kind == "compare":
            for record in group:
                if str(record.get(self.catalog.collections[collection].label)) in names:
                    self._read(print_, collection, record)
        parents = self._parents(pick, anchor, print_)
        return Choice(pick, anchor, tuple(chosen), parents, value, names, self._given(pick, anchor))

    def _freed(
        self, collection: str, group: list[Record], extreme: Record, field_name: str, acted_on: bool
    ) -> Record:
        """The record with the extreme value. Where an earlier demand stands in its way, another one gets the
        value, as long as nothing hangs on it yet."""
        pairs = {name for pair in self.sense.pairs[collection] for name in pair}
        if self._free(collection, extreme, acted_on) or (collection, field_name) in self.compared:
            return extreme
        free = [r for r in group if self._free(collection, r, acted_on)]
        if not free or field_name in pairs:
            return extreme
        other = self.rng.choice(free)
        other[field_name], extreme[field_name] = extreme[field_name], other[field_name]
        return other

    def _given(self, pick: Pick, anchor: Record) -> tuple[tuple[str, Any], ...]:
        """Values for required filters, in the parameter's own spelling."""
        found: list[tuple[str, Any]] = []
        access = pick.locator.access if pick.locator else None
        for param, name in access.given if access else ():
            schema = self.catalog.parameter(access.tool, param) if access else {}
            options: list[Any] = schema.get("enum") or [anchor[name]]
            same = [o for o in options if str(o).casefold() == str(anchor[name]).casefold()]
            if not same:
                raise Unfit(f"{param} does not offer {anchor[name]!r}")
            found.append((param, same[0]))
        return tuple(found)

    def _read(self, print_: Footprint, collection: str, record: Record, *, named: bool = False) -> None:
        place = (collection, str(record.get(self.catalog.collections[collection].key)))
        (print_.named_records if named else print_.read_records).add(place)

    def _free(self, collection: str, record: Record, acted_on: bool) -> bool:
        """True when no earlier demand of the task stands in the way of using a record."""
        place = (collection, str(record.get(self.catalog.collections[collection].key)))
        if acted_on and (place in self.read or (not self.gentle and place in self.named)):
            return False
        return place not in self.written

    def _group(self, pick: Pick) -> list[Record]:
        """The records one look-up of the chain shows together; mostly the largest such group."""
        locator = pick.locator
        if locator is None:
            raise Unfit("no look-up")
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in self._shown(locator):
            keys = [record.get(link.foreign_key) for link in locator.access.links]
            keys += [record.get(name) for _, name in locator.access.given]
            if all(k is not None and not isinstance(k, list) for k in keys):
                groups.setdefault(tuple(map(str, keys)), []).append(record)
        if not groups:
            raise Unfit(f"{locator.collection} is empty")
        if pick.selector.kind == "only" and locator.access.many:  # the only one of its kind
            groups = {keys: found for keys, found in groups.items() if len(found) == 1}
            if not groups:
                raise Unfit(f"no {locator.collection} alone in its list")
        if pick.selector.kind == "only" and locator.access.named:
            label = self.catalog.collections[locator.collection].label
            groups = {(str(r.get(label)),): [r] for found in groups.values() for r in found if r.get(label)}
        if pick.selector.kind == "only":
            free = [g for g in groups.values() if self._free(locator.collection, g[0], True)]
            return self.rng.choice(free or list(groups.values()))
        by_size = sorted(groups.values(), key=len, reverse=True)
        plain = pick.selector.kind in ("label", "lookup")
        return self.rng.choice(by_size) if plain and self.rng.random() < 0.35 else by_size[0]

    def _allowed(
        self, records: list[Record], collection: str, acted_on: ToolSemantics | None
    ) -> list[Record]:
        if acted_on is None:
            return records
        for rule in acted_on.preconditions:
            if rule.kind == "no_children":
                key = self.catalog.collections[collection].key
                taken = {str(r.get(rule.field)) for r in self.world.records(rule.collection)}
                records = [r for r in records if str(r.get(key)) not in taken]
        return records

    def _extreme(self, group: list[Record], field_name: str, order: str) -> Record:
        values: list[Any] = [r.get(field_name) for r in group]
        if any(v is None for v in values) or len(set(map(str, values))) != len(values):
            raise Unfit(f"{field_name} is missing or tied")
        pick = min if order == "min" else max
        return group[values.index(pick(values))]

    def _filter(
        self, group: list[Record], collection: str, field_name: str, acted_on: ToolSemantics | None
    ) -> tuple[Any, list[Record]]:
        """Make two (sometimes three) of a group share a value that the others do not have."""
        held = self.catalog.fields[collection, field_name]
        if any(field_name == name for name, _, _ in self.sense.kinds(collection)):
            raise Unfit(f"{field_name} goes with the parent of each record")
        options = list(held.enum) or ([True, False] if held.type == "boolean" else [])
        if len(group) < 3 or len(options) < 2:
            raise Unfit("too few records to act on several")
        if acted_on is not None and field_name in acted_on.constants:
            options = [o for o in options if o != acted_on.constants[field_name]]
        value = self.rng.choice(options)
        others = [o for o in (held.enum or (True, False)) if o != value]
        count = 3 if len(group) > 4 and self.rng.random() < 0.4 else 2
        matching = self.rng.sample(range(len(group)), count)
        for position, record in enumerate(group):
            record[field_name] = value if position in matching else self.rng.choice(others)
            if collection in self.catalog.variants:
                self.catalog.variants[collection].strip(record)
        return value, [group[i] for i in sorted(matching)]

    def _parents(self, pick: Pick, anchor: Record, print_: Footprint) -> tuple[Choice, ...]:
        """The parents a look-up must be told, named by their labels (or another plain field)."""
        locator = pick.locator
        if locator is None:
            return ()
        found: list[Choice] = []
        for index, (link, parent) in enumerate(zip(locator.access.links, locator.parents, strict=True)):
            answer = locator.answer(index)
            if answer and parent is not None:  # the key stands in a record of another collection
                owner = parent.collection
                record = self._referring(parent, answer, anchor[link.foreign_key])
            else:
                owner, answer = link.parent, self.catalog.collections[link.parent].key
                record = self.world.state[link.parent].get(str(anchor[link.foreign_key]))
            if record is None:
                raise Unfit(f"{link.parent} has no record {anchor[link.foreign_key]!r}")
            self._read(
                print_, owner, record, named=not answer or answer == self.catalog.collections[owner].key
            )
            selector = _name_selector(self.catalog, owner, parent)
            up = Pick(parent, selector, link.parent, answer)
            value = record.get(selector.field) if selector.kind == "lookup" else None
            if selector.kind == "lookup" and value is None:
                raise Unfit(f"{link.parent} has nothing to be known by")
            if selector.kind == "lookup" and parent is not None and not self._singled(up, record, value):
                raise Unfit(f"{selector.field} does not single out one record")
            above = self._parents(up, record, print_)
            found.append(Choice(up, record, (record,), above, value, given=self._given(up, record)))
        return tuple(found)

    def _referring(self, locator: Locator, name: str, key: Any) -> Record | None:
        """A record that a look-up shows and that refers to a key."""
        found = [r for r in self._shown(locator) if r.get(name) == key]
        return self.rng.choice(found) if found else None

    def _singled(self, pick: Pick, record: Record, value: Any) -> bool:
        """True when nothing beside a record in its list has this value."""
        links = pick.locator.access.links if pick.locator else ()
        near = [
            r
            for r in self._shown(pick.locator)
            if all(r.get(link.foreign_key) == record.get(link.foreign_key) for link in links)
        ] if pick.locator else []  # fmt: skip
        return sum(r.get(pick.selector.field) == value for r in near) == 1

    def _shown(self, locator: Locator) -> list[Record]:
        """The records of a collection that a look-up can show at all."""
        access = locator.access
        return [
            r
            for r in self.world.records(locator.collection)
            if all(r.get(name) == session_value(self.world, own) for name, own in access.mine)
            and all(self._followed(locator.collection, r, path) == value for path, value in access.where)
        ]

    def _followed(self, collection: str, record: Record, path: str) -> Any:
        """The value of ``field`` or, through a foreign key, of ``field.field``."""
        name, _, rest = path.partition(".")
        if not rest:
            return record.get(name)
        owner = self.catalog.fields[collection, name].references
        behind = self.world.state.get(owner, {}).get(str(record.get(name)))
        return self._followed(owner, behind, rest) if behind is not None else None


def _name_selector(catalog: Catalog, collection: str, locator: Locator | None) -> Selector:
    known = catalog.collections[collection]
    if locator is None or (known.label and locator.access.path(known.label) is not None):
        return Selector("label")
    for item in known.fields:
        if (
            item.required
            and item.type in (*TEXTS, "date")
            and not item.enum
            and not item.references
            and item.name != known.key
            and locator.access.path(item.name) is not None
        ):
            return Selector("lookup", item.name)
    raise Unfit(f"{collection} has nothing to be known by")
