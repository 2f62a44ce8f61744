"""Several processes that run one program: values they hand each other, and the places where they meet.

Every process calls the same methods in the same order; the coordinator's key-value store carries the values,
so nothing here compiles or touches a device, and every wait has an end that names who did not come. With one
process every method is the plain thing: `Crew()` is what a run on one machine uses.

The values are pickled: like the rest of `jax.distributed`, the coordinator's port must be open to the run's
own hosts only.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from autoforge_jax import errors
from autoforge_jax.errors import AutoforgeError, TrainingError
from autoforge_jax.train.interrupt import Interrupted
from envgen.interface import EnvgenError

T = TypeVar("T")
PIECE_BYTES = 1 << 20
"""Values travel in pieces of at most so many bytes: below gRPC's default limit of a message."""
SLICE_S = 1.0
"""How long a process waits at a time; in between it looks whether another has failed."""
LOOK_S = 0.05
"""Time for a key that is there or is not."""


class Board(Protocol):
    """A key-value store that all processes reach: the coordinator's, or a double in tests."""

    def put(self, key: str, value: bytes) -> None:
        """Set a key, also one that is set already."""
        ...

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """The value once the key is set; None when it is not after `timeout_s`."""
        ...

    def drop(self, key: str) -> None:
        """Delete a key and everything under ``key/``."""
        ...


class Crew:
    """This process among `count`; `index` 0 is the first, which writes and prints for all."""

    def __init__(
        self, index: int = 0, count: int = 1, board: Board | None = None, timeout_s: float = 300.0
    ) -> None:
        if count > 1 and board is None:
            raise ValueError(f"{count} processes need a board to meet at")
        self.index, self.count, self.timeout_s = index, count, timeout_s
        self._board = board if count > 1 else None
        self._calls = 0
        self._stale: list[str] = []
        if self._board is not None:
            self._board.put(f"host/{index}", socket.gethostname().encode())

    @property
    def first(self) -> bool:
        """True in the process that writes and prints."""
        return self.index == 0

    def name(self, index: int) -> str:
        """``process 1 (its host)``."""
        host = self._board.get(f"host/{index}", LOOK_S) if self._board is not None else None
        return f"process {index}" + (f" ({host.decode()})" if host else "")

    # ------------------------------------------------------------------------------------------ meeting
    def gather(self, what: str, value: T) -> list[T]:
        """Every process's value, in the order of the processes, in every process.

        Nobody goes on before all are here. TrainingError that names a process that is not here after
        `timeout_s` and where it was last, or one that has failed.
        """
        if self._board is None:
            return [value]
        key = self._begin(self._board, what)
        self._put(self._board, f"{key}/{self.index}", pickle.dumps(value))
        deadline = time.monotonic() + self.timeout_s
        values = [
            value if i == self.index else self._receive(f"{key}/{i}", what, i, deadline)
            for i in range(self.count)
        ]
        # Whoever is here has read everything that came before.
        for stale in self._stale:
            self._board.drop(stale)
        self._stale = [f"{key}/{self.index}"]
        return values

    def meet(self, what: str) -> None:
        """Wait until every process is here. Raises as `gather` does."""
        self.gather(what, None)

    def any(self, what: str, flag: bool) -> bool:
        """True in every process when `flag` is true in one."""
        return any(self.gather(what, flag))

    def agree(self, what: str, digest: str) -> None:
        """TrainingError that names the processes whose `digest` is not that of the most (in a tie: of process
        0)."""
        found = self.gather(what, digest)
        if len(set(found)) > 1:
            usual = max(dict.fromkeys(found), key=Counter(found).__getitem__)
            odd = [f"{self.name(i)} has {value}" for i, value in enumerate(found) if value != usual]
            raise TrainingError(
                f"{what} differ between processes: {', '.join(odd)}, the others {usual}; do all hosts have "
                "the same files, package versions and settings?"
            )

    # ------------------------------------------------------------------------------------------ one for all
    def of_first(self, what: str, compute: Callable[[], T]) -> T:
        """Process 0 computes, all get the value; the others wait as long as it takes. What it raises on
        purpose (`AutoforgeError`, `EnvgenError`, `Interrupted`) is raised in all."""
        if self._board is None:
            return compute()
        key = self._begin(self._board, what)
        if not self.first:
            return _opened(self._receive(key, what, 0, None))
        try:
            value = compute()
        except (AutoforgeError, EnvgenError, Interrupted) as error:
            self._put(self._board, key, pickle.dumps(_described(error)))
            raise
        self._put(self._board, key, pickle.dumps(("value", value)))
        self._stale.append(key)
        return value

    def fail(self, message: str) -> None:
        """Tell the others that this process ends with an error; they stop waiting for it."""
        if self._board is not None:
            self._board.put("failed", f"{self.name(self.index)} has failed: {message}".encode())

    # ------------------------------------------------------------------------------------------ transport
    def _begin(self, board: Board, what: str) -> str:
        self._calls += 1
        board.put(f"at/{self.index}", f"{self._calls} {what}".encode())
        return f"call/{self._calls}"

    def _put(self, board: Board, key: str, value: bytes) -> None:
        count = 0
        for at in range(0, len(value), PIECE_BYTES):
            board.put(f"{key}/{count}", value[at : at + PIECE_BYTES])
            count += 1
        board.put(f"{key}/pieces", str(count).encode())

    def _receive(self, key: str, what: str, source: int, deadline: float | None) -> Any:
        """A value of process `source`; without a deadline the coordinator ends this process when that one
        dies."""
        board = self._board
        assert board is not None
        while (pieces := board.get(f"{key}/pieces", SLICE_S)) is None:
            failed = board.get("failed", LOOK_S)
            if failed is not None:
                raise TrainingError(f"{what}: {failed.decode()}")
            if deadline is not None and time.monotonic() > deadline:
                raise TrainingError(f"{what}: {self._late(board)} within {self.timeout_s:g} s")
        parts = [board.get(f"{key}/{index}", self.timeout_s) for index in range(int(pieces))]
        if None in parts:
            raise TrainingError(f"{what}: a part was lost on its way from {self.name(source)}")
        return pickle.loads(b"".join(part for part in parts if part is not None))

    def _late(self, board: Board) -> str:
        """Who has not come, from what each process last began."""
        late: list[str] = []
        for index in range(self.count):
            at = board.get(f"at/{index}", LOOK_S)
            calls, _, place = at.decode().partition(" ") if at is not None else ("0", "", "")
            if int(calls) < self._calls:
                late.append(self.name(index) + (f", last at {place!r}," if place else ""))
        return f"{' and '.join(late) or 'a process'} did not come"


def _described(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, Interrupted):
        return ("interrupted", str(error), str(error.exit_code))
    return ("error", type(error).__name__, str(error))


def _opened(described: tuple[Any, ...]) -> Any:
    kind, *rest = described
    if kind == "value":
        return rest[0]
    if kind == "interrupted":
        raise Interrupted(rest[0], int(rest[1]))
    raise getattr(errors, rest[0], TrainingError)(rest[1])
