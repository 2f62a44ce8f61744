"""Who this process is among several, from config and environment; training across processes is refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoforge_jax.cli import app
from autoforge_jax.config import MeshConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.distributed import Membership, barrier, membership

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
    ],
)
def test_a_wrong_number_says_what_was_expected(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        membership(MeshConfig(), ENVIRONMENT | changes)


def test_a_barrier_of_one_process_is_open() -> None:
    assert barrier("alone", 0.001) is None


def test_training_in_several_processes_is_refused_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFORGE_COORDINATOR", "localhost:1")
    result = CliRunner().invoke(app, ["train", str(ROOT / "configs/debug/tiny.toml")])
    assert result.exit_code == 2
    assert "training in several processes is not built yet" in result.output
