"""SGLang servers as child processes: `rollout.sglang.launch`, and the tests' way to start, kill and restart
one."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from autoforge_jax.errors import EngineLostError

_STOP_GRACE_S = 10.0
_STOP_POLL_S = 0.05
_SHORT_LIFE_S = 120.0
_SHORT_LIVES = 3
"""A server that ends by itself so often, each time so soon, is not started again."""
_APPENDED = 6
"""Words of a command line that say which server it is: --model-path FOLDER --host HOST --port PORT."""


class LocalServer:
    """One server process on this machine, with the processes that it starts itself."""

    def __init__(
        self,
        command: Sequence[str],
        model_folder: Path,
        url: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """command: what starts SGLang, with options of its own; ``--model-path``, ``--host`` and ``--port``
        are appended. log: gets its output, appended; beside it a ``.pid`` file while it runs (its process id
        and ours), for when this process is killed and cannot stop it (`adopt`). environment: added to this
        process's."""
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise EngineLostError(f"{url} names no host and port; expected e.g. http://127.0.0.1:30000")
        self.url = url
        self.log = log
        self._pid_file = log.with_suffix(".pid")
        self.command = [
            *command, "--model-path", str(model_folder), "--host", parts.hostname, "--port", str(parts.port),
        ]  # fmt: skip
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._short_lives = 0
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """The process is there; it may still be loading."""
        if self._process is not None:
            return self._process.poll() is None
        return self._left_behind() is not None

    def _left_behind(self) -> int | None:
        """Process id of this server, when a process that is no more started it, or `adopt` took it over.
        Known on Linux only."""
        try:
            pid, owner = (int(word) for word in self._pid_file.read_text(encoding="utf-8").split())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except (OSError, ValueError):
            return None
        # A process id is used again: the file may be older than the process.
        ours = words[-_APPENDED:] == [os.fsencode(word) for word in self.command[-_APPENDED:]]
        return pid if ours and (owner == os.getpid() or not _is_alive(owner)) else None

    def adopt(self) -> None:
        """Take over the server that a killed process left behind, if there is one: it is not started a second
        time, and stopped with this process."""
        pid = self._left_behind()
        if pid is not None:
            self._pid_file.write_text(f"{pid} {os.getpid()}\n", encoding="utf-8")
            atexit.register(self.stop)

    def start(self) -> None:
        """Start it unless it runs. Returns at once; the server answers when it has loaded. EngineLostError
        when the command cannot be run, or has ended by itself within two minutes three times running."""
        with self._lock:
            if self.running:
                return
            if self._process is not None:
                soon = time.monotonic() - self._started < _SHORT_LIFE_S
                self._short_lives = self._short_lives + 1 if soon else 0
            if self._short_lives >= _SHORT_LIVES:
                code = self._process.returncode if self._process is not None else None
                tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                raise EngineLostError(
                    f"the SGLang server of {self.url} ended {self._short_lives} times soon after its start "
                    "(exit code "
                    f"{code}); {self.log} ends with:\n" + "\n".join(tail)
                )
            self._started = time.monotonic()
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                try:
                    # A session of its own: Ctrl-C is for the trainer, and one signal reaches all its
                    # processes.
                    self._process = subprocess.Popen(
                        self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                        env={**os.environ, **self._environment}, start_new_session=True,
                    )  # fmt: skip
                except OSError as error:
                    raise EngineLostError(
                        f"cannot start an SGLang server: {error}; is rollout.sglang.launch right? "
                        f"{self.command}"
                    ) from error
            self._pid_file.write_text(f"{self._process.pid} {os.getpid()}\n", encoding="utf-8")
            atexit.register(self.stop)

    def kill(self) -> None:
        """SIGKILL to all its processes, as an out-of-memory killer would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what is left after 10 s. Fine when it does not run."""
        self._end(signal.SIGTERM)
        atexit.unregister(self.stop)

    def _end(self, first: signal.Signals) -> None:
        with self._lock:
            pid = self._process.pid if self._process is not None else self._left_behind()
            if pid is None:
                return
            for which in (first, signal.SIGKILL):
                try:
                    os.killpg(pid, which)
                except ProcessLookupError:
                    break
                deadline = time.monotonic() + _STOP_GRACE_S
                while self.running and time.monotonic() < deadline:
                    time.sleep(_STOP_POLL_S)
            if self._process is not None:
                self._process.wait()
            self._process = None
            self._pid_file.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class LocalServers:
    """The servers that a run starts for itself, one per url."""

    def __init__(
        self, command: Sequence[str], model_folder: Path, urls: Sequence[str], log_folder: Path
    ) -> None:
        """log_folder: gets ``server-0.log`` and so on. Servers that a killed process of the run left
        behind are taken over."""
        self._servers = {
            url.rstrip("/"): LocalServer(command, model_folder, url, log_folder / f"server-{index}.log")
            for index, url in enumerate(urls)
        }
        for server in self._servers.values():
            server.adopt()

    def start(self, url: str) -> None:
        """Start the server of a url unless its process runs. Called when the url does not answer."""
        self._servers[url.rstrip("/")].start()

    def stop(self) -> None:
        """Stop those that were started here, or by an earlier process of the run that was killed."""
        for server in self._servers.values():
            server.stop()
