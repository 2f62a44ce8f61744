"""Gates 7 and 9: a goal that fits a second record, and near-duplicates, are found; what looks so passes."""

from __future__ import annotations

import copy
from typing import Any

from envgen.synthesis.bindings import Bindings
from envgen.synthesis.certify import Duplicates, certify
from envgen.synthesis.tasks import Workbench
from envgen.types import StateData, Task
from tests.envgen.test_certify import bundle, failed_gate, prover


def gate(task: Task) -> Any:
    bench: Workbench = prover().bench
    return Bindings(bench).gate(task)


def named() -> tuple[Task, str]:
    """A task whose write acts on a note that the user names, with the note's key."""
    for task in bundle().tasks:
        for step in task.reference:
            if step.tool not in ("update_note", "delete_note"):
                continue
            source = next((s for s in step.sources if s.param == "note_id"), None)
            note = task.initial_state["notes"].get(str(step.arguments["note_id"]))
            writes = [s for s in task.reference if s.tool in ("update_note", "delete_note", "create_note")]
            if (
                source
                and source.kind == "output"
                and note
                and note["title"] in task.instruction
                and len(writes) == 1
            ):
                return task, str(step.arguments["note_id"])
    raise AssertionError("no task names a note")


def with_twin(task: Task, key: str, **changes: Any) -> Task:
    """The task in a world with a second note like the first, which the reference leaves alone."""

    def grown(state: StateData) -> StateData:
        out = copy.deepcopy(state)
        out["notes"]["Z1"] = {**task.initial_state["notes"][key], "id": "Z1", **changes}
        return out

    states = tuple(grown(state) for state in task.accepted_states)
    return task.model_copy(update={"initial_state": grown(task.initial_state), "accepted_states": states})


def test_good_tasks_bind_to_one_record_and_the_certificate_counts_it() -> None:
    results = [gate(task) for task in bundle().tasks]
    assert all(r.passed for r in results), [r.detail for r in results if not r.passed]
    assert sum(r.tried for r in results) > 3 * len(results)
    names = {g.gate for c in bundle().certificates for g in c.gates}
    assert names == {
        "replay", "noop", "write_dropped", "mutants", "equivalents", "knowable", "binding", "leak",
        "duplicate",
    }  # fmt: skip
    assert "binding" in {g.gate for g in certify(bundle(), bundle().tasks[0]).gates}


def test_a_second_record_of_that_name_is_found_by_executing() -> None:
    task, key = named()
    result = gate(with_twin(task, key))
    assert not result.passed and "notes[Z1]" in result.detail, result
    assert failed_gate(with_twin(task, key)) == "binding"


def test_a_record_that_another_word_tells_apart_is_none() -> None:
    task, key = named()
    assert gate(with_twin(task, key, title="Quite Another")).passed
    home = task.initial_state["notes"][key]["notebook_id"]
    other = next((k for k in task.initial_state["notebooks"] if k != home), None)
    assert other is not None
    told = task.initial_state["notebooks"][home]["name"] in task.instruction
    assert gate(with_twin(task, key, notebook_id=other)).passed == told


def test_both_readings_accepted_is_fine() -> None:
    task, key = named()
    twin = with_twin(task, key)
    swapped = copy.deepcopy(twin.initial_state)
    changed = twin.accepted_states[0]["notes"]
    if key in changed:
        swapped["notes"]["Z1"] = {**changed[key], "id": "Z1"}
    else:
        del swapped["notes"]["Z1"]
    both = twin.model_copy(update={"accepted_states": (*twin.accepted_states, swapped)})
    assert gate(both).passed


# ------------------------------------------------------------------------------------- near-duplicates
def noted(task: Task) -> Duplicates:
    found = Duplicates()
    found.note(task)
    return found


def test_the_same_words_and_one_other_word_are_near_duplicates() -> None:
    task = bundle().tasks[0]
    loud = task.model_copy(update={"id": "x", "instruction": task.instruction.upper().rstrip(".") + " !"})
    assert not noted(task).gate(loud).passed
    words = task.instruction.split(" ")
    words[1] = "other"
    near = task.model_copy(update={"id": "x", "instruction": " ".join(words)})
    result = noted(task).gate(near)
    assert not result.passed and result.detail.endswith("the instruction differs in one word")


def test_two_other_words_other_calls_or_another_length_are_none() -> None:
    task = bundle().tasks[0]
    words = task.instruction.split(" ")
    words[0], words[1] = "Kindly", "other"
    assert noted(task).gate(task.model_copy(update={"instruction": " ".join(words)})).passed
    longer = task.model_copy(update={"instruction": task.instruction + " Right now."})
    assert noted(task).gate(longer).passed
    one = task.instruction.split(" ")
    one[1] = "other"
    calls = task.model_copy(update={"instruction": " ".join(one), "reference": task.reference[:-1]})
    assert noted(task).gate(calls).passed


def test_a_bundle_has_no_near_duplicates() -> None:
    found = Duplicates()
    for task in bundle().tasks:
        assert found.gate(task).passed
        found.note(task)
