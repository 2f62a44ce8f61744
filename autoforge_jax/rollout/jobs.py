"""What an episode is asked to be: a job with its seeds, and its budgets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from autoforge_jax.config import BatchConfig, RolloutConfig
from envgen.interface import Bundle, EnvLimits, Task

TaskItem = tuple[Bundle, Task]
"""A task with the bundle it lives in."""


@dataclass(frozen=True)
class EpisodeLimits:
    """Budgets of one episode; each ends it with its own StopReason."""

    max_turns: int = 12
    max_tool_calls: int = 16
    max_tool_errors: int = 4
    max_turn_tokens: int = 96
    """Sampled tokens per turn (TURN_TRUNCATED)."""
    max_trajectory_tokens: int = 640
    """Tokens of the whole context, prefix included; no trajectory is longer (TOKEN_BUDGET)."""
    max_body_tokens: int = 1 << 30
    """Tokens after the prefix (TOKEN_BUDGET too)."""

    @classmethod
    def of(cls, config: RolloutConfig, batch: BatchConfig | None = None) -> EpisodeLimits:
        """The budgets of a rollout section; with ``batch`` also what fits one of its rows, for trajectories
        that will be trained on."""
        names = [name for name in cls.__dataclass_fields__ if name != "max_body_tokens"]
        limits = cls(**{name: getattr(config, name) for name in names})
        if batch is None or not batch.prefixes_apart:  # whole samples fit: the config checks it
            return limits
        return replace(limits, max_body_tokens=batch.row_tokens)

    def context(self, prefix_length: int) -> int:
        """Tokens of the longest context with a prefix of this length."""
        return min(self.max_trajectory_tokens, prefix_length + self.max_body_tokens)

    @property
    def env(self) -> EnvLimits:
        """The part that the environment counts."""
        return EnvLimits(
            max_turns=self.max_turns, max_tool_calls=self.max_tool_calls, max_tool_errors=self.max_tool_errors
        )


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run."""

    bundle: Bundle
    task: Task
    sample_index: int = 0
    run_seed: int = 0
    step: int = 0
    purpose: str = "train"
    """Keeps the seeds of training, probes and evaluations apart."""

    @property
    def session_id(self) -> str:
        """Names the episode at the engine."""
        return f"{self.purpose}/{self.step}/{self.bundle.environment_id}/{self.task.id}/{self.sample_index}"

    def turn_seed(self, turn: int) -> int:
        """Sampling seed of one turn, 31 bits."""
        return stable_hash(self.run_seed, self.session_id, turn) >> 33


def stable_hash(*parts: object) -> int:
    """64 bits of a hash of the parts' text: the same in every process, unlike `hash`."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
