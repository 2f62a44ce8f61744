"""Many episodes at once: the same results as one at a time, shared round trips, and nobody waits for or
pays for another: not for a hung tool, a dead worker, a slow user, an error."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import EnvUsageError, ToolDefect
from envgen.interface import step_all
from envgen.runtime.env import Env
from envgen.runtime.grader import grader_of
from envgen.runtime.isolation.batch import run_calls
from envgen.runtime.isolation.capabilities import capabilities
from envgen.runtime.isolation.episode import IsolatedCall
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.isolation.process import Worker, WorkerGone
from envgen.runtime.shared import EnvRuntime, make_runtime
from envgen.types import EnvLimits, Message, StepResult, StopReason, ToolCall
from envgen.users.port import NO_ERROR, User, UserError, UserReply
from tests.envgen.mock_domain import mock_bundle
from tests.envgen.test_isolation import CALLS, alone, with_tool

pytestmark = pytest.mark.skipif(
    not capabilities().contained, reason=f"this machine cannot contain tool code: {capabilities().lacking}"
)
BUNDLE = mock_bundle()
MANY = EnvLimits(max_turns=10_000, max_tool_calls=10_000, max_tool_errors=10_000)
INSIDE = make_runtime(BUNDLE, None)
OUTSIDE = make_runtime(BUNDLE, WorkerLimits(episodes_per_worker=3))
HANG = "for i in range(1000000): [j for j in range(1000000)]"


def opened(runtime: EnvRuntime = OUTSIDE, seed: int = 0, user: User | None = None) -> Env:
    task = BUNDLE.task("notes-1")
    return Env(runtime, grader_of(task, BUNDLE.state_schema), task, seed, MANY, None, user)


def begun(runtime: EnvRuntime = OUTSIDE, seed: int = 0) -> Env:
    env = opened(runtime, seed)
    env.start()
    return env


def calls(*pairs: tuple[str, Any]) -> Message:
    made = (
        ToolCall(id=f"c{n}", name=name, arguments=a if isinstance(a, str) else json.dumps(a))
        for n, (name, a) in enumerate(pairs)
    )
    return Message(role="assistant", tool_calls=tuple(made))


UPDATE = calls(("update_note", {"note_id": "N11", "priority": 5}))
GET = calls(("get_note", {"note_id": "N11"}))
DELETE = calls(("delete_note", {"note_id": "N12"}))


def results(found: Sequence[StepResult | Exception]) -> list[StepResult]:
    assert all(isinstance(one, StepResult) for one in found), found
    return [one for one in found if isinstance(one, StepResult)]


def gathered(envs: Sequence[Env], actions: Sequence[Message]) -> list[StepResult]:
    async def every() -> list[StepResult]:
        return await asyncio.gather(*(e.step_async(a) for e, a in zip(envs, actions, strict=True)))

    return asyncio.run(every())


def in_step(envs: Sequence[Env], actions: Sequence[Message]) -> list[StepResult]:
    return results(step_all(envs, actions))


Together = Callable[[Sequence[Env], Sequence[Message]], list[StepResult]]
together = pytest.mark.parametrize("together", [in_step, gathered])


# ---------------------------------------------------------------- the same as alone
@together
@given(scripts=st.lists(st.lists(CALLS, min_size=2, max_size=2), min_size=1, max_size=5), loss=st.booleans())
@settings(max_examples=12, deadline=None)
def test_episodes_in_step_go_as_they_would_alone(
    together: Together, scripts: list[list[list[tuple[str, Any]]]], loss: bool
) -> None:
    alone = [begun(INSIDE, seed) for seed in range(len(scripts))]
    shared = [begun(OUTSIDE if seed % 2 else INSIDE, seed) for seed in range(len(scripts))]
    for turn in range(2):
        actions = [
            calls(*script[turn]) if script[turn] else Message(role="assistant", content="Which note?")
            for script in scripts
        ]
        assert OUTSIDE.pool is not None
        if loss and turn == 1 and OUTSIDE.pool.workers:
            os.kill(OUTSIDE.pool.workers[0].pid, signal.SIGKILL)
        assert together(shared, actions) == [e.step(a) for e, a in zip(alone, actions, strict=True)]
    for one, other in zip(alone, shared, strict=True):
        assert other.state.delta() == one.state.delta() and other.verdict() == one.verdict()
        assert other.transcript == one.transcript


@together
def test_calls_of_one_pass_share_their_round_trip(
    together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(BUNDLE, WorkerLimits())
    envs = [begun(runtime, seed) for seed in range(8)]
    together(envs, [GET] * 8)  # placed
    sizes: list[int] = []
    many = Worker.ask_many

    def counted(self: Worker, requests: Any) -> Any:
        sizes.append(len(requests))
        return many(self, requests)

    monkeypatch.setattr(Worker, "ask_many", counted)
    monkeypatch.setattr(Worker, "ask", lambda *_a, **_k: pytest.fail("a call left alone"))
    assert [r.tool_errors for r in together(envs, [UPDATE] * 8)] == [0] * 8
    assert sizes == [8]
    assert runtime.pool is not None
    runtime.pool.close()


# ---------------------------------------------------------------- nobody pays for another
@pytest.mark.parametrize(
    ("body", "limits", "reason"),
    [
        (HANG, WorkerLimits(call_timeout_s=0.5), StopReason.TOOL_TIMEOUT),
        (
            "return len([0] * 1000000 * 1000000)",
            WorkerLimits(memory_bytes=128 * 2**20, call_timeout_s=60),
            StopReason.TOOL_BREACH,
        ),
        (
            "return 'x' * 100000",
            WorkerLimits(answer_bytes=50_000, call_timeout_s=60),
            StopReason.TOOL_BREACH,
        ),
        ("return 1 / 0", WorkerLimits(call_timeout_s=60), StopReason.ENV_ERROR),
    ],
)
@together
def test_a_breach_in_a_batch_ends_the_guilty_episode_only(
    together: Together, body: str, limits: WorkerLimits, reason: StopReason
) -> None:
    runtime = with_tool(body, limits)
    envs = [begun(runtime, seed) for seed in range(5)]
    together(envs, [UPDATE] * 5)
    note = calls(("create_note", {"notebook_id": "NB1", "title": "new"}))
    out = together(envs, [note, DELETE, note, DELETE, GET])
    assert [r.stop_reason for r in out] == [None, reason, None, reason, None]
    assert "delete_note" in envs[1].defect and "delete_note" in envs[3].defect
    assert json.loads(out[4].observations[0].content)["priority"] == 5
    for env in (envs[0], envs[2]):  # made once, although the batch was made again
        assert [r["title"] for r in env.state.delta().inserted["notes"].values()] == ["new"]
    assert envs[4].verdict().success
    assert runtime.pool is not None
    runtime.pool.close()


def test_a_hung_tool_keeps_no_other_environment_waiting() -> None:
    """The episodes of another environment go on while one waits for a tool that never returns."""
    runtime = with_tool(HANG, WorkerLimits(call_timeout_s=1.5))
    hung, other = begun(runtime), begun(OUTSIDE)
    order: list[str] = []

    async def wait() -> StepResult:
        result = await hung.step_async(DELETE)
        order.append("hung")
        return result

    async def go_on() -> None:
        for _ in range(5):
            await other.step_async(GET)
        order.append("other")

    async def both() -> StepResult:
        result, _ = await asyncio.gather(wait(), go_on())
        return result

    assert asyncio.run(both()).stop_reason is StopReason.TOOL_TIMEOUT
    assert order == ["other", "hung"]
    assert runtime.pool is not None
    runtime.pool.close()


class Meeting:
    """Users that answer only when all of them are asked at the same time."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties)

    def opening(self) -> str:
        self._barrier.wait(30)
        return "hello"

    def reply(self, message: str) -> UserReply:
        self._barrier.wait(30)
        return UserReply(f"you said {message}")


def test_slow_users_are_asked_side_by_side() -> None:
    meeting = Meeting(6)
    envs = [opened(user=meeting) for _ in range(6)]
    speak = Message(role="assistant", content="Which one?")

    async def episode(env: Env) -> str:
        await env.start_async()
        return (await env.step_async(speak)).observations[0].content

    async def every() -> list[str]:
        return await asyncio.gather(*map(episode, envs))

    assert asyncio.run(every()) == ["you said Which one?"] * 6
    out = results(step_all(envs, [speak] * 6, threads=6))
    assert [r.observations[0].content for r in out] == ["you said Which one?"] * 6


class Failing:
    """A user that opens, and then breaks in a named or another way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def opening(self) -> str:
        return "hello"

    def reply(self, message: str) -> UserReply:
        raise self._error


def test_errors_are_values_in_step() -> None:
    ended = begun()
    ended.close(StopReason.TOKEN_BUDGET)
    users: tuple[User, ...] = (Failing(UserError("nothing to say")), Failing(OSError("no network")))
    blamed, broken = (opened(user=user) for user in users)
    fine = begun()
    for env in (blamed, broken):
        env.start()
    speak = Message(role="assistant", content="Which one?")
    for threads in (1, 4):
        out = step_all([ended, blamed.fork(), broken.fork(), fine], [GET, speak, speak, GET], threads=threads)
        assert isinstance(out[0], EnvUsageError) and "ended with token_budget" in str(out[0])
        assert isinstance(out[1], StepResult) and out[1].stop_reason is StopReason.USER_ERROR
        assert isinstance(out[2], OSError) and str(out[2]) == "no network"
        assert isinstance(out[3], StepResult) and out[3].stop_reason is None
    with pytest.raises(OSError, match="no network"):
        asyncio.run(broken.step_async(speak))


def test_a_judge_that_asks_a_model_is_waited_for_too() -> None:
    seen: list[str] = []

    def hook(task: Any, transcript: Any) -> Any:
        seen.append(threading.current_thread().name)
        return NO_ERROR

    task = BUNDLE.task("notes-1")
    env = Env(
        OUTSIDE, grader_of(task, BUNDLE.state_schema), task, 0, EnvLimits(max_turns=1), hook, Meeting(1)
    )
    env.start()
    assert asyncio.run(env.step_async(GET)).stop_reason is StopReason.MAX_TURNS
    assert len(seen) == 1 and seen[0].startswith("envgen-users")


def test_what_does_not_fit_is_refused() -> None:
    env = begun()
    with pytest.raises(EnvUsageError, match="1 episodes and 2 actions"):
        step_all([env], [GET, GET])
    with pytest.raises(EnvUsageError, match="named twice"):
        step_all([env, env], [GET, GET])
    assert step_all([], []) == [] and run_calls([]) == []


def test_a_cancelled_step_leaves_the_others_alone() -> None:
    runtime = with_tool(HANG, WorkerLimits(call_timeout_s=1.0))
    hung, other = begun(runtime), begun(runtime)

    async def both() -> StepResult:
        lost = asyncio.create_task(hung.step_async(DELETE))
        await asyncio.sleep(0.1)
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
        return await other.step_async(GET)

    assert json.loads(asyncio.run(both()).observations[0].content)["id"] == "N11"
    hung.close(StopReason.TOKEN_BUDGET)
    assert runtime.pool is not None
    runtime.pool.close()


# ---------------------------------------------------------------- what a worker may answer to many
@pytest.mark.parametrize(
    "answer",
    [
        b"[1]\n",
        b'[%d,"ok",[["ok",2]]]\n{}',
        b'[%d,"ok",[["ok",2],["ok",900]]]\n{}{}',
        b'[%d,"ok",[["ok",2],["ok",-1]]]\n{}{}',
        b'[%d,"ok",[["ok",2],["ok",0]]]\n{}{}',
        b'[%d,"ok",[["ok",2],["ok",1]]]\n{}{}',
        b'[%d,"ok",[["ok",2],[7,2]]]\n{}{}',
        b'[%d,"ok",7]\n',
        b"no json",
        b"",
    ],
)
def test_an_answer_that_is_none_ends_the_worker(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(WorkerLimits())

    def replied(self: Worker, number: int, *rest: Any) -> bytes:
        return answer.replace(b"%d", str(number).encode())

    monkeypatch.setattr(Worker, "_request", replied)
    with pytest.raises(WorkerGone) as gone:
        worker.ask_many([(None, 1, "a", {}), (None, 2, "b", {})])
    assert gone.value.kind == "protocol" and not worker.alive


def test_an_episode_that_cannot_be_made_anew_is_a_defect_and_no_other() -> None:
    first, second = begun(), begun(seed=1)
    in_step([first, second], [GET, GET])
    assert first._isolated is not None and OUTSIDE.pool is not None
    name, arguments, digest = first._isolated._log[0]
    first._isolated._log[0] = (name, arguments, digest ^ 1)
    OUTSIDE.pool.close()
    assert [r.stop_reason for r in in_step([first, second], [GET, GET])] == [StopReason.ENV_ERROR, None]
    assert "answered otherwise" in first.defect


def fork_and_step() -> None:
    envs = [begun(seed=seed) for seed in range(5)]
    in_step(envs, [UPDATE] * 5)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            out = in_step(envs, [GET] * 5)
            code = 0 if all('"priority":5' in r.observations[0].content for r in out) else 2
            assert OUTSIDE.pool is not None
            OUTSIDE.pool.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(r.tool_errors == 0 for r in in_step(envs, [GET] * 5))


def test_a_forked_process_steps_with_workers_of_its_own() -> None:
    alone(fork_and_step)


def test_a_defect_is_an_answer_of_run_calls() -> None:
    runtime = with_tool("return 1 / 0")
    env = begun(runtime)
    assert env._isolated is not None
    call = env._isolated.prepare("delete_note", {"note_id": "N12"})
    assert isinstance(call, IsolatedCall)
    (answer,) = run_calls([call])
    assert isinstance(answer, ToolDefect) and "ZeroDivisionError" in str(answer)
    assert runtime.pool is not None
    runtime.pool.close()
