"""Rollouts that go on while the learner works (`erpo.max_staleness` > 0).

A thread keeps the slots full of episodes; the learner takes finished groups **in the order in which they
were begun** and waits for the first one if it must. So no group is passed over for being long: taking
whatever is done first would train on short episodes first and let the long ones grow stale (prime-rl#2960).
Between two turns the engine can be given new weights; an episode then goes on with them, and every turn says
which version sampled it.

The bound is kept twice. *Before*: a group is begun only while no more than

    (engine version − steps taken + max_staleness + 1) × groups per step

groups are begun and not taken, which is what those steps will use up in time. *At consumption*, where it
counts: a group with a token more than `max_staleness` versions older than the learner is dropped, counted,
and its length reported beside the length of those used. That happens when steps suddenly need fewer groups.

What a checkpoint needs is `to_json`: groups done, episodes under way turn by turn, and where the draw stands.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autoforge_jax.config import BatchConfig, ERPOConfig, RolloutConfig
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.rollout.collect import (
    Collection,
    budget_spent,
    collection_metrics,
    group_budget,
    group_jobs,
    select_groups,
)
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.curriculum import SuccessRecord
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.live import PartialEpisode
from autoforge_jax.rollout.mix import TaskSource
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.pool import Deadlines, EpisodePool
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.shaping import shaped
from autoforge_jax.rollout.snapshot import (
    items_by_key,
    job_of,
    partial_from_json,
    partial_to_json,
    trajectory_from_json,
    trajectory_to_json,
)
from autoforge_jax.types import SamplingParams, Trajectory, TrajectoryGroup

_WAKE_S = 0.5
_RECENT = 3
"""Steps whose use of groups predicts that of the next: the least of them, so that few grow stale."""


@dataclass
class _Group:
    """A group that was begun and not taken."""

    item: TaskItem
    generation: int
    size: int
    done: dict[int, Trajectory] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return len(self.done) == self.size

    def oldest(self) -> int | None:
        """Version of its oldest token; None when nothing was sampled."""
        return min((t.policy_version for t in self.done.values() if t.turns), default=None)

    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(self.done[sample] for sample in range(self.size))


class OverlappedRollouts:
    """The collector. `start` it once the engine has weights; `close` it at the end, also after an error."""

    def __init__(
        self,
        policy: Policy,
        items: Sequence[TaskItem],
        renderer: Renderer,
        erpo: ERPOConfig,
        rollout: RolloutConfig,
        *,
        seed: int,
        batch: BatchConfig | None = None,
        record: SuccessRecord | None = None,
        conditions: Conditions | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        """Arguments: `collect.collect`. `restored`: what `to_json` gave a checkpoint. `on_done` is called
        from the collector's thread."""
        if not items:
            raise ConfigError("no training tasks to collect from; expected at least one: check the splits")
        self._policy, self._items, self._erpo = policy, items, erpo
        self._seed, self._record = seed, record
        self._limits = EpisodeLimits.of(rollout, batch)
        self._slots = rollout.slots
        self._on_done = on_done
        self._pool = EpisodePool(
            policy,
            renderer,
            sampling=SamplingParams(
                temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k
            ),
            limits=self._limits,
            slots=rollout.slots,
            conditions=conditions,
            deadlines=Deadlines.of(rollout),
        )
        self._queue: deque[_Group] = deque()
        self._by_session: dict[str, _Group] = {}
        self._generation = -1
        self._source: TaskSource | None = None
        self._left = 0
        self._recent: deque[int] = deque([erpo.tasks_per_step], maxlen=_RECENT)
        self._version_step = self._taken = self._popped = 0
        self._changed = threading.Condition()
        self._busy = self._closing = False
        self._pauses = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._fill: list[float] = []
        if restored:
            self._restore(restored)

    # ------------------------------------------------------------------------------------------ the learner's
    def start(self, step: int) -> None:
        """Begin to roll out for `step` and those after it, with the weights that the engine has now."""
        self._version_step = self._taken = step
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The engine stands still and has forgotten all sessions: to change weights, evaluate, or save."""
        with self._changed:
            self._pauses += 1
            while self._busy and self._error is None:
                self._changed.wait(_WAKE_S)
            self._raise_error()
            self._file(self._pool.drain())
            self._pool.forget_sessions()
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def weights_changed(self, step: int) -> None:
        """The engine samples with the weights of `step` from now on."""
        with self._changed:
            self._version_step = step
            self._changed.notify_all()

    def take(self, version: int) -> Collection:
        """One step's groups, for a learner at `version`; waits for those that were begun first.

        As `collect.collect`: up to `tasks_per_step` groups with a signal, or what the budget gave.
        """
        if version - self._policy.version > self._erpo.max_staleness:
            raise TrainingError(
                f"the learner is at version {version}, the engine samples with {self._policy.version} and "
                f"erpo.max_staleness is {self._erpo.max_staleness}: nothing it samples could be used. Hand "
                "the weights over first"
            )
        began = time.monotonic()
        budget = group_budget(self._erpo)
        groups: list[TrajectoryGroup] = []
        stale: list[Trajectory] = []
        stale_groups = 0
        while not self._enough(groups, budget):
            group = self._next()
            oldest = group.oldest()
            if oldest is not None and version - oldest > self._erpo.max_staleness:
                stale_groups += 1
                stale += group.trajectories()
                continue
            own = tuple(shaped(t, self._erpo, self._limits) for t in group.trajectories())
            groups.append(TrajectoryGroup(group.item[1].id, group.item[0].environment_id, own))
        with self._changed:
            self._taken, self._popped = self._taken + 1, 0
            self._recent.append(len(groups))
            fill, self._fill = self._fill, []
            backlog = len(self._queue)
        selected = select_groups(groups, self._erpo)
        metrics = collection_metrics(groups, selected)
        ages = [version - t.policy_version for g in groups for t in g.trajectories if t.turns]
        metrics |= {
            "rollout/budget_spent": float(budget_spent(groups, self._erpo, budget)),
            "rollout/staleness_mean": sum(ages) / len(ages) if ages else 0.0,
            "rollout/staleness_max": float(max(ages, default=0)),
            "rollout/stale_groups": float(stale_groups),
            "rollout/backlog_groups": float(backlog),
            "rollout/slots_filled": sum(fill) / len(fill) if fill else 0.0,
            "rollout/wait_seconds": round(time.monotonic() - began, 4),
            "rollout/restarted": float(self._pool.restarted),
        }
        if stale:  # beside `sampled_tokens_mean`: is it the long ones that are lost?
            metrics["rollout/stale_tokens_mean"] = sum(t.sampled_tokens for t in stale) / len(stale)
        return Collection(tuple(groups), tuple(selected), metrics)

    def close(self) -> None:
        """End the thread and cancel what is under way."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._pool.close()

    def to_json(self) -> dict[str, Any]:
        """Everything that is begun and not taken; call it inside `paused()`."""
        partials = {p.job.session_id: p for p in self._pool.partials() if isinstance(p, PartialEpisode)}
        groups: list[dict[str, Any]] = []
        for group in self._queue:
            open_ = [job.session_id for job in self._jobs(group) if job.sample_index not in group.done]
            groups.append(
                {
                    "environment_id": group.item[0].environment_id,
                    "task_id": group.item[1].id,
                    "generation": group.generation,
                    "size": group.size,
                    "done": [trajectory_to_json(t) for _, t in sorted(group.done.items())],
                    "partial": [partial_to_json(partials[name]) for name in open_ if name in partials],
                }
            )
        return {"generation": self._generation, "recent": list(self._recent), "groups": groups}

    # ------------------------------------------------------------------------------------------ the queue
    def _restore(self, tree: Mapping[str, Any]) -> None:
        # The draw of the generation that was under way depended on a record that has moved on: begin another.
        self._generation = int(tree["generation"])
        self._recent.extend(int(n) for n in tree["recent"])
        items = items_by_key(self._items)
        for saved in tree["groups"]:
            first = job_of(items, saved["environment_id"], saved["task_id"])
            group = _Group((first.bundle, first.task), int(saved["generation"]), int(saved["size"]))
            done = [trajectory_from_json(value) for value in saved["done"]]
            group.done = {t.sample_index: t for t in done}
            partial = {int(value["sample"]): value for value in saved["partial"]}
            self._queue.append(group)
            for job in self._jobs(group):
                if job.sample_index in group.done:
                    continue
                self._by_session[job.session_id] = group
                value = partial.get(job.sample_index)
                self._pool.add([job if value is None else partial_from_json(value, job)])

    def _jobs(self, group: _Group) -> list[EpisodeJob]:
        return group_jobs(group.item, group.size, self._seed, group.generation)

    def _enough(self, groups: Sequence[TrajectoryGroup], budget: int) -> bool:
        if not self._erpo.dynamic_sampling:
            return len(groups) >= self._erpo.tasks_per_step
        return len(groups) >= budget or len(select_groups(groups, self._erpo)) >= self._erpo.tasks_per_step

    def _next(self) -> _Group:
        with self._changed:
            while not (self._queue and self._queue[0].ready):
                self._raise_error()
                self._changed.wait(_WAKE_S)
            group = self._queue.popleft()
            self._popped += 1
            self._changed.notify_all()
            return group

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self._thread is None:
            raise TrainingError("the overlapped rollouts were not started; call start(step) first")

    # ------------------------------------------------------------------------------------------ the thread's
    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # raised again in the learner's thread, which is waiting for groups
            with self._changed:
                self._error = error
                self._busy = False
                self._changed.notify_all()

    def _turn(self) -> bool:
        with self._changed:
            self._begin_groups()
            while not self._closing and (self._pauses or not self._pool.unfinished):
                self._changed.wait(_WAKE_S)
                self._begin_groups()
            if self._closing:
                return False
            self._busy = True
        ended = self._pool.advance()
        with self._changed:
            self._fill.append(self._pool.live / self._slots)
            self._busy = False
            self._file(ended)
            self._changed.notify_all()
        return True

    def _begin_groups(self) -> None:
        while (
            not self._pauses and self._pool.unfinished < self._slots and len(self._queue) < self._admitted()
        ):
            group = _Group(self._draw(), self._generation, self._erpo.group_size)
            self._queue.append(group)
            jobs = self._jobs(group)
            self._by_session |= {job.session_id: group for job in jobs}
            self._pool.add(jobs)

    def _admitted(self) -> int:
        ahead = self._version_step - self._taken + self._erpo.max_staleness + 1
        per_step = min(self._recent)
        # Those that the step under way has taken already are used up by it, not by a later one.
        return max(1, ahead * per_step - min(self._popped, per_step))

    def _draw(self) -> TaskItem:
        if self._source is None or not self._left:
            self._generation += 1
            self._source = TaskSource(
                self._items,
                self._seed,
                self._generation,
                block=self._erpo.min_groups_per_environment,
                record=self._record,
                weights=self._erpo.environment_weights,
            )
            # as many as a step of `collect.collect` would draw from one order
            self._left = min(self._source.left, group_budget(self._erpo))
        self._left -= 1
        return self._source.draw(1)[0]

    def _file(self, ended: Sequence[tuple[EpisodeJob, Trajectory]]) -> None:
        for job, trajectory in ended:
            self._by_session.pop(job.session_id).done[job.sample_index] = trajectory
            if self._on_done is not None:
                self._on_done(trajectory)
