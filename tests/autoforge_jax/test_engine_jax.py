"""The embedded engine against a full forward pass: what it sampled, and with which log-probs."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from autoforge_jax.errors import LedgerError, PolicyError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3, forward, unembedding, weights_of
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.engine_rows import BLOCK, CHUNK
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.types import SampleRequest, SamplingParams

CONFIG = Qwen3Config(vocab_size=64, num_layers=2, hidden_size=16, intermediate_size=24, head_dim=8)
LENGTH = 200
EOS = 5
RNG = np.random.default_rng(0)
PREFIXES = [tuple(RNG.integers(6, 64, n).tolist()) for n in (40, 71)]


def new_params(seed):
    return nnx.split(Qwen3(CONFIG, rngs=nnx.Rngs(seed)), nnx.Param)


def new_engine(**changes):
    graphdef, params = new_params(0)
    engine = JaxEngine(
        graphdef, CONFIG, **{"slots": 8, "max_length": LENGTH, "pad_id": EOS, "prefixes": 2, **changes}
    )
    engine.load(params, version=1)
    return engine


@pytest.fixture(scope="module")
def shared():
    """One engine for all tests that release what they opened: its programs compile once."""
    return new_engine()


@pytest.fixture
def engine(shared):
    yield shared
    shared.load(new_params(0)[1], version=1)


@jax.jit
def _logits(weights, tokens):
    positions = np.arange(LENGTH, dtype=np.int32)[None]
    segments = np.full((1, LENGTH), 2, np.int32)
    return forward(weights, CONFIG, tokens, positions, segments) @ unembedding(weights).T


def logits_after(ids, seed=0):
    """Next-token logits at every position of `ids`, by one pass over the whole sequence."""
    row = np.zeros((1, LENGTH), np.int32)
    row[0, : len(ids)] = ids
    return np.asarray(_logits(weights_of(new_params(seed)[1]), row), np.float64)[0, : len(ids)]


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def expect_logprobs(request, output, seed=0):
    start, ids = len(request.token_ids), request.token_ids + output.token_ids
    temperature = request.params.temperature or 1.0
    table = log_softmax(logits_after(ids, seed) / temperature)
    expected = [table[i - 1, ids[i]] for i in range(start, len(ids))]
    np.testing.assert_allclose(output.logprobs, expected, atol=1e-4)


def request(name, ids, seed=0, prefix=0, **params):
    params = {"max_turn_tokens": 6, "stop_token_ids": (EOS,), **params}
    return SampleRequest(name, tuple(ids), SamplingParams(**params), seed, prefix)


def words(rng, n):
    return tuple(rng.integers(6, 64, n).tolist())


def test_is_a_policy(engine):
    assert isinstance(engine, Policy)


def test_multi_turn_log_probs_equal_a_full_pass(engine):
    """Mixed lengths, two shared prefixes and none, suffixes longer than a chunk, turns longer than a block,
    reused slots."""
    rng = np.random.default_rng(1)
    for _ in range(2):
        contexts = {f"s{i}": (*(PREFIXES[i % 2] if i % 3 else ()), *words(rng, 1 + 5 * i)) for i in range(8)}
        for turn in range(3):
            requests = [
                request(
                    name,
                    ids,
                    seed=turn * 100 + i,
                    prefix=len(PREFIXES[i % 2]) if i % 3 else 0,
                    max_turn_tokens=(2, BLOCK + 5, 7)[(i + turn) % 3],
                    temperature=(1.0, 0.7)[i % 2],
                )
                for i, (name, ids) in enumerate(contexts.items())
                if not (turn == 1 and i == 3)  # one session sits a turn out
            ]
            for asked, output in zip(requests, engine.sample(requests), strict=True):
                expect_logprobs(asked, output)
                assert output.policy_version == 1
                ended = output.token_ids[-1] == EOS
                assert output.stop == ("stop" if ended else "length")
                assert EOS not in output.token_ids[:-1]
                assert ended or len(output.token_ids) == asked.params.max_turn_tokens
                seen = asked.token_ids + output.token_ids
                contexts[asked.session_id] = seen + words(
                    rng, int(rng.integers(0, CHUNK + 9)) if turn == 0 else 2
                )
        for name in contexts:
            engine.release(name)
    stats = engine.stats()
    assert stats["live_sessions"] == 0
    assert stats["prefix_tokens"] == sum(map(len, PREFIXES)), "each prefix is computed once"
    assert stats["unshared_sessions"] == 0


def test_only_the_new_suffix_is_prefilled(engine):
    first = request("a", words(np.random.default_rng(2), 30))
    before = engine.stats()["prefill_tokens"]
    (output,) = engine.sample([first])
    assert engine.stats()["prefill_tokens"] - before == 29, "the last id is the decode loop's first input"
    engine.sample([request("a", first.token_ids + output.token_ids + (9, 8, 7))])
    # the last sampled id was never an input, and of the new ones the last is not prefilled
    assert engine.stats()["prefill_tokens"] - before == 29 + 1 + 2


def test_a_sample_does_not_depend_on_its_neighbours(engine):
    rng = np.random.default_rng(3)
    asked = [
        request(
            f"s{i}", (*PREFIXES[i % 2], *words(rng, 3 + 4 * i)), i, len(PREFIXES[i % 2]), max_turn_tokens=9
        )
        for i in range(7)
    ]
    together = engine.sample(asked)
    for one in asked:
        engine.release(one.session_id)
    for one, expected in zip(reversed(asked), reversed(together), strict=True):
        (alone,) = engine.sample([dataclasses.replace(one, prefix_length=0)])
        assert alone.token_ids == expected.token_ids
        np.testing.assert_allclose(alone.logprobs, expected.logprobs, atol=1e-5)
        engine.release(one.session_id)
    (other,) = engine.sample([dataclasses.replace(asked[0], seed=99)])
    assert other.token_ids != together[0].token_ids


def test_greedy_is_the_argmax_with_log_probs_at_temperature_one(engine):
    rng = np.random.default_rng(4)
    asked = [request(f"s{i}", words(rng, 5 + 9 * i), i, temperature=0.0, stop_token_ids=()) for i in range(3)]
    for one, output in zip(asked, engine.sample(asked), strict=True):
        ids = one.token_ids + output.token_ids
        best = logits_after(ids).argmax(-1)
        assert list(output.token_ids) == [int(best[i - 1]) for i in range(len(one.token_ids), len(ids))]
        expect_logprobs(one, output)
        assert output.stop == "length"


def test_top_k_and_top_p_restrict_the_draw_and_leave_log_probs_alone(engine):
    context = words(np.random.default_rng(5), 12)
    probs = np.exp(log_softmax(logits_after(context)[-1]))
    order = np.argsort(-probs)
    nucleus = order[: int(np.searchsorted(np.cumsum(probs[order]), 0.3)) + 1]
    drawn = {"k": set(), "p": set()}
    for seed in range(40):
        asked = [
            request("k", context, seed, top_k=3, max_turn_tokens=1),
            request("p", context, seed, top_p=0.3, max_turn_tokens=1),
        ]
        for one, output in zip(asked, engine.sample(asked), strict=True):
            drawn[one.session_id].add(output.token_ids[0])
            assert output.logprobs[0] == pytest.approx(np.log(probs[output.token_ids[0]]), abs=1e-4)
            engine.release(one.session_id)
    assert drawn["k"] == set(order[:3].tolist())
    assert drawn["p"] <= set(nucleus.tolist())
    assert len(drawn["p"]) > 1


def test_pad_that_is_the_stop_token_in_a_context_is_an_ordinary_token(engine):
    context = (EOS, 9, EOS, EOS, 11, EOS)
    asked = [request("a", context), request("b", context * 9)]
    for one, output in zip(asked, engine.sample(asked), strict=True):
        expect_logprobs(one, output)


def test_context_end_is_length_and_no_room_is_an_error(engine):
    context = words(np.random.default_rng(6), LENGTH - 3)
    (output,) = engine.sample([request("a", context, max_turn_tokens=50, stop_token_ids=())])
    assert (len(output.token_ids), output.stop) == (3, "length")
    expect_logprobs(request("a", context), output)
    with pytest.raises(PolicyError, match="no room"):
        engine.sample([request("a", context + output.token_ids)])


def test_a_changed_context_is_a_ledger_error(engine):
    context = words(np.random.default_rng(7), 20)
    (output,) = engine.sample([request("a", context)])
    seen = context + output.token_ids
    changed = (*seen[:10], (seen[10] + 1) % 64, *seen[11:], 9)
    for ids, at in (
        (changed, 10),
        (seen[:-1], len(seen) - 1),
        ((*context, (seen[20] + 1) % 64, 9, 9, 9, 9, 9), 20),
    ):
        with pytest.raises(LedgerError, match=f"token {at} of"):
            engine.sample([request("b", context), request("a", ids)])
    assert engine.stats()["live_sessions"] == 1, "a refused call opens nothing"
    (again,) = engine.sample([request("a", (*seen, 9))])
    expect_logprobs(request("a", (*seen, 9)), again)


def test_new_weights_drop_every_cache(engine):
    context = (*PREFIXES[0], 7, 8, 9)
    (old,) = engine.sample([request("a", context, prefix=40)])
    engine.load(new_params(1)[1], version=2)
    assert engine.stats()["live_sessions"] == 0
    asked = request("a", (*context, *old.token_ids, 9), prefix=40)
    (output,) = engine.sample([asked])
    expect_logprobs(asked, output, seed=1)
    assert (output.policy_version, engine.version) == (2, 2)


def test_weights_are_the_engines_own_copy_and_must_fit(engine):
    _, params = new_params(0)
    engine.load(params, version=1)
    for leaf in jax.tree.leaves(params):
        leaf.delete()  # what a donating train step does to its arguments
    engine.sample([request("a", (7, 8))])
    other = dataclasses.replace(CONFIG, hidden_size=32)
    with pytest.raises(WeightsError, match=r"embedding: got \(64, 32\), expected \(64, 16\)"):
        engine.load(nnx.split(Qwen3(other, rngs=nnx.Rngs(0)), nnx.Param)[1], version=2)


def test_impossible_requests_are_refused_before_anything_runs(engine):
    fine = request("fine", (7, 8))
    for bad, words_of_error in (
        (request("x", (7, 64)), "outside the vocabulary"),
        (request("x", (-1,)), "outside the vocabulary"),
        (request("x", ()), "empty context"),
        (request("x", (7,), max_turn_tokens=0), "max_turn_tokens"),
        (fine, "twice"),
    ):
        with pytest.raises(PolicyError, match=words_of_error):
            engine.sample([fine, bad])
    with pytest.raises(PolicyError, match="9 new sessions, 8 of 8"):
        engine.sample([request(f"s{i}", (7, 8)) for i in range(9)])
    assert engine.stats()["live_sessions"] == 0
    with pytest.raises(PolicyError, match="load"):
        JaxEngine(new_params(0)[0], CONFIG, slots=2, max_length=9).sample([fine])
    assert engine.sample([]) == []


def test_more_prefixes_than_rows_falls_back_to_whole_contexts(engine):
    before = engine.stats()["unshared_sessions"]
    asked = [request(f"s{i}", (i + 6,) * 40 + (9,), i, prefix=40) for i in range(3)]
    for one, output in zip(asked, engine.sample(asked), strict=True):
        expect_logprobs(one, output)
    assert engine.stats()["unshared_sessions"] == before + 1
    engine.release("s0")
    engine.sample([request("s3", (61,) * 40 + (9,), prefix=40)])
    assert engine.stats()["unshared_sessions"] == before + 1, "the idle prefix made room"


def test_compiled_programs_are_bounded(shared):
    """Lengths, row numbers, seeds and budgets are runtime values: once the few shapes are compiled, nothing
    compiles again."""
    counts = []
    for shift in (0, 5):
        for n in (1, 3, 8):
            asked = [
                request(f"{i}", words(RNG, 2 + i + shift), i, max_turn_tokens=3 + i)
                for i in range(n - shift // 5)
            ]
            for one, output in zip(asked, shared.sample(asked), strict=True):
                expect_logprobs(one, output)
                shared.release(one.session_id)
        counts.append(shared.stats()["compiles"])
    assert counts[0] == counts[1]
    # prefill and decode × 2 batch sizes × 2 cache widths × (with, without prefix); decode once more with
    # top-k/top-p
    assert counts[1] <= 16 + 8
