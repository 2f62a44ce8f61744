"""Injected tool failures: seeded, bounded, and without a trace in the grade of an agent that calls again."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from envgen.runtime.env import Env, open_env
from envgen.runtime.failures import KINDS, FailureRates, ToolFailures, ToolFailureSettings
from envgen.types import EnvLimits, Message, StopReason, Task, ToolCall
from tests.envgen.mock_domain import mock_bundle

BUNDLE = mock_bundle()
MIXED = ToolFailureSettings(timeout=0.15, transient=0.15, rate_limit=0.1, partial=0.2, slow=0.1)


def opened(
    task: Task, settings: ToolFailureSettings, seed: int, limits: EnvLimits | None = None
) -> tuple[Env, ToolFailures, list[float]]:
    slept: list[float] = []
    failures = ToolFailures(settings, BUNDLE.name, seed, sleep=slept.append)
    env = open_env(BUNDLE, task, limits=limits, failures=failures)
    env.start()
    return env, failures, slept


def persistent(env: Env, task: Task) -> None:
    """Plays the reference; a call that failed, or came back in part, is made again."""
    for step in task.reference:
        if step.kind == "ask":
            env.step(Message(role="assistant", content=step.text))
            continue
        call = ToolCall(id="c", name=step.tool, arguments=json.dumps(step.arguments))
        for _ in range(MIXED.max_in_a_row + 1):
            result = env.step(Message(role="assistant", tool_calls=(call,)))
            answer: Any = json.loads(result.observations[0].content)
            failed = isinstance(answer, dict) and ("partial" in answer or "again" in str(answer.get("error")))
            if not failed:
                break
    env.step(Message(role="assistant", content=task.closing))


@pytest.mark.parametrize("task", BUNDLE.tasks, ids=lambda t: t.id)
def test_an_agent_that_calls_again_gets_the_same_grade_and_the_same_state(task: Task) -> None:
    plain, _, _ = opened(task, ToolFailureSettings(), 0)
    persistent(plain, task)
    struck: Counter[str] = Counter()
    steps = len(task.reference)
    exact = EnvLimits(max_turns=steps + 1, max_tool_calls=steps, max_tool_errors=0)
    for seed in range(120):
        env, failures, slept = opened(task, MIXED, seed, exact)
        persistent(env, task)
        assert (env.stop_reason, env.verdict().success) == (StopReason.USER_DONE, True)
        assert (env.tool_calls, env.tool_errors) == (plain.tool_calls, 0)
        kinds = [s.kind for s in failures.struck]
        assert len(slept) == kinds.count("slow")
        if "partial" not in kinds:  # a part is the answer of a call that ran, which moves the clock
            assert env.state.snapshot() == plain.state.snapshot()
        struck.update(kinds)
    assert set(struck) >= {"timeout", "transient", "rate_limit", "slow"}
    assert ("partial" in struck) == any(s.tool.startswith("list") for s in task.reference)


def test_a_run_is_a_function_of_its_seed() -> None:
    def run(seed: int) -> tuple[object, ...]:
        env, failures, _ = opened(BUNDLE.tasks[0], MIXED, seed)
        persistent(env, BUNDLE.tasks[0])
        return (env.transcript, tuple(failures.struck))

    assert run(3) == run(3)
    assert len({str(run(seed)[1]) for seed in range(20)}) > 5


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("slow", "partial")])
def test_a_failed_call_is_not_run(kind: str) -> None:
    settings = ToolFailureSettings.model_validate({kind: 1.0, "max_in_a_row": 3, "max_per_episode": 5})
    env, failures, _ = opened(BUNDLE.task("notes-1"), settings, 0)
    before = env.state.snapshot()
    call = ToolCall(id="c", name="delete_note", arguments='{"note_id": "N11"}')
    results = [env.step(Message(role="assistant", tool_calls=(call,))) for _ in range(3)]
    assert all("nothing was changed" in r.observations[0].content and r.tool_errors == 0 for r in results)
    assert env.state.snapshot() == before and env.tool_calls == 0
    env.step(Message(role="assistant", tool_calls=(call,)))
    assert env.state.snapshot() != before and env.tool_calls == 1
    for _ in range(6):
        env.step(Message(role="assistant", tool_calls=(ToolCall(id="c", name="list_notebooks"),)))
    assert len(failures.struck) == 5


def test_a_part_says_how_much_is_missing() -> None:
    env, _, _ = opened(BUNDLE.task("notes-1"), ToolFailureSettings(partial=1.0, max_in_a_row=1), 0)
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", name="list_notebooks"),))
    part, whole = (json.loads(env.step(call).observations[0].content) for _ in range(2))
    assert part["partial"] is True and (part["received"], part["of"]) == (len(whole) // 2, len(whole))
    assert part["result"] == whole[: len(whole) // 2] and "call again" in part["message"]
    assert env.tool_calls == 1


def test_rates_by_environment() -> None:
    settings = ToolFailureSettings(timeout=1.0, environments={BUNDLE.name: FailureRates()})
    env, failures, _ = opened(BUNDLE.tasks[0], settings, 0)
    persistent(env, BUNDLE.tasks[0])
    assert failures.struck == [] and settings.of("other").total == 1.0


def test_rates_above_one_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"add up to 1\.2, expected at most 1"):
        ToolFailureSettings(timeout=0.7, slow=0.5)
