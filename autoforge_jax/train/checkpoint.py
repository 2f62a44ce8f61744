"""Checkpoints of a TrainState: orbax arrays and one JSON file beside them, written atomically, restored
bit-exact.

    DIR/step_00000010/state/…      every array of the state, through orbax, under numbered names
    DIR/step_00000010/meta.json    phase, step, policy version, seeds, data cursor, config and bundle hashes,
    and per array: path,
                                   shape, type, checksum; and the size of every file

A checkpoint is written to a temporary folder and renamed into place, so that a process that dies leaves no
half of one under a real name. `latest` takes the newest folder that is whole (meta.json readable, every file
there with its size) and passes over others. `restore` compares config, bundles, array names, shapes, types
and checksums, and says which one differs. What it returns lives in buffers of its own that a train step may
donate.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from autoforge_jax.errors import CheckpointError
from autoforge_jax.train.state import TrainState

FORMAT = 1
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
    """The checkpoints of one phase of one run: `directory`, of which the newest `keep` stay."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep {keep}; at least one checkpoint must stay")
        self.directory, self.keep = Path(directory).absolute(), keep

    def save(self, state: TrainState, meta: CheckpointMeta) -> Path:
        """Write a checkpoint and drop those beyond `keep`; an older one of the same step is replaced. Returns
        its folder.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / f"step_{meta.step:08d}"
        work = self.directory / f".writing-{target.name}-{os.getpid()}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        leaves = _named_leaves(state)
        host = {name: np.asarray(jax.device_get(leaf)) for name, leaf in leaves.items()}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
            writer.save(
                work / "state", args=ocp.args.PyTreeSave({_slot(i): leaves[n] for i, n in enumerate(leaves)})
            )
        arrays = [_describe(name, value) for name, value in host.items()]
        text = json.dumps(
            {"format": FORMAT, "meta": asdict(meta), "arrays": arrays, "files": _file_sizes(work)},
            indent=1,
            sort_keys=True,
        )
        with (work / "meta.json").open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _swap_in(work, target)
        self._prune()
        return target

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return [c.meta.step for c in self._whole()]

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; None when there is none. Half-written or damaged folders are passed
        over.
        """
        whole = self._whole()
        return whole[-1] if whole else None

    def restore(
        self,
        template: TrainState,
        *,
        config_hash: str | None = None,
        bundle_hashes: Mapping[str, str] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[TrainState, CheckpointMeta]:
        """The newest whole checkpoint (or `checkpoint`) in the structure and shardings of `template`, which
        is left as it is: arrays, or their shapes (`jax.eval_shape`), which take no memory.

        Raises CheckpointError when there is none, when it belongs to another config or other bundles (hashes
        are compared when given), or when an array's name, shape, type or checksum differs.
        """
        chosen = checkpoint or self.latest()
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
        for index, entry in enumerate(described):
            value = arrays.pop(_slot(index))
            if _describe(entry["path"], np.asarray(jax.device_get(value))) != entry:
                raise CheckpointError(
                    f"{chosen.path}: array {entry['path']} does not have the bytes that were saved; delete "
                    "this folder to go on "
                    "from the one before"
                )
            # Restored arrays may borrow memory of the reader, which cannot be donated: copied into buffers
            # of our own, one at a time, so that the state is never in memory twice.
            values.append(jnp.array(value, copy=True))
        return jax.tree.unflatten(jax.tree.structure(template), values), chosen.meta

    def _whole(self) -> list[Checkpoint]:
        found = (
            [p for p in self.directory.glob("step_*") if _NAME.fullmatch(p.name)]
            if self.directory.is_dir()
            else []
        )
        checkpoints: list[Checkpoint] = []
        for path in sorted(found):
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
            shutil.rmtree(old.path)
        for stale in [*self.directory.glob(".writing-*"), *self.directory.glob(".old-*")]:
            shutil.rmtree(stale, ignore_errors=True)


def hash_json(value: Any) -> str:
    """Content hash of a JSON value (a dumped config), independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _named_leaves(state: TrainState) -> dict[str, jax.Array]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}


def _slot(index: int) -> str:
    # Numbered names: a leaf's real path may hold any character, and it is in meta.json.
    return f"a{index:05d}"


def _describe(name: str, value: np.ndarray) -> dict[str, Any]:
    digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
    return {"path": name, "shape": list(value.shape), "dtype": str(value.dtype), "blake2b": digest}


def _file_sizes(folder: Path) -> dict[str, int]:
    return {
        p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()
    }


def _swap_in(work: Path, target: Path) -> None:
    aside = target.with_name(f".old-{target.name}-{os.getpid()}")
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


def _check_arrays(path: Path, described: list[dict[str, Any]], leaves: dict[str, jax.Array]) -> None:
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
