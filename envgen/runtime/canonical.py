"""Canonical records: what the grader compares instead of raw JSON (DESIGN.md §6).

- numbers by value (25 equals 25.0; "25" and True do not), strings exactly;
- ``exempt`` fields are left out; so is null in a field that is not required (missing and null are the same
  there). Where the key field itself is exempt, the whole collection is not graded (logs, read counters);
- a list keeps its order;
- ``normalised`` fields: text by Unicode compatibility form (NFKC), ``casefold`` and white space; lists as
  bags; a numeric field also takes the number written as text ("25.0"); dates and times by the moment they
  name (``Z`` and ``+00:00``, with or without seconds);
- an id that was minted in this episode (a key that the initial state does not have) becomes a ``Ref``, in
  the key field, in declared references, and anywhere else as a whole string or as a whole word of a longer
  text (``/notes/N41``), inside arrays and objects too. ``Ref``s are matched up to renaming.

A number in a field that declares neither ``references`` nor the type ``id`` is never a reference: 7 as a
price stays 7.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
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
    """A list whose order counts (``seq``), or the pieces of a text that names minted records (``text``)."""

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
class FieldRule:
    """How the values of one field are compared; the defaults are for one the schema does not name."""

    references: str = ""
    kind: str = ""
    """Its type, or that of its items."""
    numeric: bool = False
    """A number here can be an id."""
    normalised: bool = False
    required: bool = False


UNDECLARED = FieldRule()


@dataclass(frozen=True)
class Rules:
    """The grading rules of one collection, looked up by field."""

    name: str
    key: str
    label: str
    renamable: bool
    """New keys are minted by the environment, so they are compared up to renaming."""
    fields: Mapping[str, FieldRule]
    exempt: frozenset[str]
    graded: bool
    """False where the key field is exempt: nothing in this collection counts."""


def rules_of(schema: StateSchema) -> dict[str, Rules]:
    """Rules per collection name."""
    return {c.name: _rules(c) for c in schema.collections}


def _field(spec: StateField) -> FieldRule:
    return FieldRule(
        references=spec.references,
        kind=spec.item_type or spec.type,
        numeric=spec.type == "id" or spec.item_type == "id",
        normalised=spec.policy == "normalised",
        required=spec.required,
    )


def _rules(collection: Collection) -> Rules:
    exempt = frozenset(f.name for f in collection.fields if f.policy == "exempt")
    return Rules(
        name=collection.name,
        key=collection.key,
        label=collection.label,
        renamable=collection.key_generated and not collection.singleton,
        fields={f.name: _field(f) for f in collection.fields},
        exempt=exempt,
        graded=collection.key not in exempt,
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


def _number(value: float) -> Any:
    return int(value) if value.is_integer() else value  # one text per number: sorting by text is by value


_WORDS = re.compile(r"\w+")


def _mentions(text: str, new: NewIds, normalised: bool) -> Seq | None:
    """A text in which minted ids stand as words, cut there; None when there are none."""
    if not any(key in text for keys in new.values() for key in keys):
        return None
    parts: list[Any] = []
    at = 0
    for match in _WORDS.finditer(text):
        owner = _owner(match.group(), new, numeric=False)
        if owner is not None:
            parts += (text[at : match.start()], owner)
            at = match.end()
    if not parts:
        return None
    parts.append(text[at:])
    return Seq("text", tuple(_plain(p) if normalised and type(p) is str else p for p in parts))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _normalised(text: str, kind: str) -> Any:
    """A text by what it means in a field of this type; by case and white space where it is no such value."""
    try:
        if kind in ("integer", "number"):
            number = float(text)
            return _number(number) if math.isfinite(number) else _plain(text)
        if kind == "date":
            return date.fromisoformat(text.strip()).isoformat()
        if kind == "time":
            return time.fromisoformat(text.strip()).isoformat()
        if kind == "datetime":
            moment = datetime.fromisoformat(text.strip())
            return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()
    except (ValueError, OverflowError):
        pass  # not such a value: compared as text
    return _plain(text)


def _scalar(value: Any, field: FieldRule, new: NewIds) -> Any:
    kind: object = cast("object", type(value))
    if kind is bool:
        return Flag("flag", value)
    if kind is float:
        return _number(value)
    if kind is str or kind is int:
        if new:
            text = str(value)
            if field.references and text in new.get(field.references, ()):
                return Ref("ref", field.references, text)
            if not field.references and (kind is str or field.numeric):
                owner = _owner(text, new, field.numeric)
                if owner is not None:
                    return owner
                if kind is str and not field.numeric:
                    found = _mentions(text, new, field.normalised)
                    if found is not None:
                        return found
        if field.normalised and kind is str:
            return _normalised(value, field.kind)
    return value


def _value(value: Any, field: FieldRule, new: NewIds) -> Any:
    if type(value) is list or type(value) is tuple:
        items = tuple(_value(v, field, new) for v in cast("list[Any]", value))
        return Bag("bag", tuple(sorted(items, key=repr))) if field.normalised else Seq("seq", items)
    if type(value) is dict:
        names = FieldRule(field.references, numeric=field.numeric)
        pairs = [
            (_scalar(k, names, new), _value(v, field, new)) for k, v in cast("dict[str, Any]", value).items()
        ]
        return Obj("obj", tuple(sorted(pairs, key=repr)))
    return _scalar(value, field, new)


def canonical_value(value: Any, kind: str = "", *, normalised: bool = False) -> Any:
    """The canonical form of a value that stands in no record and holds no minted id: an answer, an argument.
    ``kind`` is the type it has (of its items, for a list)."""
    return _value(value, FieldRule(kind=kind, normalised=normalised), {})


def canonical_record(record: Record, rules: Rules, new: NewIds) -> Canonical:
    """The canonical form of one record; see the module docstring."""
    out: Canonical = {}
    for name, value in record.items():
        if name == rules.key:
            key = str(value)
            out[name] = (
                Ref("ref", rules.name, key)
                if key in new.get(rules.name, ())
                else _value(value, UNDECLARED, {})
            )
            continue
        if name in rules.exempt:
            continue
        rule = rules.fields.get(name, UNDECLARED)
        if value is None and not rule.required:
            continue
        out[name] = _value(value, rule, new)
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
        return Seq(value.seq, tuple(substitute(v, names) for v in value.items))
    if type(value) is Bag:
        return Bag("bag", tuple(sorted((substitute(v, names) for v in value.items), key=repr)))
    if type(value) is Obj:
        pairs = [(substitute(k, names), substitute(v, names)) for k, v in value.items]
        return Obj("obj", tuple(sorted(pairs, key=repr)))
    return value
