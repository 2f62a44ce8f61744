"""Drawing demand shapes: backward chaining from a write tool over the graph of look-ups (METHOD.md §2).

`ShapeSampler` walks: it prefers write tools and look-up tools that were used least, so that all get covered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from envgen.synthesis.catalog import field_words
from envgen.synthesis.picks import DULL, PickSampler
from envgen.synthesis.shapes import NUMBERS, TEXTS, DemandShape, Pick, Selector, ValuePlan
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
        writers = [w for w in self.catalog.writers if w.tool not in self.unusable]
        if not writers:
            return None
        writer = self._rare(writers, lambda w: w.tool)
        return self.shape(writer, hidden=hidden, alone=alone)

    def note(self, shape: DemandShape) -> None:
        """Count the tools of an accepted shape."""
        self.used[shape.semantics.tool] += 1
        for pick in shape.picks:
            if pick.locator:
                self.used.update(pick.locator.tools())

    # -------------------------------------------------------------------------------------------- shapes
    def shape(self, writer: ToolSemantics, *, hidden: bool, alone: bool = True) -> DemandShape | None:
        """A shape for one write tool, or None when nothing leads to its arguments."""
        target: Pick | None = None
        if writer.key is not None and writer.verb != "create":
            target = self.pick_key(
                writer.collection, delete=writer.verb == "delete", avoid=_own_fields(writer)
            )
            if target is None:
                return None
        values: list[ValuePlan] = []
        for binding in self._scope(writer):
            plan = self._key_value(binding, writer)
            if plan is None:
                return None
            values.append(plan)
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
        if alone and not any(v.pick and v.pick.calls for v in values) and not (target and target.calls):
            return None
        if hidden:
            values = self._hide(values, target)
        return DemandShape(writer, target, tuple(values))

    def _scope(self, writer: ToolSemantics) -> list[ParamBinding]:
        """Scope parameters the planner must find a parent for; those of a keyed tool follow from the
        record acted on."""
        if writer.key is not None and writer.verb != "create":
            return []
        needed = self.catalog.required(writer.tool)
        by_param = {b.param: b for b in writer.scope}
        return [b for b in by_param.values() if b.required or b.param in needed or self.rng.random() < 0.7]

    def _key_value(self, binding: ParamBinding, writer: ToolSemantics) -> ValuePlan | None:
        link = self._link(binding, writer)
        if link is None:
            return None
        pick = self.pick_key(link.parent, single=True)
        return ValuePlan(binding, "key", pick) if pick else None

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
            extra = 0 if must else self.rng.choices((1, 2), (4, 1))[0]
        usable = [b for b in may if self._writable(b, writer)]
        if several:  # one name for several records makes no sense
            names = {self.catalog.collections[writer.collection].label}
            names |= {rule.field for rule in writer.preconditions if rule.kind == "unique"}
            usable = [b for b in usable if b.field not in names]
        self.rng.shuffle(usable)
        if not looked_up and not any(self._link(b, writer) for b in must):
            usable.sort(
                key=lambda b: self._link(b, writer) is None
            )  # a reference to another record needs a look-up
            if usable and self._link(usable[0], writer) is not None and self.rng.random() < 0.7:
                extra = max(1, extra)
        chosen = [*must, *usable[:extra]]
        if writer.verb == "update" and not chosen:
            return None
        plans: list[ValuePlan] = []
        computed = looked_up
        for binding in chosen:
            link = self._link(binding, writer)
            if link is not None and binding.field != key:
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
        return plans

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
        if any(rule.kind == "unique" and rule.field == binding.field for rule in writer.preconditions):
            return None
        held = self.catalog.fields[binding.collection, binding.field]
        schema = self.catalog.parameter(writer.tool, binding.param)
        options: list[tuple[float, ValuePlan]] = []
        numeric = held.type in NUMBERS or schema.get("type") in NUMBERS
        if numeric and field_words(held.name)[-1:] == ["id"]:  # an id is no quantity
            return None
        textual = held.type in TEXTS and not held.enum and not schema.get("enum") and not schema.get("format")
        for name, locators in self.catalog.locators.items():
            for locator in locators:
                if not locator.access.many or locator.access.by_label or locator.depth > 3:
                    continue
                key = self.catalog.collections[name].key
                counted = Pick(locator, Selector("all"), name, key)
                wordy = textual and field_words(binding.field)[-1] in (
                    "description",
                    "body",
                    "bio",
                    "message",
                    "note",
                    "notes",
                    "summary",
                )
                if (numeric and not _money(held.name)) or wordy:
                    options.append((0.5, ValuePlan(binding, "count", counted, as_text=not numeric)))
                for shown in self._shown(locator):
                    same = shown.name == held.name and name == writer.collection
                    fits = (numeric and _money(held.name) == _money(shown.name)) or wordy
                    if shown.type in NUMBERS and fits and not DULL & set(field_words(shown.name)[-1:]):
                        summed = Pick(locator, Selector("all", shown.name), name, shown.name)
                        options.append((0.7, ValuePlan(binding, "sum", summed, as_text=not numeric)))
                    if same and self._copyable(shown, held):
                        selector = self._selector(locator, single=True, avoid=frozenset({shown.name}))
                        if selector is not None and selector.kind != "filter":
                            options.append(
                                (1.5, ValuePlan(binding, "copy", Pick(locator, selector, name, shown.name)))
                            )
                label = self.catalog.collections[name].label
                if wordy and label and name != writer.collection and locator.access.path(label) is not None:
                    selector = self._selector(locator, single=True)
                    if selector is not None and selector.kind not in ("filter", "label"):
                        options.append(
                            (0.8, ValuePlan(binding, "copy", Pick(locator, selector, name, label)))
                        )
        if not options:
            return None
        return self.rng.choices([p for _, p in options], [w for w, _ in options])[0]

    def _copyable(self, shown: StateField, held: StateField) -> bool:
        return shown.type == held.type and shown.type not in ("array", "object", "boolean", "id")

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
        """A demand that creates a child of the record ``outer`` creates (an edge from a write tool to a
        write tool)."""
        if outer.semantics.verb != "create" or outer.semantics.tool in self.unusable:
            return None
        parent = self.catalog.collections[outer.semantics.collection]
        if not any(o.field == parent.key and o.collection == parent.name for o in outer.semantics.outputs):
            return None
        inner: list[tuple[ToolSemantics, ParamBinding]] = []
        for writer in self.catalog.writers:
            for binding in writer.scope if writer.verb == "create" else ():
                link = self._link(binding, writer)
                if link is not None and link.parent == parent.name and writer.collection != parent.name:
                    inner.append((writer, binding))
        if not inner:
            return None
        writer, binding = self._rare(inner, lambda o: o[0].tool)
        values: list[ValuePlan] = [ValuePlan(binding, "created")]
        for other in self._scope(writer):
            if other != binding:
                plan = self._key_value(other, writer)
                if plan is None:
                    return None
                values.append(plan)
        plans = self._values(writer, looked_up=True)
        if plans is None or any(p.pick is not None for p in plans):
            return None
        return DemandShape(writer, None, (*values, *plans))


def _own_fields(writer: ToolSemantics) -> frozenset[str]:
    """Fields a write changes by itself: singling out by them would be odd (toggles are the exception that
    reads well)."""
    return (
        frozenset(b.field for b in writer.writes) if writer.verb in ("set", "link", "unlink") else frozenset()
    )


def _money(name: str) -> bool:
    return bool(
        set(field_words(name)) & {"price", "cost", "amount", "total", "fee", "budget", "balance", "value"}
    )
