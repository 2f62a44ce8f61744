"""Which tasks a step rolls out, and in which order: environments by weight, tasks within one by chance.

Everything is a function of (seed, step) and, where one is given, of the `SuccessRecord` at that moment.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autoforge_jax.errors import ConfigError
from autoforge_jax.rollout.curriculum import SuccessRecord
from autoforge_jax.rollout.jobs import TaskItem, stable_hash
from autoforge_jax.types import TrajectoryGroup


def check_weights(weights: Mapping[str, float], known: Iterable[str]) -> None:
    """ConfigError when `erpo.environment_weights` names an environment that no training bundle is."""
    names = sorted(set(known))
    unknown = sorted(set(weights) - set(names))
    if unknown:
        raise ConfigError(
            f"erpo.environment_weights names {unknown}, the training environments are {names}; correct the "
            "name or leave it out"
        )


class TaskSource:
    """All items once; `draw` hands them out.

    Environments take turns, `block` tasks at a time, so that every environment that a step reaches has that
    many groups, which its standard deviation needs. With weights a turn comes in proportion to them (smooth
    weighted round robin: after any number of draws each environment is within one block of its share). Within
    an environment the order is uniform, or with a `record` a weighted draw without replacement: ascending
    -ln(u) / weight (Efraimidis and Spirakis 2006), u uniform in (0, 1) from the task's hash.
    """

    def __init__(
        self,
        items: Sequence[TaskItem],
        seed: int,
        step: int,
        *,
        block: int = 1,
        record: SuccessRecord | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`weights`: bundle name -> weight, 1 where none is given. ConfigError for names that no item has."""
        check_weights(weights or {}, (bundle.name for bundle, _ in items))
        self._block = block
        self._weights: dict[str, float] = {}
        self._queues: dict[str, list[TaskItem]] = {}
        for item in items:
            weight = (weights or {}).get(item[0].name, 1.0)
            if weight > 0:
                self._weights[item[0].environment_id] = weight
                self._queues.setdefault(item[0].environment_id, []).append(item)

        def place(item: TaskItem) -> tuple[float, int]:
            drawn = stable_hash("task", seed, step, item[0].environment_id, item[1].id)
            if record is None:
                return 0.0, drawn
            return -math.log((drawn + 1) / (2**64 + 1)) / record.weight(item), drawn

        for tasks in self._queues.values():
            tasks.sort(key=place, reverse=True)  # handed out from the end
        self._order = sorted(self._queues, key=lambda name: stable_hash("environment", seed, step, name))
        self._credit = dict.fromkeys(self._order, 0.0)
        self._started: list[str] = []

    @property
    def left(self) -> int:
        """Items not handed out yet."""
        return sum(len(tasks) for tasks in self._queues.values())

    def draw(self, count: int, short: Mapping[str, int] | None = None) -> list[TaskItem]:
        """The next `count` items, fewer when there are no more. `short`: environment_id -> groups that it
        misses; they come first, as far as it has tasks."""
        out: list[TaskItem] = []
        for environment_id, missing in sorted((short or {}).items()):
            for _ in range(min(missing, count - len(out), len(self._queues.get(environment_id, ())))):
                out.append(self._queues[environment_id].pop())
        while len(out) < count and self.left:
            if not self._started or not self._queues[self._started[-1]]:
                self._started = [self._turn()] * self._block
            out.append(self._queues[self._started.pop()].pop())
        return out

    def _turn(self) -> str:
        """The environment whose turn it is."""
        order = [name for name in self._order if self._queues[name]]
        for name in order:
            self._credit[name] += self._weights[name]
        chosen = max(order, key=lambda name: (self._credit[name], -order.index(name)))
        # Not `sum`: it rounds otherwise since Python 3.12, and another turn would follow from the same seed.
        whole = 0.0
        for name in order:
            whole += self._weights[name]
        self._credit[chosen] -= whole
        return chosen


def task_order(
    items: Sequence[TaskItem],
    seed: int,
    step: int,
    per_environment: int = 1,
    record: SuccessRecord | None = None,
) -> Iterator[TaskItem]:
    """All items in the order in which a `TaskSource` without weights hands them out."""
    source = TaskSource(items, seed, step, block=per_environment, record=record)
    while source.left:
        yield from source.draw(1)


def short_environments(usable: Iterable[TrajectoryGroup], least: int) -> dict[str, int]:
    """environment_id -> groups that it still needs: those that have some groups to learn from, but fewer than
    `least`, and would be left out."""
    counts = Counter(group.environment_id for group in usable)
    return {name: least - count for name, count in counts.items() if count < least}
