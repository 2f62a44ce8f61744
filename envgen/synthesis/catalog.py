"""A draft seen from the planner: which tools show which records, under which parents, with which fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

from envgen.synthesis.blueprint import parse_path
from envgen.synthesis.lookups import Access, Link, Locator
from envgen.synthesis.variants import Variants, variants_of
from envgen.types import (
    AgentTool,
    Collection,
    EnvironmentDraft,
    OutputBinding,
    ParamBinding,
    StateField,
    StateSchema,
    ToolSemantics,
)

MAX_DEPTH = 4
MAX_LOCATORS = 8


def container(path: str) -> tuple[str, str]:
    """Split an output path into element pattern and path inside it: ``items[].id`` -> ``("items[]",
    "id")``."""
    at = path.rfind("[]")
    if at >= 0:
        return path[: at + 2], path[at + 2 :].lstrip(".")
    return "", path


def narrow(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with ``anyOf [x, null]`` and ``type [x, null]`` reduced to x."""
    for union in ("anyOf", "oneOf"):
        options: list[dict[str, Any]] = [o for o in schema.get(union, []) if o.get("type") != "null"]
        if options:
            schema = {**schema, **options[0]}
    kinds: Any = schema.get("type")
    if isinstance(kinds, list):  # {"type": ["object", "null"]}
        schema = {
            **schema,
            "type": next((kind for kind in cast("list[str]", kinds) if kind != "null"), "string"),
        }
    return schema


def _required(schema: dict[str, Any], prefix: str) -> list[str]:
    found: list[str] = []
    for name in schema.get("required", []):
        inner = narrow(schema.get("properties", {}).get(name, {}))
        if inner.get("properties") and inner.get("required"):
            found.extend(_required(inner, f"{prefix}{name}."))
        else:
            found.append(prefix + name)
    return found


@dataclass(frozen=True)
class Catalog:
    """Indexes over one draft, made once."""

    draft: EnvironmentDraft
    collections: dict[str, Collection]
    fields: dict[tuple[str, str], StateField]
    semantics: dict[str, ToolSemantics]
    tools: dict[str, AgentTool]
    accesses: dict[str, tuple[Access, ...]]
    locators: dict[str, tuple[Locator, ...]]
    writers: tuple[ToolSemantics, ...]
    children: dict[str, tuple[tuple[str, str], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, str], ...]]
    )
    """collection -> (child collection, foreign key field)."""
    variants: dict[str, Variants] = field(default_factory=dict[str, Variants])
    """Collections whose records come in kinds."""
    _needed: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]], repr=False)
    _parameters: dict[tuple[str, str], dict[str, Any]] = field(
        default_factory=dict[tuple[str, str], dict[str, Any]], repr=False
    )

    @property
    def schema(self) -> StateSchema:
        """The state schema."""
        return self.draft.state_schema

    def parameter(self, tool: str, name: str) -> dict[str, Any]:
        """JSON schema of one parameter (a dotted path), ``anyOf [x, null]`` reduced to x."""
        known = self._parameters.get((tool, name))
        if known is None:
            known = self.tools[tool].parameters
            for part in name.split("."):
                known = narrow(known.get("properties", {}).get(part, {}))
            self._parameters[tool, name] = known
        return known

    def required(self, tool: str) -> frozenset[str]:
        """Dotted paths of the leaf parameters the tool insists on."""
        known = self._needed.get(tool)
        if known is None:
            known = self._needed[tool] = frozenset(_required(self.tools[tool].parameters, ""))
        return known

    def members(self, collection: str, name: str) -> dict[str, Any]:
        """JSON schema of an object field, from the write tool that takes it; empty when no tool says what
        is in it."""
        for writer in self.writers:
            for binding in writer.writes:
                if (binding.collection, binding.field) == (collection, name):
                    schema = self.parameter(writer.tool, binding.param)
                    if schema.get("properties"):
                        return schema
        return {}

    def spoken_key(self, collection: str) -> bool:
        """True when a person knows a record by its key itself (a username, or a number where no tool lists
        the records): no look-up is needed for it."""
        known = self.collections[collection]
        return (not known.key_generated and known.label in ("", known.key)) or self.unlisted(collection)

    def unlisted(self, collection: str) -> bool:
        """True when no tool shows the keys of a collection's records before one is known, or none shows
        more than keys: a list of numbers says of none which order it is."""
        known = self.collections[collection]
        if known.singleton:
            return False
        listed = any(
            a.many and a.path(known.key) is not None and not a.bare for a in self.accesses.get(collection, ())
        )
        return not listed and not self.children_show(collection)

    def children_show(self, collection: str) -> bool:
        """True when a list of other records shows keys of this collection."""
        return any(
            a.many and a.path(name) is not None
            for owner, name in self.children.get(collection, ())
            for a in self.accesses.get(owner, ())
        )

    def descendants(self, collection: str) -> frozenset[str]:
        """Collections that hang below one, itself excluded."""
        found: set[str] = set()
        queue = [collection]
        while queue:
            for child, _ in self.children.get(queue.pop(), ()):
                if child not in found:
                    found.add(child)
                    queue.append(child)
        return frozenset(found - {collection})


def link_of(
    binding: ParamBinding,
    semantics: ToolSemantics,
    fields: dict[tuple[str, str], StateField],
    collections: dict[str, Collection],
) -> Link | None:
    """The parent whose key a parameter carries, or None when it carries plain data."""
    known = fields.get((binding.collection, binding.field))
    if known is not None and known.references and known.references in collections:
        return Link(binding.param, known.references, binding.field, binding.required)
    parent = collections.get(binding.collection)
    if parent is not None and binding.collection != semantics.collection and binding.field == parent.key:
        for (owner, name), held in fields.items():
            if owner == semantics.collection and held.references == parent.name:
                return Link(binding.param, parent.name, name, binding.required)
    return None


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


def build_catalog(draft: EnvironmentDraft, *, usable: Callable[[str], bool] = lambda _: True) -> Catalog:
    """Index a draft. ``usable`` lets a caller leave tools out."""
    collections = {c.name: c for c in draft.state_schema.collections}
    fields = {(c.name, f.name): f for c in collections.values() for f in c.fields}
    tools = {t.name: t for t in (*draft.tools, *draft.user_tools)}
    semantics = {s.tool: s for s in draft.semantics if s.tool in tools and usable(s.tool)}
    children: dict[str, list[tuple[str, str]]] = {}
    for (owner, name), held in fields.items():
        if held.references in collections:
            children.setdefault(held.references, []).append((owner, name))

    accesses: dict[str, list[Access]] = {}
    for sem in semantics.values():
        if sem.writes_state or sem.verb not in ("list", "search", "get") or sem.collection not in collections:
            continue
        said = _said_where(sem, collections[sem.collection].entity) if sem.where else ("", "")
        if sem.where and said == ("", ""):
            continue  # nothing in its name says which records it shows
        single = sem.verb == "get" and not collections[sem.collection].singleton
        if single and sem.key is None:
            continue
        found = _element(sem.outputs, collections[sem.collection], collections)
        if found is None or (single and "[]" in found[0]):
            continue
        must = frozenset(_required(tools[sem.tool].parameters, ""))
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
        if not blocked:
            accesses.setdefault(sem.collection, []).append(
                Access(
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
            )

    catalog = Catalog(
        draft=draft,
        collections=collections,
        fields=fields,
        semantics=semantics,
        tools=tools,
        accesses={name: tuple(found) for name, found in accesses.items()},
        locators={},
        writers=tuple(s for s in semantics.values() if s.writes_state),
        children={name: tuple(found) for name, found in children.items()},
        variants={name: found for name in collections if (found := variants_of(name, semantics)) is not None},
    )
    catalog.locators.update({name: tuple(_locators(catalog, name, MAX_DEPTH)) for name in collections})
    lists = dict(catalog.locators)
    for _ in range(2):  # the second time, from records that were themselves shown one by one
        singles = {name: tuple(_singles(catalog, name)) for name in collections}
        catalog.locators.update({name: (*lists[name], *more) for name, more in singles.items()})
    return catalog


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


def _singles(catalog: Catalog, collection: str) -> list[Locator]:
    """Calls that show one record whose key is known: from a list that shows less of it, from another record
    that refers to it, or because the user says it."""
    key = catalog.collections[collection].key
    found: list[Locator] = []
    for access in catalog.accesses.get(collection, ()):
        if not access.single or len(access.links) > 1:
            continue
        shown = {name for name, _ in access.fields}
        ways: list[tuple[Locator | None, str]] = []
        if catalog.spoken_key(collection):
            ways.append((None, ""))
        for locator in catalog.locators[collection]:
            if locator.access.many and locator.access.path(key) is not None:
                lacks = shown - {name for name, _ in locator.access.fields}
                ways += [(locator, "")] if lacks and locator.depth < MAX_DEPTH else []
        for owner, name in catalog.children.get(collection, ()):
            for locator in catalog.locators[owner] if owner != collection else ():
                path = locator.access.path(name)
                usable = locator.access.many or (locator.access.single and locator.depth == 1)
                if path is not None and usable and not is_nested(path) and locator.depth < 3:
                    ways.append((locator, name))
        found += [Locator(access, (way,), (answer,)) for way, answer in ways[:MAX_LOCATORS]]
    return found


def _locators(catalog: Catalog, collection: str, depth: int) -> list[Locator]:
    """Look-up chains of at most ``depth`` calls, shallow ones first."""
    found: list[Locator] = []
    if depth < 1:
        return found
    for access in catalog.accesses.get(collection, ()):
        if access.single:
            continue
        required = tuple(link for link in access.links if link.required)
        optional = tuple(link for link in access.links if not link.required)
        options = [required] + [(*required, link) for link in optional]
        for links in options:
            chains: list[tuple[Locator | None, ...]] = [()]
            for link in links:
                parents: list[Locator | None] = []
                if catalog.spoken_key(link.parent):
                    parents.append(None)
                elif link.parent != collection:
                    parents.extend(
                        p
                        for p in _locators(catalog, link.parent, depth - 1)
                        if p.access.path(catalog.collections[link.parent].key) is not None and p.access.many
                    )
                chains = [(*chain, parent) for chain in chains for parent in parents][:MAX_LOCATORS]
            narrowed = replace(access, links=links)
            found.extend(Locator(narrowed, chain) for chain in chains)
    usable = [locator for locator in found if locator.depth <= depth]
    return sorted(usable, key=lambda item: item.depth)[:MAX_LOCATORS]


def field_words(name: str) -> list[str]:
    """Words of a snake_case or camelCase name in lower case."""
    return list(_split_words(name))


@lru_cache(maxsize=4096)
def _split_words(name: str) -> tuple[str, ...]:
    words: list[str] = []
    current = ""
    for character in name:
        if character in "_- .":
            words.append(current)
            current = ""
        elif character.isupper() and current and not current[-1].isupper():
            words.append(current)
            current = character
        else:
            current += character
    return tuple(word.lower() for word in (*words, current) if word)


def is_nested(path: str) -> bool:
    """True when a path reaches into a list below the element (several values, not one)."""
    return any(token == -1 for token in parse_path(path))
