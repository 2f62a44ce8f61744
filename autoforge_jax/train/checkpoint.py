"""Checkpoints of a TrainState: orbax arrays and one JSON file beside them, restored bit-exact on any mesh.

    DIR/step_00000010/state/…      every array of the state, through orbax, under numbered names
    DIR/step_00000010/meta.json    phase, step, policy version, seeds, data cursor, config and bundle hashes;
                                   per array its path, shape, type and checksum; the size of every file

`start` copies the state to the host and returns; a thread writes it to a hidden folder, which gets its real
name once it is whole, so that a process that dies leaves no half of one. What goes wrong in the thread is
raised by the next `start` or `wait`. `latest` takes the newest folder that is whole (meta.json readable,
every file there with its size) and passes over others. `restore` compares config, bundles, array names,
shapes, types and checksums, and says which one differs. What it returns lies in buffers of its own that a
train step may donate.

With several processes (`Crew`) all of them save and restore together: each writes and reads its part of the
arrays, the first writes the rest. The folder must be one that all of them see. Checksums are sums modulo
2^32, which a mesh gives as one device does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from autoforge_jax.errors import CheckpointError
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.weight_sync import checksums

FORMAT = 2
_NAME = re.compile(r"step_(\d{8})")


@dataclass(frozen=True)
class CheckpointMeta:
    """The JSON side: where the run stood, and what it belongs to."""

    phase: str
    """`sft`, `erpo`."""
    step: int
    """Steps of the phase that are done; the folder's number."""
    policy_version: int
    seeds: dict[str, int] = field(default_factory=dict)
    """Every seed needed to go on; samplers are functions of (seed, step)."""
    cursor: dict[str, Any] = field(default_factory=dict)
    """Where the data stood, as JSON values."""
    config_hash: str = ""
    bundle_hashes: dict[str, str] = field(default_factory=dict)
    """Bundle name -> environment id."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything else as JSON values (best score, seconds used)."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    meta: CheckpointMeta


class CheckpointStore:
    """The checkpoints of one phase of one run: `directory`, of which the newest `keep` stay. Close it."""

    def __init__(self, directory: Path, keep: int = 2, crew: Crew | None = None) -> None:
        if keep < 1:
            raise ValueError(f"keep {keep}; at least one checkpoint must stay")
        self.directory, self.keep = Path(directory).absolute(), keep
        self._crew = crew or Crew()
        self._writer: ocp.AsyncCheckpointer | None = None
        self._commit: threading.Thread | None = None
        self._failure: tuple[Path, BaseException] | None = None

    def save(self, state: TrainState, meta: CheckpointMeta) -> Path:
        """`start`, then `wait`. Returns the folder."""
        target = self.start(state, meta)
        self.wait()
        return target

    def start(self, state: TrainState, meta: CheckpointMeta) -> Path:
        """Begin to write a checkpoint; returns its folder-to-be once the state may be donated.

        When it is whole, an older one of the same step is replaced and those beyond `keep` are dropped.
        Waits for the one before and raises what went wrong with it.
        """
        self.wait()
        target = self.directory / f"step_{meta.step:08d}"
        work = self.directory / f".writing-{target.name}"
        if self._crew.first:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
        self._crew.meet("checkpoint folder")
        if not work.is_dir():
            raise CheckpointError(
                f"{self._crew.name(self._crew.index)} does not see {work}: all processes need the same run "
                "directory; put run.out_dir on a file system that they share"
            )
        leaves = _named_leaves(state)
        arrays = _describe(leaves)
        if self._writer is None:
            # ours is the handling of SIGTERM, so nothing here asks JAX's preemption service
            self._writer = ocp.AsyncCheckpointer(
                ocp.PyTreeCheckpointHandler(), timeout_secs=max(1, int(self._crew.timeout_s))
            )
        slots = {_slot(index): leaf for index, leaf in enumerate(leaves.values())}
        self._writer.save(work / "state", args=ocp.args.PyTreeSave(slots))
        self._commit = threading.Thread(
            target=self._finish, args=(self._writer, work, target, meta, arrays), name="checkpoint"
        )
        self._commit.start()
        return target

    def _finish(
        self,
        writer: ocp.AsyncCheckpointer,
        work: Path,
        target: Path,
        meta: CheckpointMeta,
        arrays: list[dict[str, Any]],
    ) -> None:
        """In the thread: wait for the arrays of all processes, then write the JSON side and swap in."""
        try:
            writer.wait_until_finished()
            if self._crew.first:
                tree = {"format": FORMAT, "meta": asdict(meta), "arrays": arrays, "files": _file_sizes(work)}
                with (work / "meta.json").open("w", encoding="utf-8") as file:
                    json.dump(tree, file, indent=1, sort_keys=True)
                    file.flush()
                    os.fsync(file.fileno())
                _swap_in(work, target)
                self._prune()
        # A thread's boundary: whatever it was is raised in the thread that saves next.
        except BaseException as error:
            self._failure = (target, error)

    def wait(self) -> None:
        """Until what was started is on disk. CheckpointError when it could not be written."""
        if self._commit is not None:
            self._commit.join()
            self._commit = None
        if self._failure is not None:
            (target, error), self._failure = self._failure, None
            raise CheckpointError(
                f"{target} could not be written ({type(error).__name__}: {error}); the checkpoint before it "
                "is whole: mend the cause (is the disk full?) and start the same command again"
            ) from error

    def close(self) -> None:
        """`wait`, and let the writer's threads go."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return [c.meta.step for c in self._whole()]

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; None when there is none. Half-written or damaged folders are passed
        over.
        """
        whole = self._whole()
        return whole[-1] if whole else None

    def resume_line(self, phase: str) -> str:
        """For a person: where a phase goes on, and which newer folders were passed over. Empty when there is
        no folder at all."""
        newest = self.latest()
        step = newest.meta.step if newest else 0
        names = [path.name for path in self._folders() if newest is None or path.name > newest.path.name]
        said = f"  {phase} goes on after step {step}" if newest else f"  {phase} begins anew"
        if names:
            said += f"; passed over in {self.directory}, unfinished, damaged or of another version: "
            said += ", ".join(names)
        return said if newest or names else ""

    def restore(
        self,
        template: Any,
        *,
        config_hash: str | None = None,
        bundle_hashes: Mapping[str, str] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[TrainState, CheckpointMeta]:
        """The newest whole checkpoint (or `checkpoint`) in the structure and shardings of `template`.

        template: a TrainState of arrays or of `jax.ShapeDtypeStruct` with shardings; it is left as it is.
        Raises CheckpointError when there is none, when it belongs to another config or other bundles (hashes
        are compared when given), or when an array's name, shape, type or checksum differs.
        """
        self.wait()
        chosen = checkpoint or self._crew.of_first("newest checkpoint", self.latest)
        if chosen is None:
            raise CheckpointError(
                f"no whole checkpoint in {self.directory}; start the phase from its beginning"
            )
        _check_owner(chosen, config_hash, bundle_hashes)
        described = _read(chosen.path)["arrays"]
        leaves = _named_leaves(template)
        _check_arrays(chosen.path, described, leaves)
        here = SingleDeviceSharding(jax.devices()[0])
        abstract: Any = {
            _slot(i): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or here)
            for i, leaf in enumerate(leaves.values())
        }
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            arrays = reader.restore(
                chosen.path / "state",
                args=ocp.args.PyTreeRestore(
                    item=abstract, restore_args=ocp.checkpoint_utils.construct_restore_args(abstract)
                ),
            )
        values: list[jax.Array] = []
        for index in range(len(leaves)):
            # Restored arrays may borrow memory of the reader, which cannot be donated: copy each once into
            # buffers of our own, and let go of the reader's at once.
            values.append(jnp.array(arrays.pop(_slot(index)), copy=True))
        found = dict(zip(leaves, values, strict=True))
        for entry, got in zip(described, _describe(found), strict=True):
            if got != entry:
                raise CheckpointError(
                    f"{chosen.path}: array {entry['path']} does not have the bytes that were saved; delete "
                    "this folder to go on from the one before"
                )
        return jax.tree.unflatten(jax.tree.structure(template), values), chosen.meta

    def _folders(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return sorted(p for p in self.directory.glob("step_*") if _NAME.fullmatch(p.name))

    def _whole(self) -> list[Checkpoint]:
        checkpoints: list[Checkpoint] = []
        for path in self._folders():
            try:
                tree = _read(path)
                meta = CheckpointMeta(**tree["meta"])
            except (CheckpointError, TypeError, KeyError):
                continue
            if tree["files"] == {k: v for k, v in _file_sizes(path).items() if k != "meta.json"}:
                checkpoints.append(Checkpoint(path, meta))
        return checkpoints

    def _prune(self) -> None:
        for old in self._whole()[: -self.keep]:
            # Out of sight in one piece: a process that dies in here leaves no folder with half its files.
            aside = old.path.with_name(f".old-{old.path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(old.path, aside)
        for stale in [*self.directory.glob(".writing-*"), *self.directory.glob(".old-*")]:
            shutil.rmtree(stale, ignore_errors=True)


def check_draws(meta: CheckpointMeta, found: str) -> None:
    """CheckpointError when the next step's random draws (a hash of them) are not those that were saved: the
    run would go on, but not as the same run."""
    saved = meta.cursor.get("draws")
    if saved != found:
        raise CheckpointError(
            f"{meta.phase}: step {meta.step + 1} would draw other tasks or batches ({found}) than when "
            f"the checkpoint was written ({saved}); another version of this package or of numpy? Go "
            "on with the versions that the run was started with, or start over with --fresh"
        )


def _named_leaves(state: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}


def _slot(index: int) -> str:
    # Numbered names: a leaf's real path may hold any character, and it is in meta.json.
    return f"a{index:05d}"


def _describe(leaves: Mapping[str, jax.Array]) -> list[dict[str, Any]]:
    sums = checksums(list(leaves.values()))
    return [
        {"path": name, "shape": list(leaf.shape), "dtype": str(leaf.dtype), "checksum": total}
        for (name, leaf), total in zip(leaves.items(), sums, strict=True)
    ]


def _file_sizes(folder: Path) -> dict[str, int]:
    return {
        p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()
    }


def _swap_in(work: Path, target: Path) -> None:
    aside = target.with_name(f".old-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        os.replace(target, aside)
    os.replace(work, target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    shutil.rmtree(aside, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: meta.json is missing or broken ({error}); this checkpoint was not finished"
        ) from error
    if (
        not isinstance(tree, dict)
        or tree.get("format") != FORMAT
        or not {"meta", "arrays", "files"} <= set(tree)
    ):
        raise CheckpointError(
            f"{path}: not a checkpoint of format {FORMAT}; it was written by another version"
        )
    return tree


def _check_owner(
    checkpoint: Checkpoint, config_hash: str | None, bundle_hashes: Mapping[str, str] | None
) -> None:
    meta = checkpoint.meta
    if config_hash is not None and meta.config_hash != config_hash:
        raise CheckpointError(
            f"{checkpoint.path} was written under config {meta.config_hash}, this run has {config_hash}; "
            "use another run name, or "
            "the config it was started with"
        )
    if bundle_hashes is not None and meta.bundle_hashes != dict(bundle_hashes):
        names = sorted(
            n
            for n in {*meta.bundle_hashes, *bundle_hashes}
            if meta.bundle_hashes.get(n) != bundle_hashes.get(n)
        )
        lines = "; ".join(
            f"{n}: saved {meta.bundle_hashes.get(n)}, now {bundle_hashes.get(n)}" for n in names
        )
        raise CheckpointError(
            f"{checkpoint.path} belongs to other bundles ({lines}); restore those bundles or start a new run"
        )


def _check_arrays(path: Path, described: list[dict[str, Any]], leaves: dict[str, Any]) -> None:
    saved, wanted = [entry["path"] for entry in described], list(leaves)
    if saved != wanted:
        missing, surplus = sorted(set(wanted) - set(saved))[:4], sorted(set(saved) - set(wanted))[:4]
        raise CheckpointError(
            f"{path}: its arrays are not this model's and optimiser's: missing {missing}, not wanted "
            f"{surplus}; "
            "model or optimizer settings changed"
        )
    for entry, (name, leaf) in zip(described, leaves.items(), strict=True):
        got, expected = (tuple(entry["shape"]), entry["dtype"]), (tuple(leaf.shape), str(leaf.dtype))
        if got != expected:
            raise CheckpointError(
                f"{path}: array {name} is {got[1]}{list(got[0])}, expected {expected[1]}{list(expected[0])}"
            )
