"""Drawing demand shapes: backward chaining from a write tool over the graph of look-ups (METHOD.md §2).

`ShapeSampler` walks: it prefers write tools and look-up tools that were used least, so that all get covered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from envgen.synthesis.catalog import field_words
from envgen.synthesis.picks import PickSampler
from envgen.synthesis.shapes import NUMBERS, DemandShape, Pick, Selector, ValuePlan
from envgen.types import ParamBinding, StateField, ToolSemantics


@dataclass
class ShapeSampler(PickSampler):
    """Draws demand shapes from a catalog."""

    unusable: set[str] = field(default_factory=set[str])
    """Write tools no task could be made of."""
    _can_write: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])

    def draw(self, *, hidden: bool, alone: bool = True) -> DemandShape | None:
        """A shape for a write tool that was used little; None when this try led nowhere. Not ``alone``:
        other demands of
        the task do the looking up, this one may be plain."""
        writers = [w for w in self.catalog.writers if w.tool not in self.unusable and self._speakable(w)]
        if not writers:
            return None
        writer = self._rare(writers, lambda w: w.tool)
        return self.shape(writer, hidden=hidden, alone=alone)

    def note(self, shape: DemandShape) -> None:
        """Count the tools of an accepted shape."""
        self.used[shape.semantics.tool] += 1
        self.edges_used.update(shape.edges())
        for pick in shape.picks:
            if pick.locator:
                self.used.update(pick.locator.tools())

    # -------------------------------------------------------------------------------------------- shapes
    def shape(self, writer: ToolSemantics, *, hidden: bool, alone: bool = True) -> DemandShape | None:
        """A shape for one write tool, or None when nothing leads to its arguments."""
        target: Pick | None = None
        if writer.key is not None and writer.verb != "create":
            target = self.pick_key(
                writer.collection,
                delete=writer.verb == "delete",
                avoid=_own_fields(writer),
                to=(writer.tool, writer.key.param),
                tells=self._told(writer),
            )
            if target is None:
                return None
        values: list[ValuePlan] = []
        for binding in self._scope(writer):
            plan = self._scope_value(binding, writer)
            if plan is None:
                return None
            values.append(plan)
        asked = tuple(values)
        several = target is not None and target.selector.kind == "filter"
        plans = self._values(
            writer,
            several=several,
            looked_up=not alone
            or any(p.pick and p.pick.calls for p in values)
            or bool(target and target.calls),
        )
        if plans is None:
            return None
        values.extend(plans)
        values = [v for v in values if v not in asked or v.kind != "literal" or not self._follows(v, values)]
        if alone and not any(v.pick and v.pick.calls for v in values) and not (target and target.calls):
            return None
        if not values and writer.verb == "create" and not writer.constants:
            return None  # "create a comment": of what, saying what?
        if hidden:
            values = self._hide(values, target)
        return DemandShape(writer, target, tuple(values))

    def _told(self, writer: ToolSemantics) -> frozenset[str]:
        """Plain fields of the record acted on that the tool wants to be told, beside the key."""
        needed = self.catalog.required(writer.tool)
        return frozenset(
            b.field
            for b in writer.scope
            if (b.required or b.param in needed) and self._link(b, writer) is None and writer.key != b
        )

    def _scope(self, writer: ToolSemantics) -> list[ParamBinding]:
        """Scope parameters the planner must find a parent for; those of a keyed tool follow from the
        record acted on."""
        if writer.key is not None and writer.verb != "create":
            return []
        needed = self.catalog.required(writer.tool)
        by_param = {b.param: b for b in writer.scope}
        return [b for b in by_param.values() if b.required or b.param in needed or self.rng.random() < 0.7]

    def _follows(self, plan: ValuePlan, values: list[ValuePlan]) -> bool:
        """True when the look-up of a parent shows what a plain parameter wants: the owner of an issue is
        that of its comments."""
        name = plan.binding.field
        return any(
            v.kind == "key"
            and v.pick is not None
            and v.pick.locator is not None
            and v.pick.yields == v.pick.locator.collection
            and v.pick.locator.access.path(name) is not None
            for v in values
        )

    def _key_value(self, binding: ParamBinding, writer: ToolSemantics) -> ValuePlan | None:
        link = self._link(binding, writer)
        if link is None:
            return None
        pick = self.pick_key(link.parent, single=True, to=(writer.tool, binding.param))
        return ValuePlan(binding, "key", pick) if pick else None

    def _scope_value(self, binding: ParamBinding, writer: ToolSemantics) -> ValuePlan | None:
        """A parent to find, or plain words that say where (the owner of a repository)."""
        if self._link(binding, writer) is None:
            return ValuePlan(binding, "literal") if self._writable(binding, writer) else None
        return self._key_value(binding, writer)

    # -------------------------------------------------------------------------------------------- values
    def _values(
        self, writer: ToolSemantics, *, looked_up: bool, several: bool = False
    ) -> list[ValuePlan] | None:
        needed = self.catalog.required(writer.tool)
        must = [b for b in writer.writes if b.required or b.param in needed]
        taken = {b.param for b in must}
        may = [b for b in writer.writes if b.param not in taken]
        key = self.catalog.collections[writer.collection].key
        if writer.verb == "create":
            label = self.catalog.collections[writer.collection].label
            must += [b for b in may if b.field == label]
            may = [b for b in may if b.field not in (label, key)]
            extra = self.rng.choices((0, 1, 2), (4, 4, 1))[0] if len(must) < 4 else 0
        else:
            extra = 0 if must or writer.deltas else self.rng.choices((1, 2), (4, 1))[0]
        usable = [b for b in may if self._writable(b, writer)]
        if several:  # one name for several records makes no sense
            names = {self.catalog.collections[writer.collection].label}
            names |= {rule.field for rule in writer.preconditions if rule.kind == "unique"}
            if any(b.field in names for b in must):
                return None
            usable = [b for b in usable if b.field not in names]
        self.rng.shuffle(usable)
        if not looked_up and not any(self._link(b, writer) for b in must):
            usable.sort(
                key=lambda b: self._link(b, writer) is None
            )  # a reference to another record needs a look-up
            if usable and self._link(usable[0], writer) is not None and self.rng.random() < 0.7:
                extra = max(1, extra)
        chosen = [*must, *usable[:extra]]
        if writer.verb == "update" and not chosen and not writer.deltas:
            return None
        plans: list[ValuePlan] = []
        computed = looked_up
        for binding in chosen:
            link = self._link(binding, writer)
            if link is not None:  # also where the key of a record is that of another (a watched stock)
                plan = self._key_value(binding, writer)
                if plan is None and binding in must:
                    return None
                if plan is not None:
                    plans.append(plan)
                    computed = computed or bool(plan.pick and plan.pick.calls)
                continue
            if not self._writable(binding, writer):
                return None
            plans.append(ValuePlan(binding, "literal"))
        chance = 0.12 if computed else 1.0
        if self.rng.random() < chance:
            plans = self._compute_one(plans, usable[extra:], writer, forced=not computed)
        return [*(ValuePlan(binding, "amount") for binding in writer.amounts), *plans]

    def _speakable(self, writer: ToolSemantics) -> bool:
        """False for a tool that insists on what nobody can say: an object of which the document names no
        member. It would be the least used one for ever, and drawn each time."""
        needed = self.catalog.required(writer.tool)
        return all(
            self._link(b, writer) is not None or self._writable(b, writer)
            for b in writer.writes
            if b.required or b.param in needed
        )

    def _writable(self, binding: ParamBinding, writer: ToolSemantics) -> bool:
        """True when a value for the parameter can be made and said."""
        known = self._can_write.get((writer.tool, binding.param))
        if known is None:
            known = self._can_write[writer.tool, binding.param] = self._sayable(binding, writer)
        return known

    def _sayable(self, binding: ParamBinding, writer: ToolSemantics) -> bool:
        held = self.catalog.fields.get((binding.collection, binding.field))
        if held is None or held.policy == "exempt":
            return False
        if held.references:
            return held.type != "array"
        key = self.catalog.collections[binding.collection].key
        if field_words(held.name) == ["id"] and held.name != key:
            return False  # a second id is nothing a person sets
        schema = self.catalog.parameter(writer.tool, binding.param)
        if held.type == "object" or schema.get("type") == "object":
            return bool(schema.get("properties"))
        if held.type == "array":
            items: dict[str, Any] = schema.get("items") or {}
            return items.get("type", "string") not in ("object", "array")
        return True

    def _compute_one(
        self, plans: list[ValuePlan], spare: list[ParamBinding], writer: ToolSemantics, *, forced: bool
    ) -> list[ValuePlan]:
        """Let one literal be a copy, a count or a sum of what is looked up."""
        label = self.catalog.collections[writer.collection].label
        order = [i for i, p in enumerate(plans) if p.kind == "literal" and p.binding.field != label]
        self.rng.shuffle(order)
        for index in order:
            better = self._computed(plans[index].binding, writer)
            if better is not None:
                return [*plans[:index], better, *plans[index + 1 :]]
        if forced:
            for binding in spare:
                better = self._computed(binding, writer)
                if better is not None:
                    return [*plans, better]
        return plans

    def _computed(self, binding: ParamBinding, writer: ToolSemantics) -> ValuePlan | None:
        """A value that follows from what a look-up shows, and that a person would want there: the same as
        another record's of the same field, or the total of what belongs together. No description is set to
        the number of something: nobody asks for that."""
        if any(rule.kind == "unique" and rule.field == binding.field for rule in writer.preconditions):
            return None
        held = self.catalog.fields[binding.collection, binding.field]
        if field_words(held.name)[-1:] == ["id"]:  # an id is no quantity
            return None
        options: list[tuple[float, ValuePlan]] = []
        for name, locators in self.catalog.locators.items():
            for locator in locators:
                if locator.access.by_label or locator.depth > 3:
                    continue
                told = {name for _, name in locator.access.given} | {path for path, _ in locator.access.where}
                for shown in self._shown(locator):
                    if shown.name in told:  # the status of the asset that was asked for as disposed
                        continue
                    if not self._copyable(shown, held, name, writer) or not locator.needed_for(shown.name):
                        continue
                    if locator.access.single:
                        selector = Selector("only")
                    else:
                        own = frozenset({shown.name} if name == writer.collection else ())
                        selector = self._selector(locator, single=True, avoid=own)
                    if selector is None or selector.kind == "filter":
                        continue
                    known = self.edges_used[locator.access.tool, writer.tool, binding.param]
                    fresh = 1.5 / (1 + known) / (1 + 0.5 * (locator.depth - 1))
                    options.append(
                        (fresh, ValuePlan(binding, "copy", Pick(locator, selector, name, shown.name)))
                    )
                    if locator.access.many and _totals(held, shown):
                        summed = Pick(locator, Selector("all", shown.name), name, shown.name)
                        options.append((0.7, ValuePlan(binding, "sum", summed)))
        if not options:
            return None
        return self.rng.choices([p for _, p in options], [w for w, _ in options])[0]

    def _copyable(self, shown: StateField, held: StateField, owner: str, writer: ToolSemantics) -> bool:
        """True when "the same X as" makes sense: the same field of the same kind of record, or one that is
        called the same elsewhere and means the same everywhere (an amount, an email, a city)."""
        if shown.type != held.type or shown.type in ("array", "object", "boolean", "id"):
            return False
        if owner == writer.collection:
            return shown.name == held.name
        label = self.catalog.collections[owner].label
        words = field_words(held.name)[-1:]
        return shown.name == held.name and shown.name != label and words[0] in _SHARED

    def _hide(self, values: list[ValuePlan], target: Pick | None) -> list[ValuePlan]:
        """Make one literal a fact that must be asked for."""
        order = [
            i
            for i, v in enumerate(values)
            if v.kind == "literal"
            and self.catalog.fields[v.binding.collection, v.binding.field].type
            not in ("boolean", "object", "array")
        ]
        if not order or (target is not None and target.selector.kind == "filter"):
            return values
        index = self.rng.choice(order)
        return [*values[:index], replace(values[index], kind="hidden"), *values[index + 1 :]]

    def nested(self, outer: DemandShape) -> DemandShape | None:
        """A demand about the record that ``outer`` creates: a child of it, or a change that creation cannot
        make (an edge from a write tool to a write tool)."""
        if outer.semantics.verb != "create" or outer.semantics.tool in self.unusable:
            return None
        parent = self.catalog.collections[outer.semantics.collection]
        if not any(o.field == parent.key and o.collection == parent.name for o in outer.semantics.outputs):
            return None
        inner: list[tuple[ToolSemantics, ParamBinding]] = []
        settable = {b.field for b in outer.semantics.writes} | set(outer.semantics.constants)
        for writer in self.catalog.writers:
            if (
                writer.key is not None
                and writer.collection == parent.name
                and writer.verb not in ("create", "delete")
            ):
                changed = {*(b.field for b in writer.writes), *writer.constants, writer.toggles} - {""}
                changed = {name for name in changed if self._of_kind(outer.semantics, name)}
                settled = writer.constants and all(
                    self.catalog.fields[parent.name, n].default == v
                    for n, v in writer.constants.items()
                    if (parent.name, n) in self.catalog.fields
                )
                if changed - settable and not self._beyond(writer, outer) and not settled:
                    inner.append((writer, writer.key))
            for binding in (*writer.scope, *writer.writes) if writer.verb == "create" else writer.writes:
                link = self._link(binding, writer)
                if link is not None and link.parent == parent.name and writer.collection != parent.name:
                    inner.append((writer, binding))
        if not inner:
            return None
        made_by = outer.semantics.tool
        weights = [
            1 / (1 + self.edges_used[made_by, w.tool, b.param]) ** 1.5 / (1 + self.used[w.tool])
            for w, b in inner
        ]
        writer, binding = self.rng.choices(inner, weights)[0]
        values: list[ValuePlan] = [ValuePlan(binding, "created")]
        if writer.verb != "create" and binding == writer.key:
            return self._change_of_new(writer, values, settable, outer.semantics)
        if writer.verb != "create":
            return self._given_new(writer, values[0])
        for other in self._scope(writer):
            if other != binding and not self._passed_on(other, writer, outer):
                plan = self._scope_value(other, writer)
                if plan is None:
                    return None
                values.append(plan)
        plans = self._values(writer, looked_up=True)
        plans = [p for p in plans if p.binding.field != binding.field] if plans is not None else None
        if plans is None or any(p.pick is not None for p in plans):
            return None
        return DemandShape(writer, None, (*values, *plans))

    def _passed_on(self, binding: ParamBinding, writer: ToolSemantics, outer: DemandShape) -> bool:
        """True for plain words that say where (the owner of a repository) and that the outer demand says of
        its new record already."""
        given = {b.field for b in outer.semantics.scope if self._link(b, outer.semantics) is None}
        return binding.field in given and self._link(binding, writer) is None

    def _beyond(self, writer: ToolSemantics, outer: DemandShape) -> bool:
        """True when a tool wants to be told more of a new record than the demand that makes it says."""
        return any(not self._passed_on(b, writer, outer) for b in writer.scope if b != writer.key)

    def _of_kind(self, maker: ToolSemantics, name: str) -> bool:
        """True when a record of the kind that a tool makes can have a field."""
        variants = self.catalog.variants.get(maker.collection)
        return variants is None or variants.fits(maker.constants, name)

    def _given_new(self, writer: ToolSemantics, new: ValuePlan) -> DemandShape | None:
        """A change that gives another record the one just made: the user gets the new role."""
        needed = self.catalog.required(writer.tool)
        others = [b for b in writer.writes if (b.required or b.param in needed) and b != new.binding]
        if writer.key is None or writer.deltas or writer.constants or others:
            return None
        to = (writer.tool, writer.key.param)
        target = self.pick_key(writer.collection, single=True, to=to, tells=self._told(writer))
        return DemandShape(writer, target, (new,)) if target is not None else None

    def _change_of_new(
        self, writer: ToolSemantics, values: list[ValuePlan], settable: set[str], maker: ToolSemantics
    ) -> DemandShape | None:
        """A change of a record just made, in fields that its creation does not set."""
        needed = self.catalog.required(writer.tool)
        for binding in writer.writes:
            must = binding.required or binding.param in needed
            if must and (binding.field in settable or not self._writable(binding, writer)):
                return None
            if must:
                values.append(ValuePlan(binding, "literal"))
        may = [b for b in writer.writes if b.field not in settable and self._writable(b, writer)]
        may = [b for b in may if all(v.binding != b for v in values) and self._link(b, writer) is None]
        may = [b for b in may if self._of_kind(maker, b.field)]
        if len(values) == 1 and may and not writer.constants and not writer.toggles:
            values.append(ValuePlan(self.rng.choice(may), "literal"))
        if len(values) == 1 and not writer.constants and not writer.toggles:
            return None
        return DemandShape(writer, None, tuple(values))


def _own_fields(writer: ToolSemantics) -> frozenset[str]:
    """Fields a write changes by itself: singling out by them would be odd (toggles are the exception that
    reads well)."""
    return (
        frozenset(b.field for b in writer.writes) if writer.verb in ("set", "link", "unlink") else frozenset()
    )


_SHARED = {
    "amount", "price", "cost", "quantity", "currency", "email", "phone", "address", "city", "country",
    "location", "language", "locale", "timezone", "schedule", "color", "colour", "size", "weight", "unit",
    "deadline", "exchange",
}  # fmt: skip
"""Last words of fields that mean the same in every kind of record."""


def _totals(held: StateField, shown: StateField) -> bool:
    """True when a field wants the total of another: ``total_price`` of prices."""
    words = field_words(held.name)
    return (
        held.type in NUMBERS
        and shown.type in NUMBERS
        and "total" in words
        and field_words(shown.name)[-1:] == words[-1:]
        and held.name != shown.name
    )
