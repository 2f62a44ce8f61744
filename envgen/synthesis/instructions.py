"""What the user says: the minimum information of a task, in plain English (METHOD.md §3, refinement).

No tool names, no ids, no list of steps. Records are called by their names, fields by their words; each kind
of
demand has several templates (``data/phrases.json``), chosen by the task's own random stream.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from envgen.synthesis.catalog import Catalog, field_words
from envgen.synthesis.choices import Choice, Demand, Unfit, Value
from envgen.synthesis.wording import (
    article,
    happened_verb,
    is_counted,
    listing,
    owned,
    phrases,
    plural,
    quote,
    say,
)
from envgen.types import ToolSemantics


class Speaker:
    """Words for one catalog; ``rng`` chooses among templates."""

    def __init__(self, catalog: Catalog, rng: random.Random) -> None:
        self.catalog = catalog
        self.rng = rng

    # ----------------------------------------------------------------------------------------- nouns
    def entity(self, collection: str) -> str:
        """``special event``."""
        return self.catalog.collections[collection].entity

    def field(self, collection: str, name: str) -> str:
        """Words of a field without the entity's own name: ``assetName`` of an asset is ``name``."""
        words = field_words(name)
        own = field_words(self.entity(collection))
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
        if kind == "only":  # the call shows what its argument names
            said = self.record(choice.parents[0])
            if pick.answer != known.key and pick.yields != choice.collection:
                said = f"the {self.field(choice.collection, pick.answer)} of {said}"
            return said
        words = self.field(choice.collection, pick.selector.field) if pick.selector.field else ""
        place = self.place(choice)
        if kind == "label" and pick.locator is None and self.catalog.unlisted(choice.collection):
            said = f"{noun} {say(choice.anchor.get(known.key))}"
        elif kind == "label":
            label = known.label or known.key
            said = f"the {noun} {quote(choice.anchor.get(label))}{place}"
        elif kind == "lookup":
            link = (
                " "
                if words in ("body", "text", "content", "message") and not known.label
                else f" with {words} "
            )
            said = f"the {noun}{link}{quote(choice.value)}{place}"
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
        if pick.locator is not None and pick.locator.access.mine:
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
        _, after = choice.pick.locator.access.said if choice.pick.locator else ("", "")
        told = f" {after}" if after else ""
        for param, value in choice.given:
            name = (
                next(n for p, n in choice.pick.locator.access.given if p == param)
                if choice.pick.locator
                else ""
            )
            if not self.catalog.fields[choice.collection, name].enum:
                told += f" with {self.field(choice.collection, name)} {quote(value)}"
        if not choice.parents:
            return told
        named = [f"the {self.entity(p.collection)} {quote(self.name_of(p))}" for p in choice.parents]
        above: list[str] = []
        parents = tuple(up for p in choice.parents for up in p.parents)
        while parents:
            above += [f"{self.entity(p.collection)} {quote(self.name_of(p))}" for p in parents]
            parents = tuple(up for p in parents for up in p.parents)
        preposition = self._preposition(choice.parents[0].collection, "of")
        where = f" {preposition} {' and '.join(named)}" + (f" ({', '.join(above)})" if above else "")
        return where + told

    def name_of(self, choice: Choice) -> Any:
        """What a record is called by."""
        if choice.pick.selector.kind == "lookup":
            return choice.value
        known = self.catalog.collections[choice.collection]
        if choice.pick.locator is None and self.catalog.unlisted(choice.collection):
            return choice.anchor.get(known.key)
        return choice.anchor.get(known.label or known.key)

    # ---------------------------------------------------------------------------------------- values
    def value(self, value: Value, target: str) -> str:
        """The words for one written value."""
        plan, choice = value.plan, value.choice
        if choice is None or plan.pick is None:
            return quote(value.value)
        if plan.kind == "count":
            return f"the number of {self._many(choice)}"
        if plan.kind == "sum":
            words = self.field(choice.collection, plan.pick.selector.field)
            return f"the total {words} of {self.record(choice)}"
        if plan.kind == "copy":
            return f"the {self.field(choice.collection, plan.pick.answer)} of {self.record(choice)}"
        return self.record(choice)

    def _many(self, choice: Choice) -> str:
        return f"{plural(self._noun(choice))}{self.place(choice)}"

    def _detail(self, collection: str, value: Value) -> str:
        """What follows ``with``: ``priority "high"``, ``the same price as the event "Gala"``."""
        words = self.field(collection, value.plan.binding.field)
        if value.plan.kind == "hidden":
            return f"{article(words)}{words} that I will tell you"
        said = self.value(value, words)
        if isinstance(value.value, dict):
            return said
        if (
            value.plan.kind == "copy"
            and value.choice is not None
            and value.choice.pick.answer == value.plan.binding.field
        ):
            return f"the same {words} as {self.record(value.choice)}"
        return f"{words} {said}" if value.choice is None else f"{words} set to {said}"

    # --------------------------------------------------------------------------------------- demands
    def demand(self, demand: Demand, outer: Demand | None = None) -> str:
        """One demand as an imperative clause without a full stop. ``outer`` is the demand whose new record
        it hangs under."""
        semantics = demand.semantics
        if semantics.verb == "create":
            return self._create(demand, outer)
        if demand.target is None and outer is not None:
            demand = replace(demand, values=tuple(v for v in demand.values if v.plan.kind != "created"))
            reference = self.new(outer)
        elif demand.target is None:
            return self._own(demand)
        else:
            reference = self.record(demand.target)
        if semantics.verb == "delete":
            verb = field_words(semantics.tool)[0]
            if verb in phrases()["delete_verbs"] and verb not in ("delete", "remove"):
                return f"{verb} {reference}"
            return self.rng.choice(phrases()["delete"]).format(ref=reference)
        if semantics.verb == "toggle":
            return self._toggle(demand, reference)
        if not demand.values and semantics.constants:
            return self._constant(semantics, reference)
        return self._update(demand, reference)

    def new(self, outer: Demand) -> str:
        """The record that an earlier demand of the task makes, by its name where the user gave it one."""
        entity = self.entity(outer.semantics.collection)
        label = self.catalog.collections[outer.semantics.collection].label
        named = [v for v in outer.values if v.plan.binding.field == label and v.plan.kind == "literal"]
        return f"the new {entity} {quote(named[0].value)}" if named else f"that new {entity}"

    def _toggle(self, demand: Demand, reference: str) -> str:
        name = demand.semantics.toggles
        words = self.field(demand.semantics.collection, name)
        if demand.target is not None:
            now = bool(demand.target.anchor.get(name))
        else:  # of a record just made
            now = bool(self.catalog.fields[demand.semantics.collection, name].default)
        if words in phrases()["adjectives"]:
            return self.rng.choice(phrases()["mark_false" if now else "mark_true"]).format(
                ref=reference, word=words
            )
        return f'switch "{words}" {"off" if now else "on"} for {reference}'

    def _constant(self, semantics: ToolSemantics, reference: str) -> str:
        verb = field_words(semantics.tool)[0]
        if verb not in phrases()["generic_verbs"]:
            return f"{verb} {reference}"
        items = list(semantics.constants.items())
        name, value = items[0]
        words = self.field(semantics.collection, name)
        if isinstance(value, bool) and words in phrases()["adjectives"]:
            return self.rng.choice(phrases()["mark_true" if value else "mark_false"]).format(
                ref=reference, word=words
            )
        pairs = " and ".join(f"{self.field(semantics.collection, n)} to {quote(v)}" for n, v in items)
        return self.rng.choice(phrases()["set"]).format(ref=reference, pairs=pairs)

    def _changes(self, collection: str, values: tuple[Value, ...]) -> str:
        """``price to 49 and description to "with music"``, for sentences that begin with ``set``."""
        said: list[str] = []
        for value in sorted(values, key=_spoken_order):
            words = self.field(collection, value.plan.binding.field)
            if value.plan.kind == "hidden":
                said.append(f"{'' if article(words) == '' else 'a '}new {words}")
            else:
                said.append(f"{words} to {self.value(value, words)}")
        return " and ".join(said)

    def _update(self, demand: Demand, reference: str) -> str:
        collection = demand.semantics.collection
        if demand.semantics.constants:  # resolve the ticket "Roof", with resolution "sealed"
            details = [self._detail(collection, v) for v in sorted(demand.values, key=_spoken_order)]
            return f"{self._constant(demand.semantics, reference)}, with {listing(details)}"
        if len(demand.values) != 1:
            pairs = self._changes(collection, demand.values)
            return self.rng.choice(phrases()["update_many"]).format(ref=reference, pairs=pairs)
        value = demand.values[0]
        words = self.field(collection, value.plan.binding.field)
        if value.plan.kind == "hidden":
            return self.rng.choice(phrases()["update_ask"]).format(field=words, ref=reference)
        said = self.value(value, words)
        if isinstance(value.value, bool) and value.choice is None:
            return f'set "{words}" to {said} for {reference}'
        if isinstance(value.value, (list, dict)):
            return f"set the {words} of {reference} to {said}"
        if value.plan.binding.field == self.catalog.collections[collection].label:
            kind = "rename"
        else:
            kind = "move" if value.plan.kind == "key" and self._is_place(collection, value) else "update"
        return self.rng.choice(phrases()[kind]).format(field=words, ref=reference, value=said)

    def _is_place(self, collection: str, value: Value) -> bool:
        links = [link for locator in self.catalog.locators[collection] for link in locator.access.links]
        return any(link.foreign_key == value.plan.binding.field for link in links)

    def _own(self, demand: Demand) -> str:
        collection = demand.semantics.collection
        if len(demand.values) != 1:
            pairs = self._changes(collection, demand.values)
            return self.rng.choice(phrases()["self_many"]).format(entity=self.entity(collection), pairs=pairs)
        value = demand.values[0]
        words = self.field(collection, value.plan.binding.field)
        if value.plan.kind == "hidden":
            return self.rng.choice(phrases()["self_ask"]).format(field=words)
        return self.rng.choice(phrases()["self"]).format(field=words, value=self.value(value, words))

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

    def _create(self, demand: Demand, outer: Demand | None) -> str:
        semantics = demand.semantics
        collection = semantics.collection
        noun = self.noun(semantics)
        label = self.catalog.collections[collection].label
        verb = (field_words(semantics.tool) or ["create"])[0]
        template = self._create_template(demand, words_of_tool=field_words(semantics.tool))
        if verb in phrases()["create_verbs"] and verb not in ("create", "add", "post"):
            template = verb + template[template.index(" ") :]
        place, name, rest, first = "", "", list[str](), ""
        scopes = {b.param for b in semantics.scope}
        for value in sorted(demand.values, key=_spoken_order):
            if value.plan.kind == "created" and outer is not None:
                parent = outer.semantics.collection
                first = first or self.new(outer)
                place += f" {self._preposition(parent)} {self.new(outer)}"
            elif value.plan.kind == "key" and value.plan.binding.param in scopes and value.choice is not None:
                first = first or self.record(value.choice)
                place += f" {self._preposition(value.choice.pick.yields)} {self.record(value.choice)}"
            elif value.plan.kind == "key" and value.choice is not None:
                first = first or self.record(value.choice)
                place += f" for {self.record(value.choice)}"
            elif value.plan.binding.field == label and value.plan.kind == "literal" and _is_name(label):
                name = (
                    f" called {quote(value.value)}" if self.rng.random() < 0.5 else f" {quote(value.value)}"
                )
            else:
                rest.append(self._detail(collection, value))
        with_ = f"{',' if place else ''} with {listing(rest)}" if rest else ""
        return template.format(
            a=article(noun), noun=noun, name=name, place=place, ref=first, **{"with": with_}
        )

    def _create_template(self, demand: Demand, words_of_tool: list[str]) -> str:
        """``run_task_now`` makes an execution of a task: people say ``run the task ... now``."""
        parents = [
            field_words(self.entity(v.choice.pick.yields))[-1:]
            for v in demand.values
            if v.plan.kind == "key" and v.choice
        ]
        verb, rest = words_of_tool[0], words_of_tool[1:]
        for parent in (
            *parents,
            *([rest[:1]] if any(v.plan.kind == "created" for v in demand.values) else []),
        ):
            if (
                verb not in phrases()["create_verbs"]
                and parent
                and parent[0] in rest
                and self.noun_missing(demand, rest)
            ):
                others = " ".join(w for w in rest if w != parent[0])
                return f"{verb} {{ref}}{' ' + others if others else ''}{{with}}"
        return self.rng.choice(phrases()["create"])

    def noun_missing(self, demand: Demand, words: list[str]) -> bool:
        """True when a create tool's name does not name what it makes."""
        last = field_words(self.entity(demand.semantics.collection))[-1]
        return last not in words and plural(last) not in words

    def _preposition(self, collection: str, other: str = "for") -> str:
        last = field_words(self.entity(collection))[-1]
        return "in" if last in phrases()["containers"] else other

    # ------------------------------------------------------------------------------------------- text
    def instruction(self, demands: list[Demand], nested: dict[int, int]) -> str:
        """The user's opening message. ``nested[i] = j``: demand i hangs under what demand j creates."""
        clauses = [self.demand(d, demands[nested[i]] if i in nested else None) for i, d in enumerate(demands)]
        for outer in {nested[i] for i in nested}:
            made = demands[outer].semantics.collection
            alike = sum(d.semantics.verb == "create" and d.semantics.collection == made for d in demands)
            if alike > 1 and self.new(demands[outer]).startswith("that"):
                raise Unfit("which of the new ones?")
        opener = self.rng.choice(phrases()["openers"])
        text = clauses[0]
        if len(clauses) == 1:
            text = text + "."
        else:
            joiner = self.rng.choice(phrases()["joiners"])
            for index, clause in enumerate(clauses[1:-1]):
                text += f". {_STEPS[index % len(_STEPS)]} {clause}"
            text = joiner.format(a=text, b=clauses[-1])
        if opener == "Could you ":
            head, dot, tail = text.partition(". ")
            text = f"{head}? {tail}" if dot else text[:-1] + "?"
        text = opener + text
        sentences = text.replace("? ", "?\n").replace(". ", ".\n").split("\n")
        return " ".join(s[:1].upper() + s[1:] for s in sentences)

    def question(self, collection: str, name: str) -> str:
        """The agent's question for a hidden value."""
        return self.rng.choice(phrases()["questions"]).format(field=self.field(collection, name))

    def fact(self, collection: str, name: str, value: Any) -> str:
        """How the user says a value."""
        return self.rng.choice(phrases()["facts"]).format(
            field=self.field(collection, name), value=quote(value)
        )


_STEPS = ("Then", "Next,", "Then", "Also", "After that,")
"""How the demands between the first and the last begin."""


def _is_name(label: str) -> bool:
    """True for fields that hold what a thing is called; an order has a symbol, and is not called by it."""
    return field_words(label)[-1:] != [] and field_words(label)[-1] in (
        "name", "title", "label", "username", "login", "filename", "subject", "branch", "heading", "nickname",
    )  # fmt: skip


def _spoken_order(value: Value) -> int:
    """Plain values first: what is copied or computed ends in a phrase that would swallow a value after it."""
    return {"literal": 0, "hidden": 1}.get(value.plan.kind, 2)
