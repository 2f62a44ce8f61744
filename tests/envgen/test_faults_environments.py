"""FAULTS.md 3 to 9 and 11 by name (1 and 2: ``test_faults_grading``; 10, users: ``test_faults_users``)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from envgen.errors import BundleError, UnsafeCodeError
from envgen.runtime.env import Env, open_env
from envgen.runtime.regrade import read_trajectories, regrade
from envgen.runtime.sandbox import load_tools
from envgen.store import Bundle, environment_identity, with_tasks
from envgen.synthesis.bench import workbench
from envgen.synthesis.blueprint import infer
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover, draft_of, replay_results
from envgen.synthesis.difficulty import difficulty
from envgen.synthesis.pipeline import make_bundle
from envgen.types import (
    ArgumentSource,
    BlueprintNode,
    Certificate,
    EnvLimits,
    GateResult,
    Message,
    ReferenceStep,
    StopReason,
    Task,
    ToolCall,
    TraceConstraint,
)
from tests.envgen.mock_domain import DOC, SOURCE, initial_state, mock_bundle, mock_draft

BUNDLE = mock_bundle()
LIMITS = EnvLimits(max_turns=64, max_tool_calls=64, max_tool_errors=64)


@cache
def made() -> Bundle:
    return make_bundle(DOC, mock_draft(), tasks=24, heldout=2, seed=4, levels=[1, 2])


@cache
def prover() -> Prover:
    return Prover(workbench(build_catalog(draft_of(made())), made().environment_id, 4))


def one(pattern: str) -> Task:
    return next(t for t in made().tasks if t.pattern == pattern)


def alone(task: Task) -> Bundle:
    return with_tasks(made(), (task,), {"train": [task.id], "heldout": []})


def act(*calls: tuple[str, Any], call_id: str = "c") -> Message:
    return Message(
        role="assistant",
        tool_calls=tuple(ToolCall(id=call_id, name=n, arguments=json.dumps(a)) for n, a in calls),
    )


def begun(bundle: Bundle = BUNDLE, task: str = "notes-1", **options: Any) -> Env:
    env = open_env(bundle, bundle.task(task), limits=LIMITS, **options)
    env.start()
    return env


def with_source(old: str, new: str) -> Bundle:
    draft = replace(BUNDLE, source=SOURCE.replace(old, new))
    identity = environment_identity(draft)
    tasks = tuple(t.model_copy(update={"environment_id": identity}) for t in BUNDLE.tasks)
    return replace(draft, environment_id=identity, tasks=tasks)


# ------------------------------------------------------------------------------- 3: wrong reference
def test_fault_3_an_argument_for_something_that_does_not_exist() -> None:
    good = one("lookup+delete")
    last = good.reference[-1].model_copy(update={"arguments": {"note_id": "N0"}})
    gate = prover().gates(good.model_copy(update={"reference": (*good.reference[:-1], last)}))[-1]
    assert not gate.passed and "is refused: no note N0" in gate.detail


def test_fault_3_a_failing_reference_action_is_not_only_logged() -> None:
    """The state is right at the end, yet one call of the reference was answered with an error."""
    good = one("lookup+delete")
    extra = ReferenceStep(kind="call", tool="get_note", arguments={"note_id": "N0"}, node="x")
    spoilt = good.model_copy(update={"reference": (*good.reference, extra)})
    assert not replay_results(alone(spoilt))[good.id].passed


def test_fault_3_an_action_that_the_policy_forbids() -> None:
    rule = TraceConstraint(kind="confirm_before", tools=("delete_note",))
    good = one("lookup+delete")
    assert replay_results(alone(good))[good.id].passed
    bound = good.model_copy(update={"constraints": (rule,)})
    assert not replay_results(alone(bound))[good.id].passed  # its reference never asks


def test_fault_3_a_result_computed_wrongly() -> None:
    """A computed argument is worked out again from the outputs."""
    good = next(t for t in made().tasks if any(s.kind == "reasoning" for r in t.reference for s in r.sources))
    index = next(i for i, r in enumerate(good.reference) if any(s.kind == "reasoning" for s in r.sources))
    step = good.reference[index]
    param = next(s.param for s in step.sources if s.kind == "reasoning")
    others = [k for k in good.initial_state["notes"] if k != step.arguments.get(param)]
    wrong = step.model_copy(update={"arguments": {**step.arguments, param: others[0]}})
    steps = (*good.reference[:index], wrong, *good.reference[index + 1 :])
    assert not all(g.passed for g in prover().gates(good.model_copy(update={"reference": steps})))


# ------------------------------------------------------------------------------- 4: knowledge
def test_fault_4_the_reference_uses_what_the_agent_cannot_know() -> None:
    good = one("lookup+delete")
    guess = (ArgumentSource(param="note_id", kind="constant"),)
    last = good.reference[-1].model_copy(update={"sources": guess})
    gate = prover().gates(good.model_copy(update={"reference": (*good.reference[:-1], last)}))[-1]
    assert (gate.gate, gate.passed) == ("knowable", False)


@pytest.mark.parametrize("kind", ["id", "tool", "steps"])
def test_fault_4_the_text_leaks_the_answer(kind: str) -> None:
    good = one("lookup+delete")
    key = good.reference[-1].arguments["note_id"]
    said = {"id": f" ({key})", "tool": " Call delete_note.", "steps": " First list_notebooks, then go on."}[
        kind
    ]
    gate = prover().gates(good.model_copy(update={"instruction": good.instruction + said}))[0]
    assert (gate.gate, gate.passed) == ("leak", False)


def test_fault_4_a_goal_that_binds_to_several_records_is_an_error() -> None:
    rows = [{"id": "a", "price": 1}, {"id": "b", "price": 1}, {"id": "c", "price": 2}]
    node = BlueprintNode(
        id="r",
        kind="reasoning",
        reasoning="argmin",
        elements=("0:[]",),
        over="price",
        answer="id",
        order="min",
    )
    with pytest.raises(Exception, match="2 records share"):
        infer(node, [rows])
    assert infer(node.model_copy(update={"order": "max"}), [rows]) == ["c"]


# ------------------------------------------------------------------------------- 5: solvable, alive
def test_fault_5_every_task_is_solvable_by_its_reference() -> None:
    assert all(result.passed for result in replay_results(made()).values())


def test_fault_5_no_dead_end_world() -> None:
    """Reads off the reference path answer too: every record can be opened, every parent listed, and half of
    the lists or more hold something."""
    for task in made().tasks:
        env = begun(made(), task.id)
        filled = []
        for key in task.initial_state["notebooks"]:
            seen = env.step(act(("list_notes", {"notebook_id": key}))).observations[0].content
            filled.append(seen != "[]")
        assert 2 * sum(filled) >= len(filled)
        for key in task.initial_state["notes"]:
            assert env.step(act(("get_note", {"note_id": key}))).tool_errors == 0


# ------------------------------------------------------------------------------- 6: determinism
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import uuid", "import"),
        ("import random", "import"),
        ("from datetime import datetime", "import"),
        ("x = hash('a')", "hash"),
        ("x = id(state)", "id"),
        ("x = list({'a', 'b'})", "set"),
        ("x = ctx.seed", "seed"),
    ],
)
def test_fault_6_sources_of_non_determinism_are_refused(code: str, words: str) -> None:
    head = "def get_note(state, ctx, note_id):\n"
    with pytest.raises(UnsafeCodeError, match=words):
        load_tools(SOURCE.replace(head, f"{head}    {code}\n"))


def test_fault_6_no_hidden_module_state_is_shared_by_episodes() -> None:
    source = "COUNT = {'n': 0}\n\n\n" + SOURCE.replace(
        "def get_note(state, ctx, note_id):\n",
        "def get_note(state, ctx, note_id):\n    COUNT['n'] = COUNT['n'] + 1\n",
    )
    env = begun(with_source(SOURCE, source))
    result = env.step(act(("get_note", {"note_id": "N11"})))
    assert result.stop_reason is StopReason.ENV_ERROR  # tables of a module are frozen
    assert "mappingproxy" in env.defect
    kept = [begun(task="notes-2") for _ in range(2)]
    answers = [
        [e.step(act(("create_note", {"notebook_id": "NB1", "title": "x"}))).observations for _ in range(2)]
        for e in kept
    ]
    assert answers[0] == answers[1] and answers[0][0] != answers[0][1]


# ------------------------------------------------------------------------------- 7: unsafe code
@pytest.mark.parametrize(
    "name", ["__class__", "__init__", "snapshot", "TOOLS", "ToolError", "list_notes.__globals__", "exec", ""]
)
def test_fault_7_only_tools_of_the_closed_table_can_be_called(name: str) -> None:
    env = begun()
    result = env.step(act((name, {})))
    assert result.tool_errors == 1 and not result.done
    assert "unknown tool" in result.observations[0].content and env.state.delta().empty


@pytest.mark.parametrize("code", ["exec('1')", "eval('1')", "open('x')", "x = (1).__class__", "globals()"])
def test_fault_7_generated_code_is_refused_before_it_runs(code: str) -> None:
    head = "def get_note(state, ctx, note_id):\n"
    with pytest.raises(UnsafeCodeError, match="line"):
        load_tools(SOURCE.replace(head, f"{head}    {code}\n"))


# ------------------------------------------------------------------------------- 8: broken tools
def test_fault_8_a_tool_that_breaks_is_dropped_by_name_before_any_task_is_made() -> None:
    draft = mock_draft()
    broken = draft.source.replace('    return {"deleted": note_id}', "    return 1 / 0")
    bundle = make_bundle(DOC, draft.model_copy(update={"source": broken}), tasks=6, heldout=1, seed=4)
    assert bundle.report.refused["delete_note"].startswith("its tests fail")
    assert "delete_note" not in {tool.name for tool in bundle.tools}
    assert not any(step.tool == "delete_note" for task in bundle.tasks for step in task.reference)


def test_fault_8_tools_without_a_function_are_no_bundle() -> None:
    bundle = with_source('    "get_note": get_note,\n', "")
    with pytest.raises(BundleError, match="differ in get_note"):
        begun(bundle)


@pytest.mark.parametrize(
    ("gates", "certified"),
    [((True, True), True), ((True, False), False), ((), False)],
)
def test_fault_8_a_failed_check_is_never_a_pass(gates: tuple[bool, ...], certified: bool) -> None:
    results = tuple(GateResult(gate="replay", passed=p) for p in gates)
    assert Certificate(task_id="t", gates=results).certified is certified


# ------------------------------------------------------------------------------- 9: tasks
def test_fault_9_no_duplicates() -> None:
    texts = [t.instruction.casefold() for t in made().tasks]
    assert len(set(texts)) == len(texts)


def test_fault_9_difficulty_is_not_only_length() -> None:
    assert difficulty(3, 1) > difficulty(3, 0)


def test_fault_9_a_violated_procedure_fails_though_the_state_is_right() -> None:
    rule = TraceConstraint(kind="only_after", tools=("update_note",), first=("get_note",), same=("note_id",))
    task = BUNDLE.task("notes-1").model_copy(update={"constraints": (rule,)})
    update = act(("update_note", {"note_id": "N11", "priority": 5}))
    for before, success in (
        (("get_note", {"note_id": "N11"}), True),
        (("get_note", {"note_id": "N12"}), False),
    ):
        env = open_env(BUNDLE, task, limits=LIMITS)
        env.start()
        env.step(act(before))
        env.step(update)
        verdict = env.verdict()
        assert verdict.success is success and bool(verdict.violations) is not success
        assert verdict.differences == ()


# ------------------------------------------------------------------------------- 11: ids, moving scores
def test_fault_11_call_ids_that_collide_lose_no_grade() -> None:
    env = begun()
    result = env.step(
        act(("list_notebooks", {}), ("update_note", {"note_id": "N11", "priority": 5}), ("nope", {}))
    )
    assert [o.name for o in result.observations] == ["list_notebooks", "update_note", "nope"]
    assert result.tool_errors == 1
    env.step(act(("get_note", {"note_id": "N11"})))  # the same id again, in another turn
    assert env.verdict().success
    slow = TraceConstraint(kind="at_most", tools=("update_note",), limit=1)
    again = open_env(BUNDLE, BUNDLE.task("notes-1").model_copy(update={"constraints": (slow,)}))
    again.start()
    again.step(act(*[("update_note", {"note_id": "N11", "priority": 5})] * 2))
    assert again.verdict().violations == ("update_note was called 2 times, allowed: 1",)


def test_fault_11_a_grading_change_does_not_move_old_scores_silently() -> None:
    env = begun()
    env.step(act(("update_note", {"note_id": "N11", "priority": 5})))
    row = {
        "task_id": "notes-1",
        "success": env.verdict().success,
        "messages": [m.model_dump(mode="json") for m in env.transcript],
    }
    assert [r.moved for r in regrade(BUNDLE, read_trajectories([json.dumps(row)], "f"))] == [False]
    goal = initial_state()
    goal["notes"]["N11"]["title"] = "Oat milk"
    task = BUNDLE.task("notes-1").model_copy(update={"accepted_states": (goal,)})
    changed = replace(BUNDLE, tasks=(task, *BUNDLE.tasks[1:]))
    assert [r.moved for r in regrade(changed, read_trajectories([json.dumps(row)], "f"))] == [True]
