"""Phase 5: ERPO (METHOD.md §4). Groups of trajectories in, optimiser updates out.

Order within a step: dynamic sampling leaves out the groups without a signal (all succeed or all fail), *then*
means and standard deviations are taken over what is left, which is the batch of eq. 4. Reward, mixed share
and exclusions are reported over everything that was collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoforge_jax.config import BatchConfig, ERPOConfig
from autoforge_jax.data.advantages import AdvantageResult, compute_advantages
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.data.samples import samples_from_groups
from autoforge_jax.errors import TrainingError
from autoforge_jax.rollout.collect import select_groups
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.step import ReferenceLogprobs, TrainStep
from autoforge_jax.types import TrainingSample, TrajectoryGroup

Collect = Callable[[int, TrainState], Sequence[TrajectoryGroup]]
"""(step number from 0, state) -> the groups rolled out for it, under the state's parameters."""
OnStep = Callable[[int, TrainState, dict[str, float], Sequence[TrajectoryGroup]], bool | None]
"""(steps done, state, metrics, groups) -> True to stop here. Copy of the state what must outlive the next
step.
"""


@dataclass(frozen=True)
class ERPOResult:
    """How the phase ended."""

    state: TrainState
    steps: int
    """Steps done, those before a resume included."""
    ended: str
    """`steps` (all done) or `stopped` (on_step asked)."""


@dataclass(frozen=True)
class ERPOLearner:
    """What one ERPO step needs beside the groups."""

    train_step: TrainStep
    """Made with a `PolicyObjective`."""
    config: ERPOConfig
    batch: BatchConfig
    pad_id: int
    reference: ReferenceLogprobs | None = None
    """Needed when `kl_coefficient` > 0 and `kl_target` is `reference`; never computed otherwise."""

    on_batches: Callable[[Sequence[Batch]], None] | None = None
    """Called with the packed batches of each update."""

    def __post_init__(self) -> None:
        if self._uses_reference and self.reference is None:
            raise TrainingError(
                "erpo.kl_coefficient > 0 with kl_target 'reference' needs the reference policy's parameters"
            )

    @property
    def _uses_reference(self) -> bool:
        return self.config.kl_coefficient > 0 and self.config.kl_target == "reference"

    def update(
        self, state: TrainState, groups: Sequence[TrajectoryGroup]
    ) -> tuple[TrainState, dict[str, float]]:
        """One ERPO step: up to `minibatches` optimiser updates on the groups. Consumes `state`.

        Without a group that has a signal the step is one skipped update. Raises LedgerError for broken
        ledgers, TrainingError for a reward that is not finite or when engine and learner disagree by more
        than `max_agreement_gap`.
        """
        collected = compute_advantages(groups, self.config.advantage, self.config.advantage_epsilon)
        batch_groups = select_groups(groups, self.config)
        result = compute_advantages(batch_groups, self.config.advantage, self.config.advantage_epsilon)
        samples = samples_from_groups(
            batch_groups, result, weight_by_group=self.config.aggregation == "sequence_mean"
        )
        metrics = group_metrics(collected, result) | {"samples": float(len(samples))}
        used = padded = 0
        updates: list[dict[str, float]] = []
        for part in split_minibatches(samples, self.config.minibatches):
            batches: list[Batch] = pack(part, self.batch, self.pad_id)
            used += sum(b.used_tokens for b in batches)
            padded += sum(b.tokens.size for b in batches)
            if self.on_batches is not None:
                self.on_batches(batches)
            if self._uses_reference and self.reference is not None:
                batches = self.reference(batches)
            state, numbers = self.train_step(state, batches)
            updates.append(numbers)
            if len(updates) == 1:
                self._check_agreement(numbers)
        metrics |= merge_updates(updates)
        metrics["packed_tokens"] = float(used)
        metrics["packing"] = used / padded if padded else 0.0
        return state, metrics

    def _check_agreement(self, numbers: dict[str, float]) -> None:
        gap = numbers.get("logprob_gap_mean", 0.0)
        if gap > self.config.max_agreement_gap:
            raise TrainingError(
                f"engine and learner disagree: mean |Δ log-prob| {gap:.4f} nats on sampled tokens, at most "
                f"{self.config.max_agreement_gap} (erpo.max_agreement_gap): stale weights, another "
                "temperature, or another context"
            )


def split_minibatches(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """Deal samples out to at most `count` updates, round robin, so that each update sees every group; always
    at least one part.
    """
    parts = [list(samples[i::count]) for i in range(count)]
    return [part for part in parts if part] or [[]]


def merge_updates(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its updates: counts add up, maxima stay maxima, the rest are means.

    Agreement (`logprob_gap_…`) is the first update's: later ones differ from the rollout policy on purpose.
    """
    merged: dict[str, float] = {}
    for name in updates[0]:
        values = [u[name] for u in updates if name in u]
        if name.startswith("logprob_gap_"):
            merged[name] = values[0]
        elif name in ("tokens", "update_skipped"):
            merged[name] = sum(values)
        elif name.endswith("_max"):
            merged[name] = max(values)
        else:
            merged[name] = sum(values) / len(values)
    return merged


def group_metrics(collected: AdvantageResult, used: AdvantageResult) -> dict[str, float]:
    """Rewards and exclusions over all collected groups, std over the batch that is learned from, per
    environment by its name.
    """
    metrics = {
        "reward": collected.reward_mean,
        "groups": float(collected.groups),
        "mixed_share": collected.mixed_share,
        "groups_used": float(used.groups),
        "trajectories": float(collected.valid + collected.excluded),
        "excluded": float(collected.excluded),
    }
    for environment in collected.environments:
        metrics[f"reward/{environment.environment}"] = environment.reward_mean
    for environment in used.environments:
        metrics[f"reward_std/{environment.environment}"] = environment.reward_std
    return metrics


def run_erpo(
    state: TrainState,
    learner: ERPOLearner,
    collect: Collect,
    *,
    start_step: int = 0,
    on_step: OnStep | None = None,
) -> ERPOResult:
    """ERPO steps `start_step` … `config.steps` - 1: collect, update, report. Consumes `state`."""
    for step in range(start_step, learner.config.steps):
        groups = collect(step, state)
        state, metrics = learner.update(state, groups)
        if on_step is not None and on_step(step + 1, state, metrics, groups):
            return ERPOResult(state, step + 1, "stopped")
    return ERPOResult(state, max(start_step, learner.config.steps), "steps")
