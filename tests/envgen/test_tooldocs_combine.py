"""Labelled text, several documents in one environment, and a live MCP server."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import DocumentError
from envgen.proposers.rules import propose
from envgen.synthesis.pipeline import synthesize
from envgen.tooldocs import combine, read_tool_doc, read_tool_docs
from envgen.tooldocs.combine import shared_collections
from envgen.tooldocs.mcp_live import is_address, read_mcp_server
from envgen.types import ToolDoc

PEOPLE = """openapi: 3.0.0
info: {title: People API}
paths:
  /employees:
    get:
      operationId: listEmployees
      responses:
        '200':
          description: all
          content:
            application/json: {schema: {type: array, items: {$ref: '#/components/schemas/Employee'}}}
    post:
      operationId: createEmployee
      requestBody:
        required: true
        content:
          application/json: {schema: {$ref: '#/components/schemas/Employee'}}
  /employees/{employee_id}:
    delete:
      operationId: remove
      parameters: [{name: employee_id, in: path, required: true, schema: {type: string}}]
components:
  schemas:
    Employee:
      type: object
      required: [employee_id, name]
      properties:
        employee_id: {type: string, readOnly: true}
        name: {type: string}
        level: {type: integer}
"""


def entry(name: str, **params: str) -> dict[str, Any]:
    properties = {key: {"type": kind.rstrip("*")} for key, kind in params.items()}
    required = [key for key, kind in params.items() if kind.endswith("*")]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": name.replace("_", " "), "parameters": schema}


TASKS = [
    entry("list_tasks"),
    entry("create_task", title="string*", employee_id="string*"),
    entry("delete_task", task_id="string*"),
    entry("assign_task", task_id="string*", employee_id="string*"),
    entry("remove", task_id="string*"),
]


@pytest.fixture
def two(tmp_path: Path) -> ToolDoc:
    (tmp_path / "people.yaml").write_text(PEOPLE)
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    return read_tool_docs([tmp_path / "people.yaml", tmp_path / "tasks.json"])


# -------------------------------------------------------------------------------- several documents
def test_two_documents_are_one(two: ToolDoc) -> None:
    assert (two.format, two.source) == ("combined", "people.yaml + tasks.json")
    assert [t.name for t in two.tools] == [
        "listEmployees", "createEmployee", "people_remove",
        "list_tasks", "create_task", "delete_task", "assign_task", "tasks_remove",
    ]  # fmt: skip
    renamed = [(f.code, f.pointer) for f in two.findings]
    assert renamed == [
        ("renamed-tool", "people.yaml#/paths/~1employees~1{employee_id}/delete"),
        ("renamed-tool", "tasks.json#/4"),
    ]
    assert two.tools[1].params[0].pointer == "people.yaml#/components/schemas/Employee/properties/name"
    assert two.tools[4].params[0].pointer == "tasks.json#/1/parameters/properties/title"
    assert "people.yaml: OpenAPI 3.0" in two.detected and "tasks.json: function-calling JSON" in two.detected


def test_documents_share_their_entities(two: ToolDoc) -> None:
    draft = propose(two)
    assert [c.name for c in draft.state_schema.collections] == ["employees", "tasks"]
    tasks = draft.state_schema.collection("tasks")
    assert {f.name: f.references for f in tasks.fields}["employee_id"] == "employees"
    assert shared_collections(two, draft) == {"employees": ("people.yaml", "tasks.json")}
    assert [d.tool for d in draft.decisions] == [t.name for t in two.tools]
    assert {d.tool for d in draft.decisions if not d.implemented} == {"tasks_remove"}
    removed = next(s for s in draft.semantics if s.tool == "people_remove")
    assert (removed.verb, removed.collection) == ("delete", "employees")


def test_tasks_cross_the_documents(two: ToolDoc) -> None:
    bundle = synthesize(two, tasks=8, heldout=2, seed=0)
    first = {t.name for t in two.tools if t.pointer.startswith("people.yaml")}
    crossing = [
        task
        for task in bundle.tasks
        if len({step.tool in first for step in task.reference if step.kind == "call"}) == 2
    ]
    assert len(crossing) >= 3
    assert bundle.manifest["document"] == "people.yaml + tasks.json"


def test_equal_tools_count_once_and_order_is_kept(two: ToolDoc, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tasks.json").write_text(json.dumps([*TASKS[:2], entry("list_notes")]))
    doc = combine([read_tool_doc(tmp_path / "tasks.json"), read_tool_doc(other / "tasks.json")])
    assert [t.name for t in doc.tools] == [*(t["name"] for t in TASKS), "list_notes"]
    assert [(f.code, f.pointer) for f in doc.findings] == [
        ("repeated-tool", "tasks.json_2#/0"),
        ("repeated-tool", "tasks.json_2#/1"),
    ]
    assert combine([doc]) is doc
    with pytest.raises(DocumentError, match="got 0 documents"):
        combine([])


# -------------------------------------------------------------------------------- labelled text
LABELLED = """listRoles: List all roles.
Parameters: {"accessToken": "Required. string. The access token."}
Output: All roles.
 - Format: application/json
 - Structure: Object{roles: Array[Object{roleId, roleName, level: integer. Rank.}]}
createRole: Create a role.
Parameters: {"roleName": "Required. string. Name of the role.", "kind": "string. One of: [open, closed].",
 "grants": "Array[Object{id: string. The id., note: string. Why.}]. Its grants."}
Output: Object{roleId}
deleteRole: Delete a role.
Parameters: {"roleId": "Required. string. Which."}
Output: Whether the deletion was successful.
 - Structure: Object{success}
"""


@pytest.mark.parametrize("form", ["text", "object"])
def test_labelled_text(form: str, tmp_path: Path) -> None:
    path = tmp_path / "roles.txt"
    path.write_text(LABELLED if form == "text" else json.dumps({"Name": "Roles", "Docs": LABELLED}))
    doc = read_tool_doc(path)
    at = "line " if form == "text" else "/Docs line "
    assert (doc.title, doc.format) == ("roles" if form == "text" else "Roles", "labelled-text")
    assert [(t.name, t.pointer) for t in doc.tools] == [
        ("listRoles", f"{at}1"), ("createRole", f"{at}6"), ("deleteRole", f"{at}10"),
    ]  # fmt: skip
    create = doc.tools[1]
    assert [(p.name, p.type, p.required, p.enum) for p in create.params] == [
        ("roleName", "string", True, ()), ("kind", "string", False, ("open", "closed")),
        ("grants", "array", False, ()),
    ]  # fmt: skip
    grants = create.params[2].items
    assert grants is not None
    assert [(p.name, p.type, p.pointer) for p in grants.properties] == [
        ("id", "string", f"{at}7"), ("note", "string", f"{at}7"),
    ]  # fmt: skip
    listed = doc.tools[0].output
    assert listed is not None
    roles = listed.properties[0].items
    assert roles is not None
    assert [(p.name, p.type, p.format) for p in roles.properties] == [
        ("roleId", "string", ""), ("roleName", "string", ""), ("level", "integer", ""),
    ]  # fmt: skip
    assert "type-assumed" in {f.code for f in doc.findings}  # roleId has no type in the text
    draft = propose(doc)
    assert all(d.implemented for d in draft.decisions)
    assert [f.name for f in draft.state_schema.collection("roles").fields if f.name == "success"] == []
    assert not any("accessToken" in tool.parameters["properties"] for tool in draft.tools)


def test_labelled_text_that_is_broken_says_where(tmp_path: Path) -> None:
    path = tmp_path / "roles.txt"
    path.write_text(LABELLED.replace('{"roleId": "Required. string. Which."}', "roleId, an id"))
    with pytest.raises(DocumentError, match=r"roles\.txt: line 11: the parameters are no JSON object"):
        read_tool_doc(path)


# -------------------------------------------------------------------------------- a live server
SERVER = """
import sys
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("Note Keeper")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def list_notes(limit: int = 10) -> list[dict[str, str]]:
    "List the notes."
    raise RuntimeError("no tool is ever called")

@server.tool()
def create_note(title: str, text: str = "") -> dict[str, str]:
    "Create a note."
    raise RuntimeError("no tool is ever called")

@server.tool()
def delete_note(note_id: str) -> str:
    "Delete a note."
    raise RuntimeError("no tool is ever called")

server.run("stdio")
"""


def test_live_server_over_stdio(tmp_path: Path) -> None:
    pytest.importorskip("mcp.client.client", reason="needs the extra [mcp]")
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    doc = read_mcp_server(f"SOME_TOKEN=x {sys.executable} {script}")
    assert (doc.title, doc.format, doc.source) == ("Note Keeper", "mcp", "mcp:Note Keeper")
    assert [(t.name, t.pointer, t.read_only) for t in doc.tools] == [
        ("list_notes", "/tools/0", True), ("create_note", "/tools/1", None),
        ("delete_note", "/tools/2", None),
    ]  # fmt: skip
    assert {p.name: p.required for p in doc.tools[1].params} == {"title": True, "text": False}
    assert str(tmp_path) not in doc.model_dump_json()
    assert all(d.implemented for d in propose(doc).decisions)


def test_live_server_over_http(tmp_path: Path) -> None:
    pytest.importorskip("mcp.client.client", reason="needs the extra [mcp]")
    script = tmp_path / "server.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script.write_text(SERVER.replace('"stdio"', f'"streamable-http", host="127.0.0.1", port={port}'))
    with subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):  # until it listens
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
                    break
                time.sleep(0.1)
            doc = read_mcp_server(f"http://127.0.0.1:{port}/mcp")
        finally:
            process.kill()
    assert [t.name for t in doc.tools] == ["list_notes", "create_note", "delete_note"]
    assert doc.source == "mcp:Note Keeper"
    with pytest.raises(DocumentError, match=r"^127\.0\.0\.1: not an MCP server"):
        read_mcp_server(f"http://127.0.0.1:{port}/mcp", timeout_s=20)


def test_live_server_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("mcp.client.client", reason="needs the extra [mcp]")
    script = tmp_path / "other.py"
    script.write_text("import sys; print('out of cheese', file=sys.stderr); sys.exit(3)")
    with pytest.raises(DocumentError, match="out of cheese"):
        read_mcp_server(f"{sys.executable} {script}")
    with pytest.raises(DocumentError, match="no such program"):
        read_mcp_server("no-such-program-here --x")
    script.write_text("import time; time.sleep(60)")
    with pytest.raises(DocumentError, match=r"within 0\.5 s"):
        read_mcp_server(f"{sys.executable} {script}", timeout_s=0.5)


def test_live_server_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(DocumentError, match=r"install autoforge-jax\[mcp\]"):
        read_mcp_server("python server.py")


def test_server_words() -> None:
    assert is_address("https://x.y/mcp") and is_address("http://x") and not is_address("npx https-server")
    with pytest.raises(DocumentError, match="an empty command"):
        read_mcp_server(" ")
