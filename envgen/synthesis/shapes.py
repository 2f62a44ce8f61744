"""What a demand is made of before any value exists (METHOD.md §2), and how hard a task of such demands is.

Selector     how a record is singled out: by its name, by a superlative, by a field value, by comparing two
Pick         a look-up chain plus a selector: yields the key (or another field) of the record(s) found
ValuePlan    where one written argument comes from
DemandShape  one write tool with everything that leads to its arguments
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envgen.synthesis.catalog import Locator
from envgen.types import ParamBinding, ToolSemantics

SelectorKind = Literal[
    "label", "lookup", "argmin", "argmax", "earliest", "latest", "compare", "filter", "all"
]
REASONING: tuple[SelectorKind, ...] = ("argmin", "argmax", "earliest", "latest", "compare", "filter")
NUMBERS = ("integer", "number")
DATES = ("date", "datetime")
TEXTS = ("string", "text")


@dataclass(frozen=True)
class Selector:
    """How a record is singled out among those a look-up shows."""

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

    @property
    def calls(self) -> int:
        """Look-up calls of the chain."""
        return self.locator.depth if self.locator else 0


@dataclass(frozen=True)
class ValuePlan:
    """Where one written argument comes from."""

    binding: ParamBinding
    kind: Literal["literal", "hidden", "copy", "count", "sum", "key", "created"]
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
        parts = [p.selector.kind for p in self.picks if p.selector.kind not in ("label", "all")]
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
        kinds = sum(p.selector.kind in REASONING for p in self.picks)
        return kinds + sum(v.kind in ("count", "sum") for v in self.values)


def difficulty(calls: int, reasoning: int) -> int:
    """Level of a task: 1 short and plain, 2 with a reasoning step or a longer chain, 3 from 5 calls, 4
    from 8."""
    if calls >= 8:
        return 4
    if calls >= 5 or reasoning >= 2:
        return 3
    return 2 if reasoning or calls >= 4 else 1
