"""Documents in, certified bundle out: read, propose, graph, sample, certify, split (METHOD.md §1–3,
DESIGN.md §7)."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack

from envgen.proposers.rules import propose
from envgen.store import Bundle
from envgen.synthesis.candidates import ChangePlan
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.choices import static_footprint
from envgen.synthesis.control import confirmed, held_by_user, writers_named
from envgen.synthesis.executors import Executor, SerialExecutor
from envgen.synthesis.mixing import Shares
from envgen.synthesis.plans import Candidate
from envgen.synthesis.production import Means, Order, Production
from envgen.synthesis.rounds import Planner, Progress
from envgen.synthesis.sequences import ShapeSampler
from envgen.synthesis.shapes import DemandShape, difficulty
from envgen.synthesis.tasks import Sample, Workbench
from envgen.synthesis.workspace import Workspace, key_of, remember, workspace_for
from envgen.tooldocs.read import read_tool_doc
from envgen.types import EnvironmentDraft, Task, ToolDoc

LEVELS: dict[int, float] = {1: 0.3, 2: 0.42, 3: 0.23, 4: 0.05}
"""Share of tasks per difficulty level; levels above the wanted maximum are left out and the rest rescaled."""
HIDDEN_SHARE = 0.2
"""Share of tasks in which one written value must be asked for."""
MAX_DEMANDS = 3
"""Demands merged into one task at most."""


SHARES: tuple[Literal["answer_share"], Literal["forbidden_share"]] = ("answer_share", "forbidden_share")


class Wanted(TypedDict, total=False):
    """What is wanted of a bundle."""

    tasks: Required[int]
    heldout: Required[int]
    seed: Required[int]
    max_difficulty: int
    confirm_writes: Sequence[str]
    """Tools that write, by name or verb, before which the agent has to ask for a go-ahead."""
    user_tools: Sequence[str]
    """Those that only the user holds (`envgen.synthesis.control`)."""
    answer_share: float
    """Share of tasks that ask a question and change nothing (`envgen.synthesis.questions`)."""
    forbidden_share: float
    """Share of tasks that ask for what a rule of the domain forbids (`envgen.synthesis.forbidden`)."""


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


class ChangePlanner:
    """Plans of tasks that change the state (`envgen.synthesis.rounds.Planner`)."""

    def __init__(self, catalog: Catalog, seed: int, max_difficulty: int) -> None:
        self.shapes = ShapePlanner(catalog, seed, max_difficulty)

    def draw(self, attempt: int) -> Candidate | None:
        """See `envgen.synthesis.rounds.Planner.draw`."""
        drawn = self.shapes.draw()
        if drawn is None:
            return None
        shapes, nested = drawn
        for shape in shapes:
            self.shapes.sampler.mark(shape.tools())
        return Candidate(attempt, ChangePlan(tuple(shapes), tuple(nested.items())))

    def failed(self, candidate: Candidate) -> None:
        """See `envgen.synthesis.rounds.Planner.failed`."""
        for shape in self._plan(candidate).shapes:
            self.shapes.sampler.mark(shape.tools(), -1)

    def kept(self, candidate: Candidate, task: Task) -> None:
        """See `envgen.synthesis.rounds.Planner.kept`."""
        self.failed(candidate)  # what was counted at the draw is counted by `note`
        self.shapes.note(Sample(task, (), self._plan(candidate).shapes, 0))

    def _plan(self, candidate: Candidate) -> ChangePlan:
        assert isinstance(candidate.plan, ChangePlan)
        return candidate.plan


def synthesize(
    document: Path | str | ToolDoc,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **wanted: Unpack[Wanted],
) -> Bundle:
    """Make a certified bundle of ``tasks`` tasks, ``heldout`` of them in the held-out split. Deterministic
    from ``seed``, whoever executes it. The other options are those of `Wanted`.

    Raises DocumentError (unreadable), RefusedDocument (no environment or no tasks can be made of it),
    ValueError (numbers).
    """
    check_numbers(wanted)
    doc, draft = read_and_propose(document, None)
    if name is not None:
        draft = draft.model_copy(update={"name": name})
    return make_bundle(doc, draft, progress=progress, executor=executor, **wanted)


def make_bundle(
    doc: ToolDoc,
    draft: EnvironmentDraft,
    *,
    progress: Progress | None = None,
    provenance: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    **wanted: Unpack[Wanted],
) -> Bundle:
    """`synthesize` from a draft on: graph, tasks, certificates, splits. ``provenance``: what the manifest
    says of the proposer, where it was not the rules."""
    order = make_order(doc, draft, provenance=provenance, **wanted)
    means = Means(executor=executor or SerialExecutor(), progress=progress)
    return Production(order, planner_for(order), means).in_memory()


def write_order(order: Order, target: Path, executor: Executor, progress: Progress | None = None) -> Bundle:
    """Carry out an order into the folder ``target``; returns the bundle without its tasks and certificates.

    What an earlier try of the same order finished is taken up, whatever ended it; it lies beside the target
    until the bundle stands (`envgen.synthesis.workspace.workspace_for`). Memory does not grow with the number
    of tasks. Raises what `synthesize` raises, and BundleError for a target that is no bundle.
    """
    workspace = workspace_for(target)
    means = Means(executor=executor, workspace=workspace, progress=progress)
    return Production(order, planner_for(order), means).on_disk(target, workspace)


def make_order(
    doc: ToolDoc,
    draft: EnvironmentDraft,
    *,
    provenance: Mapping[str, Any] | None = None,
    **wanted: Unpack[Wanted],
) -> Order:
    """The order that these options are. Raises ValueError for numbers, TaskError for names of tools."""
    check_numbers(wanted)
    shares = Shares.of(draft, wanted.get("answer_share", 0.0), wanted.get("forbidden_share", 0.0))
    draft = shares.prepared(draft)
    draft = held_by_user(draft, writers_named(draft, wanted.get("user_tools", ()), "user tool"))
    draft, rules = confirmed(draft, writers_named(draft, wanted.get("confirm_writes", ()), "confirm writes"))
    return Order(
        doc=doc,
        draft=draft,
        tasks=wanted["tasks"],
        heldout=wanted["heldout"],
        seed=wanted["seed"],
        max_difficulty=wanted.get("max_difficulty", max(LEVELS)),
        constraints=rules,
        plan=shares.said(),
        provenance=provenance or {},
    )


def planner_for(order: Order) -> Callable[[Workbench], Planner]:
    """What makes the planner of an order."""

    def make(bench: Workbench) -> Planner:
        changes = ChangePlanner(bench.catalog, order.seed, order.max_difficulty)
        return Shares(**order.plan).planner(bench.catalog, order.seed, changes)

    return make


def read_and_propose(
    document: Path | str | ToolDoc, workspace: Workspace | None
) -> tuple[ToolDoc, EnvironmentDraft]:
    """The first two stages with the rules: read the document, propose an environment. Raises DocumentError,
    RefusedDocument."""
    if isinstance(document, ToolDoc):
        doc = document
    else:
        path = Path(document)
        doc = remember(workspace, "document", lambda: _file_key(path), ToolDoc, lambda: read_tool_doc(path))
    draft = remember(
        workspace,
        "draft",
        lambda: key_of(doc.model_dump(mode="json")),
        EnvironmentDraft,
        lambda: propose(doc),
    )
    return doc, draft


def _file_key(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError:  # the reader says what is wrong
        data = b""
    return key_of(path.name, hashlib.sha256(data).hexdigest())


def check_numbers(wanted: Wanted) -> None:
    """Raises ValueError for numbers that do not fit together."""
    tasks, heldout = wanted["tasks"], wanted["heldout"]
    if tasks < 1 or not 0 <= heldout < tasks:
        raise ValueError(
            f"got tasks={tasks}, heldout={heldout}; expected tasks >= 1 and 0 <= heldout < tasks"
        )
    hardest = wanted.get("max_difficulty", max(LEVELS))
    if not 1 <= hardest <= max(LEVELS):
        raise ValueError(f"got max_difficulty={hardest}; expected 1 to {max(LEVELS)}")
    shares = [wanted.get(name, 0.0) for name in SHARES]
    if any(not 0 <= share <= 1 for share in shares) or sum(shares) > 1:
        raise ValueError(f"got {' and '.join(SHARES)} {shares}; expected each 0 to 1, together at most 1")
