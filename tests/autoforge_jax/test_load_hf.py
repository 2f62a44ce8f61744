"""Hugging Face folders in and out: bit-equal round trip, and every misfit named."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.export_hf import export_hf
from autoforge_jax.model.hf_config import read_hf_config
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.qwen3 import Qwen3, weights_of

TIED = Qwen3Config(vocab_size=40, num_layers=2, hidden_size=16, intermediate_size=24, head_dim=8)
UNTIED = dataclasses.replace(TIED, tie_embeddings=False, num_kv_heads=1)


def parameters(config):
    return nnx.split(Qwen3(config, rngs=nnx.Rngs(3)), nnx.Param)[1]


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_round_trip_is_bit_equal(config, tmp_path):
    params = parameters(config)
    files = {"tokenizer.json": b"{}", "chat_template.jinja": "ü".encode()}
    folder = export_hf(tmp_path / "model", params, config, files, {"eos_token_id": 3, "pad_token_id": 3})
    assert read_hf_config(folder) == config
    back = load_hf(folder, config)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    stored = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in stored) == (not config.tie_embeddings)
    query = np.asarray(weights_of(params)["layers"]["query"])
    np.testing.assert_array_equal(stored["model.layers.1.self_attn.q_proj.weight"], query[1].T)
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == "ü"
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["model"], "no temporary folder stays behind"


def test_export_replaces_whole_folders_and_refuses_what_does_not_fit(tmp_path):
    folder = export_hf(tmp_path / "model", parameters(TIED), TIED, {"old.json": b"1"})
    export_hf(folder, parameters(TIED), TIED, {"new.json": b"2"})
    assert not (folder / "old.json").exists()
    with pytest.raises(WeightsError, match=r"o_proj.*shape"):
        export_hf(folder, parameters(TIED), dataclasses.replace(TIED, num_heads=2))
    with pytest.raises(WeightsError, match=r"config\.json"):
        export_hf(folder, parameters(TIED), TIED, {"config.json": b"{}"})
    with pytest.raises(WeightsError, match="leave the folder"):
        export_hf(folder, parameters(TIED), TIED, {"../x.json": b"{}"})
    assert (folder / "new.json").read_bytes() == b"2", "a refused export leaves the old folder alone"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def change(folder, **edits):
    """Set (array) or remove (None) tensors of an exported folder."""
    tensors = load_file(folder / "model.safetensors")
    for name, value in edits.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def folder(tmp_path):
    return export_hf(tmp_path / "model", parameters(TIED), TIED)


def test_misfits_are_named(folder):
    name = "model.layers.1.self_attn.k_norm.weight"
    original = load_file(folder / "model.safetensors")[name]
    for value, words in (
        (None, f"missing tensors.*{name}"),
        (np.ones(5, np.float32), f"{name} has shape"),
        (np.ones(8, np.int8), f"{name} is int8"),
    ):
        change(folder, **{name: value})
        with pytest.raises(WeightsError, match=words):
            load_hf(folder, TIED)
    change(folder, **{name: original, "model.layers.2.mlp.up_proj.weight": original})
    with pytest.raises(WeightsError, match=r"unknown tensors.*layers\.2"):
        load_hf(folder, TIED)


def test_config_that_disagrees_with_the_folder_is_refused(folder):
    with pytest.raises(WeightsError, match="rope_theta"):
        load_hf(folder, dataclasses.replace(TIED, rope_theta=1e6))
    with pytest.raises(WeightsError, match="tie_embeddings"):
        load_hf(folder, dataclasses.replace(TIED, tie_embeddings=False))
    with pytest.raises(WeightsError, match="embed_tokens"):
        load_hf(folder, dataclasses.replace(TIED, vocab_size=41))


def test_tied_copy_is_accepted_only_when_equal(folder):
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change(folder, **{"lm_head.weight": embedding})
    load_hf(folder, TIED)
    change(folder, **{"lm_head.weight": embedding + 1})
    with pytest.raises(WeightsError, match="tied"):
        load_hf(folder, TIED)


def test_half_precision_files_are_widened(folder):
    name = "model.norm.weight"
    change(folder, **{name: np.full(16, 0.1, np.float16)})
    value = weights_of(load_hf(folder))["final_norm"]
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, np.full(16, np.float16(0.1), np.float32))


def test_broken_folders(tmp_path, folder):
    with pytest.raises(WeightsError, match="does not exist"):
        load_hf(tmp_path / "nowhere")
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json")
    with pytest.raises(WeightsError, match="not a readable safetensors"):
        load_hf(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        load_hf(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(WeightsError, match="expected an object"):
        load_hf(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="not JSON"):
        load_hf(folder)
