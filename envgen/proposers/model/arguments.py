"""Arguments for trial calls: mostly ones that fit the state, some that must be refused."""

from __future__ import annotations

import random
from typing import Any, cast

from envgen.synthesis.schema import field_of, place_argument
from envgen.synthesis.values import ValueMaker
from envgen.types import AgentTool, ParamBinding, Record, StateData, StateField, StateSchema, ToolSemantics

_GIVEN = 0.55
"""Share of calls that carry an optional argument."""
_ABSENT = 0.1
"""Share of keys that no record has, in calls that need not be refused."""


class ArgumentMaker:
    """Draws the arguments of one tool on one state."""

    def __init__(
        self,
        schema: StateSchema,
        sem: ToolSemantics,
        tool: AgentTool,
        state: StateData,
        maker: ValueMaker,
        rng: random.Random,
    ) -> None:
        self.schema = schema
        self.sem = sem
        self.state = state
        self.maker = maker
        self.rng = rng
        self.col = schema.collection(sem.collection)
        self.properties = cast("dict[str, dict[str, Any]]", tool.parameters.get("properties") or {})
        self.required = set(cast("list[str]", tool.parameters.get("required") or []))
        self.absent = _ABSENT
        self.unique = {r.field for r in sem.preconditions if r.kind == "unique"}

    def draw(self, *, refused: bool = False) -> dict[str, Any]:
        """One set of arguments; not always one that the tool accepts. ``refused``: one with keys that no
        record has, where the tool takes keys."""
        self.absent = 1.0 if refused else _ABSENT
        arguments: dict[str, Any] = {}
        records = list(self.state[self.col.name].values())
        target = self.rng.choice(records) if records else None
        if self.sem.key is not None:
            key: Any = target[self.col.key] if target is not None else "ZZ0"
            if self.rng.random() < self.absent:
                key = _absent(key)
            place_argument(arguments, self.sem.key.param, key)
        for binding in self.sem.scope:
            self._place(arguments, binding, self._parent(binding, target))
        for binding in self.sem.filters:
            self._place(arguments, binding, self._filter(binding, records))
        for binding in self.sem.writes:
            self._place(arguments, binding, self._write(binding, records))
        for name in self.sem.paging:
            if name in self.required or self.rng.random() < _GIVEN:
                place_argument(arguments, name, self.rng.choice((1, 1, 2, 3, 0)))
        return arguments

    def _place(self, arguments: dict[str, Any], binding: ParamBinding, value: Any) -> None:
        root = binding.param.split(".")[0]
        needed = binding.required or binding.param in self.required
        if value is None or not (needed or self.rng.random() < _GIVEN):
            return
        if isinstance(arguments.get(root, {}), dict) or root == binding.param:
            place_argument(arguments, binding.param, value)

    def _field(self, binding: ParamBinding) -> StateField:
        item = field_of(self.col, binding.field)
        assert item is not None, "statements are checked before they are tried"
        return item

    def _parent(self, binding: ParamBinding, target: Record | None) -> Any:
        own = (target or {}).get(binding.field)
        if own is not None and self.absent < 1 and self.rng.random() < 0.7:
            return own
        return self._reference(self._field(binding))

    def _reference(self, item: StateField) -> Any:
        parent = self.schema.collection(item.references)
        keys = [record[parent.key] for record in self.state[parent.name].values()]
        key: Any = self.rng.choice(keys) if keys else "ZZ0"
        return _absent(key) if self.rng.random() < self.absent else key

    def _filter(self, binding: ParamBinding, records: list[Record]) -> Any:
        held = [r[binding.field] for r in records if r.get(binding.field) is not None]
        if not held or self.rng.random() < 0.2:
            return self._fresh(binding)
        value: Any = self.rng.choice(held)
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return self.rng.choice(items) if items else None
        if binding.op == "contains" and isinstance(value, str) and len(value) > 2:
            word = self.rng.choice(value.split() or [value])
            return word.swapcase() if self.rng.random() < 0.5 else word
        return value

    def _write(self, binding: ParamBinding, records: list[Record]) -> Any:
        item = self._field(binding)
        own_key = binding.field == self.col.key
        if records and (own_key or binding.field in self.unique) and self.rng.random() < 0.25:
            return self.rng.choice(records).get(binding.field)
        if item.references:
            return self._reference(item)
        return self._fresh(binding)

    def _fresh(self, binding: ParamBinding) -> Any:
        item = self._field(binding)
        value: Any = self.maker.value(self.col, item, self._schema(binding.param))
        if value is None and item.type == "object":
            return {"note": self.maker.pool.code(self.rng)}
        if isinstance(value, list) and binding in self.sem.filters:
            items = cast("list[Any]", value)
            return self.rng.choice(items) if items else None
        return cast("Any", value)

    def _schema(self, path: str) -> dict[str, Any]:
        node: dict[str, Any] = {"properties": self.properties}
        for name in path.split("."):
            members = cast("dict[str, dict[str, Any]]", node.get("properties") or {})
            node = members.get(name) or {}
        return node


def _absent(key: Any) -> Any:
    """A key of the same type that no record has."""
    return 987654 if isinstance(key, int) else "ZZ987"
