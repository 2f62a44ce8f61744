"""The tasks of some documents: how much they cover, and how hard their levels are.

    python benchmarks/tasks.py DOC... [--tasks 60] [--seed 0] [--solver-seeds 5] [--bundles DIR]

For each document one line of coverage figures (`envgen.synthesis.coverage`), with what was not reached by
name, then the success of the scripted solver of limited skill (`envgen.synthesis.solver`) by difficulty level
over all documents: mean and standard deviation over solver seeds. ``--bundles`` keeps the bundles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path

from envgen.errors import EnvgenError
from envgen.interface import synthesize, write_bundle
from envgen.synthesis.coverage import shortfalls
from envgen.synthesis.solver import PERFECT, Skill, success_rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solver-seeds", type=int, default=5)
    parser.add_argument("--bundles", type=Path)
    wanted = parser.parse_args()
    solved: dict[int, list[list[int]]] = defaultdict(lambda: [[0, 0] for _ in range(wanted.solver_seeds)])
    perfect = [0, 0]
    print(
        "| document | tools | write | sequences | write sequences | near | least tasks a writer | edges "
        "| levels | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path in wanted.documents:
        started = time.process_time()
        try:
            bundle = synthesize(path, tasks=wanted.tasks, heldout=wanted.tasks // 3, seed=wanted.seed)
        except EnvgenError as error:
            print(f"| {path.name} | refused: {str(error)[:160]} |")
            continue
        seconds = time.process_time() - started
        found = bundle.report.coverage
        if found is None:
            raise SystemExit(f"{path}: no coverage in the report; use this version's `synthesize`")
        writes = found.unique_write_sequences / max(1, found.writing_tasks)
        print(
            f"| {path.name} | {len(bundle.semantics)} | {len(found.tasks_per_writer)} "
            f"| {found.unique_sequences / found.tasks:.0%} | {writes:.0%} | {found.near_duplicates} "
            f"| {min(found.tasks_per_writer.values(), default=0)} "
            f"| {found.edges_used} of {found.edges_executable} "
            f"| {' '.join(f'{level}:{n}' for level, n in found.levels.items())} | {seconds:.1f} |",
            flush=True,
        )
        for short in shortfalls(found):
            print(f"  not reached: {short}")
        if wanted.bundles:
            write_bundle(bundle, wanted.bundles / path.name.partition(".")[0])
        for level, runs in success_rates(bundle, Skill(), range(wanted.solver_seeds)).items():
            for run, (good, number) in enumerate(runs):
                solved[level][run][0] += good
                solved[level][run][1] += number
        for runs in success_rates(bundle, PERFECT, (0,)).values():
            perfect = [perfect[0] + runs[0][0], perfect[1] + runs[0][1]]
    print("\n| level | tasks | solved | standard deviation over seeds |\n|---|---|---|---|")
    for level, runs in sorted(solved.items()):
        shares = [good / number for good, number in runs if number]
        spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
        print(f"| {level} | {runs[0][1]} | {statistics.mean(shares):.1%} | {spread:.1%} |")
    print(f"\nthe same without limits: {perfect[0]} of {perfect[1]} solved")


if __name__ == "__main__":
    main()
