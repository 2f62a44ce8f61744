"""Mutation score of the tests of generated tools, for each document.

    python benchmarks/mutation.py [--limit N] [--seed S] [--survivors] DOC|BUNDLE...

Of a document, the tools that the rules make of it; of a bundle, its tools, whoever wrote them. A table:
tools, test calls, mutants by fate, score, seconds. ``--survivors`` lists what no test noticed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from envgen.errors import EnvgenError
from envgen.proposers.rules import propose
from envgen.store import load_bundle
from envgen.synthesis.certify import draft_of
from envgen.synthesis.toolproof.prove import proofs_of
from envgen.synthesis.toolproof.score import MUTANTS_PER_TOOL, score_tools
from envgen.tooldocs.read import read_tool_doc

FATES = ("killed", "survived", "no difference found", "stillborn")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documents", nargs="+", type=Path, metavar="DOC")
    parser.add_argument("--limit", type=int, default=MUTANTS_PER_TOOL, help="mutants per tool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true")
    options = parser.parse_args()
    print("| document | tools proven | calls | killed | survived | no difference | stillborn | score | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    totals = dict.fromkeys(FATES, 0)
    for path in options.documents:
        started = time.perf_counter()
        try:
            if path.is_dir():
                bundle = load_bundle(path)
                doc, draft = bundle.doc, draft_of(bundle)
            else:
                doc = read_tool_doc(path)
                draft = propose(doc)
        except EnvgenError as error:
            print(f"| {path.name} | refused: {str(error)[:80]} |")
            continue
        proofs = proofs_of(draft, doc, options.seed)
        calls = sum(p.successes + p.refusals for p in proofs)
        score = score_tools(draft, doc, seed=options.seed, limit=options.limit)
        counts = {fate: score.count(fate) for fate in FATES}
        totals = {fate: totals[fate] + counts[fate] for fate in FATES}
        proven = f"{sum(p.passed for p in proofs)}/{len(proofs)}"
        cells = " | ".join(str(counts[fate]) for fate in FATES)
        seconds = time.perf_counter() - started
        print(
            f"| {path.name} | {proven} | {calls} | {cells} | {score.share:.1%} | {seconds:.1f} |", flush=True
        )
        for verdict in score.verdicts if options.survivors else ():
            if verdict.fate in ("survived", "no difference found"):
                mutant = verdict.mutant
                print(
                    f"    {verdict.fate}: {mutant.tool}: {mutant.kind}: {mutant.line[:100]} {verdict.by[:99]}"
                )
    born = sum(totals.values()) - totals["stillborn"]
    cells = " | ".join(str(totals[fate]) for fate in FATES)
    print(f"| all | | | {cells} | {totals['killed'] / max(born, 1):.1%} | |")


if __name__ == "__main__":
    main()
