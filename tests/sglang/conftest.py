"""A real SGLang server for the contract tests; `make test-sglang` says where its Python is, else they are
skipped."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

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
    "--dtype", "float32", "--skip-server-warmup",
)  # fmt: skip
COMMAND = (PYTHON, str(HERE / "launch_cpu.py"), *OPTIONS)


@pytest.fixture(scope="session")
def sglang_command() -> tuple[str, ...]:
    """What starts a real server; skips without one."""
    if not PYTHON:
        pytest.skip("a real SGLang server is tested by make test-sglang")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return COMMAND


@pytest.fixture(scope="module")
def server(
    sglang_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server with the tiny model of seed 0, loading; stopped after the module."""
    from tests.sglang.tiny_model import publish_to

    folder = tmp_path_factory.mktemp("serve") / "initial"
    publish_to(folder, seed=0)
    running = LocalServer(sglang_command, folder, URL, folder.parent / "server.log")
    running.start()
    yield running
    running.stop()
