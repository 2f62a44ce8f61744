"""An engine that takes turns one by one (`AsyncPolicy`), each as late as the test says, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from autoforge_jax.rollout.scripted import ScriptedPolicy
from autoforge_jax.types import SampleOutput, SampleRequest

Delay = Callable[[SampleRequest], float | None]
"""Seconds until the turn is there; None: never."""


class Delayed:
    """What `inner` would say, later."""

    def __init__(self, inner: ScriptedPolicy, delay: Delay = lambda _: 0.0) -> None:
        self.inner, self.delay = inner, delay
        self._lock = threading.Lock()
        self.submitted: list[str] = []
        self.cancelled: list[str] = []

    @property
    def version(self) -> int:
        return self.inner.version

    @version.setter
    def version(self, value: int) -> None:
        self.inner.version = value

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        raise AssertionError("an engine that takes turns one by one is not asked for a batch")

    def submit(self, request: SampleRequest) -> Future[SampleOutput]:
        future: Future[SampleOutput] = Future()
        self.submitted.append(request.session_id)

        def on_end(ended: Future[SampleOutput]) -> None:
            if ended.cancelled():
                self.cancelled.append(request.session_id)

        future.add_done_callback(on_end)
        seconds = self.delay(request)
        if seconds is not None:
            timer = threading.Timer(seconds, self._finish, (future, request))
            timer.daemon = True
            timer.start()
        return future

    def _finish(self, future: Future[SampleOutput], request: SampleRequest) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._lock:
                future.set_result(self.inner.sample([request])[0])
        except Exception as error:
            future.set_exception(error)

    def release(self, session_id: str) -> None:
        with self._lock:
            self.inner.release(session_id)
