"""Peak numbers of the chips that `autoforge plan` knows, from chips.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from autoforge_jax.errors import ConfigError


@dataclass(frozen=True)
class Chip:
    """One chip at its best. Times follow from these; no chip reaches them."""

    name: str
    flops: float
    """Matrix products per second in bfloat16, dense."""
    flops_f32: float
    """The same for float32 inputs as XLA computes them there."""
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes per second to its own memory."""
    links: float
    """Bytes per second to the other chips of its slice or box, one direction."""
    source: str
    torus: int = 0
    """Axes of its slices' shape when it is a TPU."""

    @property
    def platform(self) -> str:
        """As JAX calls it."""
        return "tpu" if self.torus else "cpu" if self.name.endswith("CPU core") else "gpu"

    def peak(self, dtype: str) -> float:
        """FLOP per second for a compute type."""
        return self.flops if dtype == "bfloat16" else self.flops_f32


def chips() -> dict[str, Chip]:
    """Name in a config -> chip."""
    text = files("autoforge_jax.plan").joinpath("chips.toml").read_text(encoding="utf-8")
    return {key: Chip(**values) for key, values in tomllib.loads(text).items()}


def chip_named(key: str) -> Chip:
    """The chip of a name; ConfigError that lists the known ones."""
    known = chips()
    if key not in known:
        raise ConfigError(f"no chip is called {key!r}; known: {', '.join(known)} (plan/chips.toml)")
    return known[key]
