"""Many bundles at once: every document with every seed, whole bundles side by side, one account for all.

A bundle that stands and was made by the same code of the same document with the same options is not made
again; one that was cut short goes on where it was. What is refused becomes a row that says why.
"""

from __future__ import annotations

import hashlib
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field

from envgen.errors import EnvgenError
from envgen.synthesis.executors import Executor, SerialExecutor
from envgen.synthesis.pipeline import Wanted, levels_of, make_order, read_and_propose, write_order
from envgen.synthesis.workspace import Workspace, key_of, workspace_for

STAGE = "bundles"


class BatchJob(BaseModel):
    """One bundle to be made."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    document: Path
    target: Path
    tasks: int
    heldout: int
    seed: int
    levels: tuple[int, ...] = ()
    """Difficulty levels; all where none are named."""
    max_demands: int = 0
    answer_share: float = 0.0
    forbidden_share: float = 0.0


class BatchRow(BaseModel):
    """What became of a job."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    document: str
    seed: int
    bundle: str = ""
    """Folder name of the bundle; empty where there is none."""
    problem: str = ""
    """Why there is none."""
    tools_total: int = 0
    tools_implemented: int = 0
    tasks: int = 0
    levels: dict[str, int] = Field(default_factory=dict[str, int])
    """Tasks by difficulty."""
    dropped: dict[str, int] = Field(default_factory=dict[str, int])
    gates: dict[str, int] = Field(default_factory=dict[str, int])
    """Runs that the certificates count, by gate."""
    manifest: str = ""
    """sha256 of its manifest."""
    seconds: float = 0.0
    peak_mb: int = 0
    """Most memory that the process which made it has held so far."""
    reused: bool = False


def jobs_for(documents: Sequence[Path], folder: Path, seeds: Sequence[int], wanted: Wanted) -> list[BatchJob]:
    """The jobs of some documents and seeds. Raises EnvgenError when two would write the same folder."""
    jobs: list[BatchJob] = []
    taken: dict[Path, Path] = {}
    for document in documents:
        for seed in seeds:
            name = document.name.split(".")[0] + (f"-s{seed}" if len(seeds) > 1 else "")
            target = folder / name
            if target in taken:
                raise EnvgenError(
                    f"{document} and {taken[target]} would both be written to {target}; rename one of "
                    "them, and give each seed once"
                )
            taken[target] = document
            jobs.append(
                BatchJob(
                    document=document,
                    target=target,
                    tasks=wanted["tasks"],
                    heldout=wanted["heldout"],
                    seed=seed,
                    levels=levels_of(wanted),
                    max_demands=wanted.get("max_demands", 0),
                    answer_share=wanted.get("answer_share", 0.0),
                    forbidden_share=wanted.get("forbidden_share", 0.0),
                )
            )
    return jobs


def run_batch(
    jobs: Sequence[BatchJob], executor: Executor, progress: Callable[[str, int, int], None] | None = None
) -> Iterator[BatchRow]:
    """The rows of some jobs in their order, each as soon as it and those before it are done."""
    for done, row in enumerate(executor.map(run_job, jobs), 1):
        if progress:
            progress("bundles", done, len(jobs))
        yield row


def run_job(job: BatchJob) -> BatchRow:
    """Make one bundle, or say why not: errors of envgen end here and become the row's ``problem``."""
    started = time.perf_counter()
    records = Workspace(job.target.parent / ".batch")
    try:
        digest = hashlib.sha256(job.document.read_bytes()).hexdigest()
        key = key_of(job.model_dump(mode="json", exclude={"document", "target"}), job.target.name, digest)
        known = records.read(STAGE, key)
        if known is not None:
            row = BatchRow.model_validate_json(known)
            if row.manifest == _manifest_hash(job.target):
                return row.model_copy(update={"reused": True})
        doc, draft = read_and_propose(job.document, workspace_for(job.target))
        order = make_order(
            doc,
            draft,
            tasks=job.tasks,
            heldout=job.heldout,
            seed=job.seed,
            levels=job.levels,
            max_demands=job.max_demands,
            answer_share=job.answer_share,
            forbidden_share=job.forbidden_share,
        )
        head = write_order(order, job.target, SerialExecutor())
    except (EnvgenError, OSError) as error:
        workspace_for(job.target).clear()
        seconds = round(time.perf_counter() - started, 3)
        return BatchRow(document=job.document.name, seed=job.seed, problem=str(error), seconds=seconds)
    levels, gates = _account(job.target)
    row = BatchRow(
        document=job.document.name,
        seed=job.seed,
        bundle=job.target.name,
        tools_total=head.report.tools_total,
        tools_implemented=head.report.tools_implemented,
        tasks=head.report.tasks_certified,
        levels=levels,
        dropped=head.report.dropped,
        gates=gates,
        manifest=_manifest_hash(job.target),
        seconds=round(time.perf_counter() - started, 3),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )
    records.write(STAGE, key, row.model_dump_json().encode())
    return row


def _manifest_hash(target: Path) -> str:
    path = target / "manifest.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _account(target: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Tasks by difficulty and gate runs of a bundle on disk, line by line."""
    levels: Counter[str] = Counter()
    gates: Counter[str] = Counter()
    with (target / "tasks.jsonl").open("rb") as lines:
        for line in lines:
            levels[str(orjson.loads(line)["difficulty"])] += 1
    with (target / "certificate.jsonl").open("rb") as lines:
        for line in lines:
            for gate in orjson.loads(line)["gates"]:
                gates[gate["gate"]] += gate["tried"]
    return dict(sorted(levels.items())), dict(gates)
