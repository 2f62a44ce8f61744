"""The checks of a generated tool: everything that can answer an error stands before the first write."""

from __future__ import annotations

from envgen.synthesis.schema import field_of
from envgen.synthesis.source_text import literal, message, variable
from envgen.types import ParamBinding, StateSchema, ToolSemantics


class CheckWriter:
    """Writes the lines that look up and check what a tool acts on; ``lines`` collects them."""

    def __init__(self, schema: StateSchema, semantics: ToolSemantics, helpers: dict[str, str]) -> None:
        self.schema = schema
        self.sem = semantics
        self.col = schema.collection(semantics.collection)
        self.helpers = helpers
        self.lines: list[str] = []

    def fail(self, condition: str, text: str) -> None:
        """A check that answers ``text`` when ``condition`` holds."""
        self.lines += [f"if {condition}:", f"    raise ToolError({message(text)})"]

    def checks(self) -> None:
        """Existence first, then scope, then the state of the record."""
        key = self.sem.key
        if key is not None and self.sem.verb != "create":
            text = self._message("exists", self.col.name) or f"No {self.col.entity} {{{key.param}}}."
            self.lines.append(
                f"record = require(state, {literal(self.col.name)}, {variable(key.param)}, {message(text)})"
            )
        elif self.col.singleton and self.sem.verb != "create":
            absent = f"There is no {self.col.entity}."
            self.lines.append(f'record = require(state, {literal(self.col.name)}, "self", {literal(absent)})')
        for binding in self.sem.scope:
            self._scope(binding)
        for binding in (*self.sem.writes, *self.sem.filters):
            self._reference(binding)
        for delta in self.sem.deltas:
            amount, held = variable(delta.param), f"record.get({literal(delta.field)}, 0)"
            self.fail(f"{amount} <= 0", f"{delta.param} must be more than 0.")
            if delta.message:
                gone = f"{held} < {amount}" if delta.sign < 0 else f"{held} < -{amount}"
                self.fail(gone, delta.message)
        for rule in self.sem.preconditions:
            if rule.kind == "exists":
                continue
            value = f"record.get({literal(rule.field)})"
            if rule.kind == "field_equals":
                self.fail(
                    f"{value} {'is not' if isinstance(rule.value, bool) else '!='} {literal(rule.value)}",
                    rule.message,
                )
            elif rule.kind == "field_not_equals":
                self.fail(
                    f"{value} {'is' if isinstance(rule.value, bool) else '=='} {literal(rule.value)}",
                    rule.message,
                )
            elif rule.kind == "field_in":
                self.fail(f"{value} not in {literal(tuple(rule.value))}", rule.message)
            elif rule.kind == "unique":
                self._unique(rule.field, rule.message)
            elif rule.kind == "no_children":
                records = f"state.records({literal(rule.collection)})"
                keyed = f"record[{literal(self.col.key)}]"
                self.fail(
                    f"any(item.get({literal(rule.field)}) == {keyed} for item in {records})",
                    rule.message,
                )

    def _message(self, kind: str, collection: str, field: str = "") -> str:
        for rule in self.sem.preconditions:
            if rule.kind == kind and rule.collection == collection and (not field or rule.field == field):
                return rule.message
        return ""

    def _scope(self, binding: ParamBinding) -> None:
        """The parent named by a scope parameter exists, and the record acted on belongs to it."""
        name = variable(binding.param)
        owner = field_of(self.schema.collection(binding.collection), binding.field)
        parent = owner.references if owner else ""
        guard = [] if binding.required else [f"if {name} is not None:"]
        indent = "" if binding.required else "    "
        if parent and binding.collection == self.col.name:
            noun = self.schema.collection(parent).entity
            text = self._message("exists", parent) or f"No {noun} {{{binding.param}}}."
            self.lines += [*guard, f"{indent}require(state, {literal(parent)}, {name}, {message(text)})"]
        if self.sem.key is not None and self.sem.verb != "create" and binding.collection == self.col.name:
            text = f"{self.col.entity.capitalize()} {{{self.sem.key.param}}} is not in {{{binding.param}}}."
            condition = f"record.get({literal(binding.field)}) != {name}"
            if not binding.required:
                condition = f"{name} is not None and {condition}"
            self.fail(condition, text)

    def _reference(self, binding: ParamBinding) -> None:
        field = field_of(self.schema.collection(binding.collection), binding.field)
        if field is None or not field.references or binding.op != "eq":
            return
        if binding in self.sem.filters:
            return
        name = variable(binding.param)
        text = self._message("exists", field.references)
        text = text or f"No {self.schema.collection(field.references).entity} {{{binding.param}}}."
        call = f"require(state, {literal(field.references)}, {name}, {message(text)})"
        if binding.required and "." not in binding.param:
            self.lines.append(call)
        else:
            self.lines += [f"if {name} is not None:", f"    {call}"]

    def _unique(self, field: str, text: str) -> None:
        binding = next((b for b in self.sem.writes if b.field == field), None)
        if binding is None:
            return
        name = variable(binding.param)
        own = (
            ""
            if self.sem.verb == "create"
            else f" and item[{literal(self.col.key)}] != record[{literal(self.col.key)}]"
        )
        records = f"state.records({literal(self.col.name)})"
        guard = "" if binding.required and "." not in binding.param else f"{name} is not None and "
        self.fail(
            f"{guard}any(item.get({literal(field)}) == {name}{own} for item in {records})",
            text,
        )
