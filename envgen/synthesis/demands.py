"""Concrete demands: a shape meets a world. Records are chosen (`envgen.synthesis.choosing`), values are made,
and the world is tuned so that the goal has one reading.

`Chooser` decides everything on the world first (it is the truth); `envgen.synthesis.tasks` then executes the
real functions and compares what comes out with what was decided here. Any disagreement drops the sample.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from typing import Any

from envgen.runtime.adding import add_up
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.choices import Choice, Demand, Footprint, Unfit, Value, static_footprint
from envgen.synthesis.choosing import RecordChooser
from envgen.synthesis.shapes import DemandShape, ValuePlan
from envgen.synthesis.values import ValueMaker
from envgen.synthesis.world import World
from envgen.types import ToolSemantics


class Chooser(RecordChooser):
    """Chooses records and values for shapes, tuning the world where a goal needs it."""

    def __init__(self, catalog: Catalog, world: World, maker: ValueMaker, rng: random.Random) -> None:
        super().__init__(catalog, world, maker, rng)
        self.labels_given: dict[str, set[str]] = {}
        """Collection -> names, and other values that no two records share, that the demands so far give."""
        self.taken: Counter[tuple[str, str, str]] = Counter()
        """(collection, key, field) -> what the demands so far take away from it."""

    def demand(self, shape: DemandShape, outer: Demand | None = None) -> tuple[Demand, Footprint]:
        """Realise one shape. ``outer``: the demand whose new record it hangs under. Raises Unfit when the
        world does not allow it."""
        print_ = static_footprint(self.catalog, shape)
        target = None
        semantics = shape.semantics
        self.gentle = semantics.verb in ("set", "toggle")
        if shape.target is not None:
            target = self.choose(shape.target, print_, acted_on=semantics)
            self._prepare(target, semantics)
            for record in target.chosen:
                key = record.get(target.pick.answer)
                print_.written_records.add((semantics.collection, str(key)))
            if not self.gentle:
                print_.unsettled_records |= print_.written_records
            print_.read_records -= print_.written_records
            print_.named_records -= print_.written_records
        values = self._values(shape, target, outer, print_)
        self.read |= print_.read_records
        self.named |= print_.named_records
        self.written |= print_.written_records
        return Demand(shape, target, values), print_

    def _values(
        self, shape: DemandShape, target: Choice | None, outer: Demand | None, print_: Footprint
    ) -> tuple[Value, ...]:
        """Values of a shape in its order. Parents are chosen first: they decide which days there are."""
        made: dict[int, Value] = {}
        for chosen in (True, False):
            for index, plan in enumerate(shape.values):
                if (plan.pick is not None or plan.kind == "created") == chosen:
                    made[index] = self._value(plan, shape.semantics, target, print_, made.values(), outer)
        self._must_fit(shape.semantics, {}, target, made.values(), outer)
        return tuple(made[index] for index in range(len(shape.values)))

    def _value(
        self,
        plan: ValuePlan,
        semantics: ToolSemantics,
        target: Choice | None,
        print_: Footprint,
        made: Collection[Value] = (),
        outer: Demand | None = None,
    ) -> Value:
        if plan.pick is not None:
            choice = self.choose(plan.pick, print_)
            for _ in range(4):  # what is on a list cannot be put there again
                if not self._there_already(plan, semantics, choice):
                    break
                choice = self.choose(plan.pick, print_)
            if plan.kind in ("key", "copy"):
                value = choice.anchor.get(plan.pick.answer)
                if value is None:
                    raise Unfit(f"the record has no {plan.pick.answer}")
            elif plan.kind == "count":
                value = len(choice.chosen)
            else:
                value = add_up(r[plan.pick.selector.field] for r in choice.chosen)
            self._must_change(plan, semantics, target, value)
            return Value(plan, str(value) if plan.as_text else value, choice)
        if plan.kind == "created":
            return Value(plan)
        if plan.kind == "amount":
            return Value(plan, self._amount(plan, semantics, target))
        collection = self.catalog.collections[plan.binding.collection]
        held = self.catalog.fields[plan.binding.collection, plan.binding.field]
        schema = self.catalog.parameter(semantics.tool, plan.binding.param)
        unique = {rule.field for rule in semantics.preconditions if rule.kind == "unique"}
        distinct = held.name in (collection.label, collection.key) or held.name in unique
        taken = (
            {str(r.get(held.name)) for r in self.world.records(collection.name)} if distinct else set[str]()
        )
        taken |= self.labels_given.get(collection.name, set()) if distinct else set()
        days = self._days(semantics, held.name, target, made, outer)
        _, parents = self._after(semantics, target, made, outer)
        inherited = self.sense.given(semantics.collection, held.name, parents)
        value: Any = None
        for _ in range(24):
            value = inherited if inherited is not None else self.maker.value(collection, held, schema)
            if value is None:
                break
            if days is not None:
                if not days:
                    raise Unfit(f"no day for {collection.name}.{held.name}")
                value = self.rng.choice(days) + str(value)[10:]
            if held.type == "boolean" and target is not None:
                current = self._current(target, semantics, held.name)
                value = not current if isinstance(current, bool) else value
            try:
                self._must_change(plan, semantics, target, value)
                self._must_fit(semantics, {held.name: value}, target, made, outer)
            except Unfit:
                continue
            if str(value) not in taken:
                if distinct:
                    self.labels_given.setdefault(collection.name, set()).add(str(value))
                return Value(plan, value)
        if held.name == collection.label and isinstance(value, str) and value in taken:
            name = self.maker.pool.longer(self.rng, value)
            if name not in taken:
                self.labels_given.setdefault(collection.name, set()).add(name)
                return Value(plan, name)
        raise Unfit(f"no fresh value for {collection.name}.{held.name}")

    def _amount(self, plan: ValuePlan, semantics: ToolSemantics, target: Choice | None) -> Any:
        """What a field changes by. What is taken away fits what is there at the start, so that the order of
        demands does not matter."""
        owner, name = plan.binding.collection, plan.binding.field
        schema = self.catalog.parameter(semantics.tool, plan.binding.param)
        value = self.maker.value(self.catalog.collections[owner], self.catalog.fields[owner, name], schema)
        change = next(d for d in semantics.deltas if d.param == plan.binding.param)
        if change.sign > 0 or not change.message:
            return value
        records = target.chosen if target is not None else self.world.records(owner)
        places = [(owner, str(r.get(self.catalog.collections[owner].key)), name) for r in records]
        left = min(r.get(name) or 0 for r in records) - max(self.taken[place] for place in places)
        if left < 2:
            raise Unfit(f"too little {name} to take from")
        value = self.rng.randint(1, int(left) - 1) if value >= left else value
        self.taken.update(dict.fromkeys(places, value))
        return value
