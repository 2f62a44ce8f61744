"""The embedded rollout engine: samples turns of many sessions at once with JAX, keeping their key/value
caches across turns.

One `sample` call is one turn of each session given. It (1) computes prefixes it has not seen, once each; (2)
prefills what is new in every context, in chunks; (3) decodes on the device in blocks, dropping finished rows
between blocks. All shapes come from short lists (rows, chunk, cache width), so that the number of compiled
programs is bounded; lengths, seeds, budgets and sampling settings are runtime values. Sampling is a function
of (weights, ids, params, seed): the key of a token is folded from the request's seed and the token's
position, so batch neighbours have no part in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from autoforge_jax.errors import LedgerError, PolicyError, WeightsError
from autoforge_jax.model.cached import TILE, KVStore
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3, Weights, parameter_shapes, weights_of
from autoforge_jax.model.sharding import Layout
from autoforge_jax.rollout.engine_layout import hand_over
from autoforge_jax.rollout.engine_programs import Programs
from autoforge_jax.rollout.engine_rows import (
    CHUNK,
    DECODE_WIDTH,
    PREFILL_WIDTH,
    Batch,
    EngineSize,
    Job,
    Prefix,
    Session,
    Turn,
    arrange,
    decode_inputs,
    in_tile_order,
)
from autoforge_jax.types import SampleOutput, SampleRequest


class JaxEngine:
    """An embedded `Policy`. Load weights before the first `sample`."""

    def __init__(
        self,
        graphdef: nnx.GraphDef[Qwen3],
        config: Qwen3Config,
        *,
        slots: int,
        max_length: int,
        pad_id: int = 0,
        prefixes: int = 16,
        prefix_tokens: int = 0,
        layout: Layout | None = None,
    ) -> None:
        """slots: sessions that can live at once. max_length: tokens of a context at most, prefix and turn
        included. pad_id: what fills unused positions; it is never looked at. prefixes: shared prefixes
        kept. prefix_tokens: length of the longest one to come, where it is known: programs then do not depend
        on which came first. layout: of several devices (rollout.engine_layout)."""
        if slots < 1 or max_length < 2 or prefixes < 0:
            raise PolicyError(
                f"slots {slots}, max_length {max_length}, prefixes {prefixes}: too small to sample anything"
            )
        if not 0 <= pad_id < config.vocab_size:
            raise PolicyError(f"pad_id {pad_id} is not in the vocabulary of {config.vocab_size}")
        self._graphdef = graphdef
        self._layout = layout
        self.config = config
        self.slots = slots
        self.max_length = max_length
        self._pad_id = pad_id
        self._size = EngineSize(slots, max_length, prefixes, prefix_tokens)
        self._row_buckets = self._size.buckets
        self._scratch = self._size.scratch
        self._weights: Weights | None = None
        self._version = -1
        self._store: KVStore | None = None
        self._sessions: dict[str, Session] = {}
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._free_rows: list[int] = []
        self._free_prefix_rows: list[int] = []
        self._longest_prefix = prefix_tokens
        self._clock = 0
        self._totals = dict.fromkeys(
            ("sampled_tokens", "prefill_tokens", "prefix_tokens", "decode_row_steps", "unshared_sessions"), 0
        )
        self._seconds = {"prefill": 0.0, "decode": 0.0, "compile": 0.0}
        self._programs = Programs.of(config, self._size, layout)

    @property
    def version(self) -> int:
        """Version of the loaded weights; -1 where there are none."""
        return self._version

    @property
    def weights(self) -> Weights:
        """The loaded weights, as they arrived. PolicyError before any."""
        if self._weights is None:
            raise PolicyError("the engine has no weights yet; call load(params, version) first")
        return self._weights

    def load(self, params: nnx.State, version: int) -> None:
        """Take new weights (copied: a train step may donate its own) and drop every cache.

        Live sessions stay usable: their contexts are computed anew at the next turn. WeightsError when a
        parameter is missing, unknown or has another shape.
        """
        _check_shapes(weights_of(params), self.config)
        model = nnx.merge(self._graphdef, params)
        if model.config != self.config:
            raise WeightsError(
                f"the weights' model is {model.config}, the engine was built for {self.config}"
            )
        weights = weights_of(nnx.state(model, nnx.Param))
        self._weights = hand_over(self._layout, weights)
        self._version = version
        self._forget()
        if self._store is None:
            self._store = self._programs.new_store()

    def unload(self) -> None:
        """Let go of weights and caches, that is of all memory but compiled programs; sessions are forgotten.
        The next `sample` needs a `load` first."""
        self._forget()
        self._weights = self._store = None
        self._version = -1

    def _forget(self) -> None:
        self._sessions.clear()
        self._prefixes.clear()
        self._free_rows = list(range(self.slots - 1, -1, -1))
        self._free_prefix_rows = list(range(self._scratch - 1, self.slots - 1, -1))

    def release(self, session_id: str) -> None:
        """Forget a session; its slot is free for another. Unknown ids are fine: a weight load forgets them
        too."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._free_rows.append(session.row)
        if session.prefix is not None:
            session.prefix.sessions.discard(session_id)

    def stats(self) -> dict[str, float]:
        """Counters since construction: tokens, seconds per phase, compiled programs, and `decode_useful`, the
        share of decoded row steps that gave a token."""
        steps = self._totals["decode_row_steps"]
        return {
            **self._totals,
            **{f"{name}_seconds": value for name, value in self._seconds.items()},
            "compiles": self._programs.compiled(),
            "decode_useful": self._totals["sampled_tokens"] / steps if steps else 0.0,
            "live_sessions": len(self._sessions),
        }

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        """Sample one turn for each request; outputs in the order of the requests.

        Every request is checked before anything is computed. PolicyError: no weights, more sessions than
        slots, an id outside the vocabulary, an empty context, no room for a single token, the same session
        twice. LedgerError: a context that does not continue what the session has seen and said.
        """
        if self._weights is None:
            raise PolicyError("the engine has no weights yet; call load(params, version) first")
        self._check(requests)
        turns = [self._open(request) for request in requests]
        self._prefill_all(
            [Job(t.session.row, t.session.cached, t.session.prefix, self._new_tokens(t)) for t in turns]
        )
        for turn in turns:
            turn.session.cached = len(turn.session.token_ids) - 1 - turn.session.start
        pending = list(turns)
        while pending:
            self._decode_block(pending)
            pending = [turn for turn in pending if not turn.finished]
        self._totals["sampled_tokens"] += sum(len(turn.ids) for turn in turns)
        return [
            SampleOutput(tuple(t.ids), tuple(t.logprobs), "stop" if t.stopped else "length", self._version)
            for t in turns
        ]

    # ------------------------------------------------------------------------------------------ requests
    def _check(self, requests: Sequence[SampleRequest]) -> None:
        new: set[str] = set()
        seen: set[str] = set()
        for request in requests:
            name, ids = request.session_id, request.token_ids
            if name in seen:
                raise PolicyError(
                    f"session {name!r} stands twice in one sample call; a session has one turn at a time"
                )
            seen.add(name)
            if not ids:
                raise PolicyError(f"session {name!r}: empty context; there is nothing to continue")
            if min(ids) < 0 or max(ids) >= self.config.vocab_size:
                bad = next(i for i in ids if not 0 <= i < self.config.vocab_size)
                raise PolicyError(
                    f"session {name!r}: id {bad} is outside the vocabulary of {self.config.vocab_size}; "
                    "is this another model's tokenizer?"
                )
            if len(ids) >= self.max_length:
                raise PolicyError(
                    f"session {name!r}: context of {len(ids)} tokens leaves no room in max_length "
                    f"{self.max_length}; end the episode before its next turn or raise max_length"
                )
            if request.params.max_turn_tokens < 1:
                raise PolicyError(
                    f"session {name!r}: max_turn_tokens {request.params.max_turn_tokens}, expected at least 1"
                )
            session = self._sessions.get(name)
            if session is None:
                new.add(name)
            elif ids[: len(session.token_ids)] != session.token_ids:
                at = next(
                    (i for i, (a, b) in enumerate(zip(ids, session.token_ids, strict=False)) if a != b),
                    len(ids),
                )
                raise LedgerError(
                    f"session {name!r}: the context changed at token {at} of {len(session.token_ids)}; a "
                    "session's context only grows. Append observations to what was sampled, or release the "
                    "session and begin another"
                )
        if len(new) > len(self._free_rows):
            raise PolicyError(
                f"{len(new)} new sessions, {len(self._free_rows)} of {self.slots} slots free; "
                "release finished sessions"
            )

    def _open(self, request: SampleRequest) -> Turn:
        session = self._sessions.get(request.session_id)
        if session is None:
            session = Session(self._free_rows.pop(), self._prefix(request))
            self._sessions[request.session_id] = session
            if session.prefix is not None:
                session.prefix.sessions.add(request.session_id)
        session.token_ids = request.token_ids
        room = self.max_length - len(request.token_ids)
        return Turn(request, session, min(request.params.max_turn_tokens, room))

    def _new_tokens(self, turn: Turn) -> tuple[int, ...]:
        """What must be cached before decoding: all but the last id, which is the first input of the decode
        loop."""
        session = turn.session
        return session.token_ids[session.start + session.cached : -1]

    def _prefix(self, request: SampleRequest) -> Prefix | None:
        """The shared prefix of a new session, computed when it is new. None when it has none, or when every
        prefix row is in use by live sessions (counted in `unshared_sessions`)."""
        ids = request.token_ids[: min(request.prefix_length, len(request.token_ids) - 1)]
        if not ids:
            return None
        self._clock += 1
        prefix = self._prefixes.get(ids)
        if prefix is None:
            if not self._free_prefix_rows:
                idle = [p for p in self._prefixes.values() if not p.sessions]
                if not idle:
                    self._totals["unshared_sessions"] += 1
                    return None
                oldest = min(idle, key=lambda p: p.last_used)
                self._free_prefix_rows.append(self._prefixes.pop(oldest.token_ids).row)
            prefix = Prefix(self._free_prefix_rows.pop(), ids)
            self._prefill_all([Job(prefix.row, 0, None, ids)])
            self._prefixes[ids] = prefix
            self._totals["prefix_tokens"] += len(ids)
        prefix.last_used = self._clock
        return prefix

    # ------------------------------------------------------------------------------------------ batches
    def _prefill_all(self, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if job.tokens]
        self._totals["prefill_tokens"] += sum(len(job.tokens) for job in jobs)
        jobs.sort(key=lambda job: in_tile_order(job.prefix, job.row))
        while jobs:
            batch = arrange(jobs, self._row_buckets, self._scratch)
            own_width, prefix_width = self._widths(batch, PREFILL_WIDTH)
            tokens = np.full((batch.size, CHUNK), self._pad_id, np.int32)
            # jobs that do not fit have no position and wait for the next round
            for job, at in zip(jobs, batch.positions, strict=False):
                piece = job.tokens[:CHUNK]
                tokens[at, : len(piece)] = piece
                job.tokens = job.tokens[len(piece) :]
                job.cached += len(piece)
            self._store = self._timed(
                "prefill",
                self._programs.prefill,
                batch.rows,
                tokens,
                own_width=own_width,
                prefix_width=prefix_width,
            )
            jobs = [job for job in jobs if job.tokens]

    def _decode_block(self, pending: list[Turn]) -> None:
        """Decode one block for as many turns as fit a batch; the others wait for the next call."""
        pending.sort(key=lambda turn: in_tile_order(turn.session.prefix, turn.session.row))
        jobs = [Job(t.session.row, t.session.cached, t.session.prefix) for t in pending]
        batch = arrange(jobs, self._row_buckets, self._scratch)
        turns = pending[: len(batch.positions)]
        own_width, prefix_width = self._widths(batch, DECODE_WIDTH)
        tokens, sampling = decode_inputs(turns, batch, self._pad_id)
        # a batch that has shrunk to three quarters of a smaller size is worth re-packing
        smaller = max((n for n in self._row_buckets if n * TILE < batch.size), default=0) * TILE * 3 // 4
        self._store, out = self._timed(
            "decode",
            self._programs.decode,
            batch.rows,
            tokens,
            sampling,
            np.int32(smaller if smaller < len(turns) else 0),
            own_width=own_width,
            prefix_width=prefix_width,
            filtered=any(t.request.params.top_k > 0 or t.request.params.top_p < 1 for t in turns),
        )
        ids, logprobs, sampled, stopped, steps = jax.device_get(out)
        self._totals["decode_row_steps"] += int(steps) * batch.size
        for turn, at in zip(turns, batch.positions, strict=True):
            got = int(sampled[at])
            turn.ids.extend(ids[at, :got].tolist())
            turn.logprobs.extend(logprobs[at, :got].tolist())
            turn.stopped = bool(stopped[at])
            turn.session.cached += got
            turn.session.token_ids = turn.request.token_ids + tuple(turn.ids)

    def _widths(self, batch: Batch, smallest: int) -> tuple[int, int]:
        """Cache positions that a program reads: of the rows, and of their prefixes. The second only ever
        grows, since the shared prefixes of a run have one or two lengths and each width is another
        program."""
        own = self._size.own_width(batch.longest, smallest)
        if not batch.longest_prefix:
            return own, 0
        self._longest_prefix = max(self._longest_prefix, batch.longest_prefix)
        return own, self._size.prefix_width(self._longest_prefix)

    def _timed(self, phase: str, call: Any, *args: Any, **static: Any) -> Any:
        before, began = self._programs.compiled(), time.perf_counter()
        out = jax.block_until_ready(call(self._weights, self._store, *args, **static))
        took = time.perf_counter() - began
        # the first run of a shape is compilation all but for milliseconds
        self._seconds["compile" if self._programs.compiled() > before else phase] += took
        return out


def _check_shapes(weights: Weights, config: Qwen3Config) -> None:
    expected = parameter_shapes(config)
    got: dict[str, tuple[int, ...]] = {
        "/".join(str(part.key) for part in path): leaf.shape
        for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]
    }
    wrong = [
        f"{name}: got {got.get(name)}, expected {expected.get(name)}"
        for name in sorted(got.keys() | expected.keys())
        if got.get(name) != expected.get(name)
    ]
    if wrong:
        raise WeightsError("weights do not fit the engine's model; " + "; ".join(wrong))
