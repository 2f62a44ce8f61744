"""Who may run in this process: the functions that our own rules wrote, and nobody else.

A bundle is vetted when its ``tools.py`` is, byte for byte, what ``generate_source`` of this version makes of
the bundle's schema and semantics: the text then comes from our templates, whatever file it was read from. A
stored hash would prove less, since whoever writes a bundle also writes its hashes. Names and messages that
go into the text as text must be plain, so that a forged semantics cannot carry code. The static allow-list
comes on top, for vetted code too. A bundle made by an older version of the templates is not vetted: it
works, in a worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from envgen.synthesis.functions import generate_source
from envgen.types import StateSchema, ToolSemantics

_PLAIN = re.compile(r'[^"\\{}\x00-\x1f\x7f-\x9f]*')
_SLOT = re.compile(r"\{[^{}]+\}")  # what the writer turns into the name of a variable


class _HasSource(Protocol):
    """A bundle or a draft."""

    @property
    def state_schema(self) -> StateSchema: ...
    @property
    def semantics(self) -> tuple[ToolSemantics, ...]: ...
    @property
    def source(self) -> str: ...


def _plain_names(schema: StateSchema, semantics: Sequence[ToolSemantics]) -> Iterator[str]:
    for collection in schema.collections:
        yield collection.name
        yield collection.entity
    for tool in semantics:
        yield tool.tool
        for binding in (*([tool.key] if tool.key else []), *tool.scope, *tool.filters, *tool.writes):
            yield binding.param
        for delta in tool.deltas:
            yield delta.param
            yield _SLOT.sub("", delta.message)
        for rule in tool.preconditions:
            yield _SLOT.sub("", rule.message).replace('"', "")  # quotes are escaped by the writer


def is_vetted(bundle: _HasSource) -> bool:
    """True when the functions of a bundle or draft are our own templates' text. Costs one generation."""
    if not all(_PLAIN.fullmatch(text) for text in _plain_names(bundle.state_schema, bundle.semantics)):
        return False
    try:
        return generate_source(bundle.state_schema, bundle.semantics) == bundle.source
    except (KeyError, ValueError, TypeError, AttributeError):  # semantics that the templates cannot write
        return False
