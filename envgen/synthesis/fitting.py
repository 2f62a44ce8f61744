"""What a demand asks of its records: that the tool can act on them, that something changes, and that what is
asked for makes sense."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from envgen.synthesis.catalog import Catalog, link_of
from envgen.synthesis.choices import Choice, Demand, Unfit, Value
from envgen.synthesis.sense import Sense
from envgen.synthesis.shapes import ValuePlan
from envgen.synthesis.values import ValueMaker
from envgen.synthesis.world import World, parents_of
from envgen.types import ParamBinding, Record, ToolSemantics


class Fitting:
    """Checks and prepares the records of one world."""

    def __init__(self, catalog: Catalog, world: World, maker: ValueMaker, rng: random.Random) -> None:
        self.catalog = catalog
        self.world = world
        self.maker = maker
        self.rng = rng
        self.sense = Sense(catalog)

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
                known = self.catalog.collections[children]
                parents = parents_of(self.catalog, self.world, known, child)
                self.sense.repair(children, child, parents, self.rng)

    def _other(self, collection: str, field_name: str, value: Any) -> Any:
        held = self.catalog.fields[collection, field_name]
        options = [o for o in held.enum if o != value]
        if isinstance(value, bool):
            return not value
        if options:
            return self.rng.choice(options)
        raise Unfit(f"no other value for {collection}.{field_name}")

    def _after(
        self, semantics: ToolSemantics, target: Choice | None, made: Collection[Value], outer: Demand | None
    ) -> tuple[Record, dict[str, Record]]:
        """The record as far as it is written so far, and its parents."""
        record: Record = dict(semantics.constants)
        if target is not None and semantics.verb != "create":
            key = str(target.anchor.get(target.pick.answer))
            record = {**self.world.state[semantics.collection].get(key, {}), **record}
        parents = parents_of(self.catalog, self.world, self.catalog.collections[semantics.collection], record)
        for value in made:
            name = self._field(value.plan.binding, semantics)
            if value.plan.kind == "amount":  # the field becomes something else
                continue
            if value.plan.kind == "created":
                record[name] = "new"
                if outer is not None:
                    parents[name] = {v.plan.binding.field: v.value for v in outer.values}
            else:
                record[name] = value.value
                if value.choice is not None and value.plan.kind == "key":
                    table = self.world.state[value.choice.pick.yields]
                    parents[name] = table.get(str(value.value), {})
        return record, parents

    def _field(self, binding: ParamBinding, semantics: ToolSemantics) -> str:
        """The field of the written record that a parameter fills."""
        link = link_of(binding, semantics, self.catalog.fields, self.catalog.collections)
        return link.foreign_key if link is not None else binding.field

    def _days(
        self,
        semantics: ToolSemantics,
        name: str,
        target: Choice | None,
        made: Collection[Value],
        outer: Demand | None,
    ) -> list[str] | None:
        """The days a date can be on, None where nothing says."""
        if name not in self.sense.dated(semantics.collection):
            return None
        _, parents = self._after(semantics, target, made, outer)
        known = self.catalog.collections[semantics.collection]
        owners = {f.name: f.references for f in known.fields if f.references}
        found: set[str] | None = None
        for link, parent in parents.items():
            days = self.sense.days(owners[link], parent) if link in owners else None
            if days is not None:
                found = set(days) if found is None else found & set(days)
        return None if found is None else sorted(found)

    def _must_fit(
        self,
        semantics: ToolSemantics,
        more: Record,
        target: Choice | None,
        made: Collection[Value],
        outer: Demand | None,
    ) -> None:
        """A record that makes no sense is nothing a user asks for."""
        for anchor in target.chosen if target is not None else (None,):
            one = replace(target, anchor=anchor) if target is not None and anchor is not None else None
            record, parents = self._after(semantics, one, made, outer)
            why = self.sense.problem(semantics.collection, {**record, **more}, parents)
            if not why and one is not None and semantics.verb == "update":
                key = str(one.anchor.get(one.pick.answer))
                why = self._child_problem(semantics.collection, key, {**record, **more})
            if why:
                raise Unfit(why)

    def _child_problem(self, collection: str, key: str, after: Record) -> str:
        """Why a changed record would leave something below it without sense: tickets for other days."""
        for owner, link in self.catalog.children.get(collection, ()):
            for child in self.world.records(owner):
                if str(child.get(link)) == key:
                    why = self.sense.problem(owner, child, {link: after})
                    if why:
                        return why
        return ""

    def _there_already(self, plan: ValuePlan, semantics: ToolSemantics, choice: Choice) -> bool:
        """True when a create tool would make a record that has the key of one there is."""
        key = self.catalog.collections[semantics.collection].key
        if semantics.verb != "create" or plan.kind != "key" or plan.binding.field != key:
            return False
        return str(choice.anchor.get(choice.pick.answer)) in self.world.state[semantics.collection]

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
