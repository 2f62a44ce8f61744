"""Isolated workers from the outside: same answers as in process, nothing lost when a worker dies, limits,
vetting, and what a machine without the layers is told."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.errors import IsolationError, ToolBreach, ToolDefect, UnsafeCodeError
from envgen.proposers.rules import propose
from envgen.runtime.context import ToolContext, key_styles
from envgen.runtime.env import Env
from envgen.runtime.grader import grader_of
from envgen.runtime.isolation import pool as pool_module
from envgen.runtime.isolation.capabilities import capabilities, isolation_report
from envgen.runtime.isolation.episode import IsolatedEpisode, read_delta
from envgen.runtime.isolation.limits import GUARANTEES, LAYERS, WorkerLimits, missing
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.process import Worker, WorkerGone
from envgen.runtime.isolation.syscalls import ARCHITECTURES, filter_program
from envgen.runtime.isolation.vetting import is_vetted
from envgen.runtime.shared import EnvRuntime, make_runtime, runtime_of
from envgen.runtime.state import State
from envgen.runtime.tools import run_tool
from envgen.synthesis.functions import generate_source
from envgen.tooldocs import read_tool_doc
from envgen.types import EnvironmentDraft, EnvLimits, Message, StopReason, Task, ToolCall
from tests.envgen.mock_domain import SOURCE, initial_state, mock_bundle

pytestmark = pytest.mark.skipif(
    not capabilities().contained, reason=f"this machine cannot contain tool code: {capabilities().lacking}"
)
BUNDLE = mock_bundle()
MANY = EnvLimits(max_turns=10_000, max_tool_calls=10_000, max_tool_errors=10_000)
INSIDE = make_runtime(BUNDLE, None)
OUTSIDE = make_runtime(BUNDLE, WorkerLimits())


def pool() -> WorkerPool:
    assert OUTSIDE.pool is not None
    return OUTSIDE.pool


def begun(runtime: EnvRuntime = OUTSIDE, number: int = 1, seed: int = 0) -> Env:
    task = BUNDLE.task(f"notes-{number}")
    env = Env(runtime, grader_of(task, BUNDLE.state_schema), task, seed, MANY, None)
    env.start()
    return env


def ask(env: Env, name: str, arguments: Any = None) -> Any:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    result = env.step(Message(role="assistant", tool_calls=(ToolCall(id="c", name=name, arguments=text),)))
    return result.observations[0].content if result.observations else result.stop_reason


def with_tool(body: str, limits: WorkerLimits | None = None, **more: str) -> EnvRuntime:
    """The notes environment with other bodies for delete_note (and more tools)."""
    source = SOURCE
    for name, text in {"delete_note": body, **more}.items():
        head = source.index(f"def {name}(")
        end = source.index("\n", head)
        source = source[: end + 1] + "    " + text + "\n" + source[end + 1 :]
    return make_runtime(replace(BUNDLE, source=source), limits or WorkerLimits())


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("list_notebooks"), st.just({})),
        st.tuples(
            st.just("create_note"),
            st.fixed_dictionaries(
                {"notebook_id": st.sampled_from(["NB1", "NB2", "NB9"]), "title": st.text(max_size=5)}
            ),
        ),
        st.tuples(
            st.just("update_note"),
            st.fixed_dictionaries(
                {"note_id": st.sampled_from(["N11", "N12", "N99"]), "priority": st.integers(0, 9)}
            ),
        ),
        st.tuples(
            st.sampled_from(["delete_note", "get_note"]),
            st.fixed_dictionaries({"note_id": st.sampled_from(["N11", "N12", "N13", 7])}),
        ),
        st.tuples(st.just("no_such_tool"), st.just({})),
        st.tuples(st.just("get_note"), st.just("{not json")),
    ),
    max_size=8,
)


@given(calls=CALLS, seed=st.integers(0, 3), loss=st.integers(0, 8))
@settings(max_examples=25, deadline=None)
def test_a_worker_answers_as_this_process_does_and_a_lost_one_is_not_noticed(
    calls: list[tuple[str, Any]], seed: int, loss: int
) -> None:
    inside, outside = begun(INSIDE, seed=seed), begun(seed=seed)
    for index, (name, arguments) in enumerate(calls):
        if index == loss and pool().workers:
            os.kill(pool().workers[0].pid, signal.SIGKILL)
        assert ask(outside, name, arguments) == ask(inside, name, arguments)
    assert outside.state.delta() == inside.state.delta()
    assert outside.verdict() == inside.verdict()
    assert (outside.stop_reason, outside.tool_errors) == (inside.stop_reason, inside.tool_errors)


@given(calls=CALLS)
@settings(max_examples=15, deadline=None)
def test_stand_ins_work_on_a_state_of_this_process(calls: list[tuple[str, Any]]) -> None:
    seen: list[Any] = []
    for runtime in (INSIDE, OUTSIDE):
        state, ctx = State(initial_state()), ToolContext("2026-03-02T09:00:00", 1, runtime.styles)
        out = [run_tool(runtime.tools, BUNDLE.tools, state, ctx, *call) for call in calls]
        seen.append((out, state.snapshot(), ctx.saved()))
    assert seen[0] == seen[1]


def test_a_forked_episode_goes_its_own_way() -> None:
    env = begun(number=2)
    ask(env, "create_note", {"notebook_id": "NB2", "title": "a"})
    assert env._isolated is not None
    other = env._isolated.fork()
    first = other.call("create_note", {"notebook_id": "NB2", "title": "b"})
    assert (
        json.loads(first.text)["id"]
        == json.loads(ask(env, "create_note", {"notebook_id": "NB2", "title": "c"}))["id"]
    )
    titles = [sorted(r["title"] for r in e.delta().inserted["notes"].values()) for e in (other, env.state)]
    assert titles == [["a", "b"], ["a", "c"]]


# ---------------------------------------------------------------- endings
@pytest.mark.parametrize(
    ("body", "limits", "reason", "words"),
    [
        (
            "for i in range(1000000): [j for j in range(1000000)]",
            WorkerLimits(call_timeout_s=0.5),
            StopReason.TOOL_TIMEOUT,
            "did not answer within 0.5 s",
        ),
        (
            "return len([0] * 1000000 * 1000000)",
            WorkerLimits(memory_bytes=128 * 2**20, call_timeout_s=60),
            StopReason.TOOL_BREACH,
            "more than 134217728 bytes of memory",
        ),
        (
            "x = [1]\n    for i in range(1000000):\n        x = x + x",
            WorkerLimits(memory_bytes=64 * 2**20, call_timeout_s=60),
            StopReason.TOOL_BREACH,
            "more than 67108864 bytes of memory",
        ),
        (
            "return 'x' * 100000",
            WorkerLimits(answer_bytes=50_000, call_timeout_s=60),
            StopReason.TOOL_BREACH,
            "at most 50000 are read",
        ),
        ("return 1 / 0", WorkerLimits(call_timeout_s=60), StopReason.ENV_ERROR, "ZeroDivisionError"),
        (
            "return delete_note(state, ctx, note_id)",
            WorkerLimits(call_timeout_s=60),
            StopReason.ENV_ERROR,
            "Recursion",
        ),
    ],
)
def test_a_breach_ends_its_episode_by_name_and_no_other(
    body: str, limits: WorkerLimits, reason: StopReason, words: str
) -> None:
    assert reason.is_environment_fault
    runtime = with_tool(body, limits)
    assert runtime.pool is not None
    honest, env = begun(runtime), begun(runtime)
    assert json.loads(ask(honest, "update_note", {"note_id": "N11", "priority": 5}))["priority"] == 5
    assert json.loads(ask(env, "update_note", {"note_id": "N11", "priority": 5}))["priority"] == 5
    assert ask(env, "delete_note", {"note_id": "N12"}) is reason
    assert words in env.defect and "delete_note" in env.defect
    # as before the call that broke: the update is there, the breach is not
    assert list(env.state.delta().updated["notes"]) == ["N11"] and env.verdict().success
    assert json.loads(ask(honest, "get_note", {"note_id": "N11"}))["priority"] == 5
    assert honest.verdict().success and honest.stop_reason is None
    runtime.pool.close()


def test_a_worker_that_dies_twice_ends_the_episode_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    env = begun()
    ask(env, "list_notebooks")
    asked = Worker.ask

    def dying(self: Worker, operation: str, *operands: Any, **options: Any) -> tuple[str, Any, bytes]:
        if operation == "call":
            os.kill(self.pid, signal.SIGKILL)
        return asked(self, operation, *operands, **options)

    monkeypatch.setattr(Worker, "ask", dying)
    assert ask(env, "list_notebooks") is StopReason.WORKER_LOST
    assert "SIGKILL" in env.defect


def test_an_episode_whose_answers_change_when_repeated_is_a_defect() -> None:
    env = begun()
    ask(env, "list_notebooks")
    assert env._isolated is not None
    name, arguments, digest = env._isolated._log[0]
    env._isolated._log[0] = (name, arguments, digest ^ 1)
    pool().close()
    assert ask(env, "list_notebooks") is StopReason.ENV_ERROR
    assert "answered otherwise" in env.defect


# ---------------------------------------------------------------- the pool
def test_episodes_share_workers_and_leave_them() -> None:
    runtime = make_runtime(BUNDLE, WorkerLimits(episodes_per_worker=4))
    assert runtime.pool is not None
    envs = [begun(runtime, seed=n) for n in range(10)]
    for env in envs:
        ask(env, "list_notebooks")
    assert [w.load for w in runtime.pool.workers] == [4, 4, 2]
    assert all(len(w.bases) == 1 for w in runtime.pool.workers)
    del env
    envs.clear()
    gc.collect()
    assert [w.load for w in runtime.pool.workers] == [0, 0, 0]
    ask(begun(runtime), "list_notebooks")
    assert sum(len(w.episodes) for w in runtime.pool.workers) <= 7  # told with the next request of each
    runtime.pool.close()


def test_a_worn_worker_is_replaced_between_calls() -> None:
    runtime = make_runtime(BUNDLE, WorkerLimits(cpu_s=30))
    assert runtime.pool is not None
    env = begun(runtime)
    ask(env, "update_note", {"note_id": "N11", "priority": 5})
    (worker,) = runtime.pool.workers
    worker.busy_s = 16
    assert runtime.pool.workers == () and not worker.alive
    assert json.loads(ask(env, "get_note", {"note_id": "N11"}))["priority"] == 5
    assert runtime.pool.started == 2
    runtime.pool.close()


def test_threads_may_share_a_pool() -> None:
    results: list[Any] = []

    def play(seed: int) -> None:
        env = begun(seed=seed)
        for _ in range(20):
            ask(env, "update_note", {"note_id": "N11", "priority": 5})
        results.append(env.verdict().success)

    threads = [threading.Thread(target=play, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6


def alone(function: Callable[[], None]) -> None:
    """Call it in a process of its own: pytest's may have loaded JAX, whose threads can hold locks that a
    forked child waits for without end."""
    program = f"from {function.__module__} import {function.__name__} as f; f()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def fork_with_workers() -> None:
    env = begun()
    ask(env, "update_note", {"note_id": "N11", "priority": 5})
    before = [w.pid for w in pool().workers]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            again = json.loads(ask(env, "get_note", {"note_id": "N11"}))
            code = 0 if again["priority"] == 5 and not {w.pid for w in pool().workers} & set(before) else 2
            pool().close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert json.loads(ask(env, "get_note", {"note_id": "N11"}))["priority"] == 5
    assert [w.pid for w in pool().workers] == before


def test_a_forked_process_gets_workers_of_its_own() -> None:
    alone(fork_with_workers)


def test_no_worker_is_left_when_the_caller_ends() -> None:
    program = (
        "from tests.envgen.test_isolation import begun, ask, pool; e = begun(); ask(e, 'list_notebooks');"
        "print([w.pid for w in pool().workers])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    (pid,) = json.loads(out.stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_loads_neither_pydantic_nor_the_rest() -> None:
    program = (
        "import sys, envgen.runtime.isolation.worker;"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'pydantic', 'networkx', 'yaml'}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert out.stdout == "[]\n"


def test_source_that_cannot_be_loaded_is_refused_in_the_worker() -> None:
    for source, words in (
        ("import os\nTOOLS = {}", "import at module level"),
        ("(" * 100_000, "not valid Python"),
        ("x = 1", "no TOOLS table"),
    ):
        with pytest.raises(UnsafeCodeError, match=words):
            WorkerPool(source, key_styles(BUNDLE.state_schema))


# ---------------------------------------------------------------- what comes back
@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"inserted": {}, "updated": {}},
        {"inserted": {}, "updated": {}, "deleted": {}, "more": {}},
        {"inserted": [], "updated": {}, "deleted": {}},
        {"inserted": {"ghosts": {"1": {}}}, "updated": {}, "deleted": {}},
        {"inserted": {"notes": {"N11": {}}}, "updated": {}, "deleted": {}},
        {"inserted": {"notes": {"N77": 3}}, "updated": {}, "deleted": {}},
        {"inserted": {"notes": 3}, "updated": {}, "deleted": {}},
        {"inserted": {}, "updated": {"notes": {"N77": {}}}, "deleted": {}},
        {"inserted": {}, "updated": {}, "deleted": {"notes": ["N77"]}},
        {"inserted": {}, "updated": {}, "deleted": {"notes": [11]}},
        {"inserted": {}, "updated": {}, "deleted": {"notes": {"N11": {}}}},
        {"inserted": {}, "updated": {"notes": {"N11": {}}}, "deleted": {"notes": ["N11"]}},
        {"inserted": {"notes": {"N77": json.loads("[" * 70 + "]" * 70)}}, "updated": {}, "deleted": {}},
    ],
)
def test_a_delta_that_is_none_is_not_graded(value: Any) -> None:
    with pytest.raises(ValueError, match=r"delta|objects|collection|fit|both"):
        read_delta(value, initial_state(), frozenset({"notes", "notebooks"}))


def test_a_true_delta_is_read() -> None:
    value = {"inserted": {}, "updated": {"notes": {"N11": {"id": "N11"}}}, "deleted": {"notes": ["N12"]}}
    delta = read_delta(value, initial_state(), frozenset({"notes", "notebooks"}))
    assert (delta.updated, delta.deleted) == (value["updated"], {"notes": ("N12",)})


# ---------------------------------------------------------------- vetting
def generated() -> Any:
    return replace(BUNDLE, source=generate_source(BUNDLE.state_schema, BUNDLE.semantics))


def test_only_our_own_templates_are_vetted() -> None:
    assert is_vetted(generated()) and runtime_of(generated()).pool is None
    assert not is_vetted(BUNDLE) and runtime_of(BUNDLE).pool is not None
    for change in (lambda s: s + "\n", lambda s: s.replace("record", "rekord"), lambda s: "# x\n" + s):
        bundle = generated()
        assert not is_vetted(replace(bundle, source=change(bundle.source)))


@pytest.mark.parametrize(
    "name", ["conduit_openapi31.yml", "toucan_scheduler_tools.json", "xero_assets_openapi30.yaml"]
)
def test_what_the_rules_propose_is_vetted_also_when_read_from_a_file(name: str, examples_dir: Path) -> None:
    draft = propose(read_tool_doc(examples_dir / name))
    assert is_vetted(draft)
    assert is_vetted(EnvironmentDraft.model_validate_json(draft.model_dump_json()))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.model_copy(update={"entity": 'note"""; x = 1; """'}),
        lambda s: s.model_copy(update={"entity": "{state}"}),
        lambda s: s.model_copy(update={"entity": "note\\"}),
    ],
)
def test_code_in_the_words_of_a_schema_is_not_vetted(change: Callable[[Any], Any]) -> None:
    schema = BUNDLE.state_schema
    forged = schema.model_copy(update={"collections": tuple(change(c) for c in schema.collections)})
    bundle = replace(BUNDLE, state_schema=forged, source=generate_source(forged, BUNDLE.semantics))
    assert not is_vetted(bundle)


def test_code_in_a_message_is_not_vetted() -> None:
    text = "{str(sum([1])):{note_id}}"
    tools = tuple(
        t.model_copy(
            update={"preconditions": tuple(p.model_copy(update={"message": text}) for p in t.preconditions)}
        )
        for t in BUNDLE.semantics
    )
    assert any(t.preconditions for t in tools)
    bundle = replace(BUNDLE, semantics=tools, source=generate_source(BUNDLE.state_schema, tools))
    assert "str(sum([1]))" in bundle.source and not is_vetted(bundle)


# ---------------------------------------------------------------- machines without
def test_missing_layers_take_guarantees_away() -> None:
    assert missing(dict.fromkeys(LAYERS, "")) == {}
    assert set(missing({})) == set(GUARANTEES)
    no_filter = {**dict.fromkeys(LAYERS, ""), "seccomp": "no table"}
    assert set(missing(no_filter)) == {"processes"}
    assert set(missing({**no_filter, "namespaces": "forbidden"})) == {"processes", "network"}


BARE = """from envgen.runtime.isolation import confine, worker
def refuse(fd): raise OSError("left out by a test")
confine._seccomp = refuse
worker.main()
"""


def test_a_machine_that_cannot_guard_is_refused_and_accepting_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_told", set[str]())
    styles = key_styles(BUNDLE.state_schema)
    with pytest.raises(IsolationError, match=r"processes .*left out by a test.*accept_without"):
        WorkerPool(SOURCE, styles, program=BARE)
    accepting = WorkerLimits(accept_without=frozenset({"processes"}))
    for _ in range(2):
        WorkerPool(SOURCE, styles, accepting, BARE).close()
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1 and "'seccomp'" in said[0] and "left out by a test" in said[0]


def test_limits_are_checked() -> None:
    for bad in (
        {"call_timeout_s": 0},
        {"memory_bytes": -1},
        {"accept_without": frozenset({"all"})},
        {"open_files": 1},
    ):
        with pytest.raises(ValueError, match=r"WorkerLimits"):
            WorkerLimits(**bad)  # type: ignore[arg-type]


def test_the_report_names_every_layer() -> None:
    lines = dict(isolation_report())
    assert set(lines) == {"isolation", *(f"  {name}" for name in LAYERS)}
    assert lines["isolation"].startswith("ready")


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_the_filter_allows_its_list_and_nothing_else(machine: str) -> None:
    """The program run by hand: a BPF interpreter for the five operations it uses."""
    import struct

    code = filter_program(machine, 7)
    program = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    architecture = ARCHITECTURES[machine]

    def verdict(number: int, *arguments: int, audit: int = architecture.audit) -> int:
        padded = (*arguments, *([0] * (6 - len(arguments))))
        data = struct.pack("<IIQ6Q", number, audit, 0, *padded)
        at, held = 0, 0
        while True:
            op, yes, no, value = program[at]
            at += 1
            if op == 0x06:
                return value
            if op == 0x20:
                held = struct.unpack_from("<I", data, value)[0]
                continue
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[op]
            at += yes if true else no

    allow, kill = 0x7FFF0000, 0x80000000
    n = architecture.numbers
    assert {x for x in range(1024) if verdict(x, 7) == allow} == set(n.values())
    assert all(verdict(x, 8) == kill for x in (n["read"], n["write"]))
    assert (verdict(n["mmap"], 0, 0, 3), verdict(n["mmap"], 0, 0, 7)) == (allow, kill)
    assert (verdict(n["mprotect"], 0, 0, 1), verdict(n["mprotect"], 0, 0, 4)) == (allow, kill)
    assert verdict(n["futex"], audit=0x40000003) == kill  # 32-bit calls
    assert verdict(0x40000000 | n["futex"]) == kill


def test_a_dead_worker_says_so() -> None:
    worker = Worker(WorkerLimits())
    worker.kill()
    with pytest.raises(WorkerGone) as gone:
        worker.ask("delta", 1)
    assert gone.value.kind == "lost" and not worker.alive


def test_a_breach_is_a_defect_with_a_reason() -> None:
    assert issubclass(ToolBreach, ToolDefect) and ToolDefect("x").reason == "env_error"
    assert StopReason(ToolBreach("x", "tool_timeout").reason) is StopReason.TOOL_TIMEOUT
    assert not StopReason.MAX_TURNS.is_environment_fault


def test_an_isolated_episode_is_not_the_tasks_target() -> None:
    """What a worker is sent about a task: initial state, clock, seed."""
    sent: list[Any] = []
    asked = Worker.ask

    class Spy(Worker):
        def ask(self, operation: str, *operands: Any, **options: Any) -> tuple[str, Any, bytes]:
            sent.append((operation, operands, options.get("opening")))
            return asked(self, operation, *operands, **options)

    task: Task = BUNDLE.task("notes-1")
    fresh = WorkerPool(SOURCE, key_styles(BUNDLE.state_schema))
    worker = fresh.workers[0]
    worker.__class__ = Spy
    episode = IsolatedEpisode(
        fresh, OUTSIDE.table, frozenset({"notes", "notebooks"}), fresh.base(task.initial_state), task.clock, 3
    )
    episode.call("get_note", {"note_id": "N11"})
    assert [operation for operation, _, _ in sent] == ["base", "call"]
    assert sent[0][1][1] is task.initial_state and sent[1][1][1:] == ("get_note", {"note_id": "N11"})
    assert sent[1][2][2:] == (task.clock, 3)
    fresh.close()
