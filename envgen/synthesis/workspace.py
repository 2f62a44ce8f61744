"""Where a synthesis keeps the outputs of its stages, so that one that was cut short goes on where it was.

Every output is a file whose name is the hash of all it was made from: the document, the options, the seed and
the code (`code_fingerprint`). Another option or another version of envgen never finds it. Files appear whole
or not at all (temporary file, ``fsync``, rename), and carry the hash of their content: one that was damaged
counts as missing and is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel

import envgen
from envgen.errors import BundleError

CODE_SUFFIXES = (".py", ".json", ".md")


@cache
def code_fingerprint() -> str:
    """sha256 over the files of the installed envgen package: outputs of other code are not taken up."""
    root = Path(envgen.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in CODE_SUFFIXES):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """The address of what is made from these JSON values, by this code. Raises TypeError for other values."""
    text = orjson.dumps([code_fingerprint(), *parts], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:32]


class Workspace:
    """Stage outputs in one folder, which is made on the first write.

    Several processes may share a folder: what one writes under a key, the other would have written too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, stage: str, key: str) -> Path:
        """The file of one stage output."""
        return self.folder / stage / f"{key}.out"

    def read(self, stage: str, key: str) -> bytes | None:
        """An output that was finished before; None when there is none, or a damaged one."""
        try:
            data = self.path(stage, key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BundleError(
                f"{self.path(stage, key)}: cannot be read ({error.strerror}); remove "
                f"{self.folder} to start anew"
            ) from error
        head, _, body = data.partition(b"\n")
        return body if head == hashlib.sha256(body).hexdigest().encode() else None

    def write(self, stage: str, key: str, body: bytes) -> None:
        """Keep one output. Raises OSError when the disk does not take it."""
        path = self.path(stage, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.part")
        with temporary.open("wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n")
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def clear(self) -> None:
        """Remove the folder: what it led to stands elsewhere now."""
        shutil.rmtree(self.folder, ignore_errors=True)


def workspace_for(target: Path) -> Workspace:
    """The workspace beside a bundle to be written: ``.NAME.synth``."""
    return Workspace(target.parent / f".{target.name}.synth")


ModelT = TypeVar("ModelT", bound=BaseModel)


def remember(
    workspace: Workspace | None,
    stage: str,
    key: Callable[[], str],
    model: type[ModelT],
    make: Callable[[], ModelT],
) -> ModelT:
    """The output of an early stage: what is kept in the workspace, or what ``make`` gives, which is then
    kept. Without a workspace it is made."""
    if workspace is None:
        return make()
    address = key()
    known = workspace.read(stage, address)
    if known is None:
        known = make().model_dump_json().encode()
        workspace.write(stage, address, known)
    return model.model_validate_json(known)
