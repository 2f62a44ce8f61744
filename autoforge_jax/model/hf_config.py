"""`config.json` of a Hugging Face folder as a model's shape. No JAX and no weights: a folder can be refused
before anything is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from autoforge_jax.config import ModelConfig
from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config


def read_hf_config(folder: Path) -> Qwen3Config:
    """`config.json` of a folder; WeightsError that names it when it is absent, broken, of another
    architecture, or of a kind that is not built."""
    path = Path(folder) / "config.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; expected a Hugging Face model folder") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise WeightsError(f"{path} holds {type(tree).__name__}, expected an object")
    try:
        return Qwen3Config.from_hf(tree)
    except WeightsError as error:
        raise WeightsError(f"{folder}: {error}") from error


def stored_shape(folder: Path, section: ModelConfig) -> Qwen3Config:
    """`read_hf_config`, with the choices of `[model]` that no checkpoint makes: remat and the balance
    loss."""
    shape = replace(read_hf_config(folder), remat=section.remat, remat_saves=section.remat_saves)
    if shape.experts is None:
        return shape
    return replace(shape, experts=replace(shape.experts, balance=section.experts.balance))
