"""Tasks with a typed answer: from documents that only read, and as a share of any other bundle."""

from collections import Counter
from functools import cache
from pathlib import Path

import orjson
import pytest

from envgen.cli.play import play
from envgen.errors import RefusedDocument
from envgen.runtime.env import open_env
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.synthesis.answers import right_closings, wrong_closings
from envgen.synthesis.audit import audit
from envgen.synthesis.candidates import Recipe, prover_of
from envgen.synthesis.certify import Prover, draft_of, validate
from envgen.synthesis.pipeline import synthesize
from envgen.tooldocs.read import read_tool_doc
from envgen.types import GateResult, Message, StopReason, Task, ToolCall, ToolDoc

CHECKLIST = "docker_simplechecklist_tools.json"
ASSETS = "xero_assets_openapi30.yaml"


def readers_of(path: Path) -> ToolDoc:
    """A document as it would be without its write tools."""
    doc = read_tool_doc(path)
    return doc.model_copy(update={"tools": tuple(t for t in doc.tools if t.method == "get")})


@cache
def asked(folder: Path) -> Bundle:
    return synthesize(readers_of(folder / ASSETS), tasks=24, heldout=6, seed=2)


@cache
def mixed(folder: Path) -> Bundle:
    return synthesize(folder / CHECKLIST, tasks=20, heldout=5, seed=1, answer_share=0.4)


def prover(bundle: Bundle) -> Prover:
    return prover_of(Recipe(draft_of(bundle), bundle.environment_id, 0, 4))


def gate(results: list[GateResult], name: str) -> GateResult:
    return next(result for result in results if result.gate == name)


def play_reference(bundle: Bundle, task: Task, closing: str) -> tuple[bool, StopReason | None]:
    """The reference's calls through an Env, then a closing message."""
    env = open_env(bundle, task)
    env.start()
    for index, step in enumerate(task.reference):
        call = ToolCall(id=f"c{index}", name=step.tool, arguments=orjson.dumps(step.arguments).decode())
        env.step(Message(role="assistant", tool_calls=(call,)))
    end = env.step(Message(role="assistant", content=closing))
    return env.verdict().success, end.stop_reason


# ------------------------------------------------------------------------------------- read-only documents
def test_a_document_that_only_reads_gives_certified_questions(examples_dir: Path) -> None:
    made = asked(examples_dir)
    assert len(made.tasks) == 24 and all(c.certified for c in made.certificates)
    assert all(t.answers and t.accepted_states == (t.initial_state,) for t in made.tasks)
    assert not any(s.writes_state for s in made.semantics)
    assert made.manifest["answer_share"] == 1.0
    assert '{"answer": VALUE}' in made.policy
    wanted = [
        "replay",
        "leak",
        "knowable",
        "binding",
        "noop",
        "write_dropped",
        "equivalents",
        "mutants",
        "duplicate",
    ]
    for certificate in made.certificates:
        assert [g.gate for g in certificate.gates] == wanted
        assert next(g for g in certificate.gates if g.gate == "mutants").tried >= 10
    assert all(c.certified for c in validate(made))


def test_the_kinds_of_questions_are_mixed_and_levels_too(examples_dir: Path) -> None:
    made = asked(examples_dir)
    kinds = Counter(t.pattern.split("answer_")[1] for t in made.tasks)
    assert {"field", "count", "own"} <= set(kinds)
    assert {t.answers[0].type for t in made.tasks} >= {"integer", "string"}
    assert len({t.difficulty for t in made.tasks}) >= 2
    assert len({t.instruction for t in made.tasks}) == 24


def test_only_the_right_answer_after_any_conversation_passes(examples_dir: Path) -> None:
    """Through the Env, as an agent gives it: silence, nothing, wrong values and wrong shapes fail."""
    import random

    made = asked(examples_dir)
    for task in made.tasks[:6]:
        assert play_reference(made, task, task.closing) == (True, StopReason.USER_DONE)
        for text in right_closings(task, random.Random(1)):
            assert play_reference(made, task, text)[0], text
        for text in wrong_closings(task, random.Random(1)):
            assert not play_reference(made, task, text)[0], text
        env = open_env(made, task)
        env.start()
        assert not env.verdict().success  # nothing was said at all
        env.step(Message(role="assistant", content="Done."))
        assert not env.verdict().success
        assert env.verdict().differences[0].collection == "answer"


def test_a_document_without_a_list_is_refused_by_name(examples_dir: Path) -> None:
    doc = readers_of(examples_dir / ASSETS)
    one = tuple(t for t in doc.tools if t.name == "getAssetById")
    lonely = doc.model_copy(update={"tools": one})
    with pytest.raises(RefusedDocument) as caught:
        synthesize(lonely, tasks=3, heldout=1, seed=0)
    assert [f.code for f in caught.value.findings] == ["no-write-tool", "no-lookup-tool"]
    assert all(f.level == "refusal" for f in caught.value.findings)


def test_lint_says_that_only_questions_can_be_asked(examples_dir: Path) -> None:
    found = audit(readers_of(examples_dir / ASSETS))
    assert not any(f.level == "refusal" for f in found)
    assert "only ask questions" in next(f.message for f in found if f.code == "no-write-tool")


# ------------------------------------------------------------------------------------------ what gates catch
def test_a_wrong_leaked_or_unfounded_answer_is_caught(examples_dir: Path) -> None:
    made = asked(examples_dir)
    task = next(t for t in made.tasks if t.answers[0].type == "integer")
    proof, slot = prover(made), task.answers[0]

    def with_slot(**changes: object) -> Task:
        return task.model_copy(update={"answers": (slot.model_copy(update=changes),)})

    assert all(g.passed for g in proof.gates(task))
    wrong = with_slot(accepted=(slot.accepted[0] + 1,))
    assert not gate(proof.gates(wrong), "knowable").passed
    unfounded = gate(proof.gates(with_slot(source=None)), "knowable")
    assert not unfounded.passed and "no source" in unfounded.detail
    told = task.model_copy(update={"instruction": f"{task.instruction} Is it {slot.accepted[0]}?"})
    assert not gate(proof.gates(told), "leak").passed
    either = with_slot(accepted=(slot.accepted[0], slot.accepted[0] + 1, slot.accepted[0] - 1))
    lax = gate(proof.gates(either), "knowable")
    assert not lax.passed and "accepts 3 values" in lax.detail


# ------------------------------------------------------------------------------------------------- shares
def test_a_share_of_questions_beside_changes(examples_dir: Path, tmp_path: Path) -> None:
    made = mixed(examples_dir)
    questions = [t for t in made.tasks if t.answers]
    assert 5 <= len(questions) <= 11
    assert all(c.certified for c in validate(made))
    for certificate in made.certificates:
        if any(t.id == certificate.task_id for t in questions):
            assert next(g for g in certificate.gates if g.gate == "mutants").tried > 14  # extra writes too
    write_bundle(made, tmp_path / "b")
    assert load_bundle(tmp_path / "b").tasks == made.tasks


def test_without_a_share_nothing_is_said_of_answers(examples_dir: Path) -> None:
    made = synthesize(examples_dir / CHECKLIST, tasks=3, heldout=1, seed=1)
    assert "answer" not in made.policy and "answer_share" not in made.manifest
    assert not any(t.answers for t in made.tasks)


def test_shares_out_of_range_are_refused(examples_dir: Path) -> None:
    for shares in (
        {"answer_share": 1.2},
        {"answer_share": -0.1},
        {"answer_share": 0.6, "forbidden_share": 0.6},
    ):
        with pytest.raises(ValueError, match="at most 1"):
            synthesize(examples_dir / CHECKLIST, tasks=3, heldout=1, seed=1, **shares)


def test_a_person_answers_in_play(
    examples_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = asked(examples_dir)
    task = made.tasks[0]
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{task.closing}\n"))
    assert play(made, task).success
    assert "verdict: success" in capsys.readouterr().out
