"""Coverage measures against counts by hand, levels, and the scripted solver."""

import itertools
import re
from functools import cache

import pytest

from envgen.store import Bundle
from envgen.synthesis.certify import draft_of
from envgen.synthesis.coverage import (
    Likeness,
    executable_edges,
    fingerprint,
    idle_reason,
    likeness,
    measure,
    shortfalls,
)
from envgen.synthesis.difficulty import LEVELS, difficulty, level_of, parse_levels
from envgen.synthesis.graph import build_graph
from envgen.synthesis.pipeline import make_bundle
from envgen.synthesis.solver import PERFECT, ScriptedSolver, Skill, success_rates
from envgen.types import EnvLimits, ToolEdge
from tests.envgen.mock_domain import DOC, mock_draft


@cache
def bundle() -> Bundle:
    return make_bundle(DOC, mock_draft(), tasks=60, heldout=15, seed=5)


def test_figures_are_those_of_the_tasks() -> None:
    made = bundle()
    report = made.report.coverage
    assert report is not None and report == measure(made.tasks, draft_of(made), made.graph)
    full = [tuple(s.tool for s in t.reference if s.kind != "ask") for t in made.tasks]
    writing = {s.tool for s in made.semantics if s.writes_state}
    writes = [tuple(tool for tool in sequence if tool in writing) for sequence in full]
    assert report.tasks == report.writing_tasks == 60
    assert report.unique_sequences == len(set(full))
    assert report.unique_write_sequences == len(set(writes))
    assert report.tasks_per_writer == {
        tool: sum(tool in w for w in writes) for tool in report.tasks_per_writer
    }
    assert set(report.tasks_per_writer) == writing
    assert sum(report.levels.values()) == 60


def test_the_goals_are_reached_on_the_notes() -> None:
    report = bundle().report.coverage
    assert report is not None
    assert report.unique_sequences >= 57 and report.unique_write_sequences >= 39
    assert report.near_duplicates == 0
    assert min(report.tasks_per_writer.values()) >= 3
    assert report.edges_used >= 0.8 * report.edges_executable
    assert shortfalls(report) == ()


def test_what_is_not_reached_is_named() -> None:
    report = bundle().report.coverage
    assert report is not None
    poor = report.model_copy(
        update={
            "unique_sequences": 30, "unique_write_sequences": 20, "near_duplicates": 5, "edges_used": 1,
            "tasks_per_writer": {"create_note": 40, "delete_note": 2},
        }
    )  # fmt: skip
    said = " / ".join(shortfalls(poor))
    assert "30 different tool sequences in 60 tasks" in said and "20 different write sequences" in said
    assert "5 near duplicates" in said and "delete_note (2)" in said
    assert f"1 of {report.edges_executable} executable edges" in said
    assert "create_note" not in said


def test_a_small_world_runs_out_of_new_sequences_and_says_so() -> None:
    made = make_bundle(DOC, mock_draft(), tasks=70, heldout=1, seed=1, levels=[1])
    report = made.report.coverage
    assert report is not None and len(made.tasks) == 70
    assert {task.difficulty for task in made.tasks} == {1}
    assert report.unique_sequences < 67
    assert any("different tool sequences" in short for short in shortfalls(report))


def edge(source: str, target: str, param: str, collection: str) -> ToolEdge:
    return ToolEdge(
        source=source, target=target, output_path="", param=param, collection=collection, field="id"
    )


@pytest.mark.parametrize(
    ("source", "target", "param", "collection", "reason"),
    [
        ("list_notebooks", "list_notes", "notebook_id", "notebooks", ""),
        ("list_notes", "update_note", "note_id", "notes", ""),
        ("list_notes", "delete_note", "note_id", "notes", ""),
        ("update_note", "delete_note", "note_id", "notes", "told"),
        ("create_note", "delete_note", "note_id", "notes", "undone"),
    ],
)
def test_edges_nobody_would_go(source: str, target: str, param: str, collection: str, reason: str) -> None:
    draft = mock_draft()
    semantics = {s.tool: s for s in draft.semantics}
    assert idle_reason(edge(source, target, param, collection), semantics, draft.state_schema) == reason


def test_every_edge_is_executable_or_idle_for_a_reason() -> None:
    draft = mock_draft()
    graph = build_graph(draft)
    useful, idle = executable_edges(graph, draft.semantics, draft.state_schema)
    distinct = {(e.source, e.target, e.param) for e in graph.edges}
    assert useful <= distinct and useful
    assert len(useful) + sum(idle.values()) >= len(distinct)


def test_near_duplicates_are_blind_to_names_and_numbers() -> None:
    one = fingerprint('Delete the note "Old Plan" in the notebook "Work".')
    assert one == fingerprint('Delete the note "New Idea" in the notebook "Home".')
    assert fingerprint("Set it to 12.") == fingerprint("Set it to 2024-03-01.")
    assert likeness(one, fingerprint("Create a notebook.")) < 0.3
    alike = Likeness()
    first, second = bundle().tasks[:2]
    alike.note(first)
    said = re.sub(r'"([^"]*)"', r'"not \1"', first.instruction)
    renamed = first.model_copy(update={"id": "other", "instruction": said})
    assert alike.near(renamed)
    assert not alike.near(second)


def test_levels_by_calls_and_reasoning() -> None:
    assert [difficulty(calls, 0) for calls in (2, 4, 5, 7, 8, 11, 12, 18)] == [1, 1, 3, 3, 4, 4, 5, 5]
    assert [difficulty(3, 1), difficulty(3, 2), difficulty(8, 5)] == [2, 3, 4]
    assert [level.number for level in LEVELS] == [1, 2, 3, 4, 5]
    for level, harder in itertools.pairwise(LEVELS):
        assert level.crowd <= harder.crowd and level.hidden <= harder.hidden
        assert level.demands <= harder.demands and level.body < harder.body


def test_levels_as_people_write_them() -> None:
    assert parse_levels("3") == (3,)
    assert parse_levels("2-4") == (2, 3, 4)
    assert parse_levels("5, 1") == (1, 5)
    for wrong in ("", "0", "6", "4-2", "hard", "1-"):
        with pytest.raises(ValueError, match=r"got (difficulty|level)"):
            parse_levels(wrong)


def test_traits_are_those_of_the_reference() -> None:
    made = bundle()
    writing = {s.tool for s in made.semantics if s.writes_state}
    for task in made.tasks:
        traits = task.traits
        assert traits is not None
        steps = [step.tool for step in task.reference if step.kind != "ask"]
        assert (traits.calls, traits.writes) == (len(steps), sum(tool in writing for tool in steps))
        assert traits.hidden == sum(not fact.stated for fact in task.facts)
        assert traits.demands == len(task.pattern.split(" & "))
        assert task.difficulty == difficulty(traits.calls, traits.reasoning)
        assert traits.calls <= level_of(task.difficulty).calls[1] and traits.distractors >= 0
    hard = [t.traits for t in made.tasks if t.difficulty >= 4 and t.traits]
    easy = [t.traits for t in made.tasks if t.difficulty <= 2 and t.traits]
    assert sum(t.demands for t in hard) / len(hard) > sum(t.demands for t in easy) / len(easy)


def test_the_default_budgets_leave_room_for_the_hardest_tasks() -> None:
    limits, hardest = EnvLimits(), LEVELS[-1]
    steps = hardest.calls[1] + hardest.hidden_most + 1
    assert limits.max_turns >= 1.5 * steps and limits.max_tool_calls >= 1.5 * hardest.calls[1]
    assert all(len(task.reference) + 1 <= steps for task in bundle().tasks)


def test_a_solver_without_limits_solves_everything_and_one_without_skill_nothing() -> None:
    made = bundle()
    for level, runs in success_rates(made, PERFECT, (0,)).items():
        assert runs[0][0] == runs[0][1], level
    hopeless = Skill(plan=0.0)
    assert not any(ScriptedSolver(made, hopeless, 0).solves(task) for task in made.tasks)


def test_harder_levels_are_solved_less_often() -> None:
    """Pooled, since ten tasks a level are few; `benchmarks/tasks.py` measures level by level."""
    rates = success_rates(bundle(), Skill(), range(4))
    assert sorted(rates) == [1, 2, 3, 4, 5]
    shares: list[float] = []
    for levels in ((1, 2), (3,), (4, 5)):
        runs = [run for level in levels for run in rates[level]]
        shares.append(sum(good for good, _ in runs) / sum(number for _, number in runs))
    assert all(easier > harder for easier, harder in itertools.pairwise(shares)), shares


def test_each_weakness_alone_costs_tasks() -> None:
    made = bundle()
    blunt = {"read": 0.7, "reason": 0.3, "ask": 0.2, "attention": 1, "span": 0, "plan": 0.7}
    for weakness, worth in blunt.items():
        weak = Skill(**{**vars(PERFECT), weakness: worth})
        runs = success_rates(made, weak, (0,)).values()
        assert sum(r[0][0] for r in runs) < len(made.tasks), weakness
