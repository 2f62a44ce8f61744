"""Estimators against brute-force enumeration and hand-worked values."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoforge_jax.errors import ConfigError
from autoforge_jax.train.statistics import (
    bootstrap_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    success_interval,
    wilson_interval,
)
from autoforge_jax.types import EvalReport, TaskOutcome


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
@settings(max_examples=150, deadline=None)
def test_pass_estimators_are_means_over_all_subsets(case: tuple[int, int, int]) -> None:
    n, c, k = case
    attempts = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(attempts, k))
    assert pass_at_k(c, n, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets), abs=1e-12)
    assert pass_hat_k(c, n, k) == pytest.approx(sum(all(s) for s in subsets) / len(subsets), abs=1e-12)


def test_pass_estimators_are_unbiased() -> None:
    """Expectation over c ~ Binomial(5, 0.3) is exactly 1 − 0.7^k and 0.3^k."""
    for k in (1, 2, 3, 5):
        weights = [math.comb(5, c) * 0.3**c * 0.7 ** (5 - c) for c in range(6)]
        assert sum(w * pass_at_k(c, 5, k) for c, w in enumerate(weights)) == pytest.approx(1 - 0.7**k)
        assert sum(w * pass_hat_k(c, 5, k) for c, w in enumerate(weights)) == pytest.approx(0.3**k)


@pytest.mark.parametrize(("c", "n", "k"), [(3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)])
def test_pass_estimators_refuse_nonsense(c: int, n: int, k: int) -> None:
    with pytest.raises(ValueError, match="expected 0 ≤ c ≤ n"):
        pass_at_k(c, n, k)
    with pytest.raises(ValueError, match="expected 0 ≤ c ≤ n"):
        pass_hat_k(c, n, k)


def test_wilson_known_values() -> None:
    # Newcombe (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson_interval(20, 20)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson_interval(3, 2)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(max_examples=100, deadline=None)
def test_wilson_inverts_the_score_test(case: tuple[int, int]) -> None:
    """At an end p of the interval, |p̂ − p| is exactly z standard errors under p."""
    c, n = case
    low, high = wilson_interval(c, n)
    assert 0 <= low <= c / n <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(c / n - end) == pytest.approx(
                1.959963984540054 * math.sqrt(end * (1 - end) / n), rel=1e-6
            )


def test_bootstrap_is_seeded_and_matches_enumeration() -> None:
    values = [0.0, 0.0, 1.0, 1.0, 1.0]
    assert bootstrap_interval(values, 3) == bootstrap_interval(values, 3)
    # all 5^5 resamples: the mean is Binomial(5, 0.6)/5; its 2.5 % and 97.5 % quantiles are 0.2 and 1.0
    means = sorted(sum(s) / 5 for s in itertools.product(values, repeat=5))
    expected = (means[int(0.025 * len(means))], means[int(0.975 * len(means))])
    assert bootstrap_interval(values, 0) == pytest.approx(expected)
    rng = random.Random(0)
    noise = [rng.gauss(2.0, 1.0) for _ in range(400)]
    low, high = bootstrap_interval(noise, 0)
    mean = sum(noise) / 400
    error = math.sqrt(sum((x - mean) ** 2 for x in noise) / 400 / 400)
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.02)
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([])


def outcome(task: str, successes: int, attempts: int, environment: str = "e") -> TaskOutcome:
    return TaskOutcome(task, environment, "p", 1, successes, attempts)


def test_success_interval_chooses_its_method() -> None:
    once = [outcome(str(i), i % 2, 1) for i in range(10)]
    assert success_interval(once) == wilson_interval(5, 10)
    sure = [outcome(str(i), 4, 4) for i in range(10)]
    assert success_interval(sure) == wilson_interval(10, 10)  # a bootstrap would have no width
    several = [outcome(str(i), i % 5, 4) for i in range(10)]
    assert success_interval(several, 1) == bootstrap_interval([(i % 5) / 4 for i in range(10)], 1)


def report(*outcomes: TaskOutcome) -> EvalReport:
    rates: dict[str, Any] = dict.fromkeys(
        ("success", "mean_turns", "mean_tool_calls", "tool_error_rate", "malformed_rate"), 0.0
    )
    tables: dict[str, Any] = {
        key: {} for key in ("pass_at_k", "pass_hat_k", "stop_reasons", "by_environment", "by_pattern")
    }
    return EvalReport("r", 0, interval=(0.0, 1.0), tasks=1, attempts=1, outcomes=outcomes, **rates, **tables)


def test_paired_difference_by_hand() -> None:
    before = report(outcome("a", 0, 1), outcome("b", 1, 1), outcome("c", 0, 1), outcome("d", 1, 1))
    after = report(outcome("d", 1, 1), outcome("c", 1, 1), outcome("b", 0, 1), outcome("a", 1, 1))
    result = paired_difference(before, after)
    assert (result.difference, result.tasks, result.better, result.worse) == (0.25, 4, 2, 1)
    assert result.interval == bootstrap_interval([1.0, -1.0, 1.0, 0.0], 0)
    assert not result.clear


def test_pairing_is_tighter_than_the_spread_of_tasks() -> None:
    before = report(*(outcome(str(i), 0 if i % 2 else 8, 10) for i in range(40)))
    after = report(*(outcome(str(i), 1 if i % 2 else 9, 10) for i in range(40)))
    result = paired_difference(before, after)
    assert result.difference == pytest.approx(0.1)
    assert result.interval == pytest.approx((0.1, 0.1))
    assert result.clear


def test_several_seeds_are_averaged_per_task() -> None:
    first = (report(outcome("a", 0, 1), outcome("b", 0, 1)), report(outcome("a", 1, 1), outcome("b", 0, 1)))
    second = (report(outcome("a", 0, 1), outcome("b", 1, 1)), report(outcome("a", 1, 1), outcome("b", 1, 1)))
    result = paired_difference([first[0], second[0]], [first[1], second[1]])
    assert (result.difference, result.tasks, result.better, result.worse) == (0.5, 2, 1, 0)


def test_different_tasks_cannot_be_paired() -> None:
    one = report(outcome("a", 0, 1))
    with pytest.raises(ConfigError, match="different tasks"):
        paired_difference(one, report(outcome("b", 0, 1)))
    # the same task name in another environment is another task
    with pytest.raises(ConfigError, match="different tasks"):
        paired_difference(one, report(outcome("a", 0, 1, "other")))
    with pytest.raises(ConfigError, match="no task"):
        paired_difference(replace(one, outcomes=()), replace(one, outcomes=()))
