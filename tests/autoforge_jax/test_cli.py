"""The command line: exit codes, errors without a traceback, and a help that comes at once."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "configs" / "debug" / "tiny.toml"


def _autoforge(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoforge_jax.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_lists_the_commands_without_loading_jax_or_pydantic() -> None:
    probe = (
        "import sys; from autoforge_jax import cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = {'jax', 'pydantic', 'numpy', 'transformers', 'envgen.interface'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert code == 0, code"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for command in ("run", "sft", "train", "eval", "report", "doctor"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "none.toml"), "config file none.toml does not exist"),
        (("run", str(TINY), "--set", "erpo.stepz=3"), "unknown key 'erpo.stepz'"),
        (("sft", str(TINY), "--set", "erpo.steps=many"), "erpo.steps"),
        (("run", str(TINY), "--set", "erpo"), "is not key.path=value"),
        (
            ("run", str(TINY), "--set", 'synthesis.documents=["no.yaml"]'),
            "no such document or bundle: no.yaml",
        ),
        (("run", str(TINY), "--set", 'synthesis.bundles=["examples"]'), "examples is no bundle"),
        (("eval", str(TINY), "--set", "run.name=never-made"), "holds no run"),
        (("report", "examples"), "no run directory"),
    ],
)
def test_a_mistake_is_one_clear_error_and_exit_code_2(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    extra = () if words[0] == "report" else ("--set", f"run.out_dir={tmp_path}")
    done = _autoforge(*words, *extra)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("error: ") for line in lines)
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_broken_document_is_an_error_of_envgen_with_exit_code_2(tmp_path: Path) -> None:
    document = tmp_path / "broken.json"
    document.write_text('{"tools": [')
    done = _autoforge(
        "run", str(TINY), "--set", f'synthesis.documents=["{document}"]', "--set", f"run.out_dir={tmp_path}"
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and "broken.json" in done.stderr


def test_train_says_what_to_run_first(tmp_path: Path) -> None:
    done = _autoforge("train", str(TINY), "--set", f"run.out_dir={tmp_path}")
    assert done.returncode == 2
    assert f"run first: autoforge sft {TINY}" in done.stderr


def test_print_config_prints_the_resolved_tree_and_makes_nothing(tmp_path: Path) -> None:
    done = _autoforge(
        "run", str(TINY), "--print-config", "--set", "erpo.steps=77", "--set", f"run.out_dir={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    tree = tomllib.loads(done.stdout)
    assert tree["erpo"]["steps"] == 77 and tree["model"]["hidden_size"] == 64
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_command_line_has_exit_code_2() -> None:
    assert _autoforge("fly").returncode == 2
    assert _autoforge("run").returncode == 2
