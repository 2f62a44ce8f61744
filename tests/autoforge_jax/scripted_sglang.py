"""A scripted stand-in for an SGLang server: real HTTP on a real socket, no model. NOT SGLang.

It speaks the routes that the client uses, in the shapes that the real server 0.5.23 answered (tests/sglang
tests those), and can be told to misbehave in ways that a healthy server will not. Unit tests of the client
only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flax import nnx
from safetensors.numpy import load_file

from autoforge_jax.model.export_hf import hf_tensors, write_hf
from autoforge_jax.model.qwen3 import Qwen3, weights_of
from autoforge_jax.rollout.sglang_weights import DTYPES, PublishedWeights, server_checksums, weights_tag
from tests.autoforge_jax.mock_learner import TINY


def publish(folder: Path, seed: int, version: int) -> PublishedWeights:
    """The one-layer model of the learner's tests with random weights, as a folder to serve."""
    params = nnx.split(Qwen3(TINY, rngs=nnx.Rngs(seed)), nnx.Param)[1]
    tensors = hf_tensors(weights_of(params), TINY)
    write_hf(folder, tensors, TINY)
    return PublishedWeights(version, weights_tag(version, tensors), folder, tensors)


Answer = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None]
"""(request body, the reply it would get) -> the reply it gets; None closes the connection without one."""


class ScriptedServer:
    """One stand-in. It samples id 7, then the first stop token, and counts what it was asked."""

    def __init__(self, folder: Path, port: int = 0, dtype: str = "float32") -> None:
        """folder: the Hugging Face folder that it pretends to have been started with."""
        self.folder, self.first_folder, self.dtype = folder, folder, dtype
        self.version = "default"
        self.answer: Answer = lambda _body, reply: reply
        self.max_input = 4096
        self.refuses = ""
        """A route whose connections break."""
        self.server_info: dict[str, Any] = {}
        self.model_info: dict[str, Any] = {}
        self.checksums: Callable[[dict[str, str]], dict[str, str]] = lambda sums: sums
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.hang = threading.Event()
        """Set while `/generate` must not answer; `/abort_request` ends what hangs."""
        self.asleep = False
        """It has given its memory back. Like the real one it dies when it is asked for tokens then, or is
        given memory that it never gave back."""
        self._aborted: set[str] = set()
        self._change = threading.Condition()
        self._alive = True
        self._http: ThreadingHTTPServer | None = None
        self.port = port
        self.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, with the weights it was made with: what a restart does."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args: object) -> None:
                """Quiet."""

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                status, reply = owner.reply(self.path, body)
                if status == 0 or not owner._alive:
                    self.close_connection = True
                    return
                content = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _serve

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._alive = True
        self.folder, self.version, self.asleep = self.first_folder, "default", False
        self._http = Server(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def die(self) -> None:
        """Stop listening and break what is under way."""
        self._alive = False
        with self._change:
            self._change.notify_all()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    @property
    def alive(self) -> bool:
        """It listens."""
        return self._alive

    def of(self, path: str) -> list[dict[str, Any]]:
        """Bodies of the calls of one route."""
        return [body for where, body in self.calls if where == path]

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """(status, JSON) of one call; status 0: none."""
        self.calls.append((path, body))
        if path == self.refuses:
            return 0, {}
        deadly = ("/health", "/generate", "/release_memory_occupation")
        if path in deadly if self.asleep else path == "/resume_memory_occupation":
            threading.Thread(target=self.die).start()
            return 0, {}
        if path == "/release_memory_occupation":
            self.asleep, self.folder = True, self.first_folder  # its weights are gone, its version stays
            return 200, {}
        if path == "/resume_memory_occupation":
            self.asleep = False
            return 200, {}
        if path == "/flush_cache":
            return (400 if self.hang.is_set() else 200), {}
        if path in ("/health", "/readiness"):
            return 200, {}
        if path == "/model_info":
            info = {"model_path": str(self.folder), "weight_version": self.version, "model_type": "qwen3"}
            return 200, info | self.model_info
        if path == "/server_info":
            started = {"version": "0.5.23", "max_req_input_len": self.max_input, "device": "cpu"}
            return 200, started | self.server_info
        if path == "/abort_request":
            with self._change:
                self._aborted.add(body["rid"])
                self._change.notify_all()
            return 200, {}
        if path == "/update_weights_from_disk":
            if not Path(body["model_path"]).is_dir():
                return 400, {"success": False, "message": "no such folder"}
            self.folder, self.version = Path(body["model_path"]), body["weight_version"]
            return 200, {"success": True, "message": ""}
        if path == "/weights_checker":
            sums = server_checksums(load_file(self.folder / "model.safetensors"), DTYPES[self.dtype])
            place = {"role": "target", "rank": 0, "size": 1}
            ranks = [{"checksums": self.checksums(sums), "parallelism_info": [place]}]
            return 200, {"success": True, "message": "", "ranks": ranks}
        if path == "/generate":
            return self._generate(body)
        return 404, {"error": {"message": f"no route {path}"}}

    def _generate(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        rid, version = body["rid"], self.version
        with self._change:
            while self.hang.is_set() and rid not in self._aborted and self._alive:
                self._change.wait(0.02)
        stops = body["sampling_params"]["stop_token_ids"]
        room = body["sampling_params"]["max_new_tokens"]
        ids = [7, *stops[:1]][:room] if stops else [7] * room
        stopped = bool(stops) and room > 1
        reason: dict[str, Any] = {"type": "stop", "matched": ids[-1]} if stopped else {"type": "length"}
        if rid in self._aborted:
            ids, reason = ids[:1], {"type": "abort", "message": "Aborted"}
        meta = {
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": version,
            "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
            "output_token_logprobs": [[-0.5 - 0.25 * i, token, None] for i, token in enumerate(ids)],
        }
        reply = self.answer(body, {"output_ids": ids, "meta_info": meta})
        if reply is None:
            return 0, {}
        return (400 if "error" in reply else 200), reply
