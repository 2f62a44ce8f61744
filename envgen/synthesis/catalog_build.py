"""Indexing a draft for the planner: its look-ups, and the chains of them that lead to a record (METHOD.md §2,
backward chaining)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from envgen.synthesis.accesses import access_of
from envgen.synthesis.catalog import Catalog, is_nested
from envgen.synthesis.lookups import Access, Locator
from envgen.synthesis.variants import variants_of
from envgen.types import EnvironmentDraft

MAX_DEPTH = 4
"""Calls of the longest look-up chain."""
MAX_LOCATORS = 8
"""Chains kept at each step of the search for them."""


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
        access = access_of(sem, tools[sem.tool].parameters, fields, collections)
        if access is not None:
            accesses.setdefault(sem.collection, []).append(access)

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
