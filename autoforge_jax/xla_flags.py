"""XLA_FLAGS for processes that can only use CPUs (see `compilation`). Loads without JAX."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

NO_UNROLLING = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling"
"""`jax.jit` takes no option of this kind."""
ACCELERATOR_PLUGINS = ("libtpu", "jax_plugins")
"""Modules that come with JAX for other devices than CPUs."""


def prepare_process(environment: MutableMapping[str, str] = os.environ) -> None:
    """For the start of a program, before JAX computes anything: no unrolling of loops, where JAX can only use
    CPUs. Whoever passes XLA extra options of their own, or names a file of flags, keeps them as they are."""
    flags = environment.get("XLA_FLAGS", "")
    if NO_UNROLLING.partition("=")[0] in flags or _names_a_file(flags):
        return
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms == "cpu" or not (platforms or any(map(importlib.util.find_spec, ACCELERATOR_PLUGINS))):
        # In front: XLA reads no further than the first word that is no flag.
        environment["XLA_FLAGS"] = f"{NO_UNROLLING} {flags}".rstrip()


def user_flags(environment: Mapping[str, str] = os.environ) -> str:
    """What XLA_FLAGS says, also in a file that it names. One that cannot be read says nothing here: XLA ends
    the process at it, with a message of its own."""
    flags = environment.get("XLA_FLAGS", "")
    if _names_a_file(flags):
        try:
            return Path(flags).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    return flags


def _names_a_file(flags: str) -> bool:
    """XLA takes XLA_FLAGS for the name of a file unless it begins with a flag."""
    return bool(flags.strip()) and not flags.lstrip().startswith("--")
