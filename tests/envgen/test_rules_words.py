"""Names taken apart: every expectation is a plain fact of English or of naming styles."""

from __future__ import annotations

import pytest

from envgen.proposers.rules.fields import is_created_clock, is_updated_clock, state_field
from envgen.proposers.rules.names import match_entity, take_apart
from envgen.proposers.rules.words import (
    a,
    collection_name,
    first_sentence,
    id_stem,
    plural,
    singular,
    split_words,
)
from envgen.types import FieldSpec


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("buyMuseumTickets", ["buy", "museum", "tickets"]),
        ("getHTTPStatus", ["get", "http", "status"]),
        ("list_task-lists", ["list", "task", "lists"]),
        ("Get page 2", ["get", "page", "2"]),
        ("", []),
    ],
)
def test_split(name: str, words: list[str]) -> None:
    assert split_words(name) == words


@pytest.mark.parametrize(
    ("one", "many"),
    [("ticket", "tickets"), ("category", "categories"), ("day", "days"), ("box", "boxes"), ("branch",
    "branches"),
     ("address", "addresses"), ("person", "people"), ("child", "children"), ("status", "statuses"),
     ("reply", "replies"),
     ("issue", "issues"), ("release", "releases"), ("profile", "profiles"), ("query", "queries")],
)  # fmt: skip
def test_singular_and_plural(one: str, many: str) -> None:
    assert singular(many) == one and singular(one) == one
    assert plural(one) == many and plural(many) == many


def test_collection_names_and_articles() -> None:
    assert collection_name(("special", "event")) == "special_events"
    assert collection_name(("museum", "hours")) == "museum_hours"
    assert (a("article"), a("task"), a("settings"), a("order")) == (
        "an article",
        "a task",
        "settings",
        "an order",
    )


def test_id_stems() -> None:
    assert id_stem("task_list_id") == ("task", "list") and id_stem("eventId") == ("event",)
    assert id_stem("pullNumber") == ("pull",) and id_stem("id") is None and id_stem("identity") is None


@pytest.mark.parametrize(
    ("name", "verb", "phrase", "many"),
    [
        ("toggle_task_completion", "toggle", ("task", "completion"), False),
        ("get_all_tasks", "get", ("task",), True),
        ("get_symbol_by_name", "get", ("symbol",), False),
        ("run_task_now", "run", ("task",), False),
        ("ticket_login", "login", ("ticket",), False),
        ("list_task_lists", "list", ("task", "list"), True),
        ("merge_pull_request", "merge", ("pull", "request"), False),
    ],
)
def test_tool_names(name: str, verb: str, phrase: tuple[str, ...], many: bool) -> None:
    part = take_apart(name)
    assert (part.verb, part.phrase, part.plural) == (verb, phrase, many)


def test_the_longest_entity_at_the_end_wins() -> None:
    known = [("task",), ("list",), ("task", "list")]
    assert match_entity(("task", "list"), known) == (("task", "list"), (), ())
    assert match_entity(("api", "task"), known) == (("task",), ("api",), ())
    assert match_entity(("task", "completion"), known) == (("task",), (), ("completion",))
    assert match_entity(("server",), known) is None


def test_clock_names() -> None:
    assert (
        is_created_clock("createdAt")
        and is_created_clock("date_created")
        and is_created_clock("creation_date")
    )
    assert is_updated_clock("updatedAt") and is_updated_clock("last_modified")
    assert not is_created_clock("created_by") and not is_updated_clock("due_date")


@pytest.mark.parametrize(
    ("spec", "type_"),
    [
        (FieldSpec(name="due_date", type="string"), "date"),
        (FieldSpec(name="timeOpen", type="string", description="24 hour format (HH:mm)"), "time"),
        (FieldSpec(name="startsAt", type="string"), "datetime"),
        (FieldSpec(name="body", type="string"), "text"),
        (FieldSpec(name="size", type="string", enum=("S", "M")), "enum"),
        (FieldSpec(name="order_index", type="number"), "integer"),
        (FieldSpec(name="price", type="number"), "number"),
        (FieldSpec(name="amount", type="number"), "number"),
        (FieldSpec(name="update", type="string"), "string"),
    ],
)
def test_state_types(spec: FieldSpec, type_: str) -> None:
    assert state_field(spec).type == type_


def test_descriptions_are_cut_at_a_word() -> None:
    assert first_sentence("Get a task. Needs auth.") == "Get a task"
    assert first_sentence("Add a new reminder task that shows a popup notification with sound.") == (
        "Add a new reminder task that shows a popup notification"
    )
    assert first_sentence("  Two\n lines  ") == "Two lines"
