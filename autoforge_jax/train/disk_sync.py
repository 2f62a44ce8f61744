"""Learner -> SGLang servers through files, with proof of arrival.

    <run>/serve/initial      the parameters before any training: what a server is started with
    <run>/serve/v000012      policy version 12; older ones are deleted once every server has the newer

A folder is written once, beside itself, and renamed, so that a server never reads half of one. It holds every
tensor of the model under Hugging Face's names, checked against the model's shapes before it is written.
Servers are told a tag of version and bytes, asked for it afterwards, and for a checksum of every tensor that
they then hold (`rollout.sglang_weights`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.export_hf import hf_tensors, write_hf
from autoforge_jax.model.qwen3 import weights_of
from autoforge_jax.rollout.engine_sglang import SGLangEngine
from autoforge_jax.rollout.sglang_local import LocalServers
from autoforge_jax.rollout.sglang_weights import PublishedWeights, weights_tag
from autoforge_jax.rollout.tokenizer import PolicyTokenizer
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.state import Params
from autoforge_jax.train.weight_sync import SyncReport


class DiskSync:
    """The SGLang engine of one run and the way its weights take."""

    def __init__(
        self,
        run: RunDir,
        tokenizer: PolicyTokenizer,
        model: Qwen3Config,
        initial: Callable[[], Params],
        crew: Crew | None = None,
    ) -> None:
        """initial: makes what `serve/initial` is written from, whole in this process; called only when that
        is not there yet, then by all processes of `crew` together (the first writes)."""
        settings = run.config.rollout.sglang
        self._folder = (run.root / "serve").absolute()
        self._initial = self._folder / "initial"
        self._model = model
        self._tokenizer_files = sorted(run.tokenizer.glob("*.j*"))
        self._token_ids: dict[str, int | list[int]] = {
            "pad_token_id": tokenizer.pad_id,
            "eos_token_id": list(tokenizer.stop_ids),
        }
        self._servers: LocalServers | None = None
        if settings.launch:
            self._servers = LocalServers(settings.launch, self._initial, settings.urls, self._folder / "logs")
        self._published: PublishedWeights | None = None
        if not (crew or Crew()).of_first("initial weights", self._initial.is_dir):
            weights = weights_of(initial())
            if run.writes:
                self._write(self._initial, hf_tensors(weights, model))
        self.engine = SGLangEngine(
            settings,
            model,
            max_length=run.config.rollout.max_trajectory_tokens,
            start_server=self._servers.start if self._servers else None,
            start_folder=self._initial,
            asleep_file=self._folder / "asleep.json",
        )
        self._rests = settings.share_device

    def push(self, params: Params, version: int) -> SyncReport:
        """Write `params` as `version`, make every server serve them, delete older folders.

        Errors: `SGLangEngine.publish`. Weights that were pushed last are neither written nor loaded again.
        """
        start = time.perf_counter()
        tensors = hf_tensors(weights_of(params), self._model)
        tag = weights_tag(version, tensors)
        written = 0
        if self._published is None or self._published.tag != tag:
            folder = self._folder / f"v{version:06d}"
            self._write(folder, tensors)
            self._published = PublishedWeights(version, tag, folder, tensors)
            written = sum(value.nbytes for value in tensors.values())
        ready = time.perf_counter()
        try:
            report = self.engine.publish(self._published)
        finally:
            self._published.tensors = None
        self._delete_others(self._published.folder)
        return SyncReport(
            version=version,
            leaves=report.compared,
            checksum=int(tag.rpartition("-")[2][:8], 16),
            seconds=time.perf_counter() - start,
            bytes=written,
            write_seconds=ready - start,
        )

    def rest(self) -> None:
        """Servers on the learner's chip give its memory back (`rollout.sglang.share_device`)."""
        if self._rests:
            self.engine.rest()

    def close(self) -> None:
        """Close the connections and stop the servers that were started here."""
        self.engine.close()
        if self._servers is not None:
            self._servers.stop()

    def _write(self, folder: Path, tensors: dict[str, np.ndarray]) -> None:
        write_hf(folder, tensors, self._model, self._tokenizer_files, self._token_ids)

    def _delete_others(self, newest: Path) -> None:
        half_written = self._folder.glob(".*")  # by a process that was killed
        for folder in (*self._folder.glob("v[0-9]*"), *half_written):
            if folder != newest:
                shutil.rmtree(folder)


def server_metrics(sync: SyncReport, totals: Mapping[str, float]) -> dict[str, float]:
    """What a step on SGLang servers says beside the rest: its weight update (bytes and seconds of writing the
    folder; tensors whose checksum a server confirmed) and the engine's counters since the process began."""
    counters = ("requests", "attempts", "updates", "lost_connections", "stale_answers", "timeouts")
    return {
        "sync_bytes": sync.bytes,
        "sync_write_s": round(sync.write_seconds, 4),
        "sync_tensors": sync.leaves,
        **{f"engine/{name}": totals[name] for name in counters},
    }
