"""Legal orders, and gate 5: what depends on the order is found by executing, and equivalent runs count."""

from __future__ import annotations

import random
from typing import Any

import pytest

from envgen.errors import TaskError
from envgen.store import environment_identity
from envgen.synthesis import equivalents as module
from envgen.synthesis.bench import workbench
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover
from envgen.synthesis.equivalents import Equivalents, orders_of
from envgen.types import (
    AnswerSlot,
    ArgumentSource,
    Blueprint,
    BlueprintEdge,
    BlueprintNode,
    EnvironmentDraft,
    ReferenceStep,
    StateData,
    StateField,
    StateSchema,
    Task,
    TraceConstraint,
)
from tests.envgen.mock_domain import CLOCK, SCHEMA, SOURCE, initial_state, mock_draft

PLACES = 'note["place"] = len(state.records("notes"))'
"""The n-th note of the world: what a note gets depends on when it is made."""


def draft(extra: str = PLACES) -> EnvironmentDraft:
    notes = SCHEMA.collection("notes")
    place = StateField(name="place", type="integer")
    schema = StateSchema(
        collections=(
            SCHEMA.collection("notebooks"),
            notes.model_copy(update={"fields": (*notes.fields, place)}),
        )
    )
    line = '    state.insert("notes", note["id"], note)'
    source = SOURCE.replace(line, f"    {extra}\n{line}")
    return mock_draft().model_copy(update={"state_schema": schema, "source": source})


def prover(made: EnvironmentDraft) -> Prover:
    return Prover(workbench(build_catalog(made), environment_identity(made), 0))


def create(title: str, node: str, notebook: str = "NB2") -> ReferenceStep:
    return ReferenceStep(
        kind="call",
        tool="create_note",
        arguments={"notebook_id": notebook, "title": title},
        node=node,
    )


def rename(step: int, key: str, node: str) -> ReferenceStep:
    """Give the note that reference step ``step`` made another priority."""
    return ReferenceStep(
        kind="call",
        tool="update_note",
        arguments={"note_id": key, "priority": 4},
        node=node,
        sources=(ArgumentSource(param="note_id", kind="output", detail=f"{step}:id"),),
    )


def task(made: EnvironmentDraft, *steps: ReferenceStep, edges: tuple[tuple[str, str], ...] = ()) -> Task:
    """A task whose accepted state is what its reference does."""
    nodes = tuple(BlueprintNode(id=s.node, kind="tool", tool=s.tool) for s in steps)
    blank = Task(
        id="t",
        environment_id=environment_identity(made),
        instruction="i",
        initial_state=initial_state(),
        accepted_states=(initial_state(),),
        reference=steps,
        blueprint=Blueprint(nodes=nodes, edges=tuple(BlueprintEdge(source=a, target=b) for a, b in edges)),
        pattern="p",
        difficulty=1,
        clock=CLOCK,
        seed=5,
    )
    state = prover(made).equivalents._run(blank, range(len(steps)))  # pyright: ignore[reportPrivateUsage]
    assert state is not None
    return blank.model_copy(update={"accepted_states": (state.snapshot(),)})


def settle(made: EnvironmentDraft, good: Task) -> Any:
    return prover(made).equivalents.settle(good)


def places(state: StateData) -> dict[str, int]:
    return {n["title"]: n["place"] for n in state["notes"].values() if "place" in n}


def test_legal_orders_follow_the_blueprint() -> None:
    made = draft()
    steps = [create(t, n) for t, n in (("a", "w0"), ("b", "w1"), ("c", "w2"), ("d", "w3"))]
    through = task(made, *steps, edges=(("w0", "read"), ("read", "why"), ("why", "w3"), ("w1", "w2")))
    orders = list(orders_of(through, range(4), random.Random(0)))
    assert len(orders) == len(set(orders)) == 6  # of 24: 0 before 3 (through a read), 1 before 2
    assert all(o.index(0) < o.index(3) and o.index(1) < o.index(2) for o in orders)
    assert len(list(orders_of(task(made, *steps), range(4), random.Random(0)))) == 24


def test_order_dependent_fields_are_found_by_execution_and_every_end_state_is_accepted() -> None:
    made = draft()
    settled = settle(made, task(made, create("a", "w0"), create("b", "w1")))
    assert (settled.orders, settled.refused, settled.fields) == (1, 0, ("notes.place",))
    assert [places(s) for s in settled.task.accepted_states] == [{"a": 5, "b": 6}, {"b": 5, "a": 6}]
    # An order that the blueprint forbids is no other right way.
    chained = settle(made, task(made, create("a", "w0"), create("b", "w1"), edges=(("w0", "w1"),)))
    assert (chained.orders, len(chained.task.accepted_states)) == (0, 1)


def test_without_order_dependence_nothing_is_added() -> None:
    made = mock_draft()
    good = task(made, create("a", "w0"), create("b", "w1"))
    settled = settle(made, good)
    assert settled.task.accepted_states == good.accepted_states and settled.fields == ()
    assert settled.orders == 1


def test_gate_5_accepts_equivalent_runs_and_rejects_a_grader_that_is_too_strict() -> None:
    made = draft()
    strict = task(made, create("a", "w0"), create("b", "w1"))
    gate = prover(made).equivalents.gate(strict)
    assert not gate.passed and gate.detail == "order (1, 0): rejected"
    gate = prover(made).equivalents.gate(settle(made, strict).task)
    assert gate.passed and gate.tried == 4  # one other order, extra reads, a retry, other ids


def test_arguments_follow_a_minted_record_to_its_key_of_this_run() -> None:
    made = mock_draft()
    probe = task(made, create("a", "w0"), create("b", "w1"))
    key = next(k for k, n in probe.accepted_states[0]["notes"].items() if n["title"] == "b")
    good = task(made, create("a", "w0"), create("b", "w1"), rename(1, key, "w2"), edges=(("w1", "w2"),))
    settled = settle(made, good)
    assert (settled.orders, settled.refused, settled.fields) == (2, 0, ())
    assert prover(made).equivalents.gate(good).passed


def test_an_order_that_the_environment_refuses_is_not_legal() -> None:
    made = draft('if title == "b" and len(state.records("notes")) < 6: raise ToolError("a first")')
    settled = settle(made, task(made, create("a", "w0"), create("b", "w1")))
    assert (settled.orders, settled.refused, len(settled.task.accepted_states)) == (1, 1, 1)


def test_a_task_with_too_many_end_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STATES", 3)
    made = draft()
    with pytest.raises(TaskError, match="more than 3 states"):
        settle(made, task(made, *(create(t, f"w{t}") for t in "abc")))


def test_a_tool_whose_failed_call_leaves_a_trace_is_caught_by_the_retry() -> None:
    """The clock goes on after an error; a graded field that holds it makes a retry look wrong."""
    made = draft('note["place"] = int(ctx.now()[14:16])')
    good = task(made, create("a", "w0"))
    gate = prover(made).equivalents.gate(good)
    assert (gate.passed, gate.detail) == (False, "a retry after an error: rejected")


# ---------------------------------------------------------------- tasks with answers and constraints
def test_gates_of_a_task_that_only_asks() -> None:
    made = mock_draft()
    read = ReferenceStep(
        kind="call", tool="list_notes", arguments={"notebook_id": "NB1"}, node="r0",
        sources=(ArgumentSource(param="notebook_id", kind="instruction"),),
    )  # fmt: skip
    slot = AnswerSlot(name="count", type="integer", accepted=(3,))
    asked = task(made, read).model_copy(
        update={"answers": (slot,), "closing": '{"count": 3}', "instruction": "How many notes has NB1?"}
    )
    proving = prover(made)
    assert proving.noop(asked).passed and proving.write_dropped(asked).passed
    assert proving.mutants(asked).passed
    assert proving.outputs(asked)[0][0]["title"] == "Milk"
    wrong = asked.model_copy(update={"closing": '{"count": 4}'})
    assert not proving.knowable(wrong).passed
    free = asked.model_copy(update={"answers": ()})
    gates = proving.gates(free)
    assert [(g.gate, g.passed) for g in gates] == [("noop", False)] and "asks for no answer" in gates[
        0
    ].detail


def test_constraints_are_left_to_the_replay_of_whole_conversations() -> None:
    made = mock_draft()
    rule = TraceConstraint(kind="at_least", tools=("list_notebooks",), limit=1)
    good = task(made, create("a", "w0"))
    bound = good.model_copy(update={"constraints": (rule,)})
    assert prover(made).equivalents.gate(bound).passed
    assert isinstance(prover(made).equivalents, Equivalents)
