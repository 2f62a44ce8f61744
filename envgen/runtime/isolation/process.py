"""The parent's handle on one worker process: start, ask with a deadline, kill, and say what went wrong.

A worker is a fresh interpreter with an empty environment and nothing of the caller: no memory (it is not
forked from it), no files but its socket. Its answers are JSON and nothing else.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import orjson

import envgen
from envgen.errors import IsolationError
from envgen.runtime.isolation.limits import GUARANTEES, WorkerLimits, missing
from envgen.runtime.isolation.protocol import CHUNK, HEADER, frame

WORKER_PROGRAM = "from envgen.runtime.isolation.worker import main; main()"
"""What the worker's interpreter runs; the path to the packages is put in front."""

CallRequest = tuple[tuple[int, int, str, int] | None, int, str, dict[str, Any]]
"""One call of ``Worker.ask_many``: opening (or None), the episode's number, tool, arguments."""

_NOT_ASKED = "it answered something that was not asked"
_EXIT_WAIT_S = 10.0
_numbers = itertools.count(1)


class WorkerGone(Exception):
    """A worker was killed or died during a request. ``kind``: ``time``, ``memory``, ``answer`` (too long),
    ``forbidden`` (a system call), ``crash``, ``exit``, ``protocol`` (an answer that is none) or ``lost``
    (killed from outside, or used up)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


def _end(process: subprocess.Popen[bytes], link: socket.socket, owner: int) -> None:
    """Kill a worker and collect it. A process forked from the owner only closes its copy of the socket."""
    link.close()
    if os.getpid() == owner and process.poll() is None:
        process.kill()
        process.wait()


def _search_path() -> list[str]:
    """Where the worker finds envgen and orjson; its interpreter starts without site packages."""
    roots = [Path(envgen.__file__).parent.parent, Path(orjson.__file__).parent.parent]
    return list(dict.fromkeys(str(root.resolve()) for root in roots))


class Worker:
    """One isolated process. Raises IsolationError when it cannot be started or the machine cannot keep the
    guarantees; see ``limits``.

    ``layers``: what it put on (layer -> "" or why not). Requests of several threads wait for each other.
    """

    def __init__(self, limits: WorkerLimits, program: str = WORKER_PROGRAM) -> None:
        if not sys.platform.startswith("linux"):
            raise IsolationError(
                f"tool code that is not vetted needs an isolated worker, which needs Linux; this is "
                f"{sys.platform}. Run it in a Linux container or virtual machine"
            )
        self.limits = limits
        self.busy_s = 0.0
        self.episodes: set[int] = set()
        self.bases: dict[int, None] = {}
        """Numbers of the initial states it holds, least recently used first."""
        self._dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self._timeout = -1.0
        self._owner = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        head = f"import sys; sys.path[:0] = {_search_path()!r}; "
        command = [sys.executable, "-S", "-s", "-P", "-B", "-c", head + program, str(theirs.fileno())]
        with theirs, tempfile.TemporaryDirectory(prefix="envgen-worker-") as folder:
            # Its root, readable and empty; the name is gone once the worker is inside.
            os.chmod(folder, 0o555)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            self._link = ours
            self._finalizer = weakref.finalize(self, _end, self._process, ours, os.getpid())
            theirs.close()  # or its death would not be seen
            try:
                self.layers = self._greet()
            except WorkerGone as gone:
                raise IsolationError(f"an isolated worker did not start: {gone.detail}") from gone
        lacking = {k: v for k, v in missing(self.layers).items() if k not in limits.accept_without}
        if lacking:
            self.kill()
            what = "; ".join(f"{name} ({GUARANTEES[name]}: {why})" for name, why in lacking.items())
            raise IsolationError(
                f"this machine cannot contain tool code that is not vetted: {what}. Use another machine, or "
                "pass WorkerLimits(accept_without=...) to go without"
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once it was killed or found dead, and in a process forked from the one that started it."""
        return self._finalizer.alive and os.getpid() == self._owner

    @property
    def load(self) -> int:
        """Live episodes in it."""
        return len(self.episodes) - len(self._dropped)

    def drop(self, episode: int) -> None:
        """Forget an episode with the next request. May be called from a finalizer: it only notes it."""
        self._dropped.append(episode)

    def kill(self) -> None:
        """End it at once. Safe to repeat."""
        self._finalizer()

    # ---------------------------------------------------------------- requests
    def _greet(self) -> dict[str, str]:
        limits = self.limits
        hello = {n: getattr(limits, n) for n in ("memory_bytes", "cpu_s", "open_files")}
        deadline = time.monotonic() + limits.start_timeout_s
        answer = self._parse(self._exchange(orjson.dumps(hello), limits.start_timeout_s, deadline))
        if not isinstance(answer, dict):
            raise self._gone("protocol", "its first message is not a report")
        return {str(k): str(v) for k, v in answer.items()}  # type: ignore[reportUnknownVariableType]

    def ask(
        self,
        operation: str,
        *operands: Any,
        timeout_s: float | None = None,
        opening: tuple[int, int, str, int] | None = None,
    ) -> tuple[str, Any, bytes]:
        """One request: (status, value, the value's JSON as it was sent). Raises WorkerGone, after which the
        worker is dead. ``opening`` starts an episode with it: its number, the base's, clock and seed."""
        limit = self.limits.call_timeout_s if timeout_s is None else timeout_s
        number = next(_numbers)
        answer = self._request(number, limit, operation, opening, operands)
        reply = cast("list[Any]", self._parse(answer))
        # What lies between this head and the closing bracket is then the JSON of the value.
        head = b'[%d,"' % number
        if (
            type(reply) is not list
            or len(reply) != 3
            or not answer.startswith(head)
            or not answer.endswith(b"]")
            or type(reply[1]) is not str
        ):
            raise self._gone("protocol", _NOT_ASKED)
        status: str = reply[1]
        if status == "memory":
            raise self._gone("memory", f"it needed more than {self.limits.memory_bytes} bytes of memory")
        return status, reply[2], answer[len(head) + len(status) + 2 : -1]

    def ask_many(self, calls: Sequence[CallRequest]) -> list[tuple[str, Any, bytes]]:
        """Calls of several episodes in one round trip, answered in order as by ``ask``. All of them together
        have the time, memory and answer size of one.

        Raises WorkerGone, after which the worker is dead and none of the calls has been made: whose fault it
        was, only calls made alone can tell.
        """
        number = next(_numbers)
        answer = self._request(number, self.limits.call_timeout_s, "many", None, (calls,))
        head, _, rest = answer.partition(b"\n")
        reply = cast("list[Any]", self._parse(head))
        if type(reply) is not list or len(reply) != 3 or reply[0] != number:
            raise self._gone("protocol", _NOT_ASKED)
        if reply[1] == "memory":
            raise self._gone("memory", f"it needed more than {self.limits.memory_bytes} bytes of memory")
        parts = reply[2]
        if type(parts) is not list or len(parts) != len(calls):  # type: ignore[reportUnknownArgumentType]
            raise self._gone("protocol", _NOT_ASKED)
        out: list[tuple[str, Any, bytes]] = []
        start = 0
        for part in cast("list[Any]", parts):
            match part:
                case [str(status), int(length)] if 0 < length <= len(rest) - start:
                    text = rest[start : start + length]
                case _:
                    raise self._gone("protocol", _NOT_ASKED)
            out.append((status, self._parse(text), text))
            start += length
        return out

    def _request(
        self,
        number: int,
        limit: float,
        operation: str,
        opening: tuple[int, int, str, int] | None,
        operands: Sequence[Any],
    ) -> bytes:
        """The body of the answer to one request. Raises WorkerGone."""
        with self._lock:
            dropped: list[int] = []
            while self._dropped:
                dropped.append(self._dropped.popleft())
            self.episodes.difference_update(dropped)
            body = orjson.dumps([number, operation, dropped, opening, *operands])
            start = time.monotonic()
            answer = self._exchange(body, limit, start + limit)
            self.busy_s += time.monotonic() - start
            return answer

    def _parse(self, body: bytes) -> object:
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise self._gone("protocol", "its answer is not JSON") from None

    def _exchange(self, body: bytes, limit: float, deadline: float) -> bytes:
        """Send a frame, receive a frame. Raises WorkerGone."""
        link = self._link
        try:
            if self._timeout != limit:
                self._timeout = limit
                value = struct.pack("@ll", int(limit), int(limit % 1 * 1e6) or 1)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            data = frame(body)
            sent = link.send(data)
            while sent < len(data):
                self._check(deadline)
                sent += link.send(memoryview(data)[sent:])
            got = link.recv(CHUNK)
            while 0 < len(got) < HEADER.size:
                self._check(deadline)
                more = link.recv(CHUNK)
                got = got + more if more else b""
            if not got:
                raise self._death()
            length = HEADER.unpack_from(got)[0]
            if length > self.limits.answer_bytes:
                raise self._gone(
                    "answer", f"its answer has {length} bytes, at most {self.limits.answer_bytes} are read"
                )
            left = length + HEADER.size - len(got)
            if left == 0:
                return got[HEADER.size :]
            if left < 0:
                raise self._gone("protocol", "it sent more than one answer")
            parts = [got[HEADER.size :]]
            while left > 0:
                self._check(deadline)
                got = link.recv(min(left, 1 << 20))
                if not got:
                    raise self._death()
                parts.append(got)
                left -= len(got)
            return b"".join(parts)
        except BlockingIOError:
            raise self._late() from None
        except OSError:
            raise self._death() from None

    # ---------------------------------------------------------------- endings
    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._late()

    def _late(self) -> WorkerGone:
        return self._gone("time", f"it did not answer within {self._timeout:g} s")

    def _gone(self, kind: str, detail: str) -> WorkerGone:
        self.kill()
        return WorkerGone(kind, detail)

    def _death(self) -> WorkerGone:
        """What the exit status says of a worker that closed its socket."""
        if not self.alive:
            return WorkerGone("lost", "it had been ended before")
        try:
            status = self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return self._gone("protocol", "it closed its socket")
        self.kill()
        if status >= 0:
            return WorkerGone("exit", f"it left with code {status}")
        name = signal.Signals(-status).name
        if -status == signal.SIGSYS:
            return WorkerGone("forbidden", "it tried a forbidden system call (SIGSYS)")
        if -status in (signal.SIGKILL, signal.SIGXCPU, signal.SIGTERM):
            return WorkerGone("lost", f"it was ended from outside or used up its CPU time ({name})")
        return WorkerGone("crash", f"it crashed ({name})")
