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
from envgen.synthesis.catalog import Catalog, build_catalog
from envgen.synthesis.certify import Duplicates, Prover, replay_results
from envgen.synthesis.choices import static_footprint
from envgen.synthesis.control import confirmed, held_by_user, writers_named
from envgen.synthesis.graph import build_graph
from envgen.synthesis.origins import origins
from envgen.synthesis.sequences import ShapeSampler
from envgen.synthesis.shapes import DemandShape, difficulty
from envgen.synthesis.tasks import Sample, TaskMaker, Workbench, workbench
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

LEVELS: dict[int, float] = {1: 0.3, 2: 0.42, 3: 0.23, 4: 0.05}
"""Share of tasks per difficulty level; levels above the wanted maximum are left out and the rest rescaled."""
HIDDEN_SHARE = 0.2
"""Share of tasks in which one written value must be asked for."""
ATTEMPTS_PER_TASK = 60
"""Draws allowed per wanted task before synthesis gives up."""
MAX_DEMANDS = 3
"""Demands merged into one task at most."""
HOPELESS = 600
"""Attempts without a single task after which a document is refused."""
PROPOSER = "rules"

Progress = Callable[[str, int, int], None]
"""Called with a stage name, done and total."""


class ShapePlanner:
    """Draws the shapes of whole tasks so that difficulty levels come out in the wanted shares and all
    tools get used."""

    def __init__(self, catalog: Catalog, seed: int, max_difficulty: int) -> None:
        self.catalog = catalog
        self.rng = random.Random(f"shapes/{seed}")
        self.sampler = ShapeSampler(catalog, self.rng)
        self.shares = {level: share for level, share in LEVELS.items() if level <= max_difficulty}
        self.max_difficulty = max_difficulty
        self.tries: Counter[int] = Counter()
        self.asked = 0
        self.counts: Counter[int] = Counter()

    def draw(self) -> tuple[list[DemandShape], dict[int, int]] | None:
        """Shapes of one task and which demand hangs under which; None when no draw fits."""
        wanted = self._wanted_level()
        best: tuple[list[DemandShape], dict[int, int]] | None = None
        distance = 99
        for _ in range(12 if wanted < 3 else 16):
            drawn = self._one(wanted)
            if drawn is None:
                continue
            level = _level(drawn[0])
            if level > self.max_difficulty:
                continue
            if abs(level - wanted) < distance:
                best, distance = drawn, abs(level - wanted)
            if distance == 0:
                break
        return best

    def _wanted_level(self) -> int:
        """Levels by their shares, corrected for how often a try at a level works out; hopeless ones are
        rarely tried."""
        weights: list[float] = []
        for level, share in self.shares.items():
            yielded = (self.counts[level] + 1) / (self.tries[level] + 2)
            weights.append(share / max(yielded, 0.25) if yielded > 0.04 else share * 0.1)
        level = self.rng.choices(list(self.shares), weights)[0]
        self.tries[level] += 1
        return level

    def _one(self, wanted: int) -> tuple[list[DemandShape], dict[int, int]] | None:
        behind = self.asked < HIDDEN_SHARE * sum(self.counts.values())
        hidden = self.rng.random() < (0.8 if behind else HIDDEN_SHARE / 2)  # not every shape has one to hide
        first = self.sampler.draw(hidden=hidden)
        if first is None:
            return None
        shapes, nested = [first], dict[int, int]()
        least = 2 if wanted == 2 and self.rng.random() < 0.3 else 1
        for _ in range(8 if wanted > 1 else 0):
            if len(shapes) >= least and (
                wanted < 3 or _level(shapes) >= wanted or len(shapes) == MAX_DEMANDS
            ):
                break
            inner = self.sampler.nested(shapes[-1]) if self.rng.random() < 0.6 else None
            if inner is not None and not _clash(self.catalog, inner, shapes):
                nested[len(shapes)] = len(shapes) - 1
                shapes.append(inner)
                continue
            other = self.sampler.draw(hidden=False, alone=False)
            if other is not None and not _clash(self.catalog, other, shapes, repeat=wanted >= 3):
                shapes.append(other)
        return shapes, nested

    def note(self, sample: Sample) -> None:
        """Count a task that was kept."""
        self.counts[sample.task.difficulty] += 1
        self.asked += any(step.kind == "ask" for step in sample.task.reference)
        for shape in sample.shapes:
            self.sampler.note(shape)


def _level(shapes: list[DemandShape]) -> int:
    """The level a task of these shapes will probably have; a shared look-up tool counts once."""
    looked = {tool for s in shapes for pick in s.picks if pick.locator for tool in pick.locator.tools()}
    writes = sum(2 if s.target and s.target.selector.kind == "filter" else 1 for s in shapes)
    return difficulty(len(looked) + writes, sum(s.reasoning for s in shapes))


def _clash(catalog: Catalog, shape: DemandShape, others: list[DemandShape], *, repeat: bool = False) -> bool:
    """True when the order of demands could matter, or (unless ``repeat``) one uses another's write tool
    again."""
    mine = static_footprint(catalog, shape)
    return any(
        (not repeat and shape.semantics.tool == other.semantics.tool)
        or mine.clashes(static_footprint(catalog, other))
        for other in others
    )


def synthesize(
    document: Path | str | ToolDoc,
    *,
    tasks: int,
    heldout: int,
    seed: int,
    max_difficulty: int = 4,
    name: str | None = None,
    confirm_writes: Sequence[str] = (),
    user_tools: Sequence[str] = (),
    progress: Progress | None = None,
) -> Bundle:
    """Make a certified bundle of ``tasks`` tasks, ``heldout`` of them in the held-out split. Deterministic
    from ``seed``.

    ``confirm_writes``: tools that write, by name or verb, before which the agent has to ask for a go-ahead;
    ``user_tools``: those that only the user holds (`envgen.synthesis.control`).

    Raises DocumentError (unreadable), RefusedDocument (no environment or no tasks can be made of it),
    ValueError (numbers).
    """
    if tasks < 1 or not 0 <= heldout < tasks:
        raise ValueError(
            f"got tasks={tasks}, heldout={heldout}; expected tasks >= 1 and 0 <= heldout < tasks"
        )
    if not 1 <= max_difficulty <= max(LEVELS):
        raise ValueError(f"got max_difficulty={max_difficulty}; expected 1 to {max(LEVELS)}")
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
    max_difficulty: int = 4,
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
    bench = workbench(build_catalog(draft), environment_identity(draft), seed, rules)
    sampler = _TaskSampler(bench, seed, max_difficulty, progress)
    dropped: Counter[str] = Counter()
    kept: list[tuple[Task, tuple[GateResult, ...]]] = []
    missing = tasks
    bundle: Bundle | None = None
    while missing:
        kept.extend(sampler.take(missing, total=tasks))
        bundle = _bundle(doc, draft, bench, [t for t, _ in kept], seed, max_difficulty)
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

    def __init__(self, bench: Workbench, seed: int, max_difficulty: int, progress: Progress | None) -> None:
        self.bench = bench
        self.seed = seed
        self.planner = ShapePlanner(bench.catalog, seed, max_difficulty)
        self.prover = Prover(bench)
        self.max_difficulty = max_difficulty
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
            sample = TaskMaker(self.bench, mix(self.seed, self.attempts)).make(task_id, shapes, nested)
        except TaskError as error:
            self.sampled += 1
            self.dropped["sampling"] += 1
            self.reasons[str(error)] += 1
            return None
        self.sampled += 1
        try:
            settled = self.prover.equivalents.settle(sample.task)
        except TaskError as error:
            self.dropped["equivalents"] += 1
            self.reasons[f"equivalents: {error}"] += 1
            return None
        sample = replace(sample, task=settled.task)
        if sample.task.difficulty > self.max_difficulty:
            self.dropped["difficulty"] += 1
            return None
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
        self.planner.note(sample)
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
    doc: ToolDoc, draft: EnvironmentDraft, bench: Workbench, tasks: list[Task], seed: int, max_difficulty: int
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
            "max_difficulty": max_difficulty,
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
