"""An event loop in a thread of its own, so that blocking code can drive many HTTP requests at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
_WAKE_S = 0.5
_CLEANUP_S = 15.0
"""How long an interrupted call may take to abort what it has sent."""


class BackgroundLoop:
    """Runs coroutines for blocking callers of any thread; starts at the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. When the caller is interrupted (Ctrl-C), the coroutine is cancelled and may
        clean up before the interrupt goes on."""
        loop = self._started()
        finished = threading.Event()

        async def work() -> T:
            try:
                return await coroutine
            finally:
                finished.set()

        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            # A wait without end is not woken by a signal that another thread happened to get.
            while not wait((future,), timeout=_WAKE_S).done:
                pass
        except BaseException:
            future.cancel()
            finished.wait(_CLEANUP_S)
            raise
        return future.result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """The coroutine's result to come; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def close(self) -> None:
        """Stop the thread; a later call starts another."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None
