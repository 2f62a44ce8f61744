"""What a tool knows besides state and arguments: a virtual clock and an id maker.

Both are functions of the seed and of the calls made so far, and of nothing else: no wall clock, no
``random``, no ``hash()`` (which changes with PYTHONHASHSEED). Two episodes with the same seed and the same
calls get the same ids and times.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from envgen.errors import TaskError
from envgen.runtime.state import State

if TYPE_CHECKING:  # isolated workers import this module: no pydantic
    from envgen.types import StateSchema


@dataclass(frozen=True)
class KeyStyle:
    """How new keys of a collection look: ``prefix`` + number (``E41``), or an integer where the document
    says so."""

    prefix: str
    integer: bool = False


def _prefix_candidates(entity: str, name: str) -> list[str]:
    words = [w for w in (entity or name).replace("_", " ").upper().split() if w[:1].isalpha()] or ["X"]
    first = words[0]
    out: list[str] = []
    if len(words) > 1:
        out.append(first[0] + words[1][0])
    out.append(first[0])
    rest = [c for c in "".join(words)[1:] if c.isalpha()]
    out += [first[0] + c for c in rest if c not in "AEIOU"]  # TL for tool
    out += [first[0] + c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    return out


def key_styles(schema: StateSchema) -> dict[str, KeyStyle]:
    """The shipped rule for keys: 1-2 letters of the entity, different for each collection; integers where
    the key field is one.

    Used for new records by ``ToolContext`` and, by the sampler, for the initial state, so that both look
    alike.
    """
    taken: set[str] = set()
    styles: dict[str, KeyStyle] = {}
    for collection in schema.collections:
        types = {f.name: f.type for f in collection.fields}
        integer = types.get(collection.key) == "integer"
        prefix = next(
            (p for p in _prefix_candidates(collection.entity, collection.name) if p not in taken), ""
        )
        if not prefix:  # more than 26 collections that start with one letter
            prefix = next(
                f"{a}{b}" for a in "QXZYWVUJK" for b in "QXZYWVUJKABCDEFGH" if f"{a}{b}" not in taken
            )
        taken.add(prefix)
        styles[collection.name] = KeyStyle(prefix, integer)
    return styles


def mix(*parts: int) -> int:
    """A well-spread 32-bit number of some integers: CRC-32 of their decimal text, the same on every machine
    and run."""
    return zlib.crc32(",".join(map(str, parts)).encode())


class ToolContext:
    """Clock and ids of one episode.

    ``clock`` is the ISO time the task starts at; the first call sees it one minute later. ``seed`` decides
    the ids. ``key_styles`` gives the form of each collection's keys. ``run_tool`` calls ``begin_call``
    before each tool.
    """

    __slots__ = ("_calls", "_made", "_saved", "_start", "_state", "_styles", "seed")

    def __init__(self, clock: str, seed: int, key_styles: Mapping[str, KeyStyle]) -> None:
        try:
            self._start = datetime.fromisoformat(clock)
        except ValueError as error:
            raise TaskError(
                f"clock: got {clock!r}, expected an ISO time such as 2026-03-02T09:00:00"
            ) from error
        self.seed = seed
        self._styles = key_styles
        self._calls = 0
        self._made: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._state: State | None = None

    def __repr__(self) -> str:
        return "ToolContext()"

    def begin_call(self, state: State) -> None:
        """Advance the clock by one minute and remember the state whose keys new ids must avoid."""
        self._calls += 1
        self._state = state
        self._saved = dict(self._made) if self._made else {}

    def fork(self) -> ToolContext:
        """A second context with the same clock and the same ids to come."""
        other = ToolContext.__new__(ToolContext)
        other.seed = self.seed
        other._start = self._start
        other._styles = self._styles
        other._calls = self._calls
        other._made = dict(self._made)
        other._saved = dict(self._saved)
        other._state = None  # the next call names the state of its own
        return other

    def rollback(self) -> None:
        """Forget ids handed out since ``begin_call``: a failed call leaves no trace in later ids. The clock
        keeps going."""
        self._made = self._saved

    def saved(self) -> dict[str, Any]:
        """All that decides later times and ids, as JSON: ``revived`` makes an equal context of it."""
        return {
            "clock": self._start.isoformat(),
            "seed": self.seed,
            "calls": self._calls,
            "made": dict(self._made),
        }

    @classmethod
    def revived(cls, saved: Mapping[str, Any], key_styles: Mapping[str, KeyStyle]) -> ToolContext:
        """The context that ``saved`` was taken from."""
        context = cls(saved["clock"], saved["seed"], key_styles)
        context._calls = saved["calls"]
        context._made = dict(saved["made"])
        return context

    def take_made(self, made: Mapping[str, int]) -> None:
        """Note the ids that the running call handed out elsewhere: the ``made`` part of ``saved`` there."""
        self._made = dict(made)

    def now(self) -> str:
        """ISO time of the current call, e.g. ``2026-03-02T09:01:00``."""
        return (self._start + timedelta(minutes=self._calls)).isoformat()

    def today(self) -> str:
        """ISO date of the current call."""
        return self.now()[:10]

    def new_id(self, collection: str) -> str | int:
        """A short key no record of ``collection`` has: two digits while there is room, then three, and so on.

        Raises KeyError for an unknown collection.
        """
        style = self._styles.get(collection)
        if style is None:
            raise KeyError(f"no key style for collection {collection!r}; known: {list(self._styles)}")
        made = self._made.get(collection, 0)
        self._made[collection] = made + 1
        salt = zlib.crc32(collection.encode())
        low, attempt = 10, 0
        while True:
            number = low + mix(self.seed, salt, made, attempt) % (9 * low)
            key = str(number) if style.integer else f"{style.prefix}{number}"
            if not self._taken(collection, key):
                self._note(collection, key)
                return number if style.integer else key
            attempt += 1
            if attempt % 16 == 0:  # crowded: take one more digit
                low *= 10

    def _taken(self, collection: str, key: str) -> bool:
        if f"{collection}/{key}" in self._made:
            return True
        return self._state is not None and self._state.exists(collection, key)

    def _note(self, collection: str, key: str) -> None:
        # Handed out but perhaps not inserted yet (or deleted since): never hand it out again.
        self._made[f"{collection}/{key}"] = 1
