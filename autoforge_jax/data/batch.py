"""TrainingSamples -> packed arrays of one fixed shape.

A row is ``[shared prefix | body of sample | body of sample | … | padding]``. Segment ids: 0 = padding
(visible to nobody), 1 = the shared prompt prefix (visible to every later segment of the row), 2, 3, … = one
sample each. With `share_prefix` a row holds samples of one environment and every body starts at position
`prefix_length`; without it each sample is a segment with its own copy of the prefix. Both give the same loss:
attention sees the same tokens at the same positions. With `prefix_tokens` > 0 too, a row is
``[body | body | … | padding]`` of one environment and the prefixes lie apart, in `Batch.prefixes`.

Which hidden state predicts a token is said explicitly by `predictor_index`: the token before it *in its own
sample*. For the first body token after a shared prefix that is the prefix's last token, which lies elsewhere
in the row. Prefix tokens are never trained.

Packing is first-fit decreasing, a function of the samples' order and lengths alone. Every micro-batch has the
shape [rows_per_microbatch, row_tokens]; only the number of micro-batches varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from autoforge_jax.config import BatchConfig
from autoforge_jax.errors import ConfigError, LedgerError
from autoforge_jax.model.prefix import SharedPrefixes
from autoforge_jax.types import TrainingSample

PREFIX_SEGMENT = 1
FIRST_SAMPLE_SEGMENT = 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """One micro-batch, a pytree: numpy arrays as packed, JAX arrays inside a compiled function.

    Values at [row, t] speak of the token at [row, t]; they are 0/False outside the samples' bodies unless
    said otherwise.
    """

    tokens: Int[Array, "rows tokens"]
    """i32; `pad_id` in padding."""
    positions: Int[Array, "rows tokens"]
    """i32; position in the sample, prefix included."""
    segment_ids: Int[Array, "rows tokens"]
    """i32; see above."""
    predictor_index: Int[Array, "rows tokens"]
    """i32; index in the row of the hidden state that predicts this token. The token's own index where nothing
    does. With `prefixes` a row's hidden states begin with the one of its prefix's last token, so that token
    t's own index is t + 1.
    """
    action_mask: Bool[Array, "rows tokens"]
    """The policy sampled the token."""
    loss_mask: Bool[Array, "rows tokens"]
    """The token has a loss: exactly where `loss_weight` > 0."""
    loss_weight: Float[Array, "rows tokens"]
    """f32; the sample's weight × 1 on its loss tokens, × observation_weight on its other body tokens."""
    rollout_logprobs: Float[Array, "rows tokens"]
    """f32 nats; 0 where nothing was sampled (after the ledger checks), and everywhere in supervised batches.
    """
    advantages: Float[Array, "rows tokens"]
    """f32; the trajectory's advantage on each of its body tokens."""
    sample_ids: Int[Array, "rows tokens"]
    """i32; index into the samples given to `pack`; -1 outside samples."""
    sample_loss_tokens: Float[Array, "rows tokens"]
    """f32; how many loss tokens the token's sample has: the length of sequence-level ratios and means."""
    prefixes: SharedPrefixes | None = None
    """Prefixes that lie apart; None when rows have their own copy."""
    ref_logprobs: Float[Array, "rows tokens"] | None = None
    """f32 nats under the reference policy; None unless a KL to it is used."""
    old_logprobs: Float[Array, "rows tokens"] | None = None
    """f32 nats under the learner's parameters before the step; None unless the loss reads them."""
    staleness: Int[Array, "rows tokens"] | None = None
    """i32; policy versions between the weights that sampled the token and the learner's, 0 where nothing was
    sampled. None when the batch was packed without the learner's version: all is taken to be its own."""

    @property
    def used_tokens(self) -> int:
        """Tokens of the batch that are not padding (numpy batches only)."""
        apart = 0 if self.prefixes is None else int(np.sum(np.asarray(self.prefixes.lengths)))
        return int(np.count_nonzero(np.asarray(self.segment_ids))) + apart


@dataclass(frozen=True)
class _Row:
    """Samples (by index) that share a row, and the length of the prefix they share (0: none)."""

    prefix_length: int
    members: tuple[int, ...]


def pack(
    samples: Sequence[TrainingSample],
    config: BatchConfig,
    pad_id: int,
    *,
    observation_weight: float = 0.0,
    version: int | None = None,
) -> list[Batch]:
    """Pack samples into micro-batches of numpy arrays [rows_per_microbatch, row_tokens]; no samples give no
    batches. `version`: the learner's, for `Batch.staleness`.

    `observation_weight` > 0 also trains the body tokens the policy did not write (supervised only); the first
    token of a sequence without a prefix has no predecessor and stays untrained. Raises ConfigError when a
    sample is longer than a row, LedgerError when lengths differ, a loss token has no finite values, or two
    samples of one environment disagree about their shared prefix.
    """
    for index, sample in enumerate(samples):
        _check_sample(index, sample, config)
    rows = _plan_shared(samples, config) if config.share_prefix else _plan_separate(samples, config)
    parts = [
        _fill(samples, part, config, pad_id, observation_weight, version)
        for part in _split(samples, rows, config)
    ]
    return parts


def _split(samples: Sequence[TrainingSample], rows: Sequence[_Row], config: BatchConfig) -> list[list[_Row]]:
    """Rows by micro-batch, in order; with prefixes apart also bounded in its environments."""
    parts: list[list[_Row]] = []
    environments: set[str] = set()
    for row in rows:
        environment = samples[row.members[0]].environment_id
        crowded = config.prefixes_apart and len(environments | {environment}) > config.prefixes_per_microbatch
        if not parts or len(parts[-1]) == config.rows_per_microbatch or crowded:
            parts.append([])
            environments = set()
        parts[-1].append(row)
        environments.add(environment)
    return parts


def _check_sample(index: int, sample: TrainingSample, config: BatchConfig) -> None:
    name = f"sample {index} (task {sample.task_id})"
    length = len(sample.token_ids)
    lengths = {len(sample.action_mask), len(sample.loss_mask), len(sample.rollout_logprobs), length}
    if len(lengths) != 1 or not 0 <= sample.prefix_length <= length:
        raise LedgerError(
            f"{name}: sequences of lengths {sorted(lengths)}, prefix_length {sample.prefix_length}; "
            "lengths must agree"
        )
    if config.prefixes_apart and sample.prefix_length > config.prefix_tokens:
        raise ConfigError(
            f"{name} has a prefix of {sample.prefix_length} tokens, batch.prefix_tokens is "
            f"{config.prefix_tokens}: raise it; prefixes are never cut"
        )
    if length - (sample.prefix_length if config.prefixes_apart else 0) > config.row_tokens:
        raise ConfigError(
            f"{name} has {length} tokens, a row has {config.row_tokens}: raise batch.row_tokens, or lower "
            "rollout.max_trajectory_tokens; samples are never cut"
        )
    if length and any(sample.loss_mask[: max(1, sample.prefix_length)]):
        raise LedgerError(f"{name}: loss on the shared prefix or on the first token, which nothing predicts")
    if not (math.isfinite(sample.advantage) and math.isfinite(sample.weight) and sample.weight > 0):
        raise LedgerError(
            f"{name}: advantage {sample.advantage!r}, weight {sample.weight!r}; both must be finite, the "
            "weight > 0"
        )


def _first_fit(order: Sequence[int], sizes: dict[int, int], capacity: int) -> list[tuple[int, ...]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for index in order:
        slot = next((b for b, left in enumerate(room) if sizes[index] <= left), None)
        if slot is None:
            bins.append([])
            room.append(capacity)
            slot = len(bins) - 1
        bins[slot].append(index)
        room[slot] -= sizes[index]
    return [tuple(members) for members in bins]


def _plan_separate(samples: Sequence[TrainingSample], config: BatchConfig) -> list[_Row]:
    sizes = {i: len(s.token_ids) for i, s in enumerate(samples) if s.token_ids}
    order = sorted(sizes, key=lambda i: (-sizes[i], i))
    return [_Row(0, members) for members in _first_fit(order, sizes, config.row_tokens)]


def _plan_shared(samples: Sequence[TrainingSample], config: BatchConfig) -> list[_Row]:
    by_environment: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        by_environment.setdefault(sample.environment_id, []).append(index)
    rows: list[_Row] = []
    for environment_id, members in by_environment.items():
        first = samples[members[0]]
        prefix = first.token_ids[: first.prefix_length]
        for index in members:
            other = samples[index]
            if other.token_ids[: other.prefix_length] != prefix:
                raise LedgerError(
                    f"samples {members[0]} and {index} of environment {environment_id} have different "
                    "prefixes "
                    f"({len(prefix)} and {other.prefix_length} tokens); an environment has one system prompt"
                )
        sizes = {i: len(samples[i].token_ids) - len(prefix) for i in members}
        order = sorted((i for i in members if sizes[i]), key=lambda i: (-sizes[i], i))
        room = config.row_tokens - (0 if config.prefixes_apart else len(prefix))
        rows += [_Row(len(prefix), bodies) for bodies in _first_fit(order, sizes, room)]
    return rows


def _fill(
    samples: Sequence[TrainingSample],
    rows: Sequence[_Row],
    config: BatchConfig,
    pad_id: int,
    observation_weight: float,
    version: int | None,
) -> Batch:
    shape = (config.rows_per_microbatch, config.row_tokens)
    tokens = np.full(shape, pad_id, np.int32)
    positions, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    # with prefixes apart, hidden state 0 of a row is the one of its prefix's last token
    ahead = 1 if config.prefixes_apart else 0
    predictor = ahead + np.tile(np.arange(config.row_tokens, dtype=np.int32), (config.rows_per_microbatch, 1))
    action = np.zeros(shape, np.bool_)
    weight, logprobs, advantages = (np.zeros(shape, np.float32) for _ in range(3))
    sample_ids = np.full(shape, -1, np.int32)
    loss_tokens = np.zeros(shape, np.float32)
    staleness = np.zeros(shape, np.int32)
    for r, row in enumerate(rows):
        shared = row.prefix_length
        if shared and not ahead:
            tokens[r, :shared] = samples[row.members[0]].token_ids[:shared]
            positions[r, :shared] = np.arange(shared)
            segments[r, :shared] = PREFIX_SEGMENT
            predictor[r, 1:shared] = np.arange(shared - 1)
        cursor = 0 if ahead else shared
        for slot, index in enumerate(row.members):
            sample = samples[index]
            span = slice(cursor, cursor + len(sample.token_ids) - shared)
            size = span.stop - span.start
            tokens[r, span] = sample.token_ids[shared:]
            positions[r, span] = np.arange(shared, shared + size)
            segments[r, span] = FIRST_SAMPLE_SEGMENT + slot
            predictor[r, span.start + 1 : span.stop] = ahead + np.arange(span.start, span.stop - 1)
            if shared:
                predictor[r, span.start] = 0 if ahead else shared - 1
            weights = _token_weights(sample, observation_weight)
            sampled = np.asarray(sample.action_mask[shared:], np.bool_)
            action[r, span] = sampled
            weight[r, span] = weights[shared:]
            logprobs[r, span] = np.where(sampled, _known(sample.rollout_logprobs[shared:]), 0.0)
            advantages[r, span] = sample.advantage
            sample_ids[r, span] = index
            loss_tokens[r, span] = np.count_nonzero(weights)
            if version is not None and sample.versions:
                staleness[r, span] = np.where(sampled, version - np.asarray(sample.versions[shared:]), 0)
            cursor = span.stop
    fields: dict[str, Any] = {
        "tokens": tokens,
        "positions": positions,
        "segment_ids": segments,
        "predictor_index": predictor,
        "action_mask": action,
        "loss_mask": weight > 0,
        "loss_weight": weight,
        "rollout_logprobs": logprobs,
        "advantages": advantages,
        "sample_ids": sample_ids,
        "sample_loss_tokens": loss_tokens,
    }
    prefixes = _prefixes(samples, rows, config, pad_id) if config.prefixes_apart else None
    if version is not None:
        fields["staleness"] = staleness
    return Batch(**fields, prefixes=prefixes)


def _prefixes(
    samples: Sequence[TrainingSample], rows: Sequence[_Row], config: BatchConfig, pad_id: int
) -> SharedPrefixes:
    tokens: Any = np.full((config.prefixes_per_microbatch, config.prefix_tokens), pad_id, np.int32)
    lengths: Any = np.zeros(config.prefixes_per_microbatch, np.int32)
    row_prefix: Any = np.zeros(config.rows_per_microbatch, np.int32)
    known: dict[str, int] = {}
    for r, row in enumerate(rows):
        first = samples[row.members[0]]
        place = known.setdefault(first.environment_id, len(known))
        tokens[place, : row.prefix_length] = first.token_ids[: row.prefix_length]
        lengths[place], row_prefix[r] = row.prefix_length, place
    return SharedPrefixes(tokens, lengths, row_prefix)


def _token_weights(sample: TrainingSample, observation_weight: float) -> np.ndarray:
    weights = np.where(np.asarray(sample.loss_mask, np.bool_), 1.0, 0.0)
    if observation_weight > 0:
        others = ~np.asarray(sample.action_mask, np.bool_)
        others[: max(1, sample.prefix_length)] = False
        weights[others] = observation_weight
    return (weights * sample.weight).astype(np.float32)


def _known(logprobs: Sequence[float]) -> np.ndarray:
    # Supervised samples have NaN throughout and their log-probs are never read; sampled tokens were checked
    # in data.samples.
    return np.nan_to_num(np.asarray(logprobs, np.float32), nan=0.0)
