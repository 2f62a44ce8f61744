"""A real SGLang server for the contract tests; `make test-sglang` says where its Python is, else they are
skipped.

How long a server takes to start depends on what else the machine does (21 CPU-seconds, mostly imports), so
nothing here waits for a fixed time: a wait goes on while the server makes progress (`follow`).
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import httpx2
import pytest

from autoforge_jax.rollout.sglang_local import LocalServer

PYTHON = os.environ.get("AUTOFORGE_SGLANG_PYTHON", "")


def free_url() -> str:
    """An address of this machine where nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


URL = free_url()
HERE = Path(__file__).resolve().parent
OPTIONS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--mem-fraction-static", "0.1", "--max-total-tokens", "4096", "--max-running-requests", "16",
    "--dtype", "float32", "--skip-server-warmup", "--sleep-on-idle", "--served-model-name", "tiny",
    "--constrained-json-disable-any-whitespace",  # noise likes blanks: without it JSON need not end
)  # fmt: skip
COMMAND = (PYTHON, str(HERE / "launch_cpu.py"), *OPTIONS)
SILENT_S = 300.0
"""A server whose processes use no processor and whose log stands still for so long has hung."""
PATIENCE_S = 3600.0
"""`start_timeout_s` of the tests' engines: `follow` gives up long before."""


def _activity(server: LocalServer) -> tuple[int, int]:
    """(bytes of its log, clock ticks its processes used): one of them moves while it works."""
    try:
        group = server.log.with_suffix(".pid").read_text().split()[0]
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[2] == group:
                ticks += int(fields[11]) + int(fields[12])
        return server.log.stat().st_size, ticks
    except (FileNotFoundError, ProcessLookupError):
        return -1, -1  # between two lives, or a process ended while it was read


def follow(server: LocalServer, done: Callable[[], bool]) -> None:
    """Wait until `done`, for as long as the server makes progress; fails the test when that stops."""
    seen, since = _activity(server), time.monotonic()
    while not done():
        time.sleep(0.2)
        now = _activity(server)
        # An idle server uses a tick now and then; a starting one uses a hundred a second.
        if now[0] != seen[0] or now[1] - seen[1] > 50:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > SILENT_S:
            tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-15:])
            pytest.fail(f"{server.url} made no progress for {SILENT_S:g} s; its log ends with:\n{tail}")


def freeze(server: LocalServer) -> None:
    """Stop all its processes where they are (SIGSTOP): it takes connections and never answers, until it is
    killed. How many requests a server has when it dies would otherwise depend on its speed, and on when the
    sampled turns happen to end."""
    os.killpg(int(server.log.with_suffix(".pid").read_text().split()[0]), signal.SIGSTOP)


def answers(url: str) -> bool:
    """It says 200."""
    try:
        return httpx2.get(url, timeout=60, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def start_and_wait(server: LocalServer) -> None:
    """Start it unless it runs, and wait until it answers."""

    def up() -> bool:
        server.start()
        return answers(f"{server.url}/health")

    follow(server, up)


@pytest.fixture(scope="session")
def sglang_command() -> tuple[str, ...]:
    """What starts a real server; skips without one."""
    if not PYTHON:
        pytest.skip("a real SGLang server is tested by make test-sglang")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return COMMAND


@pytest.fixture(scope="session")
def server(
    sglang_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server started with the tiny model of seed 0, which answers; stopped at the end."""
    from tests.sglang.tiny_model import publish_to

    folder = tmp_path_factory.mktemp("serve") / "initial"
    publish_to(folder, seed=0)
    running = LocalServer(sglang_command, folder, URL, folder.parent / "server.log")
    start_and_wait(running)
    yield running
    running.stop()
