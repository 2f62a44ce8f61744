"""The workers of one bundle: started when needed, shared by its episodes, replaced when they die or wear out.

A worker serves one source only, so whatever tool code could do to its process concerns that environment's
own episodes. Episodes are bound to a worker at their first call (``episode``).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping

from envgen.errors import IsolationError, UnsafeCodeError
from envgen.records import StateData
from envgen.runtime.context import KeyStyle
from envgen.runtime.isolation.limits import LAYERS, WorkerLimits
from envgen.runtime.isolation.process import WORKER_PROGRAM, Worker, WorkerGone

_log = logging.getLogger("envgen.isolation")
_BASES_KEPT = 16
_base_numbers = itertools.count(1)
_told: set[str] = set()


def _tell(layers: Mapping[str, str]) -> None:
    """Say once per process which layers the machine does not offer."""
    for name, reason in layers.items():
        if reason and name not in _told:
            _told.add(name)
            _log.warning("isolation layer %r (%s) is not available: %s", name, LAYERS.get(name, "?"), reason)


class Base:
    """An initial state that episodes share; shipped to a worker once."""

    __slots__ = ("__weakref__", "data", "number")

    def __init__(self, data: StateData) -> None:
        self.data = data
        self.number = next(_base_numbers)


class WorkerPool:
    """Workers for one source. ``tool_names``: what its ``TOOLS`` holds.

    Raises UnsafeCodeError when the allow-list refuses the source (asked in a worker: this process does not
    even parse it), IsolationError when no worker can be had.
    """

    def __init__(
        self,
        source: str,
        styles: Mapping[str, KeyStyle],
        limits: WorkerLimits | None = None,
        program: str = WORKER_PROGRAM,
    ) -> None:
        self.limits = limits or WorkerLimits()
        self.started = 0
        self._source = source
        self._styles = {name: (style.prefix, style.integer) for name, style in styles.items()}
        self._program = program
        self._workers: list[Worker] = []
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._bases: weakref.WeakValueDictionary[int, Base] = weakref.WeakValueDictionary()
        self._recent: deque[Base] = deque(maxlen=_BASES_KEPT)
        self.tool_names: frozenset[str] = frozenset()
        with self._lock:
            self._start()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The live ones."""
        with self._lock:
            self._tidy()
            return tuple(self._workers)

    def base(self, data: StateData) -> Base:
        """The shared base of an initial state; the same object for the same data while it is in use, and
        a little longer."""
        base = self._bases.get(id(data))
        if base is None or base.data is not data:
            base = self._bases[id(data)] = Base(data)
            # Kept for the next episode of the task: otherwise the state would be shipped for each.
            self._recent.append(base)
        return base

    def worker(self, base: Base | None = None) -> Worker:
        """A live worker with room, one that holds the base if there is one. Ships the base. Raises
        WorkerGone when that kills it."""
        with self._lock:
            self._tidy()
            free = [w for w in self._workers if w.load < self.limits.episodes_per_worker]
            having = [w for w in free if base is not None and base.number in w.bases]
            worker = min(having or free, key=lambda w: w.load) if free else self._start()
            if base is not None:
                self._ship(worker, base)
            return worker

    def close(self) -> None:
        """End all workers. Episodes that are still used get a fresh one."""
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers.clear()

    # ---------------------------------------------------------------- inside
    def _start(self) -> Worker:
        worker = Worker(self.limits, self._program)
        _tell(worker.layers)
        try:
            status, value, _ = worker.ask(
                "load", self._source, self._styles, timeout_s=self.limits.start_timeout_s
            )
        except WorkerGone as gone:
            raise UnsafeCodeError(
                f"tools.py does not load: {gone.detail}; fix what it does at module level"
            ) from None
        if status == "unsafe":
            worker.kill()
            raise UnsafeCodeError(str(value))
        if status != "ok" or not isinstance(value, list):
            worker.kill()
            raise IsolationError(f"an isolated worker answered {status!r} to the source; expected its tools")
        self.tool_names = frozenset(str(name) for name in value)  # type: ignore[reportUnknownVariableType]
        self.started += 1
        self._workers.append(worker)
        return worker

    def _tidy(self) -> None:
        """Forget the dead; end those that have used half of their CPU time (episodes are made anew)."""
        if os.getpid() != self._owner:  # forked: the workers are the other process's
            self._owner = os.getpid()
            self._workers = []
            return
        for worker in self._workers:
            if worker.busy_s > self.limits.cpu_s / 2:
                worker.kill()
        self._workers = [w for w in self._workers if w.alive]

    def _ship(self, worker: Worker, base: Base) -> None:
        if base.number in worker.bases:
            worker.bases[base.number] = worker.bases.pop(base.number)
            return
        if len(worker.bases) >= _BASES_KEPT:
            oldest = next(iter(worker.bases))
            del worker.bases[oldest]
            worker.ask("drop_base", oldest)
        worker.ask("base", base.number, base.data, timeout_s=self.limits.start_timeout_s)
        worker.bases[base.number] = None
