"""The Llama family: what differs from Qwen3 (parity at every depth: test_qwen3)."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from autoforge_jax.config import ModelConfig, parse_config
from autoforge_jax.errors import ConfigError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.export_hf import export_hf
from autoforge_jax.model.hf_config import read_hf_config
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.qwen3 import Qwen3, forward, parameter_shapes, unembedding, weights_of
from autoforge_jax.model.rope import RopeScaling, rope_frequencies
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.types import SampleRequest, SamplingParams

SCALING = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
TINY = Qwen3Config(
    vocab_size=50,
    num_layers=2,
    hidden_size=24,
    intermediate_size=32,
    num_heads=3,
    num_kv_heads=1,
    head_dim=8,
    architecture="llama",
    rope_scaling=SCALING,
)
LENGTH = 96


def parameters():
    return nnx.split(Qwen3(TINY, rngs=nnx.Rngs(3)), nnx.Param)


def test_no_query_and_key_norms_and_a_count_by_hand():
    assert not [name for name in parameter_shapes(TINY) if name.endswith(("query_norm", "key_norm"))]
    # 50·24 + 2·(2·24·24 + 2·24·8 + 3·24·32 + 2·24) + 24
    assert TINY.num_parameters == 1200 + 2 * (1152 + 384 + 2304 + 48) + 24
    assert sum(int(np.prod(shape)) for shape in parameter_shapes(TINY).values()) == TINY.num_parameters
    smollm2 = Qwen3Config(49152, 30, 576, 1536, 9, 3, 64, architecture="llama")
    assert smollm2.num_parameters == 134_515_008  # the published count of SmolLM2-135M


@pytest.mark.parametrize(
    "scaling", [SCALING, RopeScaling("linear", 4.0), None], ids=["llama3", "linear", "no"]
)
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip_is_bit_equal(scaling, tied, tmp_path):
    config = dataclasses.replace(TINY, rope_scaling=scaling, tie_embeddings=tied)
    params = nnx.split(Qwen3(config, rngs=nnx.Rngs(3)), nnx.Param)[1]
    folder = export_hf(tmp_path / "model", params, config)
    assert read_hf_config(folder) == config
    for a, b in zip(jax.tree.leaves(load_hf(folder)), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not [
        name for name in load_file(folder / "model.safetensors") if "_norm.weight" in name and "attn" in name
    ]


def test_exported_folder_equals_live_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    _, params = parameters()
    folder = export_hf(tmp_path / "model", params, TINY)
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    tokens = np.random.default_rng(0).integers(0, 50, (2, LENGTH))
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(tokens)).logits.numpy()
    weights = weights_of(params)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)
    hidden = forward(weights, TINY, tokens.astype(np.int32), positions, np.full(tokens.shape, 2, np.int32))
    np.testing.assert_allclose(hidden @ unembedding(weights).T, expected, atol=2e-5)


@jax.jit
def _logprobs(weights, tokens):
    """[T, V] of one row."""
    positions = np.arange(LENGTH, dtype=np.int32)[None]
    hidden = forward(weights, TINY, tokens[None], positions, np.full((1, LENGTH), 2, np.int32))[0]
    return jax.nn.log_softmax(hidden @ unembedding(weights).T, axis=-1)


def test_engine_logprobs_equal_a_full_pass():
    graphdef, params = parameters()
    engine = JaxEngine(graphdef, TINY, slots=4, max_length=LENGTH, pad_id=0, prefixes=1)
    engine.load(params, version=1)
    rng = np.random.default_rng(1)
    prefix = tuple(rng.integers(1, 50, 30).tolist())
    contexts = [prefix + tuple(rng.integers(1, 50, n).tolist()) for n in (4, 11, 7)]
    for turn in range(2):  # the second turn reads what the first left in the cache
        requests = [
            SampleRequest(
                str(i), ids, SamplingParams(max_turn_tokens=9), seed=10 * turn + i, prefix_length=30
            )
            for i, ids in enumerate(contexts)
        ]
        for i, (request, out) in enumerate(zip(requests, engine.sample(requests), strict=True)):
            ids = request.token_ids + out.token_ids
            row = np.zeros(LENGTH, np.int32)
            row[: len(ids)] = ids
            table = np.asarray(_logprobs(weights_of(params), row))
            at = np.arange(len(request.token_ids), len(ids))
            np.testing.assert_allclose(out.logprobs, table[at - 1, row[at]], atol=2e-5)
            contexts[i] = (*ids, 3, 4)


def test_llama3_frequencies_by_hand():
    # theta 10^4 and head_dim 4: frequencies 1 and 0.01; 64 positions hold 10.2 and 0.10 waves
    got = rope_frequencies(4, 1e4, SCALING)
    np.testing.assert_allclose(got, [1.0, 0.01 / 8], rtol=1e-6)
    # 628 positions of 0.01 radians hold one wave too many for low 0.5 and one too few for high 1.5: half way
    middle = RopeScaling("llama3", 8.0, 0.5, 1.5, 628)
    np.testing.assert_allclose(rope_frequencies(4, 1e4, middle)[1], (0.01 + 0.01 / 8) / 2, rtol=1e-3)
    np.testing.assert_allclose(
        rope_frequencies(4, 1e4, RopeScaling("linear", 4.0)), [0.25, 0.0025], rtol=1e-6
    )


def test_older_spelling_and_refusals():
    tree = TINY.to_hf()
    older = {k: v for k, v in tree.items() if k not in ("rope_parameters", "dtype", "head_dim")}
    older["rope_scaling"] = {k: v for k, v in tree["rope_scaling"].items() if k != "rope_theta"}
    assert Qwen3Config.from_hf(older) == TINY
    for change, word in (
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "at least 1"),
    ):
        with pytest.raises(WeightsError, match=word):
            Qwen3Config.from_hf({**tree, **change})


def test_another_family_or_scaling_than_expected_is_refused(tmp_path):
    _, params = parameters()
    folder = export_hf(tmp_path / "model", params, TINY)
    with pytest.raises(WeightsError, match="rope_scaling"):
        load_hf(folder, dataclasses.replace(TINY, rope_scaling=None))
    with pytest.raises(WeightsError, match="architecture"):
        load_hf(folder, dataclasses.replace(TINY, architecture="qwen3"))
    tree = json.loads((folder / "config.json").read_text())
    assert (tree["model_type"], tree["architectures"]) == ("llama", ["LlamaForCausalLM"])


def test_config_key():
    config = parse_config({"model": {"architecture": "llama"}})
    assert Qwen3Config.from_model_config(config.model, 300).architecture == "llama"
    assert ModelConfig().architecture == "qwen3"
    with pytest.raises(ConfigError, match="query and key norms"):
        parse_config({"model": {"architecture": "llama", "init": "retrieval"}})
    with pytest.raises(ConfigError, match="'qwen3' or 'llama'"):
        parse_config({"model": {"architecture": "mamba"}})
