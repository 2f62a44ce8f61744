"""The policy port: what an episode needs of an engine, and nothing else (DESIGN.md §10).

Engines: `rollout.engine_jax.JaxEngine` (embedded), `rollout.engine_sglang.SGLangEngine` (servers over HTTP),
and the shipped double `rollout.scripted.ScriptedPolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from autoforge_jax.types import SampleOutput, SampleRequest


@runtime_checkable
class Policy(Protocol):
    """Samples turns. Ids in, ids and log-probs out; messages are not its business."""

    @property
    def version(self) -> int:
        """Version of the weights that sample now; rides on every output."""
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        """One turn for every request, in the order of the requests.

        Requests of one call have distinct `session_id`s. One request that fails alone is answered with
        ``stop == "abort"``. Raises PolicyError when the whole call failed (the caller releases its
        sessions before it asks again), LedgerError when a session's context is not the earlier one plus more.
        """
        ...

    def release(self, session_id: str) -> None:
        """Forget a session (its cache); unknown sessions are fine."""
        ...


@runtime_checkable
class AsyncPolicy(Policy, Protocol):
    """A policy that also takes turns one by one and answers each when it is done."""

    def submit(self, request: SampleRequest) -> Future[SampleOutput]:
        """Begin one turn. Errors as `sample`'s, at once or in the future; cancelling the future aborts the
        turn. A session has one turn at a time."""
        ...


class Engine(Policy, Protocol):
    """A policy that a training run drives; how it gets its weights is between it and its weight sync."""

    def stats(self) -> dict[str, float]:
        """Counters since construction; `compiles` among them."""
        ...
