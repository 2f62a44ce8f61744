"""What a config cannot be, whatever is computed: said by `autoforge plan`, and by every other command before
its first phase. No JAX."""

from __future__ import annotations

from pathlib import Path

from autoforge_jax.config import Config, OptimizerConfig
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.fit import check_mesh, check_retrieval, check_targets
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.tokenizer import PolicyTokenizer


def check_possible(config: Config, shape: Qwen3Config, *, vocabulary: bool = True) -> None:
    """ConfigError or WeightsError when a model of this shape cannot be trained as the config says: mesh,
    rows, adapters, start, positions, learning rates.

    vocabulary: False when `shape.vocab_size` is not the one that training will have.
    """
    check_mesh(config.mesh, shape, config.batch.rows_per_microbatch, vocabulary=vocabulary)
    check_targets(config.lora, shape)
    if config.model.init == "retrieval":
        check_retrieval(shape)
    longest = config.rollout.max_trajectory_tokens
    if longest > shape.max_position:
        raise ConfigError(
            f"rollout.max_trajectory_tokens is {longest}, the model takes {shape.max_position} positions "
            "(max_position_embeddings in the config.json of model.init_from, else model.max_position); lower "
            "rollout.max_trajectory_tokens"
        )
    check_schedule(config.sft.optimizer, config.sft.steps, "sft.optimizer")
    updates = config.erpo.steps * config.erpo.minibatches
    check_schedule(config.erpo.optimizer, updates, "erpo.optimizer")


def check_schedule(config: OptimizerConfig, total_steps: int, where: str = "optimizer") -> None:
    """ConfigError when the warm-up leaves none of `total_steps` updates for the decay; a phase of no steps
    needs no schedule."""
    decays = config.schedule != "constant" and total_steps > 0
    if decays and total_steps - config.warmup_steps < 1:
        raise ConfigError(
            f"{where}.warmup_steps {config.warmup_steps} leaves nothing of {total_steps} steps for the "
            f'{config.schedule} decay: lower warmup_steps, raise steps, or set schedule = "constant"'
        )


def check_tokenizer(config: Config, shape: Qwen3Config) -> None:
    """ConfigError when the tokenizer of `model.init_from` is broken, lacks what `render.format` writes, or
    has more ids than the model has embeddings. Nothing without such a file."""
    folder = Path(config.model.init_from)
    if config.model.init_from and (folder / "tokenizer.json").is_file():
        check_vocabulary(PolicyTokenizer.load(folder, FORMATS[config.render.format].roles), shape, folder)


def check_vocabulary(tokenizer: PolicyTokenizer, shape: Qwen3Config, folder: Path) -> None:
    """ConfigError when a tokenizer has ids that the model of `folder` has no embedding for."""
    if shape.vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"{folder}: config.json says {shape.vocab_size} embeddings (vocab_size), its tokenizer.json has "
            f"{tokenizer.vocab_size} ids; take both files from the same model"
        )
