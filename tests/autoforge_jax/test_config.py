"""Configs: what is wrong is said in one clear error, what is sparse keeps the defaults of its place."""

from pathlib import Path

import pytest

from autoforge_jax.config import Config, dump_config, load_config, parse_config
from autoforge_jax.errors import ConfigError


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_file_is_the_default_config(tmp_path: Path) -> None:
    assert load_config(_write(tmp_path / "a.toml", "")) == Config()


def test_unknown_keys_and_wrong_types_are_all_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.toml", "[erpo]\nstepz = 3\ngroup_size = 'many'\n[nonsense]\nx = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any("unknown key 'erpo.stepz'" in line and "steps" in line for line in lines)
    assert any("erpo.group_size" in line and "'many'" in line for line in lines)
    assert any("unknown key 'nonsense'" in line and "synthesis" in line for line in lines)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("erpo.steps", '"3"', "valid integer, got '3'"),
        ("erpo.steps", "true", "valid integer, got True"),
        ("erpo.steps", "3.5", "valid integer, got 3.5"),
        ("erpo.dynamic_sampling", '"yes"', "valid boolean, got 'yes'"),
        ("erpo.clip_low", '"0.2"', "valid number, got '0.2'"),
        ("user.fault_rate", '"0.2"', "valid number, got '0.2'"),
        ("erpo.environment_weights.museum", '"2"', "valid number, got '2'"),
        ("erpo.optimizer.learning_rate", "inf", "finite number"),
        ("run.name", "5", 'valid string, got 5; in quotes: "5"'),
        ("synthesis.documents", '"a.json"', "valid array, got 'a.json'"),
        ("erpo", "3", "an object, got 3"),
    ],
)
def test_a_value_of_another_type_is_never_converted(tmp_path: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(_write(tmp_path / "a.toml", ""), [f"{key}={value}"])
    assert f"a.toml: {key}: " in str(caught.value) and words in str(caught.value)


def test_an_integer_stands_for_a_number(tmp_path: Path) -> None:
    assert load_config(_write(tmp_path / "a.toml", "[erpo]\nclip_low = 1\n")).erpo.clip_low == 1.0


def test_a_missing_file_a_folder_and_broken_toml_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(_write(tmp_path / "a.toml", "[erpo\n"))


def test_extends_merges_and_a_circle_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path / "base.toml", "[erpo]\nsteps = 7\ngroup_size = 4\n")
    child = _write(tmp_path / "child.toml", 'extends = "base.toml"\n[erpo]\nsteps = 9\n')
    config = load_config(child)
    assert (config.erpo.steps, config.erpo.group_size) == (9, 4)
    _write(tmp_path / "x.toml", 'extends = "y.toml"\n')
    with pytest.raises(ConfigError, match="circle"):
        load_config(_write(tmp_path / "y.toml", 'extends = "x.toml"\n'))
    with pytest.raises(ConfigError, match="must be a string"):
        load_config(_write(tmp_path / "z.toml", "extends = 3\n"))


def test_overrides_take_toml_values_and_bare_words(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.toml", "")
    config = load_config(
        path, ["erpo.steps=3", "run.name=trial", "evaluation.k=[1]", "erpo.dynamic_sampling=false"]
    )
    assert (config.erpo.steps, config.run.name, config.erpo.dynamic_sampling) == (3, "trial", False)
    for text in ("erpo.steps", "=3", "erpo.steps=many", "erpo.steps.x=1", "no.such.key=1"):
        with pytest.raises(ConfigError):
            load_config(path, [text])


def test_a_sparse_section_keeps_the_defaults_of_its_place(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.toml", "[erpo.optimizer]\nweight_decay = 0.1\n[sampled_evaluation]\nmax_tasks = 5\n"
    )
    config = load_config(path)
    assert config.erpo.optimizer.weight_decay == 0.1
    assert config.erpo.optimizer.learning_rate == Config().erpo.optimizer.learning_rate
    assert config.sampled_evaluation.temperature == 1.0 and config.sampled_evaluation.attempts == 4


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"evaluation": {"attempts": 2}}, "greedy attempts"),
        ({"sampled_evaluation": {"attempts": 2}}, "k is [1, 2, 4]"),
        ({"batch": {"row_tokens": 64}}, "a trajectory must fit a row"),
        ({"model": {"max_position": 64}}, "above model.max_position"),
        ({"model": {"num_heads": 3, "num_kv_heads": 2}}, "num_heads 3 is not a multiple of num_kv_heads 2"),
        ({"synthesis": {"tasks_per_bundle": 5}}, "leaves no training task"),
    ],
)
def test_values_that_do_not_fit_each_other_are_errors(tree: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree)
    assert words in str(caught.value)


def test_the_resolved_tree_parses_to_the_same_config() -> None:
    config = parse_config({"erpo": {"steps": 3}, "evaluation": {"k": [1]}})
    assert parse_config(dump_config(config)) == config
