"""Documents in, certified bundle out: read, propose, graph, sample, certify, split (METHOD.md §1–3,
DESIGN.md §7)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envgen.errors import RefusedDocument, TaskError
from envgen.proposers.rules import propose
from envgen.runtime.context import mix
from envgen.store import Bundle, environment_identity
from envgen.synthesis.bench import Workbench, workbench
from envgen.synthesis.catalog import build_catalog
from envgen.synthesis.certify import Duplicates, Prover, replay_results
from envgen.synthesis.control import confirmed, held_by_user, writers_named
from envgen.synthesis.coverage import measure
from envgen.synthesis.difficulty import HARDEST, level_of
from envgen.synthesis.graph import build_graph
from envgen.synthesis.origins import origins
from envgen.synthesis.planner import ShapePlanner
from envgen.synthesis.tasks import TaskMaker
from envgen.synthesis.toolproof.drop import prove_tools
from envgen.tooldocs.read import read_tool_doc
from envgen.types import (
    Certificate,
    EnvironmentDraft,
    GateResult,
    LintFinding,
    SynthesisReport,
    Task,
    ToolDoc,
)

ATTEMPTS_PER_TASK = 60
"""Draws allowed per wanted task before synthesis gives up."""
HOPELESS = 600
"""Attempts without a single task after which a document is refused."""
PROPOSER = "rules"

Progress = Callable[[str, int, int], None]
"""Called with a stage name, done and total."""


def synthesize(
    document: Path | str | ToolDoc,
    *,
    tasks: int,
    heldout: int,
    seed: int,
    max_difficulty: int = HARDEST,
    levels: Sequence[int] = (),
    name: str | None = None,
    confirm_writes: Sequence[str] = (),
    user_tools: Sequence[str] = (),
    progress: Progress | None = None,
) -> Bundle:
    """Make a certified bundle of ``tasks`` tasks, ``heldout`` of them in the held-out split. Deterministic
    from ``seed``.

    ``confirm_writes``: tools that write, by name or verb, before which the agent has to ask for a go-ahead;
    ``user_tools``: those that only the user holds (`envgen.synthesis.control`). ``levels``: the difficulty
    levels wanted (`envgen.synthesis.difficulty`); all up to ``max_difficulty`` where none are named.

    Raises DocumentError (unreadable), RefusedDocument (no environment or no tasks can be made of it),
    ValueError (numbers).
    """
    if tasks < 1 or not 0 <= heldout < tasks:
        raise ValueError(
            f"got tasks={tasks}, heldout={heldout}; expected tasks >= 1 and 0 <= heldout < tasks"
        )
    if not 1 <= max_difficulty <= HARDEST:
        raise ValueError(f"got max_difficulty={max_difficulty}; expected 1 to {HARDEST}")
    doc = document if isinstance(document, ToolDoc) else read_tool_doc(Path(document))
    draft = propose(doc)
    if name is not None:
        draft = draft.model_copy(update={"name": name})
    return make_bundle(
        doc,
        draft,
        tasks=tasks,
        heldout=heldout,
        seed=seed,
        max_difficulty=max_difficulty,
        levels=levels,
        confirm_writes=confirm_writes,
        user_tools=user_tools,
        progress=progress,
    )


def make_bundle(
    doc: ToolDoc,
    draft: EnvironmentDraft,
    *,
    tasks: int,
    heldout: int,
    seed: int,
    max_difficulty: int = HARDEST,
    levels: Sequence[int] = (),
    confirm_writes: Sequence[str] = (),
    user_tools: Sequence[str] = (),
    progress: Progress | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Bundle:
    """`synthesize` from a draft on: graph, tasks, certificates, splits. ``provenance``: what the manifest
    says of the proposer, where it was not the rules."""
    started = time.perf_counter()
    proven = prove_tools(draft, doc, seed)
    draft = held_by_user(proven.draft, writers_named(proven.draft, user_tools, "user tool"))
    draft, rules = confirmed(draft, writers_named(draft, confirm_writes, "confirm writes"))
    wanted = tuple(sorted({level_of(n).number for n in levels})) or tuple(range(1, max_difficulty + 1))
    bench = workbench(build_catalog(draft), environment_identity(draft), seed, rules)
    sampler = _TaskSampler(bench, seed, wanted, progress)
    dropped: Counter[str] = Counter()
    kept: list[tuple[Task, tuple[GateResult, ...]]] = []
    missing = tasks
    bundle: Bundle | None = None
    while missing:
        kept.extend(sampler.take(missing, total=tasks))
        bundle = _bundle(doc, draft, bench, [t for t, _ in kept], seed, wanted)
        if progress:
            progress("replay", 0, len(kept))
        replayed = replay_results(bundle)
        good: list[tuple[Task, tuple[GateResult, ...]]] = [
            (task, (replayed[task.id], *gates)) for task, gates in kept if replayed[task.id].passed
        ]
        dropped["replay"] += len(kept) - len(good)
        missing = len(kept) - len(good)
        if missing and not good:
            raise RefusedDocument(f"{draft.name}: no task replays the same in fresh processes", ())
        kept = [(task, gates[1:]) for task, gates in good] if missing else good
    if bundle is None:
        raise ValueError(f"got tasks={tasks}; expected 1 or more")
    if progress:
        progress("replay", len(kept), len(kept))
    dropped.update(sampler.dropped)
    report = SynthesisReport(
        tools_total=len(draft.decisions),
        tools_implemented=sum(d.implemented for d in draft.decisions),
        refused={d.tool: d.reason for d in draft.decisions if not d.implemented},
        tasks_sampled=sampler.sampled,
        tasks_certified=len(kept),
        dropped={gate: count for gate, count in sorted(dropped.items()) if count},
        seconds=round(time.perf_counter() - started, 3),
        coverage=measure([task for task, _ in kept], draft, bundle.graph),
    )
    ids = [task.id for task, _ in kept]
    random.Random(f"split/{seed}").shuffle(ids)
    chosen = set(ids[:heldout])
    return replace(
        bundle,
        manifest={**bundle.manifest, **(provenance or {}), **proven.account},
        provenance=origins(doc, draft, proven.proofs),
        certificates=tuple(Certificate(task_id=task.id, gates=gates) for task, gates in kept),
        splits={
            "train": tuple(task.id for task, _ in kept if task.id not in chosen),
            "heldout": tuple(task.id for task, _ in kept if task.id in chosen),
        },
        report=report,
    )


class _TaskSampler:
    """Draws certified tasks (all gates but replay) until there are enough."""

    def __init__(
        self, bench: Workbench, seed: int, levels: tuple[int, ...], progress: Progress | None
    ) -> None:
        self.bench = bench
        self.seed = seed
        self.planner = ShapePlanner(bench.catalog, seed, levels)
        self.prover = Prover(bench)
        self.levels = levels
        self.progress = progress
        self.attempts = 0
        self.sampled = 0
        self.made = 0
        self.dropped: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.duplicates = Duplicates()

    def take(self, wanted: int, total: int) -> list[tuple[Task, tuple[GateResult, ...]]]:
        """``wanted`` more tasks. Raises RefusedDocument, naming counts, when the bounded attempts do not
        give them."""
        found: list[tuple[Task, tuple[GateResult, ...]]] = []
        budget = self.attempts + ATTEMPTS_PER_TASK * (wanted + 10)
        while len(found) < wanted:
            if self.attempts >= budget or (self.attempts >= HOPELESS and not self.made):
                raise self._impossible(wanted, len(found))
            result = self._try()
            if result is not None:
                found.append(result)
                if self.progress:
                    self.progress("tasks", self.made, total)
        return found

    def _try(self) -> tuple[Task, tuple[GateResult, ...]] | None:
        self.attempts += 1
        drawn = self.planner.draw()
        if drawn is None:
            self.reasons["no look-up chain leads to the arguments of a write tool"] += 1
            return None
        shapes, nested = drawn
        task_id = f"{self.bench.catalog.draft.name}-{self.made:04d}"
        try:
            maker = TaskMaker(self.bench, mix(self.seed, self.attempts))
            sample = maker.make(task_id, shapes, nested, self.planner.wanted.crowd)
        except TaskError as error:
            self.sampled += 1
            self.dropped["sampling"] += 1
            self.reasons[str(error)] += 1
            return None
        self.sampled += 1
        if sample.task.difficulty not in self.levels:
            self.dropped["difficulty"] += 1
            return None
        if not self.planner.keeps(sample.task):
            self.dropped["repeat"] += 1
            return None
        try:
            settled = self.prover.equivalents.settle(sample.task)
        except TaskError as error:
            self.dropped["equivalents"] += 1
            self.reasons[f"equivalents: {error}"] += 1
            return None
        sample = replace(sample, task=settled.task)
        duplicate = self.duplicates.gate(sample.task)
        if not duplicate.passed:
            self.dropped["duplicate"] += 1
            return None
        gates = self.prover.gates(sample.task)
        failed = next((gate for gate in gates if not gate.passed), None)
        if failed is not None:
            self.dropped[failed.gate] += 1
            self.reasons[f"{failed.gate}: {failed.detail}"] += 1
            return None
        self.duplicates.note(sample.task)
        self.planner.note(sample.task, sample.shapes)
        self.made += 1
        return sample.task, (*gates, duplicate)

    def _impossible(self, wanted: int, found: int) -> RefusedDocument:
        counts = ", ".join(f"{name} {count}" for name, count in self.dropped.most_common()) or "none"
        common = "; ".join(f"{reason} ({count})" for reason, count in self.reasons.most_common(3))
        advice = "ask for fewer tasks" if found else "this document gives no multi-step task"
        message = (
            f"{self.bench.catalog.draft.name}: got {found} of {wanted} certified tasks in {self.attempts} "
            f"attempts (dropped: {counts}); {advice}. Most frequent: {common}"
        )
        return RefusedDocument(
            message, (LintFinding(level="refusal", code="too-few-tasks", message=message),)
        )


def _bundle(
    doc: ToolDoc,
    draft: EnvironmentDraft,
    bench: Workbench,
    tasks: list[Task],
    seed: int,
    levels: tuple[int, ...],
) -> Bundle:
    empty = SynthesisReport(
        tools_total=0,
        tools_implemented=0,
        refused={},
        tasks_sampled=0,
        tasks_certified=0,
        dropped={},
        seconds=0.0,
    )
    return Bundle(
        name=draft.name,
        environment_id=bench.environment_id,
        manifest={
            "document": doc.source,
            "document_sha256": doc.sha256,
            "proposer": PROPOSER,
            "seed": seed,
            "levels": list(levels),
            **({"confirm_writes": [t for r in bench.rules for t in r.tools]} if bench.rules else {}),
            **({"user_tools": sorted(bench.held)} if bench.held else {}),
        },
        doc=doc,
        tools=draft.tools,
        state_schema=draft.state_schema,
        semantics=draft.semantics,
        source=draft.source,
        policy=draft.policy,
        graph=build_graph(draft),
        tasks=tuple(tasks),
        splits={"train": tuple(t.id for t in tasks), "heldout": ()},
        certificates=(),
        decisions=draft.decisions,
        report=empty,
        user_tools=draft.user_tools,
    )
