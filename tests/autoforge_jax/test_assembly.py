"""The engine that a config names is the engine that a run gets."""

from pathlib import Path

import pytest

from autoforge_jax.config import parse_config
from autoforge_jax.errors import EngineLostError
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.engine_sglang import SGLangEngine
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.phase_synthesis import Environments
from autoforge_jax.train.rundir import RunDir
from tests.autoforge_jax.mock_learner import leaves
from tests.autoforge_jax.mock_rollout import renderer, tokenizer
from tests.autoforge_jax.scripted_sglang import ScriptedServer

MODEL = {"num_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "head_dim": 8}


def assembly(root: Path, **rollout: object) -> Assembly:
    config = parse_config({"run": {"compile_cache": ""}, "model": MODEL, "rollout": {"slots": 2, **rollout}})
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


def test_sglang_is_taken_when_named_and_missed_with_one_error(tmp_path: Path) -> None:
    absent = ScriptedServer(tmp_path)
    absent.die()
    made = assembly(tmp_path, engine="sglang", sglang={"urls": [absent.url], "start_timeout_s": 0.1})
    assert isinstance(made.engine, SGLangEngine) and made.engine.stats()["compiles"] == 0
    with pytest.raises(EngineLostError, match=r"no SGLang server at .*--model-path .*serve/initial"):
        made.sync(made.initial_params(), 0)
    assert made.last_sync is None
    made.close()
