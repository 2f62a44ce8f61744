"""What the deterministic proposer makes of the five example documents: facts read off the documents by
hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.proposers.rules import propose
from envgen.tooldocs import read_tool_doc
from envgen.types import EnvironmentDraft, ToolSemantics

FILES = {
    "museum": "museum_openapi31.yaml",
    "conduit": "conduit_openapi31.yml",
    "xero": "xero_assets_openapi30.yaml",
    "checklist": "docker_simplechecklist_tools.json",
    "scheduler": "toucan_scheduler_tools.json",
}


@pytest.fixture(scope="module")
def drafts(examples_dir: Path) -> dict[str, EnvironmentDraft]:
    return {name: propose(read_tool_doc(examples_dir / file)) for name, file in FILES.items()}


IMPLEMENTED = {
    "museum": "getMuseumHours listSpecialEvents createSpecialEvent getSpecialEvent "
    "deleteSpecialEvent updateSpecialEvent "
    "buyMuseumTickets",
    "conduit": "GetProfileByUsername FollowUserByUsername UnfollowUserByUsername "
    "GetArticlesFeed GetArticles CreateArticle "
    "GetArticle UpdateArticle DeleteArticle GetArticleComments CreateArticleComment DeleteArticleComment "
    "CreateArticleFavorite DeleteArticleFavorite GetTags",
    "xero": "getAssets createAsset getAssetById getAssetTypes createAssetType getAssetSettings",
    "checklist": "list_projects create_project get_project update_project delete_project "
    "list_groups create_group "
    "list_task_lists create_task_list list_tasks create_task toggle_task_completion update_task "
    "delete_task list_subtasks "
    "create_subtask toggle_subtask_completion delete_subtask get_project_stats get_all_tasks",
    "scheduler": "list_tasks get_task add_command_task add_api_task add_ai_task "
    "add_reminder_task update_task remove_task "
    "enable_task disable_task run_task_now get_task_executions",
}
REFUSED = {
    "museum": {"getTicketCode": "binary"},
    "conduit": {
        "Login": "password model",
        "CreateUser": "token",
        "GetCurrentUser": "token",
        "UpdateCurrentUser": "token",
    },
    "xero": {},
    "checklist": {},
    "scheduler": {"get_server_info": "server itself"},
}


@pytest.mark.parametrize("name", FILES)
def test_every_tool_is_implemented_or_refused_with_its_reason(
    name: str, drafts: dict[str, EnvironmentDraft]
) -> None:
    draft = drafts[name]
    done = {d.tool for d in draft.decisions if d.implemented}
    assert done == set(IMPLEMENTED[name].split())
    refused = {d.tool: d.reason for d in draft.decisions if not d.implemented}
    assert set(refused) == set(REFUSED[name])
    for tool, word in REFUSED[name].items():
        assert word in refused[tool]
    assert {t.name for t in draft.tools} == {s.tool for s in draft.semantics} == done


KEYS = {
    "museum": {
        "museum_hours": ("date", False),
        "special_events": ("eventId", True),
        "tickets": ("ticketId", True),
    },
    "conduit": {
        "profiles": ("username", False),
        "articles": ("slug", True),
        "comments": ("id", True),
        "session": ("id", False),
    },
    "xero": {"assets": ("assetId", True), "asset_types": ("assetTypeId", True), "settings": ("id", False)},
    "checklist": {
        "projects": ("project_id", True),
        "groups": ("group_id", True),
        "task_lists": ("task_list_id", True),
        "tasks": ("task_id", True),
        "subtasks": ("subtask_id", True),
    },
    "scheduler": {"tasks": ("task_id", True), "executions": ("execution_id", True)},
}
RELATIONS = {
    "museum": {("tickets", "eventId", "special_events", False)},
    "conduit": {
        ("articles", "author", "profiles", True),
        ("comments", "author", "profiles", True),
        ("comments", "article", "articles", True),
        ("session", "username", "profiles", True),
    },
    "xero": {("assets", "assetTypeId", "asset_types", False)},
    "checklist": {
        ("groups", "project_id", "projects", True),
        ("task_lists", "group_id", "groups", True),
        ("tasks", "task_list_id", "task_lists", True),
        ("subtasks", "task_id", "tasks", True),
    },
    "scheduler": {("executions", "task_id", "tasks", True)},
}


@pytest.mark.parametrize("name", FILES)
def test_keys_and_relations(name: str, drafts: dict[str, EnvironmentDraft]) -> None:
    schema = drafts[name].state_schema
    assert {c.name: (c.key, c.key_generated) for c in schema.collections} == KEYS[name]
    found = {
        (c.name, f.name, f.references, f.required)
        for c in schema.collections
        for f in c.fields
        if f.references
    }
    assert found == RELATIONS[name]


LABELS = {
    "museum": {"special_events": "name", "tickets": ""},
    "conduit": {"profiles": "username", "articles": "title"},
    "xero": {"assets": "assetName", "asset_types": "assetTypeName"},
    "checklist": {
        "projects": "name",
        "groups": "name",
        "task_lists": "name",
        "tasks": "title",
        "subtasks": "title",
    },
    "scheduler": {"tasks": "name"},
}


@pytest.mark.parametrize("name", FILES)
def test_labels_are_what_a_person_says(name: str, drafts: dict[str, EnvironmentDraft]) -> None:
    labels = {c.name: c.label for c in drafts[name].state_schema.collections}
    assert {k: labels[k] for k in LABELS[name]} == LABELS[name]


def fields(draft: EnvironmentDraft, collection: str) -> dict[str, tuple[str, bool, tuple[object, ...]]]:
    return {f.name: (f.type, f.required, f.enum) for f in draft.state_schema.collection(collection).fields}


def test_field_types_come_from_schemas_prose_and_verbs(drafts: dict[str, EnvironmentDraft]) -> None:
    tasks = fields(drafts["checklist"], "tasks")
    assert tasks["priority"] == ("enum", False, ("low", "medium", "high"))  # prose: "(low, medium, high)"
    assert tasks["due_date"] == ("date", False, ())
    assert tasks["completed"] == ("boolean", True, ())  # toggle_task_completion
    assert tasks["title"] == ("string", True, ())
    scheduled = fields(drafts["scheduler"], "tasks")
    assert scheduled["type"] == ("enum", True, ("command", "api", "ai", "reminder"))  # add_<type>_task
    assert scheduled["enabled"] == ("boolean", True, ())
    assert (
        scheduled["name"][1] and not scheduled["command"][1]
    )  # every add_* wants a name, one wants a command
    assert "reminder_title" not in scheduled  # update_task(reminder_title) is the title of a reminder
    hours = fields(drafts["museum"], "museum_hours")
    assert hours["timeOpen"] == ("time", True, ()) and hours["date"] == ("date", True, ())
    assert fields(drafts["museum"], "special_events")["dates"] == ("array", True, ())
    assert set(fields(drafts["museum"], "tickets")) == {
        "ticketId",
        "ticketDate",
        "ticketType",
        "eventId",
        "email",
    }
    asset = fields(drafts["xero"], "assets")
    assert asset["assetStatus"] == ("enum", True, ("Draft", "Registered", "Disposed"))
    assert asset["purchasePrice"] == ("number", False, ()) and asset["bookDepreciationSetting"][0] == "object"


def test_clock_fields_are_exempt_and_nothing_else_is(drafts: dict[str, EnvironmentDraft]) -> None:
    exempt = {
        (name, c.name, f.name)
        for name, draft in drafts.items()
        for c in draft.state_schema.collections
        for f in c.fields
        if f.policy != "exact"
    }
    assert exempt == {
        ("conduit", "articles", "createdAt"),
        ("conduit", "articles", "updatedAt"),
        ("conduit", "comments", "createdAt"),
        ("conduit", "comments", "updatedAt"),
        ("scheduler", "executions", "run_at"),
    }


@pytest.mark.parametrize("name", FILES)
def test_everything_has_a_provenance(name: str, drafts: dict[str, EnvironmentDraft]) -> None:
    for collection in drafts[name].state_schema.collections:
        assert collection.provenance.startswith(("/", "assumption: "))
        for item in collection.fields:
            assert item.provenance.startswith(("/", "assumption: ")), (collection.name, item.name)


def semantics(draft: EnvironmentDraft, tool: str) -> ToolSemantics:
    return next(s for s in draft.semantics if s.tool == tool)


def test_filters_scopes_and_paging(drafts: dict[str, EnvironmentDraft]) -> None:
    events = semantics(drafts["museum"], "listSpecialEvents")
    assert [(b.param, b.field, b.op) for b in events.filters] == [
        ("startDate", "dates", "ge"),
        ("endDate", "dates", "le"),
    ]
    assert events.paging == ("page", "limit") and events.defaults == {"page": 1, "limit": 10}
    articles = semantics(drafts["conduit"], "GetArticles")
    assert [(b.param, b.field, b.op) for b in articles.filters] == [
        ("tag", "tagList", "contains"),
        ("author", "author", "eq"),
    ]
    assert articles.ignored == ("favorited",)  # favourites of other users are not in the state
    assert semantics(drafts["conduit"], "GetArticlesFeed").where == {"author.following": True}
    assets = semantics(drafts["xero"], "getAssets")
    assert [(b.param, b.field, b.op, b.required) for b in assets.filters[:1]] == [
        (
            "status",
            "assetStatus",
            "eq",
            True,
        )
    ]
    assert assets.ignored == ("xero-tenant-id",) and assets.ordering is not None
    assert (
        assets.ordering.values["PurchasePrice"] == "purchasePrice"
        and assets.ordering.direction_param == "sortDirection"
    )
    created = semantics(drafts["checklist"], "create_task")
    assert [(b.param, b.field) for b in created.scope] == [("task_list_id", "task_list_id")]
    assert "task_list_id" not in {b.field for b in created.writes}


def test_deletes_say_what_they_do(drafts: dict[str, EnvironmentDraft]) -> None:
    project = semantics(drafts["checklist"], "delete_project")
    assert project.cascades == ("groups", "task_lists", "tasks", "subtasks")
    assert any("deletes what belongs to it" in text for text in project.assumptions)
    event = semantics(drafts["museum"], "deleteSpecialEvent")
    assert [(p.collection, p.field) for p in event.preconditions if p.kind == "no_children"] == [
        ("tickets", "eventId")
    ]
    assert event.cascades == ()
    assert "A special event with a ticket cannot be deleted." in drafts["museum"].policy
    assert "Deleting a project deletes everything in it." in drafts["checklist"].policy


@pytest.mark.parametrize("name", FILES)
def test_policy_and_descriptions_are_short(name: str, drafts: dict[str, EnvironmentDraft]) -> None:
    draft = drafts[name]
    assert 3 <= draft.policy.count(".") <= 8 and len(draft.policy) <= 350
    for tool in draft.tools:
        assert 0 < len(tool.description) <= 60 and "\n" not in tool.description


def test_agent_parameters_are_those_of_the_document(drafts: dict[str, EnvironmentDraft]) -> None:
    tools = {t.name: t for t in drafts["xero"].tools}
    status = tools["getAssets"].parameters["properties"]["status"]
    assert status["enum"] == ["DRAFT", "REGISTERED", "DISPOSED"] and tools["getAssets"].parameters[
        "required"
    ] == ["status"]
    assert "xero-tenant-id" not in tools["getAssets"].parameters["properties"]
    assert "assetId" not in tools["createAsset"].parameters["properties"]  # the environment makes it
    assert tools["getAssets"].description == "Search assets"
    task = next(t for t in drafts["checklist"].tools if t.name == "update_task")
    assert task.parameters["properties"]["priority"]["enum"] == ["low", "medium", "high"]  # from create_task
    assert task.parameters["required"] == ["task_id"]


def test_the_same_document_gives_the_same_text(examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / FILES["conduit"])
    assert propose(doc).model_dump_json() == propose(doc).model_dump_json()
