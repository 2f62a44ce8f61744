"""What a tool answers, by the result node of its semantics: the expected JSON of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envgen.synthesis.schema import descendants, field_of
from envgen.types import Record, ResultNode, StateSchema, ToolSemantics


class Shown:
    """Builds results of one tool from records. ``find`` and ``table`` read the state before the call."""

    def __init__(
        self,
        schema: StateSchema,
        sem: ToolSemantics,
        find: Callable[[str, Any], Record | None],
        table: Callable[[str], dict[str, Record]],
        after: Callable[[str], list[Record]],
    ) -> None:
        self.schema, self.sem = schema, sem
        self.col = schema.collection(sem.collection)
        self.find, self.table, self.after = find, table, after
        self._found: list[Record] = []
        self._record: Record = {}
        self._numbers: dict[str, int] = {}

    def one(self, record: Record) -> Any:
        """The answer about one record."""
        self._record = record
        if self.sem.result is not None:
            return self._node(self.sem.result)
        if self.sem.verb == "delete":
            return {"deleted": record.get(self.col.key)}
        return record

    def many(self, found: list[Record], total: int, page: dict[str, int]) -> Any:
        """The answer about a list; ``total`` is its length before it was cut into pages."""
        self._found, self._numbers = found, {**page, "total": total}
        if self.sem.result is not None:
            return self._node(self.sem.result)
        return {"count": len(found)} if self.sem.verb == "count" else found

    def _node(self, node: ResultNode) -> Any:
        match node.kind:
            case "record":
                return self._record
            case "records":
                return self._found
            case "object":
                return {child.name: self._node(child) for child in node.children}
            case "view":
                if node.many:
                    return [self._view(self.sem.collection, r, node.children) for r in self._found]
                return self._view(self.sem.collection, self._record, node.children)
            case "field":
                return self._record.get(node.field)
            case "count":
                return self._numbers["total"]
            case "page":
                return self._numbers[node.field]
            case "constant":
                return node.value
            case "code":
                return f"{node.value}-{self._record[self.col.key]}"
            case "distinct":
                return self._distinct(node.field)
            case "children":
                below = self._below(node.collection)
                return sum(bool(r.get(node.field)) for r in below) if node.field else len(below)
            case "values":
                return [r.get(node.field) for r in self._found]
            case "all":
                return [r.get(node.field) for r in self.after(node.collection)]
            case "first":
                return self._found[0].get(node.field) if self._found else node.value
            case "tally":
                held = [r[node.field] for r in self._found if node.field in r]
                return {value: held.count(value) for value in sorted(set(held))}
            case "follow":
                raise ValueError("a follow node stands inside a view only")

    def _view(self, collection: str, record: Record, children: tuple[ResultNode, ...]) -> Record:
        """One record as the document's result schema shows it; fields that it lacks are left out."""
        col = self.schema.collection(collection)
        shown: Record = {}
        for child in children:
            if child.kind == "field" and child.field in record:
                shown[child.name] = record[child.field]
            elif child.kind == "follow":
                linked = self.find(child.collection, record.get(child.field))
                if linked is not None:
                    shown[child.name] = self._view(child.collection, linked, child.children)
            elif child.kind == "constant":
                shown[child.name] = child.value
            elif child.kind == "code":
                shown[child.name] = f"{child.value}-{record[col.key]}"
        whole = {child.field for child in children} >= {field.name for field in col.fields}
        if whole and all(child.kind == "field" and child.name == child.field for child in children):
            return record  # nothing is hidden: also what stands in the record beside its fields
        return shown

    def _distinct(self, name: str) -> list[Any]:
        field = field_of(self.col, name)
        if field is not None and field.type == "array":
            return sorted({item for record in self._found for item in record.get(name, [])})
        return sorted({record[name] for record in self._found if name in record})

    def _below(self, wanted: str) -> list[Record]:
        """The records of one collection that belong to the record acted on, over all levels."""
        keys: dict[str, list[Any]] = {self.col.name: [self._record.get(self.col.key)]}
        rows: dict[str, list[Record]] = {}
        for child, foreign, parent in descendants(self.schema, self.col.name):
            name = self.schema.collection(child).key
            rows[child] = [r for r in self.table(child).values() if r.get(foreign) in keys[parent]]
            keys[child] = [r[name] for r in rows[child]]
        return rows.get(wanted, [])
