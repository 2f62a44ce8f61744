"""Frames between parent and worker: four bytes of length (little endian), then JSON. Never pickle.

Request: ``[number, operation, dropped episodes, opening, ...operands]``; answer: ``[number, status, value]``.
``opening`` starts an episode first (``[episode, base, clock, seed]``, or null): it spares a round trip.
``many`` holds calls of several episodes (each ``[opening, episode, tool, arguments]``); its answer is
``[number, "ok", [[status, length], ...]]``, a line feed, and the values one after the other.
Statuses: ``ok``; ``error`` (the tool said no: its sentence); ``defect`` (the tool broke: what it raised);
``unsafe`` (the allow-list refused the source); ``memory`` (the memory limit was met).
"""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct("<I")
CHUNK = 1 << 16


def frame(body: bytes) -> bytes:
    """A body with its length in front."""
    return HEADER.pack(len(body)) + body


def read_frame(fd: int) -> bytes | None:
    """The next body from a blocking descriptor; None when the other side has closed it. For the worker: it
    trusts its parent, so there is no limit."""
    data = os.read(fd, CHUNK)
    if not data:
        return None
    while len(data) < HEADER.size:
        more = os.read(fd, CHUNK)
        if not more:
            return None
        data += more
    missing = HEADER.unpack_from(data)[0] + HEADER.size - len(data)
    if missing == 0:
        return data[HEADER.size :]
    parts = [data[HEADER.size :]]
    while missing > 0:
        more = os.read(fd, min(missing, 1 << 20))
        if not more:
            return None
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def write_frame(fd: int, body: bytes) -> None:
    """Send a body whole."""
    data = frame(body)
    sent = os.write(fd, data)
    while sent < len(data):
        sent += os.write(fd, memoryview(data)[sent : sent + (1 << 20)])
