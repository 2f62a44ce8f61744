"""Strict JAX for every test of the trainer: no silent dtype or rank promotion. Nearly all of these tests' time is
XLA compiling small programs, so they are compiled quickly (LLVM does not optimise what runs for a millisecond; the
program and its arithmetic are the same) and each one once: the workers of a test run and the processes that tests
start share a cache."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # programs that tests start take it over

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).resolve().parents[2] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
