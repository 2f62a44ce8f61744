"""What the gates try on tasks that are graded by an answer: other ways to say it, and wrong answers.

Gate 4 wants ten wrong closing messages rejected: silence, ``Done.``, an empty object, another type, values of
other records, near misses, the right value beside a second one. Gate 5 wants the right answer accepted
however it is dressed. Gate 6 recomputes the answer from the outputs of the reference, gate 8 looks for it in
the instruction.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import orjson

from envgen.errors import TaskError
from envgen.runtime.state import State
from envgen.synthesis.blueprint import fetch, infer, split_reference
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.knowledge import says, why_unknown
from envgen.synthesis.mutants import MutantMaker
from envgen.synthesis.runner import Runner
from envgen.synthesis.tasks import Workbench
from envgen.types import AnswerSlot, ArgumentSource, GateResult, Message, ReferenceStep, Task

WRONG = 14
"""Wrong closing messages tried per task."""
LEAST_WRONG = 10
EXTRA_WRITES = 8
"""Changes of the state tried beside the right answer."""


class AnswerGates(Runner):
    """Gates 4 and 5 of tasks that change nothing."""

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._maker = MutantMaker(self)

    def accepts_closing(self, task: Task, text: str) -> bool:
        """The verdict on an untouched state after a closing message."""
        state = State(task.initial_state, self._names)
        return self.grader(task).accepts(state.delta(), (Message(role="assistant", content=text),))

    def equivalents(self, task: Task) -> GateResult:
        """Gate 5: the right answer is accepted in other dress."""
        tried = 0
        for text in right_closings(task, random.Random(f"right/{task.seed}")):
            tried += 1
            if not self.accepts_closing(task, text):
                return GateResult(
                    gate="equivalents", passed=False, tried=tried, detail=f"rejected: {text[:120]}"
                )
        return GateResult(gate="equivalents", passed=True, tried=tried)

    def mutants(self, task: Task) -> GateResult:
        """Gate 4: wrong answers are rejected, and so is the right one after a change of the state."""
        rng = random.Random(f"wrong/{task.seed}")
        tried = 0
        for text in wrong_closings(task, rng):
            tried += 1
            if self.accepts_closing(task, text):
                return GateResult(gate="mutants", passed=False, tried=tried, detail=f"accepted: {text[:120]}")
        extra = self._maker.variants(task, rng) if self.catalog.writers else iter(())
        for label, calls in islice(extra, EXTRA_WRITES):
            tried += 1
            if self.accepts(task, self.play(task, calls)):
                return GateResult(gate="mutants", passed=False, tried=tried, detail=f"accepted: {label}")
        passed = tried >= LEAST_WRONG
        detail = "" if passed else f"only {tried} wrong variants exist, expected {LEAST_WRONG}"
        return GateResult(gate="mutants", passed=passed, tried=tried, detail=detail)


def said(values: dict[str, Any]) -> str:
    """Answers as the agent writes them."""
    return orjson.dumps(values).decode()


def right_closings(task: Task, rng: random.Random) -> Iterator[str]:
    """Other ways to give the right answer."""
    right = {slot.name: slot.accepted[0] for slot in task.answers}
    yield said(right)
    yield f"I looked it up.\n\n```json\n{orjson.dumps(right, option=orjson.OPT_INDENT_2).decode()}\n```\n"
    yield f"{said(dict(reversed(right.items())))} That is all."
    for slot in task.answers:
        for value in slot.accepted[1:]:
            yield said({**right, slot.name: value})
        first: Any = slot.accepted[0]
        if slot.type == "integer":
            yield said({**right, slot.name: float(first)})
        elif slot.type == "array" and slot.policy == "normalised":
            items = cast("list[Any]", first)
            yield said({**right, slot.name: rng.sample(items, len(items))})
        elif slot.type == "string" and slot.policy == "normalised":
            yield said({**right, slot.name: f"  {str(first).upper()} "})


def wrong_closings(task: Task, rng: random.Random) -> Iterator[str]:
    """Wrong or empty closing messages, the most telling first, at most `WRONG`."""
    right = {slot.name: slot.accepted[0] for slot in task.answers}
    slot = task.answers[-1]
    value = right[slot.name]
    plain = ["", "Done.", "{}", said({slot.name: None}), said({"result": value}), f"The answer is {value}."]
    others = [said({**right, slot.name: other}) for other in _others(task, slot, rng)]
    shaped = [
        said({**right, slot.name: [value] if slot.type != "array" else said(right)}),
        said({**right, slot.name: str(value) if not isinstance(value, str) else 7}),
        said({**right, "note": "x"}),
        f"{said(right)} {said(right)}",
    ]
    missing = [said({k: v for k, v in right.items() if k != s.name}) for s in task.answers if len(right) > 1]
    yield from [*plain, *missing, *others[:6], *shaped][: WRONG + len(missing)]


def _others(task: Task, slot: AnswerSlot, rng: random.Random) -> list[Any]:
    """Wrong values of the right type: near misses, and what else stands in the state."""
    value: Any = slot.accepted[0]
    if slot.type in ("integer", "number"):
        found: list[Any] = [value + 1, value - 1, value * 2 + 3, 0]
    elif slot.type == "array":
        items = cast("list[Any]", value)
        found = [items[:-1], [*items, items[0]], [*items, "Nobody"], []]
    elif slot.type == "string":
        found = [f"{value} 2", ""]
    else:
        found = ["2001-02-03", "2031-12-24"]
    around = [
        held
        for table in task.initial_state.values()
        for record in table.values()
        for held in record.values()
        if type(held) is type(value) and not isinstance(held, list | dict)
    ]
    rng.shuffle(around)
    found[:2] += around[:4]
    right = [_folded(accepted) for accepted in slot.accepted]
    return [other for other in found if _folded(other) not in right]


def _folded(value: Any) -> Any:
    """A value as the grader compares it at its most lenient."""
    if isinstance(value, list):
        return sorted(str(v) for v in cast("list[Any]", value))
    return " ".join(value.split()).casefold() if isinstance(value, str) else value


# ------------------------------------------------------------------------------------------ gates 6 and 8
def why_not_known(task: Task, outputs: list[Any], catalog: Catalog) -> str:
    """Why one of the answers cannot be known from the reference's outputs, or empty."""
    for slot in task.answers:
        source, value = slot.source, slot.accepted[0]
        if source is None:
            return f"answer {slot.name}: no source is declared"
        if len(slot.accepted) > 1:
            return f"answer {slot.name}: accepts {len(slot.accepted)} values, and its source gives one"
        if task.refused is not None and slot.name == source.param == "refused":
            reason = _not_seen(task, source, outputs, catalog)
        elif isinstance(value, list):
            reason = _not_listed(task, slot, outputs)
        else:
            end = ReferenceStep(kind="call", arguments={source.param: value}, sources=(source,))
            reason = why_unknown(task, len(task.reference), end, source, value, outputs, catalog)
        if reason:
            return f"answer {slot.name}={value!r}: {reason}"
    return ""


def _not_seen(task: Task, source: ArgumentSource, outputs: list[Any], catalog: Catalog) -> str:
    """Why the agent cannot see that the rule applies, or empty."""
    rule = next((r for r in catalog.draft.rules if task.refused and r.id == task.refused.rule), None)
    if rule is None:
        return "the environment has no such rule"
    if rule.kind == "at_most":
        return "" if says(task.instruction, source.detail) else "the instruction does not say the number"
    step, path = split_reference(source.detail)
    held = fetch(path, outputs[step]) if step < len(outputs) else None
    if rule.kind == "no_children":
        return "" if held is not None else "no result shows what hangs below the record"
    seen = held is not None and (held in rule.values) == (rule.kind == "field_not_in")
    return "" if seen else f"{source.detail} holds {held!r}, which {rule.id} does not forbid"


def _not_listed(task: Task, slot: AnswerSlot, outputs: list[Any]) -> str:
    node = next((n for n in task.blueprint.nodes if slot.source and n.id == slot.source.detail), None)
    if node is None:
        return "no reasoning node leads to the list"
    try:
        found = infer(node, outputs)
    except TaskError as error:
        return str(error)
    if not isinstance(node.value, bool) and not says(task.instruction, node.value):
        return f"the instruction does not say {node.value!r}"
    wanted = cast("list[Any]", slot.accepted[0])
    return "" if sorted(map(str, found)) == sorted(map(str, wanted)) else f"it comes to {found}"


def leaked(task: Task) -> str:
    """An answer, or an item of one, that the instruction says already; or empty."""
    for slot in task.answers:
        for accepted in slot.accepted:
            items = cast("list[Any]", accepted) if isinstance(accepted, list) else [accepted]
            for item in items:
                if says(task.instruction, item):
                    return f"the answer {item!r}"
    return ""
