"""Checkpoints of many files: read piece by piece onto a mesh, written in shards, bit-equal in bfloat16."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.export_hf import export_hf
from autoforge_jax.model.hf_files import INDEX, HFTensors, shard_names, shard_plan
from autoforge_jax.model.load_hf import hf_shapes, load_hf
from autoforge_jax.model.qwen3 import Qwen3
from tests.autoforge_jax.mock_learner import leaves

ROOT = Path(__file__).resolve().parents[2]
DENSE = Qwen3Config(
    vocab_size=40, num_layers=3, hidden_size=16, intermediate_size=24, head_dim=8, dtype="bfloat16",
    tie_embeddings=False,
)  # fmt: skip
MIXTURE = dataclasses.replace(DENSE, experts=Experts(count=4, per_token=2, width=8), tie_embeddings=True)


def rounded(config: Qwen3Config) -> nnx.State:
    """Float32 masters of a model whose numbers all fit bfloat16."""
    params = nnx.split(Qwen3(config, rngs=nnx.Rngs(3)), nnx.Param)[1]
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)


def bits(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes, whatever the files."""
    found = {k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()}
    assert {str(value.dtype) for value in found.values()} == {"bfloat16"}
    return {name: value.tobytes() for name, value in found.items()}


@pytest.mark.parametrize("config", [DENSE, MIXTURE], ids=["dense", "experts"])
def test_bfloat16_shards_in_and_out_are_bit_equal(config: Qwen3Config, tmp_path: Path) -> None:
    params = rounded(config)
    first = export_hf(tmp_path / "a", params, config, dtype="bfloat16", shard_bytes=3000)
    index = json.loads((first / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3 and files[0].endswith(f"-of-{len(files):05d}.safetensors")
    assert sorted(p.name for p in first.glob("*.safetensors")) == files
    assert set(index["weight_map"]) == set(hf_shapes(config))
    assert index["metadata"]["total_size"] == 2 * config.num_parameters
    assert json.loads((first / "config.json").read_text())["dtype"] == "bfloat16"
    back = load_hf(first)
    for a, b in zip(leaves(back), leaves(params), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b)
    second = export_hf(tmp_path / "b", back, config, dtype="bfloat16")
    assert [p.name for p in second.glob("*.safetensors")] == ["model.safetensors"]
    assert bits(first) == bits(second)


def test_frozen_weights_are_read_in_the_type_asked_for(tmp_path: Path) -> None:
    folder = export_hf(tmp_path / "a", rounded(DENSE), DENSE, dtype="bfloat16")
    frozen = load_hf(folder, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(frozen)} == {jnp.dtype(jnp.bfloat16)}
    for a, b in zip(leaves(frozen), leaves(rounded(DENSE)), strict=True):
        np.testing.assert_array_equal(a.astype(np.float32), b)


def test_what_is_wrong_with_the_files_is_said(tmp_path: Path) -> None:
    folder = export_hf(tmp_path / "a", rounded(DENSE), DENSE, dtype="bfloat16", shard_bytes=6000)
    files = sorted(folder.glob("*.safetensors"))
    content = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(WeightsError, match=rf"1 of {len(files)} files are missing, first {files[1].name}"):
        load_hf(folder)
    files[1].write_bytes(content[:-10])
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        load_hf(folder)
    files[1].write_bytes(content)
    (folder / INDEX).write_text('{"weight_map": []}')
    with pytest.raises(WeightsError, match="not a safetensors index"):
        load_hf(folder)
    (folder / INDEX).unlink()
    load_hf(folder)
    save_file({"model.norm.weight": np.ones(16, np.float32)}, folder / "zz.safetensors")
    with pytest.raises(WeightsError, match="stands in more than one file"):
        load_hf(folder)
    save_file({"scale": np.ones(2, np.int32)}, folder / "zz.safetensors")
    with pytest.raises(WeightsError, match="scale is int32"), HFTensors(folder):
        pass


def test_shards_hold_at_most_their_limit_but_for_a_tensor_that_is_larger() -> None:
    sizes = {"a": 4, "b": 5, "c": 20, "d": 1, "e": 9}
    assert shard_plan(sizes, 10) == [["a", "b"], ["c"], ["d", "e"]]
    assert shard_names(1) == ["model.safetensors"]
    assert shard_names(2) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What hf_memory_case.py measures on 8 devices."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.autoforge_jax.hf_memory_case", str(tmp_path_factory.mktemp("hf"))],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_host_never_holds_the_model_beside_what_its_devices_hold(facts: dict[str, Any]) -> None:
    assert facts["files"] > 15 and facts["equal"] and facts["shares"] == [1 / 8]
    # devices: all of the model in float32; beside it at most two of the largest parameter's size at once
    beside = facts["peak_mb"] - facts["devices_mb"]
    assert facts["devices_mb"] > 150 and beside < 2 * facts["largest_mb"] + 25
    # what reading everything first would take, which the bound must be able to see
    assert 2 * facts["largest_mb"] + 25 < 0.7 * facts["devices_mb"]
