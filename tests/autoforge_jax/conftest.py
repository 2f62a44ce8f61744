"""Strict JAX for every test of the trainer: no silent dtype or rank promotion, compiled programs cached
between runs."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).resolve().parents[2] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
