"""How a read tool serves as a look-up: which records it shows, where in its answer they stand, and what it
must be told (METHOD.md §2)."""

from __future__ import annotations

from typing import Any

from envgen.synthesis.catalog import container, field_words, link_of, required_leaves
from envgen.synthesis.lookups import Access, Link
from envgen.types import Collection, OutputBinding, ParamBinding, StateField, ToolSemantics


def access_of(
    sem: ToolSemantics,
    parameters: dict[str, Any],
    fields: dict[tuple[str, str], StateField],
    collections: dict[str, Collection],
) -> Access | None:
    """The look-up that a tool offers, or None when it writes, shows no records, or must be told what nobody
    can say.

    ``parameters`` is the JSON schema of the tool's arguments; ``fields`` and ``collections`` are the indexes
    of a `Catalog`.
    """
    if sem.writes_state or sem.verb not in ("list", "search", "get") or sem.collection not in collections:
        return None
    said = _said_where(sem, collections[sem.collection].entity) if sem.where else ("", "")
    if sem.where and said == ("", ""):
        return None  # nothing in its name says which records it shows
    single = sem.verb == "get" and not collections[sem.collection].singleton
    if single and sem.key is None:
        return None
    found = _element(sem.outputs, collections[sem.collection], collections)
    if found is None or (single and "[]" in found[0]):
        return None
    must = required_leaves(parameters)
    preset = tuple(
        (b.field, sem.defaults[b.param])
        for b in sem.filters
        if b.op == "eq" and b.param in sem.defaults and b.param not in must and not b.required
    )
    if preset and said == ("", ""):  # a list that shows the available ones unless told otherwise
        said = (" ".join(str(value) for _, value in preset), "")
    links: list[Link] = []
    by_label, blocked, by_text = "", False, False
    given: list[tuple[str, str]] = []
    if single and sem.key is not None:
        links.append(Link(sem.key.param, sem.collection, collections[sem.collection].key, True))
    for binding in (*sem.scope, *sem.filters):
        link = link_of(binding, sem, fields, collections)
        needed = binding.required or binding.param in must
        if link is not None and (needed or binding in sem.scope or binding.op == "eq"):
            if all(link.param != known.param for known in links):
                links.append(Link(link.param, link.parent, link.foreign_key, needed))
        elif needed and binding.field == collections[sem.collection].label and not by_label:
            by_label = binding.param
        elif needed and binding.op == "eq" and (binding.collection, binding.field) in fields:
            held = fields[binding.collection, binding.field]
            bare = all(path == "" for _, path in found[1])  # plain values: the user says of which kind
            told = (bare or binding in sem.scope) and held.type == "string"
            blocked = blocked or not (held.enum or (told and binding.collection == sem.collection))
            given.append((binding.param, binding.field))
        elif needed and by_text and any(binding.param == param for param, _ in given):
            continue  # the same words, looked for in a further field
        elif needed and _is_text_search(binding, sem, collections[sem.collection], fields):
            by_text = True
            given.append((binding.param, binding.field))
        elif needed:
            blocked = True
    covered = {link.param for link in links} | {by_label} | {param for param, _ in given}
    blocked = blocked or bool(must - covered - set(sem.paging) - set(sem.ignored) - {""})
    if blocked:
        return None
    return Access(
        sem.tool,
        sem.collection,
        found[0],
        found[1],
        tuple(links),
        sem.many,
        by_label,
        tuple(given),
        tuple(sem.where_session.items()),
        (*sem.where.items(), *preset),
        said,
        by_text,
    )


def _element(
    outputs: tuple[OutputBinding, ...], collection: Collection, collections: dict[str, Collection]
) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    own = [o for o in outputs if o.collection == collection.name]
    if not own:
        return None
    patterns = [container(o.path)[0] for o in own]
    keys = [o for o in own if o.field == collection.key]
    pattern = container(keys[0].path)[0] if keys else max(set(patterns), key=patterns.count)
    shown: dict[str, str] = {}
    for binding in own:
        element, inner = container(binding.path)
        if element == pattern and (inner or element.endswith("[]")):  # empty: the list holds plain values
            shown.setdefault(binding.field, inner)
    references = {f.references: f.name for f in collection.fields if f.references}
    for binding in outputs:  # a nested parent (article.author.username) shows the foreign key
        element, inner = container(binding.path)
        owner = collections.get(binding.collection)
        carries = owner is not None and binding.field == owner.key and binding.collection in references
        if carries and element == pattern and inner:
            shown.setdefault(references[binding.collection], inner)
    return pattern, tuple(shown.items())


def _is_text_search(
    binding: ParamBinding,
    sem: ToolSemantics,
    collection: Collection,
    fields: dict[tuple[str, str], StateField],
) -> bool:
    """True for the words of a search in plain text, where records have no name to search for."""
    held = fields.get((binding.collection, binding.field))
    if held is None or held.type not in ("string", "text") or held.enum or held.references:
        return False
    unnamed = collection.label in ("", collection.key) and binding.collection == collection.name
    return sem.many and unnamed and binding.op == "contains" and binding.field != collection.key


def _said_where(sem: ToolSemantics, entity: str) -> tuple[str, str]:
    """The words of a tool's name beside verb and noun: ``list_starred_repositories`` shows starred ones,
    ``GetArticlesFeed`` those of a feed."""
    words = [
        w for w in field_words(sem.tool) if w not in ("get", "list", "search", "find", "fetch", "show", "all")
    ]
    own = field_words(entity)
    at = next((i for i, w in enumerate(words) if w[:4] == own[-1][:4]), -1)
    if at < 0:
        return "", ""
    before = [w for w in words[:at] if w not in own]
    after = words[at + 1 :]
    if len(before) == 1 and not after:
        return before[0], ""
    return ("", f"from my {after[0]}") if len(after) == 1 and not before else ("", "")
