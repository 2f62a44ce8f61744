"""Kinds of tools told from parameters, results and each other: natural keys, sets, amounts, look-ups by name,
numbers per value, parts of a record."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.errors import ToolError
from envgen.proposers.rules import propose
from envgen.synthesis.toolproof.prove import proofs_of
from envgen.types import EnvironmentDraft, FieldSpec, ToolDoc, ToolSpec
from tests.envgen.rules_world import Play


def field(name: str, type_: Any = "string", required: bool = True, **more: Any) -> FieldSpec:
    return FieldSpec(name=name, type=type_, required=required, pointer=f"/{name}", **more)


def gives(*members: FieldSpec) -> FieldSpec:
    return field("out", "object", properties=members)


def listing(name: str, type_: Any = "string") -> FieldSpec:
    return gives(field(name, "array", items=field("item", type_)))


def tool(name: str, said: str, output: FieldSpec, *params: FieldSpec, **more: Any) -> ToolSpec:
    return ToolSpec(name=name, description=said, params=params, output=output, pointer=f"/{name}", **more)


DOC = ToolDoc(
    title="Crates",
    format="functions",
    source="crates.json",
    sha256="0" * 64,
    tools=(
        tool(
            "get_crate_info",
            "Get the details of a crate.",
            gives(field("weight", "number"), field("volume", "number")),
            field("code", description="Code of the crate."),
        ),
        tool(
            "get_available_crates",
            "Get a list of crate codes in the given zone.",
            listing("crate_list"),
            field("zone"),
        ),
        tool(
            "filter_crates_by_weight",
            "Filter crates by a weight range.",
            listing("filtered"),
            field("crates", "array", items=field("item")),
            field("min_weight", "number"),
            field("max_weight", "number"),
        ),
        tool(
            "get_code_by_label",
            "Get the code of a crate by label.",
            gives(field("code", description='Code, or "Unknown crate" if not available.')),
            field("label"),
        ),
        tool(
            "add_to_worklist",
            "Add a crate to the worklist.",
            listing("worklist"),
            field("crate", description="Code of the crate to add."),
        ),
        tool(
            "remove_crate_from_worklist",
            "Remove a crate from the worklist.",
            gives(field("status", description="Status of the removal operation.")),
            field("code", description="Code of the crate to remove."),
        ),
        tool("get_worklist", "Get the worklist.", listing("worklist")),
        tool(
            "get_account_info",
            "Get account information.",
            gives(field("account_id", "integer"), field("balance", "number")),
        ),
        tool(
            "fund_account",
            "Fund the account.",
            gives(field("new_balance", "number")),
            field("amount", "number"),
        ),
        tool(
            "withdraw_funds",
            "Withdraw funds.",
            gives(field("new_balance", "number")),
            field("amount", "number"),
        ),
        tool(
            "place_order",
            "Place an order.",
            gives(field("order_id", "integer"), field("code")),
            field("code", description="Code of the crate to move."),
            field("amount", "integer"),
        ),
        tool(
            "get_order_details",
            "Get the details of an order.",
            gives(field("id", "integer"), field("code"), field("amount", "integer")),
            field("order_id", "integer"),
        ),
        tool("get_order_history", "Get the order ID history.", listing("order_history", "integer")),
    ),
)


@pytest.fixture(scope="module")
def draft() -> EnvironmentDraft:
    return propose(DOC)


def game(draft: EnvironmentDraft) -> Play:
    crates = {
        "C1": {"code": "C1", "weight": 5, "volume": 2, "zone": "north", "label": "Amber"},
        "C2": {"code": "C2", "weight": 9, "volume": 3, "zone": "south", "label": "Blue"},
        "C3": {"code": "C3", "weight": 7, "volume": 1, "zone": "north", "label": "Coral"},
    }
    account = {"id": "self", "account_id": 4, "balance": 50}
    orders = {"11": {"order_id": 11, "code": "C1", "amount": 2}}
    return Play(
        draft,
        {
            "crates": crates,
            "worklist_entries": {"C2": {"crate": "C2"}},
            "accounts": {"self": account},
            "orders": orders,
        },
    )


def test_all_are_implemented_and_prove_themselves(draft: EnvironmentDraft) -> None:
    assert [d.tool for d in draft.decisions if not d.implemented] == []
    assert [(p.tool, p.kind, p.detail) for p in proofs_of(draft, DOC) if not p.passed] == []


def test_a_read_by_natural_key(draft: EnvironmentDraft) -> None:
    assert game(draft)("get_crate_info", code="C2") == {"weight": 9, "volume": 3}
    with pytest.raises(ToolError, match="No crate C9"):
        game(draft)("get_crate_info", code="C9")
    zone = next(
        f for c in draft.state_schema.collections if c.name == "crates" for f in c.fields if f.name == "zone"
    )
    assert "assumption" in zone.provenance and zone.provenance.startswith("/zone")


def test_lists_of_keys(draft: EnvironmentDraft) -> None:
    play = game(draft)
    assert play("get_available_crates", zone="north") == {"crate_list": ["C1", "C3"]}
    assert play("filter_crates_by_weight", crates=["C1", "C2", "C3"], min_weight=6, max_weight=9) == {
        "filtered": ["C2", "C3"]
    }
    assert play("filter_crates_by_weight", crates=["C1"], min_weight=6, max_weight=9) == {"filtered": []}
    assert play("get_order_history") == {"order_history": [11]}


def test_a_look_up_by_name(draft: EnvironmentDraft) -> None:
    assert game(draft)("get_code_by_label", label="Coral") == {"code": "C3"}
    assert game(draft)("get_code_by_label", label="Nobody") == {"code": "Unknown crate"}


def test_a_set(draft: EnvironmentDraft) -> None:
    play = game(draft)
    assert play("add_to_worklist", crate="C1") == {"worklist": ["C2", "C1"]}
    with pytest.raises(ToolError, match="already exists"):
        play("add_to_worklist", crate="C1")
    with pytest.raises(ToolError, match="No crate C9"):
        play("add_to_worklist", crate="C9")
    assert play("remove_crate_from_worklist", code="C2") == {"status": "Worklist entry removed."}
    assert play("get_worklist") == {"worklist": ["C1"]}


def test_amounts(draft: EnvironmentDraft) -> None:
    play = game(draft)
    assert play("fund_account", amount=25) == {"new_balance": 75}
    assert play("withdraw_funds", amount=75) == {"new_balance": 0}
    with pytest.raises(ToolError, match="balance is less than 1"):
        play("withdraw_funds", amount=1)
    for wrong in (0, -5):
        with pytest.raises(ToolError, match="more than 0"):
            play("fund_account", amount=wrong)
    assert play("get_account_info") == {"account_id": 4, "balance": 0}


def test_a_text_that_names_a_record_is_a_reference(draft: EnvironmentDraft) -> None:
    code = next(
        f for c in draft.state_schema.collections if c.name == "orders" for f in c.fields if f.name == "code"
    )
    assert code.references == "crates"
    with pytest.raises(ToolError, match="No crate C9"):
        game(draft)("place_order", code="C9", amount=1)


def test_numbers_per_value_and_parts_of_a_record() -> None:
    pet = gives(field("id", "integer"), field("name"), field("status", enum=("available", "sold")))
    counts = field("out", "object")
    draft = propose(
        ToolDoc(
            title="Pets",
            format="openapi-3.0",
            source="pets.json",
            sha256="0" * 64,
            tools=(
                tool(
                    "addPet",
                    "Add a pet.",
                    pet,
                    field("name"),
                    field("status", enum=("available", "sold")),
                    method="post",
                    path="/pet",
                ),
                tool("getPets", "All pets.", field("out", "array", items=pet), method="get", path="/pet"),
                tool(
                    "getPet",
                    "A pet.",
                    pet,
                    field("id", "integer", location="path"),
                    method="get",
                    path="/pet/{id}",
                ),
                tool(
                    "getInventory",
                    "Returns a map of status codes to quantities.",
                    counts,
                    method="get",
                    path="/store/inventory",
                    summary="Pets by status",
                ),
            ),
        )
    )
    pets = {
        str(n): {"id": n, "name": f"p{n}", "status": s}
        for n, s in enumerate(("sold", "available", "sold"), 1)
    }
    assert Play(draft, {"pets": pets})("getInventory") == {"available": 1, "sold": 2}

    users = propose(
        ToolDoc(
            title="Users",
            format="mcp",
            source="users.json",
            sha256="0" * 64,
            tools=(
                tool(
                    "listRoles",
                    "List all roles.",
                    field("out", "array", items=gives(field("roleId"), field("roleName"))),
                ),
                tool("deleteUser", "Delete a user.", gives(field("success")), field("userId")),
                tool("createRole", "Create a role.", gives(field("roleId")), field("roleName")),
                tool(
                    "getUserProfile", "The profile.", gives(field("userProfile", "object")), field("userId")
                ),
                tool(
                    "updateUserProfile",
                    "Update it.",
                    gives(field("success")),
                    field("userId"),
                    field("profileData", "object"),
                ),
                tool(
                    "assignUserRole",
                    "Assign a role to a user.",
                    gives(field("success")),
                    field("userId"),
                    field("roleId"),
                ),
            ),
        )
    )
    play = Play(
        users, {"users": {"U1": {"userId": "U1", "profileData": {"a": 1}}}, "roles": {"R1": {"roleId": "R1"}}}
    )
    assert play("getUserProfile", userId="U1") == {"userProfile": {"a": 1}}
    play("assignUserRole", userId="U1", roleId="R1")
    assert play.table("users")["U1"]["roleId"] == "R1"
    with pytest.raises(ToolError, match="No role R9"):
        play("assignUserRole", userId="U1", roleId="R9")


def test_one_child_of_each_record() -> None:
    item = gives(field("sid"), field("name"))
    request = gives(field("category"), field("status", required=False))
    shown = gives(field("sid"), field("url"), field("mail", "object"))
    path = "/Items/{ItemSid}"
    in_path = field("ItemSid", location="path")
    draft = propose(
        ToolDoc(
            title="Items",
            format="openapi-3.0",
            source="items.json",
            sha256="0" * 64,
            tools=(
                tool("createItem", "Make one.", item, field("name"), method="post", path="/Items"),
                tool("listItems", "All.", field("out", "array", items=item), method="get", path="/Items"),
                tool("getItem", "One.", item, in_path, method="get", path=path),
                tool("deleteItem", "Gone.", item, in_path, method="delete", path=path),
                tool(
                    "askApproval",
                    "Ask for it.",
                    request,
                    in_path,
                    field("category"),
                    method="post",
                    path=f"{path}/ApprovalRequests/mail",
                ),
                tool(
                    "getApproval", "Shows it.", shown, in_path, method="get", path=f"{path}/ApprovalRequests"
                ),
            ),
        )
    )
    assert [d.tool for d in draft.decisions if not d.implemented] == []
    play = Play(draft, {"items": {"I1": {"sid": "I1", "name": "a"}}, "approval_requests": {}})
    with pytest.raises(ToolError, match="No approval request I1"):
        play("getApproval", ItemSid="I1")
    assert play("askApproval", ItemSid="I1", category="news") == {"category": "news"}
    assert play("getApproval", ItemSid="I1") == {"sid": "I1", "mail": {"ItemSid": "I1", "category": "news"}}
    with pytest.raises(ToolError, match="already exists"):
        play("askApproval", ItemSid="I1", category="other")
    with pytest.raises(ToolError, match="No item I9"):
        play("askApproval", ItemSid="I9", category="news")
    play("deleteItem", ItemSid="I1")
    assert play.table("approval_requests") == {}  # it belonged to the item
