"""Gate 6: where each argument of a reference is known from, checked against results and words only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from envgen.errors import TaskError
from envgen.synthesis.blueprint import fetch, infer, split_reference
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.schema import read_argument
from envgen.synthesis.wording import say
from envgen.types import ArgumentSource, GateResult, ReferenceStep, Task


def check_knowable(task: Task, outputs: list[Any], catalog: Catalog) -> GateResult:
    """Gate 6: every argument is in the task text, in an earlier result, in a fact, or follows by declared
    reasoning. ``outputs`` are the results of the reference, one for each step."""
    tried = 0
    for index, step in enumerate(task.reference):
        if step.kind == "ask":
            continue
        sources = {source.param: source for source in step.sources}
        leaves = list(_leaves(step.arguments, "", set(sources)))
        for param, value in leaves:
            tried += 1
            source = sources.get(param)
            if source is None:
                reason = "no source is declared"
            else:
                reason = why_unknown(task, index, step, source, value, outputs, catalog)
            if reason:
                detail = f"step {index} {step.tool}.{param}={value!r}: {reason}"
                return GateResult(gate="knowable", passed=False, tried=tried, detail=detail)
    return GateResult(gate="knowable", passed=True, tried=tried)


def why_unknown(
    task: Task,
    index: int,
    step: ReferenceStep,
    source: ArgumentSource,
    value: Any,
    outputs: list[Any],
    catalog: Catalog,
) -> str:
    """Why an argument cannot be known, or an empty text."""
    if source.kind == "instruction":
        return "" if says(task.instruction, value) else "the instruction does not say it"
    if source.kind == "user_fact":
        fact = next((f for f in task.facts if f.name == source.detail), None)
        if fact is None or fact.value != value or not says(fact.sentence, value):
            return f"no fact {source.detail!r} gives it"
        earlier = " ".join(s.text for s in task.reference[:index] if s.kind == "ask").lower()
        return "" if any(w.lower() in earlier for w in fact.ask_words) else "it was not asked for before"
    if source.kind == "output":
        at, path = split_reference(source.detail)
        if at >= index or fetch(path, outputs[at]) != value:
            return f"{source.detail} does not hold it"
        element = path.rpartition("]")[0] + "]" if "]" in path else ""
        holder = fetch(element, outputs[at]) if element else None
        siblings = fetch(element.rpartition("[")[0], outputs[at]) if element else None
        if task.reference[at].tool and catalog.semantics[task.reference[at].tool].writes_state:
            return ""
        if not isinstance(siblings, list) or len(cast("list[Any]", siblings)) == 1:
            return ""
        names = [v for v in _texts(holder) if says(task.instruction, v)]
        return "" if names else f"nothing in the instruction points at {element}"
    if source.kind == "reasoning":
        node = next((n for n in task.blueprint.nodes if n.id == source.detail), None)
        if node is None:
            return f"no reasoning node {source.detail!r}"
        if any(split_reference(p)[0] >= index for p in node.elements):
            return "it reasons over later results"
        try:
            answers = infer(node, outputs)
        except TaskError as error:
            return str(error)
        if (
            node.value is not None
            and not says(task.instruction, node.value)
            and not isinstance(node.value, bool)
        ):
            return f"the instruction does not say {node.value!r}"
        if any(not says(task.instruction, name) for name in node.names):
            return f"the instruction does not name {node.names}"
        if node.reasoning == "filter":
            acted = [
                read_argument(s.arguments, source.param)
                for s in task.reference
                if s.tool == step.tool
                and any(o.param == source.param and o.detail == node.id for o in s.sources)
            ]
            return (
                ""
                if sorted(map(str, acted)) == sorted(map(str, answers))
                else "not all that match are acted on"
            )
        return "" if answers == [value] or [str(a) for a in answers] == [value] else f"it comes to {answers}"
    options: list[Any] = catalog.parameter(step.tool, source.param).get("enum") or []
    return "" if options == [value] else f"{source.kind} is no source: the parameter allows other values"


def _texts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _leaves(arguments: dict[str, Any], prefix: str, declared: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        path = prefix + name
        if isinstance(value, dict) and path not in declared:
            yield from _leaves(value, path + ".", declared)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield path, value


def says(text: str, value: Any) -> bool:
    """True when a text contains a value as whole words; for a list, all of its items; for a boolean, true
    or false or a word that the planner turned it into (checked by the field's own name in the instruction,
    which the caller declares)."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return bool(items) and all(says(text, v) for v in items)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return bool(members) and all(says(text, v) for v in members.values())
    said = say(value)
    if not said:
        return False
    start = text.find(said)
    while start >= 0:
        end = start + len(said)
        if not (start and _in_word(text[start - 1])) and not (end < len(text) and _in_word(text[end])):
            return True
        start = text.find(said, start + 1)
    return False


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
