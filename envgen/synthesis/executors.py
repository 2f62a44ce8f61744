"""Who runs the jobs of a synthesis: this process, a pool of processes, or a Ray cluster.

An executor maps a function over jobs and gives the results in the order of the jobs. Jobs, results and
function must pickle. What comes out never depends on which executor ran, nor on how many workers it has.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Protocol, TypeVar

from envgen.errors import EnvgenError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
EXECUTORS = ("local", "ray")
LOST_POOLS = 2
"""How often the jobs of a pool that lost a worker are run again before that is an error."""


class Executor(Protocol):
    """The port."""

    workers: int
    """Jobs that run at once."""

    def map(self, function: Callable[[JobT], ResultT], jobs: Sequence[JobT]) -> Iterator[ResultT]:
        """Results in the order of the jobs. What a job raises is raised here."""
        ...

    def close(self) -> None:
        """Give everything back; may be called twice."""
        ...


class SerialExecutor:
    """Runs the jobs here, one after the other."""

    workers = 1

    def map(self, function: Callable[[JobT], ResultT], jobs: Sequence[JobT]) -> Iterator[ResultT]:
        """See `Executor.map`."""
        return map(function, jobs)

    def close(self) -> None:
        """Nothing to give back."""


class ProcessExecutor:
    """Runs the jobs in a pool of fresh processes of this machine, started on the first job.

    The processes leave Ctrl-C to this one, and end by themselves when this one is gone, however it ended.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"got workers={workers}; expected 1 or more")
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[JobT], ResultT], jobs: Sequence[JobT]) -> Iterator[ResultT]:
        """See `Executor.map`. Raises EnvgenError when workers keep being killed (too little memory?)."""
        done = 0
        for lost in range(LOST_POOLS + 1):
            pool = self._start()
            futures = [pool.submit(function, job) for job in jobs[done:]]
            try:
                for future in futures:
                    result = future.result()
                    done += 1
                    yield result
                return
            except BrokenProcessPool as error:
                self.close()
                if lost == LOST_POOLS:
                    raise EnvgenError(
                        f"a worker process was killed {lost + 1} times at the same jobs (out of memory?); "
                        "lower --workers and run the command again, it goes on where it was"
                    ) from error
            finally:
                for future in futures:
                    future.cancel()

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # spawn: a fork would take over locks of whatever threads run here, such as a progress display's.
            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=multiprocessing.get_context("spawn"), initializer=_settle_in
            )
        return self._pool

    def close(self) -> None:
        """Let the processes finish the job they are at, and end them."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _settle_in() -> None:
    """In a fresh pool process: Ctrl-C is the parent's, and the parent's death ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)  # a killed parent cannot say goodbye, and the pool would wait for jobs for ever

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def open_executor(name: str, workers: int, address: str = "") -> Generator[Executor]:
    """The executor that the command line names: ``local`` (here, or a pool from 2 workers on) or ``ray``.

    ``address``: of a running Ray cluster; a local one is started when left out. Raises ValueError for an
    unknown name, EnvgenError when Ray is not installed.
    """
    if name not in EXECUTORS:
        raise ValueError(f"got executor {name!r}; expected one of {', '.join(EXECUTORS)}")
    if name == "ray":
        from envgen.synthesis.executor_ray import RayExecutor

        executor: Executor = RayExecutor(workers, address)
    else:
        executor = ProcessExecutor(workers) if workers > 1 else SerialExecutor()
    try:
        yield executor
    finally:
        executor.close()
