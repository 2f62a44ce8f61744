"""What synthesis without a model gives an hour, and the memory it takes.

    python benchmarks/synthesis.py [--workers 2] [--rounds 3] [--executor ray]

Every figure is wall clock of whole runs of the command line in fresh processes: start, reading, certificates,
gate 1 in its three fresh processes, and the bundle on disk. *Tasks an hour*: `envgen synth` of one bundle of
400 tasks, for each example document. *Bundles an hour*: `envgen batch` of every example document with several
seeds, 20 tasks each. *Memory*: the highest resident memory of `envgen synth` and of its largest child by the
number of tasks, which has to be flat. Medians with [lowest, highest] over rounds; each round takes another
seed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(p for p in (ROOT / "examples" / "tooldocs").iterdir() if p.suffix != ".md")
TASKS = 400
BATCH_SEEDS = 4
SIZES = (50, 200, 800, 1600)


@dataclass(frozen=True)
class Run:
    """One command: seconds, and the highest resident memory of it or of a child of it."""

    seconds: float
    peak_mb: float


def run(arguments: Sequence[str]) -> Run:
    """Run ``envgen`` with these arguments to the end. Raises SystemExit when it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "envgen.cli", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"envgen {' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
    return Run(time.perf_counter() - began, usage.ru_maxrss / 1024)


def said(values: Sequence[float]) -> str:
    """``median [lowest, highest]``."""
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}, {max(values):,.0f}]"


def measure(workers: int, rounds: int, executor: str) -> None:
    """Print every figure."""
    shared = ["--workers", str(workers), "--executor", executor]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        print(f"{workers} workers, executor {executor}, {os.cpu_count()} cores, {rounds} rounds")
        print(f"\ncertified tasks an hour, bundles of {TASKS}")
        everything: list[float] = []
        for document in DOCUMENTS:
            rates: list[float] = []
            for seed in range(rounds):
                target = place / f"t-{document.stem}-{seed}"
                took = run(
                    [
                        "synth",
                        str(document),
                        "-o",
                        str(target),
                        "--tasks",
                        str(TASKS),
                        "--heldout",
                        "50",
                        "--seed",
                        str(seed),
                        *shared,
                    ]
                )
                rates.append(TASKS / took.seconds * 3600)
            everything += rates
            print(f"  {document.name:<36} {said(rates)}")
        print(f"  {'all':<36} {said(everything)}")

        seeds = [str(seed) for seed in range(BATCH_SEEDS)]
        number = len(DOCUMENTS) * BATCH_SEEDS
        rates = []
        for index in range(rounds):
            took = run(
                ["batch", *map(str, DOCUMENTS), "-o", str(place / f"b-{index}"), "--tasks", "20"]
                + ["--heldout", "5", *shared]
                + [part for seed in seeds for part in ("--seed", str(int(seed) + 100 * index))]
            )
            rates.append(number / took.seconds * 3600)
        print(f"\nbundles an hour, {number} of 20 tasks in one batch: {said(rates)}")

        print("\nhighest resident memory of synth (MB) by tasks, one worker")
        for size in SIZES:
            peaks: list[float] = []
            for index in range(rounds):
                target = place / f"m-{size}-{index}"
                took = run(
                    [
                        *("synth", str(DOCUMENTS[index % 2]), "-o", str(target), "--tasks", str(size)),
                        *("--heldout", "10", "--seed", str(index)),
                    ]
                )
                peaks.append(took.peak_mb)
            print(f"  {size:>5}  {said(peaks)}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--executor", default="local")
    options = parser.parse_args()
    measure(options.workers, options.rounds, options.executor)


if __name__ == "__main__":
    main()
