"""The engine that a config names is the engine that a run gets."""

import gc
from pathlib import Path

import jax
import numpy as np
import pytest

from autoforge_jax.config import parse_config
from autoforge_jax.errors import EngineLostError
from autoforge_jax.model.qwen3 import weights_of
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.engine_sglang import SGLangEngine
from autoforge_jax.train import assembly as module
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.phase_synthesis import Environments
from autoforge_jax.train.rundir import RunDir
from tests.autoforge_jax.mock_learner import leaves
from tests.autoforge_jax.mock_rollout import renderer, tokenizer
from tests.autoforge_jax.scripted_sglang import ScriptedServer

MODEL = {"num_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "head_dim": 8}


def assembly(
    root: Path,
    erpo: dict[str, object] | None = None,
    model: dict[str, object] | None = None,
    **rollout: object,
) -> Assembly:
    sections = {"model": MODEL | (model or {}), "rollout": {"slots": 2, **rollout}, "erpo": erpo or {}}
    config = parse_config({"run": {"compile_cache": ""}, **sections})
    run = RunDir(root, config)
    tokenizer().save(run.tokenizer)
    return Assembly(run, renderer(), Environments((), (), {}))


def test_the_embedded_engine_is_the_default_and_is_handed_weights(tmp_path: Path) -> None:
    made = assembly(tmp_path)
    assert isinstance(made.engine, JaxEngine) and made.last_sync is None
    report = made.sync(made.initial_params(), 7)
    assert made.last_sync is report and made.engine.version == 7
    assert (report.leaves, report.bytes) == (len(leaves(made.initial_params())), 0)
    made.close()


def test_the_embedded_engine_holds_matrices_in_the_compute_type(tmp_path: Path) -> None:
    made = assembly(tmp_path, model={"dtype": "bfloat16"})
    params = made.initial_params()
    made.sync(params, 1)
    assert isinstance(made.engine, JaxEngine)
    held = made.engine.weights
    given = weights_of(params)
    assert held["layers"]["query_norm"].dtype == held["final_norm"].dtype == "float32"
    for name in ("query", "down"):
        assert given["layers"][name].dtype == "float32"
        np.testing.assert_array_equal(held["layers"][name], given["layers"][name].astype("bfloat16"))
    np.testing.assert_array_equal(held["embedding"], given["embedding"].astype("bfloat16"))
    made.close()


def _copies(made: Assembly) -> int:
    """Arrays alive that have the shape of the embedding: parameters, their moments, gradients, copies."""
    gc.collect()  # what earlier tests left in cycles
    shape = (made.model_config.vocab_size, made.model_config.hidden_size)
    return sum(array.shape == shape for array in jax.live_arrays())


def test_what_is_kept_of_the_weights_is_what_the_phase_needs(tmp_path: Path) -> None:
    made = assembly(tmp_path)
    assert made.parameters == sum(leaf.size for leaf in jax.tree.leaves(made.initial_params()))
    assert _copies(made) == 0  # the beginning is not kept, it can be had again
    state = made.fresh_state("sft")
    assert _copies(made) == 3  # parameters and Adam's two moments
    for a, b in zip(leaves(state.params), leaves(made.initial_params()), strict=True):
        np.testing.assert_array_equal(a, b)
    made.sync(state.params, 1)
    assert _copies(made) == 4
    made.rest()
    assert _copies(made) == 3 and made.engine.version == -1
    made.sync(state.params, 1)
    assert made.engine.version == 1
    made.close()


def test_a_large_state_is_on_disk_before_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = assembly(tmp_path)
    monkeypatch.setattr(module, "WAITED_FOR_BYTES", 0)
    made.save("sft", made.fresh_state("sft"), 2, 2)
    assert made.store("sft").steps() == [2]  # read from disk, nothing was waited for here
    made.close()


def test_rollouts_beside_learning_keep_their_weights(tmp_path: Path) -> None:
    made = assembly(tmp_path, erpo={"max_staleness": 1})
    made.sync(made.initial_params(), 3)
    made.rest()
    assert made.engine.version == 3
    made.close()


def test_the_engine_keeps_a_row_per_environment_not_sixteen(tmp_path: Path) -> None:
    made = assembly(tmp_path)
    before = jax.live_arrays()  # held: the id of a freed one may be given to another
    known = set(map(id, before))
    made.sync(made.initial_params(), 0)
    stores = [a for a in jax.live_arrays() if id(a) not in known and a.ndim == 5]
    # slots, one prefix, one row for padding
    assert len(stores) == 2 and {array.shape[1] for array in stores} == {2 + 1 + 1}
    made.close()


def test_sglang_is_taken_when_named_and_missed_with_one_error(tmp_path: Path) -> None:
    absent = ScriptedServer(tmp_path)
    absent.die()
    made = assembly(tmp_path, engine="sglang", sglang={"urls": [absent.url], "start_timeout_s": 0.1})
    assert isinstance(made.engine, SGLangEngine) and made.engine.stats()["compiles"] == 0
    with pytest.raises(EngineLostError, match=r"no SGLang server at .*--model-path .*serve/initial"):
        made.sync(made.initial_params(), 0)
    assert made.last_sync is None
    made.close()
