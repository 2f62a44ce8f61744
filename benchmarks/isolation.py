"""Cost of an environment step: vetted in this process, against an isolated worker.

    python benchmarks/isolation.py [DOCUMENT]

For the same bundle, task and calls, alone and with 64 episodes stepped together (``step_all``, and as
asyncio tasks), median and spread of RUNS runs: steps per second by the wall clock, by
the CPU time that both processes used together, and in the fastest pass of each run (an episode opened and
its calls made: short enough to fall between two interruptions, so the figure to look at on a busy machine,
where every switch finds cold caches). Then the parts: a bare round trip to the worker, starting a worker,
opening an episode on the task's state and on one of 2,500 records.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from envgen.runtime.env import Env
from envgen.runtime.grader import grader_of
from envgen.runtime.isolation.episode import IsolatedEpisode
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.isolation.process import Worker
from envgen.runtime.shared import EnvRuntime, make_runtime
from envgen.runtime.stepping import step_all
from envgen.store import Bundle
from envgen.synthesis.pipeline import synthesize
from envgen.types import EnvLimits, Message, Task, ToolCall

RUNS, STEPS = 7, 2000
DOCUMENT = Path(__file__).resolve().parent.parent / "examples" / "tooldocs" / "museum_openapi31.yaml"
LIMITS = EnvLimits(max_turns=10**9, max_tool_calls=10**9, max_tool_errors=10**9)


def cpu_of(pid: int) -> float:
    """CPU seconds of another process (scheduler statistics, nanoseconds)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def actions_of(task: Task) -> list[Message]:
    """The reference's calls as actions, about a dozen (again and again, where it has fewer)."""
    import orjson

    calls = [step for step in task.reference if step.kind == "call"]
    calls = calls * (12 // len(calls) or 1)
    return [
        Message(
            role="assistant",
            tool_calls=(ToolCall(id="c", name=s.tool, arguments=orjson.dumps(s.arguments).decode()),),
        )
        for s in calls
    ]


def line(name: str, values: list[float], unit: str) -> None:
    """One result: median and spread."""
    print(
        f"{name:<44} {statistics.median(values):>10,.1f} {unit:<10} [{min(values):,.1f}, {max(values):,.1f}]"
    )


def one_by_one(envs: list[Env], actions: list[Message]) -> None:
    """Every episode by itself."""
    for env in envs:
        env.start()
        for action in actions:
            env.step(action)


def together(envs: list[Env], actions: list[Message]) -> None:
    """All episodes in step."""
    for env in envs:
        env.start()
    for action in actions:
        step_all(envs, [action] * len(envs))


def as_tasks(envs: list[Env], actions: list[Message]) -> None:
    """All episodes as tasks of one event loop."""

    async def episode(env: Env) -> None:
        await env.start_async()
        for action in actions:
            await env.step_async(action)

    async def every() -> None:
        await asyncio.gather(*map(episode, envs))

    asyncio.run(every())


def steps_per_second(
    name: str,
    bundle: Bundle,
    runtime: EnvRuntime,
    play: Callable[[list[Env], list[Message]], None] = one_by_one,
    episodes: int = 1,
) -> None:
    """Play the reference again and again, fresh episodes for every pass."""
    task = max(bundle.tasks, key=lambda t: len(t.reference))
    grader, actions = grader_of(task, bundle.state_schema), actions_of(task)
    wall: list[float] = []
    cpu: list[float] = []
    best: list[float] = []
    worker = runtime.pool.workers[0] if runtime.pool else None
    for _ in range(RUNS):
        done = 0
        before = cpu_of(worker.pid) if worker else 0.0
        clock, own = time.perf_counter(), time.process_time()
        fastest = float("inf")
        while done < STEPS:
            start = time.perf_counter()
            play([Env(runtime, grader, task, 0, LIMITS, None) for _ in range(episodes)], actions)
            fastest = min(fastest, time.perf_counter() - start)
            done += len(actions) * episodes
        best.append(len(actions) * episodes / fastest)
        wall.append(done / (time.perf_counter() - clock))
        spent = time.process_time() - own + (cpu_of(worker.pid) - before if worker else 0.0)
        cpu.append(done / spent)
    line(f"{name}: fastest pass", best, "steps/s")
    line(f"{name}: steps per CPU second", cpu, "steps/s")
    line(f"{name}: steps per second of wall time", wall, "steps/s")


def timed(name: str, run: Callable[[], object], count: int, unit: float, word: str) -> None:
    """Median wall time of an operation."""
    values: list[float] = []
    for _ in range(RUNS):
        clock = time.perf_counter()
        for _ in range(count):
            run()
        values.append((time.perf_counter() - clock) / count * unit)
    line(name, values, word)


def main() -> None:
    """Measure and print."""
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the start; {document.name}, {RUNS} runs of {STEPS} steps"
    )
    bundle = synthesize(document, tasks=8, heldout=2, seed=0)
    limits = WorkerLimits(call_timeout_s=60)
    inside, outside = make_runtime(bundle, None), make_runtime(bundle, limits)
    steps_per_second("vetted, in process", bundle, inside)
    steps_per_second("isolated worker", bundle, outside)
    steps_per_second("isolated, 64 in step", bundle, outside, together, 64)
    steps_per_second("isolated, 64 asyncio tasks", bundle, outside, as_tasks, 64)
    pool = outside.pool
    assert pool is not None
    worker = pool.workers[0]
    timed("bare round trip to the worker", lambda: worker.ask("drop_base", 0), 2000, 1e6, "us wall")
    timed("start a worker and end it", lambda: Worker(limits).kill(), 3, 1e3, "ms wall")
    task = bundle.tasks[0]
    name = bundle.state_schema.collections[0].name
    record = next((r for table in task.initial_state.values() for r in table.values()), {})
    large = {name: {str(n): {**record, "note": "x" * 900} for n in range(2500)}}
    for word, data in (("the task's state", task.initial_state), ("2,500 records", large)):

        def opened(fresh: bool) -> None:
            base = pool.base({**data} if fresh else data)  # noqa: B023 - called in this pass only
            names = frozenset(data)  # noqa: B023
            IsolatedEpisode(pool, outside.table, names, base, task.clock, 0).delta()

        shared = pool.base(data)
        timed(f"open an episode, {word}, new to the worker", lambda: opened(True), 3, 1e3, "ms wall")
        timed(f"open an episode, {word}, shared", lambda: opened(False), 50, 1e3, "ms wall")
        assert shared.data is data
    pool.close()


if __name__ == "__main__":
    main()
