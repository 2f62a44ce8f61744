"""The same jobs on a Ray cluster (extra ``[ray]``), or on a local Ray that is started for them.

The nodes need this version of envgen installed; jobs carry everything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from envgen.errors import EnvgenError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise EnvgenError(
            "--executor ray: the package 'ray' is not installed; install envgen with its extra: pip install "
            "'autoforge-jax[ray]'"
        ) from error
    return ray  # pyright: ignore[reportUnknownVariableType]


class RayExecutor:
    """Runs jobs as Ray tasks, ``workers`` at once at most.

    ``address``: of a running cluster (``auto``: the one this machine belongs to); empty starts a local Ray
    with ``workers`` CPUs, which `close` stops. Raises EnvgenError when Ray is absent or does not answer.
    """

    def __init__(self, workers: int, address: str = "") -> None:
        if workers < 1:
            raise ValueError(f"got workers={workers}; expected 1 or more")
        self.workers = workers
        self._ray = _ray()
        self._own = not self._ray.is_initialized()
        # Nothing about this run is sent anywhere unless somebody asks for it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._own:
            options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
            if address:
                options["address"] = address
            else:
                options |= {"num_cpus": workers, "include_dashboard": False}
            try:
                self._ray.init(**options)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise EnvgenError(
                    f"Ray does not start or answer at {address or 'a local address'}: {error}; check the "
                    "address, or use --executor local"
                ) from error

    def map(self, function: Callable[[JobT], ResultT], jobs: Sequence[JobT]) -> Iterator[ResultT]:
        """See `envgen.synthesis.executors.Executor.map`. A job whose node died runs again elsewhere."""
        remote = self._ray.remote(function)
        waiting: list[Any] = []
        ahead = iter(jobs)
        for job in ahead:
            waiting.append(remote.remote(job))
            if len(waiting) == self.workers:
                break
        while waiting:
            result = self._get(waiting.pop(0))
            following = next(ahead, None)
            if following is not None:
                waiting.append(remote.remote(following))
            yield result

    def _get(self, reference: Any) -> Any:
        errors: Any = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, EnvgenError):
                raise cause from error
            raise
        except errors.RayError as error:
            raise EnvgenError(
                f"Ray lost a job: {error}; run the command again, it goes on where it was"
            ) from error

    def close(self) -> None:
        """Stop the Ray that was started here."""
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()
