"""Concrete demands: a shape meets a world. Records are chosen, and the world is tuned so that the goal has
one reading.

`Chooser` decides everything on the world first (it is the truth); `envgen.synthesis.tasks` then executes the
real functions and compares what comes out with what was decided here. Any disagreement drops the sample.
"""

from __future__ import annotations

import random
from typing import Any

from envgen.synthesis.catalog import Catalog, Locator
from envgen.synthesis.choices import Choice, Demand, Footprint, Unfit, Value, static_footprint
from envgen.synthesis.shapes import TEXTS, DemandShape, Pick, Selector, ValuePlan
from envgen.synthesis.values import ValueMaker
from envgen.synthesis.world import World, session_value
from envgen.types import Record, ToolSemantics


class Chooser:
    """Chooses records and values for shapes, tuning the world where a goal needs it."""

    def __init__(self, catalog: Catalog, world: World, maker: ValueMaker, rng: random.Random) -> None:
        self.catalog = catalog
        self.world = world
        self.maker = maker
        self.rng = rng
        self.labels_given: dict[str, set[str]] = {}
        self.read: set[tuple[str, str]] = set()
        self.written: set[tuple[str, str]] = set()

    def demand(self, shape: DemandShape) -> tuple[Demand, Footprint]:
        """Realise one shape. Raises Unfit when the world does not allow it."""
        print_ = static_footprint(self.catalog, shape)
        target = None
        semantics = shape.semantics
        if shape.target is not None:
            target = self.choose(shape.target, print_, acted_on=semantics)
            self._prepare(target, semantics)
            for record in target.chosen:
                key = record.get(target.pick.answer)
                print_.written_records.add((semantics.collection, str(key)))
            print_.read_records -= print_.written_records
        values = tuple(self._value(plan, semantics, target, print_) for plan in shape.values)
        self.read |= print_.read_records
        self.written |= print_.written_records
        return Demand(shape, target, values), print_

    # ----------------------------------------------------------------------------------------- records
    def choose(self, pick: Pick, print_: Footprint, acted_on: ToolSemantics | None = None) -> Choice:
        """Single out records for a pick."""
        if pick.locator is None:
            records = self._allowed(self.world.records(pick.yields), pick.yields, acted_on)
            if not records:
                raise Unfit(f"no record of {pick.yields} to name")
            anchor = self.rng.choice(records)
            self._read(print_, pick.yields, anchor)
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
            pair = self.rng.sample(group, 2)
            anchor = self._extreme(pair, field_name, pick.selector.order)
            chosen, names = [anchor], tuple(str(r[label]) for r in pair)
        elif kind == "filter":
            value, chosen = self._filter(group, collection, field_name, acted_on)
            anchor = chosen[0]
        elif kind == "all":
            if len(group) < 2 or (field_name and any(r.get(field_name) is None for r in group)):
                raise Unfit("too few records to count or add up")
            anchor, chosen = group[0], list(group)
        else:
            if len(group) < 2:
                raise Unfit("a superlative needs two records or more")
            anchor = self._extreme(group, field_name, pick.selector.order)
            chosen = [anchor]
        for record in chosen if kind != "all" else ():
            self._read(print_, collection, record)
        if kind == "compare":
            for record in group:
                if str(record.get(self.catalog.collections[collection].label)) in names:
                    self._read(print_, collection, record)
        parents = self._parents(pick, anchor, print_)
        return Choice(pick, anchor, tuple(chosen), parents, value, names, self._given(pick, anchor))

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

    def _read(self, print_: Footprint, collection: str, record: Record) -> None:
        print_.read_records.add((collection, str(record.get(self.catalog.collections[collection].key))))

    def _free(self, collection: str, record: Record, acted_on: bool) -> bool:
        """True when no earlier demand of the task stands in the way of using a record."""
        place = (collection, str(record.get(self.catalog.collections[collection].key)))
        return place not in self.written and not (acted_on and place in self.read)

    def _group(self, pick: Pick) -> list[Record]:
        """The records one look-up of the chain shows together; mostly the largest such group."""
        locator = pick.locator
        if locator is None:
            raise Unfit("no look-up")
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in self.world.records(locator.collection):
            keys = [record.get(link.foreign_key) for link in locator.access.links]
            keys += [record.get(name) for _, name in locator.access.given]
            if any(record.get(name) != session_value(self.world, own) for name, own in locator.access.mine):
                continue
            if all(k is not None and not isinstance(k, list) for k in keys):
                groups.setdefault(tuple(map(str, keys)), []).append(record)
        if not groups:
            raise Unfit(f"{locator.collection} is empty")
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
        for link, parent in zip(locator.access.links, locator.parents, strict=True):
            table = self.world.state[link.parent]
            record = table.get(str(anchor[link.foreign_key]))
            if record is None:
                raise Unfit(f"{link.parent} has no record {anchor[link.foreign_key]!r}")
            known = self.catalog.collections[link.parent]
            self._read(print_, link.parent, record)
            selector = _name_selector(self.catalog, link.parent, parent)
            up = Pick(parent, selector, link.parent, known.key)
            value = record.get(selector.field) if selector.kind == "lookup" else None
            if selector.kind == "lookup" and value is None:
                raise Unfit(f"{link.parent} has nothing to be known by")
            above = self._parents(up, record, print_)
            found.append(Choice(up, record, (record,), above, value, given=self._given(up, record)))
        return tuple(found)

    def _prepare(self, target: Choice, semantics: ToolSemantics) -> None:
        """Give the record(s) acted on what the tool demands, and something to change."""
        name = semantics.collection
        for chosen in target.chosen:
            record = self.world.state[name].get(str(chosen.get(target.pick.answer)))
            if record is None:
                raise Unfit(f"{name} has no record {chosen.get(target.pick.answer)!r}")
            for rule in semantics.preconditions:
                if rule.kind == "no_children":
                    self._send_away(rule.collection, rule.field, name, str(chosen.get(target.pick.answer)))
                if rule.collection != name or not rule.field:
                    continue
                current = record.get(rule.field)
                if rule.kind == "field_equals":
                    record[rule.field] = rule.value
                elif rule.kind == "field_in" and current not in rule.value:
                    record[rule.field] = self.rng.choice(list(rule.value))
                elif rule.kind == "field_not_equals" and current == rule.value:
                    record[rule.field] = self._other(name, rule.field, rule.value)
            self._keep_rules(record, semantics)
            if semantics.verb != "create":
                for field_name, value in semantics.constants.items():
                    if record.get(field_name) == value:
                        record[field_name] = self._other(name, field_name, value)

    def _keep_rules(self, record: Record, semantics: ToolSemantics) -> None:
        """Bring a record into a state in which the domain's rules allow the tool."""
        for rule in self.catalog.draft.rules:
            if semantics.tool not in rule.tools or rule.kind not in ("field_in", "field_not_in"):
                continue
            if (record.get(rule.field) in rule.values) != (rule.kind == "field_in"):
                held = self.catalog.fields[semantics.collection, rule.field]
                options = [
                    o for o in held.enum or (True, False) if (o in rule.values) == (rule.kind == "field_in")
                ]
                if not options:
                    raise Unfit(f"no value of {rule.field} is allowed by {rule.id}")
                record[rule.field] = self.rng.choice(options)

    def _send_away(self, children: str, foreign_key: str, collection: str, key: str) -> None:
        """Give the children of a record that must have none to other parents."""
        owner = self.catalog.collections[collection]
        others = [r[owner.key] for k, r in self.world.state[collection].items() if k != key]
        for child in self.world.records(children):
            if str(child.get(foreign_key)) == key:
                if not others:
                    raise Unfit(f"nowhere to put the {children} of {key}")
                child[foreign_key] = self.rng.choice(others)

    def _other(self, collection: str, field_name: str, value: Any) -> Any:
        held = self.catalog.fields[collection, field_name]
        options = [o for o in held.enum if o != value]
        if isinstance(value, bool):
            return not value
        if options:
            return self.rng.choice(options)
        raise Unfit(f"no other value for {collection}.{field_name}")

    # ------------------------------------------------------------------------------------------ values
    def _value(
        self, plan: ValuePlan, semantics: ToolSemantics, target: Choice | None, print_: Footprint
    ) -> Value:
        if plan.pick is not None:
            choice = self.choose(plan.pick, print_)
            if plan.kind in ("key", "copy"):
                value = choice.anchor.get(plan.pick.answer)
                if value is None:
                    raise Unfit(f"the record has no {plan.pick.answer}")
            elif plan.kind == "count":
                value = len(choice.chosen)
            else:
                value = sum(r[plan.pick.selector.field] for r in choice.chosen)
            self._must_change(plan, semantics, target, value)
            return Value(plan, str(value) if plan.as_text else value, choice)
        if plan.kind == "created":
            return Value(plan)
        collection = self.catalog.collections[plan.binding.collection]
        held = self.catalog.fields[plan.binding.collection, plan.binding.field]
        schema = self.catalog.parameter(semantics.tool, plan.binding.param)
        unique = {rule.field for rule in semantics.preconditions if rule.kind == "unique"}
        distinct = held.name in (collection.label, collection.key) or held.name in unique
        taken = (
            {str(r.get(held.name)) for r in self.world.records(collection.name)} if distinct else set[str]()
        )
        taken |= self.labels_given.get(collection.name, set()) if distinct else set()
        for _ in range(24):
            value = self.maker.value(collection, held, schema)
            if value is None:
                break
            if held.type == "boolean" and target is not None:
                current = self._current(target, semantics, held.name)
                value = not current if isinstance(current, bool) else value
            try:
                self._must_change(plan, semantics, target, value)
            except Unfit:
                continue
            if str(value) not in taken:
                if distinct:
                    self.labels_given.setdefault(collection.name, set()).add(str(value))
                return Value(plan, value)
        raise Unfit(f"no fresh value for {collection.name}.{held.name}")

    def _current(self, target: Choice, semantics: ToolSemantics, field_name: str) -> Any:
        record = self.world.state[semantics.collection].get(str(target.anchor.get(target.pick.answer)), {})
        return record.get(field_name)

    def _must_change(
        self, plan: ValuePlan, semantics: ToolSemantics, target: Choice | None, value: Any
    ) -> None:
        """A write that leaves its field as it was would make doing nothing right."""
        if target is None or semantics.verb == "create":
            record = self.world.state[semantics.collection].get("self") if semantics.key is None else None
            if record is not None and record.get(plan.binding.field) == value:
                raise Unfit("the goal is already true")
            return
        for chosen in target.chosen:
            record = self.world.state[semantics.collection].get(str(chosen.get(target.pick.answer)), {})
            if record.get(plan.binding.field) == value:
                raise Unfit("the goal is already true")
            variants = self.catalog.variants.get(semantics.collection)
            if variants is not None and not variants.fits(record, plan.binding.field):
                raise Unfit(f"a record of this kind has no {plan.binding.field}")


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
