"""Rollouts, the servers they may run on, and evaluations."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from autoforge_jax.config.section import Section

_SERVER_URL = r"https?://[^/\s?#]+/?"


class SGLangConfig(Section):
    """The servers of `rollout.engine = "sglang"` (docs/sglang.md). Nothing here changes what a run learns
    from."""

    urls: tuple[str, ...] = ("http://127.0.0.1:30000",)
    """One per server. All serve the same weights; an episode stays with one server while it lives."""
    router: str = ""
    """An sglang-router in front of `urls`: turns go to it and it chooses. Weights, checks and aborts
    go to every server itself. Empty: the trainer chooses."""
    launch: tuple[str, ...] = ()
    """Command that starts a server on this machine, e.g. ["python", "-m", "sglang.launch_server", "--dtype",
    "bfloat16"]; model folder, host and port are appended. Started for every url that does not answer, again
    when it dies, and stopped with the run. Empty: the servers are somebody else's."""
    requests_per_server: int = Field(default=64, ge=1)
    """In flight at a time; the others wait here, outside their deadline."""
    request_timeout_s: float = Field(default=300, gt=0)
    """Deadline of one turn. Past it the request is aborted and its episode excluded, never tried again: that
    would favour short answers."""
    connect_timeout_s: float = Field(default=5, gt=0)
    call_timeout_s: float = Field(default=60, gt=0)
    """Deadline of health, info and abort calls."""
    start_timeout_s: float = Field(default=600, gt=0)
    """How long a server may be away (starting, restarting) before the run stops."""
    update_timeout_s: float = Field(default=600, gt=0)
    """Deadline of a weight update and of its check."""
    attempts: int = Field(default=3, ge=1)
    """Of one request, when servers die under it or come back with other weights."""
    verify: Literal["checksums", "version"] = "checksums"
    """After an update: compare the checksum of every tensor with the learner's, or the version alone. CUDA
    servers and sharded ones can only be asked for the version."""
    memory_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the learner's chip that a server on it holds while it is awake (its `--mem-fraction-static`),
    for `autoforge plan`. 0: the servers have chips of their own."""
    share_device: bool = False
    """Servers on the learner's chip: they give their memory back (weights, KV cache) while the learner
    updates, and take it again, with the new weights, before they sample. Needs `--enable-memory-saver` on
    the servers and rollouts that do not overlap with learning (docs/sglang.md)."""

    @model_validator(mode="after")
    def _urls_make_sense(self) -> SGLangConfig:
        if self.share_device and self.router:
            raise ValueError(
                "share_device with a router: it asks sleeping servers for tokens, and they die of it; leave "
                "one out"
            )
        if self.share_device and not self.memory_fraction:
            raise ValueError(
                "share_device needs memory_fraction: the servers' --mem-fraction-static, so that `autoforge "
                "plan` can say what fits"
            )
        if self.router and (not re.fullmatch(_SERVER_URL, self.router) or self.router in self.urls):
            raise ValueError(
                f"router is {self.router!r}, expected one like http://host:30000 that is none of urls"
            )
        bad = [url for url in self.urls if not re.fullmatch(_SERVER_URL, url)]
        if bad or not self.urls or len({url.rstrip("/") for url in self.urls}) != len(self.urls):
            raise ValueError(f"urls are {list(self.urls)}, expected distinct ones like http://host:30000")
        if self.launch and any(not re.fullmatch(r"http://[^/:]+:\d+/?", url) for url in self.urls):
            raise ValueError(f"urls are {list(self.urls)}; a server to launch needs http://host:port")
        return self


class RolloutConfig(Section):
    """How episodes are run for training."""

    engine: Literal["jax", "sglang"] = "jax"
    """`jax`: embedded, in this process. `sglang`: servers over HTTP."""
    sglang: SGLangConfig = SGLangConfig()
    slots: int = Field(default=128, ge=1)
    """Episodes decoded side by side."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    max_turns: int = Field(default=12, ge=1)
    max_tool_calls: int = Field(default=16, ge=1)
    max_tool_errors: int = Field(default=4, ge=1)
    max_turn_tokens: int = Field(default=96, ge=1)
    max_trajectory_tokens: int = Field(default=640, ge=16)
    turn_timeout_s: float = Field(default=1800, gt=0)
    """Deadline of one turn at an engine that takes turns one by one (SGLang; time in its queue counts, so
    `sglang.request_timeout_s` is the sharper one). Past it the episode ends with `timeout`. The embedded
    engine computes a bounded number of tokens and has none."""
    environment_timeout_s: float = Field(default=600, gt=0)
    """Deadline of one answer of an environment whose user or judge is a model. Past it: `timeout`. Tools have
    limits of their own (envgen)."""
    episode_timeout_s: float = Field(default=0, ge=0)
    """Wall-clock seconds of one episode (0 = no limit), looked at between turns. Past it: `timeout`; such
    episodes are left out and counted. A limit that bites makes a run depend on the machine's speed."""
    user_workers: int = Field(default=16, ge=1)
    """Episodes that wait for a model user or judge at the same time; 1 where neither is a model."""


class EvalConfig(Section):
    """Phase 6. Its own sampling settings: nothing is taken over from `rollout` but the budgets."""

    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    attempts: int = Field(default=1, ge=1)
    """Episodes per task; more than one needs temperature > 0."""
    k: tuple[int, ...] = (1,)
    """For pass@k and pass^k; each at most `attempts`."""
    max_tasks: int = Field(default=0, ge=0)
    """Per set; 0 = all."""

    @model_validator(mode="after")
    def _attempts_make_sense(self) -> EvalConfig:
        if self.attempts > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.attempts} greedy attempts are all alike; set temperature > 0 or attempts = 1"
            )
        if not self.k or min(self.k) < 1 or max(self.k) > self.attempts:
            raise ValueError(f"k is {list(self.k)}, expected values from 1 to attempts ({self.attempts})")
        return self
