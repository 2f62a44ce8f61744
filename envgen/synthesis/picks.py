"""Ways to arrive at a record: a look-up, and what singles the record out in its result (METHOD.md §2)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from envgen.synthesis.catalog import Catalog, Link, Locator, field_words, is_nested, link_of
from envgen.synthesis.shapes import DATES, NUMBERS, Pick, Selector, SelectorKind
from envgen.types import ParamBinding, StateField, ToolSemantics

WEIGHTS: dict[SelectorKind, float] = {
    "label": 6.0,
    "lookup": 0.8,
    "argmin": 1.6,
    "argmax": 1.6,
    "earliest": 1.6,
    "latest": 1.6,
    "compare": 1.4,
    "filter": 1.8,
}
"""How often each way of singling out a record is chosen, among those a look-up allows."""
DULL = {"index", "position", "version", "page", "id", "ids"}
"""Last words of number fields nobody asks a superlative about."""


@dataclass
class PickSampler:
    """Draws picks from a catalog; look-up tools that were used little are preferred."""

    catalog: Catalog
    rng: random.Random
    used: Counter[str] = field(default_factory=Counter[str])
    """How often each tool was chosen so far."""

    def mark(self, tools: Iterable[str], times: int = 1) -> None:
        """Count some tools as used; ``times=-1`` takes that back."""
        for tool in tools:
            self.used[tool] += times

    def _rare(self, options: list[Any], name: Callable[[Any], str]) -> Any:
        weights = [1.0 / (1 + self.used[name(o)]) ** 1.5 for o in options]
        return self.rng.choices(options, weights)[0]

    def _link(self, binding: ParamBinding, writer: ToolSemantics) -> Link | None:
        return link_of(binding, writer, self.catalog.fields, self.catalog.collections)

    def pick_key(
        self,
        collection: str,
        *,
        single: bool = False,
        delete: bool = False,
        avoid: frozenset[str] = frozenset(),
    ) -> Pick | None:
        """A way to arrive at the key of a record of ``collection``."""
        key = self.catalog.collections[collection].key
        options: list[tuple[Locator, str]] = [
            (locator, key)
            for locator in self.catalog.locators[collection]
            if locator.access.many and locator.access.path(key) is not None
        ]
        spoken = self.catalog.spoken_key(collection)
        if spoken or not options:
            options += self._via(collection)
        if spoken and (not options or self.rng.random() < 0.25):
            return Pick(None, Selector("label"), collection, key)
        if not options:
            return None
        locator, answer = self._rare(options, lambda o: o[0].access.tool)
        via = answer != key or locator.collection != collection
        selector = self._selector(locator, single=single or via, avoid=avoid)
        if selector is None:
            return None
        if delete and selector.kind == "filter" and self.rng.random() < 0.5:
            selector = Selector("label") if self._named(locator) else selector
        return Pick(locator, selector, collection, answer)

    def _via(self, collection: str) -> list[tuple[Locator, str]]:
        """Records of other collections that show a key of ``collection`` as a foreign key."""
        found: list[tuple[Locator, str]] = []
        for owner, name in self.catalog.children.get(collection, ()):
            if owner == collection or self.catalog.fields[owner, name].type == "array":
                continue
            for locator in self.catalog.locators[owner]:
                linked = any(link.foreign_key == name for link in locator.access.links)
                path = locator.access.path(name)
                if locator.access.many and path is not None and not is_nested(path) and not linked:
                    found.append((locator, name))
        return found

    def _named(self, locator: Locator) -> bool:
        label = self.catalog.collections[locator.collection].label
        return bool(label) and locator.access.path(label) is not None

    def _shown(self, locator: Locator) -> list[StateField]:
        """Plain fields an element shows."""
        collection = self.catalog.collections[locator.collection]
        return [
            f
            for f in collection.fields
            if f.name not in (collection.key, collection.label)
            and not f.references
            and (path := locator.access.path(f.name)) is not None
            and not is_nested(path)
        ]

    def _selector(
        self, locator: Locator, *, single: bool, avoid: frozenset[str] = frozenset()
    ) -> Selector | None:
        if not locator.access.many:
            return None
        named = self._named(locator)
        if locator.access.by_label:
            return Selector("label") if named else None
        options: list[tuple[float, Selector]] = []
        if named:
            options.append((WEIGHTS["label"], Selector("label")))
        for shown in self._shown(locator):
            if shown.name in avoid or any(shown.name == name for _, name in locator.access.given):
                continue
            share: float = 1.0
            if shown.type in NUMBERS and not DULL & set(field_words(shown.name)[-1:]):
                options.append((WEIGHTS["argmin"], Selector("argmin", shown.name, "min")))
                options.append((WEIGHTS["argmax"], Selector("argmax", shown.name, "max")))
                if named:
                    options.append((WEIGHTS["compare"] / 2, Selector("compare", shown.name, "min")))
                    options.append((WEIGHTS["compare"] / 2, Selector("compare", shown.name, "max")))
            elif shown.type in DATES:
                share = 1.0 if not _clock(shown) else 0.3
                options.append((WEIGHTS["earliest"] * share, Selector("earliest", shown.name, "min")))
                options.append((WEIGHTS["latest"] * share, Selector("latest", shown.name, "max")))
                if named:
                    options.append(
                        (
                            WEIGHTS["compare"] * share,
                            Selector("compare", shown.name, self.rng.choice(("min", "max"))),
                        )
                    )
            elif not single and (shown.enum or shown.type == "boolean"):
                options.append((WEIGHTS["filter"], Selector("filter", shown.name)))
            if shown.type in ("string", "text", "date") and not shown.enum and not _clock(shown):
                weight = WEIGHTS["lookup"] if named else WEIGHTS["label"]
                options.append((weight, Selector("lookup", shown.name)))
        if not options:
            return None
        return self.rng.choices([s for _, s in options], [w for w, _ in options])[0]


def _clock(shown: StateField) -> bool:
    """True for stamps the environment sets (``created_at``)."""
    names = set(field_words(shown.name))
    return bool(names & {"created", "updated", "modified", "timestamp"}) or shown.policy == "exempt"
