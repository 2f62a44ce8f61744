"""Meshes: the rules table, and that every mesh computes what one device computes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from autoforge_jax.config import MeshConfig, OptimizerConfig, load_config
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.fit import check_mesh
from autoforge_jax.model.qwen3 import parameter_shapes
from autoforge_jax.model.sharding import (
    LOGICAL_AXES,
    MESH_AXES,
    RULES,
    Layout,
    active_layout,
    constrain,
    device_mesh,
    make_layout,
    over_rows,
    path_name,
    row_axes,
)
from autoforge_jax.train.optimizer import make_optimizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = Qwen3Config(vocab_size=64, num_heads=8, num_kv_heads=4, tie_embeddings=False)


def layout(*, rules: dict[str, tuple[str, ...]] = RULES, sizes: tuple[int, ...] = (2, 4, 2, 1)) -> Layout:
    """A layout of devices that do not exist: enough for specs."""
    abstract = jax.sharding.AbstractMesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    return Layout(abstract, tuple(rules.items()))  # type: ignore[arg-type]


def test_every_parameter_has_named_axes_and_a_spec_by_hand() -> None:
    shapes = parameter_shapes(MODEL)
    assert shapes.keys() <= LOGICAL_AXES.keys()
    specs = {name: layout().spec(name, LOGICAL_AXES[name], shape) for name, shape in shapes.items()}
    assert specs["embedding"] == PartitionSpec(("tensor",), ("fsdp",))
    assert specs["layers/query"] == PartitionSpec(None, ("fsdp",), ("tensor",))
    assert specs["layers/down"] == PartitionSpec(None, ("tensor",), ("fsdp",))
    assert specs["layers/key_norm"] == PartitionSpec(None, None)
    assert layout().spec("tokens", ("rows", None), (16, 5)) == PartitionSpec(("data", "fsdp"), None)
    assert layout(sizes=(1, 1, 2, 1)).spec("x", ("embed", "heads"), (3, 4)) == PartitionSpec(
        None, ("tensor",)
    )


@dataclass(frozen=True)
class Chip:
    """What JAX reads of a TPU's device to order it."""

    id: int
    coords: tuple[int, int, int]
    slice_index: int = 0
    device_kind: str = "TPU v5"
    platform: str = "tpu"
    core_on_chip: int = 0

    @property
    def process_index(self) -> int:
        return self.id // 4


def torus(x: int, y: int, z: int, slices: int = 1, kind: str = "TPU v5") -> list[Chip]:
    places = [(a, b, c) for c in range(z) for b in range(y) for a in range(x)]
    return [
        Chip(number * len(places) + i, place, number, kind)
        for number in range(slices)
        for i, place in enumerate(places)
    ]


def test_a_mesh_axis_may_take_a_part_of_a_physical_one() -> None:
    mesh = device_mesh((1, 8, 1, 8), torus(4, 4, 4))
    assert mesh.devices.shape == (1, 8, 1, 8) and len({d.id for d in mesh.devices.flat}) == 64
    # the chips of an expert group are neighbours: a box of 4 × 2, not a line through the torus
    spans = [len({d.coords[axis] for d in mesh.devices[0, 0, 0]}) for axis in range(3)]
    assert sorted(spans) == [1, 2, 4]


def test_slices_are_spread_over_data_else_over_fsdp() -> None:
    def of_slices(sizes: tuple[int, int, int, int]) -> np.ndarray:
        mesh = device_mesh(sizes, torus(4, 4, 1, slices=2, kind="TPU v5 lite"))
        return np.vectorize(lambda d: d.slice_index)(mesh.devices)

    over_data = of_slices((2, 4, 4, 1))
    assert (over_data[0] == 0).all() and (over_data[1] == 1).all()
    over_fsdp = of_slices((1, 8, 4, 1))
    assert (over_fsdp[:, :4] == 0).all() and (over_fsdp[:, 4:] == 1).all()
    with pytest.raises(ConfigError, match="data is 1 and fsdp 1, but the devices are 2 slices or hosts"):
        of_slices((1, 1, 32, 1))


def test_two_axes_on_one_mesh_axis_are_an_error_that_names_both() -> None:
    rules = RULES | {"mlp": ("fsdp",)}
    with pytest.raises(ConfigError, match=r"layers/gate: axes 'embed' and 'mlp' .* mesh axis 'fsdp'"):
        layout(rules=rules).spec("layers/gate", LOGICAL_AXES["layers/gate"], (4, 128, 384))
    with pytest.raises(ConfigError, match=r"'seq' has no sharding rule; known: .*'heads'"):
        layout().spec("x", ("seq",), (4,))
    with pytest.raises(ConfigError, match=r"'heads' has length 3, which mesh axes tensor = 2 do not divide"):
        layout().spec("x", ("heads",), (3,))


@pytest.mark.parametrize(
    ("mesh", "rows", "message"),
    [
        ({"tensor": 8}, 8, r"mesh.tensor is 8, which does not divide model.num_kv_heads = 4"),
        ({"tensor": 3}, 8, r"mesh.tensor is 3, which does not divide model.num_heads = 8"),
        ({"fsdp": 3}, 9, r"mesh.fsdp is 3, which does not divide model.hidden_size = 128"),
        ({"data": 2, "fsdp": 4}, 12, r"rows_per_microbatch is 12; mesh.data × mesh.fsdp = 8 must divide it"),
        ({"expert": 2}, 8, r"mesh.expert is 2, but this model has no experts"),
    ],
)
def test_a_mesh_that_does_not_fit_says_which_number(mesh: dict[str, int], rows: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_mesh(MeshConfig(**mesh), MODEL, rows)


def test_the_mesh_must_use_the_devices_there_are() -> None:
    assert make_layout(MeshConfig(), MODEL, 3) is None
    count = jax.device_count()
    with pytest.raises(ConfigError, match=rf"tensor 4 × expert 1 is 4 devices, this run has {count}"):
        make_layout(MeshConfig(tensor=4), MODEL, 3)


def test_on_one_device_everything_is_the_identity() -> None:
    x = jax.numpy.ones((2, 3))
    assert active_layout() is None and row_axes() == ()
    assert constrain(x) is x and over_rows(len, (True,)) is len


def test_optimiser_moments_lie_where_their_parameters_do() -> None:
    params = {
        "layers": {"gate": jax.ShapeDtypeStruct((4, 128, 384), np.float32)},
        "embedding": jax.ShapeDtypeStruct((64, 128), np.float32),
    }
    for kind in ("adamw", "muon"):
        optimizer = make_optimizer(OptimizerConfig(kind=kind), 3)
        state = jax.eval_shape(optimizer.init, params)
        shardings = jax.tree.leaves(layout().of_state(state))
        found = {
            path_name(path): sharding.spec
            for (path, _), sharding in zip(
                jax.tree_util.tree_flatten_with_path(state)[0], shardings, strict=True
            )
        }
        moments = {name: spec for name, spec in found.items() if "/mu/" in name or "/nu/" in name}
        assert len(moments) == (4 if kind == "adamw" else 3)
        for name, spec in moments.items():
            want = (None, ("fsdp",), ("tensor",)) if name.endswith("gate") else (("tensor",), ("fsdp",))
            assert spec == PartitionSpec(*want), name
        assert all(found[name] == PartitionSpec() for name in found.keys() - moments.keys())


def test_the_mesh_is_no_part_of_a_phase_key() -> None:
    from autoforge_jax.train.rundir import phase_keys

    path = ROOT / "configs" / "debug" / "tiny.toml"
    spread = load_config(path, ["mesh.fsdp=4", "model.remat=true"])
    assert spread.mesh.size == 4
    assert phase_keys(spread) == phase_keys(load_config(path))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What mesh_cases.py finds on 8 devices."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.autoforge_jax.mesh_cases",
            str(tmp_path_factory.mktemp("mesh")), str(ROOT / ".jax_cache"),
        ],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp", "tensor", "mixture"])
def test_a_mesh_gives_the_loss_and_gradient_of_one_device(facts: dict[str, Any], mesh: str) -> None:
    found = facts[mesh]
    assert found["same_start"], "parameters drawn on a mesh differ from those of one device"
    assert found["loss_error"] < 1e-6
    assert found["gradient_error"] < 1e-5
    assert found["metric_error"] < 1e-5


@pytest.mark.slow
def test_parameters_are_split_as_the_rules_say(facts: dict[str, Any]) -> None:
    for mesh, matrix, vector in (("fsdp", 1 / 4, 1 / 4), ("tensor", 1 / 2, 1), ("mixture", 1 / 4, 1 / 2)):
        shares = facts[mesh]["shares"]
        assert shares["layers/query"] == shares["embedding"] == matrix
        assert shares["final_norm"] == vector
    state = facts["trained"]["shares"]
    moments = [share for name, share in state.items() if name.endswith(("mu/layers/up", "nu/layers/up"))]
    assert moments == [1 / 4, 1 / 4]


@pytest.mark.slow
def test_updates_on_a_mesh_compile_once_and_donate(facts: dict[str, Any]) -> None:
    found = facts["trained"]
    assert found["compiles"] == [2, 2, 2] and found["donated"] and found["skipped"] == 0
    assert found["reference_error"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("target", "devices"), [("to_fsdp", 4), ("to_one", 1), ("from_one", 8)])
def test_a_checkpoint_of_one_mesh_is_restored_bit_equal_on_another(
    facts: dict[str, Any], target: str, devices: int
) -> None:
    assert facts[target] == {"equal": True, "lies_as_template": True, "devices": devices, "step": 2}


@pytest.mark.slow
def test_an_engine_over_tensor_samples_what_one_device_samples(facts: dict[str, Any]) -> None:
    found = facts["engine"]
    assert found["ids"] and found["tokens"] >= 20 and found["logprob_error"] < 1e-5
    for name in ("keys", "values", "layers/query", "layers/down", "embedding"):
        assert found["shares"][name] == 1 / 2, name
    assert found["shares"]["final_norm"] == 1
