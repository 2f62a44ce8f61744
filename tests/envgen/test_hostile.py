"""The hostile suite: every attack of ``hostile`` refused by the allow-list, and contained without it.

Contained means: the episode ends with a reason out of the attack's list (or is answered, and the answer holds
no secret), its task does not pass, nothing on the machine has changed, nobody was called over the network,
and an honest episode that shared the worker is graded as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import ToolDefect, UnsafeCodeError
from envgen.runtime.context import key_styles
from envgen.runtime.env import Env
from envgen.runtime.grader import Grader
from envgen.runtime.isolation.capabilities import capabilities
from envgen.runtime.isolation.limits import WorkerLimits
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.sandbox import load_tools
from envgen.runtime.shared import EnvRuntime
from envgen.runtime.tools import compile_tools
from envgen.types import AgentTool, EnvLimits, Message, StopReason, Task, ToolCall
from tests.envgen.hostile import ANSWERED, ATTACKS, SECRET, TARGET, WITHIN, Attack, source_of
from tests.envgen.mock_domain import SOURCE, mock_bundle

BUNDLE = mock_bundle()
LIMITS = WorkerLimits(call_timeout_s=1.5, memory_bytes=192 * 2**20, answer_bytes=4 * 2**20)
BYPASS = """from envgen.runtime.isolation import worker
def load(source):
    space = {"__name__": "tools", "ToolError": worker.ToolError}
    exec(compile(source, "tools.py", "exec"), space)
    return space["TOOLS"]
"""
UNLISTED = BYPASS + "worker.main(load)\n"
WITHOUT_SECCOMP = BYPASS + (
    "from envgen.runtime.isolation import confine\n"
    "def refuse(fd): raise OSError('left out by a test')\n"
    "confine._seccomp = refuse\n"
    "worker.main(load)\n"
)

needs_isolation = pytest.mark.skipif(
    not capabilities().contained, reason=f"this machine cannot contain tool code: {capabilities().lacking}"
)


@dataclass
class Arena:
    """A pool with attacks in its tools, and what on this machine they aim at."""

    pool: WorkerPool
    runtime: EnvRuntime
    aims: dict[str, Any]
    tcp: socket.socket
    unix: socket.socket

    def env(self, task: Task) -> Env:
        env = Env(self.runtime, Grader(task, BUNDLE.state_schema), task, 0, EnvLimits(), None)
        env.start()
        return env

    def calls(self) -> int:
        """How many connections somebody made since the last look."""
        count = 0
        for listener in (self.tcp, self.unix):
            while True:
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    break
                count += 1
        return count


def arena(folder: Path, source: str, limits: WorkerLimits, program: str | None, prefix: str) -> Arena:
    secret, canary = folder / "secret", folder / "canary"
    secret.write_text(SECRET)
    canary.write_text("as it was")
    for path in (folder, secret, canary):
        path.chmod(0o777)  # what holds must not be the permissions of a test folder
    tcp = socket.create_server(("127.0.0.1", 0))
    name = f"envgen-hostile-{os.getpid()}-{prefix}"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind("\0" + name)
    unix.listen()
    tcp.setblocking(False)
    unix.setblocking(False)
    styles = key_styles(BUNDLE.state_schema)
    pool = WorkerPool(source, styles, limits, *([program] if program else []))
    known = {tool.name for tool in BUNDLE.tools}
    parameters = {"type": "object", "properties": {"a": {"type": "object"}}, "required": ["a"]}
    extra = [
        AgentTool(name=n, description="", parameters=parameters) for n in sorted(pool.tool_names - known)
    ]
    runtime = EnvRuntime(
        tools={},
        table=compile_tools([*BUNDLE.tools, *extra]),
        styles=styles,
        collections=("notebooks", "notes"),
        pool=pool,
    )
    aims = {
        "secret": str(secret),
        "canary": str(canary),
        "folder": str(folder),
        "name": name,
        "port": tcp.getsockname()[1],
        "parent": os.getpid(),
        "note": "N11",
    }
    return Arena(pool, runtime, aims, tcp, unix)


def closed(made: Arena) -> None:
    made.pool.close()
    made.tcp.close()
    made.unix.close()


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """No allow-list: process isolation alone."""
    made = arena(
        tmp_path_factory.mktemp("free"),
        source_of(ATTACKS, "attack", SOURCE),
        LIMITS,
        UNLISTED,
        "free",
    )
    yield made
    closed(made)


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """With the allow-list, for attacks it lets through."""
    made = arena(
        tmp_path_factory.mktemp("fenced"), source_of(WITHIN, "within", SOURCE), LIMITS, None, "fenced"
    )
    yield made
    closed(made)


@pytest.fixture(scope="module")
def unfiltered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Neither allow-list nor seccomp: user, namespaces, empty root, Landlock and rlimits alone."""
    limits = WorkerLimits(
        call_timeout_s=1.5, memory_bytes=192 * 2**20, accept_without=frozenset({"processes"})
    )
    source = source_of(ATTACKS, "attack", SOURCE)
    made = arena(tmp_path_factory.mktemp("unfiltered"), source, limits, WITHOUT_SECCOMP, "unfiltered")
    yield made
    closed(made)


def target_task() -> Task:
    """A task whose accepted state holds a value that no worker may ever see."""
    task = BUNDLE.task("notes-1")
    accepted = json.loads(json.dumps(task.accepted_states[0]))
    accepted["notes"]["N11"]["title"] = TARGET
    return task.model_copy(update={"accepted_states": (accepted,)})


def ask(env: Env, name: str, arguments: dict[str, Any]) -> Any:
    call = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
    return env.step(Message(role="assistant", tool_calls=(call,)))


def attacked(where: Arena, attack: Attack, prefix: str) -> None:
    """Play one attack beside an honest episode and look at everything."""
    honest = where.env(BUNDLE.task("notes-1"))
    first = ask(honest, "update_note", {"note_id": "N11", "priority": 4})
    assert not first.done and first.tool_errors == 0
    env = where.env(target_task())
    ask(env, "get_note", {"note_id": "N11"})

    result = ask(env, f"{prefix}_{attack.name}", {"a": where.aims})

    ending = ANSWERED if result.stop_reason is None else result.stop_reason.value
    said = " ".join(m.content for m in result.observations) + env.defect
    # On a slow machine the time limit may come before the other limit that an attack runs into.
    late = ("tool_timeout",) if attack.kind == "resources" else ()
    assert ending in (*attack.ends, *late), (ending, said[:300])
    assert SECRET not in said and TARGET not in said and os.environ["ENVGEN_TEST_SECRET"] not in said
    try:
        assert not env.verdict().success
    except ToolDefect as error:  # a worker that will not tell what changed: no verdict, and never a pass
        assert attack.kind == "grader" or ending != ANSWERED, error
    assert (Path(where.aims["canary"]).read_text(), len(os.listdir(where.aims["folder"]))) == ("as it was", 2)
    assert where.calls() == 0
    assert len([1, 2]) == 2 and Grader.judge is not None
    if attack.kind not in ("grader", "interpreter") or ending != ANSWERED:
        assert ask(honest, "update_note", {"note_id": "N11", "priority": 5}).tool_errors == 0
        assert honest.verdict() == Grader(BUNDLE.task("notes-1"), BUNDLE.state_schema).judge(
            honest.state.delta()
        )
        assert honest.verdict().success
    else:
        where.pool.close()  # it may have changed its own process for good: the others get another
        assert ask(honest, "update_note", {"note_id": "N11", "priority": 5}).tool_errors == 0
        assert honest.verdict().success


@pytest.fixture(autouse=True, scope="module")
def environment_secret() -> Iterator[None]:
    os.environ["ENVGEN_TEST_SECRET"] = "ENV-SECRET-77aa"
    yield
    del os.environ["ENVGEN_TEST_SECRET"]


def test_there_are_enough_attacks_of_every_kind() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS) >= 60
    kinds = {a.kind for a in ATTACKS}
    assert kinds == {
        *(
            "files",
            "network",
            "processes",
            "signals",
            "fence",
            "resources",
            "interpreter",
            "grader",
            "protocol",
        )
    }


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_the_allow_list_refuses(attack: Attack) -> None:
    source = source_of((attack,), "attack", SOURCE)
    if attack.said:
        assert "attack_" + attack.name in load_tools(source)
        return
    with pytest.raises(UnsafeCodeError):
        load_tools(source)


@needs_isolation
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_contained_without_the_allow_list(free: Arena, attack: Attack) -> None:
    attacked(free, attack, "attack")


@needs_isolation
@pytest.mark.parametrize("attack", WITHIN, ids=lambda a: a.name)
def test_contained_within_the_allow_list(fenced: Arena, attack: Attack) -> None:
    attacked(fenced, attack, "within")


@needs_isolation
@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.layers], ids=lambda a: a.name)
def test_files_and_network_are_closed_without_seccomp_too(unfiltered: Arena, attack: Attack) -> None:
    if unfiltered.pool.workers[0].layers["namespaces"] or unfiltered.pool.workers[0].layers["landlock"]:
        pytest.skip("this machine has seccomp alone")
    where = unfiltered
    env = where.env(target_task())
    result = ask(env, f"attack_{attack.name}", {"a": where.aims})
    said = " ".join(m.content for m in result.observations) + env.defect
    if attack.name == "list_root":
        assert result.stop_reason is StopReason.ENV_ERROR or result.observations[0].content == "[]"
    else:
        assert result.stop_reason is StopReason.ENV_ERROR, said
    assert SECRET not in said
    assert (Path(where.aims["canary"]).read_text(), len(os.listdir(where.aims["folder"]))) == ("as it was", 2)
    assert where.calls() == 0
