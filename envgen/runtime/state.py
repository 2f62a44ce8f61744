"""The live state of one episode: a copy-on-write view over a shared base that is never mutated.

Making a ``State`` copies nothing, so a reset costs the same for ten records and for ten thousand. What
changed lives in a small overlay (``inserted``, ``updated``, ``removed`` per collection); ``delta()`` hands
it to the grader. Every record that goes in or comes out is a copy, so nothing a tool does to a dict it
holds can reach the base or another episode.

Every write is also an entry of a change log, which says what changed in which order (``changes()``) and how
to undo it. A tool call is a transaction: ``begin()`` before it, ``commit()`` after it, ``rollback()`` when it
failed; undoing costs what that call wrote. ``fork()`` makes a second state that goes its own way from here;
it copies the overlay's tables and shares base and records, none of which is ever changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import orjson

from envgen.records import Record, StateData

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1  # what orjson writes


def copy_json(value: Any, where: str = "value") -> Any:
    """A deep copy of a JSON value; tuples become lists.

    Raises ``TypeError`` for anything JSON cannot hold (sets, functions, NaN, keys that are not strings).
    """
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # a cast costs a call
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise TypeError(f"{where}: got an integer of {value.bit_length()} bits, records hold at most 64")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise TypeError(f"{where}: got {value!r}, JSON has finite numbers only")
        return value
    if kind is dict:
        out: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"{where}: got the key {key!r} ({type(key).__name__}), JSON keys are strings")
            out[key] = item if type(item) is str else copy_json(item, where)
        return out
    if kind is list or kind is tuple:
        return [item if type(item) is str else copy_json(item, where) for item in value]
    raise TypeError(
        f"{where}: got {type(value).__name__}, expected JSON (str, int, float, bool, None, list, dict)"
    )


_PLAIN = frozenset((str, int, float, bool, type(None)))


def clone_json(value: Any) -> Any:
    """A deep copy of a value that is known to be JSON (it stands in a state): nothing is checked."""
    # Every read of a tool comes through here: plain values are told apart without a call.
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is dict:
        return {k: v if type(v) in _PLAIN else clone_json(v) for k, v in value.items()}
    if kind is list:
        return [v if type(v) in _PLAIN else clone_json(v) for v in value]
    return value


def same_json(a: Any, b: Any) -> bool:
    """Equal as JSON: numbers by value, and a boolean is no number (Python's ``==`` takes True for 1)."""
    if a is b:
        return True
    # Equal text is the common case and decides in C; other orders of members or 25 for 25.0 need a walk.
    return a == b and (orjson.dumps(a) == orjson.dumps(b) or not _flags_clash(a, b))


def _flags_clash(a: Any, b: Any) -> bool:
    """True when two values that Python calls equal hold a boolean where the other holds a number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return not (isinstance(a, bool) and isinstance(b, bool))
    if isinstance(a, dict):
        return any(_flags_clash(value, b[name]) for name, value in cast("dict[str, Any]", a).items())
    if isinstance(a, list | tuple):
        return any(_flags_clash(x, y) for x, y in zip(cast("list[Any]", a), b, strict=True))
    return False


@dataclass(frozen=True)
class Delta:
    """What differs from the base, per collection. Records are the live ones: read, never change.

    ``inserted`` have keys that the base does not know; ``updated`` replace a base record (only where the
    content differs); ``deleted`` are base keys that are gone.
    """

    inserted: dict[str, dict[str, Record]] = field(default_factory=dict[str, dict[str, Record]])
    updated: dict[str, dict[str, Record]] = field(default_factory=dict[str, dict[str, Record]])
    deleted: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def empty(self) -> bool:
        """True when nothing changed."""
        return not (self.inserted or self.updated or self.deleted)


class Change(NamedTuple):
    """One write. Records are the live ones: read, never change."""

    op: Literal["insert", "update", "delete"]
    collection: str
    key: str
    before: Record | None
    after: Record | None


class _Overlay:
    """Changes to one collection. Records in it are replaced, never mutated."""

    __slots__ = ("inserted", "removed", "updated")

    def __init__(self) -> None:
        self.inserted: dict[str, Record] = {}
        self.updated: dict[str, Record] = {}
        self.removed: set[str] = set()

    def copy(self) -> _Overlay:
        other = _Overlay()
        other.inserted = dict(self.inserted)
        other.updated = dict(self.updated)
        other.removed = set(self.removed)
        return other


class _Undo(NamedTuple):
    """How to take one change back: the tables it wrote to, as they were."""

    overlay: _Overlay
    inserted: dict[str, Record]
    """The table itself, not a copy: a deletion replaces it by one without the record, so that undoing a
    deletion also gives back the order of records."""
    updated: Record | None
    """What stood in ``updated`` under the key."""
    removed: bool
    """The key was in ``removed``."""


def _key(key: object) -> str:
    if type(key) is str:
        return key
    if type(key) is int:
        return str(key)
    raise TypeError(f"a record key is a string or an integer, got {key!r} ({type(key).__name__})")


class State:
    """Copy-on-write records over ``base``. See the module docstring.

    ``collections`` names collections that may be absent from ``base`` (they start empty).
    """

    __slots__ = ("_base", "_extra", "_log", "_overlays", "_undo")

    def __init__(self, base: StateData, collections: Iterable[str] = ()) -> None:
        self._base = base
        self._extra: dict[str, dict[str, Record]] = {name: {} for name in collections if name not in base}
        self._overlays: dict[str, _Overlay] = {}
        self._log: list[Change] = []
        self._undo: list[_Undo] = []
        """One entry for each change since ``begin``: what is kept for good needs no way back."""

    def __repr__(self) -> str:
        # No address: a tool that prints the state must not bring one into an observation.
        return f"State({', '.join((*self._base, *self._extra))})"

    # ---------------------------------------------------------------- reading
    def _table(self, collection: str) -> dict[str, Record]:
        table = self._base.get(collection)
        if table is None:
            table = self._extra.get(collection)
        if table is None:
            raise KeyError(f"no collection {collection!r}; known: {[*self._base, *self._extra]}")
        return table

    def _live(self, collection: str, key: str) -> Record | None:
        """The live record itself: for reading inside this class only."""
        table = self._table(collection)
        overlay = self._overlays.get(collection)
        if overlay is None:
            return table.get(key)
        record = overlay.inserted.get(key)
        if record is not None:
            return record
        record = overlay.updated.get(key)
        if record is not None:
            return record
        return None if key in overlay.removed else table.get(key)

    def get(self, collection: str, key: str | int) -> Record | None:
        """A copy of one record, or None. Raises KeyError for an unknown collection, TypeError for a key of
        another type."""
        record = self._live(collection, _key(key))
        return None if record is None else clone_json(record)

    def exists(self, collection: str, key: str | int) -> bool:
        """True when the collection holds a record under this key."""
        return self._live(collection, _key(key)) is not None

    def _live_items(self, collection: str) -> list[tuple[str, Record]]:
        table = self._table(collection)
        overlay = self._overlays.get(collection)
        if overlay is None:
            return list(table.items())
        items = [(k, overlay.updated.get(k, r)) for k, r in table.items() if k not in overlay.removed]
        items.extend(overlay.inserted.items())
        return items

    def records(self, collection: str) -> list[Record]:
        """Copies of all records of a collection in insertion order (a record deleted and inserted again is
        last)."""
        if collection not in self._overlays:
            return [clone_json(record) for record in self._table(collection).values()]
        return [clone_json(record) for _, record in self._live_items(collection)]

    def keys(self, collection: str) -> list[str]:
        """All keys of a collection as strings, in insertion order."""
        return [key for key, _ in self._live_items(collection)]

    def snapshot(self) -> StateData:
        """The whole state as plain data: a deep copy that shares nothing with this state."""
        return {
            name: {k: clone_json(r) for k, r in self._live_items(name)}
            for name in (*self._base, *self._extra)
        }

    def delta(self) -> Delta:
        """What differs from the base now. Costs what changed, not what there is."""
        inserted: dict[str, dict[str, Record]] = {}
        updated: dict[str, dict[str, Record]] = {}
        deleted: dict[str, tuple[str, ...]] = {}
        for name, overlay in self._overlays.items():
            table = self._table(name)
            new = {k: r for k, r in overlay.inserted.items() if k not in table}
            changed = {k: r for k, r in overlay.updated.items() if not same_json(r, table[k])}
            # Deleted and inserted again under the same key: a change of that record, if anything differs.
            changed |= {
                k: r for k, r in overlay.inserted.items() if k in table and not same_json(r, table[k])
            }
            gone = tuple(sorted(k for k in overlay.removed if k not in overlay.inserted))
            if new:
                inserted[name] = new
            if changed:
                updated[name] = changed
            if gone:
                deleted[name] = gone
        return Delta(inserted, updated, deleted)

    def changes(self, start: int = 0) -> tuple[Change, ...]:
        """The change log from entry ``start`` on: every write that was kept, in order, also one that a later
        write took back. Its length only grows, but for ``rollback``."""
        return tuple(self._log[start:])

    def fork(self) -> State:
        """A second state equal to this one; from here on neither sees what the other writes. Costs what
        changed. A transaction that is open stays with this one: the fork keeps what it wrote so far."""
        other = State.__new__(State)
        other._base = self._base
        other._extra = self._extra
        other._overlays = {name: overlay.copy() for name, overlay in self._overlays.items()}
        other._log = list(self._log)
        other._undo = []
        return other

    # ---------------------------------------------------------------- writing
    def _write(self, change: Change) -> _Overlay:
        """The overlay to write to, after noting the change and the way back."""
        overlay = self._overlays.get(change.collection)
        if overlay is None:
            overlay = self._overlays[change.collection] = _Overlay()
        key = change.key
        self._undo.append(_Undo(overlay, overlay.inserted, overlay.updated.get(key), key in overlay.removed))
        self._log.append(change)
        return overlay

    def insert(self, collection: str, key: str | int, record: Record) -> None:
        """Add a record under a new key. Raises KeyError when the key exists, TypeError when the record is
        not JSON."""
        name = _key(key)
        if self._live(collection, name) is not None:
            raise KeyError(f"{collection} already has a record {name!r}; update it or use another key")
        if type(record) is not dict:
            raise TypeError(f"{collection}[{name}]: got {type(record).__name__}, a record is a dict")
        stored = copy_json(record, f"{collection}[{name}]")
        self._write(Change("insert", collection, name, None, stored)).inserted[name] = stored

    def update(self, collection: str, key: str | int, changes: Record) -> None:
        """Set the given fields of an existing record (shallow). Raises KeyError when there is no such
        record."""
        name = _key(key)
        old = self._live(collection, name)
        if old is None:
            raise KeyError(f"{collection} has no record {name!r} to update")
        if type(changes) is not dict:
            raise TypeError(f"{collection}[{name}]: got {type(changes).__name__}, changes are a dict")
        merged = {**old, **copy_json(changes, f"{collection}[{name}]")}
        overlay = self._write(Change("update", collection, name, old, merged))
        (overlay.inserted if name in overlay.inserted else overlay.updated)[name] = merged

    def delete(self, collection: str, key: str | int) -> None:
        """Remove a record. Raises KeyError when there is none."""
        name = _key(key)
        old = self._live(collection, name)
        if old is None:
            raise KeyError(f"{collection} has no record {name!r} to delete")
        overlay = self._write(Change("delete", collection, name, old, None))
        if name in overlay.inserted:
            overlay.inserted = {k: r for k, r in overlay.inserted.items() if k != name}
        overlay.updated.pop(name, None)
        if name in self._table(collection):
            overlay.removed.add(name)

    # ---------------------------------------------------------------- transactions
    def begin(self) -> None:
        """Start a transaction: everything up to here is kept by a later ``rollback``."""
        self._undo.clear()

    def commit(self) -> None:
        """Keep what was written since ``begin``."""
        self.begin()

    def rollback(self) -> None:
        """Undo everything written since ``begin``, order of records included."""
        while self._undo:
            undo, change = self._undo.pop(), self._log.pop()
            overlay, key = undo.overlay, change.key
            overlay.inserted = undo.inserted
            if change.op == "insert":
                del overlay.inserted[key]
            elif change.op == "update" and key in overlay.inserted:
                overlay.inserted[key] = cast("Record", change.before)
            if undo.updated is not None:
                overlay.updated[key] = undo.updated
            else:
                overlay.updated.pop(key, None)
            if not undo.removed:
                overlay.removed.discard(key)
