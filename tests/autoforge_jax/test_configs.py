"""Every shipped config parses, names documents that exist, and changes only what it says."""

from pathlib import Path

import pytest

from autoforge_jax.config import Config, dump_config, load_config, parse_config
from autoforge_jax.train.rundir import flatten, toml_text

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_a_shipped_config_parses_and_its_documents_exist(path: Path) -> None:
    config = load_config(path)
    assert config != Config()
    assert config.synthesis.documents
    for document in (*config.synthesis.documents, *config.synthesis.heldout_documents):
        assert (ROOT / document).is_file(), document
    assert path.read_text().startswith("#"), "a config says in its first line what it is for"


def test_the_expected_configs_ship() -> None:
    names = {str(path.relative_to(ROOT / "configs")) for path in CONFIGS}
    assert names >= {
        "quickstart.toml", "train/cpu_study.toml", "debug/tiny.toml", "ablations/group_advantage.toml",
        "ablations/sequence_ratio.toml", "eval/sampled8.toml",
    }  # fmt: skip


def test_quickstart_reads_four_documents_and_holds_one_environment_out() -> None:
    synthesis = load_config(ROOT / "configs" / "quickstart.toml").synthesis
    assert len({*synthesis.documents, *synthesis.heldout_documents}) >= 4
    assert len(synthesis.heldout_documents) >= 1
    assert not set(synthesis.documents) & set(synthesis.heldout_documents)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("ablations/group_advantage.toml", {"run.name", "erpo.advantage"}),
        ("ablations/sequence_ratio.toml", {"run.name", "erpo.ratio", "erpo.clip_low", "erpo.clip_high"}),
        ("ablations/sequence_ratio_sum.toml", {"run.name", "erpo.ratio", "erpo.ratio_length_normalised"}),
        ("ablations/leave_one_out.toml", {"run.name", "erpo.baseline"}),
        ("ablations/batch_advantage.toml", {"run.name", "erpo.advantage"}),
        ("ablations/running_std.toml", {"run.name", "erpo.environment_std"}),
        (
            "ablations/no_user_error_mask.toml",
            {"run.name", "erpo.mask_user_errors", "user.fault_rate", "judge.kind"},
        ),
        ("ablations/sequence_mean.toml", {"run.name", "erpo.aggregation"}),
        ("ablations/overlong_mask.toml", {"run.name", "erpo.overlong"}),
        ("ablations/overlong_penalty.toml", {"run.name", "erpo.overlong"}),
        ("ablations/kl_reference.toml", {"run.name", "erpo.kl_coefficient"}),
        ("ablations/kl_old.toml", {"run.name", "erpo.kl_coefficient", "erpo.kl_target"}),
        (
            "ablations/importance_correction.toml",
            {"run.name", "erpo.old_policy", "erpo.correction", "erpo.reject_sequence_gap"},
        ),
        ("ablations/overlap.toml", {"run.name", "erpo.max_staleness", "erpo.old_policy", "erpo.correction"}),
        ("ablations/no_interleaved_thinking.toml", {"run.name", "render.interleaved_thinking"}),
        ("ablations/all_groups.toml", {"run.name", "erpo.dynamic_sampling"}),
    ],
)
def test_an_ablation_differs_from_the_study_in_nothing_else(name: str, keys: set[str]) -> None:
    study = flatten(dump_config(load_config(ROOT / "configs" / "train" / "cpu_study.toml")))
    other = flatten(dump_config(load_config(ROOT / "configs" / name)))
    assert {key for key in study.keys() | other.keys() if study.get(key) != other.get(key)} == keys


def test_a_resolved_config_survives_its_toml_text(tmp_path: Path) -> None:
    config = parse_config(
        {
            "run": {"name": 'odd "name" \\ ü\n'},
            "sft": {"optimizer": {"learning_rate": 1e-7}},
            "erpo": {"environment_weights": {"plain-name_1": 2.0, 'my "api" v1.2': 0.5}},
        }
    )
    path = tmp_path / "c.toml"
    path.write_text(toml_text(dump_config(config)), encoding="utf-8")
    assert load_config(path) == config
