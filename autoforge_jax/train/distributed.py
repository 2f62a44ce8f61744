"""Several processes, one mesh: joining them, and waiting for each other with an end.

Process 0 listens where `mesh.coordinator` says; every process is told its own number
(AUTOFORGE_PROCESS_ID), or `auto` asks the cluster (Cloud TPU, Slurm). What they then do together is
`train.crew`. JAX is imported by the first process that joins others, not before.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autoforge_jax.config import MeshConfig
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.crew import Crew


@dataclass(frozen=True)
class Membership:
    """Where this process meets the others."""

    coordinator: str
    """`host:port`, or `auto`."""
    processes: int
    process_id: int
    """From 0; -1 with `auto`."""


def membership(mesh: MeshConfig, environment: Mapping[str, str] = os.environ) -> Membership | None:
    """From the config and the AUTOFORGE_* variables, which go before it; None for one process on its own.

    Raises ConfigError when a number is missing, not a number, or out of range.
    """
    coordinator = environment.get("AUTOFORGE_COORDINATOR", mesh.coordinator)
    if not coordinator:
        return None
    if coordinator == "auto":
        return Membership("auto", 0, -1)
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"coordinator {coordinator!r}: expected host:port, or auto")
    processes = _number(environment, "AUTOFORGE_PROCESSES", mesh.processes)
    own = _number(environment, "AUTOFORGE_PROCESS_ID", None)
    if not 0 <= own < processes:
        raise ConfigError(f"AUTOFORGE_PROCESS_ID is {own}, expected 0 to {processes - 1}")
    return Membership(coordinator, processes, own)


def _number(environment: Mapping[str, str], name: str, default: int | None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f"{name} is {text!r}, expected a number; with a host:port coordinator every process needs it"
        ) from error


def join(mesh: MeshConfig, member: Membership) -> Crew:
    """Become one of `member.processes`; returns when all are there.

    Call it before anything else asks JAX for a device. TrainingError when they are not all there after
    `mesh.timeout_s`, or the coordinator's port is taken.
    """
    import jax

    # The only collectives that XLA:CPU has between processes; other devices do not read it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # SIGTERM is the run's own business (train.interrupt); JAX's service would take the signal for itself.
    jax.config.update("jax_enable_preemption_service", False)
    _check_coordinator(member, mesh.timeout_s)
    try:
        if member.coordinator == "auto":
            jax.distributed.initialize(initialization_timeout=mesh.timeout_s)
        else:
            jax.distributed.initialize(
                member.coordinator,
                member.processes,
                member.process_id,
                initialization_timeout=mesh.timeout_s,
            )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"could not join the processes at {member.coordinator} within {mesh.timeout_s} s: {error}"
        ) from error
    return Crew(jax.process_index(), jax.process_count(), CoordinatorBoard(), mesh.timeout_s)


def _check_coordinator(member: Membership, timeout_s: float) -> None:
    """What `jax.distributed.initialize` answers with a hang or an abort: process 0 binds the port, the others
    find it open."""
    if member.coordinator == "auto":
        return
    host, _, port = member.coordinator.rpartition(":")
    if member.process_id == 0:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", int(port)))
            except (OSError, OverflowError, ValueError) as error:
                raise TrainingError(
                    f"process 0 cannot listen on port {port} of mesh.coordinator ({error}); is another run "
                    "using it? End that one or choose another port"
                ) from error
        return
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5):
                return
        except (OSError, OverflowError, ValueError) as error:
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"process {member.process_id}: nobody answers at {member.coordinator} within "
                    f"{timeout_s:g} s ({error}); is process 0 running, is this its address, and is the port "
                    "open between the hosts?"
                ) from error
            time.sleep(0.2)


class CoordinatorBoard:
    """The key-value store of the coordinator that `join` connected to."""

    def __init__(self) -> None:
        # the client has no public name; jax.experimental uses it the same way
        from jax._src import distributed

        if distributed.global_state.client is None:
            raise TrainingError("no connection to a coordinator; call join first")
        self._client: Any = distributed.global_state.client

    def put(self, key: str, value: bytes) -> None:
        """See `crew.Board`."""
        self._client.key_value_set_bytes(f"autoforge/{key}", value, allow_overwrite=True)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """See `crew.Board`."""
        try:
            wait_ms = max(1, int(timeout_s * 1000))
            return self._client.blocking_key_value_get_bytes(f"autoforge/{key}", wait_ms)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise TrainingError(f"the coordinator is gone: {str(error).splitlines()[0]}") from error

    def drop(self, key: str) -> None:
        """See `crew.Board`."""
        self._client.key_value_delete(f"autoforge/{key}")


@contextmanager
def joined(mesh: MeshConfig) -> Iterator[Crew]:
    """This run's crew for the block: alone, or with the others of `mesh.coordinator`.

    An error in the block is told to the others, so that they end too instead of waiting for this process.
    """
    member = membership(mesh)
    if member is None:
        yield Crew()
        return
    crew = join(mesh, member)
    try:
        yield crew
    except Exception as error:  # a boundary between processes; raised on
        crew.fail(f"{type(error).__name__}: {error}")
        raise


def preflight(mesh: MeshConfig) -> str:
    """Join, meet, and add up one number per process over the network. Returns a line of facts.

    Raises TrainingError when a process is missing or the sum is wrong.
    """
    with joined(mesh) as crew:
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        crew.meet("preflight")
        count, index = jax.process_count(), jax.process_index()
        total = int(multihost_utils.process_allgather(jnp.asarray(index + 1, jnp.int32)).sum())
        if total != count * (count + 1) // 2:
            raise TrainingError(
                f"processes 1 to {count} add up to {total}; the network changes what it carries"
            )
        kind = jax.devices()[0].device_kind
        return (
            f"process {index} of {count}: {jax.local_device_count()} of {jax.device_count()} devices "
            f"({kind}), sum over processes {total} as expected"
        )
