"""The stages of one synthesis from a draft on: environment, rounds of tasks, bundle.

`Production` is the same for a bundle in memory and for one on disk. Each stage's output is kept in a
workspace when there is one; a bundle on disk is put together while the rounds come in
(`envgen.synthesis.assembly`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envgen.provenance import Provenance
from envgen.store import Bundle, environment_identity
from envgen.synthesis.assembly import BundleAssembly
from envgen.synthesis.bench import Workbench
from envgen.synthesis.candidates import Recipe, prover_of
from envgen.synthesis.coverage import Coverage
from envgen.synthesis.executors import Executor, SerialExecutor
from envgen.synthesis.graph import build_graph
from envgen.synthesis.replay_stream import Replayers
from envgen.synthesis.rounds import Certified, Planner, Progress, TaskRounds
from envgen.synthesis.workspace import Workspace, key_of
from envgen.types import Certificate, EnvironmentDraft, SynthesisReport, ToolDoc, TraceConstraint

PROPOSER = "rules"


@dataclass(frozen=True, kw_only=True)
class Means:
    """How a synthesis runs; nothing here changes what comes out."""

    executor: Executor = field(default_factory=SerialExecutor)
    workspace: Workspace | None = None
    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is wanted of one environment."""

    doc: ToolDoc
    draft: EnvironmentDraft
    tasks: int
    heldout: int
    seed: int
    levels: tuple[int, ...]
    """Difficulty levels that are wanted."""
    constraints: tuple[TraceConstraint, ...] = ()
    """Rules about the trace that every task is graded by."""
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else decides the plans, as JSON: part of the address of the rounds, and of the manifest."""
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the manifest says beside it: of a proposer other than the rules, of the tests of the tools."""
    origins: Provenance | None = None
    """Where every tool, parameter, rule and field comes from."""


class Production:
    """Carries out one order."""

    def __init__(self, order: Order, make_planner: Callable[[Workbench], Planner], means: Means) -> None:
        self.order = order
        self.means = means
        self.recipe = Recipe(
            draft=order.draft,
            environment_id=environment_identity(order.draft),
            seed=order.seed,
            levels=order.levels,
            rules=order.constraints,
        )
        self.bench = prover_of(self.recipe).bench
        self.planner = make_planner(self.bench)
        self._graph = build_graph(order.draft)
        self._coverage = Coverage(order.draft, self._graph)
        self._started = time.perf_counter()

    def in_memory(self) -> Bundle:
        """The bundle, whole."""
        kept: list[Certified] = []
        rounds, head = self._rounds(kept.extend)
        return replace(
            head,
            tasks=tuple(item.task for item in kept),
            certificates=tuple(Certificate(task_id=item.task.id, gates=item.gates) for item in kept),
            splits=self._splits([item.task.id for item in kept]),
            report=self._report(rounds),
        )

    def on_disk(self, target: Path, workspace: Workspace) -> Bundle:
        """Write the bundle to ``target``; returns it without its tasks and certificates (its splits and
        report are whole). The workspace is removed when the bundle stands."""
        assembly = BundleAssembly(workspace.folder / "assembly", target)
        try:
            rounds, head = self._rounds(assembly.add)
            head = replace(head, splits=self._splits(assembly.ids), report=self._report(rounds))
            assembly.finish(head)
        finally:
            assembly.close()
        workspace.clear()
        return head

    def _rounds(self, take: Callable[[tuple[Certified, ...]], None]) -> tuple[TaskRounds, Bundle]:
        head = self._head()
        with Replayers(head) as replayers:
            rounds = TaskRounds(
                self.recipe,
                self.planner,
                self.order.tasks,
                address=key_of(self.recipe.key, self.order.tasks, self.order.plan),
                executor=self.means.executor,
                replayers=replayers,
                workspace=self.means.workspace,
                progress=self.means.progress,
            )
            for kept in rounds:
                take(kept)
                for item in kept:
                    self._coverage.add(item.task)
        return rounds, head

    def _splits(self, ids: list[str]) -> dict[str, tuple[str, ...]]:
        shuffled = list(ids)
        random.Random(f"split/{self.order.seed}").shuffle(shuffled)
        chosen = set(shuffled[: self.order.heldout])
        return {
            "train": tuple(i for i in ids if i not in chosen),
            "heldout": tuple(i for i in ids if i in chosen),
        }

    def _report(self, rounds: TaskRounds) -> SynthesisReport:
        decisions = self.order.draft.decisions
        return SynthesisReport(
            tools_total=len(decisions),
            tools_implemented=sum(d.implemented for d in decisions),
            refused={d.tool: d.reason for d in decisions if not d.implemented},
            tasks_sampled=rounds.sampled,
            tasks_certified=rounds.made,
            dropped={gate: count for gate, count in sorted(rounds.dropped.items()) if count},
            seconds=round(time.perf_counter() - self._started, 3),
            coverage=self._coverage.report(),
        )

    def _head(self) -> Bundle:
        """The bundle before it has tasks."""
        order, draft = self.order, self.order.draft
        rules = order.constraints
        return Bundle(
            name=draft.name,
            environment_id=self.recipe.environment_id,
            manifest={
                "document": order.doc.source,
                "document_sha256": order.doc.sha256,
                "proposer": PROPOSER,
                "seed": order.seed,
                "levels": list(order.levels),
                **({"confirm_writes": [t for r in rules for t in r.tools]} if rules else {}),
                **({"user_tools": sorted(self.bench.held)} if self.bench.held else {}),
                **order.plan,
                **order.provenance,
            },
            doc=order.doc,
            tools=draft.tools,
            state_schema=draft.state_schema,
            semantics=draft.semantics,
            source=draft.source,
            policy=draft.policy,
            graph=self._graph,
            tasks=(),
            splits={"train": (), "heldout": ()},
            certificates=(),
            decisions=draft.decisions,
            report=SynthesisReport(
                tools_total=0,
                tools_implemented=0,
                refused={},
                tasks_sampled=0,
                tasks_certified=0,
                dropped={},
                seconds=0.0,
            ),
            user_tools=draft.user_tools,
            rules=draft.rules,
            provenance=order.origins,
        )
