"""Gate 1 while tasks are being made: the fresh processes of `envgen.synthesis.replay`, started once and fed
one task after the other, so that neither they nor this process ever hold all tasks of a bundle.

Run as ``python -m envgen.synthesis.replay_stream BUNDLE_DIR``: reads a task a line, answers ``[digest,
accepted]`` a line, and ends with its input.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import orjson

import envgen
from envgen.errors import EnvgenError
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.synthesis.certify import judge_replays
from envgen.synthesis.replay import SETTINGS, Replayed, replay_task
from envgen.types import GateResult, Task


class Replayers:
    """Fresh processes that replay tasks of one environment, beside this process. A context manager.

    ``environment``: a bundle whose tasks are not looked at.
    """

    def __init__(self, environment: Bundle) -> None:
        self._bundle = environment
        self._folder = tempfile.TemporaryDirectory(prefix="envgen-replay-")
        self._running: list[subprocess.Popen[bytes]] = []
        self._complaints: list[IO[bytes]] = []

    def start(self) -> None:
        """Start the processes, which takes them about a second; nothing where they run already."""
        if self._running:
            return
        path = Path(self._folder.name) / "bundle"
        write_bundle(self._bundle, path)
        root = str(Path(envgen.__file__).resolve().parent.parent)
        search = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        for number, setting in enumerate(SETTINGS):
            complaint = (Path(self._folder.name) / f"stderr-{number}").open("w+b")
            self._complaints.append(complaint)
            self._running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "envgen.synthesis.replay_stream", str(path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaint,
                    env={**os.environ, **setting, "PYTHONPATH": search},
                    start_new_session=True,  # Ctrl-C is this process's: it ends them by closing their input
                )
            )

    def results(self, tasks: Sequence[Task]) -> dict[str, GateResult]:
        """Gate 1 for some tasks. Raises EnvgenError when a process ends early."""
        if not tasks:
            return {}
        self.start()
        lines = [task.model_dump_json().encode() + b"\n" for task in tasks]
        try:
            for line in lines:
                for process in self._running:
                    assert process.stdin is not None
                    process.stdin.write(line)
                    process.stdin.flush()
        except OSError as error:
            raise self._failure() from error
        here: Replayed = {task.id: replay_task(self._bundle, task) for task in tasks}
        runs = [here, *({task.id: self._answer(process) for task in tasks} for process in self._running)]
        return judge_replays(tasks, runs)

    def _answer(self, process: subprocess.Popen[bytes]) -> tuple[str, bool]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._failure()
        digest, accepted = orjson.loads(line)
        return digest, bool(accepted)

    def _failure(self) -> EnvgenError:
        said = ""
        for process, complaint in zip(self._running, self._complaints, strict=True):
            if process.poll() is not None:
                complaint.seek(0)
                said = complaint.read().decode(errors="replace")[-400:]
        return EnvgenError(
            f"a replay process ended early; expected it to replay {self._bundle.name!r} to the end: {said}"
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._running:
            process.kill()
            process.communicate()
        for complaint in self._complaints:
            complaint.close()
        self._running, self._complaints = [], []
        self._folder.cleanup()

    def __enter__(self) -> Replayers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> int:
    """Entry point of the fresh process."""
    bundle = load_bundle(Path(sys.argv[1]))
    for line in sys.stdin.buffer:
        task = Task.model_validate_json(line)
        sys.stdout.buffer.write(orjson.dumps(replay_task(bundle, task)) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
