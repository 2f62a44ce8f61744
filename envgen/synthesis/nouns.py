"""How records and fields are called: noun phrases of the instruction, without ids and tool names."""

from __future__ import annotations

import random
from typing import Any

from envgen.synthesis.catalog import Catalog, field_words
from envgen.synthesis.choices import Choice, Demand
from envgen.synthesis.wording import happened_verb, is_counted, listing, owned, phrases, plural, quote, say
from envgen.types import ToolSemantics


class Nouns:
    """Noun phrases for one catalog; ``rng`` chooses among ways to say the same."""

    def __init__(self, catalog: Catalog, rng: random.Random) -> None:
        self.catalog = catalog
        self.rng = rng

    def entity(self, collection: str) -> str:
        """``special event``; of what cannot be counted, an item: ``content item``."""
        name = self.catalog.collections[collection].entity
        return f"{name} item" if name.split()[-1:] and name.split()[-1] in phrases()["mass"] else name

    def field(self, collection: str, name: str) -> str:
        """Words of a field without the entity's own name: ``assetName`` of an asset is ``name``."""
        words = field_words(name)
        own = field_words(self.catalog.collections[collection].entity)
        if words[:1] == ["is"] and len(words) > 1:
            words = words[1:]
        if len(words) > len(own) and words[: len(own)] == own:
            words = words[len(own) :]
        elif len(words) > 1 and own and words[0] == own[-1]:
            words = words[1:]
        if len(words) > 1 and words[-1] in ("id", "ids"):
            words = words[:-1]
        return " ".join(words)

    def record(self, choice: Choice) -> str:
        """A noun phrase for the record(s) of a choice, parents included."""
        pick = choice.pick
        noun = self._noun(choice)
        known = self.catalog.collections[choice.collection]
        kind = pick.selector.kind
        access = pick.locator.access if pick.locator else None
        if kind == "only" and access is not None and access.single:  # it shows what its argument names
            said = self.record(choice.parents[0])
            if pick.answer != known.key and pick.yields != choice.collection:
                said = f"the {self.field(choice.collection, pick.answer)} of {said}"
            return said
        words = self.field(choice.collection, pick.selector.field) if pick.selector.field else ""
        place = self.place(choice)
        if kind == "label" and pick.locator is None and self.catalog.unlisted(choice.collection):
            said = f"{noun} {say(choice.anchor.get(known.key))}"
        elif kind == "only" and access is not None and access.many:
            said = f"the only {noun}{place}"
        elif kind in ("label", "only"):
            label = known.label or known.key
            said = f"the {noun} {quote(choice.anchor.get(label))}{place}"
        elif kind == "lookup":
            link = (
                " "
                if words in ("body", "text", "content", "message") and not known.label
                else f" with {words} "
            )
            said = f"the {noun}{link}{quote(choice.value)}{place}"
        elif kind == "filter" and not words:
            said = f"all {plural(noun)}{place}"
        elif kind == "filter":
            condition = self.condition(choice.value, words)
            trailing = condition.startswith("that")  # "every task in the list X that is not completed"
            said = f"every {noun}{place} {condition}" if trailing else f"every {noun} {condition}{place}"
        elif kind == "compare":
            comparative = self._comparative(choice.collection, pick.selector.field, pick.selector.order)
            first, second = (quote(n) for n in choice.names)
            said = f"whichever of the {plural(noun)} {first} and {second}{place} {comparative}"
        elif kind == "all":
            said = f"the {plural(noun)}{place}" if place else f"all {plural(noun)}"
        else:
            said = self._superlative(noun, words, kind) + place
        if access is not None and access.mine:
            said = owned(said).replace(f"every {noun}", f"each of my {plural(noun)}", 1)
        if pick.answer != known.key and pick.yields != choice.collection:
            said = f"the {self.field(choice.collection, pick.answer)} of {said}"
        return said

    def _noun(self, choice: Choice) -> str:
        """``asset``, or ``DRAFT asset`` where the look-up must be told a value, ``starred asset`` where it
        shows such only."""
        before, _ = choice.pick.locator.access.said if choice.pick.locator else ("", "")
        named = dict(choice.pick.locator.access.given) if choice.pick.locator else {}
        told = [say(v) for p, v in choice.given if self.catalog.fields[choice.collection, named[p]].enum]
        return " ".join([*told, *([before] if before else []), self.entity(choice.collection)])

    def _superlative(self, noun: str, words: str, kind: str) -> str:
        if words in phrases()["money"] and self.rng.random() < 0.6:
            return f"the {'cheapest' if kind == 'argmin' else 'most expensive'} {noun}"
        happened = happened_verb(words)
        if happened and kind in ("earliest", "latest"):
            return f"the {noun} {happened} {'first' if kind == 'earliest' else 'last'}"
        if is_counted(words) and kind in ("argmin", "argmax"):
            return f"the {noun} with the {'fewest' if kind == 'argmin' else 'most'} {words}"
        how = {"argmin": "lowest", "argmax": "highest", "earliest": "earliest", "latest": "latest"}[kind]
        return f"the {noun} with the {how} {words}"

    def _comparative(self, collection: str, name: str, order: str) -> str:
        words = self.field(collection, name)
        happened = happened_verb(words)
        if happened and self.catalog.fields[collection, name].type in ("date", "datetime"):
            return f"was {happened} {'earlier' if order == 'min' else 'later'}"
        if self.catalog.fields[collection, name].type in ("date", "datetime"):
            return f"has the {'earlier' if order == 'min' else 'later'} {words}"
        if words in phrases()["money"]:
            return f"is {'cheaper' if order == 'min' else 'more expensive'}"
        if is_counted(words):
            return f"has {'fewer' if order == 'min' else 'more'} {words}"
        return f"has the {'lower' if order == 'min' else 'higher'} {words}"

    def condition(self, value: Any, words: str) -> str:
        """``that is not completed``, ``with priority high``."""
        if isinstance(value, bool):
            if words in phrases()["adjectives"]:
                return f"that is {'' if value else 'not '}{words}"
            return f'with "{words}" {say(value)}'
        return f"with {words} {quote(value)}"

    def place(self, choice: Choice) -> str:
        """`` in the group "Works" of the project "Delta"``, `` from my feed``, `` with owner "Mia"``."""
        told = self._told(choice)
        if not choice.parents:
            return told
        named = [f"the {self._called(p)}" for p in choice.parents]
        above: list[str] = []
        parents = tuple(up for p in choice.parents for up in p.parents)
        while parents:
            above += [self._called(p) for p in parents]
            parents = tuple(up for p in parents for up in p.parents)
        preposition = self._preposition(choice.parents[0].collection, "of")
        where = f" {preposition} {' and '.join(named)}" + (f" ({', '.join(above)})" if above else "")
        return where + told

    def _called(self, choice: Choice) -> str:
        """``group "Works"``, ``article "Gala" from my feed``."""
        return f"{self._noun(choice)} {quote(self.name_of(choice))}{self._told(choice)}"

    def _told(self, choice: Choice) -> str:
        """What else the call must be told, or tells by itself: `` from my feed``, `` with owner "Mia"``."""
        if choice.pick.locator is None:
            told = [(name, choice.anchor.get(name)) for name in choice.pick.tells]
            said = [f"{self.field(choice.collection, n)} {quote(v)}" for n, v in told if v is not None]
            return f" with {listing(said)}" if said else ""
        access = choice.pick.locator.access
        said = f" {access.said[1]}" if access.said[1] else ""
        fields = dict(access.given)
        places = [
            f"{self.field(choice.collection, fields[param])} {quote(value)}"
            for param, value in choice.given
            if not self.catalog.fields[choice.collection, fields[param]].enum
        ]
        return said + (f" with {listing(places)}" if places else "")

    def name_of(self, choice: Choice) -> Any:
        """What a record is called by."""
        if choice.pick.selector.kind == "lookup":
            return choice.value
        known = self.catalog.collections[choice.collection]
        if choice.pick.locator is None and self.catalog.unlisted(choice.collection):
            return choice.anchor.get(known.key)
        return choice.anchor.get(known.label or known.key)

    def new(self, outer: Demand) -> str:
        """The record that an earlier demand of the task makes, by its name where the user gave it one."""
        entity = self.entity(outer.semantics.collection)
        label = self.catalog.collections[outer.semantics.collection].label
        named = [v for v in outer.values if v.plan.binding.field == label and v.plan.kind == "literal"]
        return f"the new {entity} {quote(named[0].value)}" if named else f"that new {entity}"

    def noun(self, semantics: ToolSemantics) -> str:
        """What a create tool makes: its own words where they end in the entity (``command task``), else
        the entity."""
        entity = self.entity(semantics.collection)
        words = field_words(semantics.tool)
        verbs = {*phrases()["create_verbs"], *phrases()["generic_verbs"]}
        rest = words[1:] if words and words[0] in verbs else words
        last = entity.split()[-1]
        owners = {
            word
            for binding in semantics.scope
            for parent in (
                self.catalog.fields[binding.collection, binding.field].references,
                binding.collection,
            )
            if parent and parent != semantics.collection
            for word in field_words(self.entity(parent))
        }
        if rest and rest[-1] in (last, plural(last)):
            own = [word for word in rest[:-1] if word not in owners or word in field_words(entity)]
            return " ".join([*own, last])
        return entity

    def _preposition(self, collection: str, other: str = "for") -> str:
        last = field_words(self.entity(collection))[-1]
        return "in" if last in phrases()["containers"] else other
