"""One episode whose state lives in an isolated worker.

The parent keeps the call log. When a worker dies, by a breach of one episode or otherwise, every *other*
episode it held is made anew on a fresh worker from seed and log, at its next use: tools are functions of
state, context and arguments, so the result is the same, and that is checked (a digest of each answer). The
episode whose call killed the worker ends: ``ToolBreach`` with the reason. A worker that was killed from
outside, or has used up its CPU time, is nobody's fault: the call is made once more on a fresh one.

What comes back is data: an answer is parsed, a delta is checked against the initial state
before the grader sees it. No accepted state ever goes to a worker.
"""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from envgen.errors import ToolBreach, ToolDefect
from envgen.runtime.isolation.pool import Base, WorkerPool
from envgen.runtime.isolation.process import Worker, WorkerGone
from envgen.runtime.state import Delta, State
from envgen.runtime.tools import ToolOutcome, ToolTable, checked_call, error_text

_MAX_DEPTH = 64
_MAX_DETAIL = 400
_numbers = itertools.count(1)
_REASONS = {"time": "tool_timeout", "lost": "worker_lost"}


def breach(tool: str, gone: WorkerGone) -> ToolBreach:
    """The error that ends the episode whose call took the worker down."""
    return ToolBreach(
        f"tool {tool!r} took its isolated worker down: {gone.detail}; fix its function in tools.py",
        _REASONS.get(gone.kind, "tool_breach"),
    )


def defect(tool: str, arguments: Mapping[str, Any], detail: object) -> ToolDefect:
    """The error for a tool that broke inside its worker: the words of ``tools.call_tool``."""
    text = str(detail)[:_MAX_DETAIL]
    return ToolDefect(f"tool {tool!r} broke on arguments {arguments!r}: {text}; fix its function in tools.py")


def _depth_ok(value: Any, left: int = _MAX_DEPTH) -> bool:
    if isinstance(value, dict):
        return left > 0 and all(_depth_ok(v, left - 1) for v in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return left > 0 and all(_depth_ok(v, left - 1) for v in cast("list[Any]", value))
    return True


def read_delta(value: Any, base: Mapping[str, Mapping[str, Any]], collections: frozenset[str]) -> Delta:
    """A worker's delta, checked: shape, collections, keys that must or must not be in the base, depth.

    Raises ValueError saying what is wrong with it.
    """
    if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != {
        "inserted",
        "updated",
        "deleted",
    }:
        raise ValueError("a delta has inserted, updated and deleted")
    parts = cast("dict[str, Any]", value)
    if not all(isinstance(part, dict) for part in parts.values()) or not _depth_ok(parts):
        raise ValueError("its parts are objects, not too deep")
    for kind, part in parts.items():
        for name, records in cast("dict[str, Any]", part).items():
            if name not in collections:
                raise ValueError(f"no collection {name[:60]!r}")
            known = base.get(name, {})
            if kind == "deleted":
                keys = cast("list[Any]", records) if isinstance(records, list) else [None]
                good = all(type(k) is str and k in known for k in keys)
            else:
                table = cast("dict[str, Any]", records) if isinstance(records, dict) else {"": None}
                wanted = kind == "updated"
                good = all(isinstance(r, dict) and (k in known) is wanted for k, r in table.items())
            if not good:
                raise ValueError(f"{kind} records of {name!r} do not fit the initial state")
    deleted = {name: tuple(cast("list[str]", keys)) for name, keys in parts["deleted"].items()}
    if any(k in parts["updated"].get(name, ()) for name, keys in deleted.items() for k in keys):
        raise ValueError("a record is both updated and deleted")
    return Delta(parts["inserted"], parts["updated"], deleted)


def state_with(base: Any, delta: Delta, collections: frozenset[str]) -> State:
    """A state of this process: ``base`` with ``delta`` applied."""
    state = State(base, collections)
    apply_delta(state, delta)
    return state


def apply_delta(state: State, delta: Delta) -> None:
    """Write a delta into a state, as one more change of its running transaction."""
    for name, keys in delta.deleted.items():
        for key in keys:
            state.delete(name, key)
    for name, records in delta.updated.items():
        for key, record in records.items():
            old = state.get(name, key)
            if old is not None and not old.keys() <= record.keys():  # an update cannot take fields away
                state.delete(name, key)
                state.insert(name, key, record)
            else:
                state.update(name, key, record)
    for name, records in delta.inserted.items():
        for key, record in records.items():
            state.insert(name, key, record)


@dataclass(frozen=True, slots=True)
class IsolatedCall:
    """A call whose arguments are checked and which waits for its worker: alone (``run``) or together with
    those of other episodes (``batch.run_calls``)."""

    episode: IsolatedEpisode
    name: str
    arguments: dict[str, Any]

    def run(self) -> ToolOutcome:
        """Ask the worker now. Raises what ``IsolatedEpisode.call`` raises."""
        return self.episode.run(self)


class IsolatedEpisode:
    """Calls and changes of one episode, in a worker of ``pool``.

    ``table`` are the compiled argument checks, ``collections`` the names of the schema, ``base`` the initial
    state, ``clock`` and ``seed`` what `ToolContext` takes.
    """

    def __init__(
        self,
        pool: WorkerPool,
        table: ToolTable,
        collections: frozenset[str],
        base: Base,
        clock: str,
        seed: int,
    ) -> None:
        self._pool = pool
        self._table = table
        self._collections = collections
        self._base = base
        self._clock = clock
        self._seed = seed
        self._log: list[tuple[str, dict[str, Any], int]] = []
        self._worker: Worker | None = None
        self._number = 0
        self._drop: weakref.finalize[Any, Any] | None = None

    def call(
        self, name: str, arguments: str | Mapping[str, Any], table: ToolTable | None = None
    ) -> ToolOutcome:
        """One call, as ``tools.call_tool`` answers it; of the tools in ``table`` where one is given.

        Raises ToolDefect when the function broke, ToolBreach (its ``reason`` names the ending) when it broke
        a limit; the changes of such a call are not kept.
        """
        prepared = self.prepare(name, arguments, table)
        return self.run(prepared) if isinstance(prepared, IsolatedCall) else prepared

    def prepare(
        self, name: str, arguments: str | Mapping[str, Any], table: ToolTable | None = None
    ) -> ToolOutcome | IsolatedCall:
        """The call with its arguments checked, or the observation that says what is wrong with them."""
        checked = checked_call(
            self._pool.tool_names, self._table if table is None else table, name, arguments
        )
        return checked if isinstance(checked, ToolOutcome) else IsolatedCall(self, name, checked)

    def run(self, call: IsolatedCall) -> ToolOutcome:
        """Make one prepared call. Raises as ``call``."""
        return self.take(call, *self._ask(call.name, "call", call.name, call.arguments))

    def take(self, call: IsolatedCall, status: str, value: Any, text: bytes) -> ToolOutcome:
        """Record the worker's answer to a call (status, value, the value's JSON). Raises ToolDefect."""
        if status == "ok":
            self._log.append((call.name, call.arguments, zlib.crc32(text)))
            return ToolOutcome(value, False, text.decode())
        if status == "error" and type(value) is str:
            self._log.append((call.name, call.arguments, zlib.crc32(text)))
            return ToolOutcome(value, True, error_text(value))
        raise defect(call.name, call.arguments, value)

    def delta(self) -> Delta:
        """What the episode has changed. Raises ToolBreach or ToolDefect when it cannot be had."""
        status, value, _ = self._ask("the state", "delta")
        try:
            if status != "ok":
                raise ValueError(f"status {status}")
            return read_delta(value, self._base.data, self._collections)
        except ValueError as error:
            raise ToolBreach(
                f"an isolated worker sent changes that are none: {error}; fix tools.py", "tool_breach"
            ) from None

    def state(self) -> State:
        """The state as it is now, in this process: a copy."""
        return state_with(self._base.data, self.delta(), self._collections)

    def fork(self) -> IsolatedEpisode:
        """Another episode at the same point; the two do not touch each other."""
        other = IsolatedEpisode(
            self._pool, self._table, self._collections, self._base, self._clock, self._seed
        )
        other._log = list(self._log)
        return other

    # ---------------------------------------------------------------- inside
    def _ask(self, tool: str, operation: str, *operands: Any) -> tuple[str, Any, bytes]:
        """(status, value, the value's JSON), on a worker that has the episode. Raises ToolBreach."""
        for attempt in (1, 2):
            try:
                worker, number, opening = self.placed()
                return worker.ask(operation, number, *operands, opening=opening)
            except WorkerGone as gone:
                self.leave()
                if gone.kind != "lost" or attempt == 2:
                    raise breach(tool, gone) from None
        raise AssertionError("unreachable")

    @property
    def place(self) -> Worker | WorkerPool:
        """The worker that has this episode, or the pool that has yet to find it one."""
        return self._worker if self._worker is not None and self._worker.alive else self._pool

    def placed(self) -> tuple[Worker, int, tuple[int, int, str, int] | None]:
        """A live worker that has this episode, its number there, and what the next request must open first.
        Raises WorkerGone (``leave``, and ask again) and ToolDefect."""
        worker, opening = self._worker, None
        if worker is None or not worker.alive:
            worker, opening = self._place()
        return worker, self._number, opening

    def leave(self) -> None:
        """Give up the worker, which is gone; the next request finds another."""
        if self._drop is not None:
            self._drop()
        self._drop = self._worker = None

    def _place(self) -> tuple[Worker, tuple[int, int, str, int] | None]:
        """Bind the episode to a worker and repeat its log there. A new one is opened by its first request:
        with what comes back. Raises WorkerGone, or ToolDefect when the answers are not those of the first
        time."""
        self.leave()
        worker = self._pool.worker(self._base)
        number = next(_numbers)
        worker.episodes.add(number)
        self._drop = weakref.finalize(self, worker.drop, number)
        self._drop.atexit = False
        opening = (number, self._base.number, self._clock, self._seed)
        for name, arguments, digest in self._log:
            _, _, text = worker.ask("call", number, name, arguments, opening=opening)
            opening = None
            if zlib.crc32(text) != digest:
                raise ToolDefect(
                    f"tool {name!r} answered otherwise when its episode was made anew on a fresh worker; a "
                    "tool is a function of state, context and arguments alone"
                )
        self._worker, self._number = worker, number
        return worker, opening
