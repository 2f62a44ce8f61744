"""What is wrong from the start is said at the start."""

from pathlib import Path

import pytest

from autoforge_jax.config import parse_config
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.start import check_start


def _run(tmp_path: Path, **sections: dict) -> RunDir:
    return RunDir.open(parse_config({"run": {"out_dir": str(tmp_path), "name": "r"}, **sections}))


def test_an_unknown_chip(tmp_path: Path) -> None:
    check_start(_run(tmp_path, mesh={"chip": "h100"}))
    with pytest.raises(ConfigError, match=r"no chip is called 'h300'; known: .*h100"):
        check_start(_run(tmp_path, mesh={"chip": "h300"}))


def test_a_model_folder_that_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    run = _run(tmp_path, model={"init_from": str(folder)})
    with pytest.raises(ConfigError, match=r"model\.init_from is .*no such folder"):
        check_start(run)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"lacks tokenizer\.json$"):
        check_start(run)
    (folder / "tokenizer.json").write_text("{}")
    check_start(run)


def test_a_finished_run_needs_its_model_no_more(tmp_path: Path) -> None:
    run = _run(tmp_path, model={"init_from": str(tmp_path / "gone")})
    run.mark("export", done=True)
    check_start(run)
