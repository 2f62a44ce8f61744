"""One episode from the outside: conversations, errors, budgets, endings, independence of episodes, same
bytes everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import BundleError, EnvUsageError, TaskError, ToolDefect
from envgen.runtime.context import ToolContext
from envgen.runtime.env import Env, open_env
from envgen.runtime.shared import runtime_of
from envgen.runtime.state import State
from envgen.runtime.tools import compile_tools, run_tool
from envgen.store import Bundle, environment_identity
from envgen.types import AgentTool, EnvLimits, Message, StopReason, Task, ToolCall
from envgen.users.port import UserVerdict
from envgen.users.scripted import GO_ON, NOTHING_TO_ADD
from tests.envgen.mock_domain import initial_state, mock_bundle

BUNDLE = mock_bundle()


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(name: str, arguments: Any = None, call_id: str = "c1") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(id=call_id, name=name, arguments=text)


def act(*calls: ToolCall, content: str = "") -> Message:
    return Message(role="assistant", tool_calls=calls, content=content)


def begun(number: int = 1, **options: Any) -> Env:
    env = open_env(BUNDLE, BUNDLE.task(f"notes-{number}"), **options)
    env.start()
    return env


def answer(env: Env, name: str, arguments: Any = None) -> Any:
    return json.loads(env.step(act(call(name, arguments))).observations[0].content)


def reference_actions(task: Task) -> list[Message]:
    steps = [say(s.text) if s.kind == "ask" else act(call(s.tool, s.arguments)) for s in task.reference]
    return [*steps, say(task.closing)]


# ---------------------------------------------------------------- whole
# episodes
def test_a_conversation_word_for_word() -> None:
    env = open_env(BUNDLE, BUNDLE.task("notes-3"))
    assert env.start() == (
        Message(role="user", content="Please delete one of the notes in the notebook Home."),
    )
    asked = env.step(say("What is the title of the note?"))
    assert asked.observations == (Message(role="user", content="The title of the note is Bread."),)
    assert not asked.done
    found = env.step(
        act(call("list_notes", {"notebook_id": "NB1", "max_priority": 3}, "call-9"), content="Looking.")
    )
    assert found.observations == (
        Message(
            role="tool",
            tool_call_id="call-9",
            name="list_notes",
            content='[{"id":"N11","title":"Milk","priority":2},{"id":"N13","title":"Plants","priority":3}]',
        ),
    )
    both = env.step(
        act(call("delete_note", {"note_id": "N12"}, "a"), call("get_note", {"note_id": "N12"}, "b"))
    )
    assert [(m.tool_call_id, m.content) for m in both.observations] == [
        ("a", '{"deleted":"N12"}'),
        ("b", '{"error":"no note N12"}'),
    ]
    assert both.tool_errors == 1
    last = env.step(say("Deleted."))
    assert (last.observations, last.stop_reason, last.done) == ((), StopReason.USER_DONE, True)
    assert env.verdict().success
    assert [m.role for m in env.transcript] == [
        *("user", "assistant", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant")
    ]
    assert (env.turns, env.tool_calls, env.tool_errors) == (4, 3, 1)


@pytest.mark.parametrize("seed", [0, 1, 2, 99])
@pytest.mark.parametrize("task", BUNDLE.tasks, ids=lambda t: t.id)
def test_the_reference_succeeds_under_any_seed_and_doing_nothing_fails(task: Task, seed: int) -> None:
    env = open_env(BUNDLE, task, seed=seed)
    env.start()
    for action in reference_actions(task):
        result = env.step(action)
    assert result.stop_reason is StopReason.USER_DONE
    assert env.tool_errors == 0 and env.verdict().success
    idle = open_env(BUNDLE, task, seed=seed)
    idle.start()
    assert idle.step(say("Done.")).done
    assert not idle.verdict().success


def test_a_new_record_has_the_hand_worked_fields_and_seeds_vary_its_id() -> None:
    ids: set[str] = set()
    for seed in range(6):
        made = answer(begun(2, seed=seed), "create_note", {"notebook_id": "NB2", "title": "Slides"})
        ids.add(made.pop("id"))
        assert made == {
            "notebook_id": "NB2",
            "title": "Slides",
            "priority": 1,
            "created_at": "2026-03-02T09:01:00",
        }
    assert len(ids) > 3 and not ids & set(initial_state()["notes"])


# ---------------------------------------------------------------- bad
# calls
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("list_notes", "{", "not valid JSON"),
        ("list_notes", "[1]", "must be a JSON object, got array"),
        ("list_notes", '"NB1"', "must be a JSON object, got string"),
        ("list_notes", "null", "must be a JSON object, got null"),
        ("list_notes", "{}", "missing required argument 'notebook_id'"),
        ("list_notes", "", "missing required argument 'notebook_id'"),
        ("list_notes", '{"notebook_id": null}', "argument 'notebook_id'"),
        ("list_notes", '{"notebook_id": 1}', "argument 'notebook_id': 1 is not of type"),
        ("list_notes", '{"notebook_id": "NB1", "max_priority": "3"}', "argument 'max_priority'"),
        ("list_notes", '{"notebook_id": "NB1", "max_priority": 2.5}', "argument 'max_priority'"),
        ("list_notes", '{"notebook_id": "NB1", "max_priority": true}', "argument 'max_priority'"),
        (
            "list_notes",
            '{"notebook": "NB1"}',
            "unknown argument 'notebook'; arguments: max_priority, notebook_id",
        ),
        ("list_notes", '{"notebook_id": "NB7"}', "no notebook NB7"),
        ("list_note", "{}", "unknown tool 'list_note'; did you mean list_notes"),
        ("zzzzqq", "{}", "unknown tool 'zzzzqq'; tools: create_note, "),
        ("", "{}", "unknown tool ''"),
        ("\ud800", "{}", "unknown tool '?'"),
        ("update_note", '{"note_id": "N11", "priority": 1e300}', "out of range"),
        ("update_note", '{"note_id": "N11", "priority": 9007199254740993}', "out of range"),
        ("update_note", '{"note_id": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply"),
        ("update_note", '{"note_id": "\\ud800"}', "not valid JSON"),
        ("__class__", "{}", "unknown tool"),
        ("TOOLS", "{}", "unknown tool"),
    ],
)
def test_a_bad_call_is_an_observation_that_says_what_was_wrong(name: str, arguments: str, words: str) -> None:
    env = begun()
    result = env.step(act(call(name, arguments)))
    assert list(json.loads(result.observations[0].content)) == ["error"]
    assert words in json.loads(result.observations[0].content)["error"]
    assert (result.tool_errors, result.done, env.state.delta().empty) == (1, False, True)


def test_a_call_that_did_not_parse_is_answered_with_the_parse_error() -> None:
    env = begun()
    result = env.step(act(ToolCall(id="x", name="", parse_error="the call is not a JSON object with a name")))
    assert result.observations[0].content == '{"error":"the call is not a JSON object with a name"}'
    assert (env.tool_calls, env.tool_errors) == (1, 1)


def test_null_for_an_optional_argument_is_not_given_and_whole_floats_are_integers() -> None:
    env = begun()
    rows = answer(env, "list_notes", {"notebook_id": "NB1", "max_priority": None})
    assert len(rows) == 3
    assert answer(env, "update_note", '{"note_id": "N11", "priority": 5.0}')["priority"] == 5
    assert env.verdict().success
    assert type(env.state.get("notes", "N11")["priority"]) is int  # type: ignore[index]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20), st.text(max_size=30), st.text(max_size=10))
def test_no_text_of_an_agent_raises(name: str, arguments: str, content: str) -> None:
    env = begun(limits=EnvLimits(max_tool_errors=50))
    for tool in (name, "update_note"):
        env.step(act(call(tool, arguments), content=content))
    env.step(say(content))
    assert not env.verdict().success


# ---------------------------------------------------------------- endings
def test_turns_run_out() -> None:
    env = begun(limits=EnvLimits(max_turns=2))
    assert env.step(act(call("list_notebooks"))).stop_reason is None
    last = env.step(act(call("list_notebooks")))
    assert last.stop_reason is StopReason.MAX_TURNS and len(last.observations) == 1


def test_a_final_message_in_the_last_turn_is_user_done() -> None:
    env = begun(limits=EnvLimits(max_turns=1))
    assert env.step(say("Done.")).stop_reason is StopReason.USER_DONE


def test_a_call_beyond_the_budget_is_not_run_and_ends() -> None:
    env = begun(limits=EnvLimits(max_tool_calls=2))
    result = env.step(
        act(
            call("list_notebooks"), call("list_notebooks"), call("delete_note", {"note_id": "N11"}), call("x")
        )
    )
    assert result.stop_reason is StopReason.MAX_TOOL_CALLS
    assert len(result.observations) == 2 and env.tool_calls == 2
    assert env.state.delta().empty
    exact = begun(limits=EnvLimits(max_tool_calls=2))
    assert exact.step(act(call("list_notebooks"), call("list_notebooks"))).stop_reason is None
    assert exact.step(say("Done.")).stop_reason is StopReason.USER_DONE


def test_one_error_more_than_allowed_ends() -> None:
    env = begun(limits=EnvLimits(max_tool_errors=1))
    assert env.step(act(call("nope"))).stop_reason is None
    result = env.step(act(call("nope"), call("delete_note", {"note_id": "N11"})))
    assert result.stop_reason is StopReason.MAX_TOOL_ERRORS
    assert len(result.observations) == 1 and env.state.delta().empty


def test_an_empty_message_is_answered_once_and_counts_as_a_turn() -> None:
    env = begun()
    assert env.step(say("  ")).observations == (Message(role="user", content=GO_ON),)
    assert env.turns == 1
    assert env.step(say("Is it late?")).observations == (Message(role="user", content=NOTHING_TO_ADD),)
    assert env.step(say("")).stop_reason is StopReason.USER_DONE


def test_wrong_use_of_an_env_is_an_error() -> None:
    env = open_env(BUNDLE, BUNDLE.task("notes-1"))
    with pytest.raises(EnvUsageError, match="step before start"):
        env.step(say("hi"))
    env.start()
    with pytest.raises(EnvUsageError, match="single-use"):
        env.start()
    with pytest.raises(EnvUsageError, match="role 'user'"):
        env.step(Message(role="user", content="hi"))
    env.step(say("Done."))
    with pytest.raises(EnvUsageError, match="ended with user_done"):
        env.step(say("again"))
    with pytest.raises(EnvUsageError, match="ended with user_done"):
        env.close(StopReason.TIMEOUT)
    stranger = BUNDLE.task("notes-1").model_copy(update={"environment_id": "other-00000000"})
    with pytest.raises(TaskError, match="other-00000000"):
        open_env(BUNDLE, stranger)


def test_the_user_error_hook_sees_the_finished_transcript_once() -> None:
    seen: list[tuple[Message, ...]] = []

    def hook(task: Task, transcript: tuple[Message, ...]) -> UserVerdict:
        assert task.id == "notes-1"
        seen.append(transcript)
        return UserVerdict(True, "silence", "it said nothing", 2, "test")

    env = begun(user_error_hook=hook)
    env.step(act(call("list_notebooks")))
    assert seen == [] and env.user_error is False
    env.step(say("Done."))
    assert env.user_error is True and seen == [env.transcript]
    assert (env.user_verdict.kind, env.user_verdict.turn) == ("silence", 2)
    outside = begun(user_error_hook=hook)
    outside.close(StopReason.TOKEN_BUDGET)
    assert (outside.stop_reason, outside.user_error, len(seen)) == (StopReason.TOKEN_BUDGET, True, 2)


# ---------------------------------------------------------------- defects
def with_source(change: Callable[[str], str]) -> Bundle:
    draft = replace(BUNDLE, source=change(BUNDLE.source))
    identity = environment_identity(draft)
    tasks = tuple(t.model_copy(update={"environment_id": identity}) for t in BUNDLE.tasks)
    return replace(draft, environment_id=identity, tasks=tasks)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("state.insert('notes', 'N50', {}); return state.get('notes', note_id)['nope']", "KeyError"),
        ("state.insert('notes', 'N50', {}); return {1: [ctx]}", "TypeError"),
        ("state.delete('notes', note_id); return 1 / 0", "ZeroDivisionError"),
        ("state.insert('notes', note_id, {}); return 1", "KeyError"),
        ("state.records('ghosts'); return 1", "no collection 'ghosts'"),
        ("return 4 * 9223372036854775807", "Integer exceeds 64-bit range"),
    ],
)
def test_a_broken_tool_ends_with_env_error_and_changes_nothing(line: str, words: str) -> None:
    head = "def delete_note(state, ctx, note_id):\n"
    bundle = with_source(lambda s: s.replace(head, head + "    " + "\n    ".join(line.split("; ")) + "\n"))
    env = open_env(bundle, bundle.task("notes-1"))
    env.start()
    result = env.step(
        act(call("list_notebooks"), call("delete_note", {"note_id": "N11"}), call("list_notebooks"))
    )
    assert result.stop_reason is StopReason.ENV_ERROR
    assert len(result.observations) == 1
    assert "delete_note" in env.defect and words in env.defect
    assert env.state.delta().empty


def test_a_tool_that_says_no_half_way_leaves_the_state_as_it_was() -> None:
    head = "def delete_note(state, ctx, note_id):\n"
    body = (
        "    state.delete('notes', note_id)\n    ctx.new_id('notes')\n    raise ToolError('no, after all')\n"
    )
    bundle = with_source(lambda s: s.replace(head, head + body))
    outcomes: list[Any] = []
    for first in ("delete_note", "get_note"):
        env = open_env(bundle, bundle.task("notes-2"))
        env.start()
        observed = answer(env, first, {"note_id": "N11"})
        assert observed == {"error": "no, after all"} or observed["id"] == "N11"
        assert env.state.delta().empty
        outcomes.append(answer(env, "create_note", {"notebook_id": "NB2", "title": "x"}))
    assert outcomes[0] == outcomes[1]  # same id, same time: the failed call left no trace


def test_run_tool_gives_the_value_or_the_error() -> None:
    tools = runtime_of(BUNDLE).tools
    state = State(initial_state())
    ctx = ToolContext("2026-03-02T09:00:00", 1, runtime_of(BUNDLE).styles)
    value, is_error = run_tool(tools, BUNDLE.tools, state, ctx, "delete_note", {"note_id": "N12"})
    assert (value, is_error) == ({"deleted": "N12"}, False)
    value, is_error = run_tool(tools, BUNDLE.tools, state, ctx, "delete_note", {"note_id": "N12"})
    assert (value, is_error) == ("no note N12", True)
    with pytest.raises(ToolDefect, match="unexpected keyword"):
        wide = AgentTool(
            name="get_note", description="", parameters={"type": "object", "properties": {"x": {}}}
        )
        run_tool(tools, (wide,), state, ctx, "get_note", {"x": 1})


def test_tools_and_functions_must_be_the_same_set() -> None:
    bundle = with_source(lambda s: s.replace('    "get_note": get_note,\n', ""))
    with pytest.raises(BundleError, match=r"differ in get_note"):
        open_env(bundle, bundle.task("notes-1"))


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"type": "object", "properties": {"x": {"type": "strnig"}}},
    ],
)
def test_a_bad_parameter_schema_is_a_bundle_error_that_names_the_tool(parameters: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="'bad'"):
        compile_tools((AgentTool(name="bad", description="", parameters=parameters),))


def test_a_schema_cannot_make_us_read_a_file_or_a_page(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string"}')
    for uri in ((tmp_path / "s.json").as_uri(), "http://127.0.0.1:9/schema.json"):
        parameters = {"type": "object", "properties": {"x": {"$ref": uri}}}
        with pytest.raises(BundleError, match="references outside the schema are not followed"):
            compile_tools((AgentTool(name="bad", description="", parameters=parameters),))


# ---------------------------------------------------------------- independence
ACTIONS = st.sampled_from(
    [
        act(call("create_note", {"notebook_id": "NB1", "title": "A"})),
        act(
            call("create_note", {"notebook_id": "NB2", "title": "B"}), call("delete_note", {"note_id": "N11"})
        ),
        act(call("update_note", {"note_id": "N12", "priority": 1})),
        act(call("list_notes", {"notebook_id": "NB1"})),
        act(call("delete_note", {"note_id": "N12"})),
        say("What is the title?"),
        say(""),
    ]
)


def trace(env: Env, actions: list[Message]) -> list[Any]:
    out: list[Any] = []
    for action in actions:
        if env.stop_reason is None:
            out.append(env.step(action))
    return [*out, env.state.snapshot(), env.verdict(), env.transcript]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), ACTIONS), max_size=14))
def test_two_interleaved_episodes_equal_two_separate_ones(steps: list[tuple[bool, Message]]) -> None:
    bundle = mock_bundle()
    pair = {which: open_env(bundle, bundle.task("notes-2"), seed=int(which)) for which in (False, True)}
    together: dict[bool, list[Any]] = {False: [], True: []}
    for env in pair.values():
        env.start()
    for which, action in steps:
        if pair[which].stop_reason is None:
            together[which].append(pair[which].step(action))
    for which, env in pair.items():
        alone = open_env(BUNDLE, BUNDLE.task("notes-2"), seed=int(which))
        alone.start()
        expected = trace(alone, [a for w, a in steps if w == which])
        assert [*together[which], env.state.snapshot(), env.verdict(), env.transcript] == expected
    assert bundle.task("notes-2").initial_state == initial_state()


SCRIPT = """
import sys, time
from tests.envgen.test_env import *
for task in BUNDLE.tasks:
    for seed in (0, 5):
        env = open_env(BUNDLE, task, seed=seed)
        env.start()
        for action in reference_actions(task):
            env.step(action)
        sys.stdout.write(repr((env.transcript, env.state.snapshot(), env.verdict(), BUNDLE.content_hash)))
"""


def test_the_same_seed_gives_the_same_bytes_in_a_fresh_process_with_another_hash_seed() -> None:
    outs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "TZ": zone,
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            check=True,
        ).stdout
        for seed, zone in (("1", "UTC"), ("4242", "Asia/Tokyo"))
    }
    assert len(outs) == 1 and len(outs.pop()) > 1000


def test_arguments_may_be_written_as_a_dict() -> None:
    from envgen.types import ToolCall

    assert ToolCall(id="1", name="n", arguments={"a": [1, None]}).arguments == '{"a":[1,null]}'  # pyright: ignore[reportArgumentType]
    assert ToolCall(id="1", name="n", arguments="{ }").arguments == "{ }"
