"""Stage 2: what a tool does, as the model states it, to `ToolSemantics`; refused where it does not fit the
document or the state structure."""

from __future__ import annotations

from typing import Any

from envgen.proposers.model.answers import BindingAnswer, OutputAnswer, RuleAnswer, StatementAnswer
from envgen.proposers.model.asking import Wrong
from envgen.proposers.rules.entity import is_credential
from envgen.proposers.rules.parts import must_exist
from envgen.proposers.rules.words import a
from envgen.synthesis.catalog import container
from envgen.synthesis.schema import children_of, descendants, field_of, is_clock, paging_kind
from envgen.types import (
    Collection,
    FieldSpec,
    OutputBinding,
    ParamBinding,
    Precondition,
    StateSchema,
    ToolSemantics,
    ToolSpec,
)

WRITING = frozenset({"create", "update", "set", "toggle", "delete"})
_ON_ONE = frozenset({"get", "update", "set", "toggle", "delete"})


def hidden_params(spec: ToolSpec) -> tuple[str, ...]:
    """Parameters no agent is offered: credentials, headers, cookies."""
    return tuple(p.name for p in spec.params if p.location in ("header", "cookie") or is_credential(p))


def build_statement(answer: StatementAnswer, spec: ToolSpec, schema: StateSchema) -> ToolSemantics:
    """The semantics an answer states. Raises Wrong with everything that does not hold."""
    return _Builder(answer, spec, schema).build()


class _Builder:
    def __init__(self, answer: StatementAnswer, spec: ToolSpec, schema: StateSchema) -> None:
        self.answer = answer
        self.spec = spec
        self.schema = schema
        self.problems: list[str] = []
        known = {c.name: c for c in schema.collections}
        if answer.collection not in known:
            raise Wrong(f"collection {answer.collection!r}: expected one of {', '.join(known)}")
        self.col: Collection = known[answer.collection]

    def build(self) -> ToolSemantics:
        said = self.answer
        hidden = hidden_params(self.spec)
        key = self._key()
        scope = self._bindings("scope", said.scope)
        filters = self._bindings("filters", said.filters)
        writes = self._bindings("writes", said.writes)
        for item in scope:
            owner = field_of(self.col, item.field)
            if owner is not None and not owner.references:
                self._wrong(
                    f"scope {item.param!r}: field {item.field!r} refers to no collection; make it a filter"
                )
        self._verb(key, filters, writes)
        self._explained([*([key] if key else []), *scope, *filters, *writes], hidden)
        self._paging()
        constants = self._values("constants", said.constants)
        where = self._values("where", said.where)
        increments = self._values("increments", said.increments)
        if any(type(v) is not int for v in increments.values()):
            self._wrong("increments: expected whole numbers")
        if said.toggles and self._field("toggles", said.toggles) not in (None, "boolean"):
            self._wrong(f"toggles: {said.toggles!r} is no boolean field")
        rules = [*self._exists(key, scope), *self._rules(said.rules, writes)]
        cascades = self._on_delete(key, rules)
        if said.verb == "create":
            self._filled(scope, writes, constants)
        outputs = self._outputs(said.outputs)
        if self.problems:
            raise Wrong("; ".join(self.problems[:8]))
        return ToolSemantics(
            tool=self.spec.name,
            verb=said.verb,
            collection=self.col.name,
            key=key,
            scope=scope,
            filters=filters,
            writes=writes,
            constants=constants,
            toggles=said.toggles,
            ignored=(*hidden, *said.ignored),
            paging=said.paging,
            preconditions=tuple(rules),
            outputs=outputs,
            many=said.verb in ("list", "search"),
            writes_state=said.verb in WRITING,
            cascades=cascades,
            assumptions=said.assumptions,
            defaults=self._defaults(),
            increments=increments,
            where=where,
        )

    # ---------------------------------------------------------------- parts
    def _wrong(self, text: str) -> None:
        self.problems.append(text)

    def _field(self, part: str, name: str) -> str | None:
        item = field_of(self.col, name)
        if item is None:
            self._wrong(f"{part}: {self.col.name} has no field {name!r}")
            return None
        return item.type

    def _param(self, part: str, path: str) -> tuple[FieldSpec | None, bool]:
        """The parameter at a dotted path, and whether every call carries it."""
        specs = {p.name: p for p in self.spec.params}
        found: FieldSpec | None = None
        required = True
        for name in path.split("."):
            found = specs.get(name)
            if found is None:
                self._wrong(f"{part}: the tool has no parameter {path!r}")
                return None, False
            required = required and found.required
            specs = {p.name: p for p in found.properties}
        return found, required

    def _key(self) -> ParamBinding | None:
        name = self.answer.key
        if not name:
            return None
        _, required = self._param("key", name)
        if not required:
            self._wrong(f"key: {name!r} is not a required parameter, so the record would be unknown")
        return ParamBinding(param=name, collection=self.col.name, field=self.col.key, required=True)

    def _bindings(self, part: str, items: tuple[BindingAnswer, ...]) -> tuple[ParamBinding, ...]:
        made: list[ParamBinding] = []
        for item in items:
            _, required = self._param(part, item.param)
            self._field(part, item.field)
            if part != "filters" and item.op != "eq":
                self._wrong(f"{part} {item.param!r}: op is eq")
            binding = ParamBinding(
                param=item.param, collection=self.col.name, field=item.field, op=item.op, required=required
            )
            made.append(binding)
        return tuple(made)

    def _values(self, part: str, items: tuple[Any, ...]) -> dict[str, Any]:
        for item in items:
            self._field(part, item.field)
        return {item.field: item.value for item in items}

    def _verb(
        self, key: ParamBinding | None, filters: tuple[ParamBinding, ...], writes: tuple[ParamBinding, ...]
    ) -> None:
        said = self.answer
        verb = said.verb
        if verb in _ON_ONE and key is None and not self.col.singleton:
            self._wrong(f"{verb} acts on one record: name the parameter with its key")
        if verb in ("list", "search", "create") and key is not None:
            self._wrong(f"{verb} has no key; bind a key that the caller chooses in writes")
        if verb == "update" and not writes and not said.increments:
            self._wrong("update writes nothing; name the parameters stored, or use set or toggle")
        if verb == "set" and not said.constants and not writes:
            self._wrong("set needs constants")
        if (verb == "toggle") != bool(said.toggles):
            self._wrong("toggle and toggles go together")
        if filters and verb not in ("list", "search"):
            self._wrong(f"filters belong to list and search, not to {verb}")
        if verb not in WRITING and (writes or said.constants or said.increments):
            self._wrong(f"{verb} writes nothing")
        if self.col.singleton and verb in ("list", "search", "create", "delete"):
            self._wrong(f"{self.col.name} is one record: expected get, update, set or toggle")

    def _explained(self, bindings: list[ParamBinding], hidden: tuple[str, ...]) -> None:
        said = self.answer
        roots = {b.param.split(".")[0] for b in bindings} | set(said.paging)
        for spec in self.spec.params:
            if spec.name in hidden or spec.name in roots:
                continue
            if spec.name not in said.ignored:
                self._wrong(f"parameter {spec.name!r} is not explained")
            elif spec.required:
                self._wrong(f"parameter {spec.name!r} is required and cannot be ignored")
        for name in said.ignored:
            self._param("ignored", name)
            if name in roots:
                self._wrong(f"parameter {name!r} is both used and ignored")

    def _paging(self) -> None:
        for name in self.answer.paging:
            self._param("paging", name)
            if not paging_kind(name):
                self._wrong(f"paging: {name!r} is no paging parameter by its name; filter or ignore it")
            if self.answer.verb not in ("list", "search"):
                self._wrong("paging belongs to list and search")

    def _defaults(self) -> dict[str, Any]:
        if self.answer.verb not in ("list", "search", "create"):
            return {}  # an update that is not told a field leaves it
        bound = {b.param for b in (*self.answer.filters, *self.answer.writes)} | set(self.answer.paging)
        own = {d.param: d.value for d in self.answer.defaults if d.param in bound}
        given = {p.name: p.default for p in self.spec.params if p.default is not None and p.name in bound}
        return {**own, **given}

    def _exists(self, key: ParamBinding | None, scope: tuple[ParamBinding, ...]) -> list[Precondition]:
        rules: list[Precondition] = []
        if key is not None:
            rules.append(must_exist(self.col, key.param, self.spec.pointer))
        for item in scope:
            owner = field_of(self.col, item.field)
            if owner is not None and owner.references:
                rules.append(
                    must_exist(self.schema.collection(owner.references), item.param, self.spec.pointer)
                )
        return rules

    def _rules(self, items: tuple[RuleAnswer, ...], writes: tuple[ParamBinding, ...]) -> list[Precondition]:
        rules: list[Precondition] = []
        noun = self.col.entity
        for item in items:
            self._field("rules", item.field)
            value: Any = None
            if item.kind == "unique":
                text = f"Another {noun} has this {item.field}."
                if item.field not in {b.field for b in writes}:
                    self._wrong(f"rules: unique {item.field!r}, but the tool does not write it")
            else:
                if self.answer.verb not in _ON_ONE:
                    self._wrong(f"rules: {item.kind} is about one existing record")
                if not item.values or (item.kind != "field_in" and len(item.values) != 1):
                    self._wrong(
                        f"rules: {item.kind} takes {'values' if item.kind == 'field_in' else 'one value'}"
                    )
                    continue
                value = list(item.values) if item.kind == "field_in" else item.values[0]
                text = f"The {item.field} of this {noun} does not allow it."
            rules.append(
                Precondition(
                    kind=item.kind,
                    collection=self.col.name,
                    field=item.field,
                    value=value,
                    message=text,
                    provenance=self.spec.pointer,
                )
            )
        return rules

    def _on_delete(self, key: ParamBinding | None, rules: list[Precondition]) -> tuple[str, ...]:
        if self.answer.verb != "delete":
            return ()
        children = children_of(self.schema, self.col.name)
        if children and not self.answer.on_delete:
            self._wrong("on_delete: other records refer to these: cascade or refuse")
        cascade = self.answer.on_delete == "cascade"
        for child, name in children:
            owner = self.schema.collection(child)
            item = field_of(owner, name)
            if cascade and item is not None and item.required:
                continue
            record = f"{{{key.param}}}" if key is not None else ""
            rules.append(
                Precondition(
                    kind="no_children",
                    collection=child,
                    field=name,
                    message=f"{self.col.entity.capitalize()} {record} still has {a(owner.entity)}.",
                    provenance="assumption: a record that others refer to is kept",
                )
            )
        return tuple(name for name, _, _ in descendants(self.schema, self.col.name)) if cascade else ()

    def _filled(
        self, scope: tuple[ParamBinding, ...], writes: tuple[ParamBinding, ...], constants: dict[str, Any]
    ) -> None:
        told = {b.field for b in (*scope, *writes) if b.required} | set(constants)
        for item in self.col.fields:
            own_key = item.name == self.col.key and self.col.key_generated
            clock = is_clock(item.name, item.policy, creation=True)
            if item.required and item.default is None and item.name not in told and not own_key and not clock:
                self._wrong(f"create: the required field {item.name!r} gets no value")

    def _outputs(self, items: tuple[OutputAnswer, ...]) -> tuple[OutputBinding, ...]:
        many = self.answer.verb in ("list", "search")
        if not items and self.answer.verb not in WRITING:
            self._wrong("outputs: a read shows something; name the paths of the fields")
        for item in items:
            self._field("outputs", item.field)
            if item.path.count("[]") != int(many):
                form = "one [] (many records)" if many else "no [] (one record)"
                self._wrong(f"outputs {item.path!r}: expected {form}")
        if len({container(item.path)[0] for item in items}) > 1:
            self._wrong("outputs: all paths lie in one element")
        if many and self.col.key not in {item.field for item in items}:
            self._wrong(f"outputs: show the key {self.col.key!r}, or nothing listed could be acted on")
        return tuple(OutputBinding(path=i.path, collection=self.col.name, field=i.field) for i in items)
