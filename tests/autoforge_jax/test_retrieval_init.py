"""The starting values of model.retrieval_init do what they say, before any training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flax import nnx

from autoforge_jax.config import ModelConfig
from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3, Weights, forward, unembedding, weights_of
from autoforge_jax.model.retrieval_init import retrieval_weights, words_of

CONFIG = Qwen3Config(
    vocab_size=300, num_layers=3, num_heads=4, num_kv_heads=4, rope_theta=1e6, residual_init=0.0
)
PIECES = tuple(f"<{index}>" for index in range(CONFIG.vocab_size))


def random_weights(config: Qwen3Config = CONFIG) -> Weights:
    return weights_of(nnx.state(Qwen3(config, rngs=nnx.Rngs(0)), nnx.Param))


def best_of(weights: Weights, tokens: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Per row, which candidate [rows, n] the last position finds most likely."""
    rows, length = tokens.shape
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    hidden = forward(weights, CONFIG, tokens, positions, np.full((rows, length), 2, np.int32))
    logits = np.asarray(hidden[:, -1] @ unembedding(weights).T)
    return np.take_along_axis(logits, candidates, axis=1).argmax(axis=1)


def distinct(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    return np.stack([rng.choice(CONFIG.vocab_size, count, replace=False) for _ in range(rows)])


@pytest.mark.parametrize("filler", [0, 40])
def test_continues_what_followed_the_same_two_tokens(filler: int) -> None:
    """Context ``… a b c …``, then ``a b``: of all tokens seen, c is the answer in every sixth row or more.
    Random weights: chance, one row in sixty or less.
    """
    rng = np.random.default_rng(0)
    context = distinct(rng, 128, 60 + filler).astype(np.int32)
    tokens = np.concatenate([context, context[:, 20:22]], axis=1)
    others = np.delete(context, [20, 21], axis=1)  # the present tokens themselves are no candidates
    found = best_of(retrieval_weights(random_weights(), CONFIG, PIECES, seed=0), tokens, others) == 20
    assert found.mean() >= 0.15
    assert (best_of(random_weights(), tokens, others) == 20).mean() <= 0.05


def test_finds_the_id_that_follows_a_label() -> None:
    """Records ``a b x y P id``; asked with ``a b : P`` the ids of all eight records are the candidates."""
    rng = np.random.default_rng(1)
    names = distinct(rng, 64, 24)
    first, second, ids = names[:, :8], names[:, 8:16], names[:, 16:24]
    fixed = np.broadcast_to(np.arange(3), (64, 8, 3))
    records = np.concatenate([first[..., None], second[..., None], fixed, ids[..., None]], axis=2)
    asked = np.stack([first[:, 5], second[:, 5], np.full(64, 7), np.full(64, 2)], axis=1)
    tokens = np.concatenate([records.reshape(64, -1), asked], axis=1).astype(np.int32)
    found = best_of(retrieval_weights(random_weights(), CONFIG, PIECES, seed=0), tokens, ids) == 5
    assert found.mean() >= 0.95
    assert (best_of(random_weights(), tokens, ids) == 5).mean() <= 0.3


def test_tokens_of_the_same_words_start_alike() -> None:
    """Half of the variance is common: the mean cosine is one half between forms of a word, zero otherwise."""
    letters = "abcdefghijklmnopqrstuvwxy"
    words = [first + second for first in "bdkmt" for second in letters]
    pieces = [*(f'{word}":' for word in words), *(f" {word}" for word in words)]
    config = Qwen3Config(vocab_size=len(pieces), num_heads=4, num_kv_heads=4, rope_theta=1e6)
    table: Any = retrieval_weights(random_weights(config), config, pieces, seed=0)["embedding"]
    tokens = np.asarray(table)[:, 1:]
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    alike = unit[: len(words)] @ unit[len(words) :].T
    assert np.diag(alike).mean() == pytest.approx(0.5, abs=0.05)
    assert alike[~np.eye(len(words), dtype=bool)].mean() == pytest.approx(0.0, abs=0.02)


def test_words_of_a_token() -> None:
    assert words_of('eventDescription":"') == ("event", "description")
    assert words_of("list_projects") == ("list", "projects")
    assert words_of("URLParser") == ("url", "parser")
    assert words_of("<think>") == () and words_of('","') == ()


def test_is_deterministic_in_the_seed() -> None:
    one, same, other = (
        retrieval_weights(random_weights(), CONFIG, PIECES, seed)["layers"]["key"] for seed in (3, 3, 4)
    )
    assert np.array_equal(np.asarray(one), np.asarray(same))
    assert not np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize(
    "change", [{"num_layers": 1}, {"num_heads": 2, "num_kv_heads": 2}, {"rope_theta": 100.0}]
)
def test_a_shape_without_room_is_refused(change: dict[str, Any]) -> None:
    config = Qwen3Config(
        **{"vocab_size": 300, "num_heads": 4, "num_kv_heads": 4, "rope_theta": 1e6, **change}
    )
    with pytest.raises(WeightsError, match="needs at least 2, 4, 64 and 4"):
        retrieval_weights(random_weights(config), config, PIECES, seed=0)


def test_a_vocabulary_of_another_size_is_refused() -> None:
    with pytest.raises(WeightsError, match="299 token texts for 300 embeddings"):
        retrieval_weights(random_weights(), CONFIG, PIECES[:-1], seed=0)


def test_untied_embeddings_are_refused() -> None:
    config = Qwen3Config(vocab_size=300, num_heads=4, num_kv_heads=4, rope_theta=1e6, tie_embeddings=False)
    with pytest.raises(WeightsError, match="tie_embeddings = true"):
        retrieval_weights(random_weights(config), config, PIECES, seed=0)


def test_a_model_that_is_loaded_has_no_second_start() -> None:
    with pytest.raises(ValueError, match="a model has one start"):
        ModelConfig(init="retrieval", init_from="folder")
