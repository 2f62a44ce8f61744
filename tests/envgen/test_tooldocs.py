"""Reading documents: values worked out by hand from the documents themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import DocumentError
from envgen.tooldocs import read_tool_doc
from envgen.tooldocs.prose import enum_in_prose, split_docstring
from envgen.types import FieldSpec, ToolDoc, ToolSpec


def write(tmp_path: Path, value: Any, name: str = "doc.json") -> Path:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def tool(doc: ToolDoc, name: str) -> ToolSpec:
    return next(t for t in doc.tools if t.name == name)


def param(spec: ToolSpec, name: str) -> FieldSpec:
    return next(p for p in spec.params if p.name == name)


def follow(tree: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        tree = tree[int(token)] if isinstance(tree, list) else tree[token]
    return tree


def openapi(schema: Any, components: dict[str, Any] | None = None, **operation: Any) -> dict[str, Any]:
    body = {"content": {"application/json": {"schema": schema}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "T", "version": "1"},
        "paths": {"/things": {"post": {"operationId": "makeThing", "requestBody": body, **operation}}},
        "components": {"schemas": components or {}},
    }


# -------------------------------------------------------------------------------- real documents
def test_museum(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "museum_openapi31.yaml")
    assert (doc.title, doc.format, doc.source) == (
        "Redocly Museum API",
        "openapi-3.1",
        "museum_openapi31.yaml",
    )
    # the webhook publishNewEvent is no tool
    assert [t.name for t in doc.tools] == [
        "getMuseumHours", "listSpecialEvents", "createSpecialEvent", "getSpecialEvent", "deleteSpecialEvent",
        "updateSpecialEvent", "buyMuseumTickets", "getTicketCode",
    ]  # fmt: skip
    buy = tool(doc, "buyMuseumTickets")  # allOf of {email} and Ticket
    assert {p.name: p.required for p in buy.params} == {
        "email": False, "ticketId": False, "ticketDate": True, "ticketType": True, "eventId": False,
    }  # fmt: skip
    assert param(buy, "ticketType").enum == ("event", "general")
    assert param(buy, "ticketType").location == "body"
    assert param(buy, "eventId").description.startswith("Unique identifier for a special event. Required if")
    assert buy.output is not None
    assert {p.name for p in buy.output.properties if p.required} == {
        "ticketType", "ticketDate", "message", "confirmationCode",
    }  # fmt: skip
    hours = tool(doc, "getMuseumHours")
    assert hours.output is not None and hours.output.items is not None
    daily = {p.name: p for p in hours.output.items.properties}
    assert hours.output.items.ref == "MuseumDailyHours"
    assert daily["timeOpen"].example == "09:00"  # PyYAML reads 540
    assert daily["date"].example == "2024-12-31"  # the sibling of $ref wins over the component's 2023-10-29
    code = tool(doc, "getTicketCode")
    assert code.output is not None and (code.output.type, code.output.format) == ("string", "binary")
    assert tool(doc, "deleteSpecialEvent").output is None
    create = tool(doc, "createSpecialEvent")
    assert (create.method, create.path) == ("post", "/special-events")
    assert param(create, "dates").items == param(create, "dates").items
    dates = param(create, "dates").items
    assert dates is not None and (dates.type, dates.format) == ("string", "date")
    assert [s.name for s in doc.schemas][:3] == ["TicketType", "Date", "Email"]


def test_conduit_wrappers_are_opened_and_examples_kept(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "conduit_openapi31.yml")
    assert len(doc.tools) == 19
    create = tool(doc, "CreateArticle")
    assert {p.name: p.required for p in create.params} == {
        "title": True, "description": True, "body": True, "tagList": False,
    }  # fmt: skip
    comment = tool(doc, "DeleteArticleComment")
    assert [(p.name, p.type, p.location, p.required) for p in comment.params] == [
        ("slug", "string", "path", True),
        ("id", "integer", "path", True),
    ]
    assert create.output is not None and create.output.properties[0].name == "article"
    assert create.output.properties[0].ref == "Article"


def test_xero_header_parameters_of_the_path_item(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "xero_assets_openapi30.yaml")
    assets = tool(doc, "getAssets")
    assert (assets.params[0].name, assets.params[0].location) == ("xero-tenant-id", "header")
    assert param(assets, "status").enum == ("DRAFT", "REGISTERED", "DISPOSED")
    assert (
        assets.output is not None
        and assets.output.example["items"][0]["purchaseDate"] == "2020-01-01T00:00:00"
    )
    assert assets.output.example["items"][0]["purchasePrice"] == 100.0


def test_scheduler_nullable_and_docstrings(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "toucan_scheduler_tools.json")
    assert (doc.title, doc.format, len(doc.tools)) == ("Task Scheduler", "mcp", 13)
    get = tool(doc, "get_task")
    assert get.description == "Get details of a specific task."
    assert param(get, "task_id").description == "ID of the task to retrieve"
    update = tool(doc, "update_task")
    enabled = param(update, "enabled")
    assert (enabled.type, enabled.nullable, enabled.required) == ("boolean", True, False)
    assert param(tool(doc, "add_api_task"), "api_method").default == "GET"
    assert param(get, "task_id").pointer == "/tools/1/input_schema/properties/task_id"


def test_checklist_argument_lists(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / "docker_simplechecklist_tools.json")
    assert (doc.format, len(doc.tools)) == ("mcp", 20)
    create = tool(doc, "create_task")
    assert param(create, "priority").enum == ("low", "medium", "high")
    assert param(create, "task_list_id").required and param(create, "title").required
    update = tool(doc, "update_task")
    assert [p.name for p in update.params if p.required] == ["task_id"]


@pytest.mark.parametrize(
    ("name", "format_", "tools", "outputs"),
    [
        ("bfcl_gorilla_file_system.jsonl.json", "functions-jsonl", 18, 18),
        ("bfcl_ticket_api.jsonl.json", "functions-jsonl", 9, 9),
        ("bfcl_trading_bot.jsonl.json", "functions-jsonl", 20, 20),
        ("docker_zerodha_kite_tools.json", "mcp", 15, 0),
        ("github_mcp_toolslist.json", "mcp", 117, 0),
        ("notion_openapi31.json", "openapi-3.1", 24, 24),
        ("petstore_openapi30.yaml", "openapi-3.0", 19, 14),
        ("tictactoe_openapi31.yaml", "openapi-3.1", 3, 3),
        ("twilio_content_v1_openapi30.json", "openapi-3.0", 9, 8),
    ],
)
def test_shared_documents(shared_tooldocs: Path, name: str, format_: str, tools: int, outputs: int) -> None:
    doc = read_tool_doc(shared_tooldocs / name)
    assert (doc.format, len(doc.tools)) == (format_, tools)
    assert sum(t.output is not None for t in doc.tools) == outputs


def test_shared_details(shared_tooldocs: Path) -> None:
    kite = read_tool_doc(shared_tooldocs / "docker_zerodha_kite_tools.json")
    order = tool(kite, "place_order")
    assert param(order, "exchange").enum == ("NSE", "BSE", "NFO", "CDS", "MCX")
    assert param(order, "transaction_type").enum == ("BUY", "SELL")
    assert param(order, "product").enum == ("CNC", "MIS", "NRML")
    assert param(order, "tradingsymbol").enum == ()  # e.g., RELIANCE, INFY
    assert [p.name for p in order.params if not p.required] == ["price", "trigger_price"]
    assert param(tool(kite, "get_quote"), "exchange").enum == ()  # NSE, BSE, etc.
    github = read_tool_doc(shared_tooldocs / "github_mcp_toolslist.json")
    assert tool(github, "actions_get").read_only is True
    assert param(tool(github, "add_sub_issue"), "owner").enum == ()  # "(username or organization)"
    ticket = read_tool_doc(shared_tooldocs / "bfcl_ticket_api.jsonl.json")
    assert tool(ticket, "close_ticket").description == "Close a ticket."
    assert tool(ticket, "close_ticket").pointer == "line 1"
    assert param(tool(ticket, "create_ticket"), "priority").default == 1
    board = read_tool_doc(shared_tooldocs / "tictactoe_openapi31.yaml")
    assert param(tool(board, "put-square"), "mark").enum == (".", "X", "O")
    notion = read_tool_doc(shared_tooldocs / "notion_openapi31.json")
    assert [p.name for p in tool(notion, "move-page").params if p.location == "body"] == ["parent"]


def test_prose_needs_a_model(tmp_path: Path) -> None:
    text = "The service lets you make tasks and hand them to workers. " * 5
    with pytest.raises(DocumentError, match="prose, which takes a language model"):
        read_tool_doc(write(tmp_path, {"name": "Tasks", "documentation": text}))


def test_text_with_labelled_blocks_needs_none(shared_tooldocs: Path) -> None:
    doc = read_tool_doc(shared_tooldocs / "toolalpaca_auth0_plaintext.json")
    assert (doc.title, doc.format, len(doc.tools)) == ("Auth0", "labelled-text", 9)
    roles = tool(doc, "listRoles").output
    assert roles is not None and roles.properties[0].items is not None
    assert [p.name for p in roles.properties[0].items.properties] == ["roleId", "roleName"]
    assert tool(doc, "listRoles").pointer == "/NLDocumentation line 21"
    assert param(tool(doc, "authenticateUser"), "provider").enum == ("google", "facebook", "twitter")


def test_pointers_lead_to_the_place(examples_dir: Path) -> None:
    path = examples_dir / "toucan_scheduler_tools.json"
    tree = json.loads(path.read_text())
    for spec in read_tool_doc(path).tools:
        assert follow(tree, spec.pointer)["name"] == spec.name
        for p in spec.params:
            assert p.pointer.endswith(f"/{p.name}") and isinstance(follow(tree, p.pointer), dict)


# -------------------------------------------------------------------------------- schemas
def test_circular_reference_is_cut(tmp_path: Path) -> None:
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "child": {"$ref": "#/components/schemas/N"}},
    }
    doc = read_tool_doc(write(tmp_path, openapi({"$ref": "#/components/schemas/N"}, {"N": node})))
    child = param(doc.tools[0], "child")
    assert (child.truncated, child.ref, child.type) == (True, "N", "object")
    assert doc.schemas[0].properties[1].truncated


def test_reference_that_names_itself(tmp_path: Path) -> None:
    doc = read_tool_doc(
        write(
            tmp_path,
            openapi(
                {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}},
                {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}},
            ),
        )
    )
    # the wrapper is not opened, since nothing is inside
    assert param(doc.tools[0], "a").truncated


def test_depth_and_size_limits(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(12):
        deep = {"type": "object", "properties": {"x": deep, "y": {"type": "string"}}}
    wide = {"type": "object", "properties": {f"f{i}": {"type": "string"} for i in range(1000)}}
    schema = {"type": "object", "properties": {"deep": deep, "wide": wide}}
    doc = read_tool_doc(write(tmp_path, openapi(schema)))

    def depth(spec: FieldSpec) -> int:
        return 1 + max((depth(p) for p in spec.properties), default=0)

    assert depth(param(doc.tools[0], "deep")) <= 8
    assert param(doc.tools[0], "wide").truncated and len(param(doc.tools[0], "wide").properties) < 400


def test_one_of_unites_objects(tmp_path: Path) -> None:
    def variant(kind: str, extra: str) -> dict[str, Any]:
        properties = {"kind": {"const": kind}, "size": {"type": "integer"}, extra: {"type": "string"}}
        return {"type": "object", "properties": properties, "required": ["kind", extra]}

    schema = {
        "type": "object",
        "properties": {"shape": {"oneOf": [variant("a", "left"), variant("b", "right")]}, "n": {}},
    }
    doc = read_tool_doc(write(tmp_path, openapi(schema)))
    shape = {p.name: p for p in param(doc.tools[0], "shape").properties}
    assert shape["kind"].enum == ("a", "b") and shape["kind"].type == "string"
    assert [name for name, p in shape.items() if p.required] == ["kind"]
    assert set(shape) == {"kind", "size", "left", "right"}


@pytest.mark.parametrize(
    ("schema", "type_", "nullable", "enum"),
    [
        ({"type": ["string", "null"]}, "string", True, ()),
        ({"type": "integer", "nullable": True}, "integer", True, ()),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]}, "array", True, ()),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "number", False, ()),
        ({"oneOf": [{"const": "a"}, {"enum": ["b", "a"]}]}, "string", False, ("a", "b")),
        ({"enum": ["a", None]}, "string", True, ("a",)),
        ({"const": 3}, "integer", False, (3,)),
        ({"type": ["integer", "string"]}, "string", False, ()),
        ({"allOf": [{"type": "string"}, {"enum": ["x", "y"]}]}, "string", False, ("x", "y")),
        ({"properties": {"a": True}}, "object", False, ()),
        ({"type": "dict", "properties": {}}, "object", False, ()),
        ({"type": "float"}, "number", False, ()),
        (True, "any", False, ()),
        ({}, "any", False, ()),
    ],
)
def test_type_dialects(
    tmp_path: Path, schema: Any, type_: str, nullable: bool, enum: tuple[Any, ...]
) -> None:
    document = [{"name": "set_it", "parameters": {"type": "object", "properties": {"x": schema}}}]
    x = read_tool_doc(write(tmp_path, document)).tools[0].params[0]
    assert (x.type, x.nullable, x.enum) == (type_, nullable, enum)


def test_read_only_members_are_no_parameters(tmp_path: Path) -> None:
    thing = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "pin": {"type": "string", "writeOnly": True},
            "n": {"type": "integer"},
        },
    }
    schema = {"$ref": "#/components/schemas/T"}
    document = openapi(schema, {"T": thing})
    document["paths"]["/things"]["post"]["responses"] = {
        "default": {"description": "an error", "content": {"text/plain": {"schema": {"type": "string"}}}},
        "201": {"content": {"text/html": {}, "application/vnd.api+json": {"schema": schema}}},
    }
    spec = read_tool_doc(write(tmp_path, document)).tools[0]
    assert [p.name for p in spec.params] == ["pin", "n"]
    assert spec.output is not None and [p.name for p in spec.output.properties] == ["id", "n"]


def test_swagger_2(tmp_path: Path) -> None:
    document = {
        "swagger": "2.0",
        "info": {"title": "Old", "version": "1"},
        "paths": {
            "/pets/{petId}": {
                "put": {
                    "parameters": [
                        {"name": "petId", "in": "path", "type": "integer", "required": True},
                        {
                            "name": "p",
                            "in": "body",
                            "required": True,
                            "schema": {"$ref": "#/definitions/Pet"},
                        },
                    ],
                    "responses": {"200": {"description": "ok", "schema": {"$ref": "#/definitions/Pet"}}},
                }
            }
        },
        "definitions": {
            "Pet": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            }
        },
    }
    doc = read_tool_doc(write(tmp_path, document))
    assert doc.format == "swagger-2.0"
    assert doc.tools[0].name == "put_pets_by_petId"
    got = [(p.name, p.type, p.location, p.required) for p in doc.tools[0].params]
    assert got == [
        ("petId", "integer", "path", True),
        ("name", "string", "body", True),
        ("age", "integer", "body", False),
    ]
    assert doc.tools[0].output is not None and doc.tools[0].output.ref == "Pet"
    assert [s.name for s in doc.schemas] == ["Pet"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: [{"type": "function", "function": f}],
        lambda f: {"tools": [{"type": "function", **f}]},
        lambda f: {"functions": [f]},
        lambda f: f,
        lambda f: [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}],
        lambda f: {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"tools": [{"name": f["name"], "inputSchema": f["parameters"]}]},
        },
    ],
)
def test_function_envelopes(tmp_path: Path, wrap: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "$defs": {"City": {"type": "string", "description": "A city"}},
    }
    document = wrap({"name": "book", "description": "Books.", "parameters": parameters})
    doc = read_tool_doc(write(tmp_path, document))
    assert [t.name for t in doc.tools] == ["book"]
    city = doc.tools[0].params[0]
    assert (city.name, city.type, city.required, city.description, city.ref) == (
        "city",
        "string",
        True,
        "A city",
        "City",
    )


def test_yaml_words_stay_words(tmp_path: Path) -> None:
    text = """
openapi: 3.0.0
info: {title: on, version: 1.10}
paths:
  /lights:
    post:
      operationId: "off"
      description: 2024-01-02
      requestBody:
        content:
          application/json:
            schema:
              type: object
              properties:
                state: {type: string, enum: [on, off, yes], example: 09:00, default: no}
                day: &day {type: string, example: 2020-01-01, description: 0123}
                other: {<<: *day, example: 1_000}
                n: {type: integer, default: 12, example: 0x1F}
      responses:
        200: {description: ok, content: {application/json: {schema: {type: number, example: 1.5e3}}}}
"""
    doc = read_tool_doc(write(tmp_path, text, "doc.yaml"))
    assert doc.title == "on"
    spec = doc.tools[0]
    assert (spec.name, spec.description) == ("off", "2024-01-02")
    state = param(spec, "state")
    assert (state.enum, state.example, state.default) == (("on", "off", "yes"), "09:00", "no")
    assert (param(spec, "day").example, param(spec, "day").description) == ("2020-01-01", "0123")
    assert (param(spec, "other").type, param(spec, "other").example) == ("string", "1_000")
    assert (param(spec, "n").default, param(spec, "n").example) == (12, "0x1F")
    assert spec.output is not None and spec.output.example == 1500.0


# -------------------------------------------------------------------------------- prose
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Task priority (low, medium, high)", ("low", "medium", "high")),
        ("BUY or SELL", ("BUY", "SELL")),
        ("Order type (MARKET, LIMIT, SL, SL-M)", ("MARKET", "LIMIT", "SL", "SL-M")),
        ("Product type (CNC for delivery, MIS for intraday)", ("CNC", "MIS")),
        ("One of: open, closed or all.", ("open", "closed", "all")),
        ("The state. One of [todo, done].", ("todo", "done")),
        ("'asc' or 'desc'", ("asc", "desc")),
        ("Mode ('l' for lines, 'w' for words, 'c' for characters).", ("l", "w", "c")),
        ('The unit. [Enum]: ["lines", "words"]', ("lines", "words")),
        ("Status must be 'todo', 'in progress', or 'done'", ("todo", "in progress", "done")),
        ('can be "buy" or "sell"', ("buy", "sell")),
        ("Valid values: x | y | z", ("x", "y", "z")),
        ("Accepted values are low, high", ("low", "high")),
        ("Direction (asc|desc)", ("asc", "desc")),
        ("Name like 'foo' or 'bar'", ()),
        ("Format must be 'YYYY' or 'MM'", ()),
        ("Filter by state: 'open', 'closed', etc.", ()),
        ("The user's name and the dog's name", ()),
        ("the value of 'a' or 'b' wins", ()),
        ("Symbol (e.g., RELIANCE, INFY)", ()),
        ("Exchange (NSE, BSE, etc.)", ()),
        ("Start date (YYYY-MM-DD)", ()),
        ("Repository owner (username or organization)", ()),
        ("Name or id", ()),
        ("Project color (hex code)", ()),
        ("Day of the week (1, 2, 3)", ()),
        ("", ()),
    ],
)
def test_enums_in_prose(text: str, values: tuple[str, ...]) -> None:
    assert enum_in_prose(text) == values


def test_docstring() -> None:
    text = (
        "Book a room.\n\n   For one night.\n\n  Args:\n    room_id (str): Which room\n       of the hotel\n"
    )
    text += "    day: The day\n  Returns:\n    a booking"
    assert split_docstring(text) == (
        "Book a room. For one night.",
        {"room_id": "Which room of the hotel", "day": "The day"},
    )
