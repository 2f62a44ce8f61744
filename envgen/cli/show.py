"""``envgen show``: a bundle or one of its tasks, readable in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape

from envgen.cli.views import cell, compact, console, coverage_rows, split_text, table
from envgen.store import Bundle
from envgen.types import AgentTool, ReferenceStep, StateData, StateField, Task

SHOWN_TASKS = 12


def signature(tool: AgentTool) -> str:
    """``name(key*: type, other: a|b)``; ``*`` marks required parameters."""
    properties: dict[str, dict[str, Any]] = tool.parameters.get("properties", {})
    required: list[str] = tool.parameters.get("required", [])
    parts: list[str] = []
    for name, schema in properties.items():
        kind = "|".join(str(v) for v in schema["enum"]) if schema.get("enum") else schema.get("type", "any")
        parts.append(
            f"{name}{'*' if name in required else ''}: {kind if isinstance(kind, str) else compact(kind)}"
        )
    return f"{tool.name}({', '.join(parts)})"


def show_bundle(bundle: Bundle) -> None:
    """Tools, state schema, refused tools, splits and the first tasks."""
    out = console()
    name, source = escape(bundle.name), escape(bundle.doc.source)
    out.print(f"[bold]{name}[/bold]  {bundle.environment_id}  from {source}")
    verbs = {semantics.tool: semantics for semantics in bundle.semantics}
    rows = table("tool", "does", "description", title="\ntools")
    held = {tool.name for tool in bundle.user_tools}
    for tool in (*bundle.tools, *bundle.user_tools):
        semantics = verbs.get(tool.name)
        does = f"{semantics.verb} {semantics.collection}" if semantics else ""
        does += " (the user's)" if tool.name in held else ""
        rows.add_row(escape(signature(tool)), does, escape(tool.description))
    out.print(rows)
    refused = [decision for decision in bundle.decisions if not decision.implemented]
    if refused:
        rows = table("refused tool", "reason", "at", title="\nrefused")
        for decision in refused:
            rows.add_row(escape(decision.tool), escape(decision.reason), escape(decision.pointer))
        out.print(rows)
    if bundle.rules:
        rows = table("rule", "kept by", "from", title="\nrules of the domain")
        for rule in bundle.rules:
            keeper = "the tools" if rule.enforced else "the agent"
            rows.add_row(escape(rule.text), keeper, escape(rule.provenance))
        out.print(rows)
    rows = table("collection", "field", "type", "note", title="\nstate")
    for collection in bundle.state_schema.collections:
        for index, state_field in enumerate(collection.fields):
            name = escape(collection.name) if index == 0 else ""
            note = _field_note(state_field, collection.key, collection.label)
            rows.add_row(name, escape(state_field.name), _field_type(state_field), escape(note))
    out.print(rows)
    covered = coverage_rows(bundle)
    if covered:
        rows = table("what", "number", "detail", title="\ncoverage")
        for what, number, detail in covered:
            rows.add_row(what, number, escape(detail))
        out.print(rows)
    rows = table("task", "split", "level", "pattern", "instruction", title="\ntasks")
    owner = {task_id: split for split, ids in bundle.splits.items() for task_id in ids}
    for task in bundle.tasks[:SHOWN_TASKS]:
        cells = (task.id, owner.get(task.id, ""), str(task.difficulty), task.pattern, task.instruction)
        rows.add_row(*(escape(text) for text in cells))
    out.print(rows)
    if len(bundle.tasks) > SHOWN_TASKS:
        out.print(f"… {len(bundle.tasks)} tasks in all: {split_text(bundle)}")


def _field_type(state_field: StateField) -> str:
    if state_field.enum:
        return escape("|".join(str(value) for value in state_field.enum))
    return f"{state_field.type} of {state_field.item_type}" if state_field.item_type else state_field.type


def _field_note(state_field: StateField, key: str, label: str) -> str:
    notes = ["key"] if state_field.name == key else []
    notes += ["label"] if state_field.name == label else []
    notes += [f"-> {state_field.references}"] if state_field.references else []
    notes += ["required"] if state_field.required else []
    notes += [state_field.policy] if state_field.policy != "exact" else []
    return ", ".join(notes)


# ------------------------------------------------------------------------------------------------ show TASK
def show_task(bundle: Bundle, task: Task) -> None:
    """One task: instruction, facts, blueprint, reference with results, state difference, certificate."""
    out = console()
    out.print(f"[bold]{task.id}[/bold]  {task.pattern}  level {task.difficulty}  clock {task.clock}")
    if task.traits is not None:
        out.print(", ".join(f"{name} {number}" for name, number in task.traits.model_dump().items()))
    out.print(f"[bold]instruction[/bold]  {escape(task.instruction)}")
    if task.facts:
        rows = table("fact", "value", "the user says", "when asked for", title="\nuser facts")
        for fact in task.facts:
            asked = "stated" if fact.stated else ", ".join(fact.ask_words)
            rows.add_row(escape(fact.name), cell(fact.value), escape(fact.sentence), escape(asked))
        out.print(rows)
    rows = table("node", "what", "needs", title="\nblueprint")
    for node in task.blueprint.nodes:
        what = node.tool or (f"reasoning: {node.reasoning}" if node.reasoning else node.kind)
        edges = [edge for edge in task.blueprint.edges if edge.target == node.id]
        needs = ", ".join(f"{e.source}{f' ({e.param})' if e.param else ''}" for e in edges)
        rows.add_row(node.id, escape(f"{what} {node.detail}".strip()), escape(needs))
    out.print(rows)
    out.print("\nreference")
    for index, (step, result) in enumerate(_replay(bundle, task), start=1):
        if step.thought:
            out.print(f"  {index}. [dim]{escape(step.thought)}[/dim]", soft_wrap=True)
        said = f"{step.tool} {compact(step.arguments)}" if step.kind == "call" else f"asks: {step.text}"
        if step.kind == "act":
            said += f" (the user calls {step.tool} {compact(step.arguments)})"
        out.print(f"  {index}. {escape(said)}", soft_wrap=True)
        out.print(f"     [green]{escape(result)}[/green]", soft_wrap=True)
    out.print(f"  closing: {escape(task.closing)}", soft_wrap=True)
    for slot in task.answers:
        right = " or ".join(compact(value) for value in slot.accepted)
        out.print(f"  answer {escape(slot.name)} ({slot.type}): {escape(right)}", soft_wrap=True)
    if task.refused is not None:
        call = f"{task.refused.tool} {compact(task.refused.arguments)}"
        out.print(f"  forbidden by {task.refused.rule}: {escape(call)}", soft_wrap=True)
    rows = table("collection", "key", "change", title="\nstate, initial -> target")
    for collection, key, change in state_changes(task.initial_state, task.accepted_states[0]):
        rows.add_row(escape(collection), escape(key), escape(change))
    out.print(rows)
    certificate = next((c for c in bundle.certificates if c.task_id == task.id), None)
    if certificate is None:
        out.print("\nno certificate")
        return
    rows = table("gate", "passed", "runs", "detail", title="\ncertificate")
    for gate in certificate.gates:
        rows.add_row(gate.gate, "yes" if gate.passed else "NO", str(gate.tried), escape(gate.detail))
    out.print(rows)


def _replay(bundle: Bundle, task: Task) -> Iterator[tuple[ReferenceStep, str]]:
    """The reference, run in a fresh episode: each step with what came back."""
    from envgen.runtime.env import open_env
    from envgen.types import Message, ToolCall

    env = open_env(bundle, task, seed=0)
    env.start()
    for index, step in enumerate(task.reference):
        if step.kind == "call":
            call = ToolCall(id=f"call-{index}", name=step.tool, arguments=json.dumps(step.arguments))
            message = Message(role="assistant", tool_calls=(call,))
        else:
            message = Message(role="assistant", content=step.text)
        result = env.step(message)
        yield step, " | ".join(observation.content for observation in result.observations)
        if result.done:
            return


def state_changes(before: StateData, after: StateData) -> list[tuple[str, str, str]]:
    """(collection, key, change) for every record that differs between two states."""
    changes: list[tuple[str, str, str]] = []
    for collection in dict.fromkeys([*before, *after]):
        old, new = before.get(collection, {}), after.get(collection, {})
        for key in dict.fromkeys([*old, *new]):
            if key not in new:
                changes.append((collection, key, "deleted"))
            elif key not in old:
                changes.append((collection, key, f"created {compact(new[key])}"))
            elif old[key] != new[key]:
                changes.append((collection, key, _field_changes(old[key], new[key])))
    return changes


def _field_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            parts.append(f"{name} removed")
        elif name not in old:
            parts.append(f"{name} set to {compact(new[name])}")
        elif old[name] != new[name] or type(old[name]) is not type(new[name]):
            parts.append(f"{name}: {compact(old[name])} -> {compact(new[name])}")
    return ", ".join(parts)
