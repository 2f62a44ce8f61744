"""Ctrl-C and SIGTERM as a request that is honoured at the next step boundary."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Raised at a step boundary, after saving, when a signal asked the run to stop.

    Not an `Exception`: nothing on the way may take it for a failure. `exit_code` is 130 for SIGINT; 0 for
    SIGTERM, by which a cluster asks for exactly this: a run that is saved and can be started again.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopFlag:
    """Set by a signal (or by a test, with `request`), read by the phases at their step boundaries.

    With several processes a signal may reach one of them first: `share` makes every look at the flag a
    meeting, after which all stop at the same step.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._agree: Callable[[int], int] | None = None

    def share(self, agree: Callable[[int], int]) -> None:
        """`agree(signal number here)` -> that of any process. All processes then look at their flags in the
        same order."""
        self._agree = agree

    @contextmanager
    def unshared(self) -> Iterator[None]:
        """For a block that this process runs alone."""
        agree, self._agree = self._agree, None
        try:
            yield
        finally:
            self._agree = agree

    @property
    def requested(self) -> bool:
        """True once a stop was asked for."""
        return self._look() != 0

    def _look(self) -> int:
        # A signal during the meeting counts for the next one: the others have not heard of it.
        return self.signal_number if self._agree is None else self._agree(self.signal_number)

    def request(self, signal_number: int = signal.SIGINT) -> None:
        """Ask for a stop at the next step boundary."""
        self.signal_number = signal_number

    def raise_if_requested(self, where: str) -> None:
        """Raise `Interrupted` naming `where` when a stop was asked for; call it only after saving."""
        number = self._look()
        if number:
            raise Interrupted(where, 0 if number == signal.SIGTERM else 128 + number)


@contextmanager
def stop_on_signals(flag: StopFlag) -> Iterator[StopFlag]:
    """Within the block SIGINT and SIGTERM set `flag`; a second SIGINT ends the process at once
    (KeyboardInterrupt).

    Outside the main thread, where Python allows no handlers, the block changes nothing.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.signal_number and number == signal.SIGINT:
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
