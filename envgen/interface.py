"""The only door to envgen, for the trainer and for users.

    bundle = load_bundle("bundles/museum")
    env = open_env(bundle, bundle.task("museum-0007"), seed=0)
    for message in env.start(): ...
    result = env.step(Message(role="assistant", tool_calls=(ToolCall(id="1", name="listSpecialEvents"),)))
    env.verdict()

Names listed in ``__all__`` are pinned by a test.
"""

from envgen.errors import (
    BundleError,
    DocumentError,
    EnvgenError,
    IsolationError,
    RefusedDocument,
    TaskError,
    ToolError,
)
from envgen.runtime.env import Env, open_env
from envgen.runtime.isolation.capabilities import isolation_report
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.synthesis.pipeline import synthesize
from envgen.types import (
    AgentTool,
    EnvLimits,
    FieldDifference,
    Message,
    ReferenceStep,
    StepResult,
    StopReason,
    SynthesisReport,
    Task,
    ToolCall,
    UserFact,
    Verdict,
)

__all__ = [
    "AgentTool",
    "Bundle",
    "BundleError",
    "DocumentError",
    "Env",
    "EnvLimits",
    "EnvgenError",
    "FieldDifference",
    "IsolationError",
    "Message",
    "ReferenceStep",
    "RefusedDocument",
    "StepResult",
    "StopReason",
    "SynthesisReport",
    "Task",
    "TaskError",
    "ToolCall",
    "ToolError",
    "UserFact",
    "Verdict",
    "WorkerLimits",
    "isolation_report",
    "load_bundle",
    "open_env",
    "synthesize",
    "write_bundle",
]
