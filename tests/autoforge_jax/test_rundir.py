"""The run directory: phases are skipped only under the config they were done with, and nothing is overwritten
silently."""

import json
import tomllib
from pathlib import Path

import pytest

from autoforge_jax.config import Config, dump_config, parse_config
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.train.rundir import PHASES, RunDir, flatten, phase_keys, toml_text
from autoforge_jax.train.state_files import read_json


def _config(tmp_path: Path, **sections: dict) -> Config:
    return parse_config({"run": {"out_dir": str(tmp_path), "name": "r"}, **sections})


def _differing(first: Config, second: Config) -> set[str]:
    a, b = phase_keys(first), phase_keys(second)
    return {name for name in PHASES if a[name] != b[name]}


def test_a_key_changes_with_what_its_phase_depends_on_and_with_nothing_else() -> None:
    base = Config()
    after_erpo = {"erpo", "eval after", "export", "report"}
    assert _differing(base, parse_config({"erpo": {"steps": 3}})) == after_erpo
    # Other evaluation settings leave every checkpoint valid.
    assert _differing(base, parse_config({"evaluation": {"max_tasks": 3}})) == {
        "eval init", "eval before", "eval after", "report",
    }  # fmt: skip
    assert _differing(base, parse_config({"sft": {"steps": 3}})) == {"warm start", "eval before", *after_erpo}
    assert _differing(base, parse_config({"synthesis": {"seed": 3}})) == set(PHASES)
    assert _differing(base, parse_config({"run": {"seed": 3}})) == set(PHASES) - {"synthesis"}
    neutral = {"run": {"name": "x", "compile_cache": ""}, "synthesis": {"workers": 9}}
    assert _differing(base, parse_config(neutral | {"erpo": {"checkpoint_every": 3}})) == set()


def test_every_parent_comes_before_its_phase() -> None:
    seen = {""}
    for name, spec in PHASES.items():
        assert spec.parent in seen
        seen.add(name)


def test_every_config_key_belongs_to_a_phase_or_changes_nothing() -> None:
    from autoforge_jax.train.rundir import NEUTRAL

    sections = [s for spec in PHASES.values() for s in spec.sections]
    for key in flatten(dump_config(Config())):
        assert any(key == s or key.startswith(s + ".") for s in (*sections, *NEUTRAL)), key


def test_records_survive_and_seconds_add_up_over_attempts(tmp_path: Path) -> None:
    run = RunDir.open(_config(tmp_path))
    assert run.done("synthesis") is None and not run.started("synthesis")
    run.mark("synthesis", done=False, seconds=2.0)
    run.mark("synthesis", done=True, seconds=3.0, result="fine")
    again = RunDir.open(_config(tmp_path))
    record = again.done("synthesis")
    assert record is not None and (record.seconds, record.result) == (5.0, "fine")
    assert again.done("tokenizer") is None


def test_the_resolved_config_is_saved_twice(tmp_path: Path) -> None:
    config = _config(tmp_path, erpo={"steps": 3})
    run = RunDir.open(config)
    assert json.loads((run.root / "config.json").read_text()) == dump_config(config)
    assert parse_config(tomllib.loads((run.root / "config.toml").read_text())) == config


def test_another_config_is_an_error_that_names_the_keys_of_phases_begun(tmp_path: Path) -> None:
    run = RunDir.open(_config(tmp_path))
    run.mark("synthesis", done=True)
    run.mark("warm start", done=False)
    RunDir.open(_config(tmp_path, erpo={"steps": 3}))  # ERPO has not begun: it may still change
    with pytest.raises(ConfigError) as caught:
        RunDir.open(_config(tmp_path, sft={"steps": 3}, synthesis={"seed": 9}, erpo={"steps": 4}))
    text = str(caught.value)
    assert "sft.steps: the run has 300, this config has 3" in text
    assert "synthesis.seed: the run has 0, this config has 9" in text
    assert "erpo.steps" not in text and "--fresh" in text
    assert f"its own config is {run.root / 'config.toml'}" in text
    assert json.loads((run.root / "config.json").read_text())["sft"]["steps"] == 300


def test_fresh_starts_over_and_only_in_a_run_directory(tmp_path: Path) -> None:
    run = RunDir.open(_config(tmp_path))
    run.mark("synthesis", done=True)
    (run.root / "metrics.jsonl").write_text("{}\n")
    fresh = RunDir.open(_config(tmp_path, synthesis={"seed": 9}), fresh=True)
    assert fresh.records == {} and not fresh.metrics.exists()
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_bytes(b"meow")
    config = parse_config({"run": {"out_dir": str(tmp_path), "name": "photos"}})
    for flag in (False, True):
        with pytest.raises(ConfigError, match="holds no run"):
            RunDir.open(config, fresh=flag)
    assert (foreign / "cat.jpg").exists()


def test_existing_needs_a_run_and_lets_only_the_named_sections_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        RunDir.existing(_config(tmp_path))
    run = RunDir.open(_config(tmp_path))
    run.mark("eval before", done=True)
    run.mark("erpo", done=True)
    other = _config(tmp_path, evaluation={"max_tasks": 3})
    assert RunDir.existing(other, differing=("evaluation",)).done("erpo") is not None
    with pytest.raises(ConfigError, match=r"evaluation\.max_tasks"):
        RunDir.existing(other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[{", r"phases\.json is not JSON"),
        ("[" * 100_000, r"phases\.json is not JSON"),
        ("{}", r"phases\.json holds a dict, expected a list"),
        ("[3]", r"phases\.json: entry 1 is 3, expected name, key"),
        ('[{"name": "synthesis", "key": "k"}]', r"entry 1 is .*, expected name, key, done"),
        ('[{"name": "synthesis", "key": "k", "done": "yes"}]', "entry 1 is "),
        ('[{"name": "synthesis", "key": "k", "done": true, "seconds": true}]', "entry 1 is "),
        ('[{"name": "synthesis", "key": "k", "done": true, "seconds": NaN}]', "entry 1 is "),
        ('[{"name": "synthesis", "key": "k", "done": true, "seconds": -1}]', "entry 1 is "),
        ('[{"name": "synthesis", "key": "k", "done": true, "seconds": 1, "more": 2}]', "entry 1 is "),
    ],
)
def test_a_damaged_phases_file_is_named_with_what_loses_least(
    content: str, message: str, tmp_path: Path
) -> None:
    run = RunDir.open(_config(tmp_path))
    run.mark("synthesis", done=True)
    (run.root / "phases.json").write_text(content)
    with pytest.raises(TrainingError, match=message + ".*or delete it and start the same command"):
        RunDir.open(_config(tmp_path))
    assert RunDir.open(_config(tmp_path), fresh=True).records == {}


@pytest.mark.parametrize("folder", ["tokenizer", "eval", "checkpoints/sft"])
def test_without_the_phases_file_no_other_config_gets_at_the_results(folder: str, tmp_path: Path) -> None:
    run = RunDir.open(_config(tmp_path))
    (run.root / folder).mkdir(parents=True)
    (run.root / folder / "x").touch()
    with pytest.raises(ConfigError, match=r"erpo\.steps: the run has 40, this config has 3"):
        RunDir.open(_config(tmp_path, erpo={"steps": 3}))
    assert RunDir.open(_config(tmp_path)).records == {}


def test_a_damaged_config_is_read_from_its_other_copy(tmp_path: Path) -> None:
    config = _config(tmp_path, sft={"steps": 5})
    run = RunDir.open(config)
    run.mark("warm start", done=True)
    for content in ("{", "[]", "{}"):
        (run.root / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=r"sft\.steps: the run has 5, this config has 300"):
            RunDir.open(_config(tmp_path))
    assert RunDir.open(config).done("warm start")
    assert json.loads((run.root / "config.json").read_text()) == dump_config(config)
    (run.root / "config.json").write_text("{")
    (run.root / "config.toml").write_text("=")
    with pytest.raises(TrainingError, match=r"config\.json is not JSON .*config\.toml.*restore one of them"):
        RunDir.open(config)


def test_toml_text_reads_back() -> None:
    tree = {
        "a": 1, "b": [1.5, 2e-7], "c": True, "d": 'q"\\\n\x7fü',
        "t": {"x": "y", "u": {"z": []}}, "v": {"w": 3},
    }  # fmt: skip
    assert tomllib.loads(toml_text(tree)) == tree


def test_an_attempt_that_left_nothing_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """A mistake in the first config (a document that does not exist) is corrected by running again."""
    wrong = RunDir.open(_config(tmp_path, synthesis={"seed": 1}))
    wrong.mark("synthesis", done=False)
    right = RunDir.open(_config(tmp_path, synthesis={"seed": 2}))
    assert right.config.synthesis.seed == 2 and not right.started("synthesis")
    right.mark("synthesis", done=False)
    (right.bundles / "made").mkdir(parents=True)
    with pytest.raises(ConfigError, match="results of another config"):
        RunDir.open(_config(tmp_path, synthesis={"seed": 3}))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "/tmp/x"])
def test_a_run_name_is_one_folder_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.name"):
        parse_config({"run": {"name": name}})


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(TrainingError, match="is missing"):
        read_json(path, dict)
    path.write_text("{")
    with pytest.raises(TrainingError, match=r"x\.json is not JSON .*--fresh"):
        read_json(path)
    path.write_text("[]")
    with pytest.raises(TrainingError, match=r"x\.json holds a list, expected a dict; .* write it anew"):
        read_json(path, dict, "write it anew")
    assert read_json(path, list) == []
