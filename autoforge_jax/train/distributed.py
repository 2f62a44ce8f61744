"""Several processes, one mesh: joining them, and waiting for each other with an end.

Process 0 listens where `mesh.coordinator` says; every process is told its own number
(AUTOFORGE_PROCESS_ID), or `auto` asks the cluster (Cloud TPU, Slurm). A barrier that is not reached in time
is an error that names the processes that are late.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from autoforge_jax.config import MeshConfig
from autoforge_jax.errors import ConfigError, TrainingError


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
    if ":" not in coordinator:
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


def join(mesh: MeshConfig, member: Membership) -> None:
    """Become one of `member.processes`; returns when all are there.

    Call it before anything else asks JAX for a device. TrainingError when they are not all there after
    `mesh.timeout_s`.
    """
    # The only collectives that XLA:CPU has between processes; other devices do not read it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
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


def barrier(name: str, timeout_s: float) -> None:
    """Wait until every process has called this with the same `name` (used once); nothing to do on one.

    TrainingError that names the processes that had not come after `timeout_s` seconds.
    """
    if jax.process_count() == 1:
        return
    from jax._src import distributed  # the client has no public name; jax.experimental uses it the same way

    client = distributed.global_state.client
    if client is None:
        raise TrainingError(f"barrier {name!r}: no connection to the coordinator; call join first")
    client.key_value_set(f"autoforge/{name}/{jax.process_index()}", "here")
    try:
        client.wait_at_barrier(f"autoforge/{name}", int(timeout_s * 1000))
    except RuntimeError as error:
        here = {int(key.rsplit("/", 1)[1]) for key, _ in client.key_value_dir_get(f"autoforge/{name}/")}
        late = sorted(set(range(jax.process_count())) - here)
        raise TrainingError(
            f"barrier {name!r}: process {', '.join(map(str, late)) or 'unknown'} of {jax.process_count()} "
            f"did not come within {timeout_s:g} s"
        ) from error


def preflight(mesh: MeshConfig) -> str:
    """Join, meet at a barrier, and add up one number per process over the network. Returns a line of
    facts.

    Raises TrainingError when a process is missing or the sum is wrong.
    """
    member = membership(mesh)
    if member is not None:
        join(mesh, member)
    barrier("preflight", mesh.timeout_s)
    count, index = jax.process_count(), jax.process_index()
    total = int(multihost_utils.process_allgather(jnp.asarray(index + 1, jnp.int32)).sum())
    if total != count * (count + 1) // 2:
        raise TrainingError(f"processes 1 to {count} add up to {total}; the network changes what it carries")
    kind = jax.devices()[0].device_kind
    return (
        f"process {index} of {count}: {jax.local_device_count()} of {jax.device_count()} devices ({kind}), "
        f"sum over processes {total} as expected"
    )
