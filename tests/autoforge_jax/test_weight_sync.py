"""Weights arrive whole or the hand-over is an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.qwen3 import weights_of
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.train.weight_sync import leaf_checksums, sync_weights
from tests.autoforge_jax.mock_learner import TINY, leaves, tiny_split


class Receiver:
    """An engine's receiving side with one defect."""

    def __init__(self, defect: str = "") -> None:
        self.defect, self.version, self.weights = defect, -1, {}

    def load(self, params: dict[str, jax.Array], version: int) -> None:
        """Copy, then damage."""
        self.weights = {name: jnp.array(leaf, copy=True) for name, leaf in params.items()}
        self.version = version if self.defect != "version" else version - 1
        if self.defect == "value":
            self.weights["b"] = self.weights["b"].at[1].add(1e-6)
        if self.defect == "order":
            self.weights["b"] = self.weights["b"][::-1]
        if self.defect == "cast":
            self.weights["b"] = self.weights["b"].astype(jnp.bfloat16)
        if self.defect == "missing":
            del self.weights["b"]


PARAMS = {"a": jnp.ones((2, 3)), "b": jnp.asarray([0.1, 0.2, 0.3])}


def test_report_and_checksums() -> None:
    report = sync_weights(PARAMS, 4, Receiver())
    assert (report.version, report.leaves) == (4, 2)
    assert report.checksum == sync_weights(PARAMS, 5, Receiver()).checksum
    other = {**PARAMS, "b": PARAMS["b"] + 1}
    assert sync_weights(other, 5, Receiver()).checksum != report.checksum
    bits = np.asarray(PARAMS["b"]).view(np.uint32).astype(np.uint64)
    place = (np.arange(3, dtype=np.uint64) * 2_654_435_762 + 1) % 2**32
    assert leaf_checksums(PARAMS)["b"] == int((bits * place).sum() % 2**32)


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("version", "reports policy version 3 after loading 4"),
        ("value", "1 of 2 parameters arrived changed, first b"),
        ("order", "arrived changed, first b"),
        ("cast", "arrived changed, first b"),
        ("missing", "other parameters than it was given"),
    ],
)
def test_what_did_not_arrive_is_named(defect: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        sync_weights(PARAMS, 4, Receiver(defect))


def test_the_real_engine_takes_a_model_state_and_keeps_its_own_copy() -> None:
    graphdef, params = tiny_split()
    engine = JaxEngine(graphdef, TINY, slots=1, max_length=32)
    given = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
    report = sync_weights(given, 2, engine)
    assert engine.version == 2 and report.leaves == len(leaves(params))
    for leaf in jax.tree.leaves(given):
        leaf.delete()
    for a, b in zip(leaves(engine.weights), leaves(weights_of(params)), strict=True):
        np.testing.assert_array_equal(a, b)
