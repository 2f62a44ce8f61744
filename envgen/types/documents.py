"""What a document says: tools and their fields."""

from __future__ import annotations

from typing import Any, Literal

from envgen.types.base import Frozen

FieldType = Literal["string", "integer", "number", "boolean", "array", "object", "any"]


class FieldSpec(Frozen):
    """One parameter or one node of a response schema, with every ``$ref`` resolved and ``allOf`` merged."""

    name: str
    type: FieldType = "any"
    required: bool = False
    nullable: bool = False
    description: str = ""
    enum: tuple[Any, ...] = ()
    format: str = ""
    default: Any = None
    example: Any = None
    items: FieldSpec | None = None
    """Element schema when ``type == "array"``."""
    properties: tuple[FieldSpec, ...] = ()
    """Members when ``type == "object"``."""
    ref: str = ""
    """Name of the component schema this node came from (``SpecialEvent``), when it was a reference."""
    location: Literal["argument", "path", "query", "header", "cookie", "body", "response", ""] = ""
    pointer: str = ""
    """JSON pointer (or ``line N``) into the document: the provenance of this field."""
    truncated: bool = False
    """True where a circular reference or the depth limit cut the schema here."""


class ToolSpec(Frozen):
    """One tool as its document describes it."""

    name: str
    description: str = ""
    params: tuple[FieldSpec, ...] = ()
    output: FieldSpec | None = None
    """Schema of a successful result; None when the document gives none."""
    method: str = ""
    """HTTP method in lower case for OpenAPI, else empty."""
    path: str = ""
    tags: tuple[str, ...] = ()
    summary: str = ""
    """The short line beside ``description``, where the format has both and they differ."""
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    pointer: str = ""
    own_name: str = ""
    """Its name in its own document, when combining documents renamed it."""

    @property
    def said_name(self) -> str:
        """The name that says what the tool does: its document's."""
        return self.own_name or self.name


class LintFinding(Frozen):
    """One finding of ``envgen lint``. A refusal means no environment can be made of the document as it is."""

    level: Literal["warning", "refusal"]
    code: str
    """Stable kebab-case name, e.g. ``no-write-tool``."""
    message: str
    pointer: str = ""


class ToolDoc(Frozen):
    """A tool document after reading: what came in, in one shape."""

    title: str
    format: str
    """``openapi-3.0``, ``openapi-3.1``, ``swagger-2.0``, ``mcp``, ``functions``, ``functions-jsonl``,
    ``markdown``, ``labelled-text``, ``combined``."""
    source: str
    """File name only, never a path of this machine."""
    sha256: str
    description: str = ""
    tools: tuple[ToolSpec, ...]
    schemas: tuple[FieldSpec, ...] = ()
    """Named component schemas (OpenAPI), ``name`` is the component's name."""
    detected: str = ""
    """What the reader took the document for, and by which signs."""
    findings: tuple[LintFinding, ...] = ()
    """What the reader left out or assumed, by pointer; `envgen.tooldocs.lint` reports these too."""
