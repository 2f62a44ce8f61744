"""What a tool's semantics say, executed directly on plain data: the expected outcome of one call.

This is a second, independent reading of `ToolSemantics` beside the templates of
`envgen.synthesis.functions`: no text is generated and no generated text is run. The tests of a tool hold its
function against this one, so that a mistake in either is a contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from envgen.runtime.context import ToolContext
from envgen.runtime.state import State
from envgen.synthesis.schema import field_of, is_clock, owned_children, paging_kind, read_argument
from envgen.synthesis.toolproof.cases import DEFAULT_PAGE
from envgen.synthesis.toolproof.shown import Shown
from envgen.types import Collection, ParamBinding, Record, StateData, StateSchema, ToolSemantics

Changes = dict[tuple[str, str], Record | None]
"""(collection, key) -> the record afterwards, None when it is gone; records that stay equal are left out."""


@dataclass(frozen=True)
class Expected:
    """The outcome that the semantics promise."""

    refused: bool
    why: str = ""
    """Which promise refuses the call, for reports."""
    changes: tuple[tuple[tuple[str, str], Record | None], ...] = ()
    result: Any = None


class _Refusal(Exception):
    pass


class Meaning:
    """The semantics of one tool, executable."""

    def __init__(self, schema: StateSchema, sem: ToolSemantics) -> None:
        self.schema = schema
        self.sem = sem
        self.col = schema.collection(sem.collection)

    def run(self, state: StateData, arguments: Mapping[str, Any], context: ToolContext) -> Expected:
        """The outcome of one call on ``state``, which is not changed. ``context`` gives ids and time."""
        call = _Call(self, state, arguments, context)
        try:
            result = call.run()
        except _Refusal as refusal:
            return Expected(True, str(refusal))
        changed = {k: v for k, v in call.changes.items() if state.get(k[0], {}).get(k[1]) != v}
        return Expected(
            False, changes=tuple(sorted(changed.items(), key=lambda item: item[0])), result=result
        )


class _Call:
    def __init__(
        self, meaning: Meaning, state: StateData, arguments: Mapping[str, Any], context: ToolContext
    ) -> None:
        self.schema, self.sem, self.col = meaning.schema, meaning.sem, meaning.col
        self.state = state
        self.arguments = dict(arguments)
        self.context = context
        self.changes: Changes = {}
        self.context.begin_call(State(state, [c.name for c in self.schema.collections]))

    # ------------------------------------------------------------------------------------------ looking up
    def value(self, param: str) -> Any:
        given = read_argument(self.arguments, param)
        return self.sem.defaults.get(param) if given is None and param not in self.sem.paging else given

    def table(self, collection: str) -> dict[str, Record]:
        return self.state.get(collection, {})

    def find(self, collection: str, key: Any) -> Record | None:
        found = self.table(collection).get(str(key))
        return None if found is None else dict(found)

    def _need(self, collection: str, key: Any) -> Record:
        found = self.find(collection, key)
        if found is None:
            raise _Refusal(f"no record of {collection}")
        return found

    def _refuse_if(self, condition: bool, why: str) -> None:
        if condition:
            raise _Refusal(why)

    # ------------------------------------------------------------------------------------------------ frame
    def run(self) -> Any:
        record = self._acted_on()
        self._parents(record)
        self._references()
        self._rules(record)
        shown = Shown(self.schema, self.sem, self.find, self.table, self._after)
        verb = self.sem.verb
        if (
            verb in ("list", "search", "count", "aggregate")
            and self.sem.key is None
            and not self.col.singleton
        ):
            found, total, page = self._select()
            return shown.many(found, total, page)
        if verb == "create":
            record = self._create()
        elif verb in ("update", "set", "link", "unlink", "toggle"):
            record = self._change(record or {})
        elif verb == "delete":
            self._delete(record or {})
        return shown.one(record or {})

    def _after(self, collection: str) -> list[Record]:
        """The records of a collection once the call is done."""
        changed = {key: record for (name, key), record in self.changes.items() if name == collection}
        return [r for r in {**self.table(collection), **changed}.values() if r is not None]

    # ------------------------------------------------------------------------------------------- conditions
    def _acted_on(self) -> Record | None:
        if self.sem.verb == "create":
            return None
        if self.sem.key is not None:
            return self._need(self.col.name, self.value(self.sem.key.param))
        return self._need(self.col.name, "self") if self.col.singleton else None

    def _parents(self, record: Record | None) -> None:
        for binding in self.sem.scope:
            if binding.collection != self.col.name:
                continue
            value = self.value(binding.param)
            if value is None and not binding.required:
                continue
            field = field_of(self.col, binding.field)
            if field is not None and field.references:
                self._need(field.references, value)
            if self.sem.key is not None and record is not None:
                self._refuse_if(record.get(binding.field) != value, f"not in {binding.param}")

    def _references(self) -> None:
        for binding in self.sem.writes:
            field = field_of(self.schema.collection(binding.collection), binding.field)
            value = self.value(binding.param)
            if field is not None and field.references and binding.op == "eq" and value is not None:
                self._need(field.references, value)

    def _rules(self, record: Record | None) -> None:
        held = record or {}
        for delta in self.sem.deltas:
            amount = self.value(delta.param)
            self._refuse_if(not amount > 0, "an amount of nothing")
            left = held.get(delta.field, 0) + delta.sign * amount
            self._refuse_if(bool(delta.message) and left < 0, f"{delta.field} too small")
        for rule in self.sem.preconditions:
            value = held.get(rule.field)
            match rule.kind:
                case "field_equals":
                    self._refuse_if(not _same(value, rule.value), f"{rule.field} is not {rule.value}")
                case "field_not_equals":
                    self._refuse_if(_same(value, rule.value), f"{rule.field} is {rule.value}")
                case "field_in":
                    self._refuse_if(value not in tuple(rule.value), f"{rule.field} is not among the values")
                case "unique":
                    self._unique(rule.field, record)
                case "no_children":
                    key = held.get(self.col.key)
                    below = [r for r in self.table(rule.collection).values() if r.get(rule.field) == key]
                    self._refuse_if(bool(below), f"{rule.collection} below it")
                case "exists" | "linked" | "not_linked":
                    pass

    def _unique(self, field: str, record: Record | None) -> None:
        binding = next((b for b in self.sem.writes if b.field == field), None)
        value = self.value(binding.param) if binding is not None else None
        if value is None:
            return
        own = record.get(self.col.key) if record is not None else None
        others = [r for r in self.table(self.col.name).values() if record is None or r[self.col.key] != own]
        self._refuse_if(any(r.get(field) == value for r in others), f"another has this {field}")

    # ------------------------------------------------------------------------------------------------ reads
    def _select(self) -> tuple[list[Record], int, dict[str, int]]:
        found = list(self.table(self.col.name).values())
        tests: list[Callable[[Record], bool]] = []
        for binding in self.sem.scope:
            if binding.collection == self.col.name and self.value(binding.param) is not None:
                tests.append(self._test([binding]))
        for path, value in self.sem.where.items():
            tests.append(lambda r, p=path, v=value: _same(self._follow(r, p), v))
        for name, source in self.sem.where_session.items():
            session = self._need("session", "self")
            tests.append(lambda r, n=name, v=session[source]: r.get(n) == v)
        tests += self._filters()
        found = [r for r in found if all(test(r) for test in tests)]
        total = len(found)
        return self._page(self._sorted(found), total)

    def _follow(self, record: Record, path: str) -> Any:
        first, _, rest = path.partition(".")
        field = field_of(self.col, first)
        if not rest or field is None or not field.references:
            return record.get(first)
        return (self.find(field.references, record.get(first)) or {}).get(rest)

    def _filters(self) -> list[Callable[[Record], bool]]:
        groups: dict[str, list[ParamBinding]] = {}
        for binding in self.sem.filters:
            groups.setdefault(binding.param, []).append(binding)
        tests: list[Callable[[Record], bool]] = []
        ranges: dict[str, dict[str, str]] = {}
        for group in groups.values():
            field = field_of(self.col, group[0].field)
            lists = field is not None and field.type == "array"
            if len(group) == 1 and lists and group[0].op in ("ge", "le"):
                ranges.setdefault(group[0].field, {})[group[0].op] = group[0].param
        paired = {param for pair in ranges.values() if len(pair) == 2 for param in pair.values()}
        for name, pair in ranges.items():
            if len(pair) == 2:
                low, high = self.value(pair["ge"]), self.value(pair["le"])
                if low is not None or high is not None:
                    tests.append(lambda r, n=name, a=low, b=high: _any_between(r.get(n), a, b))
        for param, group in groups.items():
            if param not in paired and self.value(param) is not None:
                tests.append(self._test(group))
        return tests

    def _test(self, group: list[ParamBinding]) -> Callable[[Record], bool]:
        value = self.value(group[0].param)
        return lambda record: any(_holds(self.col, b, record.get(b.field), value) for b in group)

    def _sorted(self, found: list[Record]) -> list[Record]:
        ordering = self.sem.ordering
        name = ordering.values.get(self.value(ordering.param)) if ordering is not None else None
        if ordering is None or name is None:
            return found
        down = bool(ordering.direction_param) and (
            str(self.value(ordering.direction_param)).lower() == "desc"
        )
        missing = [r for r in found if name not in r]
        held = sorted((r for r in found if name in r), key=lambda r: r[name], reverse=down)
        return [*held, *missing] if down else [*missing, *held]

    def _page(self, found: list[Record], total: int) -> tuple[list[Record], int, dict[str, int]]:
        kinds = {paging_kind(name): name for name in self.sem.paging}
        given = {kind: self.value(name) for kind, name in kinds.items()}
        for kind, least in (("size", 1), ("page", 1), ("offset", 0)):
            wrong = given.get(kind) is not None and given[kind] < least
            self._refuse_if(wrong and (kind != "offset" or "page" not in kinds), f"{kind} too small")
        size: int = len(found)
        if "size" in kinds:
            usual = self.sem.defaults.get(kinds["size"], DEFAULT_PAGE if "page" in kinds else None)
            size = int(given["size"] if given["size"] is not None else usual if usual is not None else size)
        elif "page" in kinds:
            size = DEFAULT_PAGE
        page = int(given.get("page") or 1)
        start = 0
        if "page" in kinds:
            start = (page - 1) * size
        elif "offset" in kinds:
            start = int(given["offset"] or 0)
        stop = start + size if kinds.keys() & {"size", "page"} else total
        numbers = {"page": page, "size": size, "total": total}
        if size > 0:
            numbers["pages"] = -(-total // size)
        return (found[start:stop] if self.sem.paging else found), total, numbers

    # ----------------------------------------------------------------------------------------------- writes
    def _given(self) -> Record:
        values = ((b.field, self.value(b.param)) for b in self.sem.writes)
        return {name: value for name, value in values if value is not None}

    def _create(self) -> Record:
        sem, key = self.sem, self.col.key
        own = next((b for b in (*sem.writes, *((sem.key,) if sem.key else ())) if b.field == key), None)
        named = own is not None and not self.col.key_generated
        if own is not None and named:
            self._refuse_if(self.find(self.col.name, self.value(own.param)) is not None, "already exists")
        record: Record = {}
        for field in self.col.fields:
            if is_clock(field.name, field.policy, creation=True):
                record[field.name] = self.context.now()
            elif field.required and field.default is not None:
                record[field.name] = field.default
        record |= sem.constants
        for name, source in sem.from_session.items():
            record[name] = self._need("session", "self")[source]
        for binding in sem.scope:
            value = self.value(binding.param) if binding.collection == self.col.name else None
            if value is not None:
                record[binding.field] = value
        record |= {name: value for name, value in self._given().items() if name != key}
        record[key] = (
            self.value(own.param) if own is not None and named else self.context.new_id(self.col.name)
        )
        self.changes[self.col.name, str(record[key])] = record
        return record

    def _change(self, record: Record) -> Record:
        new = dict(record)
        if self.sem.verb == "toggle":
            new[self.sem.toggles] = not record.get(self.sem.toggles, False)
        else:
            new |= self.sem.constants
            for name, amount in self.sem.increments.items():
                new[name] = record.get(name, 0) + amount
            for delta in self.sem.deltas:
                new[delta.field] = record.get(delta.field, 0) + delta.sign * self.value(delta.param)
            for field in self.col.fields:
                if self.sem.writes and is_clock(field.name, field.policy, creation=False):
                    new[field.name] = self.context.now()
            new |= self._given()
        key = "self" if self.col.singleton else str(record[self.col.key])
        self.changes[self.col.name, key] = new
        return new

    def _delete(self, record: Record) -> None:
        gone = [(self.col.name, record[self.col.key])]
        while gone:
            collection, key = gone.pop()
            self.changes[collection, str(key)] = None
            if not self.sem.cascades:
                continue
            for child, foreign in owned_children(self.schema, collection):
                name = self.schema.collection(child).key
                below = [r for r in self.table(child).values() if r.get(foreign) == key]
                gone += [(child, r[name]) for r in below if (child, str(r[name])) not in self.changes]


def _same(held: Any, wanted: Any) -> bool:
    """Equal, and a boolean is no number."""
    return (held is wanted) if isinstance(wanted, bool) else bool(held == wanted)


def _any_between(items: Any, low: Any, high: Any) -> bool:
    found = cast("list[Any]", items or [])
    return any((low is None or low <= item) and (high is None or item <= high) for item in found)


def _holds(col: Collection, binding: ParamBinding, held: Any, value: Any) -> bool:
    """One filter on one record's field."""
    field = field_of(col, binding.field)
    if field is not None and field.type == "array":
        items = cast("list[Any]", held or [])
        if field.item_type == "object":
            items = [item.get("name") for item in items]
        match binding.op:
            case "ge" | "le":
                return any(_bound(binding.op, item, value) for item in items)
            case "in":
                return any(item in value for item in items)
            case _:
                return (
                    value in items
                    if field.item_type == "object" or binding.op == "contains"
                    else held == value
                )
    match binding.op:
        case "contains":
            return str(value).lower() in str("" if held is None and binding.field else held).lower()
        case "in":
            return held in value
        case "ge" | "le":
            return held is not None and _bound(binding.op, held, value)
        case "eq":
            texts = field is not None and field.type == "enum" and all(isinstance(v, str) for v in field.enum)
            if texts:
                return str("" if held is None else held).lower() == str(value).lower()
            return bool(held == value)


def _bound(op: str, held: Any, value: Any) -> bool:
    return bool(held >= value) if op == "ge" else bool(held <= value)
