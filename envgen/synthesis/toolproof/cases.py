"""Calls that try one tool: every argument alone and together, boundaries, and what must be refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

import orjson

from envgen.synthesis.catalog import Catalog, narrow
from envgen.synthesis.choices import Needs
from envgen.synthesis.schema import field_of, paging_kind, place_argument
from envgen.synthesis.values import ValueMaker, ValuePool
from envgen.synthesis.world import build_world
from envgen.types import ParamBinding, Record, StateData, StateField, ToolSemantics

WORLDS = 6
"""States a tool is tried on: every other one has all fields filled, the rest a random half."""
TARGETS = 3
"""Records acted on in each state."""
RANDOM_CALLS = 10
"""Random calls on each state, beside the systematic ones."""
MAX_CASES = 420
DEFAULT_PAGE = 10
"""Records on a page where the document names no number."""
LONGEST_PAGE = 100
TODAY = date(2026, 3, 2)


@dataclass(frozen=True)
class Case:
    """One call on one state."""

    state: StateData
    arguments: dict[str, Any]
    about: str
    """What the call is there to show: ``no such parent``."""


def worlds(catalog: Catalog, seed: int, count: int = WORLDS) -> list[StateData]:
    """Small whole states of an environment, for all of its tools. Deterministic from ``seed``."""
    collections = catalog.schema.collections
    names = [(c.name, f.name) for c in collections for f in c.fields]
    busy = Counter(c.name for c in collections)
    states: list[StateData] = []
    for number in range(count):
        rng = random.Random(f"toolproof/{seed}/{number}")
        maker = ValueMaker(ValuePool(seed), rng, TODAY)
        needs = set(names) if number % 2 == 0 else {name for name in names if rng.random() < 0.5}
        state = build_world(catalog, maker, rng, Needs(needs, busy)).state
        _complete(catalog, state, maker)
        states.append(state)
    return states


def _complete(catalog: Catalog, state: StateData, maker: ValueMaker) -> None:
    """Fill required fields that stayed empty because no value was left that no other record has."""
    for collection in catalog.schema.collections:
        for record in state.get(collection.name, {}).values():
            for item in collection.fields:
                if item.required and item.name not in record and not item.references:
                    value = maker.value(collection, item)
                    if value is not None:
                        record[item.name] = value


class CaseMaker:
    """Makes the cases of one tool. Deterministic from ``seed`` and the tool's name."""

    def __init__(self, catalog: Catalog, sem: ToolSemantics, states: list[StateData], seed: int = 0) -> None:
        self.catalog, self.sem, self.states = catalog, sem, states
        self.schema = catalog.schema
        self.col = self.schema.collection(sem.collection)
        self.rng = random.Random(f"cases/{seed}/{sem.tool}")
        self.maker = ValueMaker(ValuePool(seed), self.rng, TODAY)
        self.required = catalog.required(sem.tool)
        key = (sem.key,) if sem.key is not None else ()
        amounts = (
            ParamBinding(param=d.param, collection=sem.collection, field=d.field, required=True)
            for d in sem.deltas
        )
        self.amounts = {d.param: d for d in sem.deltas}
        self.bindings: tuple[ParamBinding, ...] = (*key, *sem.scope, *sem.filters, *sem.writes, *amounts)

    def cases(self) -> list[Case]:
        """At most `MAX_CASES` different calls, the systematic ones of every state first."""
        found: dict[bytes, Case] = {}
        streams = [self._systematic(number) for number in range(len(self.states))]
        streams += [self._random(number) for number in range(len(self.states))]
        for number, stream in enumerate(streams):
            state = self.states[number % len(self.states)]
            for about, arguments in stream:
                mark = orjson.dumps([number % len(self.states), arguments], option=orjson.OPT_SORT_KEYS)
                found.setdefault(mark, Case(state, arguments, about))
        return [*self._long_lists(), *self._twins(), *found.values()][:MAX_CASES]

    def _twins(self) -> Iterator[Case]:
        """A read by what two records share: which of them come first shows."""
        records = list(self.states[0].get(self.col.name, {}).values())
        if self.sem.writes_state or not self.sem.filters or self.col.singleton or not records:
            return
        target = records[0]
        key: Any = 2000 if isinstance(target[self.col.key], int) else "ZZ2000"
        table = {**self.states[0][self.col.name], str(key): {**target, self.col.key: key}}
        state = {**self.states[0], self.col.name: table}
        yield Case(state, self._arguments(state, target, optional=True), "two records alike")
        yield Case(state, self._arguments(state, target, optional=False), "two records alike")

    def _long_lists(self) -> Iterator[Case]:
        """A list that is longer than a page is by default: the cut must show."""
        kinds = {paging_kind(name): name for name in self.sem.paging}
        usual = self.sem.defaults.get(kinds.get("size", ""), DEFAULT_PAGE if "page" in kinds else None)
        records = list(self.states[0].get(self.col.name, {}).values())
        if not isinstance(usual, int) or usual > LONGEST_PAGE or not records:
            return
        target = records[0]
        table: dict[str, Record] = {}
        for number in range(usual + 3):
            key: Any = number + 1000 if isinstance(target[self.col.key], int) else f"ZZ{number + 1000}"
            table[str(key)] = {**target, self.col.key: key}
        state = {**self.states[0], self.col.name: {**self.states[0][self.col.name], **table}}
        least = self._arguments(state, target, optional=False)
        yield Case(state, least, "more than a page")
        if "page" in kinds:
            second: dict[str, Any] = orjson.loads(orjson.dumps(least))
            place_argument(second, kinds["page"], self._typed(kinds["page"], 2))
            yield Case(state, second, "the second page")

    # ------------------------------------------------------------------------------------------ systematic
    def _systematic(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        state = self.states[number]
        records = list(state.get(self.col.name, {}).values())
        targets: list[Record | None] = [*self.rng.sample(records, min(TARGETS, len(records)))] or [None]
        for target in targets:
            least = self._arguments(state, target, optional=False)
            yield "only what is required", least
            yield "everything at once", self._arguments(state, target, optional=True)
            for binding in self.bindings:
                if binding.param not in least and not self._needed(binding):
                    yield from self._with(
                        least, "one optional argument", binding, self._fit(state, binding, target)
                    )
            yield from self._kept(state, target, least)
        yield from self._pages(state, targets[0])
        yield from self._orders(state, targets[0])
        for target in targets[: 2 if number < 2 else 1]:
            least = self._arguments(state, target, optional=False)
            for binding in self.bindings:
                for about, value in self._odd(state, binding, target):
                    yield from self._with(least, about, binding, value)

    def _with(
        self, base: dict[str, Any], about: str, binding: ParamBinding, value: Any
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if value is not None:
            yield f"{about}: {binding.param}", self._placed(base, binding, value)

    def _placed(self, base: dict[str, Any], binding: ParamBinding, value: Any) -> dict[str, Any]:
        """A copy of the arguments with one more; without it where it is a member of an argument that is
        given whole, or no value."""
        arguments: dict[str, Any] = orjson.loads(orjson.dumps(base))
        root = binding.param.split(".")[0]
        if value is not None and (root == binding.param or isinstance(arguments.get(root, {}), dict)):
            place_argument(arguments, binding.param, value)
        return arguments

    def _kept(
        self, state: StateData, target: Record | None, least: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """A write of what the record holds already."""
        for binding in self.sem.writes:
            if target is not None and target.get(binding.field) is not None:
                yield from self._with(least, "the value it has", binding, target[binding.field])

    def _pages(self, state: StateData, target: Record | None) -> Iterator[tuple[str, dict[str, Any]]]:
        least = self._arguments(state, target, optional=False)
        kinds = {paging_kind(name): name for name in self.sem.paging}
        options: list[dict[str, int]] = [{kind: n} for kind in kinds for n in (1, 2, 3, 50, 0, -1)]
        for size in (1, 2):
            options += [{"size": size, kind: n} for kind in kinds if kind != "size" for n in (1, 2, 3)]
        for option in options:
            arguments: dict[str, Any] = orjson.loads(orjson.dumps(least))
            for kind, value in option.items():
                if kind in kinds:
                    place_argument(arguments, kinds[kind], self._typed(kinds[kind], value))
            yield f"pages {option}", arguments

    def _typed(self, param: str, value: int) -> Any:
        return str(value) if self.catalog.parameter(self.sem.tool, param).get("type") == "string" else value

    def _orders(self, state: StateData, target: Record | None) -> Iterator[tuple[str, dict[str, Any]]]:
        ordering = self.sem.ordering
        if ordering is None:
            return
        for said in ordering.values:
            for direction in ("", "asc", "desc") if ordering.direction_param else ("",):
                arguments = self._arguments(state, target, optional=False)
                place_argument(arguments, ordering.param, said)
                if direction:
                    place_argument(arguments, ordering.direction_param, direction)
                yield f"sorted by {said} {direction}", arguments

    def _odd(
        self, state: StateData, binding: ParamBinding, target: Record | None
    ) -> Iterator[tuple[str, Any]]:
        """Values of one argument at the edges of what it means."""
        item = self._field(binding)
        parent = self._parent(binding, item)
        if parent and binding.op == "in":
            keys = [r[self.schema.collection(parent).key] for r in state.get(parent, {}).values()]
            yield from (
                ("some of them", keys[first:last]) for first, last in ((0, 1), (0, 2), (1, 9), (0, 99))
            )
            yield "none of them", ["ZZ987"]
            return
        if parent:
            keys = [r[self.schema.collection(parent).key] for r in state.get(parent, {}).values()]
            sample: Any = keys[0] if keys else "ZZ0"
            yield "no such record", 987654 if isinstance(sample, int) else "ZZ987"
            yield from (("another record", key) for key in keys[:4])
            return
        if binding.param in self.amounts:
            has = (target or {}).get(binding.field, 0)
            yield from (("an amount", value) for value in (1, has, has - 1, has + 1, 0, -1, 0.5))
            return
        held = [r[binding.field] for r in state.get(self.col.name, {}).values() if binding.field in r]
        if binding in self.sem.filters:
            yield from self._edges(binding, item, held)
            return
        for value in held[:2]:
            yield "a value another record has", value
        empty: tuple[Any, ...] = (0, "", False, [], 0.5)
        for value in empty:
            yield "an empty value", value
        for _ in range(2):
            yield "a fresh value", self._fresh(binding, item)

    def _edges(
        self, binding: ParamBinding, item: StateField | None, held: list[Any]
    ) -> Iterator[tuple[str, Any]]:
        single = [v for h in held for v in (cast("list[Any]", h) if isinstance(h, list) else [h])]
        flat: list[Any] = [_shown(v) for v in single][:4]
        options: list[Any] = list(item.enum) if item is not None else []
        said: list[Any] = self.catalog.parameter(self.sem.tool, binding.param).get("enum") or []
        flat += [v for v in (*options, *said) if v not in flat]
        wants_list = self.catalog.parameter(self.sem.tool, binding.param).get("type") == "array"
        for value in flat:
            if wants_list:
                yield "a list of one", [value]
                yield "a list of two", [value, flat[0]]
                continue
            yield "a value that records have", value
            if isinstance(value, str) and value:
                yield "other case", value.swapcase()
                yield "a word of it", value.split()[-1]
                yield "a part of it", value[1:3]
                yield "more than it", value + "x"
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield "one more", value + 1
                yield "one less", value - 1
        fresh = self._fresh(binding, item)
        yield "a fresh value", fresh if not wants_list or isinstance(fresh, list) else [fresh]

    # ----------------------------------------------------------------------------------------------- random
    def _random(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        state = self.states[number]
        records = list(state.get(self.col.name, {}).values())
        for _ in range(RANDOM_CALLS):
            target = self.rng.choice(records) if records else None
            arguments = self._arguments(state, target, optional=None)
            for name in self.sem.paging:
                if self.rng.random() < 0.5:
                    place_argument(arguments, name, self._typed(name, self.rng.choice((1, 1, 2, 3, 5))))
            for binding in self.bindings:
                edges = [v for _, v in self._odd(state, binding, target) if v is not None]
                if edges and self.rng.random() < 0.25:
                    arguments = self._placed(arguments, binding, self.rng.choice(edges))
            yield "random", arguments

    # ------------------------------------------------------------------------------------------- arguments
    def _needed(self, binding: ParamBinding) -> bool:
        root = binding.param.split(".")[0]
        return binding.required or binding.param in self.required or root in self.required

    def _arguments(self, state: StateData, target: Record | None, *, optional: bool | None) -> dict[str, Any]:
        """Arguments that fit one record; ``optional``: with those that may be left out (None: some)."""
        arguments: dict[str, Any] = {}
        for binding in self.bindings:
            needed = self._needed(binding)
            wanted = self.rng.random() < 0.5 if optional is None else optional
            if not needed and not wanted:
                continue
            arguments = self._placed(arguments, binding, self._fit(state, binding, target))
        known = {b.param.split(".")[0] for b in self.bindings}
        for name in sorted(self.required):
            if name.split(".")[0] not in known and name not in self.sem.paging:
                place_argument(arguments, name, sample(self.catalog.parameter(self.sem.tool, name), self.rng))
        for name in self.sem.paging:
            if name in self.required:
                place_argument(arguments, name, self._typed(name, 1))
        return arguments

    def _field(self, binding: ParamBinding) -> StateField | None:
        return field_of(self.schema.collection(binding.collection), binding.field)

    def _parent(self, binding: ParamBinding, item: StateField | None) -> str:
        """The collection whose key an argument is, or empty."""
        if item is not None and item.references and item.type != "array":
            return item.references
        owner = self.schema.collection(binding.collection)
        own_key = binding.field == owner.key and not owner.singleton
        makes_key = self.sem.verb == "create" and not self.col.key_generated and owner is self.col
        return binding.collection if own_key and not makes_key else ""

    def _fit(self, state: StateData, binding: ParamBinding, target: Record | None) -> Any:
        """A value that suits a record: its own key and parents, a filter that finds it, a fresh value."""
        item = self._field(binding)
        own = (target or {}).get(binding.field) if binding.collection == self.col.name else None
        parent = self._parent(binding, item)
        if parent:
            keys = [r[self.schema.collection(parent).key] for r in state.get(parent, {}).values()]
            keep = own is not None and binding not in self.sem.writes
            if binding.op == "in":
                return [own] if keep else keys[:2]
            return own if keep else self.rng.choice(keys) if keys else "ZZ0"
        options: list[Any] = self.catalog.parameter(self.sem.tool, binding.param).get("enum") or []
        if binding.param in self.amounts:
            return self.rng.randint(1, max(1, int(own or 1)))
        if own is not None and binding not in self.sem.writes and options:
            same = [v for v in options if str(v).lower() == str(own).lower()]
            return same[0] if same else self.rng.choice(options)
        if own is not None and binding not in self.sem.writes:
            wants_list = self.catalog.parameter(self.sem.tool, binding.param).get("type") == "array"
            if isinstance(own, list) and not wants_list:
                items = cast("list[Any]", own)
                return _shown(items[0]) if items else None
            return [own] if wants_list and not isinstance(own, list) else cast("Any", own)
        return self._fresh(binding, item)

    def _fresh(self, binding: ParamBinding, item: StateField | None) -> Any:
        schema = self.catalog.parameter(self.sem.tool, binding.param)
        value = None
        if item is not None:
            value = self.maker.value(self.schema.collection(binding.collection), item, schema)
        return sample(schema, self.rng) if value is None else value


def _shown(item: Any) -> Any:
    """An item of a list as a filter names it: objects by their name."""
    return cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else item


def sample(schema: dict[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """A small value that fits a JSON schema, as far as its types say; None where it says nothing."""
    schema = narrow(schema)
    options = [v for v in cast("list[Any]", schema.get("enum") or []) if v is not None]
    if options:
        return rng.choice(options)
    match schema.get("type"):
        case "integer" | "number":
            low = int(schema.get("minimum", 1))
            return rng.randint(low, max(low, int(schema.get("maximum", low + 30))))
        case "boolean":
            return rng.random() < 0.5
        case "array":
            item = sample(schema.get("items") or {}, rng, depth + 1) if depth <= 2 else None
            return [item] if item is not None else []
        case "object":
            members: dict[str, Any] = schema.get("properties") or {}
            must = set(cast("list[str]", schema.get("required") or [])) or set(list(members)[:1])
            wanted = [n for n in members if n in must and depth < 4]
            made: dict[str, Any] = {n: sample(members[n], rng, depth + 1) for n in wanted}
            return {n: v for n, v in made.items() if v is not None} or {"note": f"n{rng.randrange(100)}"}
        case "string" | None:
            return f"text {rng.randrange(1000)}"
        case _:
            return None
