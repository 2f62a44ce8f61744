"""The initial state of one task: small, referentially whole, with distractors and without ties.

Every collection gets records (no dead ends off the reference path). On each level one *focus* record gets
most children, so that a look-up chain ends in a list worth choosing from; other parents get few or none.
Numbers and dates are distinct within a collection, labels too: a superlative or a name never fits two
records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from envgen.runtime.context import key_styles
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.choices import Needs
from envgen.synthesis.schema import paging_kind
from envgen.synthesis.sense import Sense
from envgen.synthesis.values import ValueMaker, slug
from envgen.synthesis.variants import Variants
from envgen.types import Collection, Record, StateData, StateField

RESULT_BUDGET = 520
"""Characters a list result may take: bounds the records of a collection that can be listed whole."""
MAX_LIST = 6
DISTINCT = ("integer", "number", "date", "datetime")


@dataclass
class World:
    """A state under construction and the focus record of each collection."""

    state: StateData
    focus: dict[str, str] = field(default_factory=dict[str, str])

    def plain(self) -> StateData:
        """A copy of the state."""
        return {name: {key: dict(record) for key, record in t.items()} for name, t in self.state.items()}

    def records(self, collection: str) -> list[Record]:
        """The records of a collection."""
        return list(self.state[collection].values())


def topological(catalog: Catalog) -> list[Collection]:
    """Collections with parents before children; members of a cycle in schema order."""
    remaining = dict(catalog.collections)
    ordered: list[Collection] = []
    while remaining:
        ready = [
            c
            for c in remaining.values()
            if not any(f.references in remaining and f.references != c.name and f.required for f in c.fields)
        ]
        ready = [
            c
            for c in ready
            if not any(f.references in remaining and f.references != c.name for f in c.fields)
        ] or ready
        for collection in ready or [next(iter(remaining.values()))]:
            ordered.append(collection)
            del remaining[collection.name]
    return ordered


def populated(catalog: Catalog, collection: Collection, needs: set[tuple[str, str]]) -> list[StateField]:
    """The fields that records of a collection carry in this task: required ones, those with a default, and
    needed ones."""
    return [
        f
        for f in collection.fields
        if f.name != collection.key
        and (
            f.required
            or f.name == collection.label
            or (collection.name, f.name) in needs
            or (f.default is not None and f.type in ("boolean", "enum"))
        )
    ]


def build_world(
    catalog: Catalog,
    maker: ValueMaker,
    rng: random.Random,
    wanted: Needs,
    crowd: int = 0,
) -> World:
    """Fill the values of a state. ``wanted``: what the task relies on; ``crowd``: the records by which the
    lists it looks at may be longer than usual."""
    world = World({c.name: {} for c in catalog.schema.collections})
    styles = key_styles(catalog.schema)
    numbers = rng.sample(range(10, 100), 90)
    sense = Sense(catalog)
    needs = set(wanted.fields)
    for name, shared in sense.same.items():
        owners = {f.name: f.references for f in catalog.collections[name].fields}
        needs |= {(owners[link], shared_name) for shared_name, link in shared}
    first = {"singleton": 0, "calendar": 1, "": 2, "session": 3}
    for collection in sorted(topological(catalog), key=lambda c: first[_sort(c, sense)]):
        fields = populated(catalog, collection, needs)
        if collection.singleton:
            record = {
                f.name: v
                for f in fields
                if (
                    v := _foreign_key(catalog, world, rng, f, None)
                    if f.references
                    else _value(catalog, maker, collection, f)
                )
                is not None
            }
            record[collection.key] = (
                next((f.default for f in collection.fields if f.name == collection.key), None) or "self"
            )
            world.state[collection.name]["self"] = record
            continue
        parents = [f for f in fields if f.references and f.references != collection.name]
        owners = _owners(
            world, rng, catalog, collection, parents, wanted.uses[collection.name], fields, crowd
        )
        table: list[tuple[str, Record]] = []
        for owner in owners:
            record: Record = {}
            for item in fields:
                if item.references:
                    record[item.name] = _foreign_key(catalog, world, rng, item, owner.get(item.name))
                else:
                    record[item.name] = _value(catalog, maker, collection, item, [r for _, r in table])
            if any(f.required and f.type in DISTINCT and record.get(f.name) is None for f in fields):
                continue  # its numbers are used up, and a tool may rely on a required one
            record = {name: value for name, value in record.items() if value is not None}
            variants = catalog.variants.get(collection.name)
            if variants is not None:
                _of_one_kind(variants, record, collection, needs, rng)
            for name, value in _own(catalog, world, collection.name).items():
                if rng.random() < 0.8:  # the rest belongs to others and is not shown
                    record[name] = value
            sense.repair(collection.name, record, parents_of(catalog, world, collection, record), rng)
            key = _key(
                catalog,
                world,
                collection,
                record,
                styles[collection.name].prefix,
                styles[collection.name].integer,
                numbers,
                maker,
            )
            if key is None or any(str(key) == known for known, _ in table):
                continue
            if _full(world, collection, len(table)):
                break
            ordered = {
                f.name: key if f.name == collection.key else record.get(f.name) for f in collection.fields
            }
            table.append((str(key), {n: v for n, v in ordered.items() if v is not None}))
        if table:
            main = parents[0] if parents else None
            focus_owner = world.focus.get(main.references) if main else None
            near = [k for k, r in table if main is None or str(r.get(main.name)) == focus_owner]
            world.focus[collection.name] = rng.choice(near or [k for k, _ in table])
        _share_places(catalog, collection, table, rng)
        rng.shuffle(table)
        world.state[collection.name] = dict(table)
        if collection.name in sense.calendars:
            maker.open_days = tuple(sorted(key for key, _ in table))
    for name, path, value in wanted.where:
        _meet(catalog, world, name, path, value, rng)
    return world


def _share_places(
    catalog: Catalog, collection: Collection, table: list[tuple[str, Record]], rng: random.Random
) -> None:
    """Let most records lie in one place, where a list wants to be told a place in plain words (an owner and a
    repository): else each list would show one record."""
    names = {name for a in catalog.accesses.get(collection.name, ()) for _, name in a.given}
    names = {name for name in names if not catalog.fields[collection.name, name].enum}
    for _, record in table[1:] if names else ():
        if rng.random() < 0.75:
            record.update({name: table[0][1][name] for name in sorted(names) if name in table[0][1]})


def _meet(catalog: Catalog, world: World, collection: str, path: str, value: Any, rng: random.Random) -> None:
    """Let most records meet a condition that a list shows records by; a path changes the records behind."""
    name, _, rest = path.partition(".")
    if rest:
        _meet(catalog, world, catalog.fields[collection, name].references, rest, value, rng)
        return
    for record in world.records(collection):
        if rng.random() < 0.75:
            record[name] = value


def parents_of(catalog: Catalog, world: World, collection: Collection, record: Record) -> dict[str, Record]:
    """Foreign key field -> the record behind it, for those of a record that lead to one."""
    found: dict[str, Record] = {}
    for item in collection.fields:
        table = world.state.get(item.references, {}) if item.references else {}
        parent = table.get(str(record.get(item.name)))
        if parent is not None and item.references in catalog.collections:
            found[item.name] = parent
    return found


def _sort(collection: Collection, sense: Sense) -> str:
    """Singletons come first (records may be marked as the session's own), one that names a record last."""
    if collection.singleton:
        return "session" if any(f.references for f in collection.fields) else "singleton"
    return "calendar" if collection.name in sense.calendars else ""


def _of_one_kind(
    variants: Variants,
    record: Record,
    collection: Collection,
    needs: set[tuple[str, str]],
    rng: random.Random,
) -> None:
    """Give a record a kind, mostly one with the fields that the task relies on, and only that kind's
    fields."""
    wanted = sorted(name for name in variants.only if (collection.name, name) in needs)
    if wanted and rng.random() < 0.75:
        record[variants.field] = rng.choice(sorted(variants.only[rng.choice(wanted)], key=str))
    variants.strip(record)


def _owners(
    world: World,
    rng: random.Random,
    catalog: Catalog,
    collection: Collection,
    parents: list[StateField],
    uses: int,
    fields: list[StateField],
    crowd: int,
) -> list[dict[str, str]]:
    """For each record to make, the parent keys that are decided beforehand."""
    size = record_size(catalog, collection, fields)
    busy = uses > 0
    crowd = max(crowd, uses - 3) if busy else 0  # every demand has its own record to act on
    listed = min(max(3, min(MAX_LIST, RESULT_BUDGET // size)) + crowd, page_of(catalog, collection.name))
    crowd = min(crowd, listed - 3)
    given = {
        name for locator in catalog.locators.get(collection.name, ()) for _, name in locator.access.given
    }
    if given:
        listed = MAX_LIST + crowd  # a filter the caller must set shows a part of them
    if not parents:
        least = 2 if size > RESULT_BUDGET // 2 else 3  # long records: a list of two, now and then
        return [{} for _ in range(rng.randint(least + crowd, listed) if busy else rng.randint(2, 3))]
    main = parents[0]
    keys = list(world.state[main.references])
    if not keys:
        return []
    inner = bool(catalog.children.get(collection.name))
    whole = any(not locator.access.links for locator in catalog.locators.get(collection.name, ()))
    cap = listed if whole else 10 + 3 * crowd
    focus = world.focus.get(main.references, keys[0])
    first = (
        rng.randint(2, 3)
        if inner or not busy or size > RESULT_BUDGET // 2
        else rng.randint(3, min(4, listed)) + crowd
    )
    owners = [focus] * min(first, cap)
    others = [key for key in keys if key != focus]
    rng.shuffle(others)
    for key in others:
        owners.extend([key] * min(rng.randint(0, 1 if inner or whole else 2), cap - len(owners)))
    if len(owners) == min(first, cap) and others and len(owners) < cap:
        owners.append(others[0])  # at least one child elsewhere: the focus is never the only place to look
    return [{main.name: owner} for owner in owners]


def _full(world: World, collection: Collection, made: int) -> bool:
    """A set of others' keys holds at most half of them: something is left to add."""
    key = next((f for f in collection.fields if f.name == collection.key), None)
    return key is not None and bool(key.references) and made >= max(1, len(world.state[key.references]) // 2)


def page_of(catalog: Catalog, collection: str) -> int:
    """Records that every list of a collection shows on one page when it is not told a size."""
    sizes = [
        size
        for access in catalog.accesses.get(collection, ())
        for param, size in catalog.semantics[access.tool].defaults.items()
        if access.many and paging_kind(param) == "size" and isinstance(size, int) and size > 2
    ]
    return min(sizes, default=99)


def _own(catalog: Catalog, world: World, collection: str) -> dict[str, Any]:
    """Fields that mark a record as the logged-in user's own, with their values."""
    mine = {pair for access in catalog.accesses.get(collection, ()) for pair in access.mine}
    return {name: session_value(world, field_name) for name, field_name in sorted(mine)}


def session_value(world: World, name: str) -> Any:
    """A field of the singleton ``session``."""
    return world.state.get("session", {}).get("self", {}).get(name)


def record_size(catalog: Catalog, collection: Collection, fields: list[StateField]) -> int:
    """About how many characters a record takes in a result, nested parents included."""
    size = 10 + len(collection.key)
    nested = {n for a in catalog.accesses.get(collection.name, ()) for n, path in a.fields if "." in path}
    for item in fields:
        size += len(item.name) + {
            "array": 22,
            "datetime": 24,
            "object": 40,
            "boolean": 9,
            "integer": 6,
            "number": 6,
        }.get(item.type, 16)
        if item.references in catalog.collections and item.name in nested:
            parent = catalog.collections[item.references]
            size += sum(len(f.name) + 14 for f in populated(catalog, parent, set()))
    return size


def _foreign_key(
    catalog: Catalog, world: World, rng: random.Random, item: StateField, owner: str | None
) -> Any:
    if item.type == "array":
        return None
    table = world.state.get(item.references, {})
    if not table:
        return None
    key = owner if owner is not None else rng.choice(list(table))
    target = catalog.collections[item.references]
    return table[key].get(target.key, key)


def _value(
    catalog: Catalog,
    maker: ValueMaker,
    collection: Collection,
    item: StateField,
    made: list[Record] | None = None,
) -> Any:
    """A value that no earlier record of the collection has, where sharing one could make a goal ambiguous."""
    made = made or []
    distinct = (
        item.name == collection.label
        or item.type in DISTINCT
        or (item.type in ("string", "text") and not item.enum)
    )
    taken = {str(r.get(item.name)) for r in made}
    schema = catalog.members(collection.name, item.name) if item.type == "object" else None
    value = maker.value(collection, item, schema)
    for _ in range(24):
        if not distinct or str(value) not in taken:
            return value
        value = maker.value(collection, item, schema)
    if item.name == collection.label and isinstance(value, str):
        name = maker.pool.longer(maker.rng, value)
        return None if name in taken else name
    if item.required and item.type in ("integer", "number"):
        return max(r[item.name] for r in made if item.name in r) + 1
    if item.required and item.type in ("date", "datetime"):
        return value  # there are not always enough days: a superlative over them is dropped as a tie
    return None if item.type in DISTINCT else value


def _key(
    catalog: Catalog,
    world: World,
    collection: Collection,
    record: Record,
    prefix: str,
    integer: bool,
    numbers: list[int],
    maker: ValueMaker,
) -> str | int | None:
    if collection.key_generated or integer:
        number = numbers.pop() if numbers else None
        if number is None:
            return None
        return number if integer else f"{prefix}{number}"
    label = record.get(collection.label) if collection.label else None
    if isinstance(label, str):
        return slug(label)
    known = next((f for f in collection.fields if f.name == collection.key), None)
    if known is not None and known.references:
        return _foreign_key(catalog, world, maker.rng, known, None)
    if known is not None and known.type in ("date", "enum"):
        return maker.value(collection, known)
    return maker.pool.label(maker.rng, collection.model_copy(update={"label": collection.key}))
