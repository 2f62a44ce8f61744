"""Where each tool, parameter, rule and field of an environment comes from: a place in the document, or an
assumption that says so. A bundle carries it as ``provenance.json`` (`envgen.bundle`)."""

from __future__ import annotations

from pydantic import model_validator

from envgen.types import Frozen


class Source(Frozen):
    """One origin. At least one of the two is said; both, where the document says a part."""

    pointer: str = ""
    """JSON pointer, ``line N``, either with ``file#`` in front when several documents were combined."""
    assumption: str = ""
    """What was assumed beyond it, in words."""

    @model_validator(mode="after")
    def _said(self) -> Source:
        if not self.pointer and not self.assumption:
            raise ValueError("got neither a pointer nor an assumption; expected one of them")
        return self


class RuleSource(Frozen):
    """A precondition of a tool and its origin."""

    rule: str
    """As the tool answers when it refuses: ``No ticket {ticket_id}.``"""
    source: Source


class ToolTests(Frozen):
    """How the tool proved itself (`envgen.synthesis.toolproof`)."""

    successes: int
    refusals: int
    misfits: int
    """Calls that the schema of its arguments refused."""


class ToolSource(Frozen):
    """One tool and its parts."""

    source: Source
    params: dict[str, Source]
    rules: tuple[RuleSource, ...] = ()
    assumptions: tuple[str, ...] = ()
    tests: ToolTests | None = None


class CollectionSource(Frozen):
    """One collection and its fields."""

    source: Source
    fields: dict[str, Source]


class Provenance(Frozen):
    """The origins of a whole environment."""

    documents: dict[str, str]
    """File name -> sha256."""
    tools: dict[str, ToolSource]
    collections: dict[str, CollectionSource]
