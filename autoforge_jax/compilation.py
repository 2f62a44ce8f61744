"""How XLA compiles, and for what: this process's devices, or others that it does not have (`compiling_for`).

The settings here are for CPUs. By default XLA:CPU spends most of its time in LLVM, on code for hundreds of
small kernels: copies, slices, sums. Four settings cut that time to less than half: LLVM's first level of
optimisation; the older emitters of kernels, which make less code for LLVM to work on; no unrolling of loops;
and a program's code in as many pieces as there are cores to compile them on, instead of 32. The older
emitters have a price, some per cent of a program's own speed, the others none that was measured
(docs/scale.md, docs/rollouts.md). Unrolling can only be said to the whole process, before JAX makes its first
program (`xla_flags`); the others go with each program (`jit`).

Whoever sets one of them in XLA_FLAGS, or `jax_disable_most_optimizations` (as our tests do), has the last
word.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import jax

from autoforge_jax.xla_flags import user_flags

MOST_PIECES = 32
"""XLA's own number of pieces."""


_TARGET: ContextVar[str] = ContextVar("target platform", default="")


def target_platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``: what programs are traced and compiled for. What depends on the platform
    asks here, not JAX."""
    return _TARGET.get() or jax.default_backend()


@contextmanager
def compiling_for(platform: str) -> Iterator[None]:
    """Programs made and traced meanwhile are for another platform than this process's own."""
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)


def jit(function: Callable[..., Any], *, older_emitters: bool = True, **options: Any) -> Any:
    """`jax.jit` with the compile options of `target_platform`. Starts JAX's backend.

    older_emitters: False for a program that runs so often that its own speed counts for more (the engine's).
    """
    return jax.jit(function, compiler_options=compiler_options(older_emitters), **options)


def compiler_options(older_emitters: bool = True) -> dict[str, bool | int] | None:
    """The settings as far as this XLA knows them and the user has not set them; None off CPUs."""
    if target_platform() != "cpu" or jax.config.read("jax_disable_most_optimizations"):
        return None
    flags = user_flags()
    chosen = {
        name: value
        for name, value in _cpu_options(older_emitters).items()
        if f"--{name}" not in flags and _known(name, value)
    }
    return chosen or None


def _cpu_options(older_emitters: bool) -> dict[str, bool | int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    options: dict[str, bool | int] = {
        "xla_backend_optimization_level": 1,
        "xla_cpu_parallel_codegen_split_count": min(cores, MOST_PIECES),
    }
    return options | {"xla_cpu_use_fusion_emitters": False} if older_emitters else options


@lru_cache
def _known(option: str, value: bool | int) -> bool:
    """XLA's options come and go with its versions, and an unknown one is an error."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" in str(error):
            return False
        raise
    return True
