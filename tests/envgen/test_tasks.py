"""Reasoning by hand, and tasks of the hand-written notes environment read independently."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from envgen.errors import TaskError
from envgen.runtime.env import open_env
from envgen.store import Bundle, environment_identity
from envgen.synthesis.bench import workbench
from envgen.synthesis.blueprint import fetch, infer, resolve, work_out
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover, draft_of
from envgen.synthesis.pipeline import make_bundle, synthesize
from envgen.types import BlueprintNode, Message, Task, ToolCall
from tests.envgen.mock_domain import DOC, mock_draft

RESULT = [
    {"id": "E1", "name": "Fair", "price": 12, "kind": "a"},
    {"id": "E2", "name": "Gala", "price": 7, "kind": "b"},
    {"id": "E3", "name": "Tour", "price": 30, "kind": "a"},
]


def node(reasoning: Any, **more: Any) -> BlueprintNode:
    return BlueprintNode(id="r0", kind="reasoning", reasoning=reasoning, elements=("0:[]",), **more)


def test_paths() -> None:
    assert resolve("[].id", RESULT) == [("[0].id", "E1"), ("[1].id", "E2"), ("[2].id", "E3")]
    assert resolve("items[].a.b", {"items": [{"a": {"b": 1}}, {"a": {}}]}) == [("items[0].a.b", 1)]
    assert fetch("[1].price", RESULT) == 7
    assert fetch("[9].price", RESULT) is None
    assert fetch("", RESULT) is RESULT


@pytest.mark.parametrize(
    ("wanted", "answers", "said"),
    [
        (
            node("argmin", over="price", answer="id", order="min"),
            ["E2"],
            "price: 12, 7, 30 -> lowest 7 is E2",
        ),
        (
            node("argmax", over="price", answer="name", order="max"),
            ["Tour"],
            "price: 12, 7, 30 -> highest 30 is Tour",
        ),
        (node("filter", over="kind", answer="id", value="a"), ["E1", "E3"], "price a: E1, E3"),
        (node("lookup", over="price", answer="id", value=30), ["E3"], "price 30: E3"),
        (node("sum", over="price"), [49], "12+7=19; 19+30=49"),
        (node("count", answer="id"), [3], "1 E1, 2 E2, 3 E3 -> 3"),
        (node("count", over="kind", answer="id", value="a"), [2], "1 E1, 2 E3 -> 2"),
        (
            node("compare", over="price", answer="id", among="name", names=("Fair", "Tour"), order="max"),
            ["E3"],
            "price: 12, 30 -> higher 30 is E3",
        ),
    ],
)
def test_reasoning_by_hand(wanted: BlueprintNode, answers: list[Any], said: str) -> None:
    assert infer(wanted, [RESULT]) == answers
    assert work_out(wanted, [RESULT], "price") == said


def test_ties_and_gaps_are_errors() -> None:
    tied = [{"id": "A", "n": 1}, {"id": "B", "n": 1}]
    with pytest.raises(TaskError, match="ambiguous"):
        infer(node("argmin", over="n", answer="id", order="min"), [tied])
    with pytest.raises(TaskError, match="needs n"):
        infer(node("argmax", over="n", answer="id", order="max"), [[{"id": "A", "n": 1}, {"id": "B"}]])
    with pytest.raises(TaskError, match="0 records"):
        infer(node("filter", over="n", answer="id", value=5), [tied])
    with pytest.raises(TaskError, match="2 records"):
        infer(node("lookup", over="n", answer="id", value=1), [tied])


@cache
def bundle() -> Bundle:
    return make_bundle(DOC, mock_draft(), tasks=60, heldout=15, seed=5)


def tasks() -> tuple[Task, ...]:
    return bundle().tasks


def test_every_task_looks_up_writes_and_never_says_an_id() -> None:
    for task in tasks():
        calls = [s for s in task.reference if s.kind == "call"]
        tools = [s.tool for s in calls]
        assert len(calls) >= 2
        assert tools[0].startswith("list_")
        assert any(t.startswith(("create_", "update_", "delete_")) for t in tools)
        keys = {key for table in task.initial_state.values() for key in table}
        assert not keys & set(re.findall(r"\w+", task.instruction))
        assert not any(tool in task.instruction for tool in tools)


def test_instructions_read_as_sentences() -> None:
    for task in tasks():
        text = task.instruction
        assert text[0].isupper() and text[-1] in ".?"
        assert "  " not in text and "{" not in text and "_" not in text
        assert task.traits is not None and len(text) <= 200 + 120 * (task.traits.demands - 1)
    assert len({task.instruction for task in tasks()}) == len(tasks())


def test_worlds_are_whole_small_and_without_ties() -> None:
    for task in tasks():
        notebooks, notes = task.initial_state["notebooks"], task.initial_state["notes"]
        crowd = {1: 0, 2: 0, 3: 1, 4: 2, 5: 3}[task.difficulty]
        most = 6 + max(crowd, len(task.reference))  # each demand has a record of its own
        assert 2 <= len(notebooks) <= most and len(notes) >= 2
        assert all(note["notebook_id"] in notebooks for note in notes.values())
        assert all(record["id"] == key for table in (notebooks, notes) for key, record in table.items())
        titles = [note["title"] for note in notes.values()]
        assert len(set(titles)) == len(titles)
        priorities = [note["priority"] for note in notes.values() if "priority" in note]
        assert len(set(priorities)) == len(priorities)
        assert list(notes) != sorted(notes) or len(notes) < 4


def test_superlatives_mean_what_they_say() -> None:
    """Read the goal from the words alone; find the record in the initial state without the planner."""
    checked = 0
    for task in tasks():
        found = re.search(
            r"(?:delete|remove|get rid of) the note with the (lowest|highest) priority "
            r'(?:in|of) the notebook "([^"]+)"',
            task.instruction,
            re.IGNORECASE,
        )
        if not found:
            continue
        pick = min if found.group(1) == "lowest" else max
        book = next(k for k, b in task.initial_state["notebooks"].items() if b["name"] == found.group(2))
        notes = [n for n in task.initial_state["notes"].values() if n["notebook_id"] == book]
        wanted = pick(notes, key=lambda n: n["priority"])
        assert wanted["id"] not in task.accepted_states[0]["notes"]
        checked += 1
    assert checked >= 1


def test_references_succeed_through_the_env() -> None:
    made = bundle()
    asked = 0
    for task in made.tasks:
        env = open_env(made, task)
        env.start()
        for step in task.reference:
            if step.kind == "ask":
                asked += 1
                reply = env.step(Message(role="assistant", content=step.text)).observations[0].content
                fact = next(f for f in task.facts if f.sentence == reply)
                assert not fact.stated and str(fact.value) not in task.instruction
            else:
                call = ToolCall(id="1", name=step.tool, arguments=orjson.dumps(step.arguments).decode())
                assert env.step(Message(role="assistant", tool_calls=(call,))).tool_errors == 0
        assert env.step(Message(role="assistant", content=task.closing)).done
        assert env.verdict().success
    assert asked >= 3


def test_blueprints_are_acyclic_and_name_their_steps() -> None:
    for task in tasks():
        order = {n.id: i for i, n in enumerate(task.blueprint.nodes)}
        assert {s.node for s in task.reference} <= set(order)
        assert all(order[e.source] < order[e.target] for e in task.blueprint.edges)
        thoughtful = [s for s in task.reference if s.thought]
        if any(n.kind == "reasoning" for n in task.blueprint.nodes):
            assert thoughtful
            continue
        # plain look-ups: ``label: value``, the label from the user, the value used now
        for step in thoughtful:
            for part in step.thought.split("; "):
                label, _, value = part.rpartition(": ")
                assert label in task.instruction
                assert value in {str(argument) for argument in step.arguments.values()}


def test_a_look_up_is_said_once_before_the_call_that_uses_it() -> None:
    thoughts = [step.thought for task in tasks() for step in task.reference]
    assert any(": " in thought and "->" not in thought for thought in thoughts)
    for task in tasks():
        parts = [part for step in task.reference for part in step.thought.split("; ") if part]
        assert len(parts) == len(set(parts))


def test_sources_trace_to_earlier_results() -> None:
    draft = mock_draft()
    prover = Prover(workbench(build_catalog(draft), environment_identity(draft), 5))
    for task in tasks():
        outputs = prover.outputs(task)
        for index, step in enumerate(task.reference):
            for source in step.sources:
                if source.kind == "output":
                    at, _, path = source.detail.partition(":")
                    assert int(at) < index
                    assert fetch(path, outputs[int(at)]) == step.arguments[source.param]


def test_records_and_writes_are_of_one_kind(examples_dir: Path) -> None:
    """The scheduler's create tools make tasks of type command, api, ai and reminder: no reminder has an api
    url, and no task of ours wants one to have it."""
    own = {
        "command": {"command"},
        "api": {"api_url", "api_method", "api_headers", "api_body"},
        "ai": {"prompt"},
        "reminder": {"message", "title"},
    }
    made = synthesize(examples_dir / "toucan_scheduler_tools.json", tasks=60, heldout=20, seed=0)
    variants = build_catalog(draft_of(made)).variants
    assert list(variants) == ["tasks"] and variants["tasks"].field == "type"
    for name, kinds in variants["tasks"].only.items():
        assert kinds == {kind for kind, fields in own.items() if name in fields}, name
    seen: set[str] = set()
    for task in made.tasks:
        for state in (task.initial_state, *task.accepted_states):
            for record in state["tasks"].values():
                foreign = {n for kind, fields in own.items() if kind != record["type"] for n in fields}
                assert not foreign & set(record) & set(variants["tasks"].only), (task.instruction, record)
                seen |= set(record) & set(variants["tasks"].only)
    assert {"command", "api_url", "prompt", "message"} <= seen


def test_kinds_need_create_tools_that_set_one_field_differently() -> None:
    assert build_catalog(mock_draft()).variants == {}
