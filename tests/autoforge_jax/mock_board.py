"""A board in memory: several crews in threads of one process stand for processes on hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autoforge_jax.train.crew import Crew


class MemoryBoard:
    """`crew.Board` over a dict."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, min(timeout_s, 0.02))
            return self.values.get(key)

    def drop(self, key: str) -> None:
        with self._changed:
            for name in [n for n in self.values if n == key or n.startswith(key + "/")]:
                del self.values[name]


def together(count: int, work: Callable[[Crew], Any], timeout_s: float = 5.0) -> list[Any]:
    """`work` of every process: its value, or the exception that it raised."""
    board = MemoryBoard()
    crews = [Crew(index, count, board, timeout_s) for index in range(count)]

    def one(crew: Crew) -> Any:
        try:
            return work(crew)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, crews))
