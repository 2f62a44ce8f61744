"""Ways to arrive at a record: a look-up, and what singles the record out in its result (METHOD.md §2)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from envgen.synthesis.catalog import Catalog, field_words, is_nested, link_of
from envgen.synthesis.lookups import Link, Locator
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
    edges_used: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """How often each edge was walked so far."""

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
        to: tuple[str, str] = ("", ""),
        tells: frozenset[str] = frozenset(),
    ) -> Pick | None:
        """A way to arrive at the key of a record of ``collection``. ``to``: the tool and parameter that
        take it; ways that few tasks went so far are preferred. ``tells``: further fields of the record that
        the look-up has to show."""
        key = self.catalog.collections[collection].key
        options: list[tuple[Locator, str]] = [
            (locator, key)
            for locator in self.catalog.locators[collection]
            if (locator.access.many or locator.access.named) and locator.access.path(key) is not None
        ]
        direct = len(options)
        options += self._via(collection)
        kept = [not self._settled(locator, answer, collection, to[0]) for locator, answer in options]
        direct = sum(kept[:direct])
        options = [option for option, keep in zip(options, kept, strict=True) if keep]
        if tells:
            options = [
                o for o in options[:direct] if all(o[0].access.path(name) is not None for name in tells)
            ]
        spoken = self.catalog.spoken_key(collection) and not tells
        plain = all(locator.access.bare for locator, _ in options)  # these lead to all records, or to none
        if spoken and (not options or self.rng.random() < (0.6 if plain else 0.25)):
            return Pick(None, Selector("label"), collection, key)
        if not options and tells and self.catalog.spoken_key(collection):
            return Pick(None, Selector("label"), collection, key, tuple(sorted(tells)))
        if not options:
            return None
        weights: list[float] = []
        for index, (locator, _) in enumerate(options):
            walked = [*locator.edges(), (locator.access.tool, *to)]
            often = (
                sum(self.edges_used[e] for e in walked) / len(walked) + 0.2 * self.used[locator.access.tool]
            )
            # by way of another record only where that is not the longer way to say the same
            rarely = 1.0 if index < direct or spoken or not self.edges_used[walked[-1]] else 0.15
            weights.append(rarely / (1 + often) ** 1.5 / (1 + 0.5 * (locator.depth - 1)))
        locator, answer = self.rng.choices(options, weights)[0]
        if locator.access.single or locator.access.named:
            return Pick(locator, Selector("only"), collection, answer)
        via = answer != key or locator.collection != collection
        selector = self._selector(locator, single=single or via or bool(tells), avoid=avoid)
        if selector is None:
            return None
        if delete and selector.kind == "filter" and self.rng.random() < 0.5:
            selector = Selector("label") if self._named(locator) else selector
        return Pick(locator, selector, collection, answer)

    def _settled(self, locator: Locator, answer: str, collection: str, tool: str) -> bool:
        """True when the look-up shows only records that are already as the tool would make them, or that the
        tool refuses to act on."""
        writer = self.catalog.semantics.get(tool)
        if writer is None or writer.collection != collection:
            return False
        if any(
            rule.kind == "no_children" and rule.collection == locator.collection
            for rule in writer.preconditions
        ):
            return locator.collection != collection  # it would be refused because of the very record shown
        behind = "" if locator.collection == collection else f"{answer}."
        return any(
            f"{behind}{name}" == path and known == value
            for name, known in writer.constants.items()
            for path, value in locator.access.where
        )

    def _via(self, collection: str) -> list[tuple[Locator, str]]:
        """Records of other collections that show a key of ``collection`` as a foreign key."""
        found: list[tuple[Locator, str]] = []
        for owner, name in self.catalog.children.get(collection, ()):
            if owner == collection or self.catalog.fields[owner, name].type == "array":
                continue
            for locator in self.catalog.locators[owner]:
                linked = any(link.foreign_key == name for link in locator.access.links)
                path = locator.access.path(name)
                usable = locator.access.many or (locator.access.single and locator.needed_for(name))
                if usable and path is not None and not is_nested(path) and not linked:
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
        if locator.access.by_text:
            return Selector("only")
        if locator.access.bare:  # plain values: the only one of its kind, or every one
            only = Selector("only") if locator.access.given else None
            return only if single else Selector("filter")
        if locator.access.by_label:
            return Selector("label") if named else None
        options: list[tuple[float, Selector]] = []
        if named:
            options.append((WEIGHTS["label"], Selector("label")))
        for shown in self._shown(locator):
            told = {name for _, name in locator.access.given} | {path for path, _ in locator.access.where}
            if shown.name in avoid or shown.name in told:
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
