"""What a worker may use, and which guarantees the machine must give before unvetted code is started.

A guarantee is a promise to the caller; a layer is one mechanism of the kernel that helps to keep it.
``missing`` says which promises the layers at hand do not keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAYERS: Mapping[str, str] = {
    "user": "runs as an unprivileged user, without capabilities",
    "namespaces": "own user, network, mount, IPC and host-name namespace",
    "chroot": "its root is a private, empty, temporary folder",
    "landlock": "no file system access, no TCP, no signals out of the worker",
    "seccomp": "system calls for computing and its own socket only, no executable memory",
    "rlimits": "address space, CPU, file size, processes, open files, core files",
}
"""Layer -> what it does, in the order in which a worker puts them on."""

GUARANTEES: Mapping[str, tuple[str, ...]] = {
    "files": ("seccomp", "landlock", "chroot"),
    "network": ("seccomp", "namespaces"),
    "processes": ("seccomp",),
    "resources": ("rlimits",),
}
"""Promise -> layers of which any one keeps it. The time per call and the size of an answer are kept by the
parent and need no layer."""


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of one isolated worker.

    ``call_timeout_s``: wall time of one tool call. ``start_timeout_s``: wall time to start and load the
    functions. ``cpu_s``: CPU time of a worker's life (it is replaced, unnoticed, at half of it).
    ``memory_bytes``: address space. ``answer_bytes``: one answer (a result, or what an episode changed).
    ``episodes_per_worker``: live episodes before another worker is started. ``accept_without``: names of
    ``GUARANTEES`` that the caller does without on a machine that cannot give them.
    """

    call_timeout_s: float = 5.0
    start_timeout_s: float = 30.0
    cpu_s: int = 300
    memory_bytes: int = 512 * 2**20
    answer_bytes: int = 8 * 2**20
    open_files: int = 16
    episodes_per_worker: int = 128
    accept_without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("call_timeout_s", "start_timeout_s", "cpu_s", "memory_bytes", "answer_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"WorkerLimits.{name}: got {getattr(self, name)!r}, expected more than 0")
        if self.episodes_per_worker < 1 or self.open_files < 4:
            raise ValueError(
                f"WorkerLimits: got episodes_per_worker {self.episodes_per_worker}, open_files "
                f"{self.open_files}; expected at least 1 and 4"
            )
        unknown = sorted(self.accept_without - set(GUARANTEES))
        if unknown:
            raise ValueError(
                f"WorkerLimits.accept_without: got {unknown}, expected names of {sorted(GUARANTEES)}"
            )


def missing(layers: Mapping[str, str]) -> dict[str, str]:
    """Guarantee -> why it is not given, for ``layers`` as a worker reports them (layer -> "" or a reason)."""
    out: dict[str, str] = {}
    for guarantee, options in GUARANTEES.items():
        reasons = [f"{layer}: {layers.get(layer, 'not reported')}" for layer in options]
        if all(layers.get(layer, "not reported") for layer in options):
            out[guarantee] = "; ".join(reasons)
    return out
