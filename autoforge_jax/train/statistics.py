"""Estimates and intervals of evaluations. Pure functions on counts; numpy only for resampling. No JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoforge_jax.errors import ConfigError
from autoforge_jax.types import EvalReport, TaskOutcome

_Z95 = 1.959963984540054
_RESAMPLES = 10_000


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); never empty, never outside 0..1. (0, 1) without
    trials.
    """
    if trials == 0:
        return 0.0, 1.0
    if not 0 <= successes <= trials:
        raise ValueError(f"got {successes} successes of {trials} trials; expected 0 ≤ successes ≤ trials")
    p, z2 = successes / trials, _Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return low, (1.0 if successes == trials else min(1.0, centre + half))


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean, resampling whole entries (tasks). A function of values
    and seed.
    """
    if not values:
        raise ValueError("no values to resample; expected at least one task")
    rng = np.random.default_rng([seed, len(values)])
    data = np.asarray(values, dtype=np.float64)
    means = data[rng.integers(0, len(data), size=(_RESAMPLES, len(data)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def success_interval(outcomes: Sequence[TaskOutcome], seed: int = 0) -> tuple[float, float]:
    """95 % interval over tasks of the mean of successes/attempts.

    Wilson when every task was tried once. Otherwise tasks are resampled, because attempts at one task are
    not independent; when all tasks have the same rate the bootstrap would have no width, so Wilson over
    tasks stands in.
    """
    rates = [outcome.successes / outcome.attempts for outcome in outcomes]
    if all(outcome.attempts == 1 for outcome in outcomes) or len(set(rates)) == 1:
        return wilson_interval(sum(rates), len(rates))
    return bootstrap_interval(rates, seed)


def pass_at_k(successes: int, attempts: int, k: int) -> float:
    """Unbiased chance that at least one of k attempts succeeds: 1 − C(n−c, k)/C(n, k) (Chen et al. 2021)."""
    _check_k(successes, attempts, k)
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(successes: int, attempts: int, k: int) -> float:
    """Unbiased chance that all of k attempts succeed, pass^k: C(c, k)/C(n, k) (τ-bench)."""
    _check_k(successes, attempts, k)
    return math.comb(successes, k) / math.comb(attempts, k)


def _check_k(successes: int, attempts: int, k: int) -> None:
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise ValueError(
            f"got {successes} successes, {attempts} attempts, k = {k}; expected 0 ≤ c ≤ n and 1 ≤ k ≤ n"
        )


@dataclass(frozen=True)
class PairedDifference:
    """How much better `after` does than `before` on the same tasks."""

    difference: float
    """Mean over tasks of the difference in success rate."""
    interval: tuple[float, float]
    """95 %, tasks resampled in pairs."""
    tasks: int
    better: int
    """Tasks with a higher success rate afterwards."""
    worse: int

    @property
    def clear(self) -> bool:
        """True when the whole interval lies above 0."""
        return self.interval[0] > 0


def paired_difference(
    before: EvalReport | Sequence[EvalReport], after: EvalReport | Sequence[EvalReport], seed: int = 0
) -> PairedDifference:
    """Difference in success between two evaluations of the same tasks, with a 95 % bootstrap interval over
    tasks.

    Given two sequences (one report per training seed, in the same order) a task's difference is its mean
    over the seeds: the interval then speaks of new tasks, for these seeds. ConfigError when the tasks of a
    pair differ.
    """
    pairs = list(zip(_listed(before), _listed(after), strict=True))
    differences: dict[tuple[str, str], list[float]] = {}
    for old, new in pairs:
        first, second = _rates(old), _rates(new)
        if first.keys() != second.keys():
            odd = sorted(first.keys() ^ second.keys())[:3]
            raise ConfigError(
                f"{old.name} and {new.name} cannot be paired: they cover different tasks, e.g. {odd}; "
                "evaluate both on the same set"
            )
        for key, rate in first.items():
            differences.setdefault(key, []).append(second[key] - rate)
    if not differences:
        raise ConfigError("nothing to compare: the reports hold no task")
    means = [sum(values) / len(values) for _, values in sorted(differences.items())]
    return PairedDifference(
        difference=sum(means) / len(means),
        interval=bootstrap_interval(means, seed),
        tasks=len(means),
        better=sum(value > 0 for value in means),
        worse=sum(value < 0 for value in means),
    )


def _listed(reports: EvalReport | Sequence[EvalReport]) -> list[EvalReport]:
    return [reports] if isinstance(reports, EvalReport) else list(reports)


def _rates(report: EvalReport) -> dict[tuple[str, str], float]:
    return {(o.environment, o.task_id): o.successes / o.attempts for o in report.outcomes}
