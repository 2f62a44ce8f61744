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
_SHORT_LIFE_S = 120.0
_SHORT_LIVES = 3
"""A server that ends by itself so often, each time so soon, is not started again."""


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
        are appended. log: gets its output, appended; beside it a ``.pid`` file while it runs, for when this
        process is killed and cannot stop it. environment: added to this process's."""
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
        return self._process is not None and self._process.poll() is None

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
            self._pid_file.write_text(f"{self._process.pid}\n", encoding="utf-8")
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
            process = self._process
            if process is None:
                return
            for which in (first, signal.SIGKILL):
                try:
                    os.killpg(process.pid, which)
                except ProcessLookupError:
                    break
                try:
                    process.wait(_STOP_GRACE_S)
                except subprocess.TimeoutExpired:
                    continue
            process.wait()
            self._process = None
            self._pid_file.unlink(missing_ok=True)


class LocalServers:
    """The servers that a run starts for itself, one per url."""

    def __init__(
        self, command: Sequence[str], model_folder: Path, urls: Sequence[str], log_folder: Path
    ) -> None:
        """log_folder: gets ``server-0.log`` and so on."""
        self._servers = {
            url.rstrip("/"): LocalServer(command, model_folder, url, log_folder / f"server-{index}.log")
            for index, url in enumerate(urls)
        }

    def start(self, url: str) -> None:
        """Start the server of a url unless its process runs. Called when the url does not answer."""
        self._servers[url.rstrip("/")].start()

    def stop(self) -> None:
        """Stop those that were started here."""
        for server in self._servers.values():
            server.stop()
