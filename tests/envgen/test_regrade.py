"""Stored trajectories are judged again: same verdicts today, and what moved or diverged is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgen.cli import main
from envgen.errors import TaskError
from envgen.runtime.env import open_env
from envgen.runtime.regrade import Regraded, read_trajectories, regrade, summary
from envgen.store import Bundle, environment_identity, write_bundle
from envgen.types import EnvLimits, Message, ToolCall
from tests.envgen.mock_domain import initial_state, mock_bundle

BUNDLE = mock_bundle()


def act(*calls: tuple[str, Any]) -> Message:
    return Message(
        role="assistant",
        tool_calls=tuple(ToolCall(id="same", name=n, arguments=json.dumps(a)) for n, a in calls),
    )


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def played(task_id: str, *actions: Message, seed: int = 0, **more: Any) -> dict[str, Any]:
    """An episode as a row of a trajectories file."""
    limits = EnvLimits(max_tool_calls=3)
    env = open_env(BUNDLE, BUNDLE.task(task_id), seed=seed, limits=limits)
    env.start()
    for action in actions:
        env.step(action)
    messages = [m.model_dump(mode="json", exclude={"tool_call_id"}) for m in env.transcript]
    for message in messages:
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "id"} for c in message["tool_calls"]]
    return {
        "task_id": task_id, "environment": "notes", "seed": seed, "messages": messages,
        "success": env.verdict().success, "tokens": 12, **more,
    }  # fmt: skip


UPDATE = act(("update_note", {"note_id": "N11", "priority": 5}))
CREATE = act(("create_note", {"notebook_id": "NB2", "title": "Slides", "priority": 3}))


def judged(bundle: Bundle, *rows: dict[str, Any]) -> list[Regraded]:
    return list(regrade(bundle, read_trajectories([json.dumps(r) for r in rows], "rows.jsonl")))


def test_verdicts_of_today_are_those_that_were_stored() -> None:
    rows = [
        played("notes-1", UPDATE, say("Done.")),
        played("notes-1", say("Done.")),
        played("notes-2", CREATE, say("Done.")),
        played("notes-2", CREATE, say("Done."), seed=7),
        played("notes-2", act(("create_note", {"notebook_id": "NB9", "title": "x"})), CREATE),
        played("notes-1", act(("list_notebooks", {}), ("nope", {}), ("get_note", 5), ("delete_note", {}))),
        played("notes-3", say("Which title has it?"), act(("delete_note", {"note_id": "N12"}))),
    ]  # fmt: skip
    results = judged(BUNDLE, *rows)
    assert [r.verdict.success for r in results if r.verdict] == [True, False, True, True, True, False, True]
    assert not any(r.moved or r.diverged or r.skipped for r in results)
    assert summary(results) == {
        "judged": 7, "stored": 7, "success_then": 5, "success_now": 5, "moved": 0, "diverged": 0,
        "skipped": {},
    }  # fmt: skip


def test_a_call_that_was_never_carried_out_is_not_played() -> None:
    """The budget ended the first before its last call; the second wrote no call at all."""
    full = act(("list_notebooks", {}), ("list_notebooks", {}), ("list_notebooks", {}))
    row = played(
        "notes-1", act(*[(c.name, {}) for c in full.tool_calls], ("delete_note", {"note_id": "N11"}))
    )
    assert judged(BUNDLE, row)[0].diverged == ""
    broken = Message(role="assistant", tool_calls=(ToolCall(id="x", name="", parse_error="no call"),))
    assert judged(BUNDLE, played("notes-1", broken, UPDATE))[0].verdict == open_verdict(UPDATE)


def open_verdict(action: Message) -> Any:
    env = open_env(BUNDLE, BUNDLE.task("notes-1"))
    env.start()
    env.step(action)
    return env.verdict()


def test_a_failure_that_was_injected_then_has_no_effect_now() -> None:
    row = played("notes-1", UPDATE, UPDATE)
    observation = next(m for m in row["messages"] if m["role"] == "tool")
    observation["content"] = '{"error":"timeout, try again"}'
    result = judged(BUNDLE, row)[0]
    assert result.verdict is not None and result.verdict.success
    assert 'answered \'{"error":"timeout, try again"}\'' in result.diverged
    only = played("notes-1", UPDATE)
    only["messages"][-1]["content"] = '{"error":"timeout, try again"}'
    failed = judged(BUNDLE, only)[0]
    assert failed.verdict is not None and not failed.verdict.success and failed.moved
    ids = played("notes-2", CREATE, CREATE)  # the refused first call must not use up an id
    key = json.loads(ids["messages"][2]["content"])["id"]
    ids["messages"][2]["content"] = '{"error":"timeout"}'
    ids["messages"][4]["content"] = ids["messages"][4]["content"].replace(
        json.loads(ids["messages"][4]["content"])["id"], key
    )
    assert judged(BUNDLE, ids)[0].diverged.startswith("call 1 ")
    assert judged(BUNDLE, ids)[0].verdict == judged(BUNDLE, played("notes-2", CREATE))[0].verdict


def test_a_changed_goal_moves_verdicts_and_names_them() -> None:
    goal = initial_state()
    goal["notes"]["N11"]["priority"] = 4
    harder = BUNDLE.task("notes-1").model_copy(update={"accepted_states": (goal,)})
    other = replace(BUNDLE, tasks=(harder, *BUNDLE.tasks[1:]))
    result = judged(other, played("notes-1", UPDATE))[0]
    assert result.moved and result.verdict is not None
    assert [(d.field, d.expected, d.got) for d in result.verdict.differences] == [("priority", 4, 5)]


def test_a_changed_tool_is_named() -> None:
    source = BUNDLE.source.replace('return {"deleted": note_id}', 'return {"gone": note_id}')
    changed = replace(BUNDLE, source=source)
    result = judged(changed, played("notes-1", act(("delete_note", {"note_id": "N12"})), UPDATE))[0]
    assert result.diverged == ('call 1 (delete_note) answered \'{"deleted":"N12"}\', now \'{"gone":"N12"}\'')
    broken = replace(BUNDLE, source=BUNDLE.source.replace('return {"deleted": note_id}', "return 1 / 0"))
    assert (
        "breaks now"
        in judged(broken, played("notes-1", act(("delete_note", {"note_id": "N12"}))))[0].diverged
    )


def test_rows_that_are_not_judged_say_why() -> None:
    results = judged(
        BUNDLE,
        played("notes-1", UPDATE, excluded="policy_error"),
        {**played("notes-1", UPDATE), "environment": "museum"},
        {**played("notes-1", UPDATE), "environment_id": "notes-00000000"},
    )
    assert [r.skipped for r in results] == ["policy_error", "other environment", "other environment"]
    assert all(r.verdict is None and not r.moved for r in results)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "rows.jsonl, line 2: the line: Invalid JSON"),
        ('{"messages": []}', "line 2: task_id: Field required"),
        ('{"task_id": "notes-1", "messages": [{"content": "x"}]}', r"messages\.0\.role: Field required"),
        ('{"task_id": "ghost", "messages": []}', "line 2: no task 'ghost'"),
        ('{"task_id": "notes-1", "messages": [{"role": "critic"}]}', "a stored message cannot be read"),
    ],
)  # fmt: skip
def test_a_bad_line_is_an_error_that_names_it(line: str, words: str) -> None:
    lines = [json.dumps(played("notes-1", UPDATE)), line]
    with pytest.raises(TaskError, match=words):
        list(regrade(BUNDLE, read_trajectories(lines, "rows.jsonl")))


# ---------------------------------------------------------------- command line
def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return int(stop.value.code or 0)


def test_the_command_prints_what_moved_and_writes_every_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bundle(BUNDLE, tmp_path / "notes")
    rows = tmp_path / "rows.jsonl"
    good = [
        played("notes-1", UPDATE),
        played("notes-1", say("Done.")),
        {**played("notes-1"), "excluded": "x"},
    ]
    rows.write_text("\n".join(map(json.dumps, good)) + "\n\n")
    assert command("regrade", tmp_path / "notes", rows, "-o", tmp_path / "out.jsonl") == 0
    said = capsys.readouterr().out
    assert "2 judged, 1 succeed" in said and "0 moved" in said and "1 skipped: x" in said
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(o["line"], o["stored"], o["skipped"]) for o in out] == [
        (1, True, ""),
        (2, False, ""),
        (3, False, "x"),
    ]
    assert out[1]["verdict"]["differences"][0]["field"] == "priority"
    assert {p.name for p in tmp_path.iterdir()} == {"notes", "rows.jsonl", "out.jsonl"}

    rows.write_text(json.dumps({**played("notes-1", UPDATE), "success": False}) + "\n")
    assert command("regrade", tmp_path / "notes", rows) == 1
    assert "failure then, success now" in capsys.readouterr().out
    rows.write_text(json.dumps({**played("notes-1", UPDATE), "environment": "other"}) + "\n")
    assert command("regrade", tmp_path / "notes", rows) == 2
    assert "none of its 1 trajectories" in capsys.readouterr().err
    assert command("regrade", tmp_path / "notes", tmp_path / "absent.jsonl") == 2


def test_the_identity_of_the_mock_bundle_is_the_one_in_its_rows() -> None:
    row = {**played("notes-1", UPDATE), "environment_id": environment_identity(BUNDLE)}
    assert judged(BUNDLE, row)[0].skipped == ""
