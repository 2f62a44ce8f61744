"""Fields that fit together: rules on a hand-written schema, and worlds and tasks of shipped documents read
independently of the planner."""

import random
import re
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from envgen.store import Bundle
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.pipeline import synthesize
from envgen.synthesis.sense import Sense, has_happened, is_past, ordered_pairs
from envgen.types import Collection, EnvironmentDraft, StateField, StateSchema, Task

MUSEUM, CONDUIT, SCHEDULER = "museum_openapi31.yaml", "conduit_openapi31.yml", "toucan_scheduler_tools.json"


@cache
def bundle(path: Path) -> Bundle:
    return synthesize(path, tasks=36, heldout=6, seed=0)


def field(name: str, kind: str, **more: object) -> StateField:
    return StateField(name=name, type=kind, **more)  # pyright: ignore[reportArgumentType]


SHOW = Collection(
    name="shows",
    entity="show",
    key="id",
    label="name",
    fields=(field("id", "id"), field("name", "string"), field("dates", "array", item_type="date")),
)
COURSE = Collection(
    name="courses",
    entity="course",
    key="id",
    fields=(field("id", "id"), field("start_date", "date"), field("end_date", "date")),
)
PASS = Collection(
    name="passes",
    entity="pass",
    key="id",
    fields=(
        field("id", "id"),
        field("day", "date"),
        field("kind", "enum", enum=("show", "plain")),
        field("show_id", "id", references="shows"),
        field("course_id", "id", references="courses"),
        field("sold_at", "datetime", policy="exempt"),
    ),
)


def sense() -> Sense:
    draft = EnvironmentDraft(
        name="x",
        state_schema=StateSchema(collections=(SHOW, COURSE, PASS)),
        semantics=(),
        tools=(),
        source="",
        policy="",
        decisions=(),
    )
    catalog: Catalog = build_catalog(draft)
    return Sense(catalog)


def test_what_has_happened_is_known_by_its_words() -> None:
    for name in ("created_at", "updatedAt", "run_at", "purchaseDate", "last_login", "date_of_birth"):
        assert has_happened(field(name, "datetime")), name
    for name in ("due_date", "ticketDate", "startDate", "shipDate", "expires_at", "runtime"):
        assert not has_happened(field(name, "datetime")), name
    assert has_happened(field("at", "datetime", policy="exempt"))
    assert not is_past(field("created_by", "string"))


def test_pairs_stand_in_their_order() -> None:
    hours = Collection(
        name="hours",
        entity="hour",
        key="day",
        fields=(
            field("timeClose", "time"), field("timeOpen", "time"), field("price_max", "number"),
            field("price_min", "number"), field("start_date", "date"), field("end_date", "date"),
            field("start_time", "time"), field("open", "boolean"), field("close", "boolean"),
        ),
    )  # fmt: skip
    assert sorted(ordered_pairs(hours)) == [
        ("price_min", "price_max"),
        ("start_date", "end_date"),
        ("timeOpen", "timeClose"),
    ]


def test_a_day_is_one_of_its_parents() -> None:
    rules = sense()
    show = {"id": "S1", "name": "Gala", "dates": ["2024-03-02", "2024-03-09"]}
    assert rules.days("shows", show) == ["2024-03-02", "2024-03-09"]
    course = {"id": "C1", "start_date": "2024-03-30", "end_date": "2024-04-01"}
    assert rules.days("courses", course) == ["2024-03-30", "2024-03-31", "2024-04-01"]
    assert rules.days("passes", {"id": "P1", "day": "2024-03-02"}) == ["2024-03-02"]
    good = {"id": "P1", "day": "2024-03-09", "kind": "show", "show_id": "S1"}
    assert rules.problem("passes", good, {"show_id": show}) == ""
    assert "no day" in rules.problem("passes", {**good, "day": "2024-03-03"}, {"show_id": show})
    assert "show_id" in rules.problem("passes", {"kind": "show"}, {})
    assert "plain" in rules.problem("passes", {**good, "kind": "plain"}, {"show_id": show})


def test_repair_makes_sense_of_any_record() -> None:
    rules, rng = sense(), random.Random(1)
    show = {"id": "S1", "dates": ["2024-03-02", "2024-03-09"]}
    for day in range(1, 29):
        record = {"id": "P1", "day": f"2024-05-{day:02d}", "kind": "plain", "show_id": "S1"}
        rules.repair("passes", record, {"show_id": show}, rng)
        assert record["day"] in show["dates"] and record["kind"] == "show"
    course = {"id": "C1", "start_date": "2024-04-09", "end_date": "2024-04-01"}
    rules.repair("courses", course, {}, rng)
    assert course["start_date"] < course["end_date"]


def calls(task: Task, tool: str) -> list[dict[str, object]]:
    return [step.arguments for step in task.reference if step.tool == tool]


def test_tickets_are_for_days_of_their_event(examples_dir: Path) -> None:
    """No ticket for a day on which the event does not take place or the museum is closed, and its type says
    whether there is an event."""
    bought = 0
    for task in bundle(examples_dir / MUSEUM).tasks:
        end = task.accepted_states[0]
        events, opened = end["special_events"], set(task.initial_state["museum_hours"])
        before = {**task.initial_state["special_events"], **events}
        for ticket in (*end["tickets"].values(), *calls(task, "buyMuseumTickets")):
            event = before.get(str(ticket.get("eventId")))
            changed = any(step.tool == "updateSpecialEvent" for step in task.reference)
            if event is not None and not changed:
                assert ticket["ticketDate"] in event["dates"], task.instruction
            assert ticket["ticketDate"] in opened or changed, task.instruction
            assert (ticket["ticketType"] == "event") == ("eventId" in ticket), task.instruction
        bought += len(calls(task, "buyMuseumTickets"))
        for hours in task.initial_state["museum_hours"].values():
            assert hours["timeOpen"] < hours["timeClose"]
    assert bought >= 10


@pytest.mark.parametrize(
    ("document", "names"), [(CONDUIT, {"createdAt", "updatedAt"}), (SCHEDULER, {"run_at"})]
)
def test_nothing_has_happened_after_the_clock(examples_dir: Path, document: str, names: set[str]) -> None:
    seen = 0
    for task in bundle(examples_dir / document).tasks:
        for table in task.initial_state.values():
            for record in table.values():
                for name in names & set(record):
                    seen += 1
                    assert record[name] < task.clock, (task.id, name)
                if names == {"createdAt", "updatedAt"} and "updatedAt" in record:
                    assert record["createdAt"] <= record["updatedAt"]
    assert seen > 100


def test_what_is_planned_lies_ahead(examples_dir: Path) -> None:
    for task in bundle(examples_dir / MUSEUM).tasks:
        today = date.fromisoformat(task.clock[:10])
        for event in task.initial_state["special_events"].values():
            assert all(date.fromisoformat(day) > today for day in event["dates"])


@pytest.mark.parametrize("document", [MUSEUM, CONDUIT, SCHEDULER])
def test_nobody_wants_a_description_that_is_a_number(examples_dir: Path, document: str) -> None:
    for task in bundle(examples_dir / document).tasks:
        assert not re.search(r"(to|set to) the (number|total)\b", task.instruction), task.instruction
        texts = {f.name for c in bundle(examples_dir / document).state_schema.collections for f in c.fields
                 if f.type == "text"}  # fmt: skip
        for step in task.reference:
            for name, value in step.arguments.items():
                assert not (name in texts and isinstance(value, str) and value.isdigit()), task.instruction
