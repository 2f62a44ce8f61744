"""What the user says: the minimum information of a task, in plain English (METHOD.md §3, refinement).

No tool names, no ids, no list of steps. Records are called by their names, fields by their words; each kind
of
demand has several templates (``data/phrases.json``), chosen by the task's own random stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from envgen.synthesis.catalog import field_words
from envgen.synthesis.choices import Choice, Demand, Unfit, Value
from envgen.synthesis.nouns import Nouns
from envgen.synthesis.wording import (
    article,
    listing,
    phrases,
    plural,
    quote,
)
from envgen.types import ToolSemantics


class Speaker(Nouns):
    """Words for one catalog; ``rng`` chooses among templates."""

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
        held: object = value.value
        if isinstance(held, dict):  # the method of a setting speaks for itself, a name does not
            members = cast("dict[str, Any]", held)
            plain = any(field_words(name)[-1:] in _PLAIN for name in members)
            return f"{words} {said}" if plain else said
        if isinstance(value.value, bool) and value.choice is None:
            return f'"{words}" set to {said}'
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
        new = ""
        if demand.target is not None and outer is not None:
            new = self.new(outer)
        if demand.target is None and outer is not None:
            demand = replace(demand, values=tuple(v for v in demand.values if v.plan.kind != "created"))
            reference = self.new(outer)
        elif demand.target is None and semantics.deltas:
            reference = f"my {self.entity(semantics.collection)}"
        elif demand.target is None:
            return self._own(demand)
        else:
            reference = self.record(demand.target)
        if semantics.deltas:
            return self._amounts(demand, reference)
        if semantics.verb == "delete":
            verb = field_words(semantics.tool)[0]
            if verb in phrases()["delete_verbs"] and verb not in ("delete", "remove"):
                return f"{verb} {reference}"
            return self.rng.choice(phrases()["delete"]).format(ref=reference)
        if semantics.verb == "toggle":
            return self._toggle(demand, reference)
        if not demand.values and semantics.constants:
            return self._constant(semantics, reference)
        return self._update(demand, reference, new)

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

    def _update(self, demand: Demand, reference: str, new: str = "") -> str:
        """``new``: how the record is called that an earlier demand makes, where this one gets it."""
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
        said = new if value.plan.kind == "created" else self.value(value, words)
        if isinstance(value.value, bool) and value.choice is None:
            return f'set "{words}" to {said} for {reference}'
        if isinstance(value.value, (list, dict)) or value.plan.kind in ("copy", "sum"):
            # "make the name of Mia the name of Max": which one changes?
            return f"set the {words} of {reference} to {said}"
        if value.plan.binding.field == self.catalog.collections[collection].label:
            kind = "rename"
        else:
            linked = value.plan.kind in ("key", "created")
            kind = "move" if linked and self._is_place(collection, value) else "update"
        return self.rng.choice(phrases()[kind]).format(field=words, ref=reference, value=said)

    def _is_place(self, collection: str, value: Value) -> bool:
        links = [link for locator in self.catalog.locators[collection] for link in locator.access.links]
        return any(link.foreign_key == value.plan.binding.field for link in links)

    def _amounts(self, demand: Demand, reference: str) -> str:
        """``put 250 into my account``, ``lower the stock of the item "Lamp" by 3``."""
        collection = demand.semantics.collection
        grows = {d.param: d.sign > 0 for d in demand.semantics.deltas}
        said: list[str] = []
        for value in (v for v in demand.values if v.plan.kind == "amount"):
            words = self.field(collection, value.plan.binding.field)
            up = grows[value.plan.binding.param]
            if field_words(words)[-1:] in _POTS:
                kind = "put_in" if up else "take_out"
            else:
                kind = "raise" if up else "lower"
            said.append(
                self.rng.choice(phrases()[kind]).format(field=words, ref=reference, value=quote(value.value))
            )
        rest = [v for v in sorted(demand.values, key=_spoken_order) if v.plan.kind != "amount"]
        details = [self._detail(collection, v) for v in rest]
        return " and ".join(said) + (f", with {listing(details)}" if details else "")

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


_PLAIN = (["name"], ["title"], ["value"], ["type"], ["label"], ["description"], ["id"], ["text"])
"""Last words of members that could be those of the record itself."""
_POTS = (["balance"], ["funds"], ["credit"], ["credits"])
"""Last words of fields that amounts are put into and taken out of."""
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
