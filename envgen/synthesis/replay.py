"""Gate 1: reference calls replayed through the real Env, in fresh processes with another hash seed, time
zone and locale.

Run as ``python -m envgen.synthesis.replay BUNDLE_DIR``: prints one JSON object, task id -> [digest,
accepted].
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

import envgen
from envgen.errors import EnvgenError, TaskError
from envgen.runtime.env import open_env
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.types import EnvLimits, Message, StopReason, Task, ToolCall

SETTINGS = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"},
    {"PYTHONHASHSEED": "20011", "TZ": "Asia/Kolkata", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "4242424242", "TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8"},
)
"""What differs between the fresh processes; each also starts at another wall-clock time."""
LIMITS = EnvLimits(max_turns=64, max_tool_calls=64, max_tool_errors=0)

Replayed = dict[str, tuple[str, bool]]
"""Task id -> (digest over all observations and the final state, accepted)."""


def replay_task(bundle: Bundle, task: Task) -> tuple[str, bool]:
    """Play a task's reference through an Env: a digest of everything that came back, and the verdict. A task
    whose criteria cannot be judged is not accepted."""
    try:
        env = open_env(bundle, task, seed=0, limits=LIMITS)
    except TaskError as error:
        return str(error), False
    digest = hashlib.sha256()
    for message in env.start():
        digest.update(message.content.encode())
    errors = 0
    reason: StopReason | None = None
    for index, step in enumerate(task.reference):
        if step.kind != "call":
            action = Message(role="assistant", content=step.text)
        else:
            call = ToolCall(id=f"c{index}", name=step.tool, arguments=orjson.dumps(step.arguments).decode())
            action = Message(role="assistant", tool_calls=(call,))
        result = env.step(action)
        errors += result.tool_errors
        for message in result.observations:
            digest.update(message.content.encode() + b"\0")
        reason = result.stop_reason
        if reason is not None:
            break
    if reason is None:
        reason = env.step(Message(role="assistant", content=task.closing)).stop_reason
    digest.update(orjson.dumps(env.state.snapshot()))
    accepted = reason is StopReason.USER_DONE and errors == 0 and env.verdict().success
    return digest.hexdigest(), accepted


def replay_bundle(bundle: Bundle) -> Replayed:
    """`replay_task` for every task of a bundle, in this process."""
    return {task.id: replay_task(bundle, task) for task in bundle.tasks}


def replay_fresh(bundle: Bundle) -> list[Replayed]:
    """The same in one fresh process per entry of `SETTINGS`, side by side; each replays all tasks of the
    bundle."""
    with tempfile.TemporaryDirectory(prefix="envgen-replay-") as folder:
        path = Path(folder) / "bundle"
        write_bundle(bundle, path)
        root = str(Path(envgen.__file__).resolve().parent.parent)
        running: list[subprocess.Popen[bytes]] = []
        for setting in SETTINGS:
            search = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "envgen.synthesis.replay", str(path)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **setting, "PYTHONPATH": search},
                    # Ctrl-C in a terminal reaches every process of the group; what it means is said here.
                    start_new_session=True,
                )
            )
        answers: list[Replayed] = []
        failures: list[str] = []
        try:
            for process in running:
                out, err = process.communicate()
                if process.returncode != 0:
                    failures.append(err.decode(errors="replace")[-400:])
                    continue
                answers.append({name: (digest, bool(ok)) for name, (digest, ok) in orjson.loads(out).items()})
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    if failures:
        raise EnvgenError(
            f"a replay process ended with an error; expected it to replay {bundle.name!r}: {failures[0]}"
        )
    return answers


def main() -> int:
    """Entry point of the fresh process."""
    sys.stdout.buffer.write(orjson.dumps(replay_bundle(load_bundle(Path(sys.argv[1])))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
