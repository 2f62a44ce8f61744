"""Phase 1 and 2: tool documents -> certified bundles in the run directory, in parallel processes. No JAX.

Every bundle lies beside a request file that says what it was made of (document hash, counts, seed, version of
this package); a second run reuses a bundle whose request is the same. ``bundles.json`` in the run directory
ties the run to the bundles' hashes.
"""

from __future__ import annotations

import hashlib
import queue as queues
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from autoforge_jax.config import RenderConfig, SynthesisConfig
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.rollout.formats.choose import chat_format
from autoforge_jax.train.interrupt import StopFlag
from autoforge_jax.train.metrics import Reporter
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.state_files import read_json, write_json
from envgen.interface import Bundle, EnvgenError, Task, load_bundle, synthesize, write_bundle

Role = Literal["train", "heldout"]


@dataclass(frozen=True)
class Source:
    """One environment of the config: a document to synthesise from, or a bundle that exists."""

    path: Path
    role: Role

    @property
    def is_bundle(self) -> bool:
        """True for a folder with a manifest."""
        return (self.path / "manifest.json").is_file()


@dataclass(frozen=True)
class Environments:
    """The bundles of a run by role."""

    train: tuple[Bundle, ...]
    heldout: tuple[Bundle, ...]
    hashes: dict[str, str]
    """Bundle name -> content hash over all its files."""

    @property
    def all(self) -> tuple[Bundle, ...]:
        """Training bundles first."""
        return self.train + self.heldout

    def training_tasks(self) -> list[tuple[Bundle, Task]]:
        """The training split of the training bundles, in order."""
        return [(bundle, task) for bundle in self.train for task in bundle.split("train")]

    def evaluation_sets(self) -> dict[str, list[tuple[Bundle, Task]]]:
        """`heldout_tasks`: held-out split of the training bundles. `heldout_bundle`: all tasks of the
        held-out bundles."""
        sets = {"heldout_tasks": take_turns([[(b, t) for t in b.split("heldout")] for b in self.train])}
        if self.heldout:
            sets["heldout_bundle"] = take_turns(
                [[(b, t) for s in ("heldout", "train") for t in b.split(s)] for b in self.heldout]
            )
        return sets


def take_turns(queues: list[list[tuple[Bundle, Task]]]) -> list[tuple[Bundle, Task]]:
    """First of each, second of each, …: a set that is cut short still holds every environment."""
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]


def sources(config: SynthesisConfig) -> list[Source]:
    """The environments of a config in order; ConfigError for a missing path, a name used twice, or nothing to
    train on."""
    listed = [Source(Path(p), "train") for p in (*config.documents, *config.bundles)]
    listed += [Source(Path(p), "heldout") for p in config.heldout_documents]
    for path in config.bundles:
        if not (Path(path) / "manifest.json").is_file():
            raise ConfigError(f"synthesis.bundles: {path} is no bundle (no manifest.json in it)")
    for source in listed:
        if not source.path.is_file() and not source.is_bundle:
            raise ConfigError(
                f"synthesis: no such document or bundle: {source.path} (relative to the current directory)"
            )
    stems = [source.path.stem for source in listed]
    for stem in sorted({s for s in stems if stems.count(s) > 1}):
        raise ConfigError(
            f"synthesis: {stem!r} is named twice; an environment is in training or held out, once"
        )
    if not any(source.role == "train" for source in listed):
        raise ConfigError("synthesis.documents and synthesis.bundles are empty: nothing to train on")
    return listed


def _request(source: Source, config: SynthesisConfig) -> dict[str, Any]:
    """Everything a synthesised bundle is a function of."""
    tasks, heldout = config.tasks_per_bundle, config.heldout_tasks_per_bundle
    if source.role == "heldout":
        # Nothing is trained on a held-out environment: it needs no more tasks than one evaluation looks at.
        tasks, heldout = max(2, heldout), max(1, heldout // 2)
    return {
        "document": source.path.name,
        "document_sha256": hashlib.sha256(source.path.read_bytes()).hexdigest(),
        "tasks": tasks,
        "heldout": heldout,
        "seed": config.seed,
        "max_difficulty": config.max_difficulty,
        "max_demands": config.max_demands,
        "version": metadata.version("autoforge-jax"),
    }


def _worker(queue: Any, path: str, request: dict[str, Any], target: str) -> None:
    """Synthesise one bundle to `target` in a process of its own; news and refusals travel over `queue`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it ends its workers
    stem = Path(path).stem
    try:
        _synthesize(Path(path), request, Path(target), lambda stage, done, total: queue.put((stem, done)))
    except EnvgenError as error:
        queue.put((stem, error))


def _synthesize(
    path: Path, request: dict[str, Any], target: Path, progress: Callable[[str, int, int], None]
) -> float:
    start = time.perf_counter()
    bundle = synthesize(
        path,
        tasks=request["tasks"],
        heldout=request["heldout"],
        seed=request["seed"],
        max_difficulty=request["max_difficulty"],
        max_demands=request["max_demands"],
        progress=progress,
    )
    write_bundle(bundle, target)
    write_json(target.with_suffix(".json"), request)
    return time.perf_counter() - start


def _reusable(target: Path, request: dict[str, Any], begun: bool) -> bool:
    """The bundle is there and was made from `request`. begun: the run has gone past this phase."""
    beside = target.with_suffix(".json")
    if not beside.is_file() or not (target / "manifest.json").is_file():
        return False
    remedy = f"restore it, or delete it and the folder {target}: the bundle is then made again"
    if begun:
        remedy = "restore it (it says what the bundle beside it was made from), or start over with --fresh"
    return read_json(beside, dict, remedy) == request


def synthesize_all(run: RunDir, reporter: Reporter, stop: StopFlag) -> tuple[Environments, str]:
    """Make or reuse every bundle of the run; returns them and the phase's result line.

    TrainingError when a run that has gone past this phase finds other bundles than it was made with.
    """
    config = run.config.synthesis
    listed = sources(config)
    wanted = {s: _request(s, config) for s in listed if not s.is_bundle}
    targets = {s: s.path if s.is_bundle else run.bundles / s.path.stem for s in listed}
    missing = [s for s in wanted if not _reusable(targets[s], wanted[s], run.started("tokenizer"))]
    if missing and run.started("tokenizer"):
        raise TrainingError(
            f"{run.root} holds results of other bundles: {', '.join(s.path.name for s in missing)} changed "
            "or was deleted since\n"
            f"restore it (the document, or its bundle in {run.bundles}), take a new run directory (--set "
            "run.name=…), or start over with `autoforge run … --fresh`, which deletes this one"
        )
    if missing:
        _make(missing, wanted, targets, config.workers, reporter, stop)
    environments = load_environments(run, listed, targets)
    made = f"{len(missing)} made, {len(wanted) - len(missing)} reused"
    certified = sum(b.report.tasks_certified for b in environments.all)
    tools = sum(b.report.tools_implemented for b in environments.all)
    total = sum(b.report.tools_total for b in environments.all)
    result = f"{len(listed)} environments ({made}), {tools}/{total} tools, {certified} certified tasks"
    return environments, result


def _make(
    missing: list[Source],
    wanted: dict[Source, dict[str, Any]],
    targets: dict[Source, Path],
    workers: int,
    reporter: Reporter,
    stop: StopFlag,
) -> None:
    total = sum(wanted[s]["tasks"] for s in missing)
    counts: dict[str, int] = {}
    with reporter.bar("synthesis", total) as bar:
        if workers == 1 or len(missing) == 1:
            for source in missing:

                def show(stage: str, done: int, of: int, stem: str = source.path.stem) -> None:
                    counts[stem] = done
                    bar.update(sum(counts.values()), document=stem)
                    stop.raise_if_requested("synthesis: finished bundles are kept")

                _synthesize(source.path, wanted[source], targets[source], show)
            return
        # spawn: workers start clean and never inherit threads of JAX
        context = get_context("spawn")
        queue = context.Queue()
        waiting = list(missing)
        running: dict[str, Any] = {}
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    source = waiting.pop(0)
                    process = context.Process(
                        target=_worker,
                        args=(queue, str(source.path), wanted[source], str(targets[source])),
                        daemon=True,
                    )
                    process.start()
                    running[source.path.stem] = process
                _drain(queue, counts)
                for stem in [stem for stem, process in running.items() if not process.is_alive()]:
                    process = running.pop(stem)
                    _drain(queue, counts)
                    if process.exitcode != 0:
                        raise TrainingError(
                            f"synthesis of {stem} ended with exit code {process.exitcode}; "
                            "its traceback is above"
                        )
                bar.update(sum(counts.values()), documents=len(missing) - len(waiting) - len(running))
                stop.raise_if_requested("synthesis: finished bundles are kept")
                time.sleep(0.1)
            _drain(queue, counts)
        finally:
            for process in running.values():
                process.terminate()
                process.join()


def _drain(queue: Any, counts: dict[str, int]) -> None:
    """Take over the workers' news; raises the refusal of a worker here."""
    while True:
        try:
            stem, news = queue.get_nowait()
        except queues.Empty:
            return
        if isinstance(news, EnvgenError):
            raise news
        counts[stem] = news


def load_environments(run: RunDir, listed: list[Source], targets: dict[Source, Path]) -> Environments:
    """Load the bundles and tie the run to their hashes."""
    loaded = {source: load_bundle(targets[source]) for source in listed}
    hashes = {bundle.name: bundle.content_hash for bundle in loaded.values()}
    if len(hashes) != len(loaded):
        raise ConfigError(
            f"two bundles have one name: {[b.name for b in loaded.values()]}; rename a document"
        )
    path = run.root / "bundles.json"
    if path.is_file() and run.started("tokenizer"):
        before = _known_hashes(path)
        if before != hashes:
            changed = sorted(n for n in before.keys() | hashes.keys() if before.get(n) != hashes.get(n))
            raise TrainingError(
                f"{run.root} holds results of other bundles; these changed: {', '.join(changed)}\n"
                "use --fresh to delete them and start over, or --set run.name=… for a new run"
            )
    accounts = [_account(s, b, hashes[b.name], run.config.render) for s, b in loaded.items()]
    if run.writes:
        write_json(path, accounts)
    return Environments(
        train=tuple(b for s, b in loaded.items() if s.role == "train"),
        heldout=tuple(b for s, b in loaded.items() if s.role == "heldout"),
        hashes=hashes,
    )


def _known_hashes(path: Path) -> dict[str, str]:
    """Bundle name -> content hash of bundles.json; TrainingError when it is damaged."""
    remedy = (
        "restore it, or delete it: it is then written again from the bundles, and checkpoints are still "
        "compared with them"
    )
    known: dict[str, str] = {}
    for number, item in enumerate(read_json(path, list, remedy), 1):
        if not isinstance(item, dict) or not {"name", "content_hash"} <= item.keys():
            raise TrainingError(
                f"{path}: entry {number} is {str(item)[:80]}, expected the account of a bundle; the file is "
                f"damaged, {remedy}"
            )
        known[item["name"]] = item["content_hash"]
    return known


def _account(source: Source, bundle: Bundle, content_hash: str, render: RenderConfig) -> dict[str, Any]:
    """The account of one bundle for the report: every tool and every sampled task is in it."""
    return {
        "name": bundle.name,
        "role": source.role,
        "document": bundle.doc.source,
        "format": bundle.doc.format,
        "title": bundle.doc.title,
        "environment_id": bundle.environment_id,
        "content_hash": content_hash,
        "tasks": {split: len(ids) for split, ids in bundle.splits.items()},
        "prompt": "".join(chat_format(render).prefix(bundle.policy, bundle.tools)),
        "report": bundle.report.model_dump(mode="json"),
    }
