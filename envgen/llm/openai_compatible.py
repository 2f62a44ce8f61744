"""A client for servers that speak OpenAI's ``/chat/completions``: SGLang, vLLM, llama.cpp, hosted ones.

Tried again, with back-off: refused or broken connections, time-outs, and the statuses 408, 409, 425, 429 and
5xx. Every other refusal is final. One client may serve many threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envgen.llm.backoff import Backoff
from envgen.llm.port import (
    ChatReply,
    ChatRequest,
    LLMBadReply,
    LLMRejected,
    LLMUnavailable,
    ServerSettings,
    without_thinking,
)

RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may go away by waiting."""
_SHOWN = 300
"""Characters of a server's answer that an error message repeats."""


class _Part(BaseModel):
    """Servers add fields of their own, which are none of our business."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Message(_Part):
    content: str | None = None


class _Choice(_Part):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Part):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(_Part):
    choices: tuple[_Choice, ...] = Field(min_length=1)
    model: str = ""
    usage: _Usage | None = None


class OpenAICompatibleClient:
    """`ChatClient` over HTTP. Close it, or use it as a context manager.

    ``transport`` and ``sleep`` are doors for tests. Raises LLMRejected when ``api_key_env`` names a variable
    that is not set.
    """

    def __init__(
        self,
        config: ServerSettings,
        *,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self._backoff = Backoff(config.retries)
        self._sleep = sleep
        headers: dict[str, str] = {}
        if config.api_key_env:
            key = os.environ.get(config.api_key_env, "")
            if not key:
                raise LLMRejected(
                    f"the environment variable {config.api_key_env} is not set; {config.base_url} needs it: "
                    "export it, or leave api_key_env empty for a server without keys"
                )
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(
            base_url=config.base_url.rstrip("/") + "/",
            headers=headers,
            timeout=httpx2.Timeout(config.timeout_s, connect=config.connect_timeout_s),
            transport=transport,
        )

    def __enter__(self) -> OpenAICompatibleClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def check(self) -> None:
        """Ask the server for its list of models once, so that a run fails at its start and not in its middle.

        Raises LLMUnavailable, LLMRejected; also when the server lists models and ``model`` is none of them.
        """
        answer = self._send("GET", "models", None, "models")
        try:
            rows: list[dict[str, Any]] = answer.json()["data"]
            names = [str(row["id"]) for row in rows]
        except (ValueError, KeyError, TypeError):
            return  # it is there; not every server lists what it has
        if names and self.config.model not in names:
            raise LLMRejected(
                f"{self.config.base_url}: got model {self.config.model!r}, expected one of "
                f"{', '.join(names[:8])}: set `model` to what the server offers"
            )

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop:
            body["stop"] = list(request.stop)
        if request.json_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.json_schema, "strict": True},
            }
        return self._read(self._send("POST", "chat/completions", body, request.key))

    def _send(self, method: str, path: str, body: dict[str, Any] | None, key: str) -> httpx2.Response:
        where = f"{self.config.base_url} ({self.config.model})"
        tries = self._backoff.retries + 1
        problem = ""
        for attempt in range(tries):
            asked_s = None
            try:
                answer = self._client.request(method, path, json=body)
            except httpx2.TimeoutException as error:
                problem = f"no answer in {self.config.timeout_s:g} s ({type(error).__name__})"
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    return answer
                status = answer.status_code
                if status not in RETRIED and status < 500:
                    raise LLMRejected(f"{where}: HTTP {status}: {_shown(answer.text)}; {_advice(status)}")
                problem = f"HTTP {status}: {_shown(answer.text)}"
                asked_s = _retry_after_s(answer)
            if attempt + 1 < tries:
                self._sleep(self._backoff.wait_s(attempt, key, asked_s))
        raise LLMUnavailable(
            f"{where}: {problem}, {tries} times; check that the server runs and is reachable there, or raise "
            "timeout_s or retries"
        )

    def _read(self, answer: httpx2.Response) -> ChatReply:
        where = f"{self.config.base_url} ({self.config.model})"
        try:
            completion = _Completion.model_validate_json(answer.content)
        except ValidationError as error:
            raise LLMBadReply(
                f"{where}: got {_shown(answer.text)}, expected a chat completion with `choices`; is this an "
                "OpenAI-compatible address, up to /v1?"
            ) from error
        choice = completion.choices[0]
        finish = choice.finish_reason or ""
        text = without_thinking(choice.message.content or "")
        if not text:
            raise LLMBadReply(
                f"{where}: the answer holds no text (finish_reason {finish!r}); "
                + ("raise max_tokens" if finish == "length" else "check the model's chat template")
            )
        usage = completion.usage or _Usage()
        return ChatReply(
            text=text,
            finish_reason=finish,
            model=completion.model,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )


def _shown(text: str) -> str:
    short = " ".join(text.split())
    return repr(short if len(short) <= _SHOWN else short[:_SHOWN] + "…")


def _advice(status: int) -> str:
    if status in (401, 403):
        return "check the key in the variable that api_key_env names"
    if status == 404:
        return "check base_url (it ends with /v1 on most servers) and model"
    return "check the model's name and its limits (context length, parameters)"


def _retry_after_s(answer: httpx2.Response) -> float | None:
    """Seconds from a Retry-After header; dates are left to the back-off."""
    try:
        return max(0.0, float(answer.headers.get("retry-after", "")))
    except ValueError:
        return None
