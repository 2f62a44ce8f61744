"""The only door: its names are pinned, each of them is there, and it can be used as its docstring says."""

from __future__ import annotations

from pathlib import Path

from envgen import interface
from envgen.store import write_bundle
from tests.envgen.mock_domain import mock_bundle

PINNED = {
    "FAULT_KINDS",
    "NO_ERROR",
    "AgentTool",
    "Bundle",
    "BundleError",
    "DocumentError",
    "Env",
    "EnvLimits",
    "EnvgenError",
    "FaultKind",
    "FieldDifference",
    "IsolationError",
    "JudgeSettings",
    "JudgedEpisode",
    "KindRow",
    "Message",
    "ReferenceStep",
    "RefusedDocument",
    "StepResult",
    "StopReason",
    "SynthesisReport",
    "Task",
    "TaskError",
    "ToolCall",
    "ToolError",
    "ToolFailureSettings",
    "ToolFailures",
    "User",
    "UserError",
    "UserErrorHook",
    "UserFact",
    "UserMaker",
    "UserReply",
    "UserSettings",
    "UserVerdict",
    "Verdict",
    "WorkerLimits",
    "isolation_report",
    "false_alarm_rate",
    "judge_rows",
    "load_bundle",
    "make_judge",
    "measure_judge",
    "open_env",
    "read_sentences",
    "read_tool_doc",
    "step_all",
    "synthesize",
    "user_maker",
    "write_bundle",
}


def test_the_public_names_are_pinned() -> None:
    assert set(interface.__all__) == PINNED
    assert all(hasattr(interface, name) for name in PINNED)


def test_a_bundle_is_played_through_the_interface_alone(tmp_path: Path) -> None:
    write_bundle(mock_bundle(), tmp_path / "notes")
    bundle = interface.load_bundle(tmp_path / "notes")
    env = interface.open_env(bundle, bundle.task("notes-1"), seed=0, limits=interface.EnvLimits(max_turns=4))
    assert [m.role for m in env.start()] == ["user"]
    call = interface.ToolCall(id="1", name="update_note", arguments='{"note_id": "N11", "priority": 5}')
    result = env.step(interface.Message(role="assistant", tool_calls=(call,)))
    assert not result.done
    end = env.step(interface.Message(role="assistant", content="Done."))
    assert end.stop_reason is interface.StopReason.USER_DONE
    assert env.verdict() == interface.Verdict(success=True, partial_credit=1.0)
