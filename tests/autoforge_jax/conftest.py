"""Strict JAX for every test of the trainer: no silent dtype or rank promotion.

Nearly all time of these tests is XLA compiling small programs. So LLVM does not optimise what then runs for a
millisecond (`JAX_DISABLE_MOST_OPTIMIZATIONS=0 make test` compiles as a run outside tests does), and workers
of a test run and the processes that tests start share compiled programs."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # programs that tests start take it over

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).resolve().parents[2] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
