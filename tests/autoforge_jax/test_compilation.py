"""Which compile options go with a program, and who has the last word."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from autoforge_jax import compilation, xla_flags

LEVEL, EMITTERS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
PIECES = "xla_cpu_parallel_codegen_split_count"


@pytest.fixture(autouse=True)
def as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tests' own settings."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield  # type: ignore[misc]
    jax.config.update("jax_disable_most_optimizations", before)


def test_the_settings_are_options_that_this_xla_knows() -> None:
    options = compilation.compiler_options()
    assert options == {LEVEL: 1, EMITTERS: False, PIECES: len(os.sched_getaffinity(0))}
    del options[EMITTERS]
    assert compilation.compiler_options(older_emitters=False) == options


def test_the_users_flags_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--{LEVEL}=3 --{PIECES}=8")
    assert compilation.compiler_options() == {EMITTERS: False}
    jax.config.update("jax_disable_most_optimizations", True)
    assert compilation.compiler_options() is None


def test_a_file_of_flags_has_the_last_word_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA takes XLA_FLAGS for a file's name unless it begins with a flag."""
    file = tmp_path / "flags"
    file.write_text(f"--{LEVEL}=3\n--{PIECES}=8\n")
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": str(file)}
    xla_flags.prepare_process(environment)
    assert environment["XLA_FLAGS"] == str(file)
    monkeypatch.setenv("XLA_FLAGS", str(file))
    assert compilation.compiler_options() == {EMITTERS: False}


def test_other_devices_get_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert compilation.compiler_options() is None


def test_an_option_that_xla_lost_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {LEVEL: 1}
    monkeypatch.setattr(compilation, "_cpu_options", lambda _: kept | {"xla_cpu_gone": True})
    assert compilation.compiler_options() == kept
    assert float(compilation.jit(lambda x: x + 1.0)(jnp.float32(1))) == 2.0


def test_a_wrong_value_is_an_error_of_ours_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_cpu_options", lambda _: {LEVEL: "many"})
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError, TypeError)):
        compilation.compiler_options()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"JAX_PLATFORMS": "cpu"}, xla_flags.NO_UNROLLING),
        ({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a=1 b=2"}, f"{xla_flags.NO_UNROLLING} --a=1 b=2"),
        ({"JAX_PLATFORMS": "tpu,cpu"}, None),
        ({"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--a=1"}, "--a=1"),
        (
            {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_extra_options=mine"},
            "--xla_backend_extra_options=mine",
        ),
    ],
)
def test_unrolling_is_off_in_processes_for_cpus(before: dict[str, str], after: str | None) -> None:
    environment = dict(before)
    xla_flags.prepare_process(environment)
    assert environment.get("XLA_FLAGS") == after


@pytest.mark.parametrize("plugin", [False, True])
def test_without_a_choice_of_platforms_plugins_decide(plugin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_flags.importlib.util, "find_spec", lambda name: plugin or None)
    environment: dict[str, str] = {}
    xla_flags.prepare_process(environment)
    assert environment.get("XLA_FLAGS") == (None if plugin else xla_flags.NO_UNROLLING)


def test_xla_takes_the_flags_of_a_prepared_process() -> None:
    """XLA ends a process whose XLA_FLAGS it does not know, and stops reading at the first word that is no
    flag."""
    program = (
        "from autoforge_jax.compilation import jit; from autoforge_jax.xla_flags import prepare_process; "
        "prepare_process(); print(float(jit(lambda: 1.5)()))"
    )
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads=1",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1.5\n"), done.stderr
