"""The routes of one SGLang server that the trainer uses, and their replies, checked where they enter.

Written against SGLang 0.5.23 and tested against it (tests/sglang). Failures come in three kinds, because
three different things must follow:

    PolicyError
    ├── ServerDown      no answer, or a broken one: the server is gone or starting; wait, restore, try again
    ├── ServerSlow      no answer within the deadline: abort, never try again
    └── ServerRefused   the server says no, and why: trying again changes nothing
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from autoforge_jax.errors import PolicyError

_KEEPALIVE_S = 2.0
"""Below uvicorn's 5 s, so that no request is sent on a connection that the server is just closing."""


class ServerDown(PolicyError):
    """The server does not answer, or breaks off."""


class ServerSlow(PolicyError):
    """The deadline passed."""


class ServerRefused(PolicyError):
    """The server answered with an error."""


class _Reply(BaseModel):
    # Other fields come and go between versions of the server; those named here must be right.
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class FinishReason(_Reply):
    """Why a request ended."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    """The stop id (or string) that ended it."""
    message: str = ""


class VersionSpan(_Reply):
    """Tokens [start, end) of an answer came from these weights."""

    version: str
    start: int
    end: int


class GenerateMeta(_Reply):
    """What `/generate` says beside the ids."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    weight_version: str
    weight_versions: tuple[VersionSpan, ...] = ()
    output_token_logprobs: tuple[tuple[float | None, int, str | None], ...] | None = None


class GenerateReply(_Reply):
    """One answer of `/generate`."""

    output_ids: tuple[int, ...]
    meta_info: GenerateMeta


class ModelInfo(_Reply):
    """`/model_info`: what serves now; moves with weight updates."""

    model_path: str
    tokenizer_path: str = ""
    weight_version: str
    model_type: str | None = None
    preferred_sampling_params: Any = None


class ServerInfo(_Reply):
    """`/server_info`: how it was started."""

    version: str = ""
    device: str | None = None
    dtype: str | None = None
    max_req_input_len: int
    """Tokens of a context at most, less one."""
    speculative_algorithm: str | None = None
    allow_auto_truncate: bool = False
    enable_memory_saver: bool = False


class _Parallelism(_Reply):
    role: str = "target"
    rank: int = 0
    size: int = 1


class RankChecksums(_Reply):
    """`/weights_checker`: tensor name (SGLang's, fused) -> checksum, of one rank."""

    checksums: dict[str, str]
    parallelism_info: tuple[_Parallelism, ...]
    """Where these tensors live: one entry, unless the model is sharded."""


class _Checksums(_Reply):
    success: bool
    message: str = ""
    ranks: tuple[RankChecksums, ...] = ()


class _Updated(_Reply):
    success: bool
    message: str = ""


R = TypeVar("R", bound=_Reply)


class SGLangServer:
    """HTTP client of one server. Every method raises ServerDown, ServerSlow or ServerRefused."""

    def __init__(self, url: str, *, connect_timeout_s: float, call_timeout_s: float) -> None:
        """call_timeout_s: deadline of the short calls (info, abort, health)."""
        self.url = url.rstrip("/")
        self._call_timeout_s = call_timeout_s
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            # The deadline of a call is set around it; a silent socket is no sign of anything here.
            timeout=httpx2.Timeout(None, connect=connect_timeout_s),
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_S),
            trust_env=False,  # a proxy of the environment has no business between trainer and server
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def generate(self, body: Mapping[str, Any]) -> GenerateReply:
        """One answer. No deadline here: the caller must abort what it gives up."""
        return await self._parsed(GenerateReply, "POST", "/generate", body, None)

    async def abort(self, rid: str) -> None:
        """Stop a request; unknown ones are fine."""
        await self._call("POST", "/abort_request", {"rid": rid}, self._call_timeout_s)

    async def health(self) -> None:
        """Returns when the server has just produced a token."""
        await self._call("GET", "/health", None, self._call_timeout_s)

    async def routes(self) -> None:
        """Of a router: returns when it has a server that it sends to."""
        await self._call("GET", "/readiness", None, self._call_timeout_s)

    async def model_info(self) -> ModelInfo:
        """Which weights serve now."""
        return await self._parsed(ModelInfo, "GET", "/model_info", None, self._call_timeout_s)

    async def server_info(self) -> ServerInfo:
        """How the server was started."""
        return await self._parsed(ServerInfo, "GET", "/server_info", None, self._call_timeout_s)

    async def update_weights(self, folder: Path, weight_version: str, timeout_s: float) -> None:
        """Load a folder's weights, drop the prefix cache, and serve under `weight_version`. Waits for
        requests that run. The folder must be whole: the server answers yes to missing tensors and dies of
        wrong shapes.
        """
        body = {"model_path": str(folder), "weight_version": weight_version, "flush_cache": True}
        reply = await self._parsed(_Updated, "POST", "/update_weights_from_disk", body, timeout_s)
        if not reply.success:
            raise ServerRefused(f"{self.url}/update_weights_from_disk: {reply.message}")

    async def settle(self) -> None:
        """Stop what still runs and empty the prefix cache. ServerRefused while anything is running."""
        await self._call("POST", "/abort_request", {"rid": "", "abort_all": True}, self._call_timeout_s)
        await self._call("POST", "/flush_cache", None, self._call_timeout_s)

    async def release_memory(self, timeout_s: float) -> None:
        """Give the device's memory back: weights and KV cache are gone. The server must be idle (`settle`):
        a busy one dies of this, and so does one that samples before `resume_memory`."""
        await self._call("POST", "/release_memory_occupation", {}, timeout_s)

    async def resume_memory(self, timeout_s: float) -> None:
        """Take the memory again; weights hold noise until they are loaded. A server that has not released
        any dies of this."""
        await self._call("POST", "/resume_memory_occupation", {}, timeout_s)

    async def checksums(self, timeout_s: float) -> tuple[RankChecksums, ...]:
        """A checksum for every tensor that the server holds."""
        reply = await self._parsed(_Checksums, "POST", "/weights_checker", {"action": "checksum"}, timeout_s)
        if not reply.success:
            raise ServerRefused(f"{self.url}/weights_checker: {reply.message}")
        return reply.ranks

    async def _parsed(
        self, kind: type[R], method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> R:
        content = await self._call(method, path, body, timeout_s)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
                for fault in error.errors()[:3]
            )
            raise ServerRefused(
                f"{self.url}{path} answered what this client does not understand ({faults}); is it SGLang "
                "0.5.23?"
            ) from error

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> bytes:
        where = f"{self.url}{path}"
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(method, path, json=body)
        except TimeoutError as error:
            raise ServerSlow(f"{where}: no answer in {timeout_s:g} s") from error
        except httpx2.TransportError as error:
            raise ServerDown(f"{where}: {type(error).__name__} {error}".rstrip()) from error
        if response.status_code in (502, 503, 504):
            raise ServerDown(f"{where}: {response.status_code}, not ready")
        if response.status_code != 200:
            raise ServerRefused(f"{where}: {response.status_code} {response.text[:400]}")
        return response.content
