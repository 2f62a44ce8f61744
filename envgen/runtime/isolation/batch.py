"""Calls of many episodes in one round trip for each worker.

A switch to a worker and back costs more than most calls. Episodes that are stepped together
(``runtime.stepping``) share it. When a worker goes down in a batch, nothing of the batch counts: each of its
calls is made once more alone, so the guilty one ends as it would have ended alone, and no other is touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from envgen.errors import ToolDefect
from envgen.runtime.isolation.episode import IsolatedCall
from envgen.runtime.isolation.process import CallRequest, Worker, WorkerGone
from envgen.runtime.tools import ToolOutcome

Answer = ToolOutcome | ToolDefect
"""What became of a call; the error that ends its episode is a value here."""

_executors: dict[tuple[int, str], ThreadPoolExecutor] = {}


def executor(name: str, threads: int) -> ThreadPoolExecutor:
    """Threads that wait for something, by purpose, made at first use; a forked process gets its own."""
    key = os.getpid(), name
    pool = _executors.get(key)
    if pool is None:
        pool = _executors[key] = ThreadPoolExecutor(threads, f"envgen-{name}")
    return pool


def alone(call: IsolatedCall) -> Answer:
    """One call by itself."""
    try:
        return call.run()
    except ToolDefect as error:
        return error


def run_calls(calls: Sequence[IsolatedCall]) -> list[Answer]:
    """The answers, in the order of the calls; one call per episode. Workers compute side by side."""
    if len(calls) == 1:
        return [alone(calls[0])]
    answers: list[Answer | None] = [None] * len(calls)
    groups: dict[Worker, list[int]] = {}
    requests: list[CallRequest | None] = [None] * len(calls)
    for index, call in enumerate(calls):
        try:
            worker, number, opening = call.episode.placed()
        except WorkerGone:
            call.episode.leave()
        except ToolDefect as error:
            answers[index] = error
        else:
            requests[index] = (opening, number, call.name, call.arguments)
            groups.setdefault(worker, []).append(index)

    def run_group(item: tuple[Worker, list[int]]) -> None:
        worker, members = item
        sent = [request for request in (requests[index] for index in members) if request is not None]
        try:
            replies = worker.ask_many(sent)
        except WorkerGone:
            for index in members:
                calls[index].episode.leave()
            return
        for index, (status, value, text) in zip(members, replies, strict=True):
            try:
                answers[index] = calls[index].episode.take(calls[index], status, value, text)
            except ToolDefect as error:
                answers[index] = error

    if len(groups) > 1:
        list(executor("workers", os.cpu_count() or 1).map(run_group, groups.items()))
    else:
        list(map(run_group, groups.items()))
    return [alone(call) if answer is None else answer for call, answer in zip(calls, answers, strict=True)]
