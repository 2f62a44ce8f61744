"""Our Qwen3 and Llama against transformers' numbers (tests/golden) and against itself where the numbers
must not change."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from autoforge_jax.config import ModelConfig
from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.qwen3 import Qwen3, embed, forward, parameter_shapes, unembedding, weights_of
from autoforge_jax.model.sharding import LOGICAL_AXES

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TINY = Qwen3Config(
    vocab_size=50,
    num_layers=2,
    hidden_size=16,
    intermediate_size=24,
    head_dim=8,
    attention_chunk=8,
    max_position=64,
)


def golden_folder(name: str, tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The golden file as a Hugging Face folder, and what it says must come out."""
    path = GOLDEN / f"{name}.safetensors"
    tensors = load_file(path)
    with safe_open(path, framework="np") as file:
        (tmp_path / "config.json").write_text(file.metadata()["config"])
    weights = {k.removeprefix("weights."): v for k, v in tensors.items() if k.startswith("weights.")}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path, tensors


@pytest.mark.parametrize(
    "name",
    [
        *("qwen3_tied", "qwen3_untied", "qwen3_wide_heads", "qwen3_moe", "qwen3_moe_unnormalised"),
        *("llama_smollm2", "llama_llama3", "llama_linear"),
    ],
)
def test_equals_transformers_at_every_depth(name, tmp_path):
    folder, golden = golden_folder(name, tmp_path)
    config = Qwen3Config.from_hf(json.loads((folder / "config.json").read_text()))
    weights = weights_of(load_hf(folder, config))
    one_layer = {**weights, "layers": jax.tree.map(lambda x: x[:1], weights["layers"])}
    # norms of one leave only the division by the rms, which the middle state is compared after
    one_layer["final_norm"] = jnp.ones_like(weights["final_norm"])
    segments = np.full_like(golden["tokens"], 2)

    def run(weights, tokens, positions, segments):
        hidden = forward(weights, config, tokens, positions, segments)
        return hidden, hidden @ unembedding(weights).T

    inputs = golden["tokens"], golden["positions"], segments
    hidden, logits = jax.jit(run)(weights, *inputs)
    middle, _ = jax.jit(run)(one_layer, *inputs)
    expected_middle = golden["hidden_middle"].astype(np.float64)
    expected_middle /= np.sqrt((expected_middle**2).mean(-1, keepdims=True) + config.rms_norm_eps)
    np.testing.assert_allclose(embed(weights, golden["tokens"], config), golden["hidden_first"], atol=0)
    np.testing.assert_allclose(middle, expected_middle, atol=2e-5)
    np.testing.assert_allclose(hidden, golden["hidden_last"], atol=2e-5)
    np.testing.assert_allclose(logits, golden["logits"], atol=2e-5)


def test_equals_live_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tree = {**TINY.to_hf(), "initializer_range": 0.2}
    hf = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**tree)).eval()
    tokens = torch.randint(0, TINY.vocab_size, (2, 20))
    with torch.no_grad():
        expected = hf(input_ids=tokens).logits.numpy()
    from autoforge_jax.model.load_hf import LAYER_NAMES, TOP_NAMES

    state = {k: jnp.asarray(v.numpy()) for k, v in hf.state_dict().items()}
    weights = {ours: state[theirs] for ours, theirs in TOP_NAMES.items() if ours in parameter_shapes(TINY)}
    weights["layers"] = {
        ours: jnp.stack(
            [state[f"model.layers.{i}.{n}"].T if t else state[f"model.layers.{i}.{n}"] for i in range(2)]
        )
        for ours, (n, t) in LAYER_NAMES.items()
    }
    positions = np.broadcast_to(np.arange(20, dtype=np.int32), (2, 20))
    segments = np.full((2, 20), 2, np.int32)
    hidden = forward(weights, TINY, jnp.asarray(tokens.numpy(), jnp.int32), positions, segments)
    np.testing.assert_allclose(hidden @ unembedding(weights).T, expected, atol=2e-5)


@pytest.fixture(scope="module")
def model():
    return Qwen3(TINY, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def run(model):
    graphdef, params = nnx.split(model, nnx.Param)
    jitted = jax.jit(lambda params, *inputs: nnx.merge(graphdef, params)(*inputs))
    return lambda *inputs: np.asarray(jitted(params, *inputs))


def test_shared_prefix_row_equals_separate_rows(run):
    rng = np.random.default_rng(0)
    prefix, samples = rng.integers(0, 50, 6), [rng.integers(0, 50, n) for n in (7, 9)]
    tokens, positions, segments = (np.zeros((3, 24), np.int32) for _ in range(3))
    tokens[0, :22] = np.concatenate([prefix, *samples])
    positions[0, :22] = [*range(6), *range(6, 13), *range(6, 15)]
    segments[0, :22] = [1] * 6 + [2] * 7 + [3] * 9
    for row, sample in enumerate(samples, start=1):
        n = 6 + len(sample)
        tokens[row, :n], positions[row, :n] = np.concatenate([prefix, sample]), np.arange(n)
        segments[row, :n] = 2
    hidden = run(tokens, positions, segments)
    np.testing.assert_allclose(hidden[0, 6:13], hidden[1, 6:13], atol=1e-5)
    np.testing.assert_allclose(hidden[0, 13:22], hidden[2, 6:15], atol=1e-5)
    tokens[0, 22:], tokens[0, 6:13] = (
        7,
        3,
    )  # another first sample and other padding: the second sample must not move
    np.testing.assert_allclose(run(tokens, positions, segments)[0, 13:22], hidden[0, 13:22], atol=0)


def test_gradients_are_finite_with_rows_of_padding_and_reach_every_parameter(model):
    graphdef, params = nnx.split(model, nnx.Param)
    tokens = np.random.default_rng(1).integers(0, 50, (3, 24)).astype(np.int32)
    positions = np.broadcast_to(np.arange(24, dtype=np.int32), (3, 24))
    segments = np.zeros((3, 24), np.int32)
    segments[0], segments[1, :5] = 2, 2

    def loss(params):
        model = nnx.merge(graphdef, params)
        hidden = model(tokens, positions, segments)
        logits = hidden @ model.unembedding().T
        return jnp.sum(jax.nn.log_softmax(logits, axis=-1)[:, :, 0] * (segments > 0).astype(np.float32))

    for path, leaf in jax.tree_util.tree_flatten_with_path(weights_of(jax.jit(jax.grad(loss))(params)))[0]:
        assert np.all(np.isfinite(leaf)), path
        assert np.any(np.asarray(leaf) != 0.0), path


def test_remat_and_chunk_change_nothing(model, run):
    tokens = np.random.default_rng(2).integers(0, 50, (3, 24)).astype(np.int32)
    positions = np.broadcast_to(np.arange(24, dtype=np.int32), (3, 24))
    segments = np.full((3, 24), 2, np.int32)
    weights = weights_of(nnx.state(model, nnx.Param))
    other = dataclasses.replace(TINY, remat=True, attention_chunk=24)
    got = jax.jit(forward, static_argnums=1)(weights, other, tokens, positions, segments)
    np.testing.assert_allclose(got, run(tokens, positions, segments), atol=1e-5)


def test_what_remat_keeps_lies_between_nothing_and_everything_and_gradients_are_the_same(model):
    weights = weights_of(nnx.state(model, nnx.Param))
    tokens = np.random.default_rng(2).integers(0, 50, (3, 24)).astype(np.int32)
    inputs = tokens, np.broadcast_to(np.arange(24, dtype=np.int32), (3, 24)), np.full((3, 24), 2, np.int32)
    kept, gradients = [], []
    for remat, saves in ((True, "nothing"), (True, "products"), (False, "nothing")):
        config = dataclasses.replace(TINY, remat=remat, remat_saves=saves)

        def loss(weights, config=config):
            return jnp.sum(jnp.sin(forward(weights, config, *inputs)))

        residuals = jax.eval_shape(lambda w, loss=loss: jax.vjp(loss, w)[1], weights)
        kept.append(sum(leaf.size for leaf in jax.tree.leaves(residuals)))
        gradients.append(jax.tree.leaves(jax.jit(jax.grad(loss))(weights)))
    assert kept[0] < kept[1] < kept[2]
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)


def test_parameter_table_count_and_axes_agree(model):
    for config in (TINY, dataclasses.replace(TINY, tie_embeddings=False)):
        shapes = parameter_shapes(config)
        assert sum(int(np.prod(s)) for s in shapes.values()) == config.num_parameters
        assert all(len(LOGICAL_AXES[name]) == len(shape) for name, shape in shapes.items())
        leaves = jax.tree.leaves(
            nnx.eval_shape(lambda c=config: nnx.state(Qwen3(c, rngs=nnx.Rngs(0)), nnx.Param))
        )
        assert sorted(leaf.shape for leaf in leaves) == sorted(shapes.values())
    # by hand: 50·16 + 2·(2·16·32 + 2·16·16 + 3·16·24 + 2·16 + 2·8) + 16
    assert TINY.num_parameters == 800 + 2 * (1024 + 512 + 1152 + 32 + 16) + 16


def test_config_round_trip_and_refusals():
    assert Qwen3Config.from_hf(TINY.to_hf()) == dataclasses.replace(TINY, attention_chunk=128)
    section = ModelConfig(rope_theta=5e5, num_layers=3)
    assert Qwen3Config.from_model_config(section, 77).vocab_size == 77
    assert Qwen3Config.from_hf(Qwen3Config.from_model_config(section, 77).to_hf()).rope_theta == 5e5
    older = {k: v for k, v in TINY.to_hf().items() if k not in ("rope_parameters", "dtype")}
    assert Qwen3Config.from_hf(older).rope_theta == 10_000.0
    for change, word in (
        ({"model_type": "mistral"}, "model_type"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ):
        with pytest.raises(WeightsError, match=word):
            Qwen3Config.from_hf({**TINY.to_hf(), **change})
    missing = {k: v for k, v in TINY.to_hf().items() if k != "hidden_size"}
    with pytest.raises(WeightsError, match="hidden_size"):
        Qwen3Config.from_hf(missing)
    with pytest.raises(WeightsError, match="multiple"):
        dataclasses.replace(TINY, num_heads=3)


def test_initial_scales_do_what_they_say():
    plain = weights_of(nnx.state(Qwen3(TINY, rngs=nnx.Rngs(3)), nnx.Param))
    chosen = dataclasses.replace(TINY, residual_init=0.0, qk_norm_init=1.5)
    model = Qwen3(chosen, rngs=nnx.Rngs(3))
    scaled = weights_of(nnx.state(model, nnx.Param))
    for name in ("output", "down"):
        assert np.any(np.asarray(plain["layers"][name])) and not np.any(np.asarray(scaled["layers"][name]))
    for name in ("query_norm", "key_norm"):
        np.testing.assert_array_equal(scaled["layers"][name], 1.5)
        np.testing.assert_array_equal(plain["layers"][name], 1.0)
    np.testing.assert_array_equal(scaled["layers"]["query"], plain["layers"]["query"])
    # every block is the identity at first: the hidden state is the normed embedding, whatever the context
    tokens = np.array([[1, 2, 3]], np.int32)
    hidden = model(tokens, np.array([[0, 1, 2]], np.int32), np.full((1, 3), 2, np.int32))
    rows = np.asarray(scaled["embedding"])[tokens[0]]
    expected = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + TINY.rms_norm_eps)
    np.testing.assert_allclose(np.asarray(hidden)[0], expected, rtol=1e-5)
