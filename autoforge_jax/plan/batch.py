"""Batch arithmetic and FLOPs of one ERPO step, at the largest: every trajectory as long as it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoforge_jax.config import Config
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config


@dataclass(frozen=True)
class BatchPlan:
    """One ERPO step: `updates` optimiser updates of `microbatches` micro-batches each."""

    trajectories: int
    body_tokens: int
    """Tokens of the longest trajectory that lie in a packed row."""
    per_row: int
    """Longest trajectories in a row."""
    updates: int
    microbatches: int
    rows: int
    row_tokens: int
    prefixes: int
    """Prefixes in rows of their own, per micro-batch."""
    prefix_width: int
    """Tokens of such a row."""
    loss_tokens: int
    """Of one micro-batch, at most: every token that is not shared prefix."""

    @property
    def prefix_tokens(self) -> int:
        """Tokens of prefixes per micro-batch."""
        return self.prefixes * self.prefix_width

    @property
    def computed_tokens(self) -> int:
        """Tokens that the learner computes in a step, padding and prefixes included."""
        return self.updates * self.microbatches * (self.rows * self.row_tokens + self.prefix_tokens)


def batch_plan(config: Config) -> BatchPlan:
    """The step of `[erpo]`, `[rollout]` and `[batch]`. ConfigError when a trajectory fits no row."""
    batch, longest = config.batch, config.rollout.max_trajectory_tokens
    apart = batch.prefix_tokens if batch.prefixes_apart else 0
    body = longest - apart
    if body > batch.row_tokens:
        raise ConfigError(
            f"a trajectory of {longest} tokens fits no row of batch.row_tokens {batch.row_tokens}"
        )
    body = max(body, 1)
    per_row = max(1, batch.row_tokens // body)
    trajectories = config.erpo.tasks_per_step * config.erpo.group_size
    updates = min(config.erpo.minibatches, trajectories)
    rows = math.ceil(math.ceil(trajectories / updates) / per_row)
    return BatchPlan(
        trajectories=trajectories,
        body_tokens=body,
        per_row=per_row,
        updates=updates,
        microbatches=math.ceil(rows / batch.rows_per_microbatch),
        rows=batch.rows_per_microbatch,
        row_tokens=batch.row_tokens,
        prefixes=batch.prefixes_per_microbatch if apart else 0,
        prefix_width=apart,
        loss_tokens=batch.rows_per_microbatch * per_row * body,
    )


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one step over all chips; a multiply and an add are two."""

    layers: float
    """Projections of all layers, forward and backward: 6 per weight and token, 4 per frozen weight (LoRA)."""
    attention: float
    """Scores and weighted values, the causal half once, forward and backward."""
    output: float
    """The output matrix on loss tokens."""
    recomputed: float
    """What is done again in the backward pass: attention and logits always, layers with remat."""

    @property
    def model(self) -> float:
        """What the gradient needs: the numerator of MFU."""
        return self.layers + self.attention + self.output

    @property
    def hardware(self) -> float:
        """What is executed."""
        return self.model + self.recomputed


def flops(model: Qwen3Config, plan: BatchPlan, adapters: int = 0) -> Flops:
    """FLOPs of a step of `plan`. adapters: weights of all adapters over a frozen model (LoRA).

    A layer's matrices have ``D (2 q + 2 kv + 3 F)`` weights (of experts, those that a token takes); attention
    of a token that sees n others costs ``4 q n`` in the forward pass, and a row's tokens see
    ``row_tokens / 2`` on average (after the prefix, if that lies apart); the backward pass is twice the
    forward pass, and once it for a frozen matrix.
    """
    q = model.num_heads * model.head_dim
    matrices = model.num_layers * model.active_layer_weights
    count = plan.updates * plan.microbatches
    tokens = plan.rows * plan.row_tokens
    linear = 2.0 * matrices * (tokens + plan.prefix_tokens) * count
    thin = 2.0 * adapters * (tokens + plan.prefix_tokens) * count
    # A row's tokens also see one whole prefix that lies apart; a prefix sees the half of itself before it.
    seen = tokens * (plan.row_tokens / 2 + plan.prefix_width) + plan.prefix_tokens * plan.prefix_width / 2
    scores = 4.0 * q * model.num_layers * seen * count
    logits = 2.0 * model.vocab_size * model.hidden_size * plan.loss_tokens * count
    again = scores + logits + (linear + thin if model.remat and model.remat_saves == "nothing" else 0.0)
    passes = 2 if adapters else 3
    return Flops(
        layers=passes * linear + 3 * thin, attention=3 * scores, output=passes * logits, recomputed=again
    )
