"""Semantics to Python: one readable function per tool (METHOD.md §1, the function set ``F``).

The text uses only `State` and `ToolContext` of envgen.runtime, `ToolError`, and a few builtins. Every check
comes before
the first write, so a tool that answers an error has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from envgen.synthesis.function_checks import CheckWriter
from envgen.synthesis.schema import field_of, is_clock, owned_children, paging_kind
from envgen.synthesis.source_text import (
    ResultText,
    filter_test,
    identifier,
    literal,
    range_test,
    variable,
)
from envgen.types import Collection, ParamBinding, ResultNode, StateSchema, ToolSemantics

_HEAD = '''"""Tools of one environment, generated from its semantics. """


def given(values):
    """Only the values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def pick(record, names):
    """The named fields that the record has."""
    return {name: record[name] for name in names if name in record}


def require(state, collection, key, problem):
    """The record under a key; an error when there is none."""
    record = state.get(collection, str(key))
    if record is None:
        raise ToolError(problem)
    return record
'''


def generate_source(schema: StateSchema, semantics: Iterable[ToolSemantics]) -> str:
    """Text of ``tools.py``: helpers, one function per tool, and the closed table ``TOOLS``. Deterministic.

    Raises KeyError when a semantics names a collection the schema does not have.
    """
    tools = tuple(semantics)
    helpers: dict[str, str] = {}
    bodies = [_Writer(schema, tool, helpers).function() for tool in tools]
    table = "\n".join(f"    {literal(tool.tool)}: {identifier(tool.tool)}," for tool in tools)
    parts = [_HEAD.rstrip(), *helpers.values(), *bodies, f"TOOLS = {{\n{table}\n}}"]
    return "\n\n\n".join(parts) + "\n"


class _Writer(CheckWriter):
    """Writes the function of one tool."""

    # ---------------------------------------------------------------------------------------------- frame
    def function(self) -> str:
        self._arguments()
        self.checks()
        match self.sem.verb:
            case "list" | "search" | "count" | "aggregate" if self.sem.key is None and not self.col.singleton:
                self._select()
            case "create":
                self._create()
            case "update" | "set" | "link" | "unlink":
                self._update()
            case "toggle":
                self._toggle()
            case "delete":
                self._delete()
            case _:
                pass
        self._result()
        return "\n".join([*self._signature(), *("    " + line if line else "" for line in self.lines)])

    def _bindings(self) -> list[ParamBinding]:
        key = [self.sem.key] if self.sem.key else []
        return [*key, *self.sem.scope, *self.sem.filters, *self.sem.writes, *self.sem.amounts]

    def _signature(self) -> list[str]:
        required: dict[str, bool] = {}
        for binding in self._bindings():
            root, _, inner = binding.param.partition(".")
            required[root] = required.get(root, False) or (binding.required and not inner)
        ordering = self.sem.ordering
        extra = [ordering.param, ordering.direction_param] if ordering else []
        for name in [*self.sem.paging, *extra]:
            if name and "." not in name:
                required.setdefault(name, False)
        plain = [name for name in required if identifier(name) == name]
        names = [n for n in plain if required[n]] + [f"{n}=None" for n in plain if not required[n]]
        # Positional-only: an argument may be called `state` too; it arrives in `extra` like all odd names.
        items = ["state", "ctx", "/", *(["*", *names] if names else [])]
        if len(plain) < len(required):
            items.append("**extra")
        head = f"def {identifier(self.sem.tool)}({', '.join(items)}):"
        if len(head) > 110:
            inner = ",\n    ".join(items)
            head = f"def {identifier(self.sem.tool)}(\n    {inner},\n):"
        return [head, f'    """{self._doc()}"""']

    def _doc(self) -> str:
        verb, noun = self.sem.verb.capitalize(), self.col.entity
        if self.sem.toggles:
            return f"Flip {self.sem.toggles} of one {noun}."
        if self.sem.verb == "set":
            said = ", ".join(f"{name} to {literal(value)}" for name, value in self.sem.constants.items())
            return f"Set {said} of one {noun}." if said else f"Set fields of one {noun}."
        plain = self.col.name.replace("_", " ")
        return f"{verb} {plain}." if self.sem.many or self.col.singleton else f"{verb} one {noun}."

    def _arguments(self) -> None:
        """Local variables for members of object arguments and for names that are no Python names."""
        ordering = self.sem.ordering
        names = [b.param for b in self._bindings()] + list(self.sem.paging)
        names += [n for n in ((ordering.param, ordering.direction_param) if ordering else ()) if n]
        done: set[str] = set()
        for name in names:
            if name in done:
                continue
            done.add(name)
            root, *inner = name.split(".")
            source = root if identifier(root) == root else f"extra.get({literal(root)})"
            if inner:
                path = f"({source} or {{}})"
                for part in inner[:-1]:
                    path = f"({path}.get({literal(part)}) or {{}})"
                self.lines.append(f"{variable(name)} = {path}.get({literal(inner[-1])})")
            elif source != root:
                self.lines.append(f"{variable(name)} = {source}")
        for param, value in self.sem.defaults.items():
            if param in self.sem.paging:
                continue
            self.lines += [f"if {variable(param)} is None:", f"    {variable(param)} = {literal(value)}"]

    # ---------------------------------------------------------------------------------------------- reads
    def _select(self) -> None:
        self.lines.append(f"found = state.records({literal(self.col.name)})")
        for binding in self.sem.scope:
            if binding.collection == self.col.name:
                self._keep([binding])
        for path, value in self.sem.where.items():
            first, _, rest = path.partition(".")
            field = field_of(self.col, first)
            equal = "is" if isinstance(value, bool) else "=="
            if rest and field is not None and field.references:
                linked = f"(state.get({literal(field.references)}, str(item.get({literal(first)}))) or {{}})"
                test = f"{linked}.get({literal(rest)}) {equal} {literal(value)}"
            else:
                test = f"item.get({literal(first)}) {equal} {literal(value)}"
            self.lines.append(f"found = [item for item in found if {test}]")
        for name, source in self.sem.where_session.items():
            test = f"item.get({literal(name)}) == session[{literal(source)}]"
            self.lines.append('session = require(state, "session", "self", "Nobody is logged in.")')
            self.lines.append(f"found = [item for item in found if {test}]")
        self._filters()
        self.lines.append("total = len(found)") if self._uses("count", "page") else None
        ordering = self.sem.ordering
        if ordering:
            down = ""
            if ordering.direction_param:
                down = f', reverse=str({variable(ordering.direction_param)}).lower() == "desc"'
            self.lines += [
                f"order = {literal(ordering.values)}.get({variable(ordering.param)})",
                "if order is not None:",
                f"    found = sorted(found, key=lambda item: (order in item, item.get(order)){down})",
            ]
        self._pages()

    def _filters(self) -> None:
        groups: dict[str, list[ParamBinding]] = {}
        for binding in self.sem.filters:
            groups.setdefault(binding.param, []).append(binding)
        bounds: dict[str, dict[str, ParamBinding]] = {}
        for group in groups.values():
            field = field_of(self.col, group[0].field)
            if (
                len(group) == 1
                and field is not None
                and field.type == "array"
                and group[0].op in ("ge", "le")
            ):
                bounds.setdefault(group[0].field, {})[group[0].op] = group[0]
        for pair in bounds.values():
            if len(pair) == 2:
                low, high = pair["ge"], pair["le"]
                del groups[low.param], groups[high.param]
                self.lines += [
                    f"if {variable(low.param)} is not None or {variable(high.param)} is not None:",
                    f"    found = [item for item in found if {range_test(low, high)}]",
                ]
        for group in groups.values():
            self._keep(group)

    def _keep(self, group: list[ParamBinding]) -> None:
        line = f"found = [item for item in found if {filter_test(self.col, group)}]"
        if group[0].required and "." not in group[0].param:
            self.lines.append(line)
        else:
            self.lines += [f"if {variable(group[0].param)} is not None:", f"    {line}"]

    def _pages(self) -> None:
        if not self.sem.paging:
            return
        kinds = {paging_kind(name): name for name in self.sem.paging}
        size_name, page_name, offset_name = kinds.get("size"), kinds.get("page"), kinds.get("offset")
        if size_name:
            default = self.sem.defaults.get(size_name, 10 if page_name else None)
            name = variable(size_name)
            otherwise = int(default) if default is not None else "len(found)"
            self.lines.append(f"size = int({name}) if {name} is not None else {otherwise}")
            self.fail(f"{name} is not None and {name} < 1", f"{size_name} must be at least 1.")
        elif page_name:
            self.lines.append("size = 10")
        if page_name:
            name = variable(page_name)
            self.lines.append(f"page_number = int({name}) if {name} is not None else 1")
            self.fail("page_number < 1", f"{page_name} must be at least 1.")
            self.lines += ["start = (page_number - 1) * size", "found = found[start : start + size]"]
        elif offset_name:
            name = variable(offset_name)
            self.lines.append(f"start = int({name}) if {name} is not None else 0")
            self.fail("start < 0", f"{offset_name} must be at least 0.")
            self.lines.append("found = found[start : start + size]" if size_name else "found = found[start:]")
        else:
            self.lines.append("found = found[:size]")

    # ---------------------------------------------------------------------------------------------- writes
    def _pairs(self, bindings: Iterable[ParamBinding]) -> str:
        return "{" + ", ".join(self._pair_list(bindings)) + "}"

    def _pair_list(self, bindings: Iterable[ParamBinding]) -> list[str]:
        return [f"{literal(b.field)}: {variable(b.param)}" for b in bindings]

    def _create(self) -> None:
        key = self.col.key
        own = next(
            (b for b in (*self.sem.writes, *([self.sem.key] if self.sem.key else [])) if b.field == key), None
        )
        if own is not None and not self.col.key_generated:
            text = f"{self.col.entity.capitalize()} {{{own.param}}} already exists."
            self.fail(f"state.exists({literal(self.col.name)}, str({variable(own.param)}))", text)
            identity = f"{literal(key)}: {variable(own.param)}"
        else:
            identity = f"{literal(key)}: ctx.new_id({literal(self.col.name)})"
        scope = [b for b in self.sem.scope if b.collection == self.col.name]
        written = [*scope, *(b for b in self.sem.writes if b.field != key)]
        taken = (
            {b.field for b in written if b.required and "." not in b.param} | {key} | set(self.sem.constants)
        )
        taken |= set(self.sem.from_session)
        lines = ["record = {"]
        for field in self.col.fields:
            if field.name in taken:
                continue
            if is_clock(field.name, field.policy, creation=True):
                lines.append(f"    {literal(field.name)}: ctx.now(),")
            elif field.required and field.default is not None:
                lines.append(f"    {literal(field.name)}: {literal(field.default)},")
        lines += [f"    {literal(name)}: {literal(value)}," for name, value in self.sem.constants.items()]
        for name, source in self.sem.from_session.items():
            session = 'require(state, "session", "self", "Nobody is logged in.")'
            lines.append(f"    {literal(name)}: {session}[{literal(source)}],")
        if written:
            pairs = self._pairs(written)
            if len(pairs) <= 90:
                lines.append(f"    **given({pairs}),")
            else:
                lines += [
                    "    **given({",
                    *(f"        {pair}," for pair in self._pair_list(written)),
                    "    }),",
                ]
        self.lines += [
            *lines,
            f"    {identity},",
            "}",
            f"state.insert({literal(self.col.name)}, str(record[{literal(key)}]), record)",
        ]

    def _update(self) -> None:
        parts = [f"{literal(name)}: {literal(value)}" for name, value in self.sem.constants.items()]
        for name, amount in self.sem.increments.items():
            parts.append(
                f"{literal(name)}: record.get({literal(name)}, 0) {'+' if amount >= 0 else '-'} {abs(amount)}"
            )
        for delta in self.sem.deltas:
            sign = "+" if delta.sign > 0 else "-"
            held = f"record.get({literal(delta.field)}, 0)"
            parts.append(f"{literal(delta.field)}: {held} {sign} {variable(delta.param)}")
        for field in self.col.fields:
            if is_clock(field.name, field.policy, creation=False) and self.sem.writes:
                parts.append(f"{literal(field.name)}: ctx.now()")
        if self.sem.writes:
            pairs = f"given({self._pairs(self.sem.writes)})"
            parts.append(f"**{pairs}")
            text = pairs if len(parts) == 1 else "{" + ", ".join(parts) + "}"
        else:
            text = "{" + ", ".join(parts) + "}"
        self._apply(text)

    def _toggle(self) -> None:
        self._apply(f"{{{literal(self.sem.toggles)}: not record.get({literal(self.sem.toggles)}, False)}}")

    def _apply(self, changes: str) -> None:
        key = '"self"' if self.col.singleton else f"str(record[{literal(self.col.key)}])"
        if len(changes) > 96 and changes.startswith("given({") and ", " in changes:
            inner = self._pair_list(self.sem.writes)
            text = ["changes = given({", *(f"    {pair}," for pair in inner), "})"]
        else:
            text = [f"changes = {changes}"]
        self.lines += [
            *text,
            f"state.update({literal(self.col.name)}, {key}, changes)",
            "record = {**record, **changes}",
        ]

    def _delete(self) -> None:
        if self.sem.cascades:
            self.lines.append(f"{self._drop_helper(self.col)}(state, record[{literal(self.col.key)}])")
        else:
            self.lines.append(f"state.delete({literal(self.col.name)}, str(record[{literal(self.col.key)}]))")

    def _drop_helper(self, collection: Collection) -> str:
        name = f"drop_{identifier('_'.join(collection.entity.split()))}"
        if name in self.helpers:
            return name
        owned = owned_children(self.schema, collection.name)
        lines = [
            f"def {name}(state, key):",
            f'    """Delete one {collection.entity} with everything that belongs to it."""',
        ]
        self.helpers[name] = ""
        for child_name, foreign in owned:
            child = self.schema.collection(child_name)
            deeper = owned_children(self.schema, child_name)
            drop = (
                f"{self._drop_helper(child)}(state, item[{literal(child.key)}])"
                if deeper
                else f"state.delete({literal(child_name)}, str(item[{literal(child.key)}]))"
            )
            lines += [
                f"    for item in state.records({literal(child_name)}):",
                f"        if item.get({literal(foreign)}) == key:",
                f"            {drop}",
            ]
        lines.append(f"    state.delete({literal(collection.name)}, str(key))")
        self.helpers[name] = "\n".join(lines)
        return name

    # ---------------------------------------------------------------------------------------------- result
    def _uses(self, *kinds: str) -> bool:
        def walk(node: ResultNode) -> bool:
            return node.kind in kinds or any(walk(child) for child in node.children)

        return self.sem.result is not None and walk(self.sem.result)

    def _result(self) -> None:
        if self.sem.result is not None:
            writer = ResultText(self.schema, self.sem, self.helpers)
            text = writer.text(self.sem.result)
            self.lines += [*writer.setup, f"return {text}"]
        elif self.sem.verb == "delete":
            self.lines.append(f'return {{"deleted": record[{literal(self.col.key)}]}}')
        elif self.sem.verb == "count":
            self.lines.append('return {"count": len(found)}')
        elif self.sem.many:
            self.lines.append("return found")
        else:
            self.lines.append("return record")
