"""Two commands never write into one run directory at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoforge_jax.config import Config, parse_config
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.lock import lock_path, run_lock
from autoforge_jax.train.loop import execute
from autoforge_jax.train.rundir import RunDir

HOLDER = """
import sys
from autoforge_jax.config import parse_config
from autoforge_jax.train.lock import run_lock
with run_lock(parse_config({"run": {"out_dir": sys.argv[1], "name": "mine"}})):
    print("held", flush=True)
    sys.stdin.read()
"""


def _config(out_dir: Path, name: str = "mine") -> Config:
    return parse_config({"run": {"out_dir": str(out_dir), "name": name}})


def _holder(out_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_told_who_holds_the_run(tmp_path: Path) -> None:
    process = _holder(tmp_path)
    refused = pytest.raises(TrainingError, match=rf"mine is in use by process {process.pid} on .*run\.name")
    with refused, run_lock(_config(tmp_path)):
        pytest.fail("both hold it")
    with run_lock(_config(tmp_path, "other")) as held:
        assert held
    process.communicate("")
    with run_lock(_config(tmp_path)) as held:
        assert held


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    process = _holder(tmp_path)
    process.kill()
    process.wait()
    with run_lock(_config(tmp_path)) as held:
        assert held
        assert lock_path(_config(tmp_path)).read_text().startswith(f"process {os.getpid()} on ")


def test_an_evaluation_waits_for_no_run_but_is_refused_like_a_second_run(tmp_path: Path) -> None:
    config = _config(tmp_path)
    RunDir.open(config).mark("warm start", done=True)
    process = _holder(tmp_path)
    with pytest.raises(TrainingError, match=f"in use by process {process.pid}"):
        execute(config, command="eval")
    process.communicate("")


def test_an_out_dir_that_cannot_be_written_to_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = pytest.raises(ConfigError, match=r"run\.out_dir: nothing can be written in .*file")
    with refused, run_lock(_config(tmp_path / "file")):
        pytest.fail("held in a file")
