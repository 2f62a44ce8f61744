"""Answers kept by the hash of their request: what was paid for once is never asked again.

A run that was cut short continues where it was: the same requests find their answers, the first new one goes
to the model. Only answers are kept; errors belong to the day.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from envgen.llm.port import ChatClient, ChatReply, ChatRequest, LLMError


class CachedClient:
    """Looks in ``folder`` first, then asks ``client``.

    ``model`` is part of the address: another model's answers are not this one's. Several threads and several
    processes may share a folder. Raises LLMError for a folder that cannot be used.
    """

    def __init__(self, client: ChatClient, folder: Path, model: str) -> None:
        self._client = client
        self._folder = folder
        self._model = model
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LLMError(f"{folder}: no folder for answers: {error}; choose another --cache") from error

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. A damaged entry is asked for again and replaced."""
        path = self._path(request)
        known = _read(path)
        if known is not None:
            return known
        reply = self._client.complete(request)
        self._write(path, reply)
        return reply

    def _path(self, request: ChatRequest) -> Path:
        name = hashlib.sha256(f"{self._model}\n{request.key}".encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"

    def _write(self, path: Path, reply: ChatReply) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(asdict(reply), ensure_ascii=False))
            os.replace(temporary, path)
        except OSError as error:
            raise LLMError(f"{path}: the answer cannot be kept: {error}; choose another --cache") from error


def _read(path: Path) -> ChatReply | None:
    try:
        return ChatReply(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # cut short by a full disk, or of another version
        return None
    except OSError as error:
        raise LLMError(f"{path}: a kept answer cannot be read: {error}; choose another --cache") from error
