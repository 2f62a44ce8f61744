"""Exponential back-off with jitter, as a pure function of attempt and key, so that tests know the waits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Waits ``first_s``, twice that, and so on, each cut to ``longest_s`` and shortened by up to a half.

    Jitter keeps many clients of one server from coming back at the same moment. It is a function of ``key``
    and attempt, not of a random source.
    """

    retries: int = 4
    """Tries after the first; 0 asks once."""
    first_s: float = 0.5
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.retries < 0 or self.first_s <= 0 or self.longest_s < self.first_s:
            raise ValueError(f"got {self}, expected retries >= 0 and 0 < first_s <= longest_s")

    def wait_s(self, attempt: int, key: str = "", asked_s: float | None = None) -> float:
        """Seconds to wait after failed try number ``attempt`` (from 0).

        ``asked_s``: what the server asked for (Retry-After); it is the least wait, cut to ``longest_s``.
        """
        full = min(self.longest_s, self.first_s * 2.0**attempt)
        share = zlib.crc32(f"{key}/{attempt}".encode()) / 2**32
        wait = full * (1.0 - 0.5 * share)
        return wait if asked_s is None else max(wait, min(asked_s, self.longest_s))
