"""Lint: each finding on a document that has exactly that fault."""

import json
from pathlib import Path
from typing import Any

from envgen.synthesis.audit import audit
from envgen.tooldocs import lint, read_tool_doc
from envgen.tooldocs.naming import words, writes
from envgen.types import ToolDoc, ToolSpec


def read(tmp_path: Path, tools: list[dict[str, Any]]) -> ToolDoc:
    path = tmp_path / "doc.json"
    path.write_text(json.dumps(tools))
    return read_tool_doc(path)


def entry(name: str, *params: str, description: str = "Does it.", response: bool = True) -> dict[str, Any]:
    properties = {param: {"type": "string"} for param in params}
    tool: dict[str, Any] = {"name": name, "description": description}
    tool["parameters"] = {"type": "object", "properties": properties, "required": list(params)}
    if response:
        tool["response"] = {"type": "object", "properties": {"status": {"type": "string"}}}
    return tool


def codes(doc: ToolDoc) -> list[tuple[str, str, str]]:
    return [(finding.level, finding.code, finding.pointer) for finding in lint(doc)]


def test_clean_document_has_no_findings(tmp_path: Path) -> None:
    doc = read(
        tmp_path, [entry("list_tasks"), entry("create_task", "title"), entry("delete_task", "task_id")]
    )
    assert codes(doc) == []


def test_no_write_tool(tmp_path: Path) -> None:
    assert codes(read(tmp_path, [entry("list_tasks"), entry("get_weather", "city")])) == [
        ("warning", "no-write-tool", "/")  # questions can be asked
    ]


def test_no_tools() -> None:
    doc = ToolDoc(title="t", format="mcp", source="t", sha256="", tools=())
    assert codes(doc) == [("refusal", "no-tools", "/")]


def test_id_nobody_can_know(tmp_path: Path) -> None:
    doc = read(
        tmp_path,
        [entry("list_tasks"), entry("create_task", "title"), entry("assign_task", "task_id", "worker_id")],
    )
    assert codes(doc) == [("warning", "id-without-creator-or-lister", "/2/parameters/properties/worker_id")]


def test_other_warnings(tmp_path: Path) -> None:
    tools = [
        entry("list_tasks", response=False),
        entry("create_task", "title", description=""),
        {"name": "clear_all", "description": "x", "parameters": {}},
        {"name": "delete_task", "description": "x", "parameters": {}},
        {"name": "add_note", "description": "x", "parameters": {"properties": {"x": {}}, "required": ["x"]}},
    ]
    assert codes(read(tmp_path, tools)) == [
        ("warning", "no-output-schema", "/0"),
        ("warning", "no-description", "/1"),
        ("warning", "write-without-key", "/3"),
        ("warning", "untyped-parameter", "/4/parameters/properties/x"),
    ]


def test_findings_about_the_whole_document(tmp_path: Path) -> None:
    tools = [
        entry("get_task", "task_id", response=False),
        entry("delete_task", "task_id", response=False),
        entry("update_worker", "worker_id", response=False),
    ]
    found = codes(read(tmp_path, tools))
    assert ("warning", "no-list-tool", "/") in found and ("warning", "no-outputs", "/") in found
    assert ("warning", "no-creator", "/1") in found and ("warning", "no-creator", "/2") in found


def test_findings_about_parameters(tmp_path: Path) -> None:
    properties = {
        "method": {"type": "string", "enum": ["get", "put"]},
        "data": {"type": "object"},
        "photo": {"type": "string", "format": "binary"},
    }
    schema = {"properties": properties, "required": ["data"]}
    change = {"name": "create_task", "description": "x", "parameters": schema}
    place = "/0/parameters/properties/"
    found = codes(read(tmp_path, [change, entry("list_tasks")]))
    assert found == [
        ("warning", "method-parameter", f"{place}method"),
        ("warning", "free-form-parameter", f"{place}data"),
        ("warning", "file-parameter", f"{place}photo"),
    ]


def test_annotations_that_contradict_the_name(tmp_path: Path) -> None:
    tools = [
        {**entry("list_tasks"), "annotations": {"readOnlyHint": False}},
        {**entry("create_task", "title"), "annotations": {"readOnlyHint": True}},
        {**entry("delete_task", "task_id"), "annotations": {"readOnlyHint": False}},
    ]
    doc = read(tmp_path, tools)
    assert [c for c in codes(doc) if c[1] == "annotation-conflict"] == [
        ("warning", "annotation-conflict", "/0"),
        ("warning", "annotation-conflict", "/1"),
    ]
    refused = {f.pointer: f.message for f in audit(doc) if f.code == "tool-refused"}
    assert "marks it as writing" in refused["/0"] and "marks it as read-only" in refused["/1"]


def test_audit_says_what_synthesis_would_refuse(examples_dir: Path, tmp_path: Path) -> None:
    found = audit(read_tool_doc(examples_dir / "museum_openapi31.yaml"))
    assert [(f.level, f.code) for f in found] == [("warning", "binary-output"), ("warning", "tool-refused")]
    assert found[1].message.startswith("getTicketCode: its result is binary")
    assert found[1].pointer == "/paths/~1tickets~1{ticketId}~1qr/get"
    closed = audit(read(tmp_path, [entry("get_weather", "city")]))
    assert [f.code for f in closed if f.level == "refusal"] == ["no-write-tool", "no-lookup-tool"]


def test_audit_of_a_document_without_tasks(tmp_path: Path) -> None:
    tools = [entry("list_workers"), entry("update_task", "task_id", "title")]
    tools[0]["response"] = {"type": "array", "items": {"type": "object", "properties": {
        "worker_id": {"type": "string"}, "name": {"type": "string"}}}}  # fmt: skip
    found = audit(read(tmp_path, tools))
    assert [f.code for f in found if f.level == "refusal"] == ["no-task"]


def test_museum(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "museum_openapi31.yaml")
    assert codes(doc) == [("warning", "binary-output", "/components/schemas/TicketCodeImage")]


def test_what_writes() -> None:
    def spec(name: str, method: str = "", read_only: bool | None = None) -> bool:
        return writes(ToolSpec(name=name, method=method, read_only=read_only))

    assert spec("create_task") and spec("buyTickets") and spec("x", "delete") and spec("post-page", "post")
    assert not spec("list_tasks") and not spec("get", "get") and not spec("post-search", "post")
    assert not spec("create_task", read_only=True) and spec("list_tasks", read_only=False)


def test_words() -> None:
    assert words("getHTTPUserByID_v2-x") == ("get", "http", "user", "by", "id", "v2", "x")


def _api(tmp_path: Path, schemas: dict[str, Any], root: str) -> ToolDoc:
    """A document with one schema as body and answer of ``/things``."""
    media = {"application/json": {"schema": {"$ref": f"#/components/schemas/{root}"}}}
    answer = {"200": {"description": "ok", "content": media}}
    operations = {
        "get": {"operationId": "listThings", "responses": answer},
        "post": {"operationId": "createThing", "requestBody": {"content": media}, "responses": answer},
    }
    whole = {
        "openapi": "3.0.0",
        "info": {"title": "things", "version": "1"},
        "paths": {"/things": operations},
        "components": {"schemas": schemas},
    }
    path = tmp_path / "things.json"
    path.write_text(json.dumps(whole))
    return read_tool_doc(path)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_circular_references_are_named_where_they_stand(tmp_path: Path) -> None:
    again = {"$ref": "#/components/schemas/Thing"}
    tags = {"type": "array", "items": {"$ref": "#/components/schemas/Tag"}}
    schemas = {
        "Thing": _object(name={"type": "string"}, parent=again, tags=tags),
        "Tag": _object(word={"type": "string"}, home=again),
    }
    findings = lint(_api(tmp_path, schemas, "Thing"))
    found = [f for f in findings if f.code == "circular-reference"]
    assert sorted(f.pointer for f in found) == [
        "/components/schemas/Tag/properties/home",
        "/components/schemas/Thing/properties/parent",
    ]
    assert all(f.level == "warning" and "is again a Thing" in f.message for f in found)
    assert "truncated-schema" not in {f.code for f in findings}


def test_a_schema_that_is_only_deep_is_not_called_circular(tmp_path: Path) -> None:
    schemas = {f"L{n}": _object(next={"$ref": f"#/components/schemas/L{n + 1}"}) for n in range(40)}
    schemas["L40"] = _object(end={"type": "string"})
    codes = {f.code for f in lint(_api(tmp_path, schemas, "L0"))}
    assert "truncated-schema" in codes and "circular-reference" not in codes
