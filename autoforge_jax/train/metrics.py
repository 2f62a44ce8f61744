"""metrics.jsonl, stopwatches, and what a person sees while a run goes on. No JAX.

Every line of metrics.jsonl is one step: ``{"phase": "erpo", "step": 12, "reward": 0.41, …, "seconds":
{"rollout": 3.1, …}}``. A resumed run first drops the lines of steps that it will do again, so that the file
reads as if it had never stopped.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from autoforge_jax.errors import TrainingError
from autoforge_jax.train.state_files import write_atomic


def json_value(value: Any) -> Any:
    """A metric as JSON: numbers of numpy or JAX become Python's, NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    if number.is_integer() and not isinstance(value, float):
        return int(number)
    return float(f"{number:.9g}")  # nine digits tell any two float32 apart


class MetricsLog:
    """Append-only JSONL with one line per step. Of several processes one writes (`writes`), all read."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path, self._writes = path, writes

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        """Append the line of one step."""
        if not self._writes:
            return
        line = json.dumps({"phase": phase, "step": step, **json_value(values)}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def rows(self, phase: str) -> list[dict[str, Any]]:
        """The lines of one phase in order."""
        return [row for row in read_jsonl(self.path, ("phase", "step")) if row["phase"] == phase]

    def rewind(self, phase: str, step: int) -> None:
        """Drop the lines of `phase` with a step above `step`, and a half-written last line."""
        if not self._writes:
            return
        rewind_jsonl(self.path, lambda row: row.get("phase") != phase or int(row.get("step", 0)) <= step)


def read_jsonl(path: Path, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All complete lines of a JSONL file, an object each that has `keys`; a broken last line (the process
    died in it) is left out, any other is an error."""
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise TrainingError(
                f"{path}, line {number} is not JSON ({error}); the file is damaged: mend or delete that line"
            ) from error
        if not isinstance(row, dict) or not set(keys) <= row.keys():
            wanted = f"an object with {' and '.join(keys)}" if keys else "an object"
            raise TrainingError(
                f"{path}, line {number} is {line[:40]!r}, expected {wanted}; the file is damaged: mend or "
                "delete that line"
            )
        rows.append(row)
    return rows


def rewind_jsonl(path: Path, keep: Any) -> None:
    """Keep the rows for which `keep(row)` holds; the file is replaced in one piece."""
    if path.is_file():
        rows = [row for row in read_jsonl(path) if keep(row)]
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


class TimeSplit:
    """Seconds by activity: rollout, train, sync, eval, checkpoint."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Add the block's wall time to `activity`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The split since the last take, rounded; starts again at zero."""
        taken = {name: round(value, 4) for name, value in self.seconds.items()}
        self.seconds = {}
        return taken


def number_text(value: Any) -> str:
    """A live number, short: 0.4123 -> 0.412, 12 -> 12, 31000.0 -> 31000."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


class Bar:
    """One running progress display; `update` may be called as often as one likes."""

    def __init__(self, name: str, total: int, progress: Progress | None, out: TextIO, every_s: float) -> None:
        self._name, self._total, self._progress, self._out, self._every_s = (
            name,
            total,
            progress,
            out,
            every_s,
        )
        self._last = time.monotonic()
        self._task = progress.add_task(name, total=total, numbers="") if progress else None

    def update(self, done: int, total: int | None = None, **numbers: Any) -> None:
        """Show `done` of `total` and the live numbers; without a terminal one plain line every so many
        seconds."""
        self._total = total or self._total
        text = " ".join(f"{key} {number_text(value)}" for key, value in numbers.items())
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=self._total, numbers=text)
        elif time.monotonic() - self._last >= self._every_s:
            self._last = time.monotonic()
            print(f"  {self._name} {done}/{self._total} {text}".rstrip(), file=self._out, flush=True)


class Screen(io.TextIOBase):
    """A stream that may break (a closed pipe, a terminal that is gone, a full disk): from then on it takes
    everything and shows nothing. What a person sees is no reason to end a training."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self.broken = ""
        """What happened, when something did."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream below."""
        return getattr(self._out, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Of the stream below."""
        return not self.broken and self._out.isatty()

    def fileno(self) -> int:
        """Of the stream below."""
        return self._out.fileno()

    def write(self, text: str) -> int:
        """Write, unless the stream is broken."""
        self._try(lambda: self._out.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, unless the stream is broken."""
        self._try(self._out.flush)

    def _try(self, action: Callable[[], object]) -> None:
        if self.broken:
            return
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            self.broken = f"{type(error).__name__}: {error}"


class Reporter:
    """What a person sees: one line per phase, and a bar with live numbers (plain lines without a
    terminal)."""

    def __init__(self, out: TextIO | None = None, every_s: float = 10.0) -> None:
        self._out: Any = Screen(out or sys.stdout)
        self._console = Console(file=self._out, highlight=False)
        self._every_s = every_s

    def line(self, text: str) -> None:
        """One plain line."""
        self._console.print(text, markup=False, soft_wrap=True)

    def phase(self, name: str, result: str, seconds: float) -> None:
        """The one line of a phase that ended."""
        self.line(f"{name:<12} {result}  {seconds:.1f} s")

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Bar]:
        """A progress display for the block; it disappears when the block ends."""
        if not self._console.is_terminal:
            yield Bar(name, total, None, self._out, self._every_s)
            return
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield Bar(name, total, progress, self._out, self._every_s)
