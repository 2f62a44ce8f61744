"""What an environment remembers, what each tool does to it, and whose output feeds whose input."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from envgen.types.base import Frozen

StateFieldType = Literal[
    "string",
    "text",
    "integer",
    "number",
    "boolean",
    "date",
    "datetime",
    "time",
    "enum",
    "array",
    "object",
    "id",
]


class StateField(Frozen):
    """One field of a collection."""

    name: str
    """As it stands in records and in tool outputs."""
    type: StateFieldType
    required: bool = False
    enum: tuple[Any, ...] = ()
    item_type: StateFieldType | None = None
    references: str = ""
    """Collection this field is a foreign key into, or empty."""
    policy: Literal["exact", "exempt", "normalised"] = "exact"
    """How the grader compares it: generated ids are matched up to renaming whatever this says; clocks are
    exempt."""
    default: Any = None
    """Value a new record gets when the creating tool is not told one."""
    description: str = ""
    provenance: str = ""
    """JSON pointer into the document, or ``assumption: why``."""


class Collection(Frozen):
    """A keyed table of one entity."""

    name: str
    """Plural snake case, e.g. ``special_events``; the key in ``StateData``."""
    entity: str
    """Singular words as a person says them, e.g. ``special event``."""
    key: str
    """Primary key field."""
    key_generated: bool = True
    """True when the environment mints the key at creation; False when the caller names it (username,
    slug)."""
    label: str = ""
    """The field a person knows the record by (name, title, username), or empty."""
    singleton: bool = False
    """True for exactly one record under the key ``self`` (settings, the current user)."""
    fields: tuple[StateField, ...]
    provenance: str = ""


class StateSchema(Frozen):
    """The state structure ``K`` of METHOD.md §1: names and types, no values."""

    collections: tuple[Collection, ...]

    def collection(self, name: str) -> Collection:
        """The collection called ``name``; KeyError with the known names otherwise."""
        for item in self.collections:
            if item.name == name:
                return item
        raise KeyError(f"no collection {name!r}; known: {[c.name for c in self.collections]}")


Verb = Literal[
    "get",
    "list",
    "search",
    "create",
    "update",
    "delete",
    "set",
    "toggle",
    "link",
    "unlink",
    "count",
    "aggregate",
]


class ParamBinding(Frozen):
    """``param`` of the tool carries ``field`` of ``collection``."""

    param: str
    """A dotted path reaches into an object argument: ``article.title`` is member ``title`` of argument
    ``article``
    (`envgen.synthesis.schema.place_argument` builds such arguments). Several filters of one param mean any of
    them."""
    collection: str
    field: str
    op: Literal["eq", "contains", "ge", "le", "in"] = "eq"
    """How a filter compares; ``eq`` for keys and writes."""
    required: bool = False


class OutputBinding(Frozen):
    """``path`` into the tool's JSON result holds ``field`` of ``collection``. ``[]`` stands for any element:
    ``[].id``."""

    path: str
    collection: str
    field: str


class Precondition(Frozen):
    """The tool answers an error unless this holds for the record it acts on."""

    kind: Literal[
        "exists",
        "field_equals",
        "field_not_equals",
        "field_in",
        "linked",
        "not_linked",
        "unique",
        "no_children",
    ]
    collection: str
    field: str = ""
    value: Any = None
    message: str = ""
    provenance: str = ""


class ResultNode(Frozen):
    """One node of a tool's JSON result, as data: what the generated Python builds
    (`envgen.synthesis.functions`)."""

    kind: Literal[
        "record",
        "records",
        "view",
        "object",
        "field",
        "follow",
        "count",
        "page",
        "constant",
        "code",
        "distinct",
        "children",
        "values",
        "all",
        "first",
        "tally",
    ]
    """``record``/``records``: the record(s) acted on, whole. ``view``: the record(s) with only ``children``
    shown.
    ``object``: a wrapper. ``field``: one field of the record. ``follow``: the record behind foreign key
    ``field``.
    ``count``: number of matches. ``page``: the paging number called ``field``. ``constant``: ``value``.
    ``code``: a text
    made from the record's key. ``distinct``: the distinct values of ``field``. ``children``: number of
    records
    of ``collection`` below the record (with ``field`` true, if named). ``values``: ``field`` of each record
    found.
    ``all``: ``field`` of every record of ``collection`` after the call. ``first``: ``field`` of the first
    record found, ``value`` when there is none. ``tally``: each value of ``field`` with the number of records
    that have it."""
    name: str = ""
    """Key in the parent object; empty at the root."""
    collection: str = ""
    field: str = ""
    many: bool = False
    """``view``: a list of records, not one."""
    value: Any = None
    children: tuple[ResultNode, ...] = ()


class Ordering(Frozen):
    """A parameter that sorts a list: ``values`` maps what the caller may say to the field sorted by."""

    param: str
    values: dict[str, str]
    direction_param: str = ""
    """Parameter that takes ``asc`` or ``desc``, or empty."""


class Delta(Frozen):
    """A numeric field that changes by what the caller says: ``withdraw(amount)``. The amount must be more
    than zero."""

    param: str
    field: str
    sign: Literal[1, -1] = 1
    message: str = ""
    """Answer when the field would fall below zero; empty: it may."""


class ToolSemantics(Frozen):
    """What one tool does to the state, as data: the planner's view. The generated Python is the authority;
    tests hold
    the two together."""

    tool: str
    verb: Verb
    collection: str
    key: ParamBinding | None = None
    """The parameter with the primary key of the one record acted on."""
    scope: tuple[ParamBinding, ...] = ()
    """Parameters that narrow by parent (foreign key of the record listed or created)."""
    filters: tuple[ParamBinding, ...] = ()
    """Optional or required parameters that filter a list or search."""
    writes: tuple[ParamBinding, ...] = ()
    """Parameters whose value is stored in a field."""
    constants: dict[str, Any] = Field(default_factory=dict)
    """Fields set to a fixed value: ``{"enabled": False}`` for disable_task."""
    toggles: str = ""
    """Boolean field that is flipped."""
    ignored: tuple[str, ...] = ()
    """Accepted parameters without effect on the state: headers, idempotency keys. Never silently: named
    here."""
    paging: tuple[str, ...] = ()
    """Parameters that cut the result into pages (honoured by the function)."""
    preconditions: tuple[Precondition, ...] = ()
    outputs: tuple[OutputBinding, ...] = ()
    many: bool = False
    """The result holds a list of records."""
    writes_state: bool = False
    cascades: tuple[str, ...] = ()
    """Collections whose dependent records a delete removes too."""
    assumptions: tuple[str, ...] = ()
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Parameter -> value the document gives it when the caller does not."""
    increments: dict[str, int] = Field(default_factory=dict)
    """Numeric fields that change by a fixed amount: ``{"favoritesCount": 1}``."""
    deltas: tuple[Delta, ...] = ()
    """Numeric fields that change by an amount that a parameter gives."""
    from_session: dict[str, str] = Field(default_factory=dict)
    """Field of the new record -> field of the singleton ``session`` it is taken from (the author is the
    current user)."""
    where: dict[str, Any] = Field(default_factory=dict)
    """Fixed conditions of a list; a dotted path follows a foreign key: ``{"author.following": True}``."""
    where_session: dict[str, str] = Field(default_factory=dict)
    """Like ``where``, with the value taken from a field of the singleton ``session``: ``{"created_by":
    "username"}``."""
    ordering: Ordering | None = None
    result: ResultNode | None = None
    """Shape of the JSON result; None means the whole record (``get``, ``create``), a list of them, or
    ``{"deleted": key}``."""

    @property
    def amounts(self) -> tuple[ParamBinding, ...]:
        """The parameters of `deltas`, each with the field that grows or shrinks by its value."""
        return tuple(
            ParamBinding(param=d.param, collection=self.collection, field=d.field, required=True)
            for d in self.deltas
        )


class ToolDecision(Frozen):
    """What became of one tool of the document: implemented, or refused by name with the reason."""

    tool: str
    implemented: bool
    reason: str = ""
    pointer: str = ""


class AgentTool(Frozen):
    """What the agent sees of a tool: OpenAI function form, parameters as JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class DomainRule(Frozen):
    """One rule of the domain, executable (`envgen.runtime.domain`): when it holds, these tools may not be
    used so. Its sentence stands in ``policy.md``; what the agent has to do about it is never left to the
    tool."""

    id: str
    """``R1``: what a refusal names."""
    kind: Literal["field_in", "field_not_in", "no_children", "at_most"]
    """``field_in`` / ``field_not_in``: ``field`` of the record acted on is, or is not, one of ``values``.
    ``no_children``: no record of ``collection`` holds its key in ``field``. ``at_most``: the argument
    ``param`` is no more than the first of ``values``."""
    tools: tuple[str, ...] = Field(min_length=1)
    collection: str
    field: str
    values: tuple[Any, ...] = ()
    param: str = ""
    enforced: bool = False
    """True when the tools refuse by themselves; else only the agent keeps the rule."""
    text: str
    """The sentence in ``policy.md``."""
    provenance: str
    """Pointer into the document, or ``assumption: why``."""


class EnvironmentDraft(Frozen):
    """What a proposer hands to the gates: schema, semantics, agent-visible tools, Python, and the account of
    every tool."""

    name: str
    """Short slug: ``museum``."""
    state_schema: StateSchema
    semantics: tuple[ToolSemantics, ...]
    tools: tuple[AgentTool, ...]
    source: str
    """Text of ``tools.py``: one function per tool, ``def tool_name(state, ctx, /, **args)``, and ``TOOLS =
    {...}``."""
    policy: str
    """Text of ``policy.md``: the domain rules an agent is told."""
    decisions: tuple[ToolDecision, ...]
    user_tools: tuple[AgentTool, ...] = ()
    """Tools that the user holds and the agent does not see. Their functions are in ``source`` too."""
    rules: tuple[DomainRule, ...] = ()
    """The rules of ``policy`` as data, where it has any."""


class ToolEdge(Frozen):
    """An output of ``source`` can be an input of ``target`` (METHOD.md §2)."""

    source: str
    target: str
    output_path: str
    param: str
    collection: str
    field: str


class ToolGraph(Frozen):
    """Directed graph over tools: nodes by name, edges by data flow."""

    nodes: tuple[str, ...]
    edges: tuple[ToolEdge, ...]
