"""What `autoforge doctor` prints: the facts that decide whether and how fast a run works on this machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from envgen.interface import isolation_report

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed: pip install 'autoforge-jax[train]'"


def findings() -> list[tuple[str, str]]:
    """(name, value) lines. Starts JAX when it is installed, to name its devices."""
    lines = [
        ("python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
        ("cores", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"),
    ]
    lines += isolation_report()
    lines += [(package, _version(package)) for package in PACKAGES]
    if "not installed" not in _version("jax"):
        import jax

        devices = jax.devices()
        lines.append(("jax devices", f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform})"))
    return lines
