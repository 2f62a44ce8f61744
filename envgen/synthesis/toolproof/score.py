"""Mutation score: how many seeded wrong versions of the tools their own tests notice."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envgen.errors import IsolationError, ToolBreach, ToolDefect, UnsafeCodeError
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.remote_tools import remote_tools
from envgen.runtime.sandbox import Tool, load_tools
from envgen.synthesis.toolproof.code_mutants import CodeMutant, Module, mutants_of
from envgen.synthesis.toolproof.prove import ToolBench, TriedCase
from envgen.types import EnvironmentDraft, ToolDoc, ToolSemantics

MUTANTS_PER_TOOL = 60
SECOND_LOOKS = 3
"""Other seeds whose cases a survivor is shown before it counts as without a difference found."""
LIMITS = WorkerLimits(call_timeout_s=1.0)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    mutant: CodeMutant
    fate: str
    """``killed``, ``survived`` (a difference exists: the second look found it), ``no difference found``
    (probably equivalent), ``stillborn`` (does not load, or breaks on every call: no test is needed)."""
    by: str = ""


@dataclass(frozen=True)
class Score:
    """The verdicts on all mutants of one environment."""

    verdicts: tuple[Verdict, ...]

    def count(self, fate: str) -> int:
        """Mutants with one fate."""
        return sum(v.fate == fate for v in self.verdicts)

    @property
    def share(self) -> float:
        """Killed among all that load and run somewhere; mutants without a difference found count as not
        killed. 1.0 where there is none."""
        born = len(self.verdicts) - self.count("stillborn")
        return self.count("killed") / born if born else 1.0


def score_tools(
    draft: EnvironmentDraft, doc: ToolDoc | None = None, *, seed: int = 0, limit: int = MUTANTS_PER_TOOL
) -> Score:
    """Mutants of every tool, tried on its tests. Deterministic from ``seed``.

    Functions that our templates did not write are tried in isolated workers, with a second a call.
    """
    bench = ToolBench(draft, doc, seed)
    others = [ToolBench(draft, doc, seed + 1 + look) for look in range(SECOND_LOOKS)]
    module = Module(draft.source, draft.state_schema)
    verdicts: list[Verdict] = []
    for sem in draft.semantics:
        cases, _ = bench.cases(sem)
        rng = random.Random(f"code mutants/{seed}/{sem.tool}")
        for mutant in mutants_of(module, sem.tool, sem.collection, rng, limit):
            verdicts.append(_verdict(bench, others, sem, cases, mutant))
    return Score(tuple(verdicts))


def _verdict(
    bench: ToolBench,
    others: Sequence[ToolBench],
    sem: ToolSemantics,
    cases: Sequence[TriedCase],
    mutant: CodeMutant,
) -> Verdict:
    pool: WorkerPool | None = None
    try:
        if bench.vetted:
            tools: Mapping[str, Tool] = load_tools(mutant.source)
        else:
            pool = WorkerPool(mutant.source, bench.styles, LIMITS)
            tools = remote_tools(pool)
        kind, detail = _first_difference(bench, sem, cases, tools)
        if kind == "stillborn":
            return Verdict(mutant, "stillborn")
        if kind:
            return Verdict(mutant, "killed", f"{kind}: {detail}")
        for other in others:
            kind, detail = _first_difference(other, sem, other.cases(sem)[0], tools)
            if kind:
                return Verdict(mutant, "survived", f"{kind}: {detail}")
        return Verdict(mutant, "no difference found")
    except UnsafeCodeError:
        return Verdict(mutant, "stillborn")
    except (ToolBreach, ToolDefect, IsolationError) as error:
        return Verdict(mutant, "killed", str(error))
    finally:
        if pool is not None:
            pool.close()


def _first_difference(
    bench: ToolBench, sem: ToolSemantics, cases: Sequence[TriedCase], tools: Mapping[str, Tool]
) -> tuple[str, str]:
    """Of the first case that tells the mutant apart; ``stillborn`` when every case is a defect."""
    defects = 0
    first = ("", "")
    for number, tried in enumerate(cases):
        kind, detail = bench.difference(sem, tried, tools)
        if kind and kind != "defect":
            return kind, detail
        if kind == "defect":
            defects += 1
            first = first if first[0] else (kind, detail)
        elif defects:
            return first
        if kind == "" and number > 0 and defects:
            return first
    if defects and defects == len(cases):
        return "stillborn", ""
    return first
