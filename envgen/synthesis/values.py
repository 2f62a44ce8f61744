"""Seeded values for state fields: short, plausible, from small pools so that a bundle keeps one vocabulary.

A pool is drawn once per bundle; tasks draw from it. Names are 1–2 words, numbers small integers, dates
``YYYY-MM-DD``.
"""

from __future__ import annotations

import random
import re
from datetime import date, timedelta
from functools import cache
from typing import Any

from mimesis import Generic
from mimesis.locales import Locale

from envgen.packaged import packaged_json
from envgen.proposers.rules.words import singular
from envgen.synthesis.catalog import field_words, narrow
from envgen.synthesis.sense import has_happened
from envgen.types import Collection, StateField

_MONEY = {"price", "cost", "amount", "total", "fee", "value", "budget", "balance", "salary", "rate"}
LISTS = (
    "rooms",
    "phrases",
    "schedules",
    "commands",
    "colors",
    "tags",
    "codes",
    "languages",
    "currencies",
    "sorts",
)
"""Word lists a pool draws from; a new one goes to the end, so that the draws of the others stay."""
_ORDINAL = {"order", "index", "position", "rank", "priority", "level", "page", "sequence", "sort"}
_LONG = {
    "description",
    "body",
    "content",
    "text",
    "message",
    "note",
    "notes",
    "comment",
    "bio",
    "summary",
    "details",
    "prompt",
    "reason",
    "resolution",
    "answer",
    "feedback",
    "remark",
    "instruction",
}
_CODED = {"password", "token", "secret", "code", "number", "serial", "symbol", "tradingsymbol", "ticker"}
"""Last words of fields that hold short codes, also when they label a record."""
_SLUGS = {"repo", "repository", "branch", "base", "head", "ref", "namespace", "package"}
"""Last words of fields and entities whose names are written ``like-this``."""
_PEOPLE = {"author", "owner", "assignee", "reviewer", "username", "user", "by", "login", "manager"}


@cache
def words() -> dict[str, Any]:
    """The word lists that ship with the package."""
    loaded: dict[str, Any] = packaged_json("envgen.synthesis", "data/words.json")
    return loaded


class ValuePool:
    """The vocabulary of one bundle. ``seed`` decides it; ``size`` bounds each word list."""

    def __init__(self, seed: int, size: int = 14) -> None:
        rng = random.Random(f"pool/{seed}")
        lists = words()
        made = Generic(locale=Locale.EN, seed=seed)
        self.adjectives = _some(rng, lists["adjectives"], size)
        self.nouns = {kind: _some(rng, pool, size) for kind, pool in lists["nouns"].items()}
        self.actions = _some(rng, lists["actions"], size)
        self.objects = _some(rng, lists["objects"], size)
        names = sorted({made.person.first_name() for _ in range(60)} - {""})
        self.people = _some(rng, [n for n in names if n.isascii() and n.isalpha() and len(n) <= 7], 2 * size)
        cities = sorted({made.address.city() for _ in range(80)})
        self.cities = _some(rng, [c for c in cities if c.isascii() and c.isalpha() and len(c) <= 10], size)
        self.lists: dict[str, list[str]] = {name: _some(rng, lists[name], size) for name in LISTS}

    def label(self, rng: random.Random, collection: Collection) -> str:
        """A name for a record: ``Amber Workshop``, ``Fix Roof``, ``Mia``."""
        entity = field_words(collection.entity)
        last = entity[-1] if entity else ""
        named = field_words(collection.label)[-1:] or [""]
        own_key = collection.key == collection.label
        if last in words()["person_entities"]:
            name = rng.choice(self.people)
            return name.lower() if own_key else name
        if named[0] in _CODED:
            return self.code(rng)
        if named[0] in ("filename", "file"):
            return slug(self.name(rng)) + ".txt"
        if own_key:
            return slug(self.name(rng))
        if last in words()["action_entities"]:
            return f"{rng.choice(self.actions)} {rng.choice(self.objects)}"
        if last in ("file", "directory", "folder"):
            stem = rng.choice(self.adjectives).lower() + rng.choice(self.nouns["generic"]).lower()
            return stem + (".txt" if last == "file" else "")
        kinds: dict[str, str] = words()["kinds"]
        kind = next((kinds[w] for w in reversed(entity) if w in kinds), "generic")
        return self.name(rng, kind)

    def name(self, rng: random.Random, kind: str = "generic") -> str:
        """A name of one kind of thing: ``Amber Workshop``; of a type or a pet one word."""
        noun = rng.choice(self.nouns[kind]) if kind in ("type", "pet") else ""
        return noun or f"{rng.choice(self.adjectives)} {rng.choice(self.nouns[kind])}"

    def longer(self, rng: random.Random, name: str) -> str:
        """A name that the short ones do not give, where they are used up: ``Quiet Daisy``, ``mia-7``."""
        if name[:1].isupper() and " " not in name and not any(c.isdigit() for c in name):
            return f"{rng.choice(self.adjectives)} {name}"
        if name[:1].isupper() and " " in name:
            return f"{name} {rng.choice(('East', 'West', 'North', 'South', 'Two', 'Plus'))}"
        stem, dot, ending = name.partition(".")
        return f"{stem}-{rng.randrange(2, 10)}{dot}{ending}"

    def code(self, rng: random.Random) -> str:
        """A short code: ``K417``."""
        return f"{rng.choice(self.lists['codes'])}{rng.randrange(100, 1000)}"


def _some(rng: random.Random, pool: list[str], size: int) -> list[str]:
    return rng.sample(pool, min(size, len(pool)))


def slug(text: str) -> str:
    """``Amber Story`` -> ``amber-story``."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class ValueMaker:
    """Draws values for one task. ``today`` anchors dates: what has happened lies before it, what is planned
    after it."""

    def __init__(self, pool: ValuePool, rng: random.Random, today: date) -> None:
        self.pool = pool
        self.rng = rng
        self.today = today
        self.open_days: tuple[str, ...] = ()
        """Where not empty, what is planned falls on one of these days."""

    def value(
        self, collection: Collection, field: StateField, parameter: dict[str, Any] | None = None
    ) -> Any:
        """A value for a field, within the limits of a parameter's JSON schema when one is given. None when
        impossible."""
        schema = parameter or {}
        options = tuple(schema.get("enum") or field.enum)
        rng = self.rng
        if options:
            options = tuple(o for o in options if o is not None)
            return rng.choice(options) if options else None
        kind = _kind_of(schema, field)
        if kind == "array":
            return self._array(collection, field, schema)
        if kind == "object":
            # {"category": {"name": "Tools"}}: the name is one of the category, not of the record
            return self._object(collection.model_copy(update={"entity": field.name, "label": ""}), schema)
        if kind == "boolean":
            return rng.random() < 0.5
        if kind in ("integer", "number"):
            return self._number(field, schema)
        if kind == "date":
            return self._date(field)
        if kind == "datetime":
            return f"{self._date(field)}T{rng.randrange(8, 19):02d}:00:00"
        if kind == "time":
            return f"{rng.randrange(8, 20):02d}:{rng.choice(('00', '30'))}"
        return self._text(collection, field)

    def _object(
        self, collection: Collection, schema: dict[str, Any], depth: int = 0
    ) -> dict[str, Any] | None:
        """One or two plain members of an object parameter; None when its schema names none."""
        properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
        members = {name: narrow(inner) for name, inner in properties.items()}
        must: list[str] = [str(n) for n in schema.get("required", [])]
        plain = [
            n
            for n, s in members.items()
            if s.get("type") in ("string", "integer", "number") and not _is_id(n)
        ]
        if not plain and not must and depth < 2:  # {"text": {"body": "..."}}
            for name, inner in members.items():
                nested = self._object(collection, inner, depth + 1) if inner.get("type") == "object" else None
                if nested:
                    return {name: nested}
        if any(name not in plain for name in must) or not plain:
            return None
        first = [n for n in plain if members[n].get("enum")] or plain
        names = must or [self.rng.choice(first[:3])]
        found: dict[str, Any] = {}
        for name in names:
            inner = members[name]
            kind = {"integer": "integer", "number": "number"}.get(inner["type"], "string")
            value = self.value(collection, StateField(name=name, type=kind), inner)  # pyright: ignore[reportArgumentType]
            if value is not None:
                found[name] = value
        return found or None

    def _date(self, field: StateField) -> str:
        if has_happened(field):
            return (self.today - timedelta(days=self.rng.randrange(1, 120))).isoformat()
        if self.open_days:
            return self.rng.choice(self.open_days)
        return (self.today + timedelta(days=self.rng.randrange(1, 90))).isoformat()

    def _number(self, field: StateField, schema: dict[str, Any]) -> int:
        name = set(field_words(field.name))
        low, high = (1, 9) if name & _ORDINAL else (5, 99) if name & _MONEY else (1, 40)
        low = max(low, int(schema.get("minimum", low)))
        high = max(low, min(high, int(schema.get("maximum", max(high, low + 20)))))
        return self.rng.randint(low, high)

    def _array(self, collection: Collection, field: StateField, schema: dict[str, Any]) -> list[Any] | None:
        items: dict[str, Any] = schema.get("items") or {}
        kind = field.item_type or {"integer": "integer", "number": "number"}.get(
            str(items.get("type")), "string"
        )
        if kind in ("object", "array", "any", "id"):
            return None
        single = field.model_copy(
            update={"type": kind, "item_type": None, "enum": tuple(items.get("enum", ()))}
        )
        if kind == "string" and items.get("format") == "date":
            single = single.model_copy(update={"type": "date"})
        wanted = self.rng.choice((1, 1, 1, 2))
        found: list[Any] = []
        for _ in range(8):
            value = self.value(collection, single, items)
            if value is not None and value not in found:
                found.append(value)
            if len(found) == wanted:
                break
        return sorted(found) if found else None

    def _text(self, collection: Collection, field: StateField) -> str:
        rng, lists = self.rng, self.pool.lists
        names = field_words(field.name)
        last = singular(names[-1]) if names else ""
        if field.name == collection.label:
            return self.pool.label(rng, collection)
        if "email" in names or last == "mail":
            return f"{rng.choice(self.pool.people).lower()}@{rng.choice(('acme', 'mail', 'work'))}.org"
        if last in ("image", "avatar", "picture", "photo", "icon"):
            return f"{rng.choice(self.pool.adjectives).lower()}.png"
        if last in ("url", "link", "website", "uri", "homepage"):
            return f"https://{rng.choice(self.pool.adjectives).lower()}.org"
        if last in ("bio", "genre", "theme"):
            return rng.choice(lists["tags"])
        if last in ("color", "colour"):
            return rng.choice(lists["colors"])
        if last in ("schedule", "cron", "frequency"):
            return rng.choice(lists["schedules"])
        if last == "method":
            return rng.choice(("GET", "POST", "PUT"))
        if last in ("command", "script"):
            return rng.choice(lists["commands"])
        if last in ("location", "room", "venue"):
            return rng.choice(lists["rooms"])
        if last in ("city", "town"):
            return rng.choice(self.pool.cities)
        if last in ("tag", "tagname", "label", "topic", "category", "list"):
            return rng.choice(lists["tags"])
        if last == "phone" or "phone" in names:
            return f"555-{rng.randrange(1000, 10000)}"
        if (last == "id" and len(names) > 1) or last in _CODED or last in ("sid", "uuid", "hash", "key"):
            return self.pool.code(rng)
        if last in ("language", "locale", "lang"):
            return rng.choice(lists["languages"])
        if last == "currency":
            return rng.choice(lists["currencies"])
        if last == "path":
            return f"docs/{slug(self.pool.name(rng))}.md"
        if last == "type" and "order" in (*names, *field_words(collection.entity)):
            return rng.choice(("market", "limit", "stop"))
        if last in ("type", "kind", "mode"):
            return rng.choice(lists["sorts"])
        if last in _SLUGS:
            return slug(self.pool.name(rng))
        if last in _PEOPLE or names[:1] in (["first"], ["last"]):
            return rng.choice(self.pool.people)
        if last in ("name", "title"):
            return self.pool.label(rng, collection)
        if field.type == "text" or last in _LONG:
            return rng.choice(lists["phrases"])
        if field.type == "id":
            return f"{rng.choice(lists['codes'])}{rng.randrange(10, 100)}"
        return self.pool.name(rng, words()["kinds"].get(last, "generic"))


def _is_id(name: str) -> bool:
    return field_words(name)[-1:] in (["id"], ["ids"])


def _kind_of(schema: dict[str, Any], field: StateField) -> str:
    """The parameter's JSON type wins over the field's where they disagree, since the tool checks arguments
    by it."""
    declared = schema.get("type")
    if declared in ("integer", "number", "boolean", "array", "object"):
        return str(declared)
    if declared == "string" and field.type in ("integer", "number", "boolean", "array", "object"):
        return "string"
    if declared == "string" and schema.get("format") in ("date", "date-time"):
        return "date" if schema["format"] == "date" else "datetime"
    return field.type
