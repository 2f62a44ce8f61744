"""The judge's precision and recall, measured against injected faults, by fault kind (``autoforge meu-eval``).

Every task is played once per fault kind with a user that makes that mistake, and once with the same user
without it. The agent is scripted: it asks a question or two, plays the task's reference, and closes. An
episode that gave the mistake no chance counts as a clean one. Everything is a function of bundles and seed
(and of the model, where one speaks or judges).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from envgen.runtime.context import mix
from envgen.runtime.env import open_env
from envgen.store import Bundle
from envgen.types import EnvLimits, Message, StopReason, Task, ToolCall
from envgen.users.faults import FaultInjectedUser, InjectedFault, Sentences
from envgen.users.port import FAULT_KINDS, FaultKind, UserErrorHook, UserVerdict
from envgen.users.settings import UserMaker

_LIMITS = EnvLimits(max_turns=64, max_tool_calls=64, max_tool_errors=16)
_CLOSINGS = 3
"""Times the agent says its last message to a user who goes on talking."""


@dataclass(frozen=True)
class JudgedEpisode:
    """One episode: what was done to it, and what the judge said."""

    task_id: str
    environment: str
    wanted: FaultKind | None
    """The kind asked for; None for a run without a fault."""
    injected: InjectedFault | None
    """Ground truth; None where nothing went wrong."""
    truth_turn: int
    """Index of the message at fault in the transcript; -1 without one."""
    verdict: UserVerdict
    success: bool
    """The grader's verdict: what a trainer would have learned from."""
    transcript: tuple[Message, ...]


@dataclass(frozen=True)
class KindRow:
    """One fault kind: episodes with it, and the clean runs of the same tasks."""

    kind: str
    injected: int
    caught: int
    named: int
    """Of those caught, how many under the right kind (rules only; a model gives no kind)."""
    placed: int
    """Of those caught, how many at the right message."""
    clean: int
    alarms: int
    """Clean runs of the same tasks that the judge took for faulty."""

    @property
    def recall(self) -> float:
        """caught / injected; NaN without any."""
        return self.caught / self.injected if self.injected else math.nan

    @property
    def precision(self) -> float:
        """caught / (caught + alarms), one clean run for each faulty one; NaN when nothing was flagged."""
        flagged = self.caught + self.alarms
        return self.caught / flagged if flagged else math.nan


def asking_actions(task: Task, seed: int) -> Iterator[Message]:
    """A scripted agent that asks: a question of its own in most episodes, the reference, the closing.

    Its question is about something the user said already, about a fact it will need, a go-ahead, or about
    something else; once in a while it offers the right value.
    """
    rng = random.Random(mix(task.seed, seed, 4242))
    facts = [fact for fact in task.facts if fact.ask_words]
    kind = rng.choice(("stated", "ahead", "other", "offer", "none") if facts else ("ahead", "other", "none"))
    asks = any(step.kind == "ask" for step in task.reference)
    if kind == "none" and not asks:
        kind = "ahead"  # a user that is never addressed has few chances to go wrong
    fact = rng.choice(facts) if facts else None
    if kind == "stated" and fact is not None:
        yield _say(f"Which {fact.ask_words[0]} do you want, please?")
    elif kind == "offer" and fact is not None:
        yield _say(f"Just to be sure, is this right? {fact.sentence}")
    elif kind == "ahead":
        yield _say("Shall I go ahead with this?")
    elif kind == "other":
        yield _say(rng.choice(("Is there anything else?", "Who will look after it?", "Are you in a hurry?")))
    for index, step in enumerate(task.reference):
        if step.kind != "call":
            yield _say(step.text)
        else:
            call = ToolCall(id=f"m{index}", name=step.tool, arguments=json.dumps(step.arguments))
            yield Message(role="assistant", tool_calls=(call,))
    for _ in range(_CLOSINGS):
        yield _say(task.closing)


def _say(text: str) -> Message:
    return Message(role="assistant", content=text)


def measure_judge(
    bundles: Iterable[Bundle],
    judge: UserErrorHook,
    make_user: UserMaker,
    *,
    kinds: Sequence[FaultKind] = FAULT_KINDS,
    tasks: int = 0,
    seed: int = 0,
    sentences: Sentences | None = None,
    on_done: Callable[[JudgedEpisode], None] | None = None,
) -> list[JudgedEpisode]:
    """Play and judge every task (the first ``tasks`` of a bundle; 0 = all) once per kind and once without.

    ``sentences`` word the mistakes; the shipped ones when left out.
    """
    done: list[JudgedEpisode] = []
    for bundle in bundles:
        chosen = bundle.tasks[:tasks] if tasks else bundle.tasks
        for task in chosen:
            for number, kind in enumerate(kinds):
                # The clean twin: the same words of the user, the same agent.
                for wanted in (kind, None):
                    episode = _play(bundle, task, judge, make_user, wanted, mix(seed, number), sentences)
                    done.append(episode)
                    if on_done is not None:
                        on_done(episode)
    return done


def _play(
    bundle: Bundle,
    task: Task,
    judge: UserErrorHook,
    make_user: UserMaker,
    wanted: FaultKind | None,
    seed: int,
    sentences: Sentences | None,
) -> JudgedEpisode:
    user = make_user(task, seed)
    faulty = None if wanted is None else FaultInjectedUser(user, task, wanted, seed=seed, sentences=sentences)
    env = open_env(bundle, task, limits=_LIMITS, user_error_hook=judge, user=faulty or user)
    env.start()
    for action in asking_actions(task, seed):
        if env.stop_reason is not None:
            break
        env.step(action)
    if env.stop_reason is None:
        env.close(StopReason.MAX_TURNS)
    injected = faulty.injected if faulty is not None else None
    said = [i for i, m in enumerate(env.transcript) if m.role == "user"]
    truth = -1
    if injected is not None:
        at = injected.utterance
        truth = said[at] if at < len(said) else len(env.transcript) - 1
    return JudgedEpisode(
        task_id=task.id,
        environment=bundle.name,
        wanted=wanted,
        injected=injected,
        truth_turn=truth,
        verdict=env.user_verdict,
        success=env.verdict().success,
        transcript=env.transcript,
    )


def judge_rows(episodes: Sequence[JudgedEpisode]) -> list[KindRow]:
    """One row per fault kind, then ``all``. Episodes come in pairs: a fault wanted, and its clean twin."""
    pairs = list(zip(episodes[::2], episodes[1::2], strict=True))
    kinds = [k for k in FAULT_KINDS if any(faulty.wanted == k for faulty, _ in pairs)]
    rows = [_row(kind, [pair for pair in pairs if pair[0].wanted == kind]) for kind in kinds]
    return [*rows, _row("all", pairs)]


def _row(name: str, pairs: Sequence[tuple[JudgedEpisode, JudgedEpisode]]) -> KindRow:
    hit = [faulty for faulty, _ in pairs if faulty.injected is not None]
    twins = [clean for faulty, clean in pairs if faulty.injected is not None]
    caught = [e for e in hit if e.verdict.error]
    return KindRow(
        kind=name,
        injected=len(hit),
        caught=len(caught),
        named=sum(e.injected is not None and e.verdict.kind == e.injected.kind for e in caught),
        placed=sum(e.verdict.turn == e.truth_turn for e in caught),
        clean=len(twins),
        alarms=sum(e.verdict.error for e in twins),
    )


def false_alarm_rate(episodes: Sequence[JudgedEpisode]) -> tuple[int, int]:
    """(alarms, episodes) over everything in which no fault was injected."""
    clean = [e for e in episodes if e.injected is None]
    return sum(e.verdict.error for e in clean), len(clean)
