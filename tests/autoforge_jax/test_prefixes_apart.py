"""Prefixes in rows of their own: the layout by hand, and loss and gradient equal to those of copies."""

import jax
import numpy as np
import pytest

from autoforge_jax.config import BatchConfig
from autoforge_jax.data.batch import Batch, pack
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.step import make_train_step
from tests.autoforge_jax.mock_learner import OPTIMIZER, PREFIX, leaves, sample, samples, tiny_qwen3

APART = BatchConfig(row_tokens=16, rows_per_microbatch=3, prefix_tokens=7, prefixes_per_microbatch=2)


def test_layout_by_hand() -> None:
    items = [sample(0, 4), sample(1, 5), sample(2, 4, environment=1)]
    (batch,) = pack(items, APART, pad_id=9)
    assert batch.prefixes is not None
    # Row 0: the longer sample 1 in 0..4, sample 0 in 5..8. Row 1: the other environment. Row 2: nothing.
    assert batch.segment_ids.tolist() == [[2] * 5 + [3] * 4 + [0] * 7, [2] * 4 + [0] * 12, [0] * 16]
    assert batch.positions[0].tolist() == [5, 6, 7, 8, 9, 5, 6, 7, 8] + [0] * 7
    # hidden state 0 of a row is the prefix's last token, and token t's own is t + 1
    assert batch.predictor_index[0].tolist() == [0, 1, 2, 3, 4, 0, 6, 7, 8, *range(10, 17)]
    assert batch.prefixes.lengths.tolist() == [PREFIX, PREFIX]
    assert batch.prefixes.row_prefix.tolist() == [0, 1, 0]
    for place, item in enumerate((items[0], items[2])):
        assert batch.prefixes.tokens[place].tolist() == [*item.token_ids[:PREFIX], 9, 9]
    assert batch.used_tokens == 13 + 2 * PREFIX


def test_a_micro_batch_has_at_most_so_many_environments() -> None:
    items = [sample(i, 5, environment=i) for i in range(3)]
    batches = pack(items, APART, 0)
    assert [sorted(set(b.sample_ids[b.sample_ids >= 0])) for b in batches] == [[0, 1], [2]]


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"prefix of 5 tokens, batch.prefix_tokens is 4: raise it"):
        pack([sample(0, 6)], APART.model_copy(update={"prefix_tokens": 4}), 0)
    pack([sample(0, 16)], APART, 0)
    with pytest.raises(ConfigError, match="a row has 16"):
        pack([sample(0, 17)], APART, 0)


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_loss_and_gradient_equal_those_of_copied_prefixes(weight: float) -> None:
    forward, params = tiny_qwen3()
    step = make_train_step(forward, OPTIMIZER, SupervisedObjective(), chunk_size=16)

    def result(config: BatchConfig) -> tuple[float, list[np.ndarray]]:
        batches: list[Batch] = pack(samples(), config, 0, observation_weight=weight)
        loss, gradient, _ = step.loss_and_gradient(params, batches)
        return loss, leaves(gradient)

    loss, gradient = result(BatchConfig(row_tokens=32, rows_per_microbatch=4))
    apart_loss, apart = result(APART)
    assert apart_loss == pytest.approx(loss, rel=1e-6)
    for a, b in zip(apart, gradient, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert max(float(np.max(np.abs(g))) for g in jax.tree.leaves(gradient)) > 1e-2
