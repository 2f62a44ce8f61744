"""Clients without a server: scripted replies, and recordings of real ones."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from envgen.llm.port import ChatClient, ChatReply, ChatRequest, LLMBadReply, LLMError

Script = Callable[[ChatRequest], str | LLMError]
"""What to answer a request with; an error is raised."""


class ScriptedClient:
    """Answers from a list in order, or by a function of the request. Keeps the requests it was sent.

    Raises LLMBadReply when a list has no answer left.
    """

    def __init__(self, script: Script | Sequence[str | LLMError]) -> None:
        self.requests: list[ChatRequest] = []
        self._script = script
        self._lock = threading.Lock()

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        with self._lock:
            index = len(self.requests)
            self.requests.append(request)
        if callable(self._script):
            answer = self._script(request)
        elif index < len(self._script):
            answer = self._script[index]
        else:
            raise LLMBadReply(f"got request {index + 1}, expected at most {len(self._script)}: script more")
        if isinstance(answer, LLMError):
            raise answer
        return ChatReply(answer, model="scripted")


class RecordingClient:
    """Passes requests on and appends each with its reply to a JSONL file, one line a pair."""

    def __init__(self, client: ChatClient, path: Path) -> None:
        self._client = client
        self._path = path
        self._lock = threading.Lock()

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. Errors are not recorded: they belong to the day, not to the model."""
        reply = self._client.complete(request)
        row = {"key": request.key, "request": asdict(request), "reply": asdict(reply)}
        line = json.dumps(row, ensure_ascii=False) + "\n"
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        return reply


class ReplayClient:
    """Answers from a recording. A request recorded several times gets its replies in the recorded order.

    Raises LLMError for a file that cannot be read, and for a request that was not recorded (so often).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replies: defaultdict[str, list[ChatReply]] = defaultdict(list)
        self._lock = threading.Lock()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            for line in lines:
                row = json.loads(line)
                self._replies[row["key"]].append(ChatReply(**row["reply"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LLMError(
                f"{path}: got {type(error).__name__}: {error}, expected a recording (JSON lines); "
                "make one with RecordingClient"
            ) from error

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        with self._lock:
            left = self._replies.get(request.key)
            if left:
                return left.pop(0)
        asked = request.messages[-1].content if request.messages else ""
        raise LLMError(
            f"{self._path}: no reply left for the request ending in {asked[-80:]!r}; prompts or settings "
            "have changed since: record again"
        )
