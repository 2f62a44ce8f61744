"""What can be known before the first phase costs anything. No JAX."""

from __future__ import annotations

from pathlib import Path

from autoforge_jax.errors import ConfigError
from autoforge_jax.plan.chips import chip_named
from autoforge_jax.train.rundir import RunDir

MODEL_FILES = ("config.json", "tokenizer.json")
"""What every folder for `model.init_from` holds beside its weights."""


def check_start(run: RunDir) -> None:
    """ConfigError when a later phase would end for what is wrong already: no such chip, no such model folder.
    A run that has its export asks for no model any more."""
    chip_named(run.config.mesh.chip)
    folder = run.config.model.init_from
    if folder and run.done("export") is None:
        path = Path(folder)
        where = "" if path.is_absolute() else f" (in {Path.cwd()})"
        if not path.is_dir():
            raise ConfigError(
                f"model.init_from is {folder!r}, and there is no such folder{where}; docs/pretrained.md says "
                "how to get one"
            )
        missing = [name for name in MODEL_FILES if not (path / name).is_file()]
        if missing:
            raise ConfigError(
                f"model.init_from is {folder!r}{where}, expected a Hugging Face folder; it lacks "
                f"{' and '.join(missing)}"
            )
