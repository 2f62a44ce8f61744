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
from autoforge_jax.data.ledger_check import check_batches
from autoforge_jax.data.running_std import RunningStd
from autoforge_jax.data.samples import samples_from_groups
from autoforge_jax.errors import TrainingError
from autoforge_jax.rollout.collect import select_groups
from autoforge_jax.train.logprob_pass import OldLogprobs, ReferenceLogprobs
from autoforge_jax.train.old_policy import reject_sequences, with_old_logprobs
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.step import TrainStep
from autoforge_jax.types import TrainingSample, TrajectoryGroup


@dataclass(frozen=True)
class Rollouts:
    """What a step gets to learn from."""

    groups: Sequence[TrajectoryGroup]
    version: int | None = None
    """The learner's policy version at this step; None where all tokens are of it."""


Collect = Callable[[int, TrainState], Rollouts]
"""(step number from 0, state) -> the groups for it; rolled out under the state's parameters, or under those
of at most `erpo.max_staleness` versions before."""
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
    old: OldLogprobs | None = None
    """Needed when `old_policy` is `learner`; never computed otherwise."""
    running: RunningStd | None = None
    """Needed when `environment_std` is `running`; `update` takes each batch in."""

    on_batches: Callable[[Sequence[Batch]], None] | None = None
    """Called with the packed batches of each update."""

    def __post_init__(self) -> None:
        if (self.config.old_policy == "learner") != (self.old is not None):
            raise TrainingError(
                f"erpo.old_policy is {self.config.old_policy!r} and a pass for the learner's log-probs is "
                f"{'there' if self.old else 'not there'}; one needs the other"
            )
        if (self.config.environment_std == "running") != (self.running is not None):
            raise TrainingError(
                f"erpo.environment_std is {self.config.environment_std!r} and a running std is "
                f"{'there' if self.running else 'not there'}; one needs the other"
            )
        if self._uses_reference and self.reference is None:
            raise TrainingError(
                "erpo.kl_coefficient > 0 with kl_target 'reference' needs the reference policy's parameters"
            )

    @property
    def _uses_reference(self) -> bool:
        return self.config.kl_coefficient > 0 and self.config.kl_target == "reference"

    def update(
        self, state: TrainState, groups: Sequence[TrajectoryGroup], *, version: int | None = None
    ) -> tuple[TrainState, dict[str, float]]:
        """One ERPO step: up to `minibatches` optimiser updates on the groups. Consumes `state`.

        `version`: of the parameters in `state`, for the staleness of tokens; None: all tokens are theirs.
        Without a group that has a signal the step is one skipped update. Raises LedgerError for broken
        ledgers, TrainingError for a reward that is not finite, tokens of a later version than the learner's,
        or when engine and learner disagree by more than `max_agreement_gap`.
        """
        config = self.config
        collected = compute_advantages(groups, config.advantage, config.advantage_epsilon)
        batch_groups = select_groups(groups, config)
        if self.running is not None:
            self.running.update(batch_groups)
        result = compute_advantages(
            batch_groups,
            config.advantage,
            config.advantage_epsilon,
            baseline=config.baseline,
            running=self.running,
        )
        samples = samples_from_groups(
            batch_groups, result, weight_by_group=config.aggregation == "sequence_mean"
        )
        newest = max((max(sample.versions) for sample in samples), default=-1)
        if version is not None and newest > version:
            raise TrainingError(
                f"tokens sampled by version {newest}, the learner's version is {version}; the engine is "
                "ahead of the learner that it gets its weights from"
            )
        metrics = group_metrics(collected, result) | {"samples": float(len(samples))}
        if self.running is not None:
            for account in result.environments:
                name = f"reward_std_running/{account.environment}"
                metrics[name] = self.running.std(account.environment_id)
        parts: list[list[Batch]] = []
        checks: list[dict[str, float]] = []
        for part in split_minibatches(samples, config.minibatches):
            batches = pack(part, self.batch, self.pad_id, version=version)
            check = check_batches(part, batches)
            check.raise_if_broken()
            checks.append(check.metrics())
            metrics["packed_tokens"] = metrics.get("packed_tokens", 0.0) + sum(b.used_tokens for b in batches)
            metrics["padded_tokens"] = metrics.get("padded_tokens", 0.0) + sum(b.tokens.size for b in batches)
            parts.append(batches)
        metrics |= {name: sum(one[name] for one in checks) for name in checks[0]}
        padded = metrics.pop("padded_tokens")
        metrics["packing"] = metrics["packed_tokens"] / padded if padded else 0.0
        # All of it before the first update: the old policy is that of the whole step.
        if self.old is not None:
            parts = [with_old_logprobs(self.old, state.params, batches) for batches in parts]
            if config.reject_sequence_gap:
                rejections: list[dict[str, float]] = []
                for index, batches in enumerate(parts):
                    parts[index], counts = reject_sequences(batches, config.reject_sequence_gap)
                    rejections.append(counts)
                metrics |= merge_updates(rejections)
        updates: list[dict[str, float]] = []
        for batches in parts:
            if self.on_batches is not None:
                self.on_batches(batches)
            if self._uses_reference and self.reference is not None:
                batches = self.reference(batches)
            state, numbers = self.train_step(state, batches)
            updates.append(numbers)
            if len(updates) == 1:
                self._check_agreement(numbers)
        return state, metrics | merge_updates(updates)

    def _check_agreement(self, numbers: dict[str, float]) -> None:
        gap = numbers.get("fresh/logprob_gap_mean", 0.0)
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
        if name.rpartition("/")[2].startswith("logprob_gap_"):
            merged[name] = values[0]
        elif name in ("tokens", "fresh/tokens", "update_skipped", "sequences_rejected"):
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
        collected = collect(step, state)
        groups = collected.groups
        state, metrics = learner.update(state, groups, version=collected.version)
        if on_step is not None and on_step(step + 1, state, metrics, groups):
            return ERPOResult(state, step + 1, "stopped")
    return ERPOResult(state, max(start_step, learner.config.steps), "steps")
