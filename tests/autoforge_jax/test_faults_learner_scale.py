"""Faults that this field keeps making with learners at scale, by their numbers in the project's list."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from autoforge_jax.config import BatchConfig
from autoforge_jax.data.batch import pack
from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.export_hf import export_hf
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.qwen3 import Qwen3, weights_of
from autoforge_jax.plan.memory import abstract_batch
from autoforge_jax.train.forward import forward_of
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.state import init_state
from autoforge_jax.train.step import TrainStep, make_train_step
from autoforge_jax.train.throughput import model_flops, throughput, work_of
from tests.autoforge_jax.mock_learner import OPTIMIZER, VOCABULARY, leaves, sample

MODEL = Qwen3Config(
    vocab_size=VOCABULARY,
    num_layers=2,
    hidden_size=16,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)


def learner(config: Qwen3Config, chunk: int = 8) -> tuple[TrainStep, Any]:
    """A step, and the parameters' shapes."""
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))), nnx.Param)
    step = make_train_step(forward_of(graphdef), OPTIMIZER, SupervisedObjective(), chunk_size=chunk)
    return step, shapes


def array_sizes(text: str) -> list[int]:
    """Elements of every array in a lowered program."""
    shapes = re.findall(r"tensor<((?:\d+x)+)", text)
    return [int(np.prod([int(n) for n in dims.rstrip("x").split("x")])) for dims in shapes]


# 24. Full [B, T, vocab] logits; naive chunking 13 times slower.
def test_24_no_array_of_tokens_times_vocabulary_and_chunks_without_a_token_are_skipped() -> None:
    config = dataclasses.replace(MODEL, vocab_size=4096)
    step, shapes = learner(config, chunk=16)
    rows, length = 4, 64
    from autoforge_jax.config import parse_config
    from autoforge_jax.plan.batch import batch_plan

    plan = batch_plan(
        parse_config(
            {
                "batch": {"row_tokens": length, "rows_per_microbatch": rows},
                "rollout": {"max_trajectory_tokens": length},
            }
        )
    )
    text = step.lower(shapes, abstract_batch(plan, rows, 0)).as_text()
    largest = max(array_sizes(text))
    assert largest < rows * length * config.vocab_size / 4, "logits of all tokens exist"
    assert largest == config.vocab_size * config.hidden_size == 16 * config.vocab_size, (
        "a chunk, and the table"
    )
    # the cost of the output matrix follows the tokens that are asked for: a chunk without one is a branch
    assert text.count("stablehlo.case") + text.count("stablehlo.if") >= 2


# 25. Recompiles: a shape per batch, the log-prob path too.
def test_25_a_ragged_stream_compiles_once_for_updates_and_once_for_reference_logprobs() -> None:
    from autoforge_jax.train.logprob_pass import ReferenceLogprobs

    graphdef, params = nnx.split(Qwen3(MODEL, rngs=nnx.Rngs(0)), nnx.Param)
    calls = 0
    inner = forward_of(graphdef)

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return inner(*arguments)

    step = make_train_step(inner, OPTIMIZER, SupervisedObjective(), chunk_size=16)
    reference = ReferenceLogprobs(counted, params, 1.0, chunk_size=16)
    state = init_state(params, OPTIMIZER)
    config = BatchConfig(row_tokens=32, rows_per_microbatch=2)
    rng = np.random.default_rng(0)
    seen: list[int] = []
    for number in range(8):  # other lengths and numbers of samples, rows and micro-batches each time
        some = [sample(10 * number + i, int(rng.integers(4, 26))) for i in range(int(rng.integers(1, 9)))]
        batches = reference(pack(some, config, 0))
        state, _ = step(state, batches)
        seen.append(step.compile_count)
    assert len({len(pack([sample(i, 20) for i in range(n)], config, 0)) for n in (1, 8)}) == 2
    assert seen == [2] * 8, "a program was traced again after the first step"
    assert calls == 1, "the log-prob path was traced again"


# 29. HF import/export: tied embeddings, q/k norm, MoE layout, vocabulary padding.
@pytest.mark.parametrize(
    "config",
    [
        MODEL,
        dataclasses.replace(MODEL, tie_embeddings=False),
        dataclasses.replace(MODEL, experts=Experts(count=3, per_token=2, width=8)),
    ],
    ids=["tied", "untied", "experts"],
)
def test_29_every_tensor_comes_back_where_it_was(config: Qwen3Config, tmp_path: Path) -> None:
    params = nnx.split(Qwen3(config, rngs=nnx.Rngs(1)), nnx.Param)[1]
    # no two numbers of the model are alike, norms included: a swap of any two arrays or axes shows
    start = 0
    numbered: list[jax.Array] = []
    for leaf in jax.tree.leaves(params):
        numbered.append(jnp.arange(start, start + leaf.size, dtype=jnp.float32).reshape(leaf.shape))
        start += leaf.size
    params = jax.tree.unflatten(jax.tree.structure(params), numbered)
    folder = export_hf(tmp_path / "m", params, config)
    back = load_hf(folder, config)
    for a, b in zip(leaves(back), leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    names = json.loads((folder / "config.json").read_text())
    assert names["tie_word_embeddings"] == config.tie_embeddings
    with pytest.raises(WeightsError, match="tie_embeddings"):
        load_hf(folder, dataclasses.replace(config, tie_embeddings=not config.tie_embeddings))


def test_29_a_padded_vocabulary_is_an_error_and_never_cut(tmp_path: Path) -> None:
    params = nnx.split(Qwen3(MODEL, rngs=nnx.Rngs(1)), nnx.Param)[1]
    folder = export_hf(tmp_path / "m", params, MODEL)
    padded = dataclasses.replace(MODEL, vocab_size=VOCABULARY + 8)
    with pytest.raises(WeightsError, match=rf"embed_tokens.weight has shape \({VOCABULARY}, 16\)"):
        load_hf(folder, padded)
    # norms of queries and keys differ from head to head only by position: they must not be swapped
    weights = weights_of(load_hf(folder))
    assert weights["layers"]["query_norm"].shape == weights["layers"]["key_norm"].shape == (2, 8)


# 31. MFU or TFLOP/s computed without sequence length, counting remat, or counting padding.
def test_31_mfu_knows_sequence_length_ignores_remat_and_useful_mfu_ignores_padding() -> None:
    longer = model_flops(MODEL, 64, 64 * 65 // 2, 64) - model_flops(MODEL, 64, 2 * 32 * 33 // 2, 64)
    assert longer == 12 * 2 * 8 * 2 * (2080 - 1056), "one row of 64 costs more than two of 32"
    again = dataclasses.replace(MODEL, remat=True)
    assert model_flops(again, 64, 100, 5) == model_flops(MODEL, 64, 100, 5)
    few = [sample(0, 10)]
    narrow = work_of(pack(few, BatchConfig(row_tokens=16, rows_per_microbatch=1), 0))
    wide = work_of(pack(few, BatchConfig(row_tokens=64, rows_per_microbatch=4), 0))
    slow, fast = (throughput(work, MODEL, 1.0, 1e9) for work in (wide, narrow))
    assert slow["useful_mfu"] == fast["useful_mfu"] and slow["mfu"] > 10 * fast["mfu"]
    assert fast["useful_mfu"] < fast["mfu"], "the row has one token of padding"
