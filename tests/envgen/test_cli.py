"""The envgen command, run as a person runs it: exit codes, one-line errors, and what is printed."""

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from envgen.cli import main
from envgen.cli.show import state_changes
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.types import Task


@dataclasses.dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def call(*arguments: object, stdin: str = "") -> Run:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Run(caught.value.code, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def bundle_dir(tmp_path_factory: pytest.TempPathFactory, examples_dir: Path) -> Path:
    """A small bundle of the museum, made by the command itself."""
    path = tmp_path_factory.mktemp("cli") / "museum"
    document = examples_dir / "museum_openapi31.yaml"
    arguments = ["synth", document, "-o", path, "--tasks", 5, "--heldout", 2, "--seed", 3]
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert caught.value.code == 0
    return path


@pytest.fixture(scope="module")
def bundle(bundle_dir: Path) -> Bundle:
    return load_bundle(bundle_dir)


# -------------------------------------------------------------------------------- start-up and errors
def test_starts_without_heavy_imports() -> None:
    heavy = "('pydantic', 'rich', 'yaml', 'networkx', 'orjson')"
    code = f"import sys, envgen.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envgen.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "synth" in done.stdout and done.stderr == ""


def test_package_init_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import envgen; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['envgen']"


def test_help(run) -> None:
    done = run("--help")
    assert done.code == 0 and all(word in done.out for word in ("lint", "synth", "validate", "show", "play"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lint"], "got no document; expected DOC..., or --mcp"),
        (["dance"], "No such command 'dance'"),
        (["lint", "--fast", "x"], "No such option: --fast"),
        (["lint", "/no/such.yaml"], "no such file"),
        (["synth", "x.json"], "Missing option"),
        (["synth", "x.json", "-o", "y", "--tasks", "many"], "valid int"),
        (["synth", "x.json", "-o", "y", "--tasks", "0"], "--tasks"),
        (["synth", "x.json", "-o", "y", "--tasks", "5", "--heldout", "5"], "leaves none to train on"),
        (["synth", "x.json", "-o", "y", "--difficulty", "hard"], "expected levels such as 3, 2-4 or 1,3,5"),
        (["synth", "x.json", "-o", "y", "--difficulty", "6"], "got level 6; expected 1 to 5"),
        (["synth", "/no/such.json", "-o", "/no/where"], "no such file"),
        (["validate", "/no/such"], "no such folder"),
        (["show", "/no/such"], "no such folder"),
        (["play", "/no/such", "t"], "no such folder"),
    ],
)
def test_expected_errors_are_one_line_and_code_2(run, arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.err.startswith("error: ") and says in done.err and done.err.count("\n") == 1
    assert done.out == ""


def test_refused_document(run, tmp_path: Path) -> None:
    document = tmp_path / "weather.json"
    document.write_text(
        json.dumps([{"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}}])
    )
    linted = run("lint", document)
    assert linted.code == 1 and "no-write-tool" in linted.out
    made = run("synth", document, "-o", tmp_path / "bundle")
    assert made.code == 2 and made.err.count("error: ") == 1
    assert not (tmp_path / "bundle").exists()


def test_synth_does_not_overwrite_other_folders(run, tmp_path: Path, examples_dir: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run("synth", examples_dir / "museum_openapi31.yaml", "-o", tmp_path)
    assert done.code == 2 and "is no bundle" in done.err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_corrupted_bundle_is_named(run, tmp_path: Path, bundle: Bundle) -> None:
    write_bundle(bundle, tmp_path / "b")
    tools = tmp_path / "b" / "tools.py"
    tools.write_text(tools.read_text() + "\n# changed\n")
    for command in (["validate", tmp_path / "b"], ["show", tmp_path / "b"]):
        done = run(*command)
        assert done.code == 2 and "tools.py" in done.err and done.err.count("\n") == 1


def test_synth_replaces_a_bundle_only_when_told(
    run, tmp_path: Path, bundle: Bundle, examples_dir: Path
) -> None:
    write_bundle(bundle, tmp_path / "b")
    before = (tmp_path / "b" / "manifest.json").read_bytes()
    arguments = [
        "synth",
        examples_dir / "museum_openapi31.yaml",
        "-o",
        tmp_path / "b",
        "--tasks",
        2,
        "--heldout",
        1,
    ]
    done = run(*arguments)
    assert done.code == 2 and "--force" in done.err
    assert (tmp_path / "b" / "manifest.json").read_bytes() == before
    assert run(*arguments, "--force").code == 0
    assert (tmp_path / "b" / "manifest.json").read_bytes() != before
    shown = run("show", tmp_path / "b", "--provenance")
    assert shown.code == 0 and "/paths/~1museum-hours/get" in shown.out


# -------------------------------------------------------------------------------- lint, synth, validate, show
def test_lint(run, examples_dir: Path) -> None:
    done = run("lint", examples_dir / "museum_openapi31.yaml")
    assert done.code == 0
    assert "8 tools, 27 parameters, 7 with a result schema" in done.out
    assert "binary-output" in done.out


def test_synth_with_go_aheads_and_tools_of_the_user(run, tmp_path: Path, examples_dir: Path) -> None:
    document, target = examples_dir / "museum_openapi31.yaml", tmp_path / "dual"
    base = ["synth", document, "-o", target, "--tasks", 4, "--heldout", 1, "--seed", 1]
    refused = run(*base, "--user-tool", "listSpecialEvents")
    assert refused.code == 2 and "listSpecialEvents" in refused.err and "deleteSpecialEvent" in refused.err
    assert not target.exists()
    assert run(*base, "--confirm-writes", "delete", "--user-tool", "create").code == 0
    made = load_bundle(target)
    assert {tool.name for tool in made.user_tools} == {"createSpecialEvent", "buyMuseumTickets"}
    acting = next(t for t in made.tasks if t.user_actions)
    assert "(the user calls " in run("show", target, acting.id).out
    assert "(the user's)" in run("show", target).out
    assert run("validate", target).code == 0


def test_synth_account(run, tmp_path: Path, examples_dir: Path, bundle: Bundle) -> None:
    document = examples_dir / "museum_openapi31.yaml"
    done = run("synth", document, "-o", tmp_path / "m", "--tasks", 5, "--heldout", 2, "--seed", 3)
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert ["tools", "in", "the", "document", "8"] in rows
    assert ["certified", "5", "3", "train,", "2", "heldout"] in rows
    assert "getTicketCode: " in done.out and "binary" in done.out
    assert load_bundle(tmp_path / "m").content_hash == bundle.content_hash  # same seed, same bytes


def test_validate(run, bundle_dir: Path) -> None:
    done = run("validate", bundle_dir)
    assert done.code == 0 and "5 of 5 tasks certified again" in done.out
    replay = next(line.split() for line in done.out.splitlines() if line.startswith("replay"))
    assert replay == ["replay", "5", "0", "15"]


def test_validate_finds_a_task_that_proves_nothing(run, tmp_path: Path, bundle: Bundle) -> None:
    bad = bundle.tasks[0].model_copy(update={"accepted_states": (bundle.tasks[0].initial_state,)})
    write_bundle(dataclasses.replace(bundle, tasks=(bad, *bundle.tasks[1:])), tmp_path / "b")
    done = run("validate", tmp_path / "b")
    assert done.code == 1
    assert f"not certified {bad.id}" in done.out and "4 of 5 tasks certified again" in done.out


def test_show_bundle(run, bundle_dir: Path, bundle: Bundle) -> None:
    done = run("show", bundle_dir)
    assert done.code == 0
    for text in ("getSpecialEvent(eventId*: string)", "getTicketCode", "special_events", bundle.tasks[0].id):
        assert text in done.out


def test_show_task(run, bundle_dir: Path, bundle: Bundle) -> None:
    task = bundle.tasks[0]
    done = run("show", bundle_dir, task.id)
    assert done.code == 0
    folded = " ".join(done.out.split())
    assert task.instruction in folded and f"closing: {task.closing}" in folded
    for step in task.reference:
        if step.kind == "call":
            assert f"{step.tool} {json.dumps(step.arguments, ensure_ascii=False)}" in folded
    assert all(gate in done.out for gate in ("replay", "noop", "mutants"))


def test_unknown_task(run, bundle_dir: Path) -> None:
    done = run("show", bundle_dir, "museum-9999")
    assert done.code == 2 and done.err.startswith("error: no task 'museum-9999'")


# -------------------------------------------------------------------------------- play
def lines(task: Task) -> list[str]:
    """The reference as a person would type it."""
    typed = [f"{s.tool} {json.dumps(s.arguments)}" if s.kind == "call" else s.text for s in task.reference]
    return [*typed, task.closing]


def test_play_the_reference_succeeds(run, bundle_dir: Path, bundle: Bundle) -> None:
    for task in bundle.tasks:
        done = run("play", bundle_dir, task.id, stdin="\n".join(lines(task)) + "\n")
        assert done.code == 0
        assert f"user: {task.instruction}" in done.out
        assert "the episode ended: user_done" in done.out and "verdict: success" in done.out


def test_play_commands(run, bundle_dir: Path, bundle: Bundle) -> None:
    task = bundle.tasks[0]
    calls = ("listSpecialEvents limit=1", "listSpecialEvents limit", "listSpecialEvents {oops")
    typed = "\n".join(["help", "tools", "state", "", *calls, "quit", ""])
    done = run("play", bundle_dir, task.id, stdin=typed)
    assert done.code == 0
    assert done.out.count("tool: ") == 2  # the call without a value never reached the environment
    assert "'limit' is no key=value" in done.out and "not valid JSON" in done.out
    assert "nothing has changed" in done.out and "verdict: failure" in done.out
    results = [line.removeprefix("tool: ") for line in done.out.splitlines() if line.startswith("tool: ")]
    assert len(json.loads(results[0])) == 1


def test_play_calls_a_tool_that_does_not_exist(run, bundle_dir: Path, bundle: Bundle) -> None:
    """A slip in a tool's name is no speech to the user, which would end the episode."""
    slip = bundle.tools[0].name + "x"
    done = run("play", bundle_dir, bundle.tasks[0].id, stdin=f"{slip} {{}}\n")
    assert f"unknown tool '{slip}'" in done.out and "the episode ended" not in done.out


def test_play_ends_with_the_input(run, bundle_dir: Path, bundle: Bundle) -> None:
    done = run("play", bundle_dir, bundle.tasks[0].id, stdin="")
    assert done.code == 0 and "verdict: failure" in done.out


def test_state_changes() -> None:
    before = {"a": {"1": {"x": 1, "y": "b"}, "2": {"x": 2}, "4": {"x": 4}}, "b": {}}
    after = {"a": {"1": {"x": 1.0, "z": [1]}, "3": {"x": 3}, "4": {"x": 4}}, "b": {}}
    assert state_changes(before, after) == [
        ("a", "1", "x: 1 -> 1.0, y removed, z set to [1]"),
        ("a", "2", "deleted"),
        ("a", "3", 'created {"x": 3}'),
    ]


def test_interrupt(run, monkeypatch: pytest.MonkeyPatch, examples_dir: Path) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("envgen.tooldocs.read_tool_doc", interrupted)
    done = run("lint", examples_dir / "museum_openapi31.yaml")
    assert (done.code, done.err.strip()) == (130, "error: interrupted")
