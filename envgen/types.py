"""The nouns of envgen, in flow order: documents -> state schema and tools -> blueprint and task ->
certificate -> bundle.

    ToolDoc(ToolSpec(FieldSpec))            what a document says                    envgen.tooldocs
    StateSchema(Collection(StateField))     what an environment remembers           envgen.proposers
    ToolSemantics / ToolDecision            what each tool does to it, or why not   envgen.proposers
    ToolGraph(ToolEdge)                     whose output feeds whose input          envgen.synthesis.graph
    Blueprint(BlueprintNode, BlueprintEdge) the DAG of one task                     envgen.synthesis.blueprint
    Task(ReferenceStep, UserFact)           instruction, S, S*                      envgen.synthesis.tasks
    GateResult / Certificate                what was tried on a task, what came out envgen.synthesis.certify
    Message, ToolCall                       what agent, user and tools say          envgen.runtime.env
    Bundle                                  all of it, hashed                       envgen.store

All are frozen pydantic models that reject unknown fields, so that a file or a model reply is checked where it
enters.
States are plain JSON: ``StateData = {collection: {key as string: record}}``.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from envgen.records import Record as Record
from envgen.records import StateData as StateData


class Frozen(BaseModel):
    """Base of every record here: immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ------------------------------------------------------------------------------------------------ documents
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


# ------------------------------------------------------------------------------------------------ environment
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


# ------------------------------------------------------------------------------------------------ tasks
ReasoningKind = Literal[
    "argmin", "argmax", "latest", "earliest", "count", "sum", "filter", "compare", "lookup"
]


class BlueprintNode(Frozen):
    """A tool call, a question to the user, or a reasoning step (no tool) of a task's DAG."""

    id: str
    kind: Literal["tool", "ask", "reasoning"]
    tool: str = ""
    reasoning: ReasoningKind | None = None
    detail: str = ""
    """What is inferred or asked, in words."""
    elements: tuple[str, ...] = ()
    """Reasoning only: what is reasoned over, as ``step:path`` patterns (``2:[]`` = every element of step 2's
    result)."""
    over: str = ""
    """Path inside an element of the value compared, filtered, summed; empty when elements are only
    counted."""
    answer: str = ""
    """Path inside the chosen element(s) of the value that flows on (usually the key)."""
    among: str = ""
    """Path inside an element of the name that restricts a comparison to ``names``."""
    names: tuple[Any, ...] = ()
    value: Any = None
    """What ``over`` must equal, for filter, lookup and a restricted count."""
    order: Literal["", "min", "max"] = ""
    """Direction of a comparison."""


class BlueprintEdge(Frozen):
    """Data flows from ``source`` to ``target``; ``reasoning`` when it passes through an inference (METHOD.md
    §2)."""

    source: str
    target: str
    param: str = ""
    kind: Literal["data", "reasoning", "order"] = "data"


class Blueprint(Frozen):
    """The DAG ``G_k`` of a task."""

    nodes: tuple[BlueprintNode, ...]
    edges: tuple[BlueprintEdge, ...]


class ArgumentSource(Frozen):
    """Where the agent can know one argument from: gate 6."""

    param: str
    kind: Literal["instruction", "user_fact", "output", "reasoning", "constant"]
    detail: str = ""
    """``output``: reference step index and path; ``reasoning``: node id; ``instruction``: the words."""


class ReferenceStep(Frozen):
    """One step of the known-good sequence: a tool call, a question to the user that releases a fact or gives
    a go-ahead, or a request on which the user calls a tool of its own (``act``)."""

    kind: Literal["call", "ask", "act"]
    tool: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    text: str = ""
    """For ``ask`` and ``act``: the question."""
    thought: str = ""
    """Short reasoning that leads to this step, worked out from earlier outputs; becomes the thinking of
    warm-start data."""
    node: str = ""
    """Blueprint node."""
    sources: tuple[ArgumentSource, ...] = ()


class UserFact(Frozen):
    """Something the user knows. ``stated`` facts are in the instruction; the others must be asked for."""

    name: str
    value: Any
    sentence: str
    """How the user says it: ``The new price should be 30.``"""
    ask_words: tuple[str, ...] = ()
    """Words of which at least one in a question makes the user say it."""
    stated: bool = True


class AnswerSlot(Frozen):
    """One typed value the agent must say in its closing message (`envgen.runtime.criteria`): what a task that
    writes nothing is graded by."""

    name: str
    type: Literal["string", "integer", "number", "boolean", "date", "datetime", "array"]
    item_type: Literal["string", "integer", "number", "boolean"] | None = None
    """Type of the items of an ``array``."""
    policy: Literal["exact", "normalised"] = "exact"
    """``normalised``: case and white space of text and the order of an array do not count."""
    accepted: tuple[Any, ...] = Field(min_length=1)
    """Every right value; the first is the reference's."""
    source: ArgumentSource | None = None
    """Where the reference knows it from: gate 6."""


class UserAction(Frozen):
    """One thing the user can do with a tool that only the user holds (dual control): a call that is carried
    out when the agent asks for it in words (`envgen.users.actions`)."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    ask_words: tuple[str, ...] = Field(min_length=1)
    """Words of which at least one stands in a question that asks for it."""
    mentions: tuple[str, ...] = ()
    """Arguments whose values the question must name: what the agent has to find out."""


class TraceConstraint(Frozen):
    """A rule about how, not what: checked on the transcript beside the final state. Only calls that were
    carried out count; a refused call did nothing."""

    kind: Literal["confirm_before", "only_after", "at_most", "at_least"]
    """``confirm_before``: the user's last word before the call says yes to a question of the agent.
    ``only_after``: a call of ``first`` stands before it. ``at_most`` / ``at_least``: ``limit`` calls."""
    tools: tuple[str, ...] = Field(min_length=1)
    """Tools the rule is about."""
    first: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    """``only_after``: arguments in which both calls agree (the order that was looked at is the one
    cancelled)."""
    mentions: tuple[str, ...] = ()
    """``confirm_before``: arguments whose values the question must name, where the call has them."""
    limit: int = 0


class TaskTraits(Frozen):
    """What makes a task hard (`envgen.synthesis.difficulty`)."""

    calls: int
    """Tool calls of the reference."""
    writes: int
    """Of these, calls that change the state."""
    demands: int
    """Demands merged into the task."""
    reasoning: int
    """Reasoning nodes of the blueprint."""
    distractors: int
    """Records that the reference's look-ups show and that it has no use for."""
    hidden: int
    """Facts that the user must be asked for."""


class RefusedCall(Frozen):
    """What a task asks for although a rule forbids it: the call that would be the change."""

    rule: str
    tool: str
    arguments: dict[str, Any]


class Task(Frozen):
    """``D = (Q, S, S*, F)`` of METHOD.md §3, with one known-good sequence and what the user knows."""

    id: str
    environment_id: str
    instruction: str
    facts: tuple[UserFact, ...] = ()
    initial_state: StateData
    accepted_states: tuple[StateData, ...]
    """Full accepted end states; the first is the reference's. Never empty."""
    reference: tuple[ReferenceStep, ...]
    closing: str = "Done."
    """The agent's last message in the reference."""
    blueprint: Blueprint
    pattern: str
    """Shape of the demand(s), e.g. ``argmin+update``; for reports and splits."""
    difficulty: int
    """1-based level, by reference calls and reasoning nodes (`envgen.synthesis.difficulty`)."""
    clock: str
    """ISO time the task starts at (virtual clock)."""
    seed: int
    answers: tuple[AnswerSlot, ...] = ()
    """What the closing message must say; needed where an accepted state is the initial one."""
    constraints: tuple[TraceConstraint, ...] = ()
    user_actions: tuple[UserAction, ...] = ()
    """What the user can do with tools of its own."""
    consent: Literal["yes", "no"] = "yes"
    """What the user answers when asked for a go-ahead."""
    traits: TaskTraits | None = None
    """What makes it hard, in numbers; None for tasks made by hand or before this was counted."""
    refused: RefusedCall | None = None
    """Set where a rule of the domain forbids what is asked: nothing may change, and the answers record the
    refusal."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Tasks without dual control and traits are written as before there was any: same bytes, same hashes.
        out: dict[str, Any] = handler(self)
        if not self.user_actions:
            out.pop("user_actions", None)
        if self.consent == "yes":
            out.pop("consent", None)
        if self.traits is None:
            out.pop("traits", None)
        if self.refused is None:
            out.pop("refused", None)
        return out


GateName = Literal[
    "replay", "noop", "write_dropped", "mutants", "equivalents", "knowable", "binding", "leak", "duplicate",
    "confirmation", "policy",
]  # fmt: skip


class GateResult(Frozen):
    """Outcome of one gate of DESIGN.md §7 on one task."""

    gate: GateName
    passed: bool
    tried: int = 0
    detail: str = ""


class Certificate(Frozen):
    """All gates of one task. ``certified`` only when every gate run passed."""

    task_id: str
    gates: tuple[GateResult, ...]

    @property
    def certified(self) -> bool:
        """True when at least one gate ran and all of them passed."""
        return bool(self.gates) and all(g.passed for g in self.gates)


class CoverageReport(Frozen):
    """How much of the environment the tasks cover, and how different they are (`envgen.synthesis.coverage`
    defines every figure)."""

    tasks: int
    unique_sequences: int
    """Different full tool sequences of the references."""
    writing_tasks: int
    """Tasks whose reference changes the state."""
    unique_write_sequences: int
    near_duplicates: int
    tasks_per_writer: dict[str, int]
    """Write tool -> tasks it stands in."""
    edges_executable: int
    edges_used: int
    edges_unused: tuple[str, ...] = ()
    """``source -> target.param``."""
    edges_idle: dict[str, int] = Field(default_factory=dict)
    """Reason -> number of graph edges nobody would go along."""
    levels: dict[str, int] = Field(default_factory=dict)
    """Difficulty -> number of tasks."""


class SynthesisReport(Frozen):
    """The account of one synthesis: every tool and every sampled task is in it."""

    tools_total: int
    tools_implemented: int
    refused: dict[str, str]
    """Tool name -> reason."""
    tasks_sampled: int
    tasks_certified: int
    dropped: dict[str, int]
    """Gate (or ``sampling``) -> number of tasks dropped there."""
    seconds: float
    coverage: CoverageReport | None = None
    """None in bundles made before this was measured."""


# -------------------------------------------------------------------------------------------- conversation
class ToolCall(Frozen):
    """One call as the agent wrote it. ``arguments`` is the raw JSON text; the environment parses it."""

    id: str
    name: str
    arguments: str = "{}"
    parse_error: str = ""
    """Set by the renderer when the call's text was not a JSON object with a name; the environment answers
    with it."""

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """A mapping is what people write by hand; the agent's own text is kept as it is."""
        return orjson.dumps(value).decode() if isinstance(value, dict) else value


class Message(Frozen):
    """One message. Environments speak messages; tokens exist only in the trainer (DESIGN.md §2)."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


class StopReason(enum.StrEnum):
    """Every way an episode ends."""

    USER_DONE = "user_done"  # the user closed the conversation after a final message of the agent
    MAX_TURNS = "max_turns"  # the turn budget was used up
    MAX_TOOL_CALLS = "max_tool_calls"  # the call budget was used up
    MAX_TOOL_ERRORS = "max_tool_errors"  # too many calls failed
    TOKEN_BUDGET = "token_budget"  # the trajectory reached its token limit (set by the rollout)
    TURN_TRUNCATED = (
        "turn_truncated"  # one sampled turn hit max_turn_tokens without a stop token (set by the rollout)
    )
    TIMEOUT = "timeout"  # a deadline passed (set by the rollout)
    POLICY_ERROR = "policy_error"  # the engine failed (set by the rollout)
    ENV_ERROR = "env_error"  # a defect in environment code
    TOOL_TIMEOUT = "tool_timeout"  # a tool ran past the time limit of a call; its worker was killed
    TOOL_BREACH = (
        "tool_breach"  # a tool broke another limit (memory, output, a forbidden system call, a crash)
    )
    WORKER_LOST = "worker_lost"  # the isolated worker died, and again when the episode was made anew
    USER_ERROR = "user_error"  # the simulated user gave up: nothing it could say fits its facts

    @property
    def is_environment_fault(self) -> bool:
        """True when the environment's own code ended the episode: it says nothing about the agent."""
        return self in (
            StopReason.ENV_ERROR,
            StopReason.TOOL_TIMEOUT,
            StopReason.TOOL_BREACH,
            StopReason.WORKER_LOST,
        )


class StepResult(Frozen):
    """What follows one action: observations (tool results or a user message), and the end if this was it."""

    observations: tuple[Message, ...] = ()
    stop_reason: StopReason | None = None
    tool_errors: int = 0
    """Calls of this action that were answered with an error."""

    @property
    def done(self) -> bool:
        """True when the episode ended with this step."""
        return self.stop_reason is not None


class FieldDifference(Frozen):
    """One field in which the final state differs from the nearest accepted state."""

    collection: str
    key: str
    field: str
    expected: Any = None
    got: Any = None


class Verdict(Frozen):
    """The grader's answer for one final state."""

    success: bool
    nearest: int = 0
    """Index of the nearest accepted state."""
    differences: tuple[FieldDifference, ...] = ()
    """Fields that differ from it; a wrong answer has the collection ``answer`` and the slot as field."""
    violations: tuple[str, ...] = ()
    """Trace constraints that were broken, in words."""
    partial_credit: float = 0.0
    """Share of the required changes made minus side effects, 0 to 1; 1 only with ``success``. Reported beside
    the binary reward, never instead of it unless a config says so."""


class EnvLimits(Frozen):
    """Budgets of one episode. The defaults leave room for the hardest tasks: 18 calls, two questions, a
    closing message, and as many detours again."""

    max_turns: int = 40
    max_tool_calls: int = 40
    max_tool_errors: int = 6
