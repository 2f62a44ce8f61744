"""The SGLang rollout engine: a `Policy` over HTTP, ids in and out with log-probs, on one server or several.

`publish` gives every server one set of weights and proves that it holds them; `sample` sends the turns of a
call all at once, each to the server that has its session's prefix cached. What can go wrong and what follows:

- a request is wrong (empty, too long, an id outside the vocabulary, which would kill the server): PolicyError
  before anything is sent;
- a deadline passes: the request is aborted on the server and its output is ``stop == "abort"``; never tried
  again, since that would favour short answers;
- a server dies: its requests are tried again on another one, or on the same once it is back. It gets the
  current weights first. An answer from other weights is thrown away and asked again. Every attempt has a
  request id of its own, the earlier one is aborted, and one output is returned per request whatever the
  attempts: nothing enters the data twice;
- no server comes back within `start_timeout_s`: EngineLostError;
- an answer breaks the ledger (log-probs missing or of other tokens): LedgerError.

Unlike the embedded engine's, a sample is no function of (weights, ids, params, seed) unless the servers run
with --enable-deterministic-inference.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from autoforge_jax.config import SGLangConfig
from autoforge_jax.errors import PolicyError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.rollout.background import BackgroundLoop
from autoforge_jax.rollout.ledger import SessionContexts
from autoforge_jax.rollout.sglang_fleet import Fleet, Node, PublishReport
from autoforge_jax.rollout.sglang_http import GenerateReply, ServerDown, ServerRefused, ServerSlow
from autoforge_jax.rollout.sglang_reply import check_params, generate_body, to_output
from autoforge_jax.rollout.sglang_weights import PublishedWeights
from autoforge_jax.types import SampleOutput, SampleRequest

_ABORT_GRACE_S = 5.0
"""How long an aborted request may take to end before its connection is closed, which aborts it too."""


class SGLangEngine:
    """A `Policy` on SGLang servers. `publish` weights before the first `sample`; `close` at the end."""

    def __init__(
        self,
        config: SGLangConfig,
        model: Qwen3Config,
        *,
        max_length: int,
        start_server: Callable[[str], None] | None = None,
        start_folder: Path | None = None,
        asleep_file: Path | None = None,
    ) -> None:
        """max_length: tokens of a context at most, turn included. start_server: called with the url of a
        server that does not answer, as often as it does not; must return at once
        (`sglang_local.LocalServers`). start_folder: the model folder that the
        error about a missing server says to start it with; without it the published one. asleep_file: where
        to remember which servers gave their memory back (`rest`)."""
        if max_length < 2:
            raise PolicyError(f"max_length {max_length} is too small to sample anything")
        self.config, self.model, self.max_length = config, model, max_length
        self._loop = BackgroundLoop("sglang-engine")
        self._fleet = Fleet(config, model, max_length, start_server, start_folder, asleep_file)
        self._contexts = SessionContexts()
        self._rid_prefix = uuid.uuid4().hex[:12]
        self._rid_numbers = itertools.count()
        self._totals = dict.fromkeys(
            (
                "requests", "attempts", "timeouts", "confirmed_aborts", "aborts", "refused",
                "lost_connections", "stale_answers", "sampled_tokens", "prompt_tokens", "cached_tokens",
            ),
            0,
        )  # fmt: skip

    @property
    def version(self) -> int:
        """Version of the published weights; -1 before any."""
        return -1 if self._fleet.published is None else self._fleet.published.version

    def stats(self) -> dict[str, float]:
        """Counters since construction. `compiles` is 0: nothing is compiled here."""
        fleet = {"updates": self._fleet.updates, "live_sessions": len(self._fleet.homes)}
        return {**self._totals, **fleet, "compiles": 0}

    def publish(self, weights: PublishedWeights) -> PublishReport:
        """Make every server serve these weights from their folder, caches dropped, and prove it.

        Waits up to `start_timeout_s` for servers that are away; with several, one that stays away is left out
        until it is back. EngineLostError when none answers. WeightsError when a server refuses the folder,
        reports another version, holds other tensors, or serves another model.
        """
        return self._loop.run(self._fleet.publish(weights))

    def rest(self) -> int:
        """Make every server give its device's memory back, weights and KV cache, until weights are published
        or a turn is asked for; how many did. No turn may be under way.

        PolicyError when a server stays busy. Servers that are away are left alone.
        """
        return self._loop.run(self._fleet.rest())

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        """Sample one turn for each request; outputs in the order of the requests.

        PolicyError (no weights, the same session twice, an empty or full context, an id outside the
        vocabulary, settings that SGLang has no equal of) comes before anything is sent. LedgerError: a
        context that does not continue what its session has seen, or an answer that cannot be learned from.
        EngineLostError: no server.
        """
        if self._fleet.published is None:
            raise PolicyError("the engine has no weights yet; call publish(weights) first")
        self._check(requests)
        outputs = self._loop.run(self._sample_all(requests))
        for request, output in zip(requests, outputs, strict=True):
            if output.stop != "abort":
                self._contexts.extend(request.session_id, request.token_ids, output.token_ids)
        return outputs

    def submit(self, request: SampleRequest) -> Future[SampleOutput]:
        """Begin one turn, as `AsyncPolicy` has it: errors of the request at once, those of the server in the
        future. Cancelling it aborts the request on the server."""
        if self._fleet.published is None:
            raise PolicyError("the engine has no weights yet; call publish(weights) first")
        self._check([request])

        async def turn() -> SampleOutput:
            output = await self._sample_one(request)
            if output.stop != "abort":
                self._contexts.extend(request.session_id, request.token_ids, output.token_ids)
            return output

        return self._loop.submit(turn())

    def release(self, session_id: str) -> None:
        """Forget a session; unknown ones are fine. The server's cache is its own business."""
        self._contexts.release(session_id)
        self._fleet.release(session_id)

    def close(self) -> None:
        """Close all connections. Servers go on."""
        self._loop.run(self._fleet.close())
        self._loop.close()

    # ------------------------------------------------------------------------------------------ requests
    def _check(self, requests: Sequence[SampleRequest]) -> None:
        seen: set[str] = set()
        vocabulary = self.model.vocab_size
        for request in requests:
            name, ids = request.session_id, request.token_ids
            where = f"session {name!r}"
            if name in seen:
                raise PolicyError(
                    f"{where} stands twice in one sample call; a session has one turn at a time"
                )
            seen.add(name)
            if not ids:
                raise PolicyError(f"{where}: empty context; there is nothing to continue")
            if min(ids) < 0 or max(ids) >= vocabulary:
                bad = next(i for i in ids if not 0 <= i < vocabulary)
                raise PolicyError(
                    f"{where}: id {bad} is outside the vocabulary of {vocabulary}; is this another model's "
                    "tokenizer?"
                )
            if len(ids) >= self.max_length:
                raise PolicyError(
                    f"{where}: context of {len(ids)} tokens leaves no room in max_length {self.max_length}; "
                    "end the episode before its next turn or raise max_length"
                )
            check_params(request.params, where)
            self._contexts.check(name, ids)

    async def _sample_all(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        tasks = [asyncio.ensure_future(self._sample_one(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:  # each aborts what it has sent
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _sample_one(self, request: SampleRequest) -> SampleOutput:
        published = self._fleet.published
        assert published is not None
        self._totals["requests"] += 1
        most = min(request.params.max_turn_tokens, self.max_length - len(request.token_ids))
        reason = ""
        for _ in range(self.config.attempts):
            node = await self._fleet.home(request.session_id)
            epoch = node.epoch
            self._totals["attempts"] += 1
            try:
                async with node.slots:
                    reply = await self._generate(node, request, most)
            except ServerDown as error:
                self._totals["lost_connections"] += 1
                self._fleet.distrust(node, epoch)
                reason = str(error)
                continue
            except ServerSlow as error:
                self._totals["timeouts"] += 1
                return replace(self._aborted(str(error)), timed_out=True)
            except ServerRefused as error:
                self._totals["refused"] += 1
                return self._aborted(str(error))
            meta = reply.meta_info
            if meta.finish_reason.type == "abort":
                self._totals["aborts"] += 1
                return self._aborted(f"{node.server.url} aborted the request: {meta.finish_reason.message}")
            versions = {span.version for span in meta.weight_versions} | {meta.weight_version}
            if versions != {published.tag}:
                self._totals["stale_answers"] += 1
                self._fleet.distrust(node, epoch)
                reason = (
                    f"{node.server.url} answered from weights {sorted(versions)}, expected {published.tag}; "
                    "was it restarted, or does somebody else update it?"
                )
                continue
            output = to_output(reply, request, most, self.model.vocab_size, published.version)
            self._totals["sampled_tokens"] += len(output.token_ids)
            self._totals["prompt_tokens"] += meta.prompt_tokens
            self._totals["cached_tokens"] += meta.cached_tokens
            return output
        return self._aborted(f"given up after {self.config.attempts} attempts, the last: {reason}")

    def _aborted(self, reason: str) -> SampleOutput:
        return SampleOutput((), (), "abort", self.version, reason)

    async def _generate(self, node: Node, request: SampleRequest, max_new_tokens: int) -> GenerateReply:
        """One attempt, with its deadline. Whatever ends it early, the server is told to stop."""
        rid = f"{self._rid_prefix}-{next(self._rid_numbers)}"
        call = asyncio.ensure_future(node.server.generate(generate_body(request, rid, max_new_tokens)))
        try:
            await asyncio.wait({call}, timeout=self.config.request_timeout_s)
        except asyncio.CancelledError:
            await asyncio.shield(self._abort(node, rid, call))
            raise
        if call.done() and not isinstance(call.exception(), ServerDown):
            return call.result()
        broken = call.done()
        await self._abort(node, rid, call)
        if broken:
            return call.result()  # raises ServerDown
        raise ServerSlow(
            f"{node.server.url}/generate: no answer in {self.config.request_timeout_s:g} s "
            "(rollout.sglang.request_timeout_s); the request was aborted"
        )

    async def _abort(self, node: Node, rid: str, call: asyncio.Future[GenerateReply]) -> None:
        try:
            await self._fleet.abort(node, rid)
        except PolicyError:
            pass  # gone or deaf: closing the connection is what is left
        else:
            await asyncio.wait({call}, timeout=_ABORT_GRACE_S)
            if call.done() and call.exception() is None:
                self._totals["confirmed_aborts"] += call.result().meta_info.finish_reason.type == "abort"
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
