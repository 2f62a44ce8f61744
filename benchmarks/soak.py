"""Soak of isolated episodes: many alive at once, tools that fail, break, hang and flood, workers that die.

    python benchmarks/soak.py [EPISODES] [ROUNDS]

Every round opens EPISODES episodes (default 1,024) of one environment together and plays their references:
every other round one step of each in turns, the rounds between 64 episodes in step (``step_all``). One in
eight makes a bad call on its way: a tool that says no (the episode goes on), one that raises, one that
never returns, one that asks for all memory, one that answers 10 MB. Every 400 steps a worker is killed from
outside. At the end every episode must have the ending that its call calls for, and every other one must
have passed its task. Prints endings, time and resident memory per round; exit code 1 when an episode is
lost or ends otherwise.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from envgen.runtime.env import Env
from envgen.runtime.grader import grader_of
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.shared import EnvRuntime, make_runtime
from envgen.runtime.stepping import step_all
from envgen.store import Bundle
from envgen.synthesis.pipeline import synthesize
from envgen.types import AgentTool, EnvLimits, Message, StopReason, ToolCall

DOCUMENT = Path(__file__).resolve().parent.parent / "examples" / "tooldocs" / "museum_openapi31.yaml"
BAD = """
def soak_no(state, ctx, /):
    raise ToolError("not now")


def soak_break(state, ctx, /):
    return 1 / 0


def soak_hang(state, ctx, /):
    for a in range(1000000):
        for b in range(1000000):
            c = a - b
    return c


def soak_memory(state, ctx, /):
    return len([0] * 1000000 * 1000000)


def soak_flood(state, ctx, /):
    return "x" * 10000000


TOOLS = {
"""
ENDINGS = {
    "soak_no": StopReason.USER_DONE,
    "soak_break": StopReason.ENV_ERROR,
    "soak_hang": StopReason.TOOL_TIMEOUT,
    "soak_memory": StopReason.TOOL_BREACH,
    "soak_flood": StopReason.TOOL_BREACH,
}
WEIGHTS = (40, 40, 4, 10, 6)
"""Shares of the bad calls; a hung tool costs its whole time limit, so there are few."""
KILL_EVERY = 400
LIMITS = EnvLimits(max_turns=64, max_tool_calls=64, max_tool_errors=64)


@dataclass
class Player:
    """One episode and what it has still to do."""

    env: Env
    actions: list[Message]
    expected: StopReason


def hostile(bundle: Bundle) -> Bundle:
    """The bundle with five bad tools more; no longer what our templates write, so it runs in workers."""
    entries = "".join(f'    "{name}": {name},\n' for name in ENDINGS)
    source = bundle.source.replace("\nTOOLS = {\n", BAD + entries)
    parameters = {"type": "object", "properties": {}}
    extra = tuple(AgentTool(name=name, description="", parameters=parameters) for name in ENDINGS)
    return replace(bundle, source=source, tools=(*bundle.tools, *extra))


def action(tool: str, arguments: dict[str, object]) -> Message:
    """One call as an action."""
    text = orjson.dumps(arguments).decode()
    return Message(role="assistant", tool_calls=(ToolCall(id="c", name=tool, arguments=text),))


def players(bundle: Bundle, runtime: EnvRuntime, count: int, rng: random.Random) -> list[Player]:
    """Started episodes, tasks in turn, one in eight with a bad call at a random place."""
    out: list[Player] = []
    for number in range(count):
        task = bundle.tasks[number % len(bundle.tasks)]
        steps = [
            Message(role="assistant", content=s.text) if s.kind != "call" else action(s.tool, s.arguments)
            for s in task.reference
        ]
        steps.append(Message(role="assistant", content=task.closing))
        expected = StopReason.USER_DONE
        if number % 8 == 0:
            (tool,) = rng.choices(list(ENDINGS), WEIGHTS)
            expected = ENDINGS[tool]
            steps.insert(rng.randrange(len(steps)), action(tool, {}))
        env = Env(runtime, grader_of(task, bundle.state_schema), task, 0, LIMITS, None)
        env.start()
        out.append(Player(env, steps, expected))
    return out


def resident(pids: Sequence[int]) -> float:
    """Resident MiB of some processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def round_of(bundle: Bundle, runtime: EnvRuntime, count: int, rng: random.Random, in_step: int) -> int:
    """One round, ``in_step`` episodes at a time; how many are lost or ended otherwise than they should."""
    pool = runtime.pool
    assert pool is not None
    began, started = time.perf_counter(), pool.started
    every = players(bundle, runtime, count, rng)
    live, steps, killed, peak, workers = list(every), 0, 0, 0, 0.0
    while live:
        for start in range(0, len(live), in_step):
            some = live[start : start + in_step]
            for result in step_all([p.env for p in some], [p.actions.pop(0) for p in some]):
                if isinstance(result, Exception):
                    raise result
            steps += len(some)
            if steps // KILL_EVERY > killed and pool.workers:
                os.kill(rng.choice(pool.workers).pid, signal.SIGKILL)
                killed += 1
        live = [p for p in live if p.env.stop_reason is None and p.actions]
        pids = [w.pid for w in pool.workers]
        if len(pids) >= peak:
            peak, workers = len(pids), resident(pids)
    wrong = 0
    for player in every:
        env = player.env
        passed = env.verdict().success if player.expected is StopReason.USER_DONE else True
        if env.stop_reason is not player.expected or not passed:
            wrong += 1
            print(f"  wrong: {env.task.id}: {env.stop_reason}, expected {player.expected}; {env.defect}")
    endings = Counter("none" if p.env.stop_reason is None else p.env.stop_reason.value for p in every)
    del every, live
    gc.collect()
    seconds = time.perf_counter() - began
    print(
        f"{count} episodes, {in_step} in step, {steps} steps, {seconds:.1f} s, "
        f"{killed} workers killed from outside, "
        f"{pool.started - started} started, at most {peak} at once; "
        f"resident {resident([os.getpid()]):.1f} MiB here and {workers:.1f} MiB in those {peak}; "
        + ", ".join(f"{name} {number}" for name, number in sorted(endings.items())),
        flush=True,
    )
    return wrong


def main() -> int:
    """Run all rounds."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    bundle = hostile(synthesize(DOCUMENT, tasks=40, heldout=8, seed=0))
    limits = WorkerLimits(call_timeout_s=2.0, memory_bytes=256 * 2**20, answer_bytes=2**20)
    runtime = make_runtime(bundle, limits)
    rng = random.Random(0)
    wrong = sum(round_of(bundle, runtime, count, rng, 64 if n % 2 else 1) for n in range(rounds))
    print("every episode ended as it should" if not wrong else f"{wrong} episodes lost or ended otherwise")
    assert runtime.pool is not None
    runtime.pool.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
