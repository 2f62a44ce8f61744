"""Canonical records: what the grader compares instead of raw JSON (DESIGN.md §6).

- numbers by value (25 equals 25.0; "25" and True do not), strings exactly, or by ``casefold`` and white
  space where the field's policy is ``normalised``;
- ``exempt`` fields are left out; so is null in a field that is not required (missing and null are the same
  there);
- a list keeps its order, unless the field is ``normalised``: then it is compared as a bag;
- an id that was minted in this episode (a key that the initial state does not have) becomes a ``Ref``, in
  the key field, in declared references, and as a whole string anywhere else, inside arrays and objects too.
  ``Ref``s are matched up to renaming.

A number in a field that declares neither ``references`` nor the type ``id`` is never a reference: 7 as a
price stays 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from envgen.types import Collection, Record, StateField, StateSchema


class Ref(NamedTuple):
    """A reference to a record made in this episode. ``ref`` keeps it apart from every other tuple."""

    ref: str
    collection: str
    key: str


class Bag(NamedTuple):
    """A list whose order does not count, in an order of its own (by text)."""

    bag: str
    items: tuple[Any, ...]


class Seq(NamedTuple):
    """A list whose order counts."""

    seq: str
    items: tuple[Any, ...]


class Obj(NamedTuple):
    """A JSON object: pairs of name and value, ordered by text."""

    obj: str
    items: tuple[tuple[Any, Any], ...]


class Flag(NamedTuple):
    """A boolean, kept apart from 0 and 1, to which Python thinks it equal."""

    flag: str
    value: bool


Canonical = dict[str, Any]
"""field -> hashable value: str, number, None, or a tagged tuple."""


@dataclass(frozen=True)
class Rules:
    """The grading rules of one collection, looked up by field."""

    name: str
    key: str
    renamable: bool
    """New keys are minted by the environment, so they are compared up to renaming."""
    fields: Mapping[str, StateField]
    exempt: frozenset[str]


def rules_of(schema: StateSchema) -> dict[str, Rules]:
    """Rules per collection name."""
    return {c.name: _rules(c) for c in schema.collections}


def _rules(collection: Collection) -> Rules:
    fields = {f.name: f for f in collection.fields}
    exempt = frozenset(f.name for f in collection.fields if f.policy == "exempt" and f.name != collection.key)
    return Rules(
        collection.name, collection.key, collection.key_generated and not collection.singleton, fields, exempt
    )


NewIds = Mapping[str, frozenset[str]]
"""collection -> keys minted in this episode."""


def _owner(text: str, new: NewIds, numeric: bool) -> Ref | None:
    """The one record a value names when nothing declares its collection; None when none or several could be
    meant."""
    if not numeric and text.isdigit():
        return None
    owners = [name for name, keys in new.items() if text in keys]
    return Ref("ref", owners[0], text) if len(owners) == 1 else None


def _scalar(value: Any, references: str, numeric: bool, normalised: bool, new: NewIds) -> Any:
    kind: object = cast("object", type(value))
    if kind is bool:
        return Flag("flag", value)
    if kind is float:
        return (
            int(value) if value.is_integer() else value
        )  # one text per number, so that sorting by text is by value
    if kind is str or kind is int:
        if new:
            text = str(value)
            if references:
                if text in new.get(references, ()):
                    return Ref("ref", references, text)
            elif kind is str or numeric:
                owner = _owner(text, new, numeric)
                if owner is not None:
                    return owner
        if normalised and kind is str:
            return " ".join(value.casefold().split())
    return value


def _value(value: Any, references: str, numeric: bool, normalised: bool, new: NewIds) -> Any:
    if type(value) is list or type(value) is tuple:
        items = tuple(_value(v, references, numeric, normalised, new) for v in cast("list[Any]", value))
        return Bag("bag", tuple(sorted(items, key=repr))) if normalised else Seq("seq", items)
    if type(value) is dict:
        pairs = [
            (_scalar(k, references, numeric, False, new), _value(v, references, numeric, normalised, new))
            for k, v in cast("dict[str, Any]", value).items()
        ]
        return Obj("obj", tuple(sorted(pairs, key=repr)))
    return _scalar(value, references, numeric, normalised, new)


def canonical_record(record: Record, rules: Rules, new: NewIds) -> Canonical:
    """The canonical form of one record; see the module docstring."""
    out: Canonical = {}
    for name, value in record.items():
        spec = rules.fields.get(name)
        if name == rules.key:
            key = str(value)
            out[name] = Ref("ref", rules.name, key) if key in new.get(rules.name, ()) else value
            continue
        if name in rules.exempt:
            continue
        if spec is None:
            out[name] = _value(value, "", False, False, new)
            continue
        if value is None and not spec.required:
            continue
        numeric = spec.type == "id" or spec.item_type == "id"
        out[name] = _value(value, spec.references, numeric, spec.policy == "normalised", new)
    return out


def refs_in(value: Any) -> Iterator[Ref]:
    """All references inside a canonical value, in order."""
    if type(value) is Ref:
        yield value
    elif type(value) is Seq or type(value) is Bag:
        for item in value.items:
            yield from refs_in(item)
    elif type(value) is Obj:
        for name, item in value.items:
            yield from refs_in(name)
            yield from refs_in(item)


def substitute(value: Any, names: Mapping[tuple[str, str], Any]) -> Any:
    """The value with each reference replaced by its entry in ``names``; sorted parts are sorted anew."""
    if type(value) is Ref:
        return Ref("ref", value.collection, names[value.collection, value.key])
    if type(value) is Seq:
        return Seq("seq", tuple(substitute(v, names) for v in value.items))
    if type(value) is Bag:
        return Bag("bag", tuple(sorted((substitute(v, names) for v in value.items), key=repr)))
    if type(value) is Obj:
        pairs = [(substitute(k, names), substitute(v, names)) for k, v in value.items]
        return Obj("obj", tuple(sorted(pairs, key=repr)))
    return value
