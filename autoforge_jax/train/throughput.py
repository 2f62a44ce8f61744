"""How much of the hardware a step used: tokens, FLOPs and MFU from the batches that were computed.

**Model FLOPs** of a step (a multiply and an add are two), for N tokens that are computed, of which P pairs
(query, visible key) meet in attention and M have a log-prob::

    layers     passes · 2 · weights that a token meets in all layers · N     (+ 6 · adapter weights · N)
    attention  3 · 4 · heads · head_dim · layers · P
    output     passes · 2 · vocabulary · width · M

`passes` is 3 (forward, and the gradient to inputs and to weights), 2 under adapters, whose model has no
weight gradient. The causal half is counted once. What is computed again (remat, attention and logits in the
backward pass) is not counted, and neither are norms, embeddings and softmax.

``mfu`` takes every token of the rows, padding too, as the device does; ``useful_mfu`` takes tokens of samples
only, and the pairs that see each other (packed samples do not). Both divide by seconds of the update × chips
× the chip's peak for the compute type (plan/chips.toml, by ``mesh.chip``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from autoforge_jax.data.batch import Batch
from autoforge_jax.model.config import Qwen3Config


@dataclass(frozen=True)
class Work:
    """What the batches of one step hold. Counts of tokens and of (query, key) pairs."""

    computed_tokens: int
    useful_tokens: int
    computed_pairs: int
    useful_pairs: int
    loss_tokens: int


def work_of(batches: Sequence[Batch]) -> Work:
    """Count numpy batches, prefixes that lie apart included.

    A sample's position counts its prefix, so a token at position p sees p + 1 tokens however rows are packed.
    """
    computed = useful = computed_pairs = useful_pairs = loss = 0
    for batch in batches:
        rows, length = batch.tokens.shape
        held = np.asarray(batch.segment_ids) != 0
        useful += int(np.count_nonzero(held))
        useful_pairs += int(np.sum((np.asarray(batch.positions, np.int64) + 1) * held))
        loss += int(np.count_nonzero(np.asarray(batch.loss_mask)))
        computed += rows * length
        computed_pairs += rows * length * (length + 1) // 2
        if batch.prefixes is not None:
            count, width = batch.prefixes.tokens.shape
            lengths = np.asarray(batch.prefixes.lengths, np.int64)
            useful += int(np.sum(lengths))
            useful_pairs += int(np.sum(lengths * (lengths + 1) // 2))
            computed += count * width
            computed_pairs += count * width * (width + 1) // 2 + rows * length * width
    return Work(computed, useful, computed_pairs, useful_pairs, loss)


def model_flops(model: Qwen3Config, tokens: int, pairs: int, loss_tokens: int, adapters: int = 0) -> float:
    """See the head of this module. adapters: their weights, 0 when the whole model is trained."""
    passes = 2 if adapters else 3
    layers = 2.0 * passes * model.num_layers * model.active_layer_weights * tokens + 6.0 * adapters * tokens
    attention = 12.0 * model.num_heads * model.head_dim * model.num_layers * pairs
    return layers + attention + 2.0 * passes * model.vocab_size * model.hidden_size * loss_tokens


def throughput(
    work: Work, model: Qwen3Config, seconds: float, peak: float | None, adapters: int = 0
) -> dict[str, float]:
    """Metrics of one step: `tokens_per_s`, `useful_tokens_per_s`, `tflops` (model FLOPs of useful tokens, per
    second), and `mfu` and `useful_mfu` where `peak` is given: FLOPs per second of all chips together."""
    if seconds <= 0:
        return {}
    used, all_of = (work.useful_tokens, work.useful_pairs), (work.computed_tokens, work.computed_pairs)
    useful = model_flops(model, *used, work.loss_tokens, adapters) / seconds
    every = model_flops(model, *all_of, work.loss_tokens, adapters) / seconds
    metrics = {
        "tokens_per_s": work.computed_tokens / seconds,
        "useful_tokens_per_s": work.useful_tokens / seconds,
        "tflops": useful / 1e12,
    }
    return metrics if peak is None else metrics | {"mfu": every / peak, "useful_mfu": useful / peak}


class Meter:
    """Adds up the batches of a step and turns them into metrics when its seconds are known."""

    def __init__(self, model: Qwen3Config, peak: float | None, adapters: int = 0) -> None:
        """Arguments: `throughput`."""
        self._model, self._peak, self._adapters = model, peak, adapters
        self._batches: list[Work] = []

    def seen(self, batches: Sequence[Batch]) -> None:
        """These numpy batches belong to the step."""
        self._batches.append(work_of(batches))

    def take(self, seconds: float) -> dict[str, float]:
        """Metrics of the step; starts again at nothing."""
        names = [f.name for f in fields(Work)]
        total = Work(*(sum(getattr(work, name) for work in self._batches) for name in names))
        self._batches = []
        return throughput(total, self._model, seconds, self._peak, self._adapters)
