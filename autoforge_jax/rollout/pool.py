"""Many episodes at once: Env × Policy -> Trajectory, slots kept full, every failure a value.

`EpisodePool.advance` moves whatever can move: opens episodes while there are slots, samples the turns that
are due, lets environments answer, grades what has ended. Two kinds of engines: one that takes all due turns
in one call (embedded: a batch on the device), and one that takes turns one by one and answers each when it
is done (`AsyncPolicy`, SGLang), so that no episode waits for another. Seeds are functions of (run seed,
purpose, step, task, sample, turn): scheduling cannot change a trajectory.

Only a broken ledger or port contract (LedgerError), a lost engine or a wrong config stops the run. A deadline
that passes ends one episode with StopReason.TIMEOUT.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Literal

from autoforge_jax.config import RolloutConfig
from autoforge_jax.errors import ConfigError, LedgerError, PolicyError
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits
from autoforge_jax.rollout.live import LiveEpisode, PartialEpisode
from autoforge_jax.rollout.policy import AsyncPolicy, Policy
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.workers import Workers
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams, Trajectory
from envgen.interface import Message, StopReason, step_all

_LOOK_UP_S = 0.5
"""Longest wait in one go: deadlines of calls that have begun since, and Ctrl-C, are seen that soon."""
_GATHER_S = 0.02
"""After one answer came: how long to look for others, so that an engine that samples in batches gets more."""


@dataclass(frozen=True)
class Deadlines:
    """Wall-clock limits in seconds; 0 = none. `RolloutConfig` says what each is for."""

    turn_s: float = 0.0
    environment_s: float = 0.0
    episode_s: float = 0.0

    @classmethod
    def of(cls, config: RolloutConfig) -> Deadlines:
        """Those of a rollout section."""
        return cls(config.turn_timeout_s, config.environment_timeout_s, config.episode_timeout_s)


@dataclass
class _Slot:
    """A live episode and what it waits for."""

    episode: LiveEpisode
    began: float
    waits_for: Literal["sampling", "environment", "grading", ""] = ""
    future: Future[Any] | None = None
    since: float = 0.0
    request: SampleRequest | None = None


class EpisodePool:
    """Jobs in, trajectories out, in the order in which they end. Not for several threads at once."""

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        *,
        sampling: SamplingParams,
        limits: EpisodeLimits,
        slots: int,
        conditions: Conditions | None = None,
        deadlines: Deadlines = Deadlines(),
    ) -> None:
        """slots: episodes that live at a time. `sampling` gives temperature, top_p, top_k; its other fields
        come from `limits` and the renderer."""
        if slots < 1:
            raise ConfigError(f"slots is {slots}, expected at least 1")
        self._policy, self._renderer = policy, renderer
        self._one_by_one = policy if isinstance(policy, AsyncPolicy) else None
        self._sampling, self._limits, self._slots = sampling, limits, slots
        self._conditions = conditions or Conditions()
        self._deadlines = deadlines
        self._workers = Workers(self._conditions.workers)
        self._waiting: deque[EpisodeJob | PartialEpisode] = deque()
        self._live: dict[str, _Slot] = {}
        self._names: set[str] = set()
        self._done: list[tuple[EpisodeJob, Trajectory]] = []
        self._sampling_allowed = True
        self.restarted = 0
        """Episodes from a checkpoint that did not come out the same and began anew."""

    def add(self, jobs: Iterable[EpisodeJob | PartialEpisode]) -> None:
        """Queue episodes. ConfigError when one has the session of another that is not over."""
        for job in jobs:
            name = (job.job if isinstance(job, PartialEpisode) else job).session_id
            if name in self._names:
                raise ConfigError(
                    f"two jobs share the session {name!r}; give them different sample_index or step"
                )
            self._names.add(name)
            self._waiting.append(job)

    @property
    def unfinished(self) -> int:
        """Episodes that are queued or live."""
        return len(self._waiting) + len(self._live) + len(self._done)

    @property
    def live(self) -> int:
        """Episodes in slots."""
        return len(self._live)

    def advance(self) -> list[tuple[EpisodeJob, Trajectory]]:
        """Move what can move and return what ended; when nothing can, wait for a moment (at most half a
        second) and see again. Empty-handed is normal."""
        self._fill()
        if not (self._settle() | self._sample() | self._settle()) and self._live:
            self._wait()
            self._settle()
        self._fill()
        done, self._done = self._done, []
        return done

    def drain(self) -> list[tuple[EpisodeJob, Trajectory]]:
        """Sample no further turn and wait until nothing is under way: engine and environments stand still.
        What ended meanwhile is returned."""
        self._sampling_allowed = False
        try:
            while self._settle() or any(slot.future is not None for slot in self._live.values()):
                if any(slot.future is not None for slot in self._live.values()):
                    self._wait()
        finally:
            self._sampling_allowed = True
        done, self._done = self._done, []
        return done

    def forget_sessions(self) -> None:
        """Let the engine forget all live sessions; their contexts are sent whole with the next turn."""
        for name in self._live:
            self._policy.release(name)

    def partials(self) -> list[EpisodeJob | PartialEpisode]:
        """All unfinished episodes, for a checkpoint; call `drain` first. Live ones come first."""
        busy = [name for name, slot in self._live.items() if slot.future is not None]
        if busy:
            raise ConfigError(f"episodes {busy[:3]} are under way; drain() before partials()")
        return [*(slot.episode.partial() for slot in self._live.values()), *self._waiting]

    def close(self) -> None:
        """After an error or Ctrl-C too: cancel what is under way; the engine keeps no orphan cache."""
        for slot in self._live.values():
            if slot.future is not None and slot.waits_for == "sampling":
                slot.future.cancel()
        self._workers.close()
        self.forget_sessions()
        self._live.clear()
        self._waiting.clear()

    # ------------------------------------------------------------------------------------------ moving
    def _fill(self) -> None:
        while self._waiting and len(self._live) < self._slots:
            item = self._waiting.popleft()
            job = item.job if isinstance(item, PartialEpisode) else item
            episode = self._make(job)
            slot = _Slot(episode, time.monotonic())
            self._live[job.session_id] = slot
            self._work(slot, episode.open if isinstance(item, EpisodeJob) else self._replayer(slot, item))

    def _make(self, job: EpisodeJob) -> LiveEpisode:
        return LiveEpisode(job, self._renderer, self._sampling, self._limits, self._conditions)

    def _replayer(self, slot: _Slot, partial: PartialEpisode) -> Callable[[], None]:
        def replay() -> None:
            if slot.episode.replay(partial):
                slot.episode.context_changed = False
                return
            self.restarted += 1
            slot.episode = self._make(partial.job)
            slot.episode.open()

        return replay

    def _work(self, slot: _Slot, function: Callable[[], Any], grading: bool = False) -> None:
        def timed() -> Any:
            slot.since = time.monotonic()
            return function()

        # Waiting for a free worker is not the environment's fault: its time begins when it does.
        slot.waits_for, slot.since = ("grading" if grading else "environment"), math.inf
        slot.future = self._workers.submit(timed)

    def _settle(self) -> bool:
        """Take in what is done and start what follows from it. True when anything moved."""
        moved = False
        again = True
        while again:
            again = False
            for name, slot in list(self._live.items()):
                if slot.future is None:
                    if slot.episode.stop_reason is not None:
                        self._work(slot, slot.episode.finish, grading=True)
                        again = True
                elif slot.future.done():
                    self._take(name, slot, slot.future)
                    again = True
            moved |= again
        return moved

    def _take(self, name: str, slot: _Slot, future: Future[Any]) -> None:
        kind, slot.future, slot.waits_for = slot.waits_for, None, ""
        if kind == "sampling":
            self._answer(slot, _outcome(future))
            return
        result = future.result()  # LedgerError and ConfigError stop the run here
        if kind == "grading":
            self._end(name, slot, result)

    def _end(self, name: str, slot: _Slot, trajectory: Trajectory) -> None:
        self._policy.release(name)
        del self._live[name]
        self._names.discard(name)
        self._done.append((slot.episode.job, trajectory))

    def _answer(self, slot: _Slot, output: SampleOutput | str) -> None:
        request, slot.request = slot.request, None
        assert request is not None
        if isinstance(output, str):
            slot.episode.fail(StopReason.POLICY_ERROR, output)
        else:
            self._work(slot, lambda: slot.episode.take(request, output))

    def _sample(self) -> bool:
        """Ask for every turn that is due. True when there was one."""
        if not self._sampling_allowed:
            return False
        due = [slot for slot in self._live.values() if slot.future is None]
        now, limit = time.monotonic(), self._deadlines.episode_s
        for slot in due:
            if limit and now - slot.began > limit:
                slot.episode.fail(
                    StopReason.TIMEOUT, f"not over after {limit:g} s (rollout.episode_timeout_s)"
                )
        late = len(due)
        due = [slot for slot in due if slot.episode.stop_reason is None]
        for slot in due:
            if slot.episode.context_changed:
                self._policy.release(slot.episode.job.session_id)
            slot.request = slot.episode.request()
        requests = [slot.request for slot in due if slot.request is not None]
        if self._one_by_one is not None:
            for slot, request in zip(due, requests, strict=True):
                slot.waits_for, slot.since = "sampling", now
                slot.future = _submit(self._one_by_one, request)
        elif requests:
            outputs = sample_all(self._policy, requests)
            if self._conditions.workers == 1:
                self._answer_together(due, outputs)
            else:
                for slot, output in zip(due, outputs, strict=True):
                    self._answer(slot, output)
        return late > 0

    def _answer_together(self, slots: Sequence[_Slot], outputs: Sequence[SampleOutput | str]) -> None:
        """Let all environments answer in step: calls of one isolated worker share a round trip."""
        playing: list[tuple[LiveEpisode, Message]] = []
        for slot, output in zip(slots, outputs, strict=True):
            request, slot.request = slot.request, None
            assert request is not None
            if isinstance(output, str):
                slot.episode.fail(StopReason.POLICY_ERROR, output)
                continue
            action = slot.episode.record(request, output)
            if action is not None:
                playing.append((slot.episode, action))
        results = step_all([episode.env for episode, _ in playing], [action for _, action in playing])
        for (episode, _), result in zip(playing, results, strict=True):
            episode.answered(result)

    def _wait(self) -> None:
        """Until something is done or a deadline has passed, which ends its episode."""
        pending = [slot for slot in self._live.values() if slot.future is not None]
        ends = [slot.since + limit for slot in pending if (limit := self._limit_of(slot))]
        timeout = max(0.0, min(ends) - time.monotonic()) if ends else None
        futures = [slot.future for slot in pending if slot.future is not None]
        most = _LOOK_UP_S if timeout is None else min(_LOOK_UP_S, timeout)
        done, _ = wait(futures, timeout=most, return_when=FIRST_COMPLETED)
        if done:
            wait(futures, timeout=_GATHER_S)
        now = time.monotonic()
        for slot in pending:
            limit = self._limit_of(slot)
            if limit and now - slot.since >= limit and slot.future is not None and not slot.future.done():
                self._give_up(slot, slot.future, limit)

    def _limit_of(self, slot: _Slot) -> float:
        return self._deadlines.turn_s if slot.waits_for == "sampling" else self._deadlines.environment_s

    def _give_up(self, slot: _Slot, future: Future[Any], limit: float) -> None:
        if slot.waits_for == "sampling":
            future.cancel()  # the engine aborts it
            slot.episode.fail(
                StopReason.TIMEOUT, f"the engine gave no turn in {limit:g} s (rollout.turn_timeout_s)"
            )
        else:
            self._workers.give_up(future)
            slot.episode.abandon(
                f"the environment gave no answer in {limit:g} s (rollout.environment_timeout_s)"
            )
        slot.future, slot.waits_for, slot.request = None, "", None


def run_episodes(
    policy: Policy,
    jobs: Sequence[EpisodeJob],
    renderer: Renderer,
    *,
    sampling: SamplingParams,
    limits: EpisodeLimits,
    slots: int,
    conditions: Conditions | None = None,
    deadlines: Deadlines = Deadlines(),
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Run every job and return its trajectory, in the order of the jobs (`EpisodePool`).

    ``on_done`` is told each finished trajectory (progress). Raises LedgerError; engine and environment
    failures are trajectories with ``excluded`` set.
    """
    pool = EpisodePool(
        policy,
        renderer,
        sampling=sampling,
        limits=limits,
        slots=slots,
        conditions=conditions,
        deadlines=deadlines,
    )
    done: dict[str, Trajectory] = {}
    try:
        pool.add(jobs)
        while pool.unfinished:
            for job, trajectory in pool.advance():
                done[job.session_id] = trajectory
                if on_done is not None:
                    on_done(trajectory)
    finally:
        pool.close()
    return [done[job.session_id] for job in jobs]


RunEpisodes = Callable[..., list[Trajectory]]
"""`run_episodes`, or what does the same with the help of other processes."""


def sample_all(policy: Policy, requests: list[SampleRequest]) -> list[SampleOutput | str]:
    """Outputs, or the reason for a request whose sampling failed.

    When a batch fails, each request is tried alone: one bad request must not cost its siblings. The sessions
    are released first, because the failed call may have moved some of them on; sampling is a function of the
    request.
    """
    try:
        outputs = policy.sample(requests)
    except (PolicyError, OSError) as error:
        if len(requests) == 1:
            return [f"{type(error).__name__}: {error}"]
        for request in requests:
            policy.release(request.session_id)
        return [output for request in requests for output in sample_all(policy, [request])]
    if len(outputs) != len(requests):
        raise LedgerError(f"the engine answered {len(requests)} requests with {len(outputs)} outputs")
    return list(outputs)


def _submit(policy: AsyncPolicy, request: SampleRequest) -> Future[SampleOutput]:
    try:
        return policy.submit(request)
    except (PolicyError, OSError) as error:
        refused: Future[SampleOutput] = Future()
        refused.set_exception(error)
        return refused


def _outcome(future: Future[SampleOutput]) -> SampleOutput | str:
    try:
        return future.result()
    except (PolicyError, OSError) as error:
        return f"{type(error).__name__}: {error}"
