"""Who this process is among several, from config and environment, and what joining them needs."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoforge_jax.cli import app
from autoforge_jax.config import MeshConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.distributed import Membership, joined, membership

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "AUTOFORGE_COORDINATOR": "h:1",
    "AUTOFORGE_PROCESSES": "4",
    "AUTOFORGE_PROCESS_ID": "3",
}


def test_the_environment_goes_before_the_config() -> None:
    assert membership(MeshConfig(), {}) is None
    assert membership(MeshConfig(coordinator="auto"), {}) == Membership("auto", 0, -1)
    assert membership(MeshConfig(coordinator="auto"), ENVIRONMENT) == Membership("h:1", 4, 3)
    configured = MeshConfig(coordinator="x:2", processes=2)
    assert membership(configured, {"AUTOFORGE_PROCESS_ID": "1"}) == Membership("x:2", 2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"AUTOFORGE_PROCESS_ID": "4"}, "AUTOFORGE_PROCESS_ID is 4, expected 0 to 3"),
        ({"AUTOFORGE_PROCESS_ID": ""}, "AUTOFORGE_PROCESS_ID is '', expected a number"),
        ({"AUTOFORGE_PROCESSES": "two"}, "AUTOFORGE_PROCESSES is 'two', expected a number"),
        ({"AUTOFORGE_COORDINATOR": "host"}, "coordinator 'host': expected host:port, or auto"),
        ({"AUTOFORGE_COORDINATOR": "host:x"}, "coordinator 'host:x': expected host:port, or auto"),
    ],
)
def test_a_wrong_number_says_what_was_expected(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        membership(MeshConfig(), ENVIRONMENT | changes)


def test_one_process_is_a_crew_of_one_and_joins_nobody() -> None:
    with joined(MeshConfig()) as crew:
        assert (crew.index, crew.count) == (0, 1)
        crew.meet("alone")


def test_a_run_that_finds_no_coordinator_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    for name, value in {"COORDINATOR": address, "PROCESSES": "2", "PROCESS_ID": "1"}.items():
        monkeypatch.setenv(f"AUTOFORGE_{name}", value)
    words = ["train", str(ROOT / "configs/debug/tiny.toml"), "--set", "mesh.timeout_s=1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"process 1: error: process 1: nobody answers at {address} within 1 s" in result.output
