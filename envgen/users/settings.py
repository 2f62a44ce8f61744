"""Which user speaks and which judge reads, as settings of a config file, and the parts made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envgen.llm.port import ChatClient, ServerSettings
from envgen.runtime.context import mix
from envgen.types import Task
from envgen.users.faults import FaultInjectedUser
from envgen.users.judge import ModelJudge, rules_then_model
from envgen.users.model import ModelUser
from envgen.users.port import FAULT_KINDS, FaultKind, User, UserErrorHook
from envgen.users.rules import judge_by_rules
from envgen.users.scripted import ScriptedUser


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _need_server(kind: str, server: ServerSettings) -> None:
    if not (server.base_url and server.model):
        raise ValueError(
            f"kind {kind!r} needs server.base_url and server.model, got {server.base_url!r} and "
            f"{server.model!r}; set both, or choose a kind without a model"
        )


class UserSettings(_Settings):
    """Who speaks as the user."""

    kind: Literal["scripted", "varied", "model"] = "scripted"
    """`scripted`: the tasks' own sentences; `varied`: the same facts in wording drawn per episode; `model`: a
    language model behind `server`."""
    temperature: float = Field(default=0.7, ge=0)
    max_tokens: int = Field(default=400, ge=16)
    """Of one turn, thinking included."""
    retries: int = Field(default=2, ge=0)
    """Further tries at a turn that breaks the facts or holds no text; then the episode ends with a marked
    user error."""
    fault_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of episodes whose user makes one mistake on purpose: for trials of the judge, never for a real
    run."""
    fault_kinds: tuple[FaultKind, ...] = FAULT_KINDS
    server: ServerSettings = ServerSettings()

    @model_validator(mode="after")
    def _complete(self) -> UserSettings:
        if self.kind == "model":
            _need_server(self.kind, self.server)
        if self.fault_rate and not self.fault_kinds:
            raise ValueError("fault_rate is above 0 and fault_kinds is empty; name at least one kind")
        return self


class JudgeSettings(_Settings):
    """Who reads finished transcripts for user errors (MEU)."""

    kind: Literal["none", "rules", "model", "rules_then_model"] = "none"
    """`none` with the scripted user, which makes no errors."""
    max_tokens: int = Field(default=600, ge=16)
    structured: bool = True
    """Ask the server to constrain the answer to the schema; off for servers that cannot."""
    server: ServerSettings = ServerSettings()

    @model_validator(mode="after")
    def _complete(self) -> JudgeSettings:
        if self.kind in ("model", "rules_then_model"):
            _need_server(self.kind, self.server)
        return self


UserMaker = Callable[[Task, int], User]
"""(task, episode seed) -> a fresh user."""
ClientMaker = Callable[[ServerSettings], ChatClient]


def http_client(server: ServerSettings) -> ChatClient:
    """A client for ``server`` that has answered once. Raises LLMError when it does not, or refuses."""
    # Imported here: most runs need no HTTP client.
    from envgen.llm.openai_compatible import OpenAICompatibleClient

    client = OpenAICompatibleClient(server)
    client.check()
    return client


def user_maker(settings: UserSettings, connect: ClientMaker = http_client) -> UserMaker:
    """What makes the users of a run. Connects once, now; raises LLMError when a server cannot be used."""
    client = connect(settings.server) if settings.kind == "model" else None

    def make(task: Task, seed: int) -> User:
        if client is not None:
            user: User = ModelUser(
                task,
                client,
                seed=seed,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                retries=settings.retries,
            )
        else:
            user = ScriptedUser(task, seed=None if settings.kind == "scripted" else seed)
        drawn = mix(task.seed, seed, 77)
        if settings.fault_rate and drawn < settings.fault_rate * 2**32:
            kind = settings.fault_kinds[mix(drawn, 1) % len(settings.fault_kinds)]
            return FaultInjectedUser(user, task, kind, seed=seed)
        return user

    return make


def make_judge(settings: JudgeSettings, connect: ClientMaker = http_client) -> UserErrorHook | None:
    """The hook for ``open_env``, or None. Connects now; raises LLMError when a server cannot be used."""
    if settings.kind == "none":
        return None
    if settings.kind == "rules":
        return judge_by_rules
    model = ModelJudge(
        connect(settings.server), max_tokens=settings.max_tokens, structured=settings.structured
    )
    return model if settings.kind == "model" else rules_then_model(model)
