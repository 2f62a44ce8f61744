"""Carrying out orders from the command line: one bundle, or many (`envgen batch`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticSerializationError
from rich.markup import escape

from envgen.cli.views import cell, console, progress_bar, table
from envgen.store import Bundle
from envgen.synthesis.batch import BatchJob, BatchRow, run_batch
from envgen.synthesis.executors import open_executor
from envgen.synthesis.pipeline import write_order
from envgen.synthesis.production import Order


@dataclass(frozen=True)
class Execution:
    """The options of a command about who does the work. ``executor``: ``local`` or ``ray``."""

    executor: str
    workers: int
    ray_address: str = ""


def make(order: Order, output: Path, execution: Execution) -> Bundle:
    """Write the bundle of an order to ``output``, with a progress display; returns it without its tasks."""
    try:
        with (
            open_executor(execution.executor, execution.workers, execution.ray_address) as executor,
            progress_bar() as progress,
        ):
            return write_order(order, output, executor, progress)
    except (KeyboardInterrupt, PydanticSerializationError) as error:
        # Ctrl-C in the middle of a serializer comes out of pydantic as an error of its own.
        if not isinstance(error, KeyboardInterrupt) and "KeyboardInterrupt" not in str(error):
            raise
        print(f"{output}: give the same command again to go on where it was", file=sys.stderr)
        raise KeyboardInterrupt from None


def make_many(jobs: Sequence[BatchJob], execution: Execution) -> list[BatchRow]:
    """Make the bundles of some jobs, with a progress display; their rows."""
    with (
        open_executor(execution.executor, execution.workers, execution.ray_address) as executor,
        progress_bar() as progress,
    ):
        return list(run_batch(jobs, executor, progress))


def show_batch(rows: Sequence[BatchRow], wall_s: float) -> None:
    """A row for every bundle, the sums, and why there is none of some documents."""
    out = console()
    shown = table(
        "document",
        "seed",
        "tools",
        "tasks",
        "by level",
        "dropped",
        "gate runs",
        "seconds",
        "peak MB",
        "bundle",
    )
    for row in rows:
        shown.add_row(
            cell(row.document),
            str(row.seed),
            f"{row.tools_implemented}/{row.tools_total}" if row.bundle else "",
            str(row.tasks) if row.bundle else "none",
            " ".join(f"{level}:{count}" for level, count in row.levels.items()),
            " ".join(f"{gate}:{count}" for gate, count in row.dropped.items()),
            str(sum(row.gates.values())) if row.bundle else "",
            "" if row.reused else f"{row.seconds:.1f}",
            str(row.peak_mb) if row.bundle and not row.reused else "",
            cell(row.bundle + (" (was there)" if row.reused else "")),
        )
    out.print(shown)
    for row in rows:
        if row.problem:
            out.print(f"[red]none[/red] {escape(row.document)} seed {row.seed}: {escape(row.problem)}")
    made = [row for row in rows if row.bundle]
    tasks = sum(row.tasks for row in made)
    out.print(f"{len(made)} of {len(rows)} bundles, {tasks} tasks in {wall_s:.1f} s", highlight=False)
