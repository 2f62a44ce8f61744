"""How sessions become batches of the embedded engine: which rows, in which order, in arrays of which few
sizes. No JAX calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoforge_jax.compilation import target_platform
from autoforge_jax.model.cached import TILE, Rows, Sampling
from autoforge_jax.numerics.sampling import uniforms
from autoforge_jax.types import SampleRequest

CHUNK = 32
"""Tokens per prefill chunk."""
BLOCK = 32
"""Tokens per decode block; finished rows leave the batch between blocks."""
DECODE_WIDTH, PREFILL_WIDTH = 128, 256
"""Cache positions that a program reads: these times a power of two. Prefill is bound by arithmetic and gets
fewer programs."""
LANES = 128
"""Positions side by side in a TPU's vector registers."""
STOP_WIDTH = 4
"""Stop ids of a row that a decode program has room for; a row with more is another program."""
MOST_PREFIXES = 16
"""Environments whose prompts an engine keeps computed at a time, when a run has so many."""


@dataclass(frozen=True)
class EngineSize:
    """What an engine has room for, and the shapes that follow from it."""

    slots: int
    """Sessions that can live at once."""
    max_length: int
    """Tokens of a context at most, prefix and turn included."""
    prefixes: int
    """Shared prefixes kept."""
    prefix_tokens: int = 0
    """Length of the longest one to come; 0: not known."""

    @property
    def scratch(self) -> int:
        """Store row of batch rows that hold no session: the last, after those of sessions and of prefixes."""
        return self.slots + self.prefixes

    @property
    def store_rows(self) -> int:
        """Rows of the store."""
        return self.scratch + 1

    @property
    def capacity(self) -> int:
        """Positions of a store row; blocks are written whole.

        Off CPUs a multiple of `LANES`: for any other length XLA:TPU lays the store out anew in every call, in
        two copies of all of it.
        """
        least = self.max_length + max(CHUNK, BLOCK)
        return least if target_platform() == "cpu" else -(-least // LANES) * LANES

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes in tiles (`row_buckets`)."""
        return row_buckets(self.slots, self.prefixes)

    def own_width(self, longest: int, smallest: int) -> int:
        """Cache positions that a program reads of its rows, the longest of which has `longest`."""
        return min(cache_width(longest, smallest), self.capacity)

    def prefix_width(self, longest: int) -> int:
        """The same of its rows' prefixes; 0 where there are none."""
        return min(cache_width(longest, DECODE_WIDTH), self.capacity) if longest else 0


@dataclass
class Prefix:
    """A computed shared prefix."""

    row: int
    token_ids: tuple[int, ...]
    sessions: set[str] = field(default_factory=set)
    last_used: int = 0


@dataclass
class Session:
    """One live episode: everything it has been shown or has said, and how much of that is cached."""

    row: int
    prefix: Prefix | None
    token_ids: tuple[int, ...] = ()
    cached: int = 0
    """Tokens in the session's own row, after the prefix."""

    @property
    def start(self) -> int:
        """Where the session's own row begins in its ids."""
        return len(self.prefix.token_ids) if self.prefix else 0


@dataclass
class Job:
    """A row of a batch: what is appended to which store row, after which prefix."""

    row: int
    cached: int
    prefix: Prefix | None
    tokens: tuple[int, ...] = ()


@dataclass
class Turn:
    """One request while it is sampled."""

    request: SampleRequest
    session: Session
    budget: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def finished(self) -> bool:
        """A stop id was sampled, or the budget is spent."""
        return self.stopped or len(self.ids) >= self.budget


@dataclass(frozen=True)
class Batch:
    """Jobs in tiles of one prefix each."""

    positions: list[int]
    """Batch position of each job that fits: the first so many of the jobs given."""
    rows: Rows
    longest: int
    """Cached tokens of the longest row."""
    longest_prefix: int

    @property
    def size(self) -> int:
        """Rows, padding included."""
        return self.rows.row.shape[0]


def in_tile_order(prefix: Prefix | None, row: int) -> tuple[int, int]:
    """Sort key under which rows of one prefix lie side by side, and the order does not depend on the call."""
    return -1 if prefix is None else prefix.row, row


def arrange(jobs: Sequence[Job], buckets: tuple[int, ...], scratch: int) -> Batch:
    """Put as many of the jobs (in tile order) as fit into the smallest batch of `buckets` (tiles) that holds
    them; padding rows point at the store row `scratch`."""
    positions: list[int] = []
    prefixes: list[Prefix | None] = []
    for job in jobs:
        full = bool(positions) and positions[-1] % TILE == TILE - 1
        if not positions or full or job.prefix is not prefixes[-1]:
            if len(prefixes) == buckets[-1]:
                break
            prefixes.append(job.prefix)
            positions.append((len(prefixes) - 1) * TILE)
        else:
            positions.append(positions[-1] + 1)
    tiles = next(n for n in buckets if n >= len(prefixes))
    arrays: dict[str, Any] = {
        "row": np.full(tiles * TILE, scratch, np.int32),
        "length": np.zeros(tiles * TILE, np.int32),
        "prefix_row": np.full(tiles, scratch, np.int32),
        "prefix_length": np.zeros(tiles, np.int32),
    }
    for job, at in zip(jobs, positions, strict=False):  # the jobs that do not fit have no position
        arrays["row"][at], arrays["length"][at] = job.row, job.cached
        if job.prefix is not None:
            arrays["prefix_row"][at // TILE] = job.prefix.row
            arrays["prefix_length"][at // TILE] = len(job.prefix.token_ids)
    return Batch(positions, Rows(**arrays), int(arrays["length"].max()), int(arrays["prefix_length"].max()))


def decode_inputs(turns: Sequence[Turn], batch: Batch, pad_id: int) -> tuple[np.ndarray, Sampling]:
    """First inputs [B] and sampling settings of a decode block; row ``batch.positions[i]`` is turn i's."""
    size = batch.size
    stop_width = max(STOP_WIDTH, *(len(t.request.params.stop_token_ids) for t in turns))
    tokens = np.full(size, pad_id, np.int32)
    seeds, starts = np.zeros(size, np.uint64), np.zeros(size, np.int64)
    arrays: dict[str, Any] = {
        "temperature": np.ones(size, np.float32),
        "top_k": np.zeros(size, np.int32),
        "top_p": np.ones(size, np.float32),
        "stop_ids": np.full((size, stop_width), -1, np.int32),
        "budget": np.zeros(size, np.int32),
    }
    for turn, at in zip(turns, batch.positions, strict=True):
        params = turn.request.params
        tokens[at] = turn.ids[-1] if turn.ids else turn.request.token_ids[-1]
        seeds[at] = turn.request.seed & (2**64 - 1)
        starts[at] = len(turn.request.token_ids) + len(turn.ids)
        for name in ("temperature", "top_k", "top_p"):
            arrays[name][at] = getattr(params, name)
        arrays["stop_ids"][at, : len(params.stop_token_ids)] = params.stop_token_ids
        arrays["budget"][at] = turn.budget - len(turn.ids)
    uniform: Any = uniforms(seeds[:, None], starts[:, None] + np.arange(BLOCK)[None])
    return tokens, Sampling(uniform=uniform, **arrays)


def prefix_rows(environments: int) -> int:
    """Rows of a run's engine for prompts that are computed once: one for each environment, up to a limit."""
    return min(MOST_PREFIXES, max(1, environments))


def cache_width(length: int, smallest: int) -> int:
    """The smallest `smallest` × 2^n that holds `length`."""
    width = smallest
    while width < length:
        width *= 2
    return width


def row_buckets(slots: int, prefixes: int) -> tuple[int, ...]:
    """Batch sizes in tiles, ascending: the largest holds all slots plus one broken tile for up to four
    prefixes; there are two smaller ones, each about a third of the next."""
    full = -(-slots // TILE) + min(4, prefixes, slots // TILE)
    return tuple(sorted({max(1, full // 9), max(1, full // 3), full}))
