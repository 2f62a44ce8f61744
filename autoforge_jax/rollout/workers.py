"""Where environments answer: in the caller's thread, or in a few threads when a model speaks in them.

A call that hangs cannot be stopped in Python. It is given up: its thread is left to itself (a daemon, so that
it cannot hold up the end of the process) and another takes its place.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Workers:
    """``submit(function)``: a future of its result. With one worker it is done at once, in this thread."""

    def __init__(self, count: int, name: str = "episode") -> None:
        self._count, self._name = count, name
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy: set[Future[Any]] = set()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run it, now or as soon as a worker is free. What it raises is in the future."""
        future: Future[Any] = Future()
        if self._count == 1:
            _run(future, function)
            return future
        self._busy = {other for other in self._busy if not other.done()}
        self._busy.add(future)
        if self._threads < min(self._count, len(self._busy)):
            self._start()
        self._queue.put((future, function))
        return future

    def give_up(self, future: Future[Any]) -> None:
        """Stop waiting for a call; a thread that is still in it is replaced."""
        self._busy.discard(future)
        if not future.cancel() and not future.done():
            self._start()

    def close(self) -> None:
        """Threads end when they are done with what they do; what has not begun never will."""
        for future in self._busy:
            future.cancel()
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            _run(*item)


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # handed to whoever asks for the result, as executors do
        future.set_exception(error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
    else:
        future.set_result(result)
