"""Generated Python against hand-worked answers, on states written out here."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from envgen.errors import ToolError
from envgen.proposers.rules import propose
from envgen.tooldocs import read_tool_doc
from envgen.types import (
    EnvironmentDraft,
    StateData,
)
from tests.envgen.rules_world import Play

MUSEUM: StateData = {
    "museum_hours": {d: {"date": d, "timeOpen": "09:00", "timeClose": "17:00"} for d in ("2026-04-01",
    "2026-04-02")},
    "special_events": {
        "SE1": {
            "eventId": "SE1", "name": "Pirates", "location": "Hall", "eventDescription": "arr",
            "dates": ["2026-04-05"], "price": 25,
        },
        "SE2": {
            "eventId": "SE2", "name": "Robots", "location": "Lab", "eventDescription": "bip",
            "dates": ["2026-04-01", "2026-04-20"], "price": 10,
        },
    },
    "tickets": {"T1": {"ticketId": "T1", "ticketDate": "2026-04-05", "ticketType": "event",
    "eventId": "SE1"}},
}  # fmt: skip


def draft_of(examples_dir: Path, file: str) -> EnvironmentDraft:
    return propose(read_tool_doc(examples_dir / file))


@pytest.fixture
def museum(examples_dir: Path) -> Play:
    return Play(draft_of(examples_dir, "museum_openapi31.yaml"), copy.deepcopy(MUSEUM))


def test_get_and_list(museum: Play) -> None:
    assert museum("getSpecialEvent", eventId="SE2") == MUSEUM["special_events"]["SE2"]
    assert [e["eventId"] for e in museum("listSpecialEvents")] == ["SE1", "SE2"]
    assert [h["date"] for h in museum("getMuseumHours", startDate="2026-04-02")] == ["2026-04-02"]
    with pytest.raises(ToolError, match="No special event SE9"):
        museum("getSpecialEvent", eventId="SE9")


def test_a_range_asks_for_one_date_inside(museum: Play) -> None:
    # Robots run on the 1st and the 20th: neither lies between the 3rd and the 10th, though one is before
    # and one after.
    found = museum("listSpecialEvents", startDate="2026-04-03", endDate="2026-04-10")
    assert [e["name"] for e in found] == ["Pirates"]
    assert [e["name"] for e in museum("listSpecialEvents", startDate="2026-04-10")] == ["Robots"]


def test_pages(museum: Play) -> None:
    assert [e["eventId"] for e in museum("listSpecialEvents", page=2, limit=1)] == ["SE2"]
    assert museum("listSpecialEvents", page=3, limit=1) == []
    with pytest.raises(ToolError, match="limit must be at least 1"):
        museum("listSpecialEvents", limit=0)


def test_create_stores_what_was_given_and_answers_the_record(museum: Play) -> None:
    given = {
        "name": "Stars",
        "location": "Dome",
        "eventDescription": "sky",
        "dates": ["2026-05-01"],
        "price": 12.5,
    }
    made = museum("createSpecialEvent", **given)
    key = made["eventId"]
    assert made == {**given, "eventId": key} and museum.table("special_events")[key] == made
    assert len(museum.table("special_events")) == 3


def test_a_ticket_for_an_event_that_is_not_there_is_refused_and_changes_nothing(museum: Play) -> None:
    before = museum.state.snapshot()
    with pytest.raises(ToolError, match="No special event SE9"):
        museum("buyMuseumTickets", ticketDate="2026-04-05", ticketType="event", eventId="SE9")
    assert museum.state.snapshot() == before


def test_the_answer_to_a_purchase_has_what_the_document_requires(museum: Play) -> None:
    made = museum("buyMuseumTickets", ticketDate="2026-04-05", ticketType="general", email="a@b.c")
    assert {"message", "confirmationCode", "ticketType", "ticketDate"} <= set(
        made
    )  # required by the response schema
    assert "email" not in made  # not in the response schema
    assert museum.table("tickets")[made["ticketId"]] == {
        "ticketId": made["ticketId"], "ticketDate": "2026-04-05", "ticketType": "general", "email": "a@b.c",
    }  # fmt: skip


def test_update_changes_only_what_was_given(museum: Play) -> None:
    after = museum("updateSpecialEvent", eventId="SE1", price=30)
    assert after == {**MUSEUM["special_events"]["SE1"], "price": 30} == museum.table("special_events")["SE1"]
    assert museum.table("special_events")["SE2"] == MUSEUM["special_events"]["SE2"]


def test_delete_is_refused_while_something_refers_to_the_record(museum: Play) -> None:
    with pytest.raises(ToolError, match="still has a ticket"):
        museum("deleteSpecialEvent", eventId="SE1")
    assert museum("deleteSpecialEvent", eventId="SE2") == {"deleted": "SE2"}
    assert set(museum.table("special_events")) == {"SE1"}


CHECKLIST: StateData = {
    "projects": {"P1": {"project_id": "P1", "name": "Home"}, "P2": {"project_id": "P2", "name": "Work"}},
    "groups": {
        "G1": {"group_id": "G1", "project_id": "P1", "name": "A"},
        "G2": {"group_id": "G2", "project_id": "P2", "name": "B"},
    },
    "task_lists": {
        "L1": {"task_list_id": "L1", "group_id": "G1", "name": "x"},
        "L2": {"task_list_id": "L2", "group_id": "G2", "name": "y"},
    },
    "tasks": {
        "T1": {"task_id": "T1", "task_list_id": "L1", "title": "one", "completed": True},
        "T2": {"task_id": "T2", "task_list_id": "L1", "title": "two", "completed": False},
        "T3": {"task_id": "T3", "task_list_id": "L2", "title": "three", "completed": False},
    },
    "subtasks": {"S1": {"subtask_id": "S1", "task_id": "T1", "title": "s", "completed": False}},
}


@pytest.fixture
def checklist(examples_dir: Path) -> Play:
    return Play(draft_of(examples_dir, "docker_simplechecklist_tools.json"), copy.deepcopy(CHECKLIST))


def test_a_list_shows_the_children_of_one_parent(checklist: Play) -> None:
    assert [t["task_id"] for t in checklist("list_tasks", task_list_id="L1")] == ["T1", "T2"]
    with pytest.raises(ToolError, match="No task list L9"):
        checklist("list_tasks", task_list_id="L9")
    assert len(checklist("get_all_tasks")) == 3


def test_toggle_flips_both_ways(checklist: Play) -> None:
    assert checklist("toggle_task_completion", task_id="T2")["completed"] is True
    assert checklist("toggle_task_completion", task_id="T2")["completed"] is False
    assert checklist.state.snapshot() == CHECKLIST


def test_new_records_start_with_their_defaults(checklist: Play) -> None:
    made = checklist("create_task", task_list_id="L2", title="four", priority="low")
    assert {k: v for k, v in made.items() if k != "task_id"} == {
        "task_list_id": "L2", "title": "four", "priority": "low", "completed": False,
    }  # fmt: skip


def test_a_cascade_deletes_the_whole_branch_and_nothing_else(checklist: Play) -> None:
    assert checklist("delete_project", project_id="P1") == {"deleted": "P1"}
    left = checklist.state.snapshot()
    assert {name: set(table) for name, table in left.items()} == {
        "projects": {"P2"}, "groups": {"G2"}, "task_lists": {"L2"}, "tasks": {"T3"}, "subtasks": set(),
    }  # fmt: skip


def test_statistics_count_what_is_below(checklist: Play) -> None:
    assert checklist("get_project_stats", project_id="P1") == {
        "project_id": "P1", "groups": 1, "task_lists": 1, "tasks": 2, "completed_tasks": 1,
        "subtasks": 1, "completed_subtasks": 0,
    }  # fmt: skip


CONDUIT: StateData = {
    "profiles": {
        "ann": {"username": "ann", "bio": "", "image": "", "following": False},
        "bob": {"username": "bob", "bio": "b", "image": "", "following": True},
    },
    "articles": {
        "A1": {
            "slug": "A1", "title": "Tea", "description": "d", "body": "long", "tagList": ["food",
            "uk"], "createdAt": "2026-01-01T00:00:00",
            "updatedAt": "2026-01-01T00:00:00", "favorited": False, "favoritesCount": 4, "author": "bob",
        },
        "A2": {
            "slug": "A2", "title": "Jam", "description": "e", "body": "text", "tagList": ["food"],
            "createdAt": "2026-01-02T00:00:00",
            "updatedAt": "2026-01-02T00:00:00", "favorited": True, "favoritesCount": 1, "author": "ann",
        },
    },
    "comments": {
        "3": {
            "id": 3, "body": "hi", "createdAt": "2026-01-03T00:00:00",
            "updatedAt": "2026-01-03T00:00:00", "author": "ann", "article": "A1",
        },
    },
    "session": {"self": {"id": "self", "username": "ann"}},
}  # fmt: skip


@pytest.fixture
def conduit(examples_dir: Path) -> Play:
    return Play(draft_of(examples_dir, "conduit_openapi31.yml"), copy.deepcopy(CONDUIT))


def test_results_have_the_documents_wrappers_and_sub_objects(conduit: Play) -> None:
    got = conduit("GetArticles", tag="uk")
    assert got["articlesCount"] == 1 and [a["slug"] for a in got["articles"]] == ["A1"]
    assert got["articles"][0]["author"] == CONDUIT["profiles"]["bob"]
    assert "body" not in got["articles"][0]  # the list's schema has none
    assert conduit("GetArticle", slug="A1")["article"]["body"] == "long"
    assert conduit("GetTags") == {"tags": ["food", "uk"]}


def test_counts_are_those_before_paging(conduit: Play) -> None:
    got = conduit("GetArticles", limit=1, offset=1)
    assert got["articlesCount"] == 2 and [a["slug"] for a in got["articles"]] == ["A2"]


def test_the_feed_follows_the_foreign_key(conduit: Play) -> None:
    assert [a["slug"] for a in conduit("GetArticlesFeed")["articles"]] == ["A1"]
    conduit("UnfollowUserByUsername", username="bob")
    assert conduit("GetArticlesFeed")["articles"] == []


def test_setting_a_state_twice_is_refused_and_counters_move(conduit: Play) -> None:
    assert conduit("CreateArticleFavorite", slug="A1")["article"]["favoritesCount"] == 5
    with pytest.raises(ToolError, match="Article A1 is already favorited"):
        conduit("CreateArticleFavorite", slug="A1")
    assert conduit("DeleteArticleFavorite", slug="A1")["article"]["favoritesCount"] == 4
    assert conduit.state.snapshot() == CONDUIT


def test_the_author_is_who_is_logged_in(conduit: Play) -> None:
    made = conduit("CreateArticle", title="Bread", description="d", body="b")["article"]
    assert made["author"]["username"] == "ann" and made["tagList"] == [] and made["favoritesCount"] == 0
    comment = conduit("CreateArticleComment", slug=made["slug"], body="first")["comment"]
    assert isinstance(comment["id"], int) and comment["createdAt"] == "2026-03-02T09:02:00"


def test_a_nested_record_must_belong_to_its_parent(conduit: Play) -> None:
    with pytest.raises(ToolError, match="Comment 3 is not in A2"):
        conduit("DeleteArticleComment", slug="A2", id=3)
    assert conduit("DeleteArticleComment", slug="A1", id=3) == {"deleted": 3}


def test_update_moves_the_clock_field(conduit: Play) -> None:
    assert conduit("UpdateArticle", slug="A1", title="Chai")["article"]["updatedAt"] == "2026-03-02T09:01:00"
    assert conduit.table("articles")["A1"]["createdAt"] == "2026-01-01T00:00:00"


XERO: StateData = {
    "assets": {
        f"A{i}": {
            "assetId": f"A{i}",
            "assetName": name,
            "assetNumber": f"FA-{i}",
            "purchasePrice": price,
            "assetStatus": status,
        }
        for i, (name, price, status) in enumerate(
            [
                ("Van", 300, "Draft"),
                ("Mac", 100, "Draft"),
                ("Old Van", 50, "Disposed"),
                ("Desk", 200, "Draft"),
            ],
            start=1,
        )
    },
    "asset_types": {"AT1": {"assetTypeId": "AT1", "assetTypeName": "Cars", "bookDepreciationSetting": {}}},
    "settings": {"self": {"id": "self", "assetNumberPrefix": "FA-", "optInForTax": False}},
}


@pytest.fixture
def xero(examples_dir: Path) -> Play:
    return Play(draft_of(examples_dir, "xero_assets_openapi30.yaml"), copy.deepcopy(XERO))


def test_search_sorts_and_counts_pages(xero: Play) -> None:
    got = xero("getAssets", status="DRAFT", orderBy="PurchasePrice", sortDirection="desc", pageSize=2)
    assert [a["assetName"] for a in got["items"]] == ["Van", "Desk"]
    assert got["pagination"] == {"page": 1, "pageSize": 2, "pageCount": 2, "itemCount": 3}
    assert [a["assetName"] for a in xero("getAssets", status="DISPOSED", filterBy="van")["items"]] == [
        "Old Van"
    ]


def test_unique_fields_and_singletons(xero: Play) -> None:
    with pytest.raises(ToolError, match="Another asset has assetNumber FA-2"):
        xero("createAsset", assetName="New", assetNumber="FA-2")
    made = xero("createAsset", assetName="New", assetNumber="FA-9", assetTypeId="AT1")
    assert made["assetStatus"] == "Draft"  # lists ask for a status, so a record has one
    assert xero("getAssetSettings") == {"assetNumberPrefix": "FA-", "optInForTax": False}


SCHEDULER: StateData = {
    "tasks": {
        "T1": {"task_id": "T1", "type": "command", "name": "Back", "schedule": "daily",
        "command": "ls", "enabled": True, "do_only_once": True}
    },
    "executions": {},
}  # fmt: skip


@pytest.fixture
def scheduler(examples_dir: Path) -> Play:
    return Play(draft_of(examples_dir, "toucan_scheduler_tools.json"), copy.deepcopy(SCHEDULER))


def test_variants_defaults_and_history(scheduler: Play) -> None:
    made = scheduler("add_reminder_task", name="Tea", schedule="hourly", message="drink")
    assert {k: v for k, v in made.items() if k != "task_id"} == {
        "type": "reminder", "name": "Tea", "schedule": "hourly", "message": "drink", "enabled": True,
        "do_only_once": True,
    }  # fmt: skip
    assert scheduler("update_task", task_id=made["task_id"], reminder_message="eat")["message"] == "eat"
    run = scheduler("run_task_now", task_id="T1")
    assert scheduler("get_task_executions", task_id="T1") == [run]
    assert scheduler("get_task_executions", task_id=made["task_id"]) == []
    scheduler("remove_task", task_id="T1")
    assert scheduler.table("executions") == {}


def test_a_default_of_the_document_is_not_written_over(scheduler: Play) -> None:
    assert scheduler("add_ai_task", name="x", schedule="y", prompt="z", enabled=False)["enabled"] is False
    with pytest.raises(ToolError, match="Task T1 is already enabled"):
        scheduler("enable_task", task_id="T1")
    assert scheduler("disable_task", task_id="T1")["enabled"] is False
    with pytest.raises(ToolError, match="Task T1 is not enabled"):
        scheduler("disable_task", task_id="T1")
