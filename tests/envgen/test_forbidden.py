"""Rules of the domain, and tasks that one of them forbids."""

from functools import cache
from pathlib import Path

import orjson
import pytest

from envgen.errors import BundleError, RefusedDocument
from envgen.proposers.rules import propose
from envgen.proposers.rules.limits import with_all_rules
from envgen.runtime.domain import breaks
from envgen.runtime.env import open_env
from envgen.runtime.state import State
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.synthesis.candidates import Recipe, prover_of
from envgen.synthesis.certify import draft_of, validate
from envgen.synthesis.pipeline import synthesize
from envgen.tooldocs.read import read_tool_doc
from envgen.types import DomainRule, Message, StopReason, Task, ToolCall, ToolDoc

CHECKLIST = "docker_simplechecklist_tools.json"


@cache
def made(folder: Path) -> Bundle:
    return synthesize(folder / CHECKLIST, tasks=16, heldout=4, seed=3, forbidden_share=0.5)


def forbidden(bundle: Bundle) -> list[Task]:
    return [task for task in bundle.tasks if task.refused is not None]


def saying(folder: Path, **sentences: str) -> ToolDoc:
    """The checklist's document with a sentence more in the description of some tools."""
    doc = read_tool_doc(folder / CHECKLIST)
    tools = tuple(
        t.model_copy(update={"description": f"{t.description} {sentences.get(t.name, '')}".strip()})
        for t in doc.tools
    )
    return doc.model_copy(update={"tools": tools})


def end(bundle: Bundle, task: Task, messages: list[Message]) -> bool:
    env = open_env(bundle, task)
    env.start()
    for message in messages:
        if env.stop_reason is None:
            env.step(message)
    return env.verdict().success


def call(name: str, arguments: dict[str, object]) -> Message:
    text = orjson.dumps(arguments).decode()
    return Message(role="assistant", tool_calls=(ToolCall(id="c", name=name, arguments=text),))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


# ------------------------------------------------------------------------------------------------- rules
def test_rules_come_from_sentences_with_the_place_they_stand_at(examples_dir: Path) -> None:
    doc = saying(
        examples_dir,
        delete_task="Completed tasks cannot be deleted.",
        update_task="Only tasks whose priority is high or medium can be changed.",
    )
    rules = {rule.tools[0]: rule for rule in propose(doc).rules}
    tools = {tool.name: tool for tool in doc.tools}
    never = rules["delete_task"]
    assert (never.kind, never.collection, never.field, never.values) == (
        "field_not_in", "tasks", "completed", (True,),
    )  # fmt: skip
    assert never.provenance == tools["delete_task"].pointer and not never.enforced
    assert (
        "update_task" not in rules
    )  # it sets the priority itself: the sentence limits nothing of the record
    assert never.text in propose(doc).policy
    assert never.text == "R1: Never delete a task whose completed is true."


def test_a_number_that_a_document_limits_is_a_rule(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "museum_openapi31.yaml")
    tools = tuple(
        t.model_copy(
            update={
                "params": tuple(
                    p.model_copy(update={"description": "Price in euros, at most 50."})
                    if p.name == "price"
                    else p
                    for p in t.params
                )
            }
        )
        for t in doc.tools
    )
    draft = propose(doc.model_copy(update={"tools": tools}))
    limits = [rule for rule in draft.rules if rule.kind == "at_most"]
    assert limits and all(r.values == (50,) and r.field == "price" for r in limits)
    made = synthesize(doc.model_copy(update={"tools": tools}), tasks=6, heldout=1, seed=0)
    for task in made.tasks:
        for step in task.reference:
            assert step.arguments.get("price", 0) <= 50 or step.tool not in {
                t for r in limits for t in r.tools
            }


def test_a_document_that_states_nothing_has_no_rule_until_it_is_wanted(
    examples_dir: Path, tmp_path: Path
) -> None:
    plain = propose(read_tool_doc(examples_dir / CHECKLIST))
    assert plain.rules == ()
    ruled = with_all_rules(plain)
    assert ruled.rules and all(r.provenance.startswith("assumption: ") for r in ruled.rules)
    assert [r.id for r in ruled.rules] == [f"R{n}" for n in range(1, len(ruled.rules) + 1)]
    bundle = synthesize(examples_dir / CHECKLIST, tasks=2, heldout=0, seed=0)
    write_bundle(bundle, tmp_path / "plain")
    assert not (tmp_path / "plain" / "rules.json").exists()


def test_enforced_preconditions_are_rules_with_their_place(examples_dir: Path) -> None:
    ruled = with_all_rules(propose(read_tool_doc(examples_dir / "museum_openapi31.yaml")))
    rule = next(r for r in ruled.rules if r.kind == "no_children")
    assert rule.enforced and rule.tools == ("deleteSpecialEvent",)


@pytest.mark.parametrize(
    ("kind", "values", "holds", "broken"),
    [
        ("field_not_in", ("closed",), "closed", True),
        ("field_not_in", ("closed",), "open", False),
        ("field_in", ("open",), "closed", True),
        ("field_in", ("open", "closed"), "closed", False),
    ],
)
def test_rules_are_executed_on_the_state(
    examples_dir: Path, kind: str, values: tuple[str, ...], holds: str, broken: bool
) -> None:
    draft = propose(read_tool_doc(examples_dir / CHECKLIST))
    semantics = next(s for s in draft.semantics if s.tool == "delete_task")
    assert semantics.key is not None
    rule = DomainRule.model_validate(
        {
            "id": "R1", "kind": kind, "tools": ("delete_task",), "collection": "tasks", "field": "priority",
            "values": values, "text": "x", "provenance": "assumption: test",
        }
    )  # fmt: skip
    state = State({"tasks": {"T1": {"id": "T1", "priority": holds}}}, ["tasks"])
    arguments = {semantics.key.param: "T1"}
    assert breaks(rule, semantics, draft.state_schema, state, arguments) is broken
    assert not breaks(rule, semantics, draft.state_schema, state, {semantics.key.param: "T9"})
    assert not breaks(rule, semantics, draft.state_schema, state, {})
    other = next(s for s in draft.semantics if s.tool == "update_task")
    assert not breaks(rule, other, draft.state_schema, state, arguments)


# ------------------------------------------------------------------------------------------------- tasks
def test_a_bundle_mixes_them_in_and_proves_them(examples_dir: Path) -> None:
    bundle = made(examples_dir)
    wanted = forbidden(bundle)
    assert 5 <= len(wanted) <= 11
    assert all(c.certified for c in bundle.certificates)
    assert all(any(g.gate == "policy" and g.passed for g in c.gates) for c in bundle.certificates)
    assert all(c.certified for c in validate(bundle))
    for task in wanted:
        assert task.accepted_states == (task.initial_state,)
        assert [slot.name for slot in task.answers] == ["refused", "record"]
        assert str(task.answers[1].accepted[0]) not in task.instruction
        assert task.reference and all(step.kind == "call" for step in task.reference)
        assert "R1" not in task.instruction and "rule" not in task.instruction.lower()


def test_doing_nothing_fails_the_change_fails_and_a_refusal_after_looking_passes(examples_dir: Path) -> None:
    bundle = made(examples_dir)
    for task in forbidden(bundle):
        asked = task.refused
        assert asked is not None
        change = call(asked.tool, asked.arguments)
        looks = [call(step.tool, step.arguments) for step in task.reference]
        right = say(task.closing)
        rule, record = (slot.accepted[0] for slot in task.answers)
        assert end(bundle, task, [*looks, right])
        assert not end(bundle, task, [])
        assert not end(bundle, task, [say("Done.")])
        assert not end(bundle, task, [*looks, say("I must not do that.")])
        assert not end(bundle, task, [*looks, change, say("Done.")])
        assert not end(bundle, task, [*looks, change, right])
        assert not end(bundle, task, [say(orjson.dumps({"refused": rule}).decode())])
        assert not end(bundle, task, [say(orjson.dumps({"refused": rule, "record": "X1"}).decode())])
        assert not end(bundle, task, [say(orjson.dumps({"refused": "R99", "record": record}).decode())])


def test_the_change_itself_would_go_through(examples_dir: Path) -> None:
    """The tool lets it pass: only the agent keeps the rule."""
    bundle = made(examples_dir)
    for task in forbidden(bundle):
        asked = task.refused
        assert asked is not None
        env = open_env(bundle, task)
        env.start()
        result = env.step(call(asked.tool, asked.arguments))
        assert result.tool_errors == 0 and not env.state.delta().empty
        end_ = env.step(say(task.closing))
        assert end_.stop_reason is StopReason.USER_DONE
        assert "was called 1 times, allowed: 0" in env.verdict().violations[0]


def test_the_gate_catches_what_no_rule_forbids_and_a_reference_that_breaks_one(examples_dir: Path) -> None:
    bundle = made(examples_dir)
    draft = draft_of(bundle)
    proof = prover_of(Recipe(draft, bundle.environment_id, 0, 4))
    task = forbidden(bundle)[0]
    rule = next(r for r in bundle.rules if task.refused and r.id == task.refused.rule)
    state = orjson.loads(orjson.dumps(task.initial_state))
    for record in state[rule.collection].values():
        record[rule.field] = False
    allowed = task.model_copy(update={"initial_state": state, "accepted_states": (state,)})
    found = proof.policy.gate(allowed)
    assert not found.passed and "breaks []" in found.detail
    change = next(
        t for t in bundle.tasks if t.refused is None and any(s.tool in rule.tools for s in t.reference)
    )
    state = orjson.loads(orjson.dumps(change.initial_state))
    for record in state[rule.collection].values():
        record[rule.field] = True
    found = proof.policy.gate(change.model_copy(update={"initial_state": state}))
    assert not found.passed and rule.id in found.detail


def test_an_environment_without_a_rule_that_can_be_seen_is_refused_by_name(examples_dir: Path) -> None:
    with pytest.raises(RefusedDocument) as caught:
        synthesize(examples_dir / "museum_openapi31.yaml", tasks=3, heldout=1, seed=0, forbidden_share=0.5)
    assert caught.value.findings[0].code == "no-rule"


# ------------------------------------------------------------------------------------------------- on disk
def test_rules_stand_in_the_bundle_and_must_fit_its_policy(examples_dir: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    bundle = made(examples_dir)
    write_bundle(bundle, tmp_path / "b")
    again = load_bundle(tmp_path / "b")
    assert again.rules == bundle.rules and again.tasks == bundle.tasks
    assert again.content_hash == bundle.content_hash
    lost = replace(bundle, rules=bundle.rules[1:])
    with pytest.raises(BundleError, match=r"rules\.json"):
        write_bundle(lost, tmp_path / "lost")
    other = bundle.rules[0].model_copy(update={"text": "R1: Never mind."})
    with pytest.raises(BundleError, match=r"policy\.md differ in R1"):
        write_bundle(replace(bundle, rules=(other, *bundle.rules[1:])), tmp_path / "other")
