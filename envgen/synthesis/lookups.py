"""Look-ups as the planner sees them: calls that show records, and chains of such calls.

Link     a parameter that carries the key of a parent
Access   one read tool that shows records of a collection, and what it must be told
Locator  an access plus locators for the parents it must be told: a look-up chain (METHOD.md §2, backward
chaining)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Link:
    """A parameter that carries the key of a parent: ``param`` <- key of ``parent``; children hold it in
    ``foreign_key``."""

    param: str
    parent: str
    foreign_key: str
    required: bool


@dataclass(frozen=True)
class Access:
    """One read tool that shows records of ``collection``."""

    tool: str
    collection: str
    element: str
    """Pattern of one record in the result: ``[]``, ``items[]``, ``article`` or empty for the result
    itself."""
    fields: tuple[tuple[str, str], ...]
    """(state field, path inside the element)."""
    links: tuple[Link, ...]
    many: bool
    by_label: str = ""
    """Parameter of a required filter on the label, for searches."""
    given: tuple[tuple[str, str], ...] = ()
    """(parameter, enum field) of required filters: the user says which value (the DRAFT assets)."""
    mine: tuple[tuple[str, str], ...] = ()
    """(field, field of the session): only records of the one who is logged in are shown."""
    where: tuple[tuple[str, Any], ...] = ()
    """Fixed conditions: (field, value); ``author.following`` follows a foreign key."""
    said: tuple[str, str] = ("", "")
    """What sets the records apart that are shown under ``where``, in words before and after the noun:
    ``("starred", "")``, ``("", "from my feed")``."""

    by_text: bool = False
    """A search for words that stand in a field: the user says the text of that field, and finds one."""

    @property
    def single(self) -> bool:
        """True where the call is told which one record to show: the first link carries its key."""
        return not self.many and bool(self.links) and self.links[0].parent == self.collection

    @property
    def bare(self) -> bool:
        """True where a list holds plain values, not records: the codes of stocks."""
        return self.many and all(path == "" for _, path in self.fields)

    @property
    def named(self) -> bool:
        """True where the call is told a name and answers with the one record, or key, that has it."""
        return not self.many and bool(self.by_label)

    def path(self, name: str) -> str | None:
        """Path of a field inside the element, None when the tool does not show it."""
        for known, path in self.fields:
            if known == name:
                return path
        return None


@dataclass(frozen=True)
class Locator:
    """A way to see records of a collection, parents included. ``parents[i]`` belongs to
    ``access.links[i]``; None where the user says the parent's key."""

    access: Access
    parents: tuple[Locator | None, ...] = ()
    answers: tuple[str, ...] = ()
    """Field of each parent's record that carries the key; empty where it is the parent's own."""

    def answer(self, index: int) -> str:
        """The foreign key that ``parents[index]`` gives, or empty for its own key."""
        return self.answers[index] if self.answers else ""

    @property
    def depth(self) -> int:
        """Number of look-up calls in the chain."""
        return 1 + sum(p.depth for p in self.parents if p is not None)

    @property
    def collection(self) -> str:
        """The collection shown."""
        return self.access.collection

    def needed_for(self, name: str) -> bool:
        """False where one record is asked for although the list before shows the field already."""
        before = self.parents[0] if self.access.single and self.parents and not self.answer(0) else None
        return before is None or before.access.path(name) is None

    def edges(self) -> list[tuple[str, str, str]]:
        """(source tool, target tool, parameter) inside the chain."""
        found: list[tuple[str, str, str]] = []
        for link, parent in zip(self.access.links, self.parents, strict=True):
            if parent is not None:
                found += [*parent.edges(), (parent.access.tool, self.access.tool, link.param)]
        return found

    def tools(self) -> tuple[str, ...]:
        """Read tools of the chain, parents first."""
        names: list[str] = []
        for parent in self.parents:
            if parent is not None:
                names.extend(parent.tools())
        return (*names, self.access.tool)
