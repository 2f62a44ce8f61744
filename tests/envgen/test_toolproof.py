"""Tools prove themselves: right ones pass, each kind of wrong one fails at its own check, and the tests
notice seeded mutants."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import RefusedDocument
from envgen.proposers.rules import propose
from envgen.runtime.context import ToolContext, key_styles
from envgen.runtime.sandbox import load_tools
from envgen.synthesis.toolproof.code_mutants import Module, mutants_of
from envgen.synthesis.toolproof.drop import prove_tools
from envgen.synthesis.toolproof.meaning import Meaning
from envgen.synthesis.toolproof.prove import (
    LEAST_REFUSALS,
    LEAST_SUCCESSES,
    ToolBench,
    ToolProof,
    can_refuse,
    proofs_of,
)
from envgen.synthesis.toolproof.score import score_tools
from envgen.tooldocs import read_tool_doc
from envgen.types import EnvironmentDraft, FieldSpec, ToolDoc, ToolSpec
from tests.conftest import EXAMPLES

DOCUMENTS = (
    "conduit_openapi31.yml",
    "docker_simplechecklist_tools.json",
    "museum_openapi31.yaml",
    "toucan_scheduler_tools.json",
    "xero_assets_openapi30.yaml",
)


def param(name: str, type_: Any = "string", required: bool = True, **more: Any) -> FieldSpec:
    return FieldSpec(
        name=name, type=type_, required=required, pointer=f"/params/{name}", location="argument", **more
    )


def tool(name: str, *params: FieldSpec, **more: Any) -> ToolSpec:
    return ToolSpec(name=name, params=params, description=name.replace("_", " "), pointer=f"/{name}", **more)


@cache
def library() -> tuple[ToolDoc, EnvironmentDraft]:
    """Shelves with books: lists, a page size, a state verb, a delete."""
    doc = ToolDoc(
        title="Library",
        format="mcp",
        source="library.json",
        sha256="0" * 64,
        tools=(
            tool("list_shelves"),
            tool("create_shelf", param("name")),
            tool("list_books", param("shelf_id"), param("limit", "integer", False)),
            tool("create_book", param("shelf_id"), param("title"), param("pages", "integer", False)),
            tool(
                "update_book",
                param("book_id"),
                param("title", required=False),
                param("pages", "integer", False),
            ),
            tool("archive_book", param("book_id")),
            tool("delete_book", param("book_id")),
        ),
    )
    return doc, propose(doc)


def prove(name: str, old: str, new: str, **changes: Any) -> ToolProof:
    """The proof of one tool whose text was changed."""
    doc, draft = library()
    before, head, body = draft.source.partition(f"def {name}(")
    assert old in body, old
    bench = ToolBench(draft, doc)
    sem = next(s for s in draft.semantics if s.tool == name)
    return bench.prove(sem.model_copy(update=changes), load_tools(before + head + body.replace(old, new, 1)))


@pytest.mark.parametrize("file", DOCUMENTS)
def test_every_tool_of_the_examples_passes(file: str, examples_dir: Path) -> None:
    doc = read_tool_doc(examples_dir / file)
    draft = propose(doc)
    proofs = {p.tool: p for p in proofs_of(draft, doc)}
    assert [p.detail for p in proofs.values() if not p.passed] == []
    assert set(proofs) == {s.tool for s in draft.semantics}
    for sem in draft.semantics:
        proof = proofs[sem.tool]
        arguments = next(t for t in draft.tools if t.name == sem.tool).parameters["properties"]
        assert proof.successes >= LEAST_SUCCESSES
        assert proof.refusals >= LEAST_REFUSALS or not can_refuse(draft, sem)
        assert proof.refusals + proof.misfits >= LEAST_REFUSALS or not arguments


@pytest.mark.parametrize(
    ("name", "old", "new", "kind"),
    [
        ("update_book", 'state.update("books", str(record["book_id"]), changes)', "pass", "state"),  # it lies
        ("delete_book", 'state.delete("books", str(record["book_id"]))', "pass", "state"),
        ("create_book", 'require(state, "shelves", shelf_id, f"No shelf {shelf_id}.")', "pass", "refusal"),
        ("archive_book", 'raise ToolError(f"Book {book_id} is already archived.")', "pass", "refusal"),
        ("list_books", 'item.get("shelf_id") == shelf_id', 'item.get("shelf_id") != shelf_id', "result"),
        ("list_books", "found = found[:size]", "found = found[: size + 1]", "result"),
        (
            "list_books",
            "if limit is not None and limit < 1:",
            "if limit is not None and limit < 0:",
            "refusal",
        ),
        ("list_shelves", "    return found", '    return found[0]["x"]', "defect"),
        ("create_shelf", '"name": name', '"name": name.lower()', "state"),
    ],
)
def test_a_wrong_function_fails_at_its_check(name: str, old: str, new: str, kind: str) -> None:
    proof = prove(name, old, new)
    assert not proof.passed and proof.kind == kind, proof


def test_a_read_that_writes_and_a_refusal_that_writes() -> None:
    wrote = prove(
        "list_shelves",
        "    return found",
        '    ctx.new_id("shelves")\n    state.insert("shelves", "Q", {"shelf_id": "Q"})\n    return found',
    )
    assert wrote.kind in ("state", "purity")
    silent = prove(
        "archive_book", 'raise ToolError(f"Book {book_id} is already archived.")', 'raise ToolError("")'
    )
    assert (silent.kind, "without a reason" in silent.detail) == ("refusal", True)


def test_results_are_held_to_the_declared_form() -> None:
    doc, draft = library()
    shaped = [
        t.model_copy(
            update={
                "output": FieldSpec(
                    name="out",
                    type="array",
                    items=param("item", "object", properties=(param("name", "integer"),)),
                )
            }
        )
        if t.name == "list_shelves"
        else t
        for t in doc.tools
    ]
    proofs = proofs_of(draft, doc.model_copy(update={"tools": tuple(shaped)}))
    failed = {p.tool: p for p in proofs if not p.passed}
    assert list(failed) == ["list_shelves"]
    assert (
        failed["list_shelves"].kind == "output schema" and "declares integer" in failed["list_shelves"].detail
    )


def test_declared_idempotence_is_tried() -> None:
    doc, draft = library()
    marked = [t.model_copy(update={"idempotent": True}) if t.name == "create_shelf" else t for t in doc.tools]
    proofs = {p.tool: p for p in proofs_of(draft, doc.model_copy(update={"tools": tuple(marked)}))}
    assert proofs["create_shelf"].kind == "idempotence"
    assert all(p.passed for name, p in proofs.items() if name != "create_shelf")


def test_a_dangling_reference_is_found() -> None:
    """Deleting a shelf whose books stay behind, as semantics without the rule would promise it."""
    doc, _ = library()
    doc = doc.model_copy(update={"tools": (*doc.tools, tool("delete_shelf", param("shelf_id")))})
    draft = propose(doc)
    bare = tuple(
        s.model_copy(update={"cascades": (), "preconditions": s.preconditions[:1]})
        if s.tool == "delete_shelf"
        else s
        for s in draft.semantics
    )
    from envgen.synthesis.functions import generate_source

    spoilt = draft.model_copy(update={"semantics": bare, "source": generate_source(draft.state_schema, bare)})
    proofs = {p.tool: p for p in proofs_of(spoilt, doc)}
    assert (
        proofs["delete_shelf"].kind == "integrity" and "which is not there" in proofs["delete_shelf"].detail
    )


def test_a_tool_that_fails_goes_with_what_depends_on_it() -> None:
    doc, draft = library()
    broken = draft.source.replace(
        'found = [item for item in found if item.get("shelf_id") == shelf_id]', "found = []"
    )
    broken = broken.replace('    state.insert("books", str(record["book_id"]), record)\n', "")
    assert broken.count("books") == draft.source.count("books") - 1
    proven = prove_tools(draft.model_copy(update={"source": broken}), doc)  # not our text: isolated workers
    reasons = {d.tool: d.reason for d in proven.draft.decisions if not d.implemented}
    assert reasons["list_books"].startswith("its tests fail (result)")
    assert reasons["create_book"].startswith("its tests fail (state)")
    for name in ("update_book", "archive_book", "delete_book"):
        assert (
            reasons[name] == "it needs a key of books, and what showed one is gone (list_books, create_book)"
        )
    assert {s.tool for s in proven.draft.semantics} == {"list_shelves", "create_shelf"}
    assert proven.account == {"tools_failed": {"result": 1, "state": 1}}
    assert [c.name for c in proven.draft.state_schema.collections] == ["shelves"]
    assert "def list_books" not in proven.draft.source and "def create_shelf" in proven.draft.source
    assert set(load_tools(proven.draft.source)) == {t.name for t in proven.draft.tools}


def test_nothing_left_is_a_refusal() -> None:
    doc, draft = library()
    gone = draft.source.replace('found = state.records("shelves")', "found = []").replace(
        'found = state.records("books")', "found = []"
    )
    with pytest.raises(RefusedDocument, match="no environment"):
        prove_tools(draft.model_copy(update={"source": gone}), doc)


def test_a_draft_without_failures_is_left_as_it_is() -> None:
    doc, draft = library()
    proven = prove_tools(draft, doc)
    assert proven.account == {}
    assert proven.draft is draft and set(proven.proofs) == {s.tool for s in draft.semantics}


# ------------------------------------------------------------------------------------------------ meaning
def test_the_meaning_of_a_list_by_hand() -> None:
    _, draft = library()
    sem = next(s for s in draft.semantics if s.tool == "list_books")
    books = {
        f"B{n}": {"book_id": f"B{n}", "shelf_id": "S1" if n != 2 else "S2", "title": f"t{n}"}
        for n in (1, 2, 3)
    }
    state: Any = {
        "shelves": {"S1": {"shelf_id": "S1", "name": "a"}, "S2": {"shelf_id": "S2", "name": "b"}},
        "books": books,
    }
    meaning = Meaning(draft.state_schema, sem)

    def run(**arguments: Any) -> Any:
        context = ToolContext("2026-03-02T09:00:00", 1, key_styles(draft.state_schema))
        return meaning.run(state, arguments, context)

    assert [r["book_id"] for r in run(shelf_id="S1").result] == ["B1", "B3"]
    assert [r["book_id"] for r in run(shelf_id="S1", limit=1).result] == ["B1"]
    assert run(shelf_id="S2").changes == ()
    assert run(shelf_id="S1", limit=0).refused and run(shelf_id="S9").refused


def test_the_meaning_of_writes_by_hand() -> None:
    _, draft = library()
    sems = {s.tool: s for s in draft.semantics}
    book = {"book_id": "B1", "shelf_id": "S1", "title": "old", "archived": False}
    state: Any = {"shelves": {"S1": {"shelf_id": "S1", "name": "a"}}, "books": {"B1": book}}

    def run(name: str, **arguments: Any) -> Any:
        context = ToolContext("2026-03-02T09:00:00", 1, key_styles(draft.state_schema))
        return Meaning(draft.state_schema, sems[name]).run(state, arguments, context)

    assert run("archive_book", book_id="B1").changes == ((("books", "B1"), {**book, "archived": True}),)
    assert run("delete_book", book_id="B1").changes == ((("books", "B1"), None),)
    assert run("update_book", book_id="B1", title="old").changes == ()  # nothing differs
    assert run("create_book", shelf_id="S2", title="x").refused
    ((place, made),) = run("create_book", shelf_id="S1", title="x").changes
    assert place[0] == "books" and made["title"] == "x" and made["archived"] is False
    assert state["books"] == {"B1": book}


# ------------------------------------------------------------------------------------------------ mutants
def test_mutants_are_seeded_unlike_the_original_and_of_many_kinds() -> None:
    import random

    _, draft = library()
    module = Module(draft.source, draft.state_schema)
    found = mutants_of(module, "list_books", "books", random.Random(1), 500)
    again = mutants_of(module, "list_books", "books", random.Random(1), 500)
    assert [m.source for m in found] == [m.source for m in again]
    assert len({m.source for m in found}) == len(found) >= 15
    assert module.text("list_books") not in {m.source for m in found}
    kinds = {m.kind for m in found}
    assert {
        "comparison",
        "dropped statement",
        "removed raise",
        "wrong field",
        "wrong collection",
        "off by one",
    } <= kinds
    assert all("def list_books" in m.source for m in found)


def test_at_least_four_of_five_mutants_are_noticed() -> None:
    doc, draft = library()
    score = score_tools(draft, doc, limit=25)
    assert score.count("killed") >= 60
    assert score.share >= 0.8
    assert score_tools(draft, doc, limit=25).verdicts == score.verdicts


def test_weak_tests_are_seen_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one case per tool hardly any mutant dies: the score measures the tests."""
    from envgen.synthesis.toolproof import cases

    doc, draft = library()
    strong = score_tools(draft, doc, limit=15)
    monkeypatch.setattr(cases, "MAX_CASES", 1)
    assert score_tools(draft, doc, limit=15).share < strong.share - 0.2


@pytest.mark.parametrize("file", DOCUMENTS)
def test_mutation_score_of_the_examples(file: str) -> None:
    doc = read_tool_doc(EXAMPLES / file)
    score = score_tools(propose(doc), doc, limit=8)
    assert score.share >= 0.8, [
        (v.mutant.tool, v.mutant.kind, v.mutant.line) for v in score.verdicts if v.fate != "killed"
    ]
