"""The ledger refuses whatever does not add up; nothing is repaired."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.ledger import SessionContexts, TokenLedger, check_output, check_trajectory
from autoforge_jax.types import SampleOutput, SamplingParams, Trajectory, Turn
from envgen.interface import Message, StopReason

PARAMS = SamplingParams(max_turn_tokens=4, stop_token_ids=(2, 0))
GOOD = SampleOutput((5, 6, 2), (-0.5, -1.0, -0.1), "stop", 3)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (replace(GOOD, logprobs=()), "3 sampled ids with 0 log-probs"),
        (replace(GOOD, logprobs=(-0.5, -1.0)), "3 sampled ids with 2 log-probs"),
        (replace(GOOD, logprobs=(-0.5, math.nan, -0.1)), r"token 1 \(id 6\) is nan"),
        (replace(GOOD, logprobs=(-math.inf, -1.0, -0.1)), "token 0 .* is -inf"),
        (replace(GOOD, logprobs=(0.3, -1.0, -0.1)), "token 0 .* is 0.3"),
        (replace(GOOD, token_ids=(), logprobs=()), "no token"),
        (SampleOutput((5,) * 5, (-1.0,) * 5, "length", 3), "at most max_turn_tokens = 4"),
        (SampleOutput((5, 2, 6), (-1.0,) * 3, "length", 3), "before the end"),
        (replace(GOOD, stop="length"), "stop is 'length' but the last id 2 is a stop token"),
        (SampleOutput((5, 6), (-1.0, -1.0), "stop", 3), "the last id 6 is no stop token"),
    ],
)
def test_outputs_that_break_the_contract(output: SampleOutput, fault: str) -> None:
    ledger = TokenLedger([1])
    with pytest.raises(LedgerError, match=fault):
        ledger.append_action(output, PARAMS)
    assert ledger.token_ids == (1,)


def test_certain_tokens_and_float32_noise_are_fine() -> None:
    check_output(SampleOutput((2,), (0.0,), "stop", 0), PARAMS)
    check_output(SampleOutput((2,), (1e-7,), "stop", 0), PARAMS)


PIECES = st.lists(
    st.tuples(st.lists(st.integers(3, 50), max_size=5), st.lists(st.integers(3, 50), min_size=1, max_size=5))
)


@given(st.lists(st.integers(0, 50), max_size=5), PIECES)
@settings(max_examples=100, deadline=None)
def test_ledger_is_the_concatenation(prefix: list[int], pieces: list[tuple[list[int], list[int]]]) -> None:
    params = SamplingParams(max_turn_tokens=8, stop_token_ids=(2,))
    ledger = TokenLedger(prefix)
    ids, mask, logprobs = list(prefix), [False] * len(prefix), [math.nan] * len(prefix)
    for seen, sampled in pieces:
        ledger.append_observation(seen)
        own = [-0.01 * token for token in sampled]
        span = ledger.append_action(SampleOutput(tuple(sampled), tuple(own), "length", 0), params)
        ids += [*seen, *sampled]
        mask += [False] * len(seen) + [True] * len(sampled)
        logprobs += [math.nan] * len(seen) + own
        assert span == (len(ids) - len(sampled), len(ids))
    assert (ledger.token_ids, ledger.action_mask, len(ledger)) == (tuple(ids), tuple(mask), len(ids))
    assert [str(x) for x in ledger.logprobs] == [str(x) for x in logprobs]


def test_sessions_may_only_grow() -> None:
    contexts = SessionContexts()
    contexts.extend("a", (1, 2), (3,))
    contexts.check("a", (1, 2, 3, 4))
    contexts.check("b", (9,))
    with pytest.raises(LedgerError, match="changed at position 1 of 3"):
        contexts.check("a", (1, 7, 3, 4))
    with pytest.raises(LedgerError, match="changed at position 2 of 3"):
        contexts.check("a", (1, 2))
    contexts.release("a")
    contexts.check("a", (7,))


def trajectory() -> Trajectory:
    nan = math.nan
    return Trajectory(
        task_id="t",
        environment_id="e",
        environment="e",
        sample_index=0,
        opening=(),
        turns=(
            Turn(Message(role="assistant"), (), 3, 5, "stop"),
            Turn(Message(role="assistant"), (), 6, 7, "stop"),
        ),
        token_ids=(1, 1, 4, 5, 2, 4, 2),
        action_mask=(False, False, False, True, True, False, True),
        rollout_logprobs=(nan, nan, nan, -0.5, -0.5, nan, -0.5),
        prefix_length=2,
        reward=0.0,
        success=False,
        stop_reason=StopReason.USER_DONE,
        policy_version=0,
    )


def test_a_sound_trajectory_passes() -> None:
    check_trajectory(trajectory())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"token_ids": (1,) * 6}, "6 ids, 7 mask values, 7 log-probs"),
        ({"prefix_length": 8}, "prefix_length 8"),
        ({"prefix_length": 4}, "turn 0 spans"),
        ({"action_mask": (False, False, True, True, True, False, True)}, "differs from the spans"),
        ({"action_mask": (False,) * 7}, "differs from the spans"),
        ({"rollout_logprobs": (math.nan,) * 7}, "position 3 is sampled without"),
        (
            {"rollout_logprobs": (0.0, math.nan, math.nan, -0.5, -0.5, math.nan, -0.5)},
            "position 0 is not sampled with",
        ),
        ({"turns": (trajectory().turns[1], trajectory().turns[0])}, "turn 1 spans"),
    ],
)
def test_broken_trajectories(changes: dict[str, object], fault: str) -> None:
    with pytest.raises(LedgerError, match=fault):
        check_trajectory(replace(trajectory(), **changes))  # type: ignore[arg-type]
