"""What the model may answer, stage by stage. Every member is required and nothing else is allowed, so that
the schemas work with servers that constrain the output strictly; an empty text or list says "none"."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envgen.types import Frozen, StateFieldType

Scalar = str | bool | int | float | None
Name = str


class ParamAnswer(Frozen):
    """One parameter of a tool that prose describes."""

    name: Name
    type: Literal["string", "integer", "number", "boolean"]
    required: bool
    description: str
    enum: tuple[str, ...]


class ProseToolAnswer(Frozen):
    """One tool that prose describes."""

    name: Name
    description: str
    quote: str = Field(description="The document's own words that speak of this tool, copied exactly.")
    params: tuple[ParamAnswer, ...]


class ToolsAnswer(Frozen):
    """Stage 0: the tools of a prose document."""

    title: str
    tools: tuple[ProseToolAnswer, ...]


class FieldAnswer(Frozen):
    """One field of a collection."""

    name: Name
    type: StateFieldType
    required: bool
    enum: tuple[str | int, ...]
    item_type: Literal["string", "integer", "number", "boolean", "date", "datetime", ""]
    references: str = Field(description="Collection this field holds the key of, or empty.")
    default: Scalar = Field(description="Value of a new record when its creator is not told one, or null.")
    clock: bool = Field(description="True when the environment's clock fills it (created_at, updated_at).")
    description: str
    source: str = Field(description="Tool and parameter that speak of it, or 'assumption: why'.")


class CollectionAnswer(Frozen):
    """One keyed table."""

    name: Name
    entity: str
    key: str
    key_generated: bool
    label: str
    singleton: bool
    fields: tuple[FieldAnswer, ...]


class StructureAnswer(Frozen):
    """Stage 1: the state structure, names and types, no values."""

    collections: tuple[CollectionAnswer, ...]


class BindingAnswer(Frozen):
    """``param`` carries ``field``."""

    param: str
    field: str
    op: Literal["eq", "contains", "ge", "le"]


class OutputAnswer(Frozen):
    """``path`` into the result holds ``field``."""

    path: str
    field: str


class FieldValue(Frozen):
    """A field and a value."""

    field: str
    value: Scalar


class ParamValue(Frozen):
    """A parameter and a value."""

    param: str
    value: Scalar


class RuleAnswer(Frozen):
    """A condition under which the tool answers an error instead of acting."""

    kind: Literal["field_equals", "field_not_equals", "field_in", "unique"]
    field: str
    values: tuple[Scalar, ...]


class StatementAnswer(Frozen):
    """What a tool does to the state."""

    verb: Literal["get", "list", "search", "create", "update", "set", "toggle", "delete"]
    collection: str
    key: str
    scope: tuple[BindingAnswer, ...]
    filters: tuple[BindingAnswer, ...]
    writes: tuple[BindingAnswer, ...]
    constants: tuple[FieldValue, ...]
    increments: tuple[FieldValue, ...]
    toggles: str
    where: tuple[FieldValue, ...]
    paging: tuple[str, ...]
    defaults: tuple[ParamValue, ...]
    ignored: tuple[str, ...]
    rules: tuple[RuleAnswer, ...]
    on_delete: Literal["", "cascade", "refuse"]
    outputs: tuple[OutputAnswer, ...]
    assumptions: tuple[str, ...]


class ToolAnswer(Frozen):
    """Stage 2: one tool, or why it cannot be had."""

    implement: bool
    reason: str
    statement: StatementAnswer | None
    code: str
