"""Drawing where each written argument comes from: said by the user, asked for, looked up, or computed from
what a look-up shows (METHOD.md §2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from envgen.synthesis.catalog import field_words
from envgen.synthesis.picks import PickSampler
from envgen.synthesis.shapes import NUMBERS, Pick, Selector, ValuePlan
from envgen.types import ParamBinding, StateField, ToolSemantics

_SHARED = {
    "amount", "price", "cost", "quantity", "currency", "email", "phone", "address", "city", "country",
    "location", "language", "locale", "timezone", "schedule", "color", "colour", "size", "weight", "unit",
    "deadline", "exchange",
}  # fmt: skip
"""Last words of fields that mean the same in every kind of record."""


@dataclass
class ValuePlanSampler(PickSampler):
    """Draws value plans for the parameters of a write tool."""

    _can_write: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    """(tool, parameter) -> whether a value for it can be made and said."""

    def _values(
        self, writer: ToolSemantics, *, looked_up: bool, several: bool = False
    ) -> list[ValuePlan] | None:
        """Plans for what the tool writes, or None when one it insists on cannot be said or found. Not
        ``looked_up``: nothing of the demand leads to a look-up yet. ``several``: for many records at once."""
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

    def _key_value(self, binding: ParamBinding, writer: ToolSemantics) -> ValuePlan | None:
        """The key of a parent to find; None where the parameter carries none, or nothing leads to one."""
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
