"""The proposer on every real document beside the checkout: no crash, honest accounts, and code that does
what it says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from envgen.errors import RefusedDocument, ToolError
from envgen.proposers.rules import propose
from envgen.synthesis.audit import audit
from envgen.synthesis.schema import field_of, place_argument
from envgen.synthesis.toolproof.prove import proofs_of
from envgen.tooldocs import read_tool_doc
from envgen.types import EnvironmentDraft, FieldSpec, Record, ToolDoc, ToolSemantics, ToolSpec
from tests.envgen.rules_world import Play, fill, value_of

ACCEPTED = {  # file -> tools implemented, at least; lower it only with a reason
    "bfcl_ticket_api.jsonl.json": 6,
    "bfcl_trading_bot.jsonl.json": 15,
    "conduit_openapi31.yml": 15,
    "docker_simplechecklist_tools.json": 20,
    "docker_zerodha_kite_tools.json": 4,
    "github_mcp_toolslist.json": 42,
    "museum_openapi31.yaml": 7,
    "petstore_openapi30.yaml": 15,
    "toolalpaca_auth0_plaintext.json": 6,
    "toucan_scheduler_tools.json": 12,
    "twilio_content_v1_openapi30.json": 7,
    "xero_assets_openapi30.yaml": 6,
}
REFUSED = {
    "bfcl_gorilla_file_system.jsonl.json": "no-write-tool",  # a shell: cd, cat, mv …
}


@pytest.mark.parametrize("file", ACCEPTED)
def test_accepted_documents(file: str, shared_tooldocs: Path) -> None:
    doc = read_tool_doc(shared_tooldocs / file)
    started = time.perf_counter()
    draft = propose(doc)
    assert time.perf_counter() - started < 5.0
    assert [d.tool for d in draft.decisions] == [t.name for t in doc.tools]  # all accounted for, in order
    assert sum(d.implemented for d in draft.decisions) >= ACCEPTED[file]
    for decision in draft.decisions:
        assert decision.implemented != bool(decision.reason)
    for tool in draft.tools:
        jsonschema_rs.validator_for(tool.parameters)
    for collection in draft.state_schema.collections:
        assert field_of(collection, collection.key) is not None
        for item in collection.fields:
            assert item.provenance, (collection.name, item.name)
            if item.references:
                draft.state_schema.collection(item.references)
            if item.type == "enum":
                assert item.enum and (item.default is None or item.default in item.enum)


@pytest.mark.parametrize("file", REFUSED)
def test_refused_documents_say_why_for_each_tool(file: str, shared_tooldocs: Path) -> None:
    doc = read_tool_doc(shared_tooldocs / file)
    with pytest.raises(RefusedDocument) as caught:
        propose(doc)
    assert REFUSED[file] in {f.code for f in caught.value.findings}
    refused = {f.message.split(":")[0] for f in caught.value.findings if f.code == "tool-refused"}
    assert refused <= {t.name for t in doc.tools} and len(refused) >= 2


def test_records_shown_only_by_a_read_of_oneself(shared_tooldocs: Path) -> None:
    """Notion's lists have no response schema; GET /users/me alone shows what a user record holds."""
    doc = read_tool_doc(shared_tooldocs / "notion_openapi31.json")
    draft = propose(doc)
    listed = next(s for s in draft.semantics if s.tool == "get-users")
    assert listed.many and any("no result schema" in text for text in listed.assumptions)
    users = draft.state_schema.collection("users")
    own = next(t for t in doc.tools if t.name == "get-self").output
    assert own is not None
    assert {f.name: f.provenance for f in users.fields}["avatar_url"] == own.properties[3].pointer
    assert [f.code for f in audit(doc) if f.level == "refusal"] == ["no-task"]  # no list leads to a page


def arguments_for(draft: EnvironmentDraft, tool: ToolSemantics, record: Record) -> dict[str, Any]:
    """Required arguments, and all writes, that fit one record."""
    arguments: dict[str, Any] = {}
    for binding in (*((tool.key,) if tool.key else ()), *tool.scope, *tool.filters):
        if not binding.required:
            continue
        owner = draft.state_schema.collection(binding.collection)
        item = field_of(owner, binding.field)
        value = record.get(binding.field)
        place_argument(arguments, binding.param, [value] if binding.op == "in" else value)
        assert item is not None
    for binding in tool.writes:
        item = field_of(draft.state_schema.collection(binding.collection), binding.field)
        assert item is not None
        fresh = record[binding.field] if item.references else value_of(item, 20)
        place_argument(arguments, binding.param, fresh)
    return arguments


@pytest.mark.parametrize("file", ACCEPTED)
def test_every_function_proves_itself(file: str, shared_tooldocs: Path) -> None:
    doc = read_tool_doc(shared_tooldocs / file)
    draft = propose(doc)
    proofs = proofs_of(draft, doc)
    assert [(p.tool, p.kind, p.detail) for p in proofs if not p.passed] == []
    assert [p.tool for p in proofs] == [s.tool for s in draft.semantics]


CLEAN = {  # file -> reasons that hold whatever an environment could do, as the refusals say them
    "bfcl_ticket_api.jsonl.json": {"authentication": 3},
    "bfcl_trading_bot.jsonl.json": {"authentication": 3, "clock": 1, "external effect": 1},
    "conduit_openapi31.yml": {"authentication": 4},
    "docker_simplechecklist_tools.json": {},
    "museum_openapi31.yaml": {"binary": 1},
    "petstore_openapi30.yaml": {"authentication": 2, "binary": 1},
    "toolalpaca_auth0_plaintext.json": {"authentication": 3},
    "toucan_scheduler_tools.json": {"server itself": 1},
    "twilio_content_v1_openapi30.json": {},
    "xero_assets_openapi30.yaml": {},
}
"""Documents whose records are described (docs/synthesis.md), with their tools that no state can hold."""


def test_nearly_all_tools_of_clean_documents_are_implemented(shared_tooldocs: Path) -> None:
    made = possible = 0
    for file, outside in CLEAN.items():
        decisions = propose(read_tool_doc(shared_tooldocs / file)).decisions
        refused = [d.reason for d in decisions if not d.implemented]
        for kind, number in outside.items():
            assert sum(kind in reason for reason in refused) == number, (file, kind, refused)
        made += sum(d.implemented for d in decisions)
        possible += len(decisions) - sum(outside.values())
    assert made / possible >= 0.95, (made, possible)


@pytest.mark.parametrize("file", ACCEPTED)
def test_an_error_changes_nothing(file: str, shared_tooldocs: Path) -> None:
    draft = propose(read_tool_doc(shared_tooldocs / file))
    for tool in draft.semantics:
        keyed = tool.key or next((b for b in tool.scope if b.required), None)
        if keyed is None:
            continue
        data = fill(draft)
        game = Play(draft, data)
        arguments = arguments_for(draft, tool, next(iter(data[tool.collection].values())))
        place_argument(
            arguments, keyed.param, 987654 if isinstance(arguments[keyed.param], int) else "nobody"
        )
        before = game.state.snapshot()
        item = field_of(draft.state_schema.collection(keyed.collection), keyed.field)
        assert item is not None
        if tool.key is None and not item.references:
            continue  # an address such as owner: any text is one
        with pytest.raises(ToolError):
            game(tool.tool, **arguments)
        assert game.state.snapshot() == before


# ---------------------------------------------------------------------------------------- small documents
def tool(name: str, *params: FieldSpec, output: FieldSpec | None = None, description: str = "") -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description or name.replace("_", " "),
        params=params,
        output=output,
        pointer=f"/{name}",
    )


def param(name: str, type_: Any = "string", required: bool = True, **more: Any) -> FieldSpec:
    return FieldSpec(
        name=name, type=type_, required=required, pointer=f"/params/{name}", location="argument", **more
    )


def doc_of(*tools: ToolSpec) -> ToolDoc:
    return ToolDoc(title="Small Tools API", format="mcp", source="small.json", sha256="0" * 64, tools=tools)


def test_a_read_only_list_of_nothing_is_refused() -> None:
    with pytest.raises(RefusedDocument, match="no tool that changes the state") as caught:
        propose(doc_of(tool("list_books"), tool("get_book", param("book_id"))))
    assert {f.code for f in caught.value.findings} >= {"no-write-tool", "no-lookup-tool"}


def test_status_verbs_agree_on_one_field() -> None:
    draft = propose(
        doc_of(
            tool("create_order", param("item"), param("quantity", "number")),
            tool("list_orders"),
            tool("cancel_order", param("order_id"), description="Cancel a pending order"),
            tool("approve_order", param("order_id")),
        )
    )
    status = field_of(draft.state_schema.collection("orders"), "status")
    assert (
        status is not None
        and status.enum == ("pending", "cancelled", "approved")
        and status.default == "pending"
    )
    cancel = next(s for s in draft.semantics if s.tool == "cancel_order")
    assert ("field_equals", "pending") in {
        (r.kind, r.value) for r in cancel.preconditions
    }  # "a pending order"
    quantity = field_of(draft.state_schema.collection("orders"), "quantity")
    assert quantity is not None and quantity.type == "integer"


def test_an_update_object_is_opened() -> None:
    updates = param(
        "updates", "object", properties=(param("title", required=False), param("priority", "integer", False))
    )
    draft = propose(
        doc_of(
            tool("create_ticket", param("title"), param("priority", "integer", False)),
            tool("list_tickets"),
            tool("edit_ticket", param("ticket_id"), updates),
        )
    )
    edit = next(s for s in draft.semantics if s.tool == "edit_ticket")
    assert [(b.param, b.field) for b in edit.writes] == [
        ("updates.title", "title"),
        ("updates.priority", "priority"),
    ]
    game = Play(draft, {"tickets": {"T1": {"ticket_id": "T1", "title": "old"}}})
    assert game("edit_ticket", ticket_id="T1", updates={"priority": 3}) == {
        "ticket_id": "T1",
        "title": "old",
        "priority": 3,
    }


def test_a_move_stores_the_new_parent() -> None:
    draft = propose(
        doc_of(
            tool("create_folder", param("name")),
            tool("list_folders"),
            tool("create_note", param("folder_id"), param("text")),
            tool("list_notes", param("folder_id")),
            tool("move_note", param("note_id"), param("folder_id")),
        )
    )
    move = next(s for s in draft.semantics if s.tool == "move_note")
    assert [(b.param, b.field) for b in move.writes] == [("folder_id", "folder_id")]
    data = {
        "folders": {"F1": {"folder_id": "F1", "name": "a"}, "F2": {"folder_id": "F2", "name": "b"}},
        "notes": {"N1": {"note_id": "N1", "folder_id": "F1", "text": "x"}},
    }
    game = Play(draft, data)
    assert game("move_note", note_id="N1", folder_id="F2")["folder_id"] == "F2"
    with pytest.raises(ToolError, match="No folder F9"):
        game("move_note", note_id="N1", folder_id="F9")


def test_what_acts_outside_is_refused() -> None:
    draft = propose(
        doc_of(
            tool("create_contact", param("name")),
            tool("list_contacts"),
            tool("send_message", param("contact_id"), param("text")),
            tool("login", param("username"), param("password")),
            tool("get_server_info"),
            tool("run_contact", param("contact_id")),
        )
    )
    reasons = {d.tool: d.reason for d in draft.decisions if not d.implemented}
    assert set(reasons) == {"send_message", "login", "get_server_info", "run_contact"}
    assert "external effect" in reasons["send_message"] and "password" in reasons["login"]
    assert "server" in reasons["get_server_info"]
