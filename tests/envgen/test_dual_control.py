"""Dual control: the user holds tools of its own over the same state, and uses them when asked in words."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from envgen.errors import BundleError, TaskError
from envgen.runtime.env import Env, open_env
from envgen.runtime.grader import grader_of
from envgen.runtime.isolation.capabilities import capabilities
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.regrade import read_trajectories, regrade
from envgen.runtime.shared import make_runtime
from envgen.store import Bundle, environment_identity, load_bundle, write_bundle
from envgen.synthesis.bench import workbench
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import Prover, draft_of, replay_results, validate
from envgen.synthesis.pipeline import make_bundle
from envgen.synthesis.replay import replay_task
from envgen.types import EnvLimits, StopReason
from envgen.users.actions import ALREADY, DONE, FAILED, requested
from envgen.users.faults import FaultInjectedUser
from envgen.users.port import UserReply
from envgen.users.rules import judge_by_rules
from tests.envgen.dual_domain import ASK, call, dual_bundle, say
from tests.envgen.mock_domain import DOC, mock_draft

NO_SPLITS: dict[str, tuple[str, ...]] = {"train": (), "heldout": ()}


def opened() -> Env:
    bundle = dual_bundle()
    env = open_env(bundle, bundle.tasks[0])
    env.start()
    return env


def test_the_user_acts_when_asked_in_words_and_tells_the_result() -> None:
    env = opened()
    result = say(env, ASK)
    assert [m.role for m in result.observations] == ["user"]
    assert result.observations[0].content == f"{DONE} It says: deleted N12."
    assert not env.state.exists("notes", "N12")
    assert (env.tool_calls, env.tool_errors) == (0, 0)  # the agent's budget is not touched
    assert not env.verdict().success  # the agent's own change is missing
    call(env, "update_note", note_id="N11", priority=5)
    assert say(env, "Done.").stop_reason is StopReason.USER_DONE
    assert env.verdict().success
    assert not judge_by_rules(env.task, env.transcript).error


def test_the_grade_counts_both_sides() -> None:
    env = opened()
    call(env, "update_note", note_id="N11", priority=5)
    assert say(env, "Done.").done
    verdict = env.verdict()
    assert not verdict.success and [d.key for d in verdict.differences] == ["N12"]
    assert verdict.partial_credit == pytest.approx(0.5)


@pytest.mark.parametrize(
    "text",
    [
        "Please delete the note N12.",  # no question
        "Shall I delete the note N12?",  # an offer
        "Could you delete the note?",  # names no record
        "Could you delete the note N13?",  # another one
        "Could you delete the note N121?",
        "Could you look at the note N12?",  # not what it can do
    ],
)
def test_what_does_not_make_the_user_act(text: str) -> None:
    env = opened()
    say(env, text)
    assert env.state.exists("notes", "N12")


def test_an_action_is_carried_out_once() -> None:
    env = opened()
    say(env, ASK)
    before = env.state_hash()
    assert say(env, ASK).observations[0].content == ALREADY
    assert env.state_hash() == before


def test_a_refused_action_is_told_and_can_be_asked_for_again() -> None:
    bundle = dual_bundle()
    action = bundle.tasks[0].user_actions[0].model_copy(update={"arguments": {"note_id": "N77"}})
    task = bundle.tasks[0].model_copy(update={"user_actions": (action,)})
    env = open_env(bundle, task)
    env.start()
    for _ in range(2):
        said = say(env, "Could you delete N77?").observations[0].content
        assert said == f"{FAILED} no note N77"
    assert env.stop_reason is None and env.state.delta().empty


def test_each_side_has_a_closed_table() -> None:
    env = opened()
    refused = call(env, "delete_note", note_id="N12")
    assert refused.tool_errors == 1 and "unknown tool" in refused.observations[0].content
    assert env.state.exists("notes", "N12")
    bundle = dual_bundle()
    stolen = bundle.tasks[0].user_actions[0].model_copy(update={"tool": "update_note"})
    task = bundle.tasks[0].model_copy(update={"user_actions": (stolen,)})
    with pytest.raises(BundleError, match="update_note"):
        write_bundle(replace(bundle, tasks=(task,)), Path("never-written"))
    both = replace(bundle, tools=(*bundle.tools, *bundle.user_tools), tasks=(), splits=NO_SPLITS)
    both = replace(both, environment_id=environment_identity(both))
    with pytest.raises(BundleError, match="delete_note"):
        write_bundle(both, Path("never-written"))


def test_the_users_tools_run_in_the_same_isolation() -> None:
    if not capabilities().contained:
        pytest.skip("this machine cannot contain functions that are not vetted")
    bundle = dual_bundle()
    task = bundle.tasks[0]
    runtime = make_runtime(bundle, WorkerLimits())
    assert runtime.pool is not None
    env = Env(runtime, grader_of(task, bundle.state_schema), task, 0, EnvLimits(), None)
    env.start()
    assert "unknown tool" in call(env, "delete_note", note_id="N12").observations[0].content
    assert say(env, ASK).observations[0].content == f"{DONE} It says: deleted N12."
    twin = env.fork()
    call(env, "update_note", note_id="N11", priority=5)
    assert env.verdict().success and not twin.verdict().success


def test_a_broken_user_tool_ends_the_episode_as_an_environment_fault() -> None:
    bundle = dual_bundle()
    source = bundle.source.replace('state.delete("notes", note_id)', "1 // 0")
    broken = replace(bundle, source=source)
    env = Env(
        make_runtime(broken, WorkerLimits() if capabilities().contained else None),
        grader_of(bundle.tasks[0], bundle.state_schema),
        bundle.tasks[0],
        0,
        EnvLimits(),
        None,
    )
    env.start()
    result = say(env, ASK)
    assert result.stop_reason is StopReason.ENV_ERROR and "delete_note" in env.defect


def test_forks_do_not_share_what_was_done() -> None:
    env = opened()
    before = env.snapshot()
    say(env, ASK)
    env.restore(before)
    assert env.state.exists("notes", "N12")
    assert say(env, ASK).observations[0].content.startswith(DONE)


def test_regrading_does_the_users_part_again() -> None:
    bundle = dual_bundle()
    env = opened()
    say(env, ASK)
    say(env, ASK)
    call(env, "update_note", note_id="N11", priority=5)
    say(env, "Done.")
    messages = [
        {
            "role": m.role,
            "content": m.content,
            "tool_calls": [{"name": c.name, "arguments": c.arguments} for c in m.tool_calls],
        }
        for m in env.transcript
    ]
    line = json.dumps({"task_id": "dual-1", "messages": messages, "success": True})
    (row,) = regrade(bundle, read_trajectories([line], "here"))
    assert row.verdict is not None and row.verdict.success and not row.moved and not row.diverged
    messages[2]["content"] = f"{DONE} It says: deleted N13."
    line = json.dumps({"task_id": "dual-1", "messages": messages, "success": True})
    (other,) = regrade(bundle, read_trajectories([line], "here"))
    assert "delete_note" in other.diverged


def test_users_that_keep_the_conversation_hear_of_it() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[str, str]] = []

        def opening(self) -> str:
            return "Hello."

        def reply(self, message: str) -> UserReply:
            return UserReply("", done=True)

        def note_action(self, asked: str, said: str) -> None:
            self.heard.append((asked, said))

    bundle = dual_bundle()
    listener = Listener()
    task = bundle.tasks[0]
    env = open_env(bundle, task, user=FaultInjectedUser(listener, task, "silence"))
    env.start()
    answer = say(env, ASK).observations[0].content
    assert listener.heard == [(ASK, answer)]


def test_of_two_actions_the_one_that_is_named_is_done() -> None:
    action = dual_bundle().tasks[0].user_actions[0]
    actions = (action, action.model_copy(update={"arguments": {"note_id": "N13"}}))
    assert requested(actions, "Could you delete N13?", ()) == 1
    assert requested(actions, "Could you delete N12 and N13?", ()) == 0
    assert requested(actions, "Could you delete N12 and N13?", {0}) == 1
    assert requested(actions, "Could you delete N12?", {0}) == 0  # asked again
    assert requested(actions, "Could you delete them?", ()) is None


# ----------------------------------------------------------------------------------------------- bundles
def test_a_bundle_keeps_its_user_tools(tmp_path: Path) -> None:
    bundle = dual_bundle()
    write_bundle(bundle, tmp_path / "dual")
    assert (tmp_path / "dual" / "user_tools.json").is_file()
    loaded = load_bundle(tmp_path / "dual")
    assert (loaded.user_tools, loaded.tasks) == (bundle.user_tools, bundle.tasks)
    assert loaded.content_hash == bundle.content_hash
    assert replay_task(loaded, loaded.tasks[0])[1]


def test_a_bundle_without_is_written_as_before(tmp_path: Path) -> None:
    plain = make_bundle(DOC, mock_draft(), tasks=3, heldout=1, seed=1)
    write_bundle(plain, tmp_path / "plain")
    assert not (tmp_path / "plain" / "user_tools.json").exists()
    row = json.loads((tmp_path / "plain" / "tasks.jsonl").read_text().splitlines()[0])
    assert list(row)[-2:] == ["constraints", "traits"]
    assert "user_tools" not in plain.manifest and "confirm_writes" not in plain.manifest


@cache
def synthesised() -> Bundle:
    return make_bundle(DOC, mock_draft(), tasks=10, heldout=2, seed=2, user_tools=["delete_note", "create"])


def test_synthesised_tasks_pass_every_gate() -> None:
    bundle = synthesised()
    assert {t.name for t in bundle.user_tools} == {"create_note", "delete_note"}
    assert "Only the user can create note or delete note" in bundle.policy
    assert bundle.environment_id != make_bundle(DOC, mock_draft(), tasks=1, heldout=0, seed=2).environment_id
    acting = [t for t in bundle.tasks if t.user_actions]
    assert acting and all(c.certified for c in validate(bundle))
    for task in acting:
        assert [s.tool for s in task.reference if s.kind == "act"] == [a.tool for a in task.user_actions]
    again = make_bundle(DOC, mock_draft(), tasks=10, heldout=2, seed=2, user_tools=["delete_note", "create"])
    assert again.content_hash == bundle.content_hash


def test_the_gates_see_through_spoilt_tasks() -> None:
    bundle = synthesised()
    prover = Prover(workbench(build_catalog(draft_of(bundle)), bundle.environment_id, 2))
    task = next(t for t in bundle.tasks if t.user_actions)
    kept = tuple(s for s in task.reference if s.kind != "act")
    left_out = task.model_copy(update={"reference": kept})
    assert not all(g.passed for g in prover.gates(left_out))
    needless = task.model_copy(update={"accepted_states": (task.initial_state, *task.accepted_states)})
    assert prover.gates(needless)[0].gate == "noop"
    deaf = task.model_copy(update={"user_actions": ()})
    spoilt = replace(bundle, tasks=(deaf,), splits={"train": (deaf.id,), "heldout": ()}, certificates=())
    assert not replay_results(spoilt)[deaf.id].passed


def test_options_that_name_nothing_are_refused() -> None:
    with pytest.raises(TaskError, match=r"'list_notes'.*delete_note"):
        make_bundle(DOC, mock_draft(), tasks=1, heldout=0, seed=1, user_tools=["list_notes"])
    with pytest.raises(TaskError, match="held by the user"):
        make_bundle(
            DOC, mock_draft(), tasks=1, heldout=0, seed=1, user_tools=["delete"], confirm_writes=["delete"]
        )
