"""Confirm before write: the user's go-ahead, the rule in policy and grade, and the gate that proves it."""

from __future__ import annotations

from functools import cache

import pytest

from envgen.runtime.criteria import affirms
from envgen.runtime.env import open_env
from envgen.store import Bundle
from envgen.synthesis.bench import workbench
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover, draft_of, validate
from envgen.synthesis.pipeline import make_bundle
from envgen.types import Message, ReferenceStep, StopReason, Task, TraceConstraint
from envgen.users.faults import FaultInjectedUser
from envgen.users.port import UserReply
from envgen.users.rules import judge_by_rules
from envgen.users.scripted import CONFIRM, DECLINE, MAX_CONFIRMATIONS, YES, ScriptedUser, wording
from tests.envgen.dual_domain import call, say
from tests.envgen.mock_domain import DOC, mock_bundle, mock_draft

RULE = TraceConstraint(kind="confirm_before", tools=("update_note", "delete_note"), mentions=("note_id",))

WANTED = ["delete", "update_note"]


def guarded(name: str = "notes-1", **changes: object) -> Task:
    """A mock task with the rule; by itself its reference does not ask."""
    return mock_bundle().task(name).model_copy(update={"constraints": (RULE,), **changes})


@cache
def bundle() -> Bundle:
    return make_bundle(
        DOC, mock_draft(), tasks=12, heldout=2, seed=3, confirm_writes=["delete", "update_note"]
    )


@cache
def prover() -> Prover:
    made = bundle()
    return Prover(workbench(build_catalog(draft_of(made)), made.environment_id, 3))


def guarded_calls(task: Task) -> list[int]:
    return [i for i, s in enumerate(task.reference) if s.tool in RULE.tools]


# -------------------------------------------------------------------------------------------- the user
def test_the_user_says_yes_also_where_a_stated_fact_is_spoken_of() -> None:
    question = "Shall I set the priority of N11 to 5?"
    assert ScriptedUser(guarded()).reply(question) == UserReply(YES)
    other = ScriptedUser(guarded()).reply("Shall I set the priority of N11 to 4?")
    assert other == UserReply("The priority should be 5.")  # no yes to what it did not ask for
    plain = ScriptedUser(mock_bundle().task("notes-1")).reply(question)
    assert plain == UserReply("The priority should be 5.")  # without the rule: as ever
    assert ScriptedUser(mock_bundle().task("notes-2")).reply("Shall I go on?") == UserReply(CONFIRM)


def test_a_fact_that_was_not_told_comes_before_the_yes() -> None:
    someone = ScriptedUser(guarded("notes-3"))
    told = UserReply("The title of the note is Bread.")
    assert someone.reply("Shall I go ahead, and what is the title?") == told
    assert someone.reply("Shall I delete the note with the title Bread, N12?") == UserReply(YES)


def test_the_user_says_no_when_the_task_says_so() -> None:
    someone = ScriptedUser(guarded(consent="no"))
    assert someone.reply("Shall I update note N11?") == UserReply(DECLINE)
    assert ScriptedUser(mock_bundle().tasks[0].model_copy(update={"consent": "no"})).reply(
        "Shall I go on?"
    ) == UserReply(DECLINE)


def test_patience_grows_with_the_questions_that_the_reference_needs() -> None:
    ask = ReferenceStep(kind="ask", text="Shall I?")
    task = guarded(reference=(ask,) * 7)
    someone = ScriptedUser(task)
    answers = [someone.reply("Shall I go ahead?") for _ in range(7 + MAX_CONFIRMATIONS + 1)]
    assert [a.done for a in answers] == [False] * (7 + MAX_CONFIRMATIONS) + [True]


def test_every_wording_reads_as_what_it_is() -> None:
    assert affirms(YES) and all(affirms(text) for text in wording()["consent"])
    assert not affirms(DECLINE) and not any(affirms(text) for text in wording()["decline"])


@pytest.mark.parametrize("consent", ["yes", "no"])
@pytest.mark.parametrize("seed", range(6))
def test_the_judge_finds_no_fault_in_either_answer(consent: str, seed: int) -> None:
    task = guarded(consent=consent)
    env = open_env(mock_bundle(), task, user=ScriptedUser(task, seed=seed))
    env.start()
    say(env, "Shall I update note N11?")
    say(env, "Done.")
    assert not judge_by_rules(task, env.transcript).error, judge_by_rules(task, env.transcript)


# -------------------------------------------------------------------------------------------- the grade
def test_the_same_state_with_and_without_a_go_ahead() -> None:
    task = guarded()
    for question, success in (("Shall I update note N11?", True), ("Shall I go on?", False), ("", False)):
        env = open_env(mock_bundle(), task)
        env.start()
        if question:
            say(env, question)
        call(env, "update_note", note_id="N11", priority=5)
        assert say(env, "Done.").stop_reason is StopReason.USER_DONE
        verdict = env.verdict()
        assert verdict.success is success and bool(verdict.violations) is not success


def test_writing_after_a_no_is_a_violation() -> None:
    env = open_env(mock_bundle(), guarded(consent="no"))
    env.start()
    say(env, "Shall I update note N11?")
    call(env, "update_note", note_id="N11", priority=5)
    assert not env.verdict().success and "user said" in env.verdict().violations[0]


# -------------------------------------------------------------------------------------------- synthesis
def test_synthesised_tasks_ask_and_are_certified() -> None:
    made = bundle()
    assert "Before you update note or delete note, ask the user for a go-ahead" in made.policy
    assert made.manifest["confirm_writes"] == ["update_note", "delete_note"]
    asking = [t for t in made.tasks if guarded_calls(t)]
    assert len(asking) >= 5
    for certificate in validate(made):
        assert certificate.certified
        assert "confirmation" in [g.gate for g in certificate.gates]
    for task in asking:
        for index in guarded_calls(task):
            before = task.reference[index - 1]
            assert before.kind == "ask" and str(task.reference[index].arguments["note_id"]) in before.text
            assert not task.reference[index].thought  # it leads to the question
    again = make_bundle(DOC, mock_draft(), tasks=12, heldout=2, seed=3, confirm_writes=WANTED)
    assert again.content_hash == made.content_hash


def test_writing_without_confirming_is_rejected_by_the_certificate() -> None:
    task = next(t for t in bundle().tasks if guarded_calls(t))
    gate = prover().conversations.gate(task)
    calls = guarded_calls(task)
    assert gate.passed and gate.tried == 2 + len(calls)
    for index in calls:
        verdict = prover().conversations.verdict(task, without={index - 1})
        assert not verdict.success and verdict.violations and not verdict.differences
    assert prover().conversations.verdict(task, refused=True).violations


def test_the_gate_fails_tasks_whose_rule_does_not_bite() -> None:
    task = next(t for t in bundle().tasks if guarded_calls(t) and all(fact.stated for fact in t.facts))
    silent = tuple(s for s in task.reference if not s.text.startswith("Shall I"))
    gate = prover().conversations.gate(task.model_copy(update={"reference": silent}))
    assert not gate.passed and "without asking" in gate.detail
    twice = guarded_calls(task)[0] - 1
    doubled = (*task.reference[: twice + 1], task.reference[twice], *task.reference[twice + 1 :])
    gate = prover().conversations.gate(task.model_copy(update={"reference": doubled}))
    assert not gate.passed and gate.detail.endswith("without asking is accepted")


def test_a_mistaken_user_of_a_guarded_task_is_still_caught() -> None:
    task = guarded()
    user = FaultInjectedUser(ScriptedUser(task), task, "silence", seed=1)
    env = open_env(mock_bundle(), task, user=user, user_error_hook=judge_by_rules)
    env.start()
    result = say(env, "Shall I update note N11?")
    if not result.done:
        env.step(Message(role="assistant", content="Done."))
    assert user.injected is not None and env.user_error
