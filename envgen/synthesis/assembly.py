"""The last stage: certified tasks, as they come, into a bundle folder, whatever their number at flat memory.

Task and certificate lines go straight to files in the workspace, hashed on the way. `BundleAssembly.finish`
adds the other files and puts the folder in its place with one rename. The files are those that
`envgen.store.write_bundle` writes of the same bundle.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from envgen.bundle import (
    Bundle,
    FileEntry,
    bundle_files,
    check_consistency,
    file_entries,
    json_bytes,
    make_manifest,
)
from envgen.errors import BundleError
from envgen.store import check_target, write_synced
from envgen.synthesis.rounds import Certified
from envgen.types import Certificate

TASKS = "tasks.jsonl"
CERTIFICATES = "certificate.jsonl"


class _Lines:
    """A file written line by line, with its hash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb")
        self._digest = hashlib.sha256()
        self._bytes = 0

    def add(self, text: str) -> None:
        data = text.encode() + b"\n"
        self._file.write(data)
        self._digest.update(data)
        self._bytes += len(data)

    def close(self) -> FileEntry:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return FileEntry(sha256=self._digest.hexdigest(), bytes=self._bytes)


class BundleAssembly:
    """A bundle on its way to ``target``, built up in ``folder`` (emptied first), which lies on the same disk.

    Raises BundleError when something that is no bundle stands at ``target``.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        check_target(target)
        self.target = target
        self.folder = folder
        self._staging = folder / "bundle"
        shutil.rmtree(folder, ignore_errors=True)
        self._staging.mkdir(parents=True)
        self._tasks = _Lines(self._staging / TASKS)
        self._certificates = _Lines(self._staging / CERTIFICATES)
        self.ids: list[str] = []

    def add(self, kept: Iterable[Certified]) -> None:
        """Write some tasks and their certificates."""
        for item in kept:
            self.ids.append(item.task.id)
            self._tasks.add(item.task.model_dump_json())
            self._certificates.add(Certificate(task_id=item.task.id, gates=item.gates).model_dump_json())

    def finish(self, head: Bundle) -> None:
        """Write the rest and put the folder in its place. ``head``: the bundle without tasks and
        certificates, with the splits of those that were added. Raises BundleError when its parts do not fit
        together."""
        bare = dict.fromkeys(head.splits, ())
        check_consistency(replace(head, tasks=(), certificates=(), splits=bare), str(self.target))
        strange = {i for members in head.splits.values() for i in members} - set(self.ids)
        if strange or len(set(self.ids)) != len(self.ids):
            raise BundleError(
                f"{self.target}: {len(self.ids)} tasks were added, and the splits or ids do not fit them "
                f"({', '.join(sorted(strange)[:3]) or 'an id twice'})"
            )
        streamed = {TASKS: self._tasks.close(), CERTIFICATES: self._certificates.close()}
        entries: dict[str, FileEntry] = {}
        for name, data in bundle_files(head).items():
            if name in streamed:
                entries[name] = streamed[name]
                continue
            write_synced(self._staging / name, data)
            entries |= file_entries({name: data})
        manifest = make_manifest(head, entries)
        write_synced(self._staging / "timing.json", json_bytes({"seconds": head.report.seconds}))
        write_synced(self._staging / "manifest.json", json_bytes(manifest.model_dump(mode="json")))
        check_target(self.target)
        if self.target.exists():
            os.rename(self.target, self.folder / "replaced")
        os.rename(self._staging, self.target)

    def close(self) -> None:
        """Close the files of an assembly that was not finished."""
        self._tasks.close()
        self._certificates.close()
