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
from envgen.runtime.failures import ToolFailures, ToolFailureSettings
from envgen.runtime.isolation.capabilities import isolation_report
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.stepping import step_all
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.synthesis.pipeline import synthesize
from envgen.tooldocs.read import read_tool_doc
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
from envgen.users.faults import read_sentences
from envgen.users.measure import JudgedEpisode, KindRow, false_alarm_rate, judge_rows, measure_judge
from envgen.users.port import (
    FAULT_KINDS,
    NO_ERROR,
    FaultKind,
    User,
    UserError,
    UserErrorHook,
    UserReply,
    UserVerdict,
)
from envgen.users.settings import JudgeSettings, UserMaker, UserSettings, make_judge, user_maker

__all__ = [
    "FAULT_KINDS",
    "NO_ERROR",
    "AgentTool",
    "Bundle",
    "BundleError",
    "DocumentError",
    "Env",
    "EnvLimits",
    "EnvgenError",
    "FaultKind",
    "FieldDifference",
    "IsolationError",
    "JudgeSettings",
    "JudgedEpisode",
    "KindRow",
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
    "ToolFailureSettings",
    "ToolFailures",
    "User",
    "UserError",
    "UserErrorHook",
    "UserFact",
    "UserMaker",
    "UserReply",
    "UserSettings",
    "UserVerdict",
    "Verdict",
    "WorkerLimits",
    "false_alarm_rate",
    "isolation_report",
    "judge_rows",
    "load_bundle",
    "make_judge",
    "measure_judge",
    "open_env",
    "read_sentences",
    "read_tool_doc",
    "step_all",
    "synthesize",
    "user_maker",
    "write_bundle",
]
