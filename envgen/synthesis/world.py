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
    catalog: Catalog, maker: ValueMaker, rng: random.Random, needs: set[tuple[str, str]], busy: set[str]
) -> World:
    """Fill the values of a state. ``needs`` are fields the task relies on, ``busy`` collections it looks
    at."""
    world = World({c.name: {} for c in catalog.schema.collections})
    styles = key_styles(catalog.schema)
    numbers = rng.sample(range(10, 100), 90)
    for collection in sorted(topological(catalog), key=lambda c: not c.singleton):
        fields = populated(catalog, collection, needs)
        if collection.singleton:
            record = {f.name: v for f in fields if (v := _value(catalog, maker, collection, f)) is not None}
            record[collection.key] = (
                next((f.default for f in collection.fields if f.name == collection.key), None) or "self"
            )
            world.state[collection.name]["self"] = record
            continue
        parents = [f for f in fields if f.references and f.references != collection.name]
        owners = _owners(world, rng, catalog, collection, parents, collection.name in busy, fields)
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
            key = _key(
                collection,
                record,
                styles[collection.name].prefix,
                styles[collection.name].integer,
                numbers,
                maker,
            )
            if key is None or any(str(key) == known for known, _ in table):
                continue
            ordered = {
                f.name: key if f.name == collection.key else record.get(f.name) for f in collection.fields
            }
            table.append((str(key), {n: v for n, v in ordered.items() if v is not None}))
        if table:
            main = parents[0] if parents else None
            focus_owner = world.focus.get(main.references) if main else None
            near = [k for k, r in table if main is None or str(r.get(main.name)) == focus_owner]
            world.focus[collection.name] = rng.choice(near or [k for k, _ in table])
        rng.shuffle(table)
        world.state[collection.name] = dict(table)
    return world


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
    busy: bool,
    fields: list[StateField],
) -> list[dict[str, str]]:
    """For each record to make, the parent keys that are decided beforehand."""
    size = _size(catalog, collection, fields)
    listed = max(3, min(MAX_LIST, RESULT_BUDGET // size))
    given = {
        name for locator in catalog.locators.get(collection.name, ()) for _, name in locator.access.given
    }
    if given:
        listed = MAX_LIST  # a filter the caller must set shows a part of them
    if not parents:
        least = 2 if size > RESULT_BUDGET // 2 else 3  # long records: a list of two, now and then
        return [{} for _ in range(rng.randint(least, listed) if busy else rng.randint(2, 3))]
    main = parents[0]
    keys = list(world.state[main.references])
    if not keys:
        return []
    inner = bool(catalog.children.get(collection.name))
    whole = any(not locator.access.links for locator in catalog.locators.get(collection.name, ()))
    cap = listed if whole else 10
    focus = world.focus.get(main.references, keys[0])
    first = (
        rng.randint(2, 3)
        if inner or not busy or size > RESULT_BUDGET // 2
        else rng.randint(3, min(4, listed))
    )
    owners = [focus] * min(first, cap)
    others = [key for key in keys if key != focus]
    rng.shuffle(others)
    for key in others:
        owners.extend([key] * min(rng.randint(0, 1 if inner or whole else 2), cap - len(owners)))
    if len(owners) == min(first, cap) and others and len(owners) < cap:
        owners.append(others[0])  # at least one child elsewhere: the focus is never the only place to look
    return [{main.name: owner} for owner in owners]


def _own(catalog: Catalog, world: World, collection: str) -> dict[str, Any]:
    """Fields that mark a record as the logged-in user's own, with their values."""
    mine = {pair for access in catalog.accesses.get(collection, ()) for pair in access.mine}
    return {name: session_value(world, field_name) for name, field_name in sorted(mine)}


def session_value(world: World, name: str) -> Any:
    """A field of the singleton ``session``."""
    return world.state.get("session", {}).get("self", {}).get(name)


def _size(catalog: Catalog, collection: Collection, fields: list[StateField]) -> int:
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
    return None if item.name == collection.label or item.type in DISTINCT else value


def _key(
    collection: Collection, record: Record, prefix: str, integer: bool, numbers: list[int], maker: ValueMaker
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
    if known is not None and known.type in ("date", "enum"):
        return maker.value(collection, known)
    return maker.pool.label(maker.rng, collection.model_copy(update={"label": collection.key}))
