"""Kinds of records within one collection: which fields a record of a kind can have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envgen.types import ToolSemantics


@dataclass(frozen=True)
class Variants:
    """Kinds of records in one collection, told apart by a field that each create tool sets to a value of
    its own: ``add_api_task`` makes tasks of type ``api``."""

    field: str
    only: dict[str, frozenset[Any]]
    """Field -> the values of ``field`` whose records can have it; a field that is not here fits all."""

    def fits(self, record: dict[str, Any], name: str) -> bool:
        """True when a record of its kind can have the field."""
        allowed = self.only.get(name)
        return allowed is None or record.get(self.field) in allowed

    def strip(self, record: dict[str, Any]) -> None:
        """Take away the fields that belong to other kinds."""
        for name in self.only:
            if not self.fits(record, name):
                record.pop(name, None)


def variants_of(collection: str, semantics: Mapping[str, ToolSemantics]) -> Variants | None:
    """The kinds of a collection's records, or None when its create tools do not tell any apart."""
    makers = [s for s in semantics.values() if s.verb == "create" and s.collection == collection]
    for name in makers[0].constants if len(makers) > 1 else ():
        kinds = [maker.constants.get(name) for maker in makers]
        if None in kinds or len({str(kind) for kind in kinds}) < len(kinds):
            continue
        writers: dict[str, set[Any]] = {}
        for maker, kind in zip(makers, kinds, strict=True):
            for binding in maker.writes:
                writers.setdefault(binding.field, set()).add(kind)
        return Variants(name, {f: frozenset(v) for f, v in writers.items() if len(v) < len(kinds)})
    return None
