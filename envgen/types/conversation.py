"""What agent, user and tools say, what a step gives back, and how an episode is judged."""

from __future__ import annotations

import enum
from typing import Any, Literal

import orjson
from pydantic import field_validator

from envgen.types.base import Frozen


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
