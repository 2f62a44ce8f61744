"""Chunked log-probs against a float64 softmax over the whole vocabulary, under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.numerics.logprobs import flat_logprobs, row_logprobs

RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(11, 4)).astype(np.float32)
OUT = RNG.normal(size=(9, 4)).astype(np.float32)
PREDICTORS = RNG.integers(0, 11, 20).astype(np.int32)
TARGETS = RNG.integers(0, 9, 20).astype(np.int32)
MASK = RNG.integers(0, 2, 20).astype(bool)
IDS = (jnp.asarray(PREDICTORS), jnp.asarray(TARGETS))


def whole(hidden: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits = hidden.astype(np.float64)[PREDICTORS] @ OUT.T.astype(np.float64) / temperature
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logp[np.arange(20), TARGETS], -(np.exp(logp) * logp).sum(-1), logp.argmax(-1) == TARGETS


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_against_the_whole_softmax(chunk: int, temperature: float) -> None:
    run = jax.jit(
        lambda h, m: flat_logprobs(h, jnp.asarray(OUT), *IDS, m, temperature=temperature, chunk_size=chunk)
    )
    got = run(HIDDEN, MASK)
    logprobs, entropy, argmax = whole(HIDDEN, temperature)
    np.testing.assert_allclose(got.logprobs, np.where(MASK, logprobs, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.entropy, np.where(MASK, entropy, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got.is_argmax, MASK & argmax)


def test_gradient_against_the_closed_form_and_entropy_has_none() -> None:
    def loss(hidden: jax.Array, out: jax.Array) -> jax.Array:
        tokens = flat_logprobs(hidden, out, *IDS, jnp.asarray(MASK), chunk_size=4)
        return jnp.sum(tokens.logprobs) + 100.0 * jnp.sum(tokens.entropy)

    by_hidden, by_out = jax.jit(jax.grad(loss, (0, 1)))(HIDDEN, OUT)
    logits = HIDDEN.astype(np.float64)[PREDICTORS] @ OUT.T.astype(np.float64)
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    error = (np.eye(9)[TARGETS] - softmax) * MASK[:, None]
    want = np.zeros((11, 4))
    np.add.at(want, PREDICTORS, error @ OUT)
    np.testing.assert_allclose(by_hidden, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_out, error.T @ HIDDEN[PREDICTORS], rtol=1e-4, atol=1e-5)


def test_empty_and_full_masks_and_extreme_logits() -> None:
    run = jax.jit(lambda h, m: flat_logprobs(h, jnp.asarray(OUT), *IDS, m, chunk_size=8))
    nothing = run(HIDDEN, np.zeros(20, bool))
    assert not np.any(nothing.logprobs) and not np.any(nothing.entropy) and not np.any(nothing.is_argmax)
    extreme = run(HIDDEN * 1e4, np.ones(20, bool))
    assert np.all(np.isfinite(extreme.logprobs)) and np.all(np.isfinite(extreme.entropy))
    assert np.all(extreme.logprobs <= 0) and np.all(np.abs(extreme.entropy) < 1e-2)
    gradient = jax.jit(
        jax.grad(lambda h: jnp.sum(flat_logprobs(h, jnp.asarray(OUT), *IDS, jnp.asarray(MASK)).logprobs))
    )(HIDDEN * 1e4)
    assert np.all(np.isfinite(gradient))


def test_rows_gather_by_index_in_the_row() -> None:
    hidden = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    tokens = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    predictors = np.array([[0, 0, 1], [0, 0, 0]], np.int32)
    mask = np.array([[False, True, True], [False, True, True]])
    ids = (jnp.asarray(tokens), jnp.asarray(predictors), jnp.asarray(mask))
    got = jax.jit(lambda h: row_logprobs(h, jnp.asarray(OUT), *ids, chunk_size=2))(hidden).logprobs
    for row, column in zip(*np.nonzero(mask), strict=True):
        logits = OUT.astype(np.float64) @ hidden[row, predictors[row, column]]
        assert got[row, column] == pytest.approx(
            logits[tokens[row, column]] - np.log(np.exp(logits).sum()), rel=1e-5
        )


def test_no_array_is_as_large_as_all_positions_times_the_vocabulary() -> None:
    text = str(
        jax.make_jaxpr(lambda h: flat_logprobs(h, jnp.asarray(OUT), *IDS, jnp.asarray(MASK), chunk_size=5))(
            HIDDEN
        )
    )
    assert "f32[5,9]" in text and "f32[20,9]" not in text


def test_bfloat16_states_give_float32_logprobs() -> None:
    got = flat_logprobs(jnp.asarray(HIDDEN, jnp.bfloat16), jnp.asarray(OUT), *IDS, jnp.asarray(MASK))
    assert got.logprobs.dtype == jnp.float32
    np.testing.assert_allclose(got.logprobs, np.where(MASK, whole(HIDDEN, 1.0)[0], 0), atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"mask": np.ones(19, bool)}, "one shape"),
        ({"unembedding": np.ones((9, 5), np.float32)}, "must be"),
    ],
)
def test_mismatched_input_raises(changes: dict, message: str) -> None:
    fields = {
        "hidden": HIDDEN,
        "unembedding": OUT,
        "predictors": PREDICTORS,
        "targets": TARGETS,
        "mask": MASK,
    }
    with pytest.raises(ValueError, match=message):
        flat_logprobs(
            **{k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in (fields | changes).items()}
        )
