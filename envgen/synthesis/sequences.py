"""Drawing demand shapes: backward chaining from a write tool over the graph of look-ups (METHOD.md §2).

`ShapeSampler` walks: it prefers write tools and look-up tools that were used least, so that all get covered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from envgen.synthesis.shapes import DemandShape, Pick, ValuePlan
from envgen.synthesis.value_plans import ValuePlanSampler
from envgen.types import ParamBinding, ToolSemantics


@dataclass
class ShapeSampler(ValuePlanSampler):
    """Draws demand shapes from a catalog."""

    unusable: set[str] = field(default_factory=set[str])
    """Write tools no task could be made of."""

    def draw(self, *, hidden: bool, alone: bool = True) -> DemandShape | None:
        """A shape for a write tool that was used little; None when this try led nowhere. Not ``alone``:
        other demands of the task do the looking up, this one may be plain."""
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

    # -------------------------------------------------------------------------------------------- nested
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
