"""Stage 1: the state structure, checked for names, keys and relations before anything is built on it."""

from __future__ import annotations

import re

from envgen.proposers.model.answers import CollectionAnswer, FieldAnswer, StructureAnswer
from envgen.proposers.model.asking import Wrong
from envgen.types import Collection, StateField, StateSchema

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,59}")
_PLAIN = re.compile(r"[^\"\\{}\x00-\x1f\x7f-\x9f]{0,200}")
MAX_COLLECTIONS = 40
MAX_FIELDS = 60
_RESERVED = frozenset({"session"})


def build_structure(answer: StructureAnswer, kept: StateSchema | None) -> StateSchema:
    """The state schema an answer describes, on top of ``kept`` (the rules' schema, which stays as it is; the
    answer may add fields and collections). Raises Wrong with everything that does not hold."""
    problems: list[str] = []
    known = {c.name: c for c in kept.collections} if kept else {}
    result: dict[str, Collection] = dict(known)
    seen: set[str] = set()
    for item in answer.collections:
        where = f"collection {item.name!r}"
        if not NAME.fullmatch(item.name) or item.name in _RESERVED - set(known):
            problems.append(f"{where}: expected a plural snake_case name that is not reserved")
            continue
        if item.name in seen:
            problems.append(f"{where} stands twice")
            continue
        seen.add(item.name)
        own = known.get(item.name)
        if own is None:
            problems += _collection_problems(item)
            result[item.name] = _collection(item)
        else:
            names = {f.name for f in own.fields}
            added = tuple(f for f in item.fields if f.name not in names)
            # A record that a rules' tool creates has no value for a field it does not know.
            optional = tuple(_field(f).model_copy(update={"required": False}) for f in added)
            problems += [p for f in added for p in _field_problems(f, where)]
            result[item.name] = own.model_copy(update={"fields": (*own.fields, *optional)})
    if not result:
        problems.append("there is no collection; expected one for each kind of thing the tools speak of")
    if len(result) > MAX_COLLECTIONS:
        problems.append(f"got {len(result)} collections, expected at most {MAX_COLLECTIONS}")
    problems += _relation_problems(result)
    if problems:
        raise Wrong("; ".join(problems[:8]))
    return StateSchema(collections=tuple(result.values()))


def _collection(item: CollectionAnswer) -> Collection:
    return Collection(
        name=item.name,
        entity=item.entity,
        key=item.key,
        key_generated=item.key_generated and not item.singleton,
        label=item.label,
        singleton=item.singleton,
        fields=tuple(_field(f, self_key=item.singleton and f.name == item.key) for f in item.fields),
        provenance="model",
    )


def _field(item: FieldAnswer, *, self_key: bool = False) -> StateField:
    return StateField(
        name=item.name,
        type=item.type,
        required=item.required or self_key,
        enum=item.enum,
        item_type=item.item_type or None,
        references=item.references,
        policy="exempt" if item.clock else "exact",
        default="self" if self_key else item.default,
        description=item.description,
        provenance=item.source,
    )


def _collection_problems(item: CollectionAnswer) -> list[str]:
    where = f"collection {item.name!r}"
    names = [f.name for f in item.fields]
    problems = [p for f in item.fields for p in _field_problems(f, where)]
    if len(set(names)) != len(names):
        problems.append(f"{where}: a field stands twice")
    if len(names) > MAX_FIELDS:
        problems.append(f"{where}: {len(names)} fields, expected at most {MAX_FIELDS}")
    if not item.entity.strip() or not _PLAIN.fullmatch(item.entity):
        problems.append(f"{where}: entity {item.entity!r}: expected plain words")
    if item.key not in names:
        problems.append(f"{where}: its key {item.key!r} is no field of it")
    if item.label and item.label not in names:
        problems.append(f"{where}: its label {item.label!r} is no field of it")
    key = next((f for f in item.fields if f.name == item.key), None)
    if key is not None and (key.references or key.clock):
        problems.append(f"{where}: the key refers to another collection or is a clock; give it its own key")
    return problems


def _field_problems(item: FieldAnswer, where: str) -> list[str]:
    at = f"{where} field {item.name!r}"
    problems: list[str] = []
    if not _FIELD.fullmatch(item.name):
        problems.append(f"{at}: expected a name of letters, digits and _")
    if item.type == "enum" and len(item.enum) < 2:
        problems.append(f"{at}: an enum needs its values")
    if any(isinstance(v, str) and not _PLAIN.fullmatch(v) for v in (*item.enum, item.default)):
        problems.append(f"{at}: values are plain text")
    if item.enum and item.default is not None and item.default not in item.enum:
        problems.append(f"{at}: the default {item.default!r} is none of its values")
    if item.clock and item.type not in ("datetime", "date"):
        problems.append(f"{at}: the clock fills datetime and date fields only")
    return problems


def _relation_problems(collections: dict[str, Collection]) -> list[str]:
    problems: list[str] = []
    needs: dict[str, set[str]] = {name: set() for name in collections}
    for name, collection in collections.items():
        for item in collection.fields:
            if not item.references:
                continue
            if item.references not in collections:
                problems.append(
                    f"collection {name!r} field {item.name!r}: it refers to {item.references!r}, "
                    "which is no collection"
                )
            elif collections[item.references].singleton:
                problems.append(f"collection {name!r} field {item.name!r}: nothing refers to a singleton")
            elif item.required:
                needs[name].add(item.references)
    done: set[str] = set()
    while True:
        ready = {n for n, parents in needs.items() if n not in done and parents <= done}
        if not ready:
            break
        done |= ready
    circle = sorted(set(needs) - done)
    if circle and not problems:
        problems.append(
            f"required references go round in a circle through {', '.join(circle)}: no first record could be "
            "made; let one of them not be required"
        )
    return problems
