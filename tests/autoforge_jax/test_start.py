"""What is wrong from the start is said at the start, by `autoforge plan` and by the commands that train."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from autoforge_jax.config import Config, parse_config
from autoforge_jax.errors import AutoforgeError, ConfigError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.plan.report import make_plan
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.loop import execute
from autoforge_jax.train.metrics import Reporter
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.start import check_start
from envgen.interface import EnvgenError
from tests.autoforge_jax.mock_board import MemoryBoard
from tests.autoforge_jax.mock_rollout import tokenizer

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Qwen3Config(
    vocab_size=400, num_layers=2, hidden_size=64, intermediate_size=96, num_heads=4, head_dim=16
)
SMALL = {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 96}


def _config(tmp_path: Path, **sections: Any) -> Config:
    tree: dict[str, Any] = {
        "run": {"out_dir": str(tmp_path), "name": "r"},
        "synthesis": {"documents": [str(ROOT / "configs/debug/shelf_tools.json")]},
    }
    return parse_config(tree | sections)


def _folder(tmp_path: Path, **changes: Any) -> str:
    """A model folder with everything but real weights; `changes` to its config.json, None deletes a key."""
    folder = tmp_path / "model"
    tokenizer().save(folder)
    tree = SHAPE.to_hf() | {"vocab_size": max(400, tokenizer().vocab_size)} | changes
    (folder / "config.json").write_text(json.dumps(tree))
    save_file({"x": np.zeros(2, np.float32)}, folder / "model.safetensors")
    return str(folder)


def test_an_unknown_chip(tmp_path: Path) -> None:
    check_start(_config(tmp_path, mesh={"chip": "h100"}))
    with pytest.raises(ConfigError, match=r"no chip is called 'h300'; known: .*h100"):
        check_start(_config(tmp_path, mesh={"chip": "h300"}))


def test_a_model_folder_that_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = _config(tmp_path, model={"init_from": str(folder)})
    with pytest.raises(ConfigError, match=r"model\.init_from is .*no such folder"):
        check_start(config)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"lacks tokenizer\.json$"):
        check_start(config)
    _folder(tmp_path)
    check_start(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, r"model: config\.json: model_type is 'gpt2', expected 'qwen3'"),
        ({"use_sliding_window": True}, "use_sliding_window is True, only False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is .*sliding_attention"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "by type of layer"),
        ({"rope_parameters": [1]}, r"rope parameters are \[1\], expected an object"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "_factor is 0.5"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta is '1e4', expected a number above 0"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta is nan, expected a number above 0"),
        ({"hidden_size": 10**30}, "expected a whole number from 1"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many', expected a whole number from 1"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a whole number from 1"),
        ({"hidden_size": None}, "key 'hidden_size' is missing"),
        ({"num_attention_heads": 3}, "num_heads 3 is not a multiple of num_kv_heads 2"),
        ({"max_position_embeddings": 256}, "max_trajectory_tokens is 640, the model takes 256 positions"),
        ({"vocab_size": 9}, r"config\.json says 9 embeddings"),
        (
            {
                "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 8, "mlp_only_layers": [0],
            },
            r"mlp_only_layers \[0\]; only models with experts in every layer",
        ),
        (
            {
                "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 9,
                "moe_intermediate_size": 8,
            },
            "9 experts per token of 4",
        ),
    ],
)  # fmt: skip
def test_a_folder_of_another_kind_is_refused_by_plan_and_at_the_start(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = _config(tmp_path, model={"init_from": _folder(tmp_path, **changes)})
    with pytest.raises(AutoforgeError, match=message):
        check_start(config)
    with pytest.raises(AutoforgeError, match=message):
        make_plan(config)


def test_a_folder_whose_files_are_not_whole(tmp_path: Path) -> None:
    folder = Path(_folder(tmp_path))
    config = _config(tmp_path, model={"init_from": str(folder)})
    index = {"weight_map": {"x": "model.safetensors", "y": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"1 of 2 files are missing, first model-2\.safetensors"):
        check_start(config)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-4])
    with pytest.raises(WeightsError, match=r"model\.safetensors: not a readable safetensors file"):
        check_start(config)
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \*\.safetensors file"):
        check_start(config)


def test_a_tokenizer_of_another_family(tmp_path: Path) -> None:
    config = _config(tmp_path, model={"init_from": _folder(tmp_path)}, render={"format": "llama3"})
    assert FORMATS["llama3"].roles != FORMATS["compact"].roles
    for check in (check_start, make_plan):
        with pytest.raises(ConfigError, match=r"lacks the special tokens .*set render\.format"):
            check(config)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"mesh": {"data": 3}}, "rows_per_microbatch is 8; .* = 3 must divide it, .* set it to 9"),
        (
            {"mesh": {"data": 2, "fsdp": 2}, "batch": {"rows_per_microbatch": 1}},
            "rows_per_microbatch is 1; .* = 4 must divide it, .* set it to 4",
        ),
        ({"mesh": {"tensor": 4}}, "mesh.tensor is 4, which does not divide model.num_kv_heads = 2"),
        ({"mesh": {"tensor": 2}, "tokenizer": {"vocab_size": 301}}, "does not divide vocabulary = 301"),
        ({"mesh": {"expert": 2}}, "this model has no experts"),
        (
            {"mesh": {"expert": 4}, "model": {**SMALL, "experts": {"count": 6, "per_token": 2}}},
            "mesh.expert is 4, which does not divide model.experts.count = 6",
        ),
        ({"mesh": {"fsdp": 5}, "batch": {"rows_per_microbatch": 5}}, "does not divide model.hidden_size"),
        ({"model": {"head_dim": 9}}, "head_dim 9 is odd"),
        ({"model": {"init": "retrieval"}}, "init = 'retrieval' got 4 layers, 2 key/value heads"),
        (
            {"model": {"init": "retrieval", "num_kv_heads": 4, "rope_theta": 1e6, "tie_embeddings": False}},
            "set tie_embeddings = true",
        ),
        (
            {"sft": {"steps": 20}},
            r"sft\.optimizer\.warmup_steps 20 leaves nothing of 20 steps for the",
        ),
        (
            {"erpo": {"steps": 4, "optimizer": {"warmup_steps": 9, "schedule": "linear"}}},
            r"erpo\.optimizer\.warmup_steps 9 leaves nothing of 4 steps",
        ),
    ],
)
def test_what_no_model_of_this_shape_can_do(sections: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = _config(tmp_path, **sections)
    for check in (check_start, make_plan):
        with pytest.raises(AutoforgeError, match=message):
            check(config)


def test_adapters_on_projections_that_the_folder_does_not_have(tmp_path: Path) -> None:
    experts = {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
    }  # fmt: skip
    config = _config(tmp_path, model={"init_from": _folder(tmp_path, **experts)}, lora={"rank": 2})
    for check in (check_start, make_plan):
        with pytest.raises(ConfigError, match=r"lora\.targets names gate, up, down, which"):
            check(config)


def test_a_kernel_and_a_mesh_that_this_machine_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.attention is 'splash', but this machine has cpu"):
        check_start(_config(tmp_path, model={"attention": "splash"}))
    with pytest.raises(ConfigError, match="multiples of 128") as caught:
        make_plan(_config(tmp_path, model={"attention": "splash"}, batch={"row_tokens": 641}))
    assert "no TPU" not in str(caught.value)  # a plan is not for this machine
    with pytest.raises(ConfigError, match=r"data 4096 .* is 4096 devices, this run has \d+"):
        check_start(_config(tmp_path, mesh={"data": 4096}, batch={"rows_per_microbatch": 4096}))


def test_what_several_processes_cannot_do(tmp_path: Path) -> None:
    crew = Crew(0, 2, MemoryBoard())
    for erpo, message in (
        ({"old_policy": "learner"}, 'Set it to "engine"'),
        ({"max_staleness": 2}, "with 2 processes, .* Set it to 0"),
        ({}, "one device, but 2 processes"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_start(_config(tmp_path, erpo=erpo), None, crew)


def test_a_server_command_that_is_no_program(tmp_path: Path) -> None:
    rollout = {"engine": "sglang", "sglang": {"launch": ["no-such-python", "-m", "sglang.launch_server"]}}
    with pytest.raises(ConfigError, match="launch starts with 'no-such-python', which is no program"):
        check_start(_config(tmp_path, rollout=rollout))
    rollout["sglang"] = {"launch": [sys.executable, "-m", "sglang.launch_server"]}
    check_start(_config(tmp_path, rollout=rollout))


def test_a_model_user_whose_key_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    server = {"base_url": "http://127.0.0.1:9", "model": "m", "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(EnvgenError, match="NO_SUCH_KEY is not set"):
        check_start(_config(tmp_path, user={"kind": "model", "server": server}))


def test_the_last_document_is_read_before_the_first_is_synthesised(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"tools": [')
    good = str(ROOT / "configs/debug/shelf_tools.json")
    with pytest.raises(EnvgenError, match=r"broken\.json: neither JSON nor YAML"):
        check_start(_config(tmp_path, synthesis={"documents": [good, str(broken)]}))


def test_weights_of_an_environment_that_is_none_are_refused_after_synthesis(tmp_path: Path) -> None:
    synthesis = {
        "documents": [str(ROOT / "configs/debug/shelf_tools.json")],
        "tasks_per_bundle": 4, "heldout_tasks_per_bundle": 2, "max_difficulty": 1,
    }  # fmt: skip
    config = _config(tmp_path, synthesis=synthesis, erpo={"environment_weights": {"shelve": 2.0}})
    with pytest.raises(ConfigError, match=r"names \['shelve'\], the training environments are \['shelf'\]"):
        execute(config, reporter=Reporter(io.StringIO()))
    run = RunDir.open(_config(tmp_path, synthesis=synthesis))  # corrected: what was made is kept
    assert run.started("synthesis") and not run.started("tokenizer")
    assert (run.bundles / "shelf_tools" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"rollout": {"max_turns": 2, "max_tool_calls": 1}},
            r"none of \d+ reference .*: rollout\.max_turns is 2, \d+ of them need \d+ to \d+; "
            r"rollout\.max_tool_calls is 1, .* Raise what is too low",
        ),
        (
            {"batch": {"prefix_tokens": 10}},
            r"prefix of environment 'shelf' .* has \d+ tokens, batch\.prefix_tokens is 10: raise it",
        ),
        (
            {"batch": {"prefix_tokens": 600, "row_tokens": 40}},
            r"batch\.row_tokens \(after the prefix\) is 40, \d+ of them need",
        ),
    ],
)
def test_budgets_that_no_reference_fits_are_named_with_what_is_needed(
    sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    synthesis = {
        "documents": [str(ROOT / "configs/debug/shelf_tools.json")],
        "tasks_per_bundle": 4, "heldout_tasks_per_bundle": 2, "max_difficulty": 1,
    }  # fmt: skip
    with pytest.raises(AutoforgeError, match=message):
        execute(_config(tmp_path, synthesis=synthesis, **sections), reporter=Reporter(io.StringIO()))


def test_a_seed_is_one_that_every_generator_takes() -> None:
    for seed in (-1, 2**31):
        with pytest.raises(ConfigError, match=r"run\.seed: Input should be"):
            parse_config({"run": {"seed": seed}})


def test_a_compile_cache_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = {"out_dir": str(tmp_path), "name": "r", "compile_cache": str(tmp_path / "file" / "cache")}
    with pytest.raises(
        ConfigError, match=r"run\.compile_cache is .* nothing can be written \(Not a directory"
    ):
        check_start(_config(tmp_path, run=run))


def test_a_finished_run_needs_its_model_no_more(tmp_path: Path) -> None:
    config = _config(tmp_path, model={"init_from": str(tmp_path / "gone")})
    run = RunDir.open(config)
    with pytest.raises(ConfigError, match="no such folder"):
        check_start(config, run)
    run.mark("export", done=True)
    check_start(config, run)


def test_a_tokenizer_that_was_made_says_how_large_the_vocabulary_is(tmp_path: Path) -> None:
    config = _config(tmp_path, mesh={"tensor": 2}, tokenizer={"vocab_size": 301})
    run = RunDir.open(config)
    run.mark("tokenizer", done=True)
    with pytest.raises(ConfigError, match="is 2 devices, this run has"):  # and not its vocabulary
        check_start(config, run)


def test_fresh_deletes_nothing_for_a_config_that_cannot_be(tmp_path: Path) -> None:
    run = RunDir.open(_config(tmp_path))
    (run.root / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="rows_per_microbatch"):
        execute(_config(tmp_path, mesh={"data": 3}), fresh=True)
    with pytest.raises(ConfigError, match="no such document"):
        execute(_config(tmp_path, synthesis={"documents": ["gone.json"]}), fresh=True)
    assert run.metrics.exists()


def test_the_checks_of_the_start_load_no_jax() -> None:
    probe = "import sys; import autoforge_jax.train.start; assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
