"""`autoforge meu-eval` as a person calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoforge_jax.cli import app
from autoforge_jax.config import apply_overrides, parse_config
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.train.meu_eval import meu_config
from envgen.interface import FAULT_KINDS, EnvgenError, UserError, read_sentences, write_bundle
from tests.envgen.llm_server import Body, scripted_server
from tests.envgen.mock_domain import mock_bundle

OTHER_WORDS = Path(__file__).resolve().parents[1] / "envgen" / "data_heldout_faults.json"


@pytest.fixture
def bundle_dir(tmp_path: Path) -> Path:
    write_bundle(mock_bundle(), tmp_path / "notes")
    return tmp_path / "notes"


def meu_eval(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["meu-eval", *map(str, words)])
    return result.exit_code, result.output


def test_the_table_and_the_episodes(bundle_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "episodes.jsonl"
    code, output = meu_eval(bundle_dir, "--episodes", path, "--seed", 3)
    assert code == 0
    lines = [line for line in output.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in cells[2:]] == [*FAULT_KINDS, "all"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 2 * 3 * len(FAULT_KINDS)
    total = cells[-1]
    hit = [r for r in rows if r["injected"] is not None]
    assert (int(total[1]), int(total[2])) == (len(hit), sum(r["verdict"]["error"] for r in hit))
    assert all(r["right"] == (r["verdict"]["error"] == (r["injected"] is not None)) for r in rows)
    assert "user varied, judge rules; false alarms 0 of " in output
    assert meu_eval(bundle_dir, "--seed", 3)[1] == output


def test_one_kind_in_other_words(bundle_dir: Path) -> None:
    code, output = meu_eval(
        bundle_dir, "--kind", "silence", "--tasks", 2, "--sentences", OTHER_WORDS,
        "--set", "user.kind=scripted",
    )  # fmt: skip
    assert code == 0
    assert "| silence | 2 | 2 | 1.000 (0.342–1.000) | 2 | 0 | 1.000 | 100.0% | 100.0% |" in output


def test_a_model_judge_from_overrides(bundle_dir: Path) -> None:
    """Answers are SCRIPTED: this judge says yes when the user said nothing."""

    def script(body: Body) -> str:
        text = body["messages"][0]["content"].partition("The conversation, each")[2]
        lines = [line.partition("USER:")[2].strip(" .") for line in text.splitlines() if "USER:" in line]
        mute = any(line in ("", "Hmm") for line in lines)
        return json.dumps({"wrong": "yes" if mute else "no", "turn": -1, "reason": "scripted"})

    with scripted_server(script) as server:
        code, output = meu_eval(
            bundle_dir, "--kind", "silence", "--set", "judge.kind=model",
            "--set", f"judge.server.base_url={server.base_url}", "--set", "judge.server.model=scripted-model",
        )  # fmt: skip
    assert code == 0 and len(server.requests) == 6
    assert "| silence | 3 | 3 | 1.000" in output and "judge model; false alarms 0 of 3" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kind", "typo"), "unknown fault kind 'typo'; known: wrong_value"),
        (("--set", "judge.kind=none"), "which judges nothing"),
        (("--set", "user.fault_rate=0.5"), "meu-eval injects the faults itself"),
        (("--set", "judge.kind=model"), "needs server.base_url and server.model"),
        (("--sentences", "absent.json"), "expected an object of lists of sentences"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    bundle_dir: Path, words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = CliRunner().invoke(app, ["meu-eval", str(bundle_dir), *words])
    assert result.exit_code == 2
    assert message in result.output + capfd.readouterr().err


def test_a_server_that_is_not_there_is_named_at_the_start() -> None:
    server = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 0}
    tree = {"judge": {"kind": "model", "server": server}}
    with pytest.raises(EnvgenError, match=r"http://127\.0\.0\.1:9/v1 \(m\): .*check that the server runs"):
        Conditions.of(parse_config(tree))


def test_a_config_file_chooses_user_and_judge(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[user]\nkind = "scripted"\n[judge]\nkind = "rules"\n')
    assert meu_config(path, []).user.kind == "scripted"
    assert (meu_config(None, []).user.kind, meu_config(None, []).judge.kind) == ("varied", "rules")
    tree: dict[str, object] = {}
    apply_overrides(tree, ["user.kind=varied", "judge.server.retries=2"])
    assert tree == {"user": {"kind": "varied"}, "judge": {"server": {"retries": 2}}}


def test_sentences_of_ones_own_are_checked(tmp_path: Path) -> None:
    assert set(read_sentences(OTHER_WORDS)) >= {"vague", "silent"}
    path = tmp_path / "s.json"
    path.write_text('{"vague": ["some"]}')
    with pytest.raises(UserError, match="no sentences for again, contradict"):
        read_sentences(path)
