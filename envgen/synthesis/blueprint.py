"""Paths into tool results, reasoning over them, and the recorder that turns real executions into a blueprint.

A *reference* is ``step:path``: index of a reference step and a path into its JSON result (``2:[0].id``). A
*pattern* is a reference in which ``[]`` stands for every element (``2:[]``). Reasoning nodes (METHOD.md
§2) are data, so that gate 6 can recompute them from the outputs alone: see `infer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

import orjson

from envgen.errors import TaskError
from envgen.runtime.adding import add_up
from envgen.synthesis.schema import place_argument
from envgen.types import ArgumentSource, Blueprint, BlueprintEdge, BlueprintNode, ReferenceStep

_TOKEN = re.compile(r"\[(\d*)\]|([^.\[\]]+)")
ALL = -1
"""Path token for ``[]``."""


@lru_cache(maxsize=65536)
def parse_path(path: str) -> tuple[str | int, ...]:
    """Tokens of a path: member names, element numbers, `ALL` for ``[]``."""
    tokens: list[str | int] = []
    for match in _TOKEN.finditer(path):
        number, name = match.group(1), match.group(2)
        tokens.append(name if name is not None else (int(number) if number else ALL))
    return tuple(tokens)


def resolve(path: str, value: Any) -> list[tuple[str, Any]]:
    """Every ``(concrete path, value)`` that ``path`` reaches in a JSON value; missing members reach
    nothing."""
    found: list[tuple[str, Any]] = [("", value)]
    for token in parse_path(path):
        reached: list[tuple[str, Any]] = []
        for prefix, node in found:
            if isinstance(token, str):
                members = cast("dict[str, Any]", node) if isinstance(node, dict) else {}
                if token in members:
                    reached.append((f"{prefix}.{token}" if prefix else token, members[token]))
            elif isinstance(node, list):
                items = cast("list[Any]", node)
                if token == ALL:
                    reached.extend((f"{prefix}[{i}]", item) for i, item in enumerate(items))
                elif token < len(items):
                    reached.append((f"{prefix}[{token}]", items[token]))
        found = reached
    return found


def fetch(path: str, value: Any) -> Any:
    """The single value a path reaches, or None."""
    for token in parse_path(path):
        if isinstance(token, str):
            value = cast("dict[str, Any]", value).get(token) if isinstance(value, dict) else None
        else:
            items = cast("list[Any]", value) if isinstance(value, list) else []
            value = items[token] if 0 <= token < len(items) else None
    return value


def split_reference(reference: str) -> tuple[int, str]:
    """``"2:[0].id"`` -> ``(2, "[0].id")``."""
    step, _, path = reference.partition(":")
    return int(step), path


def elements_of(node: BlueprintNode, outputs: Sequence[Any]) -> list[Any]:
    """The result elements a reasoning node looks at, in order."""
    elements: list[Any] = []
    for pattern in node.elements:
        step, path = split_reference(pattern)
        elements.extend(value for _, value in resolve(path, outputs[step]))
    return elements


def infer(node: BlueprintNode, outputs: Sequence[Any]) -> list[Any]:
    """The value(s) a reasoning node arrives at, computed from outputs only. Raises TaskError on ties, gaps
    or nothing."""
    elements = elements_of(node, outputs)
    kind = node.reasoning
    if kind == "count":
        chosen = (
            elements if node.value is None else [e for e in elements if fetch(node.over, e) == node.value]
        )
        return [len(chosen)]
    if node.names:
        elements = [e for e in elements if fetch(node.among, e) in node.names]
        if len(elements) != len(node.names):
            raise TaskError(
                f"reasoning {node.id}: {len(elements)} records named {node.names}, expected one each"
            )
    if kind == "filter" and not node.over:  # every one
        return [fetch(node.answer, e) for e in elements]
    values = [fetch(node.over, e) for e in elements]
    if kind in ("filter", "lookup"):
        answers = [fetch(node.answer, e) for e, v in zip(elements, values, strict=True) if v == node.value]
        if not answers or (kind == "lookup" and len(answers) != 1):
            raise TaskError(f"reasoning {node.id}: {len(answers)} records with {node.over} {node.value!r}")
        return answers
    if any(v is None for v in values) or len(values) < 2:
        raise TaskError(f"reasoning {node.id}: needs {node.over} on 2 records or more, got {values}")
    if kind == "sum":
        return [add_up(values)]
    best = min(values) if node.order == "min" else max(values)
    winners = [e for e, v in zip(elements, values, strict=True) if v == best]
    if len(winners) != 1:
        raise TaskError(
            f"reasoning {node.id}: {len(winners)} records share {node.over} {best!r}; the goal is ambiguous"
        )
    return [fetch(node.answer, winners[0])]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def work_out(node: BlueprintNode, outputs: Sequence[Any], word: str, label: str = "") -> str:
    """The worked reasoning of a node as one short line, e.g. ``price: 12, 7, 30 -> lowest 7 is E4``. With the
    path of the records' `label` the answer is named first: ``... -> lowest 7 is "Old Fair": E4``.
    """
    elements = elements_of(node, outputs)
    answers = [_short(answer) for answer in infer(node, outputs)]
    if label:
        names = infer(node.model_copy(update={"answer": label}), outputs)
        answers = [f'"{_short(name)}": {answer}' for name, answer in zip(names, answers, strict=True)]
    said = ", ".join(answers)
    if node.reasoning == "count":
        if not node.answer:
            return f"count: {said}"
        counted = (
            elements if node.value is None else [e for e in elements if fetch(node.over, e) == node.value]
        )
        return (
            ", ".join(f"{i} {_short(fetch(node.answer, e))}" for i, e in enumerate(counted, 1))
            + f" -> {said}"
        )
    if node.names:
        elements = [e for e in elements if fetch(node.among, e) in node.names]
    values = [fetch(node.over, e) for e in elements]
    if node.reasoning == "sum":
        total, parts = values[0], [_short(values[0])]
        for value in values[1:]:
            parts[-1] = f"{parts[-1]}+{_short(value)}={_short(total + value)}"
            total += value
            parts.append(_short(total))
        return "; ".join(parts[:-1])
    if node.reasoning in ("filter", "lookup"):
        return f"{word} {_short(node.value)}: {said}"
    best = min(values) if node.order == "min" else max(values)
    superlative = {"argmin": "lowest", "argmax": "highest", "earliest": "earliest", "latest": "latest"}
    dated = isinstance(best, str)
    default = ("earlier" if dated else "lower") if node.order == "min" else ("later" if dated else "higher")
    how = superlative.get(node.reasoning or "", default)
    return f"{word}: {', '.join(_short(v) for v in values)} -> {how} {_short(best)} is {said}"


@dataclass(frozen=True)
class Known:
    """A value the agent can know, and from where: what an argument is made of."""

    value: Any
    kind: Literal["instruction", "user_fact", "output", "reasoning", "constant"]
    detail: str
    node: str = ""
    """Blueprint node the value flows from; empty for the instruction."""
    said: str = ""
    """The look-up in words, when a label led to the value: ``Harbor Build: P95``."""

    def source(self, param: str) -> ArgumentSource:
        """The same as an `ArgumentSource` of one parameter."""
        return ArgumentSource(param=param, kind=self.kind, detail=self.detail)


Execute = Callable[[str, dict[str, Any]], Any]
"""Runs one tool on the live state and returns its result; raises TaskError when the tool refuses."""


@dataclass
class Recorder:
    """Executes steps and writes down reference, blueprint and sources. Repeated reads are kept once
    (METHOD.md §2: redundancy removal)."""

    execute: Execute
    steps: list[ReferenceStep] = field(default_factory=list[ReferenceStep])
    outputs: list[Any] = field(default_factory=list[Any])
    nodes: list[BlueprintNode] = field(default_factory=list[BlueprintNode])
    edges: list[BlueprintEdge] = field(default_factory=list[BlueprintEdge])
    writes: list[int] = field(default_factory=list[int])
    _reads: dict[str, int] = field(default_factory=dict[str, int])
    _words: dict[str, str] = field(default_factory=dict[str, str])
    _thought_given: set[str] = field(default_factory=set[str])

    def call(
        self, tool: str, arguments: dict[str, Known], *, write: bool, confirm: str = "", request: str = ""
    ) -> int:
        """Run one tool; returns its step index. A read made before with the same arguments is not made
        again. ``confirm``: the question that stands right before the call; ``request``: the one on which the
        user makes the call itself."""
        plain: dict[str, Any] = {}
        for name, known in arguments.items():
            place_argument(plain, name, known.value)
        signature = tool + orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()
        if not write and signature in self._reads:
            return self._reads[signature]
        result = self.execute(tool, plain)
        index = len(self.steps) + bool(confirm)
        node = f"t{index}"
        thoughts: list[str] = []
        for name, known in arguments.items():
            if not known.node:
                continue
            reasoning = known.kind == "reasoning"
            self.edges.append(
                BlueprintEdge(
                    source=known.node, target=node, param=name, kind="reasoning" if reasoning else "data"
                )
            )
            # A conclusion is said once, before the first call that rests on it.
            thought = self._words[known.node] if reasoning else known.said
            mark = known.node if reasoning else f"{known.node} {thought}"
            if thought and mark not in self._thought_given:
                self._thought_given.add(mark)
                thoughts.append(thought)
        thought = "; ".join(thoughts)
        if confirm:  # the conclusion leads to the question, which names what was found
            asked = self.ask(confirm, "", None).node
            self.steps[-1] = self.steps[-1].model_copy(update={"thought": thought})
            self.edges.append(BlueprintEdge(source=asked, target=node, kind="order"))
            thought = ""
        self.steps.append(
            ReferenceStep(
                kind="act" if request else "call",
                tool=tool,
                arguments=plain,
                text=request,
                thought=thought,
                node=node,
                sources=tuple(known.source(name) for name, known in arguments.items()),
            )
        )
        self.outputs.append(result)
        self.nodes.append(BlueprintNode(id=node, kind="tool", tool=tool))
        if write:
            self.writes.append(index)
        else:
            self._reads[signature] = index
        return index

    def ask(self, question: str, fact: str, value: Any) -> Known:
        """A question to the user that releases a fact; returns the value as known from then on."""
        index = len(self.steps)
        node = f"a{index}"
        self.steps.append(
            ReferenceStep(kind="ask", tool="", arguments={}, text=question, thought="", node=node, sources=())
        )
        self.outputs.append(None)
        self.nodes.append(BlueprintNode(id=node, kind="ask", detail=question))
        return Known(value, "user_fact", fact, node)

    def reason(self, node: BlueprintNode, word: str, label: str = "") -> list[Known]:
        """Add a reasoning node over earlier outputs; returns what it arrives at. `label`: see `work_out`."""
        answers = infer(node, self.outputs)
        self._words[node.id] = work_out(node, self.outputs, word, label)
        self.nodes.append(node)
        for step in dict.fromkeys(split_reference(pattern)[0] for pattern in node.elements):
            self.edges.append(
                BlueprintEdge(source=self.steps[step].node, target=node.id, param=node.over, kind="reasoning")
            )
        return [Known(answer, "reasoning", node.id, node.id) for answer in answers]

    def reasoning_id(self) -> str:
        """A free id for a reasoning node."""
        return f"r{sum(n.kind == 'reasoning' for n in self.nodes)}"

    def output(self, step: int, path: str) -> Known:
        """The value at a concrete path of an earlier result. Raises TaskError when it is not there."""
        value = fetch(path, self.outputs[step])
        if value is None:
            raise TaskError(f"step {step} ({self.steps[step].tool}) has nothing at {path!r}")
        return Known(value, "output", f"{step}:{path}", self.steps[step].node)

    def characters(self) -> int:
        """Characters of the calls and results so far, as they stand in a trajectory."""
        total = 0
        for step, output in zip(self.steps, self.outputs, strict=True):
            total += len(step.thought) + len(step.text)
            if step.kind != "ask":
                total += len(step.tool) + len(orjson.dumps(step.arguments)) + len(orjson.dumps(output)) + 30
        return total

    def blueprint(self) -> Blueprint:
        """The DAG recorded so far."""
        return Blueprint(nodes=tuple(self.nodes), edges=tuple(self.edges))
