"""Carrying out orders from the command line: one bundle, or many (`envgen batch`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from envgen.cli.views import progress_bar
from envgen.store import Bundle
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
    except KeyboardInterrupt:
        print(f"{output}: give the same command again to go on where it was", file=sys.stderr)
        raise
