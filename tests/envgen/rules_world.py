"""A small filled state for any draft, and a way to call its tools: shared by the tests of the proposer's
code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envgen.runtime.context import ToolContext, key_styles
from envgen.runtime.sandbox import load_tools
from envgen.runtime.state import State
from envgen.types import EnvironmentDraft, Record, StateData, StateField

CLOCK = "2026-03-02T09:00:00"


class Play:
    """The tools of one draft over one state; a call answers the result, or raises ToolError."""

    def __init__(self, draft: EnvironmentDraft, data: StateData) -> None:
        self.tools = load_tools(draft.source)
        self.state = State(data)
        self.context = ToolContext(CLOCK, 7, key_styles(draft.state_schema))

    def __call__(self, tool: str, **arguments: Any) -> Any:
        self.context.begin_call(self.state)
        function: Callable[..., Any] = self.tools[tool]
        return function(self.state, self.context, **arguments)

    def table(self, collection: str) -> dict[str, Record]:
        """The records of a collection by key."""
        return self.state.snapshot().get(collection, {})


def value_of(item: StateField, index: int) -> Any:
    """A value of the field's type, another for each index where the type allows."""
    if item.enum:
        return item.enum[index % len(item.enum)]
    match item.type:
        case "integer":
            return 10 + index
        case "number":
            return 10.5 + index
        case "boolean":
            return index % 2 == 0
        case "date":
            return f"2026-04-{index + 1:02d}"
        case "datetime":
            return f"2026-04-{index + 1:02d}T08:00:00"
        case "time":
            return f"{8 + index:02d}:00"
        case "array":
            inner = StateField(name="x", type=item.item_type or "string")
            return [value_of(inner, index), value_of(inner, index + 1)]
        case "object":
            return {"name": f"inner {index}"}
        case _:
            return f"{item.name} {index}"


def fill(draft: EnvironmentDraft, size: int = 3) -> StateData:
    """``size`` records in each collection, every field filled, references to existing records."""
    keys: dict[str, list[Any]] = {}
    for c in draft.state_schema.collections:
        field = next(f for f in c.fields if f.name == c.key)
        style = key_styles(draft.state_schema)[c.name]
        made = [i + 1 if style.integer else f"{style.prefix}{i + 1}" for i in range(size)]
        keys[c.name] = made if c.key_generated else [value_of(field, i) for i in range(size)]
        if c.singleton:
            keys[c.name] = ["self"]
    data: StateData = {}
    for c in draft.state_schema.collections:
        table: dict[str, Record] = {}
        for i, key in enumerate(keys[c.name]):
            record = {
                f.name: keys[f.references][i % len(keys[f.references])] if f.references else value_of(f, i)
                for f in c.fields
            }
            table[str(key)] = {**record, c.key: key}
        data[c.name] = table
    return data
