"""Generated Python from semantics written by hand: odd names, quoting, preconditions, schema questions."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.errors import ToolError
from envgen.synthesis.functions import generate_source
from envgen.synthesis.schema import descendants, paging_kind, place_argument, read_argument
from envgen.types import (
    Collection,
    EnvironmentDraft,
    ParamBinding,
    Precondition,
    StateData,
    StateField,
    StateSchema,
    ToolSemantics,
)
from tests.envgen.rules_world import Play


def small_schema() -> StateSchema:
    def text(name: str, **more: Any) -> StateField:
        return StateField(name=name, type="string", **more)

    return StateSchema(
        collections=(
            Collection(
                name="users",
                entity="user",
                key="name",
                key_generated=False,
                fields=(text("name", required=True), text("from")),
            ),
            Collection(
                name="notes",
                entity="note",
                key="id",
                fields=(
                    StateField(name="id", type="integer", required=True),
                    text("owner", required=True, references="users"),
                    text("state", required=True, default="open"),
                ),
            ),
        )
    )


def write(tool: str, verb: Any, collection: str, **more: Any) -> ToolSemantics:
    return ToolSemantics(tool=tool, verb=verb, collection=collection, writes_state=True, **more)


def play(*tools: ToolSemantics, data: StateData) -> Play:
    schema = small_schema()
    source = generate_source(schema, tools)
    draft = EnvironmentDraft(
        name="small", state_schema=schema, semantics=tools, tools=(), source=source, policy="", decisions=()
    )
    return Play(draft, data)


def test_keys_the_caller_names_are_unique_and_odd_parameter_names_work() -> None:
    writes = (
        ParamBinding(param="name", collection="users", field="name", required=True),
        ParamBinding(param="from", collection="users", field="from"),  # a Python keyword
    )
    game = play(write("add-user", "create", "users", writes=writes), data={"users": {}, "notes": {}})
    assert game("add-user", name="ann", **{"from": "Rome"}) == {"name": "ann", "from": "Rome"}
    with pytest.raises(ToolError, match="User ann already exists"):
        game("add-user", name="ann")


def test_arguments_called_as_the_functions_own_parameters_and_names() -> None:
    """`state` and `ctx` are how a function gets the environment; `record`, `extra` and `given` are names it
    uses itself."""
    schema = StateSchema(
        collections=(
            Collection(
                name="notes",
                entity="note",
                key="id",
                fields=(
                    StateField(name="id", type="integer", required=True),
                    *(
                        StateField(name=n, type="string")
                        for n in ("state", "ctx", "record", "extra", "given")
                    ),
                ),
            ),
        )
    )

    def bind(param: str, **more: Any) -> ParamBinding:
        return ParamBinding(param=param, collection="notes", field=param, **more)

    key = bind("id", required=True)
    words = tuple(bind(n, required=n == "state") for n in ("state", "ctx", "record", "extra", "given"))
    tools = (
        write("set_note", "update", "notes", key=key, writes=words),
        ToolSemantics(
            tool="find", verb="search", collection="notes", writes_state=False, many=True, filters=words[:2]
        ),
    )
    source = generate_source(schema, tools)
    assert "def set_note(state, ctx, /, *, id, **extra):" in source
    draft = EnvironmentDraft(
        name="odd", state_schema=schema, semantics=tools, tools=(), source=source, policy="", decisions=()
    )
    data: StateData = {"notes": {"1": {"id": 1, "state": "open"}, "2": {"id": 2, "state": "shut"}}}
    game = Play(draft, data)
    after = game("set_note", id=1, state="shut", ctx="c", record="r", extra="e", given="g")
    assert after == {"id": 1, "state": "shut", "ctx": "c", "record": "r", "extra": "e", "given": "g"}
    assert game.table("notes")["2"] == data["notes"]["2"]
    assert [n["id"] for n in game("find", state="shut")] == [1, 2]
    assert [n["id"] for n in game("find", state="shut", ctx="c")] == [1]


def test_paging_takes_numbers_that_are_floats() -> None:
    """A document may type them ``number``: 1.0 is 1, and no slice breaks."""
    tools = (
        ToolSemantics(
            tool="pages", verb="list", collection="notes", writes_state=False, many=True,
            paging=("limit", "page"), defaults={"limit": 2.0},
        ),
        ToolSemantics(
            tool="rest", verb="list", collection="notes", writes_state=False, many=True,
            paging=("offset",),
        ),
    )  # fmt: skip
    notes = {str(i): {"id": i, "owner": "ann", "state": "open"} for i in range(1, 6)}
    game = play(*tools, data={"users": {}, "notes": notes})

    def ids(tool: str, **arguments: Any) -> list[int]:
        return [n["id"] for n in game(tool, **arguments)]

    assert ids("pages", limit=2.0, page=2.0) == [3, 4] == ids("pages", page=2.0)
    assert ids("rest", offset=3.0) == [4, 5]
    with pytest.raises(ToolError, match="limit must be at least 1"):
        game("pages", limit=0.5)
    with pytest.raises(ToolError, match="page must be at least 1"):
        game("pages", page=0.5)


def test_preconditions_on_the_state_of_a_record() -> None:
    key = ParamBinding(param="id", collection="notes", field="id", required=True)
    rules = (
        Precondition(
            kind="field_in",
            collection="notes",
            field="state",
            value=["open", "new"],
            message="Note {id} is shut.",
        ),
        Precondition(
            kind="field_equals",
            collection="notes",
            field="owner",
            value="ann",
            message="Note {id} is not yours.",
        ),
    )
    tool = write("shut", "set", "notes", key=key, constants={"state": "shut"}, preconditions=rules)
    data: StateData = {
        "users": {},
        "notes": {
            "1": {"id": 1, "owner": "ann", "state": "open"},
            "2": {"id": 2, "owner": "bob", "state": "new"},
        },
    }
    game = play(tool, data=data)
    assert game("shut", id=1)["state"] == "shut"
    with pytest.raises(ToolError, match=r"Note 1 is shut\."):
        game("shut", id=1)
    with pytest.raises(ToolError, match=r"Note 2 is not yours\."):
        game("shut", id=2)


def test_text_in_messages_and_values_is_quoted() -> None:
    rule = Precondition(
        kind="field_not_equals",
        collection="notes",
        field="state",
        value='a"b\\',
        message='Note {id} says "a\\b".',
    )
    key = ParamBinding(param="id", collection="notes", field="id", required=True)
    tool = write("mark", "set", "notes", key=key, constants={"state": 'a"b\\'}, preconditions=(rule,))
    game = play(tool, data={"users": {}, "notes": {"1": {"id": 1, "owner": "x", "state": "open"}}})
    assert game("mark", id=1)["state"] == 'a"b\\'
    with pytest.raises(ToolError) as caught:
        game("mark", id=1)
    assert str(caught.value) == 'Note 1 says "a\\b".'


def test_schema_questions() -> None:
    assert descendants(small_schema(), "users") == (("notes", "owner", "users"),)
    arguments: dict[str, Any] = {}
    place_argument(arguments, "article.title", "Tea")
    place_argument(arguments, "article.body", "hot")
    place_argument(arguments, "slug", "A1")
    assert arguments == {"article": {"title": "Tea", "body": "hot"}, "slug": "A1"}
    assert (
        read_argument(arguments, "article.body") == "hot" and read_argument(arguments, "slug.title") is None
    )
    with pytest.raises(ValueError, match="already holds 'A1'"):
        place_argument(arguments, "slug.title", "x")


@pytest.mark.parametrize(
    ("name", "kind"), [("per_page", "size"), ("pageSize", "size"), ("limit", "size"), ("page", "page"),
    ("offset", "offset"), ("color", "")]
)  # fmt: skip
def test_paging_names(name: str, kind: str) -> None:
    assert paging_kind(name) == kind
