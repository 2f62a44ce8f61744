"""Driving episodes: one at a time, many in step, or as asyncio tasks.

What an episode does is a generator (``Env.play``): it yields what it waits for, an `IsolatedCall` or a
`Slow`, is sent the answer, and returns what came of the action. So one description of an episode serves
three drivers, and none of them blocks on what another episode waits for:

- ``drive``: one episode, this thread waits;
- ``step_all``: many episodes one action each, calls to the same worker in one round trip;
- ``drive_async``: a coroutine; the event loop goes on, and calls that meet in it travel together.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from envgen.errors import EnvUsageError, ToolDefect
from envgen.runtime.isolation.batch import Answer, executor, run_calls
from envgen.runtime.isolation.episode import IsolatedCall

if TYPE_CHECKING:
    from envgen.runtime.env import Env
    from envgen.types import Message, StepResult

T = TypeVar("T")
_SLOW_AT_ONCE = 64
"""Users and judges that asyncio episodes of this process wait for at the same time; more wait in line."""
_LINES_AT_ONCE = 16
_Waits = dict[int, "IsolatedCall | Slow"]


@dataclass(frozen=True, slots=True)
class Slow:
    """Something that may take its time: a user or a judge behind a network."""

    run: Callable[[], Any]


Play = Generator[IsolatedCall | Slow, Any, T]
"""An episode's doing: yields what it waits for, is sent the answer (or thrown the error), returns T."""


def drive(play: Play[T]) -> T:
    """Run to the end, waiting here. Raises what the play raises."""
    try:
        wait = next(play)
        while True:
            try:
                value = wait.run()
            except Exception as error:  # handed over: the play decides
                wait = play.throw(error)
            else:
                wait = play.send(value)
    except StopIteration as end:
        return cast("T", end.value)


def step_all(
    envs: Sequence[Env], actions: Sequence[Message], *, threads: int = 1
) -> list[StepResult | Exception]:
    """One action for each of several episodes: the results in order, as ``Env.step`` gives them.

    Calls that go to the same isolated worker share a round trip. An episode that raises (``Env.step`` says
    when) has the error as its result; the others go on. Users and judges that may be slow are asked in
    ``threads`` threads. Raises EnvUsageError when the two lengths differ or an episode is named twice.
    """
    if len(envs) != len(actions):
        raise EnvUsageError(f"got {len(envs)} episodes and {len(actions)} actions; give one action to each")
    if len(set(map(id, envs))) != len(envs):
        raise EnvUsageError("an episode is named twice; give each one action at a time")
    return _together([env.play(action) for env, action in zip(envs, actions, strict=True)], threads)


def _together(plays: Sequence[Play[T]], threads: int) -> list[T | Exception]:
    results: dict[int, T | Exception] = {}
    waits: _Waits = {}

    def advance(index: int, go_on: Callable[[], IsolatedCall | Slow]) -> None:
        try:
            waits[index] = go_on()
        except StopIteration as end:
            results[index] = end.value
        except Exception as error:
            results[index] = error

    for index, play in enumerate(plays):
        advance(index, play.__next__)
    while waits:
        asked, waits = waits, {}
        for index, answer in _answers(asked, threads):
            play = plays[index]
            if isinstance(answer, Exception):
                advance(index, lambda play=play, error=answer: play.throw(error))
            else:
                advance(index, lambda play=play, value=answer: play.send(value))
    return [results[index] for index in range(len(plays))]


def _answers(waits: _Waits, threads: int) -> Iterable[tuple[int, Any]]:
    """(index, answer or error) for everything that is waited for."""
    calls = [(index, wait) for index, wait in waits.items() if isinstance(wait, IsolatedCall)]
    if calls:
        yield from zip((i for i, _ in calls), run_calls([call for _, call in calls]), strict=True)
    slow = [(index, wait) for index, wait in waits.items() if isinstance(wait, Slow)]
    if len(slow) < 2 or threads < 2:
        yield from ((index, _value(wait)) for index, wait in slow)
        return
    with ThreadPoolExecutor(min(threads, len(slow)), "envgen-users") as pool:
        yield from zip((i for i, _ in slow), pool.map(_value, (wait for _, wait in slow)), strict=True)


def _value(wait: Slow) -> Any:
    try:
        return wait.run()
    except Exception as error:
        return error


async def drive_async(play: Play[T]) -> T:
    """``drive`` for asyncio: other tasks run while something is waited for.

    A task that is cancelled leaves its episode in the middle of an action: close it and open another.
    """
    try:
        wait = next(play)
        while True:
            try:
                if isinstance(wait, IsolatedCall):
                    value = await _line().call(wait)
                else:
                    value = await asyncio.get_running_loop().run_in_executor(
                        executor("users", _SLOW_AT_ONCE), wait.run
                    )
            except Exception as error:  # handed over: the play decides
                wait = play.throw(error)
            else:
                wait = play.send(value)
    except StopIteration as end:
        return cast("T", end.value)


_lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()


def _line() -> _Line:
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line()
    return line


class _Line:
    """The calls of one event loop that wait for workers. Those of one pass of the loop leave together; calls
    to a worker that is busy wait for it to come back, and then leave together."""

    def __init__(self) -> None:
        self._waiting: list[tuple[IsolatedCall, asyncio.Future[Answer]]] = []
        self._busy: set[object] = set()
        self._scheduled = False

    async def call(self, call: IsolatedCall) -> Any:
        """The outcome of one call. Raises ToolDefect."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((call, future))
        self._schedule(loop)
        answer = await future
        if isinstance(answer, ToolDefect):
            raise answer
        return answer

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled and self._waiting:
            self._scheduled = True
            loop.call_soon(self._leave, loop)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        groups: dict[object, list[tuple[IsolatedCall, asyncio.Future[Answer]]]] = {}
        for call, future in self._waiting:
            groups.setdefault(call.episode.place, []).append((call, future))
        self._waiting = []
        for place, group in groups.items():
            if place in self._busy:
                self._waiting += group
                continue
            self._busy.add(place)
            task = loop.run_in_executor(
                executor("lines", _LINES_AT_ONCE), run_calls, [call for call, _ in group]
            )
            task.add_done_callback(lambda done, p=place, g=group: self._back(loop, p, g, done))

    def _back(
        self,
        loop: asyncio.AbstractEventLoop,
        place: object,
        group: list[tuple[IsolatedCall, asyncio.Future[Answer]]],
        done: asyncio.Future[list[Answer]],
    ) -> None:
        self._busy.discard(place)
        error = done.exception() if not done.cancelled() else asyncio.CancelledError()
        answers = [None] * len(group) if error is not None else done.result()
        for (_, future), answer in zip(group, answers, strict=True):
            if future.cancelled():
                continue
            if answer is None:
                assert error is not None
                future.set_exception(error)
            else:
                future.set_result(answer)
        self._schedule(loop)
