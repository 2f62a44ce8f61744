"""Values: short, typed, within the parameter's limits, the same for the same seed."""

import random
import re
from datetime import date

from envgen.synthesis.catalog import field_words, narrow
from envgen.synthesis.values import ValueMaker, ValuePool, slug
from envgen.types import Collection, StateField

EVENTS = Collection(
    name="special_events",
    entity="special event",
    key="event_id",
    label="name",
    fields=(StateField(name="event_id", type="id"), StateField(name="name", type="string", required=True)),
)


def maker(seed: int = 0) -> ValueMaker:
    return ValueMaker(ValuePool(3), random.Random(seed), date(2024, 3, 1))


def values(field: StateField, parameter: dict[str, object] | None = None, count: int = 60) -> list[object]:
    made = maker()
    return [made.value(EVENTS, field, parameter) for _ in range(count)]


def test_field_words_split_snake_camel_and_acronyms() -> None:
    assert field_words("order_index") == ["order", "index"]
    assert field_words("eventDescription") == ["event", "description"]
    assert field_words("bulk-update") == ["bulk", "update"]
    assert slug("Amber Story!") == "amber-story"


def test_numbers_are_small_integers_within_the_schema() -> None:
    prices = values(StateField(name="price", type="number"))
    assert all(isinstance(p, int) and 5 <= p <= 99 for p in prices)
    bounded = values(
        StateField(name="quantity", type="integer"), {"type": "integer", "minimum": 3, "maximum": 6}
    )
    assert set(bounded) == {3, 4, 5, 6}


def test_dates_lie_after_today_and_are_iso() -> None:
    for value in values(StateField(name="due_date", type="date")):
        assert isinstance(value, str)
        assert date(2024, 3, 1) < date.fromisoformat(value) < date(2024, 6, 1)


def test_an_enum_of_the_parameter_wins_over_the_field() -> None:
    field = StateField(name="status", type="enum", enum=("a", "b"))
    assert set(values(field)) == {"a", "b"}
    assert set(values(field, {"type": "string", "enum": ["X"]})) == {"X"}


def test_names_have_one_or_two_words_from_a_small_pool() -> None:
    names = {str(v) for v in values(StateField(name="name", type="string"), count=300)}
    assert all(re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+", name) for name in names)
    assert len({name.split()[0] for name in names}) <= 14


def of(entity: str, key: str, label: str) -> Collection:
    return Collection(
        name=f"{entity}s",
        entity=entity,
        key=key,
        label=label,
        fields=(StateField(name=label, type="string"),),
    )


def test_labels_come_from_name_pools_by_the_kind_of_thing() -> None:
    pool = ValuePool(3)
    rng = random.Random(1)
    wanted = {
        ("user", "username", "username"): "[a-z]+",  # a person
        ("repository", "name", "name"): "[a-z]+-[a-z]+",  # a thing known by its name is no person
        ("branch", "branch", "branch"): "[a-z]+-[a-z]+",
        ("gist", "gist_id", "filename"): r"[a-z]+-[a-z]+\.txt",
        ("order", "order_id", "tradingsymbol"): r"[A-Z]\d{3}",
        ("project", "project_id", "name"): "[A-Z][a-z]+ [A-Z][a-z]+",
    }
    for (entity, key, label), pattern in wanted.items():
        for _ in range(20):
            assert re.fullmatch(pattern, pool.label(rng, of(entity, key, label))), (entity, pattern)


def test_short_strings_are_no_sentences() -> None:
    """Only long text (descriptions, bodies, notes) is drawn from the phrases: no repository "sold out
    soon"."""
    phrases = set(ValuePool(3).lists["phrases"])
    names = {
        "repo": "[a-z]+-[a-z]+", "head": "[a-z]+-[a-z]+", "project": "[A-Z][a-z]+ [A-Z][a-z]+",
        "organization": "[A-Z][a-z]+ [A-Z][a-z]+", "language": "[a-z]{2}", "currency": "[A-Z]{3}",
        "order_type": "[a-z]+", "account_sid": r"[A-Z]\d{3}", "whatever": "[A-Z][a-z]+ [A-Z][a-z]+",
    }  # fmt: skip
    for name, pattern in names.items():
        made = {str(v) for v in values(StateField(name=name, type="string"))}
        assert not made & phrases, name
        assert all(re.fullmatch(pattern, v) for v in made), (name, made)
    for name in ("description", "body", "resolution"):
        assert {str(v) for v in values(StateField(name=name, type="text"))} <= phrases
    many = values(StateField(name="photoUrls", type="array", item_type="string"))
    assert all(isinstance(v, list) and all(str(u).startswith("https://") for u in v) for v in many)
    people = set(ValuePool(3).people)
    for each in values(StateField(name="reviewers", type="array", item_type="string")):
        assert isinstance(each, list) and set(each) <= people


def test_a_nested_name_is_one_of_the_nested_thing() -> None:
    field = StateField(name="category", type="object")
    parameter = {"type": "object", "properties": {"name": {"type": "string"}}}
    types = set(ValuePool(3).nouns["type"])
    for value in values(field, parameter):
        assert isinstance(value, dict) and value["name"] in types


def test_objects_get_plain_members_only() -> None:
    field = StateField(name="setting", type="object")
    parameter = {
        "type": "object",
        "properties": {"method": {"type": "string", "enum": ["Line"]}, "objectId": {"type": "string"}},
    }
    assert values(field, parameter, 5) == [{"method": "Line"}] * 5
    assert values(field, {"type": "object"}, 2) == [None, None]
    inner = {"type": ["object", "null"], "properties": {"body": {"type": "string"}}, "required": ["body"]}
    nested = values(field, {"type": "object", "properties": {"text": inner}}, 3)
    assert all(isinstance(v, dict) and list(v) == ["text"] and list(v["text"]) == ["body"] for v in nested)


def test_narrow_drops_null() -> None:
    assert narrow({"anyOf": [{"type": "integer"}, {"type": "null"}]})["type"] == "integer"
    assert narrow({"type": ["null", "string"]})["type"] == "string"


def test_the_same_seed_gives_the_same_values() -> None:
    field = StateField(name="name", type="string")
    assert values(field) == values(field)
    assert ValuePool(3).people == ValuePool(3).people
    assert ValuePool(3).people != ValuePool(4).people
