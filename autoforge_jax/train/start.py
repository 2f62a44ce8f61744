"""What can be known before the first phase costs anything, and before `--fresh` deletes anything.

No JAX, except where a mesh or a kernel is asked for by name: whether this machine has them only JAX can say.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from autoforge_jax.config import Config
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.hf_config import stored_shape
from autoforge_jax.model.hf_files import HFTensors
from autoforge_jax.plan.chips import chip_named
from autoforge_jax.plan.possible import check_possible, check_tokenizer
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.phase_synthesis import sources
from autoforge_jax.train.rundir import RunDir
from envgen.interface import read_tool_doc

MODEL_FILES = ("config.json", "tokenizer.json")
"""What every folder for `model.init_from` holds beside its weights."""


def check_start(config: Config, run: RunDir | None = None, crew: Crew | None = None) -> None:
    """ConfigError, WeightsError, or envgen's DocumentError or LLMError, when a later phase would end for what
    is wrong already: documents, chip, model folder, mesh, adapters, schedules, kernel, devices, processes,
    servers.

    run: the run directory as it will be used; None for one that starts from nothing. A run that has its
    export asks for no model any more.
    """
    crew = crew or Crew()
    chip_named(config.mesh.chip)
    _check_cache(config.run.compile_cache)
    listed = sources(config.synthesis)
    if run is None or run.done("synthesis") is None:
        for source in listed:
            if not source.is_bundle:
                read_tool_doc(source.path)  # the last of many is read before the first is synthesised
    if run is not None and run.done("export") is not None:
        return
    _check_processes(config, crew.count)
    if config.model.init_from:
        shape = _folder_shape(config, weights=run is None or run.done("warm start") is None)
    else:
        shape = Qwen3Config.from_model_config(config.model, config.tokenizer.vocab_size)
    # A tokenizer that was made may have fewer ids than were asked for; the learner checks those.
    made = run is not None and run.done("tokenizer") is not None
    check_possible(config, shape, vocabulary=bool(config.model.init_from) or not made)
    _check_machine(config, shape, crew.count)
    _check_launch(config)
    if "model" in config.user.kind or "model" in config.judge.kind:
        Conditions.of(config)


def _check_cache(folder: str) -> None:
    """ConfigError when compiled programs cannot be kept where the config says: JAX would warn at each one."""
    if folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run.compile_cache is {folder!r}, where nothing can be written ({error.strerror}); name "
                'another folder, or "" for none'
            ) from error


def _folder_shape(config: Config, *, weights: bool) -> Qwen3Config:
    """The shape that `model.init_from` says; ConfigError or WeightsError when it is no folder to start from.
    weights: the headers of its files are read too."""
    folder = config.model.init_from
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
    shape = stored_shape(path, config.model)
    if weights:
        check_tokenizer(config, shape)
        with HFTensors(path):
            pass  # opening them finds files that are missing, cut short or quantised
    return shape


def _check_processes(config: Config, processes: int) -> None:
    """ConfigError for what several processes cannot do together."""
    if processes == 1:
        return
    if config.erpo.old_policy == "learner":
        raise ConfigError(
            f'erpo.old_policy = "learner" with {processes} processes: each holds a part of a batch\'s '
            'log-probs only. Set it to "engine"'
        )
    if config.erpo.max_staleness:
        raise ConfigError(
            f"erpo.max_staleness is {config.erpo.max_staleness} with {processes} processes, which must all "
            "learn from the same groups while timing decides which are there. Set it to 0"
        )


def _check_machine(config: Config, shape: Qwen3Config, processes: int) -> None:
    """ConfigError when the mesh or the kernel that the config names is not to be had here."""
    named = config.model.attention not in ("auto", "xla")
    if config.mesh.size == 1 and processes == 1 and not named:
        return
    import jax

    from autoforge_jax.model.fit import check_devices
    from autoforge_jax.numerics.kernels import kernel_of

    check_devices(config.mesh, jax.device_count(), processes)
    if named:
        kernel_of(config, shape, jax.default_backend())


def _check_launch(config: Config) -> None:
    """ConfigError when the command that starts an SGLang server is none."""
    rollout = config.rollout
    if rollout.engine != "sglang" or not rollout.sglang.launch:
        return
    program = rollout.sglang.launch[0]
    if shutil.which(program) is None:
        raise ConfigError(
            f"rollout.sglang.launch starts with {program!r}, which is no program that can be run from "
            f"{Path.cwd()}; give its path (docs/sglang.md says how to install SGLang), or leave launch empty "
            "for servers that run already"
        )
