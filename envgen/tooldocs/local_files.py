"""Files beside a document that its ``$ref`` name: read once each, from its own folder only, with limits."""

from __future__ import annotations

import hashlib
import posixpath
from pathlib import Path
from typing import Any

from envgen.errors import DocumentError
from envgen.tooldocs.load import load

MAX_FILES = 300
MAX_BYTES_IN_ALL = 20_000_000


class LocalFiles:
    """The folder of a document. ``used`` maps each file read so far to its SHA-256."""

    def __init__(self, folder: Path | None = None, main: str = "") -> None:
        self.main = main
        self.used: dict[str, str] = {}
        self._folder = folder
        self._trees: dict[str, Any] = {}
        self._bytes = 0

    def name(self, reference: str, base: str, pointer: str) -> str:
        """Name of the file that ``reference`` means in file ``base``, relative to the document's folder;
        empty for the document itself. Raises DocumentError for an address or a place outside the folder."""
        if "://" in reference or reference.startswith(("//", "mailto:", "urn:")):
            raise DocumentError(
                f"{pointer}: $ref {reference[:120]!r} points outside the file, at an address; download it "
                "beside the document, or bundle the document into one file first"
            )
        name = posixpath.normpath(posixpath.join(posixpath.dirname(base), reference.replace("\\", "/")))
        if posixpath.isabs(name) or name == ".." or name.startswith("../") or ":" in name:
            raise DocumentError(
                f"{pointer}: $ref {reference[:120]!r} points outside the file's own folder; copy that file "
                "beside the document, or bundle the document into one file first"
            )
        return "" if name == self.main else name

    def tree(self, name: str, pointer: str) -> Any:
        """Parsed content of a file. Raises DocumentError when it is missing, too big or not JSON or YAML."""
        if name in self._trees:
            return self._trees[name]
        if self._folder is None:
            raise DocumentError(
                f"{pointer}: $ref {name[:120]!r} points outside the file, and this document has no folder; "
                "bundle the document into one file first"
            )
        if len(self._trees) >= MAX_FILES:
            raise DocumentError(f"{pointer}: $ref to more than {MAX_FILES} files; bundle the document first")
        path = self._folder / name
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise DocumentError(
                f"{pointer}: $ref {name[:120]!r} points outside the file's own folder through a link; copy "
                "the file beside the document"
            )
        try:
            loaded = load(path)
            self._bytes += path.stat().st_size
        except DocumentError as error:
            raise DocumentError(f"{pointer}: $ref {name[:120]!r}: {_relative(error, path, name)}") from error
        if self._bytes > MAX_BYTES_IN_ALL:
            raise DocumentError(
                f"{pointer}: the files that $ref names hold more than {MAX_BYTES_IN_ALL:,} bytes; keep only "
                "the paths one environment needs"
            )
        self._trees[name], self.used[name] = loaded.tree, loaded.sha256
        return loaded.tree

    def digest(self, sha256: str) -> str:
        """Hash of the document with all files it used; ``sha256`` itself when it used none."""
        if not self.used:
            return sha256
        lines = [sha256, *(f"{name}:{digest}" for name, digest in sorted(self.used.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _relative(error: DocumentError, path: Path, name: str) -> str:
    """The message without the folder, which is of this machine."""
    return str(error).replace(str(path), name)
