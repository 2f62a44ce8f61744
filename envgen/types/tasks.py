"""One task: the DAG it was planned as, its reference run, what the user knows and what is graded."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from envgen.records import StateData
from envgen.types.base import Frozen

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
