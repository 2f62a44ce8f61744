"""One command at a time on a run directory. No JAX."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoforge_jax.config import Config
from autoforge_jax.errors import ConfigError, TrainingError

_HELD = (errno.EACCES, errno.EAGAIN)
_UNKNOWN = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)
"""What file systems answer that know no locks (some object stores that are mounted)."""


def lock_path(config: Config) -> Path:
    """The lock file of a run: beside its directory, which ``--fresh`` deletes."""
    return Path(config.run.out_dir) / f".{config.run.name}.lock"


@contextmanager
def run_lock(config: Config) -> Iterator[bool]:
    """Hold the run directory of `config` for as long as the block lasts; the system lets go of it however the
    process ends, and no child process holds on to it (POSIX record lock).

    Yields False on a file system without locks, where nothing is held. Raises TrainingError that names the
    process which holds it, ConfigError when `run.out_dir` cannot be written to.
    """
    path = lock_path(config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"run.out_dir: nothing can be written in {config.run.out_dir!r} ({error.strerror}: "
            f"{error.filename}); choose a folder that can be made and written to"
        ) from error
    with opened as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _UNKNOWN:
                yield False
                return
            if error.errno not in _HELD:
                raise
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise TrainingError(
                f"{path.parent / config.run.name} is in use by {holder}: two commands would write over each "
                "other's results; wait for it or stop it, or take another run directory (--set run.name=…)"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield True
