"""A small OpenAI-compatible HTTP server for tests. It holds NO model: every answer is scripted.

``with scripted_server(answers) as server``: ``server.base_url`` ends with /v1;
``server.requests`` holds the bodies it was sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Raw:
    """An answer that is no chat completion: a status with headers and text."""

    status: int
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)


Answer = str | Body | Raw
"""A text becomes a completion; a dict is sent as it is."""
Script = Sequence[Answer] | Callable[[Body], Answer]


@dataclass
class ScriptedServer:
    """What the server was asked, and where it listens."""

    base_url: str = ""
    requests: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def completion(text: str | None, finish_reason: str = "stop") -> Body:
    """The body of a chat completion."""
    return {
        "id": "scripted-1",
        "object": "chat.completion",
        "model": "scripted-model",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


@contextmanager
def scripted_server(script: Script, models: Sequence[str] = ("scripted-model",)) -> Iterator[ScriptedServer]:
    """Serve on a free port of the loopback interface until the block ends."""
    record = ScriptedServer()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": name} for name in models]}), {})

        def do_POST(self) -> None:
            body: Body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                index = len(record.requests)
                record.requests.append(body)
                record.headers.append({k.lower(): v for k, v in self.headers.items()})
            if self.path != "/v1/chat/completions":
                answer: Answer = Raw(404, f"no {self.path}")
            elif callable(script):
                answer = script(body)
            else:
                answer = script[min(index, len(script) - 1)]
            if isinstance(answer, Raw):
                self._send(answer.status, answer.text, answer.headers)
            else:
                tree = completion(answer) if isinstance(answer, str) else answer
                self._send(200, json.dumps(tree), {})

        def _send(self, status: int, text: str, headers: dict[str, str]) -> None:
            data = text.encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    record.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield record
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
