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

from envgen.records import Record, StateData
from envgen.types.base import (
    Frozen,
)
from envgen.types.certificates import (
    Certificate,
    CoverageReport,
    GateName,
    GateResult,
    SynthesisReport,
)
from envgen.types.conversation import (
    EnvLimits,
    FieldDifference,
    Message,
    StepResult,
    StopReason,
    ToolCall,
    Verdict,
)
from envgen.types.documents import (
    FieldSpec,
    FieldType,
    LintFinding,
    ToolDoc,
    ToolSpec,
)
from envgen.types.environment import (
    AgentTool,
    Collection,
    Delta,
    DomainRule,
    EnvironmentDraft,
    Ordering,
    OutputBinding,
    ParamBinding,
    Precondition,
    ResultNode,
    StateField,
    StateFieldType,
    StateSchema,
    ToolDecision,
    ToolEdge,
    ToolGraph,
    ToolSemantics,
    Verb,
)
from envgen.types.tasks import (
    AnswerSlot,
    ArgumentSource,
    Blueprint,
    BlueprintEdge,
    BlueprintNode,
    ReasoningKind,
    ReferenceStep,
    RefusedCall,
    Task,
    TaskTraits,
    TraceConstraint,
    UserAction,
    UserFact,
)

__all__ = [
    "AgentTool",
    "AnswerSlot",
    "ArgumentSource",
    "Blueprint",
    "BlueprintEdge",
    "BlueprintNode",
    "Certificate",
    "Collection",
    "CoverageReport",
    "Delta",
    "DomainRule",
    "EnvLimits",
    "EnvironmentDraft",
    "FieldDifference",
    "FieldSpec",
    "FieldType",
    "Frozen",
    "GateName",
    "GateResult",
    "LintFinding",
    "Message",
    "Ordering",
    "OutputBinding",
    "ParamBinding",
    "Precondition",
    "ReasoningKind",
    "Record",
    "ReferenceStep",
    "RefusedCall",
    "ResultNode",
    "StateData",
    "StateField",
    "StateFieldType",
    "StateSchema",
    "StepResult",
    "StopReason",
    "SynthesisReport",
    "Task",
    "TaskTraits",
    "ToolCall",
    "ToolDecision",
    "ToolDoc",
    "ToolEdge",
    "ToolGraph",
    "ToolSemantics",
    "ToolSpec",
    "TraceConstraint",
    "UserAction",
    "UserFact",
    "Verb",
    "Verdict",
]
