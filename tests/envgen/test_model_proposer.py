"""The model proposer on answers written for tests (`tests.envgen.model_answers`; no language model is asked):
a recorded synthesis with repairs, hostile and broken answers, cache, budget, prose, hybrid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envgen.cli import main
from envgen.errors import DocumentError, ProseError, RefusedDocument
from envgen.llm.budget import Budget, BudgetedClient, LLMBudgetSpent
from envgen.llm.cached import CachedClient
from envgen.llm.doubles import RecordingClient, ReplayClient, ScriptedClient
from envgen.llm.port import ChatMessage, ChatRequest
from envgen.proposers.model import ModelDraft, propose_with_model
from envgen.proposers.model.asking import AskSettings
from envgen.proposers.rules import propose
from envgen.runtime.isolation.vetting import is_vetted
from envgen.store import load_bundle
from envgen.synthesis.certify import validate
from envgen.synthesis.pipeline import make_bundle
from envgen.tooldocs import read_tool_doc
from envgen.types import ToolDoc
from tests.envgen import model_answers as written
from tests.envgen.llm_server import completion, scripted_server

CHECKLIST = "docker_simplechecklist_tools.json"
ONCE = AskSettings(tries=1, concurrency=2)


def small(examples_dir: Path, *names: str) -> ToolDoc:
    """The checklist with some of its tools."""
    doc = read_tool_doc(examples_dir / CHECKLIST)
    return doc.model_copy(update={"tools": tuple(t for t in doc.tools if t.name in names)})


PROJECTS = ("list_projects", "create_project", "get_project", "update_project", "delete_project")


# ------------------------------------------------------------------------------------------------ recorded
@pytest.mark.slow
def test_a_recorded_synthesis_with_repairs_is_certified_without_a_model(examples_dir: Path) -> None:
    made = propose_with_model(examples_dir / CHECKLIST, ReplayClient(written.RECORDING))
    refused = {d.tool: d.reason for d in made.draft.decisions if not d.implemented}
    assert list(refused) == ["get_project_stats"] and "the model declines" in refused["get_project_stats"]
    problems = {a.subject: a.problem for a in made.attempts if a.number == 1 and a.problem}
    assert "not valid JSON" in problems["create_task"]
    assert "'title' is not explained" in problems["update_task"]
    assert "the function leaves" in problems["toggle_subtask_completion"]
    assert "expected one function and nothing beside it" in problems["delete_subtask"]
    assert [a.number for a in made.attempts if a.subject == "delete_subtask"] == [1, 2, 3]
    assert made.provenance["model"]["ids"] == [written.LABEL]
    assert not is_vetted(made.draft)  # so its functions run in isolated workers
    bundle = make_bundle(made.doc, made.draft, tasks=6, heldout=2, seed=3, provenance=made.provenance)
    assert all(c.certified for c in bundle.certificates) and len(bundle.tasks) == 6
    assert bundle.manifest["proposer"] == "model"


@pytest.mark.slow
def test_the_command_asks_a_server_and_a_rerun_asks_nothing(
    examples_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ReplayClient(written.RECORDING)

    def script(body: dict[str, Any]) -> dict[str, Any]:
        request = ChatRequest(
            messages=tuple(ChatMessage(m["role"], m["content"]) for m in body["messages"]),
            temperature=body["temperature"],
            max_tokens=body["max_tokens"],
            seed=body["seed"],
            json_schema=body["response_format"]["json_schema"]["schema"],
        )
        return completion(replay.complete(request).text)

    arguments = ["synth", str(examples_dir / CHECKLIST), "--proposer", "model", "--model", "scripted-model"]
    arguments += ["--tasks", "4", "--heldout", "1", "--cache", str(tmp_path / "cache")]
    arguments += ["--prices", "1", "2"]
    with scripted_server(script) as server:
        for name in ("first", "second"):
            with pytest.raises(SystemExit) as ended:
                main([*arguments, "--base-url", server.base_url, "-o", str(tmp_path / name)])
            assert ended.value.code == 0
        assert len(server.requests) == 27
    assert "27 answers, 189 prompt and 81 answer tokens, cost 0.0004" in capsys.readouterr().out
    first, second = load_bundle(tmp_path / "first"), load_bundle(tmp_path / "second")
    assert first.content_hash == second.content_hash
    assert all(c.certified for c in validate(first))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--proposer", "model"], "needs --base-url and --model"),
        (["--proposer", "oracle"], "expected rules, model or hybrid"),
        (["--base-url", "http://localhost:1/v1"], "--base-url needs --proposer model"),
        (["--proposer", "model", "--replay", "x.jsonl", "--base-url", "http://x"], "asks no server"),
        (["--proposer", "model", "--replay", "x.jsonl"], "expected a recording"),
        (["--proposer", "hybrid", "--replay", "x.jsonl", "--cost-budget", "1"], "without prices"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], said: str, examples_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["synth", str(examples_dir / CHECKLIST), "-o", str(tmp_path / "out"), *options])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ hostile
def code(change: Callable[[str], str]) -> Callable[[str], str]:
    """A spoiler that changes the code of an answer."""

    def spoil(text: str) -> str:
        tree = json.loads(text)
        tree["code"] = change(tree["code"])
        assert tree["code"] != json.loads(text)["code"]
        return json.dumps(tree)

    return spoil


def first(*lines: str) -> Callable[[str], str]:
    """A spoiler that puts lines before the body of the function."""

    def change(text: str) -> str:
        head, _, body = text.partition("\n")
        return "\n".join([head, *("    " + line for line in lines), body])

    return code(change)


def said(**changes: Any) -> Callable[[str], str]:
    """A spoiler that changes the statement."""

    def spoil(text: str) -> str:
        tree = json.loads(text)
        tree["statement"] |= changes
        return json.dumps(tree)

    return spoil


def lie(text: str) -> str:
    """An update that answers the changed record and changes nothing."""
    line = next(x for x in text.splitlines() if "state.update(" in x)
    told = line.split("project_id, ", 1)[1].removesuffix(")")
    start, _, _ = text.replace(line, "    pass").rpartition("    return ")
    return f"{start}    return {{**row, **{told}}}"


HOSTILE: dict[str, tuple[str, Callable[[str], str], str]] = {
    "truncated": ("update_project", lambda t: t[:-40], "not valid JSON"),
    "prose": ("update_project", lambda t: "Sure! Here is the tool.", "not valid JSON"),
    "nested": ("update_project", lambda t: "[" * 100_000, "not valid JSON"),
    "wrong schema": ("update_project", lambda t: json.dumps({"tool": t}), "does not fit the schema"),
    "extra member": ("update_project", lambda t: t[:-1] + ', "note": 1}', "Extra inputs"),
    "imports os before": ("update_project", code(lambda t: "import os\n" + t), "expected one function"),
    "imports os inside": ("update_project", first("import os"), "import is not allowed"),
    "f-string of 3.12": ("update_project", first("""x = f"{"a"}" """), "f-string"),
    "dunder": ("update_project", first("x = state.__class__"), "not allowed in tool code"),
    "private": ("update_project", first("x = state._base"), "not allowed in tool code"),
    "eval": ("update_project", first('eval("1")'), "not allowed in tool code"),
    "endless": (
        "update_project",
        first("for i in range(1000000):", "    for j in range(1000000):", "        pass"),
        "did not answer within",
    ),
    "memory": ("update_project", first('x = "x" * 4000000000'), "of memory"),
    "crash": ("update_project", first("x = {}['gone']"), "KeyError"),
    "lies about success": ("update_project", code(lie), "the function leaves"),
    "does nothing": (
        "delete_project",
        code(lambda t: "\n".join(x for x in t.splitlines() if 'state.delete("projects"' not in x)),
        "the function leaves",
    ),
    "writes elsewhere": (
        "update_project",
        first('for p in state.keys("projects"):', '    state.update("projects", p, {"color": "x"})'),
        "the function leaves",
    ),
    "a read that writes": (
        "list_projects",
        first('for p in state.records("projects"):', '    state.delete("projects", p["project_id"])'),
        "the function leaves",
    ),
    "accepts any key": (
        "get_project",
        code(lambda t: t.split("\n")[0] + '\n    return state.get("projects", project_id) or {}'),
        "reports success",
    ),
    "refuses everything": ("get_project", first('raise ToolError("no")'), "the call succeeds"),
    "shows another record": (
        "get_project",
        code(lambda t: t.replace("return row", 'return state.records("projects")[-1]')),
        "the result shows",
    ),
    "shows half the list": ("list_projects", code(lambda t: t.replace("]}", "][1:]}")), "the result shows"),
    "wrong head": ("get_project", code(lambda t: t.replace("project_id", "id")), "the head is not"),
    "states what it does not do": (
        "get_project",
        said(verb="delete", on_delete="cascade", outputs=[]),
        "the function leaves",
    ),
    "unknown collection": ("get_project", said(collection="planets"), "expected one of"),
    "unknown field": ("get_project", said(outputs=[{"path": "x", "field": "mass"}]), "no field 'mass'"),
    "unknown parameter": ("get_project", said(key="planet"), "no parameter 'planet'"),
    "code in a path": (
        "get_project",
        said(outputs=[{"path": 'x"+open("/etc/passwd")+"', "field": "name"}]),
        "the result shows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_broken_answer_does_not_ship(name: str, examples_dir: Path) -> None:
    tool, spoil, reason = HOSTILE[name]
    client = written.player(lambda subject, number, text: spoil(text) if subject == tool else text)
    doc = small(examples_dir, "list_projects", "create_project", tool)
    try:
        made = propose_with_model(doc, client, ONCE)
    except RefusedDocument as error:  # without the list nothing can be looked up
        assert tool == "list_projects"
        assert reason in " ".join(f.message for f in error.findings)
        return
    refused = {d.tool: d.reason for d in made.draft.decisions if not d.implemented}
    assert list(refused) == [tool] and reason in refused[tool]
    assert tool not in {s.tool for s in made.draft.semantics} | {t.name for t in made.draft.tools}
    assert f"def {tool}(" not in made.draft.source and "import" not in made.draft.source


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t["collections"][0].update(entity='x"); import os; ("'), "expected plain words"),
        (lambda t: t["collections"][0].update(name="a b"), "snake_case"),
        (lambda t: t["collections"][1]["fields"][1].update(references="moons"), "is no collection"),
        (lambda t: t["collections"][0]["fields"].append(t["collections"][0]["fields"][1]), "stands twice"),
        (lambda t: t["collections"].clear(), "there is no collection"),
        (
            lambda t: t["collections"][0]["fields"].append(
                written.field("group_id", "id", required=True, references="groups")
            ),
            "round in a circle",
        ),
    ],
)
def test_a_state_structure_that_does_not_hold_is_refused(
    change: Callable[[Any], object], reason: str, examples_dir: Path
) -> None:
    def spoil(subject: str, number: int, text: str) -> str:
        tree = json.loads(text)
        change(tree)
        return json.dumps(tree)

    client = written.player(spoil)
    with pytest.raises(RefusedDocument, match=reason):
        propose_with_model(small(examples_dir, *PROJECTS), client, ONCE)
    assert len(client.requests) == 1


def test_what_depends_on_a_dropped_tool_is_dropped_with_it(examples_dir: Path) -> None:
    names = (*PROJECTS, "list_groups", "create_group", "list_task_lists", "create_task_list", "delete_task")
    client = written.player(lambda s, n, t: "{" if s in ("list_groups", "create_group") else t)
    made = propose_with_model(small(examples_dir, *names), client, ONCE)
    refused = {d.tool: d.reason for d in made.draft.decisions if not d.implemented}
    assert set(refused) == set(names[5:])
    assert "needs a key of groups" in refused["list_task_lists"]
    assert "refused: list_groups, create_group" in refused["list_task_lists"]
    assert "needs a key of tasks" in refused["delete_task"]
    assert {c.name for c in made.draft.state_schema.collections} >= {"projects"}


# --------------------------------------------------------------------------------- cache, budget, recording
def test_a_spent_budget_stops_before_the_request_and_the_rerun_resumes(
    examples_dir: Path, tmp_path: Path
) -> None:
    doc = small(examples_dir, *PROJECTS)
    asking = AskSettings(tries=1, concurrency=1, max_tokens=1000)

    def run(tokens: int) -> tuple[int, ModelDraft | None]:
        scripted = written.player()
        budgeted = BudgetedClient(scripted, Budget(max_tokens=tokens))
        client = CachedClient(budgeted, tmp_path / "answers", "scripted")
        try:
            return len(scripted.requests), propose_with_model(doc, client, asking)
        except LLMBudgetSpent as error:
            assert "nothing is asked twice" in str(error)
            assert budgeted.prompt_tokens + budgeted.completion_tokens <= tokens
            return len(scripted.requests), None

    limits = [9000, 9000, 9000, 9000, 9000, 9000]
    results = [run(tokens) for tokens in limits]
    assert results[0][1] is None and results[-1][1] is not None
    assert results[-1] == (0, results[-1][1])
    finished = [draft for _, draft in results if draft is not None]
    assert all(draft.draft == finished[0].draft for draft in finished)


def test_a_budget_in_money_and_the_reserve_of_requests_under_way() -> None:
    client = BudgetedClient(ScriptedClient(["a", "b"]), Budget(max_cost=1e-4, completion_price=1.0))
    request = ChatRequest((ChatMessage("user", "x"),), max_tokens=60)
    client.complete(request)
    assert client.cost == pytest.approx(60e-6)  # a server without usage is charged the worst case
    with pytest.raises(LLMBudgetSpent, match="may cost"):
        client.complete(request)
    with pytest.raises(ValueError, match="without prices"):
        Budget(max_cost=1.0)


def test_another_model_has_another_cache_and_a_damaged_entry_is_asked_again(tmp_path: Path) -> None:
    scripted = ScriptedClient(["one", "two", "three"])
    request = ChatRequest((ChatMessage("user", "x"),))
    assert CachedClient(scripted, tmp_path, "a").complete(request).text == "one"
    assert CachedClient(scripted, tmp_path, "a").complete(request).text == "one"
    assert CachedClient(scripted, tmp_path, "b").complete(request).text == "two"
    for path in tmp_path.rglob("*.json"):
        path.write_text("{", encoding="utf-8")
    assert CachedClient(scripted, tmp_path, "a").complete(request).text == "three"


def test_a_record_replays_to_the_same_draft(examples_dir: Path, tmp_path: Path) -> None:
    doc = small(examples_dir, *PROJECTS)
    made = propose_with_model(doc, RecordingClient(written.player(), tmp_path / "r.jsonl"), ONCE)
    again = propose_with_model(doc, ReplayClient(tmp_path / "r.jsonl"), ONCE)
    assert again == made
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert {a.key for a in made.attempts} == {row["key"] for row in rows}
    assert all(row["request"]["messages"][0]["role"] == "system" for row in rows)


# ------------------------------------------------------------------------------------------- hybrid, prose
def test_hybrid_asks_nothing_where_the_rules_have_everything(examples_dir: Path) -> None:
    client = ScriptedClient([])
    made = propose_with_model(examples_dir / CHECKLIST, client, hybrid=True)
    assert client.requests == [] and made.draft == propose(made.doc) and is_vetted(made.draft)


def test_hybrid_keeps_the_rules_tools_and_adds_what_they_refuse(examples_dir: Path) -> None:
    fields = [written.field("server_name", required=True), written.field("version", required=True)]
    info = written.collection("server_infos", "server info", "id", fields) | {"singleton": True}
    outputs = [{"path": f"info.{name}", "field": name} for name in ("server_name", "version")]
    lines = [
        "def get_server_info(state, ctx, /):",
        '    row = require(state, "server_infos", "self", "There is no server.")',
        '    return {"info": {"server_name": row["server_name"], "version": row["version"]}}',
    ]
    said_of = written.answer(written.statement("get", "server_infos", outputs=outputs), "\n".join(lines))
    client = ScriptedClient([json.dumps({"collections": [info]}), json.dumps(said_of)])
    made = propose_with_model(examples_dir / "toucan_scheduler_tools.json", client, hybrid=True)
    by_rules = propose(made.doc)
    assert all(d.implemented for d in made.draft.decisions)
    assert all(sem in made.draft.semantics for sem in by_rules.semantics)
    assert made.draft.source.startswith(by_rules.source[: by_rules.source.index("TOOLS = {")].rstrip())
    assert not is_vetted(made.draft) and made.provenance["proposer"] == "hybrid"
    bundle = make_bundle(made.doc, made.draft, tasks=3, heldout=1, seed=0)
    assert all(c.certified for c in bundle.certificates)


PROSE = """The shelf service

Our service keeps shelves. You can ask for all shelves with list_shelves, and add
one with add_shelf by giving its name. A shelf that is not needed any more is thrown out with
drop_shelf; say which one by its shelf_id.

(This sentence only makes the document long enough to be taken for what it is, plain prose for people.)
"""


def shelf_answers(quote: str = "ask for all shelves with list_shelves") -> list[str]:
    """Answers for the prose above."""

    def tool(name: str, quote: str, *params: str) -> dict[str, Any]:
        plain = {"type": "string", "required": True, "description": "", "enum": []}
        rows = [{"name": p, **plain} for p in params]
        return {"name": name, "description": name, "quote": quote, "params": rows}

    tools = [
        tool("list_shelves", quote),
        tool("add_shelf", "add\none with add_shelf by giving its name", "name"),
        tool("drop_shelf", "say which one by its shelf_id", "shelf_id"),
    ]
    fields = [written.field("name", required=True)]
    shelves = written.collection("shelves", "shelf", "shelf_id", fields, "name")
    shown = [{"path": f"[].{name}", "field": name} for name in ("shelf_id", "name")]
    key = [{"path": "shelf_id", "field": "shelf_id"}]
    answers = [
        written.answer(
            written.statement("list", "shelves", outputs=shown),
            'def list_shelves(state, ctx, /):\n    return state.records("shelves")',
        ),
        written.answer(
            written.statement("create", "shelves", writes=[written.binding("name")], outputs=key),
            "def add_shelf(state, ctx, /, *, name):\n"
            '    row = {"shelf_id": ctx.new_id("shelves"), "name": name}\n'
            '    state.insert("shelves", row["shelf_id"], row)\n    return row',
        ),
        written.answer(
            written.statement("delete", "shelves", key="shelf_id"),
            "def drop_shelf(state, ctx, /, *, shelf_id):\n"
            '    require(state, "shelves", shelf_id, f"No shelf {shelf_id}.")\n'
            '    state.delete("shelves", shelf_id)\n    return {"done": True}',
        ),
    ]
    trees = [{"title": "Shelves", "tools": tools}, {"collections": [shelves]}, *answers]
    return [json.dumps(tree) for tree in trees]


def test_prose_becomes_an_environment_with_the_lines_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "shelves.txt"
    path.write_text(PROSE, encoding="utf-8")
    with pytest.raises(ProseError, match="takes a language model"):
        read_tool_doc(path)
    made = propose_with_model(path, ScriptedClient(shelf_answers()), AskSettings(tries=1, concurrency=1))
    assert made.doc.format == "prose"
    assert {t.name: t.pointer for t in made.doc.tools} == {
        "list_shelves": "line 3", "add_shelf": "line 3", "drop_shelf": "line 5",
    }  # fmt: skip
    assert all(d.implemented for d in made.draft.decisions)
    bundle = make_bundle(made.doc, made.draft, tasks=3, heldout=1, seed=0, max_difficulty=2)
    assert all(c.certified for c in bundle.certificates)


def test_a_tool_that_the_prose_does_not_speak_of_is_invented_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "shelves.txt"
    path.write_text(PROSE, encoding="utf-8")
    client = ScriptedClient(shelf_answers("You can also burn_shelf whenever you like"))
    with pytest.raises(DocumentError, match="its quote does not stand in the document"):
        propose_with_model(path, client, ONCE)


def test_the_texts_of_a_json_file_are_its_prose(tmp_path: Path) -> None:
    path = tmp_path / "shelves.json"
    path.write_text(json.dumps({"Name": "Shelves", "About": PROSE}), encoding="utf-8")
    client = ScriptedClient(["{}"])
    with pytest.raises(DocumentError, match="does not fit the schema"):
        propose_with_model(path, client, ONCE)
    assert f"Name: Shelves\n\nAbout: {PROSE}" in client.requests[0].messages[1].content
