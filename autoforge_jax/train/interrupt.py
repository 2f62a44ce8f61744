"""Ctrl-C and SIGTERM as a request that is honoured at the next step boundary."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Raised at a step boundary, after saving, when a signal asked the run to stop.

    Not an `Exception`: nothing on the way may take it for a failure. `exit_code` is 130 for SIGINT and 143
    for SIGTERM.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopFlag:
    """Set by a signal (or by a test, with `request`), read by the phases at their step boundaries."""

    def __init__(self) -> None:
        self.signal_number = 0

    @property
    def requested(self) -> bool:
        """True once a stop was asked for."""
        return self.signal_number != 0

    def request(self, signal_number: int = signal.SIGINT) -> None:
        """Ask for a stop at the next step boundary."""
        self.signal_number = signal_number

    def raise_if_requested(self, where: str) -> None:
        """Raise `Interrupted` naming `where` when a stop was asked for; call it only after saving."""
        if self.requested:
            raise Interrupted(where, 128 + self.signal_number)


@contextmanager
def stop_on_signals(flag: StopFlag) -> Iterator[StopFlag]:
    """Within the block SIGINT and SIGTERM set `flag`; a second SIGINT ends the process at once
    (KeyboardInterrupt).

    Outside the main thread, where Python allows no handlers, the block changes nothing.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.request(number)

    try:
        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        yield flag
        return
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
