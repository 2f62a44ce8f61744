"""The gates: a good task passes all of them, and each kind of spoilt task fails at its own gate."""

import os
import subprocess
from functools import cache
from typing import Any

import pytest

from envgen.store import Bundle, with_tasks
from envgen.synthesis.bench import workbench
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover, certify, draft_of, judge_replays, replay_results, validate
from envgen.synthesis.pipeline import make_bundle
from envgen.synthesis.replay import replay_fresh
from envgen.types import ArgumentSource, ReferenceStep, Task
from tests.envgen.mock_domain import DOC, mock_draft


@cache
def bundle() -> Bundle:
    return make_bundle(DOC, mock_draft(), tasks=30, heldout=5, seed=2, levels=[1, 2])


@cache
def prover() -> Prover:
    return Prover(workbench(build_catalog(draft_of(bundle())), bundle().environment_id, 2))


def task(pattern: str) -> Task:
    found = next((t for t in bundle().tasks if t.pattern == pattern), None)
    assert found is not None, sorted({t.pattern for t in bundle().tasks})
    return found


def failed_gate(spoilt: Task) -> str:
    gates = prover().gates(spoilt)
    assert not gates[-1].passed, "the spoilt task passed"
    return gates[-1].gate


def edit(good: Task, index: int, **changes: object) -> Task:
    steps = list(good.reference)
    steps[index] = steps[index].model_copy(update=changes)
    return good.model_copy(update={"reference": tuple(steps)})


def last(good: Task) -> ReferenceStep:
    return good.reference[-1]


def test_good_tasks_pass_every_gate() -> None:
    for good in bundle().tasks:
        gates = {g.gate: g for g in prover().gates(good)}
        assert set(gates) == {
            "leak",
            "knowable",
            "binding",
            "noop",
            "write_dropped",
            "equivalents",
            "mutants",
        }
        assert all(g.passed for g in gates.values())
        assert 10 <= gates["mutants"].tried <= 12
    assert certify(bundle(), bundle().tasks[0]).certified


def test_validate_proves_all_tasks_again_in_fresh_processes() -> None:
    certificates = validate(bundle())
    assert [c.task_id for c in certificates] == [t.id for t in bundle().tasks]
    assert all(c.certified and c.gates[0].gate == "replay" and c.gates[0].tried == 3 for c in certificates)
    shipped = [[g.gate for g in c.gates] for c in bundle().certificates]
    assert [[g.gate for g in c.gates] for c in certificates] == shipped


def test_validate_proves_gate_9_too() -> None:
    """Two tasks with the same words, apart from case: the second one fails, and says whose they are."""
    made = bundle()
    first, second = made.tasks[:2]
    twin = first.model_copy(update={"id": second.id, "instruction": first.instruction.upper()})
    few = (first, twin, made.tasks[2])
    spoilt = with_tasks(made, few, {"train": [t.id for t in few], "heldout": []})
    gates = [c.gates[-1] for c in validate(spoilt)]
    assert [(g.gate, g.passed) for g in gates] == [
        ("duplicate", True), ("duplicate", False), ("duplicate", True),
    ]  # fmt: skip
    assert gates[1].detail == f"same instruction as {first.id}"


def test_a_goal_that_is_already_true_is_rejected() -> None:
    good = task("lookup+delete")
    spoilt = good.model_copy(update={"accepted_states": (*good.accepted_states, good.initial_state)})
    assert failed_gate(spoilt) == "noop"


def test_a_write_without_need_is_rejected() -> None:
    good, listed, shown = next(
        (found, at, [n["id"] for n in result])
        for found in bundle().tasks
        if found.pattern.endswith("lookup+delete")
        for at, (step, result) in enumerate(zip(found.reference, prover().outputs(found), strict=True))
        if step.tool == "list_notes" and len(result) > 1 and last(found).tool == "delete_note"
    )
    note = good.initial_state["notes"][next(k for k in shown if k != last(good).arguments["note_id"])]
    key = ArgumentSource(param="note_id", kind="output", detail=f"{listed}:[{shown.index(note['id'])}].id")
    path = ArgumentSource(param="title", kind="instruction", detail=note["title"])
    needless = ReferenceStep(
        kind="call",
        tool="update_note",
        arguments={"note_id": note["id"], "title": note["title"]},
        sources=(key, path),
    )
    text = f'{good.instruction} Keep the title "{note["title"]}".'
    spoilt = good.model_copy(update={"reference": (*good.reference, needless), "instruction": text})
    assert failed_gate(spoilt) == "write_dropped"


def test_a_task_that_only_reads_is_rejected() -> None:
    good = task("lookup+delete")
    spoilt = good.model_copy(
        update={"reference": good.reference[:-1], "accepted_states": (good.initial_state,)}
    )
    assert failed_gate(spoilt) in ("noop", "write_dropped")


def test_an_accepted_wrong_entity_is_found_by_the_mutants() -> None:
    good = task("lookup+delete")
    others = [k for k in good.initial_state["notes"] if k != last(good).arguments["note_id"]]
    wrong = tuple(
        {**good.initial_state, "notes": {k: v for k, v in good.initial_state["notes"].items() if k != other}}
        for other in others
    )
    assert (
        failed_gate(good.model_copy(update={"accepted_states": (*good.accepted_states, *wrong)})) == "mutants"
    )


@pytest.mark.parametrize("kind", ["id", "tool", "value"])
def test_leaks(kind: str) -> None:
    good = task("lookup+delete")
    key = last(good).arguments["note_id"]
    said = {"id": f" It is {key}.", "tool": " Use delete_note.", "value": f" Its key is {key}!"}[kind]
    assert failed_gate(good.model_copy(update={"instruction": good.instruction + said})) == "leak"


def test_an_argument_nobody_can_know_is_rejected() -> None:
    good = task("lookup+delete")
    guess = tuple(s.model_copy(update={"kind": "instruction", "detail": "?"}) for s in last(good).sources)
    assert failed_gate(edit(good, -1, sources=guess)) == "knowable"
    assert failed_gate(edit(good, -1, sources=())) == "knowable"
    wrong = tuple(s.model_copy(update={"detail": "0:[0].id"}) for s in last(good).sources)
    assert failed_gate(edit(good, -1, sources=wrong)) == "knowable"


def test_a_fact_must_be_asked_for_before_it_is_used() -> None:
    good = next(t for t in bundle().tasks if "ask" in t.pattern and "&" not in t.pattern)
    silent = tuple(s for s in good.reference if s.kind != "ask")
    assert failed_gate(good.model_copy(update={"reference": silent})) == "knowable"
    index = next(i for i, s in enumerate(good.reference) if s.kind == "ask")
    assert failed_gate(edit(good, index, text="Shall I go on?")) == "knowable"


def test_reasoning_is_recomputed() -> None:
    good = next(t for t in bundle().tasks if t.pattern in ("argmin+delete", "argmax+delete"))
    nodes = tuple(
        n.model_copy(update={"order": "max" if n.order == "min" else "min"}) if n.kind == "reasoning" else n
        for n in good.blueprint.nodes
    )
    spoilt = good.model_copy(update={"blueprint": good.blueprint.model_copy(update={"nodes": nodes})})
    assert failed_gate(spoilt) == "knowable"


def test_a_refused_reference_call_is_not_only_logged() -> None:
    good = task("lookup+delete")
    assert failed_gate(edit(good, -1, arguments={"note_id": "N0"})) == "knowable"


def test_replay_rejects_what_differs_or_is_not_accepted() -> None:
    few = bundle().tasks[:3]
    one, two, three = (t.id for t in few)
    here = {one: ("a", True), two: ("b", True), three: ("c", False)}
    other = {one: ("a", True), two: ("x", True), three: ("c", False)}
    results = judge_replays(few, [here, here, other, here])
    assert [results[i].passed for i in (one, two, three)] == [True, False, False]
    assert "byte" in results[two].detail and "accepted" in results[three].detail
    assert results[one].tried == 3


def test_replay_runs_the_real_env_in_fresh_processes() -> None:
    made = bundle()
    wrong = made.tasks[1].model_copy(update={"accepted_states": (made.tasks[1].initial_state,)})
    few = (made.tasks[0], wrong)
    results = replay_results(with_tasks(made, few, {"train": [t.id for t in few], "heldout": []}))
    assert results[few[0].id].passed
    assert not results[wrong.id].passed


def test_ctrl_c_ends_the_replay_processes_and_reaches_them_through_us_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A terminal signals the whole group: a replay that dies of it must not read as a broken bundle."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            assert os.getsid(self.pid) != os.getsid(0)
            started.append(self)

        def communicate(self, *args: Any, **options: Any) -> Any:
            if self is started[0] and self.poll() is None and not self.seen:
                type(self).seen = True
                raise KeyboardInterrupt
            return super().communicate(*args, **options)

        seen = False

    monkeypatch.setattr("envgen.synthesis.replay.subprocess.Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        replay_fresh(bundle())
    assert len(started) == 3 and all(process.returncode is not None for process in started)
