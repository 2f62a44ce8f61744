"""Packing: shapes, segments, predictors, and what every packed value says, by an independent unpacking."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoforge_jax.config import BatchConfig
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.errors import ConfigError, LedgerError
from autoforge_jax.types import TrainingSample
from tests.autoforge_jax.mock_learner import PREFIX, VOCABULARY, arrays, sample, samples


def unpack(batches: list[Batch], index: int) -> tuple[int, int, np.ndarray]:
    """(micro-batch, row, columns) of a sample's packed tokens."""
    hits = [(b, *np.nonzero(batch.sample_ids == index)) for b, batch in enumerate(batches)]
    (batch, rows, columns), *others = [hit for hit in hits if len(hit[1])]
    assert not others and len(set(rows)) == 1
    return batch, int(rows[0]), columns


def check(
    batches: list[Batch], given_samples: list[TrainingSample], config: BatchConfig, weight: float = 0.0
) -> None:
    """Every body token of every sample stands in exactly one place with its own values."""
    for index, item in enumerate(given_samples):
        where, row, columns = unpack(batches, index)
        batch = batches[where]
        first = len(item.token_ids) - len(columns)
        assert first == (PREFIX if config.share_prefix else 0)
        assert tuple(batch.tokens[row, columns]) == item.token_ids[first:]
        assert tuple(batch.positions[row, columns]) == tuple(range(first, len(item.token_ids)))
        assert len(set(batch.segment_ids[row, columns])) == 1
        assert tuple(batch.action_mask[row, columns]) == item.action_mask[first:]
        assert np.all(batch.advantages[row, columns] == np.float32(item.advantage))
        expected = [
            item.weight if loss else item.weight * weight if t >= PREFIX else 0.0
            for t, loss in enumerate(item.loss_mask)
        ]
        np.testing.assert_allclose(batch.loss_weight[row, columns], expected[first:])
        assert np.all(batch.sample_loss_tokens[row, columns] == np.count_nonzero(expected))
        for column, t in zip(columns, range(first, len(item.token_ids)), strict=True):
            predictor = batch.predictor_index[row, column]
            if t > 0:
                assert batch.tokens[row, predictor] == item.token_ids[t - 1]
                assert batch.positions[row, predictor] == t - 1
                assert batch.segment_ids[row, predictor] in (1, batch.segment_ids[row, column])
            if item.action_mask[t]:
                assert batch.rollout_logprobs[row, column] == np.float32(item.rollout_logprobs[t])
            else:
                assert batch.rollout_logprobs[row, column] == 0.0


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_every_token_is_packed_once_with_its_values(share: bool, weight: float) -> None:
    config = BatchConfig(row_tokens=32, rows_per_microbatch=2, share_prefix=share)
    items = [replace(s, weight=0.5 + i) for i, s in enumerate(samples())]
    batches = pack(items, config, pad_id=0, observation_weight=weight)
    check(batches, items, config, weight)
    for batch in batches:
        for name, value in arrays(batch).items():
            assert value.shape == (2, 32), name
        assert np.all(batch.loss_mask == (batch.loss_weight > 0))
        outside = batch.sample_ids < 0
        assert not batch.loss_mask[outside].any() and not batch.action_mask[outside].any()
        assert np.all(
            batch.segment_ids[outside]
            == np.where(batch.positions[outside] + outside[outside] > 0, batch.segment_ids[outside], 0)
        )


def test_layout_by_hand() -> None:
    config = BatchConfig(row_tokens=16, rows_per_microbatch=2)
    items = [sample(0, 4), sample(1, 5), sample(2, 4, environment=1)]
    (batch,) = pack(items, config, pad_id=9)
    # Row 0: prefix 0..4, the longer sample 1 in 5..9, sample 0 in 10..13, padding. Row 1: the other
    # environment.
    assert batch.segment_ids.tolist() == [
        [1] * 5 + [2] * 5 + [3] * 4 + [0] * 2,
        [1] * 5 + [2] * 4 + [0] * 7,
    ]
    assert batch.sample_ids.tolist() == [
        [-1] * 5 + [1] * 5 + [0] * 4 + [-1] * 2,
        [-1] * 5 + [2] * 4 + [-1] * 7,
    ]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 6, 7, 8, 0, 0]
    assert batch.predictor_index[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 10, 11, 12, 14, 15]
    assert batch.tokens[0, 14:].tolist() == [9, 9]
    assert batch.used_tokens == 14 + 9


def test_sharing_saves_rows_and_empty_rows_fill_the_last_batch() -> None:
    items = [sample(i, 5) for i in range(6)]
    shared = pack(items, BatchConfig(row_tokens=20, rows_per_microbatch=4), 0)
    separate = pack(items, BatchConfig(row_tokens=20, rows_per_microbatch=4, share_prefix=False), 0)
    assert [b.used_tokens for b in shared] == [20 + 20]
    assert [b.used_tokens for b in separate] == [60]
    assert not shared[0].segment_ids[2:].any()


def test_pad_id_may_be_any_token_of_the_samples() -> None:
    config = BatchConfig(row_tokens=32, rows_per_microbatch=4)
    eos = samples()[0].token_ids[-1]
    with_eos, other = pack(samples(), config, eos), pack(samples(), config, VOCABULARY - 1)
    for a, b in zip(with_eos, other, strict=True):
        for name, value in arrays(a).items():
            if name != "tokens":
                np.testing.assert_array_equal(value, arrays(b)[name])
        assert a.action_mask[a.tokens == eos].any()


def test_no_samples_and_bodies_without_tokens() -> None:
    assert pack([], BatchConfig(), 0) == []
    bare = replace(
        sample(0, 4),
        token_ids=sample(0, 4).token_ids[:5],
        action_mask=(False,) * 5,
        loss_mask=(False,) * 5,
        rollout_logprobs=(math.nan,) * 5,
    )
    assert pack([bare], BatchConfig(), 0) == []


def test_one_token_body() -> None:
    item = sample(0, 4)
    one = replace(
        item,
        token_ids=item.token_ids[:6],
        action_mask=(False,) * 5 + (True,),
        loss_mask=(False,) * 5 + (True,),
        rollout_logprobs=(math.nan,) * 5 + (-1.0,),
    )
    (batch,) = pack([one], BatchConfig(row_tokens=16, rows_per_microbatch=1), 0)
    assert batch.loss_mask.sum() == 1 and batch.predictor_index[0, 5] == 4
    assert batch.sample_loss_tokens[0, 5] == 1


def test_what_cannot_be_packed() -> None:
    good = sample(0, 12)
    with pytest.raises(
        ConfigError, match=r"17 tokens, a row has 16: raise batch.row_tokens.*max_trajectory_tokens"
    ):
        pack([good], BatchConfig(row_tokens=16), 0)
    with pytest.raises(LedgerError, match="lengths must agree"):
        pack([replace(good, loss_mask=good.loss_mask[1:])], BatchConfig(), 0)
    with pytest.raises(LedgerError, match="one system prompt"):
        pack(
            [good, replace(sample(1, 5), token_ids=(1, 2, 3, 4, 6, *sample(1, 5).token_ids[5:]))],
            BatchConfig(),
            0,
        )
    with pytest.raises(LedgerError, match="shared prefix or on the first token"):
        pack([replace(good, loss_mask=(True,) * 17)], BatchConfig(), 0)
    with pytest.raises(LedgerError, match="must be finite"):
        pack([replace(good, advantage=math.nan)], BatchConfig(), 0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(3, 27), st.integers(0, 2)), max_size=12),
    st.booleans(),
    st.integers(1, 3),
)
def test_packing_any_samples(shapes: list[tuple[int, int]], share: bool, rows: int) -> None:
    config = BatchConfig(row_tokens=32, rows_per_microbatch=rows, share_prefix=share)
    items = [sample(i, body, environment=e) for i, (body, e) in enumerate(shapes)]
    batches = pack(items, config, 0)
    check(batches, items, config)
    assert sum(int(b.action_mask.sum()) for b in batches) == sum(sum(s.action_mask) for s in items)
    again = pack(items, config, 0)
    for a, b in zip(batches, again, strict=True):
        for name, value in arrays(a).items():
            np.testing.assert_array_equal(value, arrays(b)[name])
