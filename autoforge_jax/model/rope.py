"""Rotary positions: the frequencies of a model, with the scalings that Llama models ship with. No JAX here:
they are constants of a program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from autoforge_jax.errors import WeightsError


@dataclass(frozen=True)
class RopeScaling:
    """How a model's rotary frequencies were stretched for contexts longer than it was first trained on."""

    kind: Literal["linear", "llama3"]
    """`linear`: every frequency divided by `factor`. `llama3`: only the slow ones, with a smooth passage."""
    factor: float
    low_freq_factor: float = 1.0
    """`llama3`: waves longer than `original_max_position` / this are divided by `factor`."""
    high_freq_factor: float = 4.0
    """`llama3`: waves shorter than `original_max_position` / this stay."""
    original_max_position: int = 8192
    """`llama3`: context length of the first training, in tokens."""

    def __post_init__(self) -> None:
        if self.factor < 1.0:
            raise WeightsError(f"rope scaling: factor is {self.factor}, expected at least 1")
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise WeightsError(
                f"rope scaling: low_freq_factor is {self.low_freq_factor} and high_freq_factor "
                f"{self.high_freq_factor}; expected 0 < low < high"
            )

    def to_hf(self) -> dict[str, Any]:
        """The entries of `rope_parameters` (transformers 5) or `rope_scaling` (4), without `rope_theta`."""
        tree: dict[str, Any] = {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "llama3":
            tree |= {
                "low_freq_factor": self.low_freq_factor,
                "high_freq_factor": self.high_freq_factor,
                "original_max_position_embeddings": self.original_max_position,
            }
        return tree


def read_rope(tree: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) of a parsed `config.json`. WeightsError for a scaling that is not built or incomplete:
    ignoring it would give another model."""
    named = tree.get("rope_parameters") or tree.get("rope_scaling") or {}
    rope = {name: value for name, value in named.items() if value is not None}
    turned = rope.get("partial_rotary_factor", tree.get("partial_rotary_factor", 1.0))
    if turned != 1.0:
        raise WeightsError(f"config.json: partial_rotary_factor is {turned}, only 1 is implemented")
    theta = float(rope.get("rope_theta", tree.get("rope_theta", 10_000.0)))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, RopeScaling("linear", float(rope["factor"]))
        if kind == "llama3":
            return theta, RopeScaling(
                "llama3",
                float(rope["factor"]),
                float(rope["low_freq_factor"]),
                float(rope["high_freq_factor"]),
                int(rope["original_max_position_embeddings"]),
            )
    except KeyError as error:
        raise WeightsError(f"config.json: rope scaling {kind!r} lacks {error.args[0]!r}") from error
    raise WeightsError(
        f"config.json: rope_type is {kind!r}, only 'default', 'linear' and 'llama3' are implemented"
    )


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> Float[np.ndarray, " head_dim/2"]:
    """Scaled angular frequencies in radians per position, float32.

    `llama3` as Llama 3.1 defines it (transformers' `_compute_llama3_parameters` gives the same): with waves
    per original context ``w = original · f / 2π``, a frequency f stays for w > high, becomes f / factor for
    w < low, and between them goes linearly in w from one to the other.
    """
    half = head_dim // 2
    frequencies = theta ** (-np.arange(half, dtype=np.float64) / half)
    slowed = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slowed.astype(np.float32)
    waves = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = np.clip((waves - low) / (high - low), 0.0, 1.0)
    return (share * frequencies + (1 - share) * slowed).astype(np.float32)
