"""What several processes do with one run's episodes and batches: share out, exchange, compare.

Episodes are shared out: each process runs every `count`-th job with an engine and environments of its own,
then all get all trajectories, so that every process packs the same batches. Engines that are servers are
driven by the first process alone. Nothing here needs the processes to be equally fast; they meet when the
jobs of a call are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from autoforge_jax.data.batch import Batch
from autoforge_jax.rollout.jobs import EpisodeJob
from autoforge_jax.rollout.pool import RunEpisodes, run_episodes
from autoforge_jax.train.crew import Crew
from autoforge_jax.types import Trajectory


def shared_episodes(crew: Crew, *, by_all: bool) -> RunEpisodes:
    """`run_episodes` over all processes (or, with `by_all` False, by the first for all): same jobs in, same
    trajectories out, in every process. `on_done` hears of this process's own episodes."""
    if crew.count == 1:
        return run_episodes

    def run(policy: Any, jobs: Sequence[EpisodeJob], renderer: Any, **settings: Any) -> list[Trajectory]:
        owners = [index % crew.count if by_all else 0 for index in range(len(jobs))]
        mine = [job for job, owner in zip(jobs, owners, strict=True) if owner == crew.index]
        own = run_episodes(policy, mine, renderer, **settings)
        queues = [iter(part) for part in crew.gather("trajectories", own)]
        return [next(queues[owner]) for owner in owners]

    return run


def batches_digest(batches: Iterable[Batch]) -> str:
    """Hash of what this process is about to train on: every array that lies on the host, shape and bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for leaf in jax.tree.leaves(batch):
            if not isinstance(leaf, jax.Array):
                value = np.ascontiguousarray(leaf)
                digest.update(f"{value.dtype}{value.shape}".encode())
                digest.update(value.tobytes())
    return digest.hexdigest()


def trajectories_digest(trajectories: Iterable[Trajectory]) -> str:
    """Hash of the token ids and masks of trajectories."""
    digest = hashlib.blake2b(digest_size=8)
    for trajectory in trajectories:
        digest.update(f"{trajectory.task_id} {trajectory.token_ids} {trajectory.action_mask}".encode())
    return digest.hexdigest()
