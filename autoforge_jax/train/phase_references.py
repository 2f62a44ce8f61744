"""Tokenizer and reference trajectories: what the warm start is made of. No JAX.

A reference that does not fit the rollout budgets (tokens, turns, calls) could never be repeated by the
policy: its task is left out of training and counted. Evaluation sets keep all their tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoforge_jax.config import BatchConfig, Config, RolloutConfig
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.rollout.episode import TaskItem, reference_texts, reference_trajectories
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.jobs import EpisodeLimits
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import PolicyTokenizer, train_tokenizer
from autoforge_jax.train.interrupt import StopFlag
from autoforge_jax.train.metrics import Reporter
from autoforge_jax.train.phase_synthesis import take_turns
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.types import Trajectory

CHUNK = 128
"""Reference episodes between two looks at the progress bar and the stop flag."""


@dataclass(frozen=True)
class References:
    """The training tasks that fit the budgets, each with its reference trajectory."""

    items: tuple[TaskItem, ...]
    trajectories: tuple[Trajectory, ...]
    left_out: int
    """Training tasks whose reference does not fit."""

    @property
    def mean_tokens(self) -> float:
        """Tokens of a reference, prefix included."""
        return float(np.mean([len(t.token_ids) for t in self.trajectories]))


def shuffled(items: Sequence[TaskItem], seed: int) -> list[TaskItem]:
    """A seeded order of the items in which environments take turns."""
    by_environment: dict[str, list[TaskItem]] = {}
    for item in items:
        by_environment.setdefault(item[0].environment_id, []).append(item)
    queues: list[list[TaskItem]] = []
    for index, tasks in enumerate(by_environment.values()):
        order = np.random.default_rng([seed, index]).permutation(len(tasks))
        queues.append([tasks[int(i)] for i in order])
    return take_turns(queues)


def make_tokenizer(run: RunDir, items: Sequence[TaskItem]) -> str:
    """Train the tokenizer on rendered references (or take over that of `model.init_from`), save it, return
    the result line."""
    config = run.config
    roles = FORMATS[config.render.format].roles
    if config.model.init_from:
        tokenizer = PolicyTokenizer.load(Path(config.model.init_from), roles)
        tokenizer.save(run.tokenizer)
        return f"{tokenizer.vocab_size} ids, from {config.model.init_from}"
    chosen = shuffled(items, config.run.seed)[: config.tokenizer.max_transcripts]
    if not chosen:
        raise TrainingError("the training bundles have no training tasks: raise synthesis.tasks_per_bundle")
    texts = list(reference_texts(chosen, config.render))
    tokenizer = train_tokenizer(texts, config.tokenizer.vocab_size, roles)
    tokenizer.save(run.tokenizer)
    sample = texts[:200]
    ids = sum(len(tokenizer.encode_marked(text)) for text in sample)
    characters = sum(len(text) for text in sample)
    ratio = f"{characters / ids:.2f} characters a token"
    return f"{tokenizer.vocab_size} ids, {ratio}, from {len(texts)} transcripts"


def load_renderer(run: RunDir) -> Renderer:
    """The renderer over the run's saved tokenizer. ConfigError when that is damaged."""
    render = run.config.render
    try:
        tokenizer = PolicyTokenizer.load(run.tokenizer, FORMATS[render.format].roles)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nwhat was trained belongs to this tokenizer: restore it (the run's export and serve "
            "folders, or model.init_from, hold the same file), or start over with --fresh"
        ) from error
    return Renderer(tokenizer, render)


def play_references(
    config: Config, items: Sequence[TaskItem], renderer: Renderer, reporter: Reporter, stop: StopFlag
) -> References:
    """Play every reference through Env and ledger. TrainingError when none fits the budgets,
    ConfigError when a prefix is longer than `batch.prefix_tokens`."""
    kept: list[tuple[TaskItem, Trajectory]] = []
    missed: dict[str, tuple[int, list[int]]] = {}
    longest = 0
    with reporter.bar("references", len(items)) as bar:
        for start in range(0, len(items), CHUNK):
            part = list(items[start : start + CHUNK])
            for item, trajectory in zip(part, reference_trajectories(part, renderer), strict=True):
                longest = max(longest, len(trajectory.token_ids))
                _check_prefix(trajectory, config.batch)
                above = above_budgets(trajectory, config.rollout, config.batch)
                if not above:
                    kept.append((item, trajectory))
                for name, (needed, limit) in above.items():
                    missed.setdefault(name, (limit, []))[1].append(needed)
            bar.update(start + len(part), longest=longest)
            stop.raise_if_requested("references")
    if not kept:
        budgets = "; ".join(
            f"{name} is {limit}, {len(needed)} of them need {min(needed)} to {max(needed)}"
            for name, (limit, needed) in missed.items()
        )
        raise TrainingError(
            f"none of {len(items)} reference trajectories fits the rollout budgets: {budgets}. Raise what is "
            "too low"
        )
    return References(
        items=tuple(item for item, _ in kept),
        trajectories=tuple(trajectory for _, trajectory in kept),
        left_out=len(items) - len(kept),
    )


def above_budgets(
    trajectory: Trajectory, rollout: RolloutConfig, batch: BatchConfig
) -> dict[str, tuple[int, int]]:
    """Budget -> (what this trajectory needs, what there is) for each that it does not fit: empty when a
    policy could write it within the rollout budgets and it fits a row."""
    limits = EpisodeLimits.of(rollout, batch)
    longest = max(len(context.token_ids) for context in trajectory.contexts)
    prefix = trajectory.prefix_length
    needs = {
        "rollout.max_trajectory_tokens": (longest, rollout.max_trajectory_tokens),
        "batch.row_tokens (after the prefix)": (longest - prefix, limits.max_body_tokens),
        "rollout.max_turns": (len(trajectory.turns), rollout.max_turns),
        "rollout.max_tool_calls": (trajectory.tool_calls, rollout.max_tool_calls),
        "rollout.max_turn_tokens": (
            max((turn.action_end - turn.action_start for turn in trajectory.turns), default=0),
            rollout.max_turn_tokens,
        ),
    }
    return {name: both for name, both in needs.items() if both[0] > both[1]}


def _check_prefix(trajectory: Trajectory, batch: BatchConfig) -> None:
    """ConfigError when the prefix of an environment is longer than what is kept for it."""
    if batch.prefixes_apart and trajectory.prefix_length > batch.prefix_tokens:
        raise ConfigError(
            f"the prefix of environment {trajectory.environment!r} (rules and tools) has "
            f"{trajectory.prefix_length} tokens, batch.prefix_tokens is {batch.prefix_tokens}: raise it, or "
            "set it to 0; prefixes are never cut"
        )
