"""Documents in, certified bundle out: read, propose, graph, sample, certify, split (METHOD.md §1–3,
DESIGN.md §7)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack

from envgen.proposers.rules import propose
from envgen.store import Bundle
from envgen.synthesis.bench import Workbench
from envgen.synthesis.changes import ChangePlanner
from envgen.synthesis.control import confirmed, held_by_user, writers_named
from envgen.synthesis.difficulty import HARDEST, level_of
from envgen.synthesis.executors import Executor, SerialExecutor
from envgen.synthesis.mixing import Shares
from envgen.synthesis.origins import origins
from envgen.synthesis.production import Means, Order, Production
from envgen.synthesis.rounds import Planner, Progress
from envgen.synthesis.toolproof.drop import prove_tools
from envgen.synthesis.workspace import Workspace, key_of, remember, workspace_for
from envgen.tooldocs.read import read_tool_doc
from envgen.types import EnvironmentDraft, ToolDoc

MOST_DEMANDS: Literal["max_demands"] = "max_demands"
SHARES: tuple[Literal["answer_share"], Literal["forbidden_share"]] = ("answer_share", "forbidden_share")


class Wanted(TypedDict, total=False):
    """What is wanted of a bundle."""

    tasks: Required[int]
    heldout: Required[int]
    seed: Required[int]
    max_difficulty: int
    levels: Sequence[int]
    """The difficulty levels wanted (`envgen.synthesis.difficulty`); all up to ``max_difficulty`` where none
    are named."""
    max_demands: int
    """Demands (separate wishes of the user) in one task at most; 0 or left out: as many as its level merges
    (`envgen.synthesis.difficulty`). Levels 4 and 5 need several."""
    confirm_writes: Sequence[str]
    """Tools that write, by name or verb, before which the agent has to ask for a go-ahead."""
    user_tools: Sequence[str]
    """Those that only the user holds (`envgen.synthesis.control`)."""
    answer_share: float
    """Share of tasks that ask a question and change nothing (`envgen.synthesis.questions`)."""
    forbidden_share: float
    """Share of tasks that ask for what a rule of the domain forbids (`envgen.synthesis.forbidden`)."""


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
    demands = wanted.get(MOST_DEMANDS, 0)
    proven = prove_tools(draft, doc, wanted["seed"])
    draft = proven.draft
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
        levels=levels_of(wanted),
        constraints=rules,
        plan={**shares.said(), **({MOST_DEMANDS: demands} if demands else {})},
        provenance={**(provenance or {}), **proven.account},
        origins=origins(doc, draft, proven.proofs),
    )


def levels_of(wanted: Wanted) -> tuple[int, ...]:
    """The numbers of the difficulty levels that are wanted. Raises ValueError for a level there is not."""
    named = sorted({level_of(number).number for number in wanted.get("levels", ())})
    return tuple(named) or tuple(range(1, wanted.get("max_difficulty", HARDEST) + 1))


def planner_for(order: Order) -> Callable[[Workbench], Planner]:
    """What makes the planner of an order."""

    def make(bench: Workbench) -> Planner:
        plan = dict(order.plan)
        changes = ChangePlanner(bench.catalog, order.seed, order.levels, plan.pop(MOST_DEMANDS, 0))
        return Shares(**plan).planner(bench.catalog, order.seed, changes)

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
    hardest = wanted.get("max_difficulty", HARDEST)
    if not 1 <= hardest <= HARDEST:
        raise ValueError(f"got max_difficulty={hardest}; expected 1 to {HARDEST}")
    demands = wanted.get(MOST_DEMANDS, 0)
    if demands < 0:
        raise ValueError(f"got max_demands={demands}; expected at least 1, or 0 for no limit")
    shares = [wanted.get(name, 0.0) for name in SHARES]
    if any(not 0 <= share <= 1 for share in shares) or sum(shares) > 1:
        raise ValueError(f"got {' and '.join(SHARES)} {shares}; expected each 0 to 1, together at most 1")
