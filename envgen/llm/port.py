"""The port to a language model: one method, ``complete``, and the errors it may raise."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from envgen.errors import EnvgenError


class LLMError(EnvgenError):
    """A language model could not be asked, or its answer could not be used.

    LLMError
    ├── LLMUnavailable   no answer: connection refused, time-out, overloaded, after every retry
    ├── LLMRejected      the server refused the request (4xx): wrong key, model name or parameters
    └── LLMBadReply      an answer that is no chat completion, or holds no text
    """


class LLMUnavailable(LLMError):
    """The server did not answer, however often it was asked."""


class LLMRejected(LLMError):
    """The server refused the request; asking again would be refused again."""


class LLMBadReply(LLMError):
    """The server answered with something that is not a usable chat completion."""


@dataclass(frozen=True)
class ChatMessage:
    """One message of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One completion to make. ``max_tokens`` counts thinking too, where a model thinks."""

    messages: tuple[ChatMessage, ...]
    temperature: float = 0.0
    max_tokens: int = 512
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: dict[str, Any] | None = None
    """Ask the server to constrain the answer to this schema (``response_format``)."""

    @property
    def key(self) -> str:
        """SHA-256 of the request: what a recording is found by."""
        text = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class ChatReply:
    """The model's answer. ``text`` is without thinking (see ``without_thinking``) and never empty."""

    text: str
    finish_reason: str = "stop"
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChatClient(Protocol):
    """Anything that completes a chat. Implementations may be called from several threads at once."""

    def complete(self, request: ChatRequest) -> ChatReply:
        """The answer to ``request``. Raises LLMError."""
        ...


class ServerSettings(BaseModel):
    """An OpenAI-compatible server. The key never stands in a config: ``api_key_env`` names its variable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(default="", pattern=r"^(https?://.*)?$")
    """Up to and including ``/v1``, e.g. ``http://localhost:30000/v1``."""
    model: str = ""
    api_key_env: str = ""
    """Environment variable that holds the key; empty when the server wants none."""
    timeout_s: float = Field(default=60.0, gt=0)
    """For one answer."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    retries: int = Field(default=4, ge=0)


_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


def without_thinking(text: str) -> str:
    """``text`` without ``<think>`` blocks, stripped.

    Also where the opening tag stands in the prompt, so that the answer holds the closing one only (FAULTS.md
    14); a block that was never closed leaves nothing.
    """
    text = _THINKING.sub("", text)
    _, closed, rest = text.rpartition("</think>")
    if closed:
        text = rest
    return text.partition("<think>")[0].strip()
