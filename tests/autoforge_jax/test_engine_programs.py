"""The embedded engine's programs for platforms that are not here: they sample the same, and the compiler does
with the store what it is meant to."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from autoforge_jax.compilation import compiling_for
from autoforge_jax.model.cached import new_store
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3
from autoforge_jax.model.sharding import MESH_AXES, Layout, device_mesh
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.engine_layout import ENGINE_RULES
from autoforge_jax.rollout.engine_programs import engine_programs
from autoforge_jax.rollout.engine_rows import BLOCK, EngineSize
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams

CONFIG = Qwen3Config(
    vocab_size=64, num_layers=2, hidden_size=16, intermediate_size=24, num_heads=4, num_kv_heads=2, head_dim=8
)
SIZE = EngineSize(slots=6, max_length=100, prefixes=2, prefix_tokens=20)


def layout_of(devices: list[Any]) -> Layout:
    """`tensor` over all of them."""
    shape = tuple(len(devices) if axis == "tensor" else 1 for axis in MESH_AXES)
    return Layout(device_mesh(shape, devices), tuple(ENGINE_RULES.items()))


def two_turns(config: Qwen3Config) -> list[SampleOutput]:
    """Of six sessions, four of which share a prefix, with every kind of sampling."""
    graphdef, params = nnx.split(Qwen3(config, rngs=nnx.Rngs(0)), nnx.Param)
    engine = JaxEngine(
        graphdef,
        config,
        slots=SIZE.slots,
        max_length=SIZE.max_length,
        prefixes=SIZE.prefixes,
        prefix_tokens=SIZE.prefix_tokens,
    )
    engine.load(params, 1)
    chance = np.random.default_rng(0)
    prefix = tuple(chance.integers(0, 64, 20).tolist())
    contexts = {n: (*prefix[: 20 * (n < 4)], *chance.integers(0, 64, 2 + 7 * n).tolist()) for n in range(6)}
    outputs: list[SampleOutput] = []
    for turn, longest in enumerate((BLOCK + 3, 8)):
        settings = [
            SamplingParams(
                max_turn_tokens=longest - n,
                temperature=float(n > 0),
                **({"top_k": 9} if turn == 1 and n == 2 else {}),
            )
            for n in range(6)
        ]
        asked = [
            SampleRequest(str(n), ids, settings[n], 10 * turn + n, 20 * (n < 4))
            for n, ids in contexts.items()
        ]
        found = engine.sample(asked)
        contexts = {n: (*ids, *found[n].token_ids, 3) for n, ids in contexts.items()}
        outputs += found
    return outputs


@pytest.mark.parametrize("heads", [4, 2], ids=["two heads share keys", "each head its own keys"])
def test_what_is_traced_for_a_tpu_samples_the_same(heads: int) -> None:
    config = replace(CONFIG, num_heads=heads)
    here = two_turns(config)
    with compiling_for("tpu"):
        there = two_turns(config)
    for one, other in zip(here, there, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


def test_a_store_row_holds_a_context_and_a_block_and_on_a_tpu_whole_lanes() -> None:
    assert SIZE.capacity == 100 + 32
    with compiling_for("tpu"):
        assert SIZE.capacity == 256
        assert EngineSize(slots=1, max_length=224, prefixes=0).capacity == 256
        assert EngineSize(slots=1, max_length=225, prefixes=0).capacity == 384


def test_programs_are_lowered_without_arrays_and_write_into_the_store_they_are_given() -> None:
    programs = engine_programs(CONFIG, SIZE, layout_of(jax.devices()[:1]))
    assert set(programs) == {"prefill", "decode", "decode, filtered"}
    store: Any = jax.eval_shape(lambda: new_store(CONFIG, SIZE.store_rows, SIZE.capacity))
    size = sum(part.size * part.dtype.itemsize for part in store)
    for name in ("prefill", "decode"):
        memory = programs[name].compile().memory_analysis()
        assert memory.alias_size_in_bytes == size


@pytest.fixture
def no_cache() -> Iterator[None]:
    """Programs for chips that are not here cannot be read back from the cache that tests share."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@pytest.mark.usefixtures("no_cache")
def test_libtpu_leaves_store_and_weights_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """On four chips that need not be here: no copy of the store, no cache or weights in float32, and of
    collectives two a layer, one to look up an embedding, one exchange before the draw and two after it."""
    pytest.importorskip("libtpu")
    from jax.experimental import topologies

    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, "1")
    chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    config = Qwen3Config(
        vocab_size=4096, num_layers=3, hidden_size=512, intermediate_size=1024,
        num_heads=16, num_kv_heads=8, head_dim=128, dtype="bfloat16",
    )  # fmt: skip
    size = EngineSize(slots=4, max_length=1000, prefixes=4, prefix_tokens=200)
    with compiling_for("tpu"):
        programs = engine_programs(config, size, layout_of(list(chips)))
        capacity = size.capacity
    expected = {
        "prefill": {"all-reduce": 2 + 1},  # one layer stands for all of them
        "decode": {"all-reduce": 2 * 3 + 1 + 2, "all-to-all": 1},
    }
    for name, collectives in expected.items():
        text = programs[name].compile().as_text() or ""
        assert not re.findall(rf"= \w+\[3,9,2,(?:128,{capacity}|{capacity},128)\]\S* (?:copy|convert)", text)
        assert not re.findall(r"= f32\[8,2,(?:128,1024|1024,128)\]", text), "a cache in float32"
        found = re.findall(
            r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(", text
        )
        assert Counter(found) == collectives
