"""Answers for the model proposer, WRITTEN FOR TESTS: no language model was asked. They play a model that
reads the shipped checklist document: its structure, and one statement and function per tool.

``python -m tests.envgen.model_answers`` writes the recording ``data_model_checklist.jsonl`` anew; do so after
a change of prompts or answer forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envgen.llm.doubles import RecordingClient, ScriptedClient
from envgen.llm.port import ChatRequest

RECORDING = Path(__file__).parent / "data_model_checklist.jsonl"
LABEL = "written for tests; no language model was asked"
Json = dict[str, Any]
# collection -> entity, key, parent collection, parent key, label
TREE = {
    "projects": ("project", "project_id", "", "", "name"),
    "groups": ("group", "group_id", "projects", "project_id", "name"),
    "task_lists": ("task list", "task_list_id", "groups", "group_id", "name"),
    "tasks": ("task", "task_id", "task_lists", "task_list_id", "title"),
    "subtasks": ("subtask", "subtask_id", "tasks", "task_id", "title"),
}


def field(name: str, kind: str = "string", **more: Any) -> Json:
    """One field of a structure answer."""
    plain = {
        "name": name, "type": kind, "required": False, "enum": [], "item_type": "", "references": "",
        "default": None, "clock": False, "description": "", "source": "the tools' parameters",
    }  # fmt: skip
    return {**plain, **more}


def collection(name: str, entity: str, key: str, fields: list[Json], label: str = "") -> Json:
    """One collection of a structure answer."""
    return {
        "name": name, "entity": entity, "key": key, "key_generated": True, "label": label,
        "singleton": False, "fields": [field(key, "id", required=True), *fields],
    }  # fmt: skip


def structure() -> Json:
    """The state structure of the checklist."""
    own = {
        "projects": [field("description", "text"), field("color")],
        "groups": [field("description", "text"), field("order_index", "number")],
        "task_lists": [field("description", "text"), field("order_index", "number")],
        "tasks": [
            field("description", "text"),
            field("priority", "enum", enum=["low", "medium", "high"]),
            field("due_date", "date"),
            field("order_index", "number"),
            field("metadata", "object"),
            field("completed", "boolean", required=True, default=False),
        ],
        "subtasks": [
            field("order_index", "number"),
            field("completed", "boolean", required=True, default=False),
        ],
    }
    made: list[Json] = []
    for name, (entity, key, parent, parent_key, label) in TREE.items():
        fields = [field(parent_key, "id", required=True, references=parent)] if parent else []
        made.append(collection(name, entity, key, [*fields, field(label, required=True), *own[name]], label))
    return {"collections": made}


def binding(param: str, name: str = "", op: str = "eq") -> Json:
    """A parameter and the field it carries."""
    return {"param": param, "field": name or param, "op": op}


def statement(verb: str, collection: str, **more: Any) -> Json:
    """A statement with everything it does not say left empty."""
    plain: Json = {
        "verb": verb, "collection": collection, "key": "", "scope": [], "filters": [], "writes": [],
        "constants": [], "increments": [], "toggles": "", "where": [], "paging": [], "defaults": [],
        "ignored": [], "rules": [], "on_delete": "", "outputs": [], "assumptions": [],
    }  # fmt: skip
    return {**plain, **more}


def answer(said: Json, code: str) -> Json:
    """An answer that implements a tool."""
    return {"implement": True, "reason": "", "statement": said, "code": code}


def declined(reason: str) -> Json:
    """An answer that refuses a tool."""
    return {"implement": False, "reason": reason, "statement": None, "code": ""}


def _outputs(name: str, prefix: str) -> list[Json]:
    fields = next(c for c in structure()["collections"] if c["name"] == name)["fields"]
    return [{"path": f"{prefix}{f['name']}", "field": f["name"]} for f in fields]


def _head(prompt: str) -> str:
    return re.search(r"^def .*:$", prompt, re.MULTILINE)[0]  # type: ignore[index]


def checklist_tool(tool: str, prompt: str) -> Json:
    """Statement and function of one tool of the checklist, in another hand than our templates."""
    head = _head(prompt)
    params = re.findall(r"\b(\w+)(=None)?(?=[,)])", head.split("/", 1)[1])
    verb, _, noun = tool.partition("_")
    if tool == "get_all_tasks":
        said = statement("list", "tasks", outputs=_outputs("tasks", "tasks[]."))
        return answer(said, f'{head}\n    return {{"tasks": state.records("tasks")}}')
    if tool == "get_project_stats":
        return declined("statistics cannot be stated in these terms")
    noun = noun.removesuffix("_completion")
    name = next(c for c, row in TREE.items() if noun in (c, c[:-1]))
    entity, key, parent, parent_key, _ = TREE[name]
    names = [p for p, _ in params]
    rest = [p for p in names if p not in (key, parent_key)]
    body: list[str] = []
    if parent and parent_key in names:
        body += [
            f'if not state.exists("{parent}", {parent_key}):',
            f'    raise ToolError(f"There is no {TREE[parent][0]} {{{parent_key}}}.")',
        ]
    if key in names:
        body += [
            f'row = state.get("{name}", {key})',
            "if row is None:",
            f'    raise ToolError(f"There is no {entity} {{{key}}}.")',
        ]
    scope = [binding(parent_key)] if parent and parent_key in names else []
    if verb == "list":
        test = f' if row["{parent_key}"] == {parent_key}' if parent else ""
        body.append(f'return {{"{name}": [row for row in state.records("{name}"){test}]}}')
        said = statement("list", name, scope=scope, outputs=_outputs(name, f"{name}[]."))
    elif verb == "get":
        body.append("return row")
        said = statement("get", name, key=key, outputs=_outputs(name, ""))
    elif verb == "create":
        done = '"completed": False, ' if name in ("tasks", "subtasks") else ""
        given = ", ".join(f'"{p}": {p}' for p in [*([parent_key] if parent else []), *rest])
        body += [
            f'row = {{"{key}": ctx.new_id("{name}"), {done}**given({{{given}}})}}',
            f'state.insert("{name}", row["{key}"], row)',
            f'return {{"created": row["{key}"]}}',
        ]
        outputs = [{"path": "created", "field": key}]
        said = statement("create", name, scope=scope, writes=[binding(p) for p in rest], outputs=outputs)
    elif verb == "update":
        given = ", ".join(f'"{p}": {p}' for p in rest)
        body += [
            f'state.update("{name}", {key}, given({{{given}}}))',
            f'return state.get("{name}", {key})',
        ]
        writes = [binding(p) for p in rest]
        said = statement("update", name, key=key, writes=writes, outputs=_outputs(name, ""))
    elif verb == "toggle":
        body += [
            'now = not row.get("completed", False)',
            f'state.update("{name}", {key}, {{"completed": now}})',
            f'return {{"{key}": {key}, "completed": now}}',
        ]
        outputs = [{"path": key, "field": key}, {"path": "completed", "field": "completed"}]
        said = statement("toggle", name, key=key, toggles="completed", outputs=outputs)
    else:
        body += [*_cascade(name, key), f'state.delete("{name}", {key})', f'return {{"deleted": {key}}}']
        child = any(row[2] == name for row in TREE.values())
        outputs = [{"path": "deleted", "field": key}]
        said = statement("delete", name, key=key, on_delete="cascade" if child else "", outputs=outputs)
    return answer(said, "\n".join([head, *("    " + line for line in body)]))


def _cascade(name: str, key: str, depth: int = 0) -> list[str]:
    lines: list[str] = []
    for child, (_, child_key, parent, parent_key, _) in TREE.items():
        if parent == name:
            pad, row = "    " * depth, f"row{depth}"
            lines += [
                f'{pad}for {row} in state.records("{child}"):',
                f'{pad}    if {row}["{parent_key}"] == {key}:',
                *_cascade(child, f'{row}["{child_key}"]', depth + 2),
                f'{pad}        state.delete("{child}", {row}["{child_key}"])',
            ]
    return lines


def subject_of(request: ChatRequest) -> str:
    """Name of the tool a request is about, ``state`` or ``tools``."""
    prompt = request.messages[1].content
    found = re.match(r"Give the meaning and the Python of the tool `([^`]+)`", prompt)
    if found is not None:
        return found[1]
    return "state" if prompt.startswith("Propose the state structure") else "tools"


Spoil = Callable[[str, int, str], str]
"""(subject, try from 0, right answer) -> what the model says."""


def player(spoil: Spoil = lambda subject, number, text: text) -> ScriptedClient:
    """A client that gives the right answers, spoilt by ``spoil``."""

    def play(request: ChatRequest) -> str:
        subject = subject_of(request)
        prompt = request.messages[1].content
        right = structure() if subject == "state" else checklist_tool(subject, prompt)
        return spoil(subject, request.seed or 0, json.dumps(right))

    return ScriptedClient(play)


def with_repairs(subject: str, number: int, text: str) -> str:
    """Slips that a model makes, each repaired at the second or third try."""
    tree = json.loads(text)
    if subject == "state" and number == 0:
        tree["collections"][1]["key"] = "id"
    elif subject == "create_task" and number == 0:
        return text[: len(text) // 2]
    elif subject == "update_task" and number == 0:
        tree["statement"]["writes"] = tree["statement"]["writes"][1:]
    elif subject == "toggle_subtask_completion" and number == 0:
        tree["code"] = tree["code"].replace("not row", "row")
    elif subject == "delete_subtask" and number < 2:
        tree["code"] = "import os\n" + tree["code"]
    else:
        return text
    return json.dumps(tree)


def main() -> None:
    """Write the recording."""
    from envgen.proposers.model import propose_with_model
    from tests.conftest import EXAMPLES

    RECORDING.unlink(missing_ok=True)
    client = RecordingClient(player(with_repairs), RECORDING)
    made = propose_with_model(EXAMPLES / "docker_simplechecklist_tools.json", client)
    rows = [json.loads(line) for line in RECORDING.read_text(encoding="utf-8").splitlines()]
    for row in rows:  # the key finds the reply; the request is made anew from document and prompts
        row["reply"]["model"] = LABEL
        del row["request"]
    lines = sorted(json.dumps({"label": LABEL, **row}, ensure_ascii=False) for row in rows)
    RECORDING.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for decision in made.draft.decisions:
        print(decision.tool, decision.implemented, decision.reason)


if __name__ == "__main__":
    main()
