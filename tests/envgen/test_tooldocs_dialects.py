"""Every spelling of a tool list says the same tool; every wrapper is opened; references to files."""

import json
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import DocumentError
from envgen.tooldocs import lint, read_tool_doc
from envgen.types import ToolDoc

TEXT = "Create a task."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "Title"},
        "days": {"type": "integer", "default": 3},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title"],
}
UPPER: dict[str, Any] = {
    "type": "OBJECT",
    "properties": {
        "title": {"type": "STRING", "description": "Title"},
        "days": {"type": "INTEGER", "default": 3},
        "tags": {"type": "ARRAY", "items": {"type": "STRING"}},
    },
    "required": ["title"],
}
BARE: dict[str, Any] = {
    "title": {"type": "str", "description": "Title"},
    "days": {"type": "int", "default": 3},
    "tags": {"type": "List[str], optional"},
}
COHERE: dict[str, Any] = {
    "title": {"type": "str", "description": "Title", "required": True},
    "days": {"type": "int", "required": False, "default": 3},
    "tags": {"type": "list[str]", "required": False},
}
DICT = {**SCHEMA, "type": "dict"}


def named(key: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": "create_task", "description": TEXT, key: schema, **more}


CHAT = {"type": "function", "function": named("parameters", SCHEMA, strict=True)}
MCP = named("inputSchema", SCHEMA)
SPELLINGS: dict[str, tuple[Any, str, str]] = {
    "mcp result": ({"tools": [named("inputSchema", SCHEMA)]}, "mcp", "/tools/0"),
    "mcp json-rpc": (
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [named("inputSchema", SCHEMA)]}},
        "mcp",
        "/result/tools/0",
    ),
    "mcp bare": ([named("inputSchema", SCHEMA)], "mcp", "/0"),
    "mcp pages": (
        [{"tools": [named("inputSchema", SCHEMA)], "nextCursor": "x"}, {"tools": [MCP]}],
        "mcp",
        "line or row",
    ),
    "anthropic": ({"tools": [named("input_schema", SCHEMA)]}, "functions", "/tools/0"),
    "openai chat": ({"model": "m", "tools": [CHAT]}, "functions", "/tools/0/function"),
    "openai functions": ({"functions": [named("parameters", SCHEMA)]}, "functions", "/functions/0"),
    "openai responses": ([named("parameters", SCHEMA, type="function")], "functions", "/0"),
    "bfcl": ([named("parameters", DICT, response={"type": "dict", "properties": {}})], "functions", "/0"),
    "toolace": ([named("parameters", DICT, required=None)], "functions", "/0"),
    "gemini": (
        [{"functionDeclarations": [named("parameters", UPPER)]}],
        "functions",
        "/0/functionDeclarations/0",
    ),
    "gemini config": (
        {"tools": [{"function_declarations": [named("parametersJsonSchema", SCHEMA)]}]},
        "functions",
        "/tools/0/function_declarations/0",
    ),
    "bedrock": (
        {"tools": [{"toolSpec": named("inputSchema", {"json": SCHEMA})}]},
        "functions",
        "/tools/0/toolSpec",
    ),
    "xlam": ([named("parameters", BARE)], "functions", "/0"),
    "cohere": ([named("parameter_definitions", COHERE)], "functions", "/0"),
    "by name": (
        {"tools": {"create_task": {"description": TEXT, "parameters": SCHEMA}}},
        "functions",
        "/tools/create_task",
    ),
    "one tool": (named("parameters", SCHEMA), "functions", "/"),
    "deep": (
        {"metadata": {"server": {"tools_list": [named("parameters", SCHEMA)]}}},
        "functions",
        "/metadata/server/tools_list/0",
    ),
    "row with text": (
        [{"query": "q", "tools": json.dumps([named("parameters", BARE)])}],
        "functions",
        "/0/tools/0",
    ),
    "toolace system": (
        [{"system": f"You can call:\n{json.dumps([named('parameters', DICT)])}.\nAnswer"}],
        "functions",
        "/0/system/0",
    ),
    "bfcl row": (
        [{"id": "x", "question": [], "function": [named("parameters", DICT)]}],
        "functions",
        "/0/function/0",
    ),
}


def read(tmp_path: Path, value: Any, name: str = "doc.json") -> ToolDoc:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return read_tool_doc(path)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_all_spellings_say_the_same_tool(spelling: str, tmp_path: Path) -> None:
    value, format_, pointer = SPELLINGS[spelling]
    doc = read(tmp_path, value)
    assert [t.name for t in doc.tools] == ["create_task"]
    tool = doc.tools[0]
    assert (doc.format, tool.description) == (format_, TEXT)
    assert [(p.name, p.type, p.required, p.default) for p in tool.params] == [
        ("title", "string", True, None),
        ("days", "integer", False, 3),
        ("tags", "array", False, None),
    ]
    assert tool.params[0].description == "Title"
    assert tool.params[2].items is not None and tool.params[2].items.type == "string"
    assert tool.pointer == pointer or spelling == "mcp pages"
    assert all(p.pointer.startswith(tool.pointer.rstrip("/")) for p in tool.params)
    assert doc.detected


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("mcp bare", "an MCP tool list, a list: /0 has 'inputSchema'"),
        ("mcp json-rpc", "an MCP tool list, a JSON-RPC result: a JSON-RPC result with tools"),
        ("anthropic", "function-calling JSON, 'tools', spelling Anthropic's: /tools/0 has 'input_schema'"),
        (
            "deep",
            "function-calling JSON, the list at /metadata/server/tools_list, spelling OpenAI's functions",
        ),
        ("gemini", "spelling Gemini's: function declarations"),
    ],
)
def test_detection_says_what_and_why(spelling: str, says: str, tmp_path: Path) -> None:
    assert says in read(tmp_path, SPELLINGS[spelling][0]).detected


def test_rows_repeat_tools(tmp_path: Path) -> None:
    rows = [{"function": [named("parameters", SCHEMA)]}, {"function": [named("parameters", SCHEMA)]}]
    doc = read(tmp_path, "\n".join(json.dumps(row) for row in rows))
    assert [t.pointer for t in doc.tools] == ["line 1/function/0"]
    assert [(f.code, f.pointer) for f in doc.findings] == [("repeated-tool", "line 1/function/0")]
    assert ("repeated-tool", "line 1/function/0") in [(f.code, f.pointer) for f in lint(doc)]
    other = {"function": [named("parameters", {"type": "object", "properties": {}})]}
    with pytest.raises(
        DocumentError, match="two tools are called 'create_task': line 1/function/0 and line 2/"
    ):
        read(tmp_path, "\n".join(json.dumps(row) for row in [rows[0], other]))


def test_hosted_tools_are_left_out_by_name(tmp_path: Path) -> None:
    doc = read(tmp_path, {"tools": [CHAT, {"type": "web_search_20250305", "name": "web_search"}]})
    assert [t.name for t in doc.tools] == ["create_task"]
    assert [(f.code, f.pointer) for f in doc.findings] == [("hosted-tool", "/tools/1")]
    with pytest.raises(DocumentError, match="/tools: no tool with a schema is left: web_search: runs at"):
        read(tmp_path, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]})


def test_one_page_of_several_is_said(tmp_path: Path) -> None:
    doc = read(tmp_path, {"tools": [named("inputSchema", SCHEMA)], "nextCursor": "abc"})
    assert [(f.code, f.pointer) for f in doc.findings] == [("list-cut", "/nextCursor")]


def test_annotations_in_their_spellings(tmp_path: Path) -> None:
    tools = [
        {"name": "a", "inputSchema": {}, "annotations": {"readOnlyHint": True, "title": "The A"}},
        {"name": "b", "inputSchema": {}, "annotations": {"destructive_hint": False, "idempotentHint": True}},
        {"name": "c", "inputSchema": {}, "readOnlyHint": False},
        {
            "type": "function",
            "function": {"name": "d", "parameters": {}},
            "annotations": {"readOnlyHint": True},
        },
    ]
    got = [(t.read_only, t.destructive, t.idempotent) for t in read(tmp_path, tools).tools]
    assert got == [(True, None, None), (None, False, True), (False, None, None), (True, None, None)]
    assert read(tmp_path, tools).tools[0].description == "The A"


@pytest.mark.parametrize("key", ["outputSchema", "output_schema", "response", "returns"])
def test_output_schemas(key: str, tmp_path: Path) -> None:
    doc = read(tmp_path, [named("inputSchema", SCHEMA, **{key: DICT})])
    output = doc.tools[0].output
    assert output is not None and [p.name for p in output.properties] == ["title", "days", "tags"]
    assert output.pointer == f"/0/{key}"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"mcpServers": {"a": {"command": "npx"}}}, "an MCP client configuration"),
        ({"servers": {"a": {"url": "http://x"}}}, "an MCP client configuration"),
        ({"info": {"schema": "https://schema.getpostman.com/v2"}, "item": []}, "a Postman collection"),
        ({"asyncapi": "2.6.0", "channels": {}}, "an AsyncAPI document"),
        ({"data": {"__schema": {"types": []}}}, "a GraphQL introspection"),
        ({"kind": "discovery#restDescription"}, "a Google API discovery document"),
        ({"log": {"entries": []}}, "a HAR recording"),
        ({"arazzo": "1.0.0"}, "an Arazzo workflow"),
        ({"$schema": "x", "type": "object", "properties": {"a": {}}}, "one JSON Schema"),
        (["create_task", "list_tasks"], "a list of names without schemas"),
        ({"tools": ["create_task"]}, "/tools: a list of names without schemas"),
        ({"a": {"t": [named("parameters", SCHEMA)]}, "b": {"t": [CHAT]}}, "2 tool lists: /a/t, /b/t"),
    ],
)
def test_refused_by_name(value: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"^doc\.json: ") as caught:
        read(tmp_path, value)
    assert says in str(caught.value)


# -------------------------------------------------------------------------------- references
def test_references_to_files_beside_the_document(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "paths.yaml").write_text(
        "tasks:\n  post:\n    operationId: createTask\n    requestBody:\n      required: true\n"
        "      content:\n        application/json:\n"
        "          schema: {$ref: 'schemas/task.json#/Task'}\n"
    )
    user = {"$ref": "../api.yaml#/components/schemas/User"}
    members = {"title": {"type": "string"}, "parent": {"$ref": "#/Task"}, "owner": user}
    task = {"type": "object", "required": ["title"], "properties": members}
    (tmp_path / "schemas" / "task.json").write_text(json.dumps({"Task": task}))
    text = (
        "openapi: 3.1.0\ninfo: {title: T}\npaths:\n  /tasks: {$ref: 'paths.yaml#/tasks'}\n"
        "components: {schemas: {User: {type: object, properties: {email: {type: string}}}}}\n"
    )
    doc = read(tmp_path, text, "api.yaml")
    tool = doc.tools[0]
    assert (tool.name, tool.pointer) == ("createTask", "paths.yaml#/tasks/post")
    assert {p.name: p.required for p in tool.params} == {"title": True, "parent": False, "owner": False}
    title, parent, owner = tool.params
    assert title.pointer == "schemas/task.json#/Task/properties/title"
    assert parent.truncated and parent.ref == "Task"  # it contains itself
    assert [p.pointer for p in owner.properties] == ["/components/schemas/User/properties/email"]
    before = doc.sha256
    (tmp_path / "schemas" / "task.json").write_text(json.dumps({"Task": {**task, "required": []}}))
    assert read(tmp_path, text, "api.yaml").sha256 != before  # identity covers every file that was used


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("https://example.com/a.yaml#/x", "at an address"),
        ("../secret.yaml#/x", "outside the file's own folder"),
        ("/etc/hostname", "outside the file's own folder"),
        ("nope.yaml#/x", "'nope.yaml': nope.yaml: no such file"),
        ("other.yaml#/nope", "names nothing in other.yaml ('nope' not found)"),
        ("link.yaml#/x", "through a link"),
        ("broken.json", "neither JSON nor YAML"),
    ],
)
def test_references_that_cannot_be_followed(ref: str, says: str, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text("x: {type: string}")
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "other.yaml").write_text("x: {type: string}")
    (folder / "broken.json").write_text("{'a': [}")
    schema = {"type": "object", "properties": {"x": {"$ref": ref}}}
    with pytest.raises(DocumentError, match=r"^doc\.json: /0/parameters/properties/x: ") as caught:
        read(folder, [named("parameters", schema)])
    assert says in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_reference_of_a_tool_into_the_whole_document(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"when": {"$ref": "#/definitions/When"}}}
    value = {
        "tools": [named("inputSchema", schema)],
        "definitions": {"When": {"type": "string", "format": "date"}},
    }
    param = read(tmp_path, value).tools[0].params[0]
    assert (param.type, param.format, param.ref) == ("string", "date", "When")
