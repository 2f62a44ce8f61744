"""A scripted solver of limited skill: what the difficulty levels are measured with. No model, no training.

It is told the plan of a task (which tool or question comes next, and where each argument is to be found), and
has to carry it out in the live environment: what the task does not say it reads off its own results and the
user's own words, never off the reference. It fails the way agents do, each with a fixed chance:

plan       a step is forgotten
read       a value is misread: another one that stands beside it is taken
reason     a conclusion goes wrong: another record than the cheapest, the latest, …
ask        a fact that only the user knows is made up instead of asked for
attention  records of a list beyond so many are not seen
span       results from further back than so many are forgotten

So its success on a task falls with the number of steps, conclusions, distractors and hidden facts, and with
nothing else. It says how hard tasks are *relative to each other*, not how an agent with another mix of
weaknesses would do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from envgen.errors import TaskError
from envgen.runtime.env import Env, open_env
from envgen.store import Bundle
from envgen.synthesis.blueprint import elements_of, fetch, infer, parse_path, split_reference
from envgen.synthesis.schema import place_argument, read_argument
from envgen.types import ArgumentSource, BlueprintNode, EnvLimits, Message, ReferenceStep, Task, ToolCall

LIMITS = EnvLimits(max_turns=64, max_tool_calls=64, max_tool_errors=64)
"""Budgets that no task comes near: the solver's own limits are what is measured."""


@dataclass(frozen=True)
class Skill:
    """Chances, each between 0 and 1, and limits of a solver."""

    plan: float = 0.985
    read: float = 0.985
    reason: float = 0.9
    ask: float = 0.9
    attention: int = 7
    """Records of one list that are seen."""
    span: int = 10
    """Results that are remembered."""


PERFECT = Skill(plan=1.0, read=1.0, reason=1.0, ask=1.0, attention=1 << 20, span=1 << 20)
"""Solves every certified task: what the measurement is checked by."""


class ScriptedSolver:
    """Plays tasks of a bundle. ``seed`` decides every slip."""

    def __init__(self, bundle: Bundle, skill: Skill, seed: int) -> None:
        self.bundle = bundle
        self.skill = skill
        self.seed = seed

    def solves(self, task: Task) -> bool:
        """Play one episode; True when the end state (and the answers) are accepted."""
        env = open_env(self.bundle, task, seed=self.seed, limits=LIMITS)
        env.start()
        attempt = _Attempt(task, env, self.skill, random.Random(f"solver/{self.seed}/{task.id}"))
        for index, step in enumerate(task.reference):
            if not attempt.take(index, step):
                return env.verdict().success
        env.step(Message(role="assistant", content=task.closing))
        return env.verdict().success


class _Attempt:
    def __init__(self, task: Task, env: Env, skill: Skill, rng: random.Random) -> None:
        self.task, self.env, self.skill, self.rng = task, env, skill, rng
        self.results: list[Any] = []
        """Own results by reference step; None where there is none."""
        self.replies: list[str] = []
        self.nodes = {node.id: node for node in task.blueprint.nodes}
        self.said = [fact.value for fact in task.facts]

    def take(self, index: int, step: ReferenceStep) -> bool:
        """Do one step, or slip; False when the episode is over."""
        self.results.append(None)
        if self.rng.random() > self.skill.plan:
            return True
        if step.kind == "ask" and self._is_fact(step) and self.rng.random() > self.skill.ask:
            return True
        if step.kind != "call":
            result = self.env.step(Message(role="assistant", content=step.text))
            self.replies += [m.content for m in result.observations]
            self.results[index] = _parsed(result.observations[-1].content) if step.kind == "act" else None
            return not result.done
        arguments: dict[str, Any] = {}
        for source in step.sources:
            value = self._value(index, step, source)
            if value is not None:
                place_argument(arguments, source.param, value)
        call = ToolCall(id=f"s{index}", name=step.tool, arguments=orjson.dumps(arguments).decode())
        result = self.env.step(Message(role="assistant", tool_calls=(call,)))
        if result.observations and not result.tool_errors:
            self.results[index] = _parsed(result.observations[-1].content)
        return not result.done

    def _is_fact(self, step: ReferenceStep) -> bool:
        """True for a question about a hidden fact, not for one that wants a go-ahead."""
        words = [word for fact in self.task.facts if not fact.stated for word in fact.ask_words]
        return any(word in step.text for word in words)

    def _value(self, index: int, step: ReferenceStep, source: ArgumentSource) -> Any:
        """One argument, as the solver makes it out."""
        right = self.rng.random() <= self.skill.read
        if source.kind == "user_fact":
            return self._told(source) if right else self._other(None)
        if source.kind == "output":
            return self._seen(index, source, right=right)
        if source.kind == "reasoning":
            return self._concluded(index, step, source, right=right)
        # what the instruction (or the tool's schema) says stands there word for word: it is only misread
        value = read_argument(step.arguments, source.param)
        return value if right else self._other(value)

    def _told(self, source: ArgumentSource) -> Any:
        fact = next(f for f in self.task.facts if f.name == source.detail)
        return (
            fact.value if any(fact.sentence in reply for reply in self.replies) else self._other(fact.value)
        )

    def _other(self, value: Any) -> Any:
        """Something else that was said, or a value made up."""
        others = [said for said in self.said if said != value and type(said) is type(value)]
        if others:
            return self.rng.choice(others)
        if isinstance(value, bool):
            return not value
        return value + 1 if isinstance(value, (int, float)) else f"{value or 'some'} other"

    def _remembered(self, index: int, at: int) -> Any:
        """An earlier result, unless it is too long ago."""
        between = sum(step.kind != "ask" for step in self.task.reference[at:index])
        return self.results[at] if between <= self.skill.span else None

    def _seen(self, index: int, source: ArgumentSource, *, right: bool) -> Any:
        """A value read off an earlier result: that of the record named, if it is seen, else of another."""
        at, path = split_reference(source.detail)
        result = self._remembered(index, at)
        place = next((token for token in parse_path(path) if isinstance(token, int)), None)
        if right and (place is None or place < self.skill.attention):
            return fetch(path, result)
        if place is None:
            return self._other(fetch(path, result))
        head, _, tail = path.partition(f"[{place}]")
        records = fetch(head, result)
        count = len(cast("list[Any]", records)) if isinstance(records, list) else 0
        visible = [n for n in range(min(count, self.skill.attention)) if n != place]
        return fetch(f"{head}[{self.rng.choice(visible)}]{tail}", result) if visible else None

    def _concluded(self, index: int, step: ReferenceStep, source: ArgumentSource, *, right: bool) -> Any:
        """A conclusion from the records that are seen; a slip takes another record."""
        node = self.nodes[source.detail]
        at = [split_reference(pattern)[0] for pattern in node.elements]
        outputs = [self._remembered(index, n) if n in at else None for n in range(index)]
        try:
            answers = infer(_narrowed(node, outputs, self.skill.attention), outputs)
        except TaskError:
            return None
        if not right or self.rng.random() > self.skill.reason:
            shown = [fetch(node.answer, e) for e in elements_of(node, outputs)] if node.answer else []
            wrong = [value for value in shown if value not in answers]
            return self.rng.choice(wrong) if wrong else self._other(answers[0])
        turn = self._turn(index, step, source)
        return answers[turn] if turn < len(answers) else None

    def _turn(self, index: int, step: ReferenceStep, source: ArgumentSource) -> int:
        """Which of several records this step is for: the calls of one demand take them in order."""
        if self.nodes[source.detail].reasoning != "filter":
            return 0
        earlier = self.task.reference[:index]
        return sum(source in other.sources and other.tool == step.tool for other in earlier)


def _narrowed(node: BlueprintNode, outputs: Sequence[Any], attention: int) -> BlueprintNode:
    """The node over the first ``attention`` records only."""
    patterns: list[str] = []
    for pattern in node.elements:
        step, path = split_reference(pattern)
        if not path.endswith("[]"):
            patterns.append(pattern)
            continue
        shown = fetch(path[:-2], outputs[step])
        count = len(cast("list[Any]", shown)) if isinstance(shown, list) else 0
        patterns += [f"{step}:{path[:-2]}[{n}]" for n in range(min(count, attention))]
    return node.model_copy(update={"elements": tuple(patterns)})


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def success_rates(bundle: Bundle, skill: Skill, seeds: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    """Difficulty -> for each seed ``(tasks solved, tasks)``. Tasks that want an answer are left out: the
    solver does not work one out."""
    found: dict[int, list[tuple[int, int]]] = {}
    played = [task for task in bundle.tasks if not task.answers]
    for task_level in sorted({task.difficulty for task in played}):
        tasks = [task for task in played if task.difficulty == task_level]
        found[task_level] = [
            (sum(ScriptedSolver(bundle, skill, seed).solves(task) for task in tasks), len(tasks))
            for seed in seeds
        ]
    return found
