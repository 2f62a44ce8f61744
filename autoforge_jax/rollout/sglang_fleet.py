"""The servers of an SGLang engine: which are ready, with which weights, and which session lives where.

A server is ready when it was seen to serve the run's model with the published weights and nothing has broken
since. There is one way to get there, taken at the start, at a weight update and after a server's death alike:
`Fleet._make_ready`. All coroutines run in the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autoforge_jax.config import SGLangConfig
from autoforge_jax.errors import EngineLostError, PolicyError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.rollout.sglang_admit import admit
from autoforge_jax.rollout.sglang_http import ServerDown, ServerRefused, ServerSlow, SGLangServer
from autoforge_jax.rollout.sglang_weights import PublishedWeights, compare_checksums

_POLL_S = 0.5
_AWAY_POLL_S = 5.0
"""Behind a router: how often servers that are away are asked while others work."""


class _DiedLoading(ServerDown):
    """The connection broke while the server was loading weights."""


@dataclass
class Node:
    """One server and what is known of it."""

    server: SGLangServer
    slots: asyncio.Semaphore
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tag: str = ""
    """Of the weights that it was last seen to hold."""
    trusted: bool = False
    """It was seen to be the right server, holding `tag`, and nothing has broken since."""
    epoch: int = 0
    """Counts how often it was made ready: a failure speaks of the epoch that it happened in."""
    sessions: set[str] = field(default_factory=set)
    asleep: str = ""
    """Tag of the weights that it held when it gave its memory back; empty while it is awake."""
    hollow: bool = False
    """Awake again, but its weights are noise until a load has succeeded, whatever version it says it has."""


@dataclass(frozen=True)
class PublishReport:
    """What became of one `publish`."""

    servers: int
    updated: int
    """Servers that loaded; the others held these weights already."""
    compared: int
    """Tensors whose checksum was compared, over all servers."""
    seconds: float


class Fleet:
    """All servers of an engine."""

    def __init__(
        self,
        config: SGLangConfig,
        model: Qwen3Config,
        max_length: int,
        start_server: Callable[[str], None] | None,
        start_folder: Path | None,
        asleep_file: Path | None = None,
    ) -> None:
        """Arguments: `SGLangEngine`. Nothing is connected yet."""
        self._asleep_file = asleep_file
        self.config, self._model, self._max_length = config, model, max_length
        self._start_server, self._start_folder = start_server, start_folder
        self.published: PublishedWeights | None = None
        self.homes: dict[str, Node] = {}
        """Session -> its server."""
        self.updates = 0
        """Weight updates, over all servers."""
        self._router: Node | None = None
        """Not one of the nodes: it holds no weights."""
        self._asked_away = 0.0
        if config.router:
            self._router = self._new_node(config.router, config.requests_per_server * len(config.urls))
        self._nodes = [self._new_node(url, config.requests_per_server) for url in config.urls]
        if asleep_file is not None and asleep_file.is_file():  # left by a trainer that was killed meanwhile
            self._recall_asleep(asleep_file)

    def _recall_asleep(self, asleep_file: Path) -> None:
        """Which servers sleep, or hold noise, from what `_note_asleep` wrote."""
        try:
            known = json.loads(asleep_file.read_text(encoding="utf-8"))
            for node in self._nodes:
                node.asleep = str(known["asleep"].get(node.server.url, ""))
                node.hollow = node.server.url in known["hollow"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(
                f"{asleep_file}, which says which servers gave their memory back, is damaged ({error!r}): "
                "restart the SGLang servers and delete it"
            ) from error

    def _new_node(self, url: str, in_flight: int) -> Node:
        patience = self.config.connect_timeout_s
        server = SGLangServer(url, connect_timeout_s=patience, call_timeout_s=self.config.call_timeout_s)
        return Node(server, asyncio.Semaphore(in_flight))

    async def close(self) -> None:
        """Close the connections."""
        for node in (*self._nodes, *([self._router] if self._router else ())):
            await node.server.close()

    async def abort(self, node: Node, rid: str) -> None:
        """Stop a request that was sent to `node`. A router does not say which server has it, and does not
        pass the abort on: all are told. Raises the last of what went wrong when none could be."""
        if node is not self._router:
            return await node.server.abort(rid)
        results = await asyncio.gather(
            *(other.server.abort(rid) for other in self._nodes), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, BaseException)]
        if len(failed) == len(results):
            raise failed[-1]
        return None

    def release(self, session_id: str) -> None:
        """Forget a session."""
        node = self.homes.pop(session_id, None)
        if node is not None:
            node.sessions.discard(session_id)

    def distrust(self, node: Node, epoch: int) -> None:
        """Something broke with the server since it was made ready the `epoch`-th time: ask it before it is
        used again. Which server it was does not show behind a router: then all are asked."""
        if node.epoch == epoch:
            for other in self._nodes if node is self._router else (node,):
                other.trusted = False

    def _is_ready(self, node: Node) -> bool:
        return self.published is not None and node.trusted and node.tag == self.published.tag

    async def home(self, session_id: str) -> Node:
        """The session's server, ready to sample: its own while that lives, else the ready one with the fewest
        sessions, else the first to come back. With a router it is that."""
        if self._router is not None:
            await self._ready_behind(self._router)
            return self._router
        node = self.homes.get(session_id)
        if node is None or not self._is_ready(node):
            ready = [other for other in self._nodes if self._is_ready(other)] or await self._first_ready()
            if node is not None:
                node.sessions.discard(session_id)
            node = min(ready, key=lambda other: len(other.sessions))
            node.sessions.add(session_id)
            self.homes[session_id] = node
        return node

    async def _first_ready(self) -> list[Node]:
        patience = self.config.start_timeout_s
        tasks = [asyncio.ensure_future(self._make_ready(node, patience)) for node in self._nodes]
        pending: set[asyncio.Future[int]] = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not isinstance(task.exception(), EngineLostError):
                        task.result()
                        return [node for node in self._nodes if self._is_ready(node)]
            raise EngineLostError("\n".join(str(task.exception()) for task in tasks))
        finally:
            for task in pending:
                task.cancel()

    async def _ready_behind(self, router: Node) -> None:
        """Every server that answers is ready, and the router has one that it sends to. It may send to any
        server: one that came back with other weights must get ours before it samples."""
        async with router.lock:
            away = [node for node in self._nodes if not self._is_ready(node)]
            some = len(away) < len(self._nodes)
            if not away or (some and time.monotonic() - self._asked_away < _AWAY_POLL_S):
                return
            self._asked_away = time.monotonic()
            results = await asyncio.gather(
                *(self._make_ready(node, 0.0) for node in away), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, EngineLostError):
                    raise result
            if not some and all(isinstance(result, EngineLostError) for result in results):
                await self._first_ready()
            await self._wait_for(router)
            router.epoch += 1

    async def _wait_for(self, router: Node) -> None:
        give_up = time.monotonic() + self.config.start_timeout_s
        while True:
            try:
                return await router.server.routes()
            except (ServerDown, ServerSlow) as error:
                if time.monotonic() >= give_up:
                    raise EngineLostError(
                        f"the router at {router.server.url} sends to no server ({error}; waited "
                        f"{self.config.start_timeout_s:g} s), although {', '.join(self.config.urls)} "
                        "answer or some of them do: are they its --worker-urls?"
                    ) from error
                await asyncio.sleep(_POLL_S)

    async def publish(self, weights: PublishedWeights) -> PublishReport:
        """`SGLangEngine.publish`."""
        began = time.perf_counter()
        first = self.published is None
        self.published = weights
        before = self.updates
        # One that broke since is asked once, and otherwise left out until it is back: the others can work.
        alive = [node for node in self._nodes if node.trusted or node.asleep]
        patience = {
            id(node): self.config.start_timeout_s if first or node in alive or not alive else 0.0
            for node in self._nodes
        }
        results = await asyncio.gather(
            *(self._make_ready(node, patience[id(node)]) for node in self._nodes), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, EngineLostError):
                raise result
        ready = [node for node in self._nodes if self._is_ready(node)] or await self._first_ready()
        return PublishReport(
            servers=len(ready),
            updated=self.updates - before,
            compared=sum(result for result in results if isinstance(result, int)),
            seconds=time.perf_counter() - began,
        )

    async def rest(self) -> int:
        """`SGLangEngine.rest`."""
        return sum(await asyncio.gather(*(self._put_to_sleep(node) for node in self._nodes)))

    async def _put_to_sleep(self, node: Node) -> int:
        """1 when it gave its memory back; 0 when it had already, or when nothing is known of it: it holds
        nothing of ours, or is gone."""
        async with node.lock:
            if node.asleep or not node.trusted:
                return 0
            try:
                await self._settle(node)
                node.asleep, node.trusted = node.tag, False
                self._remember()
                await node.server.release_memory(self.config.update_timeout_s)
            except (ServerDown, ServerSlow):
                node.trusted = False  # asked before it is used again
                return 0
            return 1

    async def _settle(self, node: Node) -> None:
        """Requests that were given up may still run for a moment."""
        give_up = time.monotonic() + self.config.call_timeout_s
        while True:
            try:
                return await node.server.settle()
            except ServerRefused as error:
                if time.monotonic() >= give_up:
                    raise PolicyError(
                        f"{node.server.url} is still at work {self.config.call_timeout_s:g} s after its last "
                        f"episode ended, so its memory cannot be shared ({error}); does somebody else use it?"
                    ) from error
            await asyncio.sleep(_POLL_S)

    async def _wake(self, node: Node) -> None:
        """Memory back to a server that gave it away; not to one that was started anew since, which has its
        own."""
        if node.asleep:
            info = await node.server.model_info()
            if info.weight_version == node.asleep:
                await node.server.resume_memory(self.config.update_timeout_s)
                node.hollow = True
            node.asleep = ""
            self._remember()

    def _remember(self) -> None:
        """Which servers sleep, and which hold noise: a trainer that is killed now has to know when it is
        started again."""
        if self._asleep_file is not None:
            known = {
                "asleep": {node.server.url: node.asleep for node in self._nodes if node.asleep},
                "hollow": [node.server.url for node in self._nodes if node.hollow],
            }
            partial = self._asleep_file.with_name(f"{self._asleep_file.name}.partial")
            partial.write_text(json.dumps(known), encoding="utf-8")
            os.replace(partial, self._asleep_file)

    async def _make_ready(self, node: Node, patience_s: float) -> int:
        """Wait until the server answers, check that it serves our model, give it the published weights when
        it has others, and prove that they arrived. The number of tensors compared; 0 when it was ready
        before."""
        async with node.lock:
            published = self.published
            assert published is not None
            give_up = time.monotonic() + patience_s
            died = 0
            while not self._is_ready(node):
                try:
                    await self._wake(node)
                    if not node.trusted and not node.hollow:
                        await node.server.health()  # takes a second or more: it samples a token
                    return await self._update(node, published)
                except ServerRefused as error:
                    raise WeightsError(f"weights {published.tag} were not taken: {error}") from error
                except (ServerDown, ServerSlow) as error:
                    node.trusted = False
                    died += isinstance(error, _DiedLoading)
                    if died > 1:
                        raise WeightsError(
                            f"{node.server.url} died twice while it took the weights in {published.folder}: "
                            f"{error}. Its log says why"
                        ) from error
                    if self._start_server is not None:
                        await asyncio.to_thread(self._start_server, node.server.url)
                    if time.monotonic() >= give_up:
                        raise EngineLostError(self._lost_words(node, published, error)) from error
                    await asyncio.sleep(_POLL_S)
            return 0

    async def _update(self, node: Node, published: PublishedWeights) -> int:
        info = await node.server.model_info()
        if not node.trusted or info.weight_version != node.tag:
            sleeps = self.config.share_device
            await admit(node.server, info, self._model, self._max_length, sleeps=sleeps)
        compared = None
        # The same version: left by a publish of the same bytes; is it what it says?
        if info.weight_version == published.tag and not node.hollow:
            with contextlib.suppress(WeightsError):
                compared = await self._compare(node, published)
        if compared is None:
            await self._load(node, published)
            compared = await self._compare(node, published)
        node.tag, node.trusted = published.tag, True
        if node.hollow:
            node.hollow = False
            self._remember()
        node.epoch += 1
        return compared

    async def _load(self, node: Node, published: PublishedWeights) -> None:
        server = node.server
        try:
            await server.update_weights(published.folder, published.tag, self.config.update_timeout_s)
        except ServerDown as error:
            raise _DiedLoading(str(error)) from error
        self.updates += 1
        info = await server.model_info()
        if info.weight_version != published.tag:
            raise WeightsError(
                f"{server.url} serves weights {info.weight_version!r} after an update to {published.tag!r}; "
                "does somebody else update it?"
            )

    async def _compare(self, node: Node, published: PublishedWeights) -> int:
        if self.config.verify == "version":
            return 0
        ranks = await node.server.checksums(self.config.update_timeout_s)
        return await asyncio.to_thread(compare_checksums, ranks, published, node.server.url)

    def _lost_words(self, node: Node, published: PublishedWeights, error: PolicyError) -> str:
        host, _, port = node.server.url.rpartition("//")[2].rpartition(":")
        return (
            f"no SGLang server at {node.server.url} ({error}; waited up to {self.config.start_timeout_s:g} "
            "s). Start it, then run the same command again, it goes on where it stood: python -m "
            "sglang.launch_server --model-path "
            f"{self._start_folder or published.folder} --host {host or '127.0.0.1'} --port {port} "
            "(docs/sglang.md)"
        )
