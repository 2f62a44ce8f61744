"""What a demand is made of before any value exists (METHOD.md §2), and how hard a task of such demands is.

Selector     how a record is singled out: by its name, by a superlative, by a field value, by comparing two
Pick         a look-up chain plus a selector: yields the key (or another field) of the record(s) found
ValuePlan    where one written argument comes from
DemandShape  one write tool with everything that leads to its arguments
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envgen.synthesis.lookups import Locator
from envgen.types import ParamBinding, ToolSemantics

SelectorKind = Literal[
    "label", "lookup", "argmin", "argmax", "earliest", "latest", "compare", "filter", "all", "only"
]
REASONING: tuple[SelectorKind, ...] = ("argmin", "argmax", "earliest", "latest", "compare", "filter")
"""Selectors that take thinking. ``only`` is no choice at all: the call shows one record."""
NUMBERS = ("integer", "number")
DATES = ("date", "datetime")
TEXTS = ("string", "text")


@dataclass(frozen=True)
class Selector:
    """How a record is singled out among those a look-up shows. ``filter`` without a field: every one."""

    kind: SelectorKind
    field: str = ""
    order: Literal["", "min", "max"] = ""


@dataclass(frozen=True)
class Pick:
    """A look-up chain and a selector. ``answer`` is the field that flows on, the key unless said
    otherwise; ``yields`` is the collection whose key that is. ``locator`` None: the user says the key of a
    ``yields`` record."""

    locator: Locator | None
    selector: Selector
    yields: str
    answer: str = ""
    tells: tuple[str, ...] = ()
    """Further fields that the user says where there is no look-up: the owner of a repository."""

    @property
    def calls(self) -> int:
        """Look-up calls of the chain."""
        return self.locator.depth if self.locator else 0

    def edges(self, tool: str, param: str) -> list[tuple[str, str, str]]:
        """The edges of the chain, and the one on which its answer goes to a parameter of a tool."""
        if self.locator is None:
            return []
        return [*self.locator.edges(), (self.locator.access.tool, tool, param)]


@dataclass(frozen=True)
class ValuePlan:
    """Where one written argument comes from."""

    binding: ParamBinding
    kind: Literal["literal", "hidden", "copy", "count", "sum", "key", "created", "amount"]
    """``amount``: said by the user as ``literal`` is, but it is what the field changes by."""
    pick: Pick | None = None
    as_text: bool = False


@dataclass(frozen=True)
class DemandShape:
    """One write tool, the record it acts on, and its values."""

    semantics: ToolSemantics
    target: Pick | None
    values: tuple[ValuePlan, ...]

    @property
    def picks(self) -> tuple[Pick, ...]:
        """Every look-up of the demand."""
        return (
            *((self.target,) if self.target else ()),
            *(v.pick for v in self.values if v.pick is not None),
        )

    @property
    def pattern(self) -> str:
        """Shape as text: ``argmin+update``."""
        parts = [p.selector.kind for p in self.picks if p.selector.kind not in ("label", "all", "only")]
        parts += [v.kind for v in self.values if v.kind in ("copy", "count", "sum", "created")]
        parts += ["ask"] if any(v.kind == "hidden" for v in self.values) else []
        return "+".join([*(parts or ["lookup"]), self.semantics.verb])

    def tools(self) -> tuple[str, ...]:
        """The write tool and the look-ups that lead to it."""
        looked = [tool for pick in self.picks if pick.locator for tool in pick.locator.tools()]
        return (self.semantics.tool, *looked)

    @property
    def reasoning(self) -> int:
        """Number of reasoning steps beyond finding a record by its name."""
        kinds = sum(p.selector.kind in REASONING and bool(p.selector.field) for p in self.picks)
        return kinds + sum(v.kind in ("count", "sum") for v in self.values)

    @property
    def writes(self) -> int:
        """Calls of the write tool, as far as the shape says: at least two where all that match are meant."""
        return 2 if self.target is not None and self.target.selector.kind == "filter" else 1

    def edges(self) -> tuple[tuple[str, str, str], ...]:
        """(source tool, target tool, parameter) along which values flow; keys of new records are left out."""
        found: list[tuple[str, str, str]] = []
        tool, key = self.semantics.tool, self.semantics.key
        if self.target is not None and key is not None:
            found += self.target.edges(tool, key.param)
            if self.target.locator is not None:
                source = self.target.locator.access
                shown = [b for b in self.semantics.scope if source.path(b.field) is not None]
                found += [(source.tool, tool, b.param) for b in shown]
        for value in self.values:
            if value.pick is not None:
                found += value.pick.edges(tool, value.binding.param)
        return tuple(found)

    def calls(self) -> tuple[str, ...]:
        """The tools of a reference, look-ups first; a look-up made twice is not told apart from one made for
        other records."""
        looked = dict.fromkeys(t for p in self.picks if p.locator for t in p.locator.tools())
        return (*looked, *([self.semantics.tool] * self.writes))
