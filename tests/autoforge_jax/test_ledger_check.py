"""The end-to-end check of the ledger: what lies packed in front of the learner is what the engine had."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoforge_jax.config import BatchConfig, ERPOConfig, RolloutConfig
from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.data.ledger_check import check_batches
from autoforge_jax.data.samples import samples_from_groups
from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.collect import collect
from autoforge_jax.rollout.episode import reference_actions
from autoforge_jax.rollout.ledger import turn_hash
from autoforge_jax.rollout.snapshot import trajectory_from_json, trajectory_to_json
from autoforge_jax.types import SampleRequest, TrainingSample, TrajectoryGroup
from tests.autoforge_jax.mock_learner import PREFIX, group
from tests.autoforge_jax.mock_rollout import Recorder, items, renderer

SEPARATE = BatchConfig(row_tokens=24, rows_per_microbatch=2, share_prefix=False)
SHARED = BatchConfig(row_tokens=24, rows_per_microbatch=2)
APART = BatchConfig(row_tokens=16, rows_per_microbatch=2, prefix_tokens=7, prefixes_per_microbatch=2)
LAYOUTS = [SEPARATE, SHARED, APART]
GROUPS = [group([1, 0]), group([0, 1, 1], task="t1", environment="e1")]


def samples_of(groups: list[TrajectoryGroup]) -> tuple[TrainingSample, ...]:
    return samples_from_groups(groups, compute_advantages(groups, "environment", 1e-6))


@pytest.mark.parametrize("config", LAYOUTS)
def test_every_token_up_to_the_last_sampled_one_is_compared(config: BatchConfig) -> None:
    samples = samples_of(GROUPS)
    found = check_batches(samples, pack(samples, config, 0))
    assert (found.checked_tokens, found.turns, found.mismatches) == (5 * (PREFIX + 6), 5, 0)
    assert found.metrics()["rollout/ledger_mismatches"] == 0
    found.raise_if_broken()


def _set(name: str, choose: Callable[[Batch], tuple[Any, ...]], value: Any) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        array = np.array(getattr(batch, name))
        array[choose(batch)] = value
        return replace(batch, **{name: array})

    return change


def _where(batch: Batch, offset: int) -> tuple[int, int]:
    """A place of sample 1: so many tokens after its first one."""
    row, column = np.argwhere(np.asarray(batch.sample_ids) == 1)[0]
    return int(row), int(column) + offset


def _swap_prefix(batch: Batch) -> Batch:
    assert batch.prefixes is not None
    tokens = np.array(batch.prefixes.tokens)
    tokens[0, 2] += 1
    return replace(batch, prefixes=batch.prefixes._replace(tokens=tokens))


# With APART a body begins with two observation tokens and goes on with four sampled ones.
TAMPERED = {
    "an observed id": _set("tokens", lambda b: _where(b, 0), 23),
    "a sampled id": _set("tokens", lambda b: _where(b, 3), 23),
    "a log-prob": _set("rollout_logprobs", lambda b: _where(b, 5), -1.05),
    "a position": _set("positions", lambda b: _where(b, 1), 9),
    "a mark of sampling": _set("action_mask", lambda b: _where(b, 1), True),
    "a mark that is missing": _set("action_mask", lambda b: _where(b, 4), False),
    "whose token it is": _set("sample_ids", lambda b: _where(b, 5), -1),
    "the prompt": _swap_prefix,
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED.keys())
def test_whatever_changes_on_the_way_is_a_mismatch(change: Callable[[Batch], Batch]) -> None:
    samples = samples_of(GROUPS[:1])
    batches = pack(samples, APART, 0)
    found = check_batches(samples, [change(batch) for batch in batches])
    assert found.mismatches >= 1 and found.checked_tokens < 2 * (PREFIX + 6)
    with pytest.raises(
        LedgerError, match=r"of 2 sampled turns stand otherwise .* first turn 0 of sample [01]"
    ):
        found.raise_if_broken()


def test_a_sample_that_was_left_out_and_a_turn_without_a_record_are_mismatches() -> None:
    samples = samples_of(GROUPS[:1])
    assert check_batches(samples, pack(samples[:1], SHARED, 0)).mismatches == 1
    unknown = tuple(replace(s, seen=tuple(replace(t, hash="") for t in s.seen)) for s in samples)
    assert check_batches(unknown, pack(unknown, SHARED, 0)).mismatches == 2
    bare = tuple(replace(s, seen=()) for s in samples)
    assert check_batches(bare, pack(bare, SHARED, 0)).mismatches == 2


def test_the_hash_is_of_what_the_engine_was_sent_and_gave_back() -> None:
    """From the engine's own log, through episode, checkpoint, sample and packing."""
    actions = {
        task.instruction: [renderer().action_ids(a) for a in reference_actions(task)] for _, task in items()
    }

    def script(request: SampleRequest, turn: int) -> Any:
        task = next(t for _, t in items() if t.id == request.session_id.split("/")[-2])
        return actions[task.instruction][turn] if request.session_id.endswith("0") else "Done."

    policy = Recorder(script)
    erpo = ERPOConfig(tasks_per_step=2, group_size=2)
    rollout = RolloutConfig(slots=4, max_trajectory_tokens=1200, max_turn_tokens=90)
    groups = collect(policy, items(), renderer(), erpo, rollout, seed=1, step=0).selected
    assert groups
    stored = [
        replace(g, trajectories=tuple(trajectory_from_json(trajectory_to_json(t)) for t in g.trajectories))
        for g in groups
    ]
    samples = samples_of(stored)
    hashes = {turn.hash for sample in samples for turn in sample.seen}
    engine = {
        turn_hash(request.token_ids, output.token_ids, output.logprobs)
        for log in policy.log.values()
        for request, output in log
    }
    assert hashes and hashes <= engine
    wide = BatchConfig(row_tokens=1200, rows_per_microbatch=2)
    found = check_batches(samples, pack(samples, wide, renderer().tokenizer.pad_id))
    assert found.mismatches == 0 and found.turns == sum(len(s.seen) for s in samples)
