"""What a chat format is: how one family of models writes messages as pieces, and how its turns are read back.

A format is **append-only**: every method gives pieces that are appended to what stands already, and no piece
depends on what comes after it. Many published templates are not: they delete the thinking of earlier turns
when a user speaks again, so that the context of turn 2 is no continuation of turn 1 (FAULTS.md 13, 14). Ours
keep it. Where a template is append-only, the format gives its tokens, one for one (tests/golden/templates).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from autoforge_jax.config import RenderConfig
from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.signatures import indented_tool, json_tool, signature
from autoforge_jax.rollout.tokenizer import PolicyTokenizer, TokenRoles
from envgen.interface import AgentTool, Message


class Special(str):
    """A piece that is one special token; any other string is ordinary text."""

    __slots__ = ()


Piece = str
"""`Special` or ordinary text."""


class ChatFormat(ABC):
    """One family's way of writing; made once per run by `choose.chat_format`."""

    name: ClassVar[str]
    """Value of `render.format`."""
    roles: ClassVar[TokenRoles]
    """Special tokens that it writes, and what ends a turn."""
    generation: ClassVar[tuple[Piece, ...]]
    """What stands before every turn of the policy."""
    after_action: ClassVar[tuple[Piece, ...]]
    """What the template writes after the end token of a turn. It belongs to the observation: the policy does
    not sample it."""

    def __init__(self, config: RenderConfig) -> None:
        self.config = config

    def prefix(self, policy: str, tools: Sequence[AgentTool]) -> list[Piece]:
        """The system message: rules of the domain (unless `policy_in_prompt` is off) and tools. The same for
        all episodes of an environment."""
        rules = policy.strip() if self.config.policy_in_prompt else ""
        return self.system(rules, tools)

    @abstractmethod
    def system(self, rules: str, tools: Sequence[AgentTool]) -> list[Piece]:
        """`prefix` with the rules as they are to stand; empty = none."""

    @abstractmethod
    def messages(self, messages: Iterable[Message]) -> list[Piece]:
        """User and tool messages, each closed. LedgerError for any other role."""

    @abstractmethod
    def action(self, message: Message) -> list[Piece]:
        """An assistant turn as the policy would write it after `generation`, its end token included.
        LedgerError when the family has no way to write it."""

    @abstractmethod
    def parse(self, tokenizer: PolicyTokenizer, ids: Sequence[int], turn: int) -> Message:
        """The message that sampled ids spell. Total: what is malformed becomes a call with a `parse_error`,
        so that the environment answers it; nothing raises. `turn` makes the calls' ids unique."""

    def tool_lines(self, tools: Sequence[AgentTool], *, indented: bool = False) -> list[str]:
        """One text per tool in the style of `render.tools`; `indented`: how JSON stands in this family's
        template."""
        if self.config.tool_style == "signature":
            return [signature(tool, describe=self.config.tool_descriptions) for tool in tools]
        return [(indented_tool if indented else json_tool)(tool) for tool in tools]


def not_an_observation(message: Message) -> LedgerError:
    """The error for a message that only the policy may write."""
    return LedgerError(
        f"a {message.role} message cannot be an observation; expected user or tool messages only"
    )
