"""How much of an environment its tasks cover, and how different they are: the measures of `envgen synth`.

full sequence   names of all tools a reference calls, in order (questions to the user left out)
write sequence  the same, only the tools that change the state
edge            an output of one tool that becomes an argument of another, directly or by reasoning
near duplicate  a task whose instruction, with names and numbers blanked, shares `NEAR` of its words or more
                with that of an earlier task of the same full sequence

The tool graph has an edge wherever types fit. Only some of them are *executable*: the value is news to the
caller and of use to the next call. `idle_reason` says of an edge why it is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from envgen.synthesis.blueprint import split_reference
from envgen.synthesis.graph import keyed_collection
from envgen.synthesis.variants import variants_of
from envgen.types import (
    CoverageReport,
    EnvironmentDraft,
    StateSchema,
    Task,
    ToolEdge,
    ToolGraph,
    ToolSemantics,
)

NEAR = 0.8
"""Share of common words (Jaccard, over word pairs) from which two instructions count as the same."""
LEAST_PER_WRITER = 3
"""Tasks in which every write tool should stand."""
GOALS = {"full": 0.95, "writes": 0.65, "edges": 0.8, "near": 0.01}
"""What a bundle should reach; `shortfalls` names what it does not."""

Edge = tuple[str, str, str]
"""(source tool, target tool, parameter)."""


def full_sequence(task: Task) -> tuple[str, ...]:
    """Tools of the reference in order."""
    return tuple(step.tool for step in task.reference if step.kind != "ask")


def write_sequence(task: Task, semantics: Mapping[str, ToolSemantics]) -> tuple[str, ...]:
    """Tools of the reference that change the state, in order."""
    return tuple(tool for tool in full_sequence(task) if semantics[tool].writes_state)


def edges_used(task: Task) -> set[Edge]:
    """Edges along which the reference passes a value on."""
    found: set[Edge] = set()
    nodes = {node.id: node for node in task.blueprint.nodes}
    for step in task.reference:
        for source in step.sources:
            if source.kind == "output":
                origins = [split_reference(source.detail)[0]]
            elif source.kind == "reasoning":
                origins = [split_reference(pattern)[0] for pattern in nodes[source.detail].elements]
            else:
                continue
            found.update((task.reference[at].tool, step.tool, source.param) for at in origins)
    return found


# ----------------------------------------------------------------------------------------- executable edges
def idle_reason(edge: ToolEdge, semantics: Mapping[str, ToolSemantics], schema: StateSchema) -> str:
    """Why nobody would go along an edge; empty for an executable one.

    ``told``: the source was given that very key (or its record was looked up before), so its output is no
    news. ``own``: the key is the logged-in user's. ``unfilled``: what makes a record fills no such field of
    it. ``empty``: the source has just made the record: there is nothing below it to read, and nothing in it
    that was not just written. ``undone``: the target would delete what was just made. ``settable``: the
    target changes of the new record only what its creation could have set. ``settled``: the record is as the
    target would make it already. ``barred``: the record that the source shows is why the target refuses.
    ``listed``: the list that leads to the source's record shows the key already. ``shown``: the source's
    result shows all that the target's would. ``useless``: no write tool can take what the target shows.
    ``summary``: the target shows no records.
    """
    source, target = semantics[edge.source], semantics[edge.target]
    if edge.collection in _told(source, schema):
        return "told"
    if source.verb == "create":
        own = {keyed_collection(schema, source.collection, name) for name in source.from_session}
        if edge.collection in own:
            return "own"
        if edge.collection != source.collection:
            return "unfilled"
        if not target.writes_state:
            return "empty"
        acts = target.key is not None and target.key.param == edge.param and target.verb != "create"
        if acts and target.verb == "delete":
            return "undone"
        changed = {*(b.field for b in (*target.writes, *target.amounts)), *target.constants, target.toggles}
        changed -= {""}
        variants = variants_of(source.collection, semantics)
        if variants is not None:  # a reminder has no command to set
            changed = {name for name in changed if variants.fits(source.constants, name)}
        if acts and target.constants and _is_default(target, schema):
            return "settled"
        if acts and changed <= {*(b.field for b in source.writes), *source.constants}:
            return "settable"
    elif source.writes_state:
        return "told"
    if _is_so(edge, source, target) or _is_there(edge, target):
        return "settled"
    children = {rule.collection for rule in target.preconditions if rule.kind == "no_children"}
    if source.collection in children and source.collection != edge.collection:
        return "barred"
    if source.verb == "get" and _listed(edge, source, semantics, schema):
        return "listed"
    if target.writes_state:
        return ""
    if target.verb in ("aggregate", "count"):
        return "summary"
    news = _shows(target) - _shows(source) - {(edge.collection, edge.field)}
    if not news:
        return "shown"
    if not any(_takes(writer, news, schema) for writer in semantics.values() if writer.writes_state):
        return "useless"
    return ""


def _listed(
    edge: ToolEdge, source: ToolSemantics, semantics: Mapping[str, ToolSemantics], schema: StateSchema
) -> bool:
    """True when some list shows both the key of the source's record and the key that the edge carries."""
    key = schema.collection(source.collection).key
    for tool in semantics.values():
        if tool.many and not tool.writes_state and tool.collection == source.collection:
            keyed = {keyed_collection(schema, o.collection, o.field) for o in tool.outputs}
            if edge.collection in keyed and (source.collection, key) in _shows(tool):
                return True
    return False


def _is_default(tool: ToolSemantics, schema: StateSchema) -> bool:
    """True when a new record has all that the tool would set."""
    fields = {f.name: f.default for f in schema.collection(tool.collection).fields}
    return all(fields.get(name) == value for name, value in tool.constants.items())


def _is_so(edge: ToolEdge, source: ToolSemantics, target: ToolSemantics) -> bool:
    """True when a list shows only records that are as the target would make them."""
    if target.collection != edge.collection or not source.where:
        return False
    behind = "" if source.collection == edge.collection else "."
    return any(
        (path == name if not behind else path.endswith(f".{name}")) and known == value
        for name, known in target.constants.items()
        for path, value in source.where.items()
    )


def _is_there(edge: ToolEdge, target: ToolSemantics) -> bool:
    """True when the target would make a record that has the key of the very record shown: what is on a
    watchlist is not put there."""
    made = target.verb == "create" and target.collection == edge.collection
    return made and any(b.param == edge.param and b.field == edge.field for b in target.writes)


def _told(tool: ToolSemantics, schema: StateSchema) -> set[str]:
    """Collections whose keys a call of the tool carries in any case."""
    key = (tool.key,) if tool.key is not None else ()
    given = [*key, *(b for b in tool.scope if b.required or tool.writes_state)]
    given += tool.writes if tool.writes_state else [b for b in tool.filters if b.required]
    return {keyed_collection(schema, b.collection, b.field) for b in given if b.field} - {""}


def _shows(tool: ToolSemantics) -> set[tuple[str, str]]:
    return {(output.collection, output.field) for output in tool.outputs}


def _takes(writer: ToolSemantics, news: set[tuple[str, str]], schema: StateSchema) -> bool:
    """True when a write tool has a parameter for something shown: a key, or the same field of a record."""
    keys = {keyed_collection(schema, *shown) for shown in news} - {""}
    key = (writer.key,) if writer.key is not None else ()
    for binding in (*key, *writer.scope, *writer.writes):
        if (binding.collection, binding.field) in news:
            return True
        if binding.field and keyed_collection(schema, binding.collection, binding.field) in keys:
            return True
    return False


def executable_edges(
    graph: ToolGraph, semantics: Iterable[ToolSemantics], schema: StateSchema
) -> tuple[frozenset[Edge], Counter[str]]:
    """The edges of a graph that a task can go along, and how many of the others there are by reason."""
    known = {s.tool: s for s in semantics}
    useful: set[Edge] = set()
    idle: Counter[str] = Counter()
    for edge in graph.edges:
        reason = idle_reason(edge, known, schema)
        if reason:
            idle[reason] += 1
        else:
            useful.add((edge.source, edge.target, edge.param))
    return frozenset(useful), idle


# ----------------------------------------------------------------------------------------- near duplicates
_QUOTED = re.compile(r'"[^"]*"')
_NUMBER = re.compile(r"\d[\w:.-]*")
_WORD = re.compile(r"\w+|_")


def fingerprint(instruction: str) -> frozenset[tuple[str, str]]:
    """Pairs of neighbouring words of an instruction, names and numbers blanked."""
    text = _NUMBER.sub("_", _QUOTED.sub("_", instruction)).casefold()
    words = ["^", *_WORD.findall(text), "$"]
    return frozenset(pairwise(words))


def likeness(one: frozenset[tuple[str, str]], other: frozenset[tuple[str, str]]) -> float:
    """Share of common word pairs (Jaccard), 0 to 1."""
    return len(one & other) / len(one | other)


class Likeness:
    """Finds near duplicates among tasks as they come."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], list[frozenset[tuple[str, str]]]] = {}

    def near(self, task: Task) -> bool:
        """True when an earlier task reads nearly the same and has the same full sequence."""
        print_ = fingerprint(task.instruction)
        return any(likeness(print_, other) >= NEAR for other in self._known.get(full_sequence(task), ()))

    def note(self, task: Task) -> None:
        """Remember a task."""
        self._known.setdefault(full_sequence(task), []).append(fingerprint(task.instruction))


# ----------------------------------------------------------------------------------------- the report
class Coverage:
    """The figures of a bundle's tasks, taken as they come: tasks themselves are not kept. Tasks that change
    nothing count for full sequences only."""

    def __init__(self, draft: EnvironmentDraft, graph: ToolGraph) -> None:
        self._semantics = {s.tool: s for s in draft.semantics}
        self._full: Counter[tuple[str, ...]] = Counter()
        self._writes: Counter[tuple[str, ...]] = Counter()
        self._levels: Counter[int] = Counter()
        self._edges, self._idle = executable_edges(graph, draft.semantics, draft.state_schema)
        self._used: set[Edge] = set()
        self._alike, self._near = Likeness(), 0

    def add(self, task: Task) -> None:
        """Count one task more."""
        self._full[full_sequence(task)] += 1
        written = write_sequence(task, self._semantics)
        if written:
            self._writes[written] += 1
        self._levels[task.difficulty] += 1
        self._used |= edges_used(task)
        self._near += self._alike.near(task)
        self._alike.note(task)

    def report(self) -> CoverageReport:
        """The figures so far."""
        per_writer: Counter[str] = Counter()
        for sequence, count in self._writes.items():
            per_writer.update(dict.fromkeys(sequence, count))
        writers = [tool for tool, s in self._semantics.items() if s.writes_state]
        unused = self._edges - self._used
        return CoverageReport(
            tasks=self._full.total(),
            unique_sequences=len(self._full),
            writing_tasks=self._writes.total(),
            unique_write_sequences=len(self._writes),
            near_duplicates=self._near,
            tasks_per_writer={tool: per_writer[tool] for tool in writers},
            edges_executable=len(self._edges),
            edges_used=len(self._edges & self._used),
            edges_unused=tuple(sorted(f"{a} -> {b}.{param}" for a, b, param in unused)),
            edges_idle=dict(sorted(self._idle.items())),
            levels={str(k): n for k, n in sorted(self._levels.items())},
        )


def measure(tasks: Iterable[Task], draft: EnvironmentDraft, graph: ToolGraph) -> CoverageReport:
    """The figures of some tasks of an environment."""
    found = Coverage(draft, graph)
    for task in tasks:
        found.add(task)
    return found.report()


def shortfalls(report: CoverageReport) -> tuple[str, ...]:
    """Every goal the tasks do not reach, in words with numbers."""
    found: list[str] = []
    share = report.unique_sequences / max(1, report.tasks)
    if share < GOALS["full"]:
        found.append(f"{report.unique_sequences} different tool sequences in {report.tasks} tasks")
    if report.unique_write_sequences < GOALS["writes"] * report.writing_tasks:
        found.append(
            f"{report.unique_write_sequences} different write sequences in {report.writing_tasks} tasks"
        )
    if report.near_duplicates > GOALS["near"] * report.tasks:
        found.append(f"{report.near_duplicates} near duplicates")
    rare = {t: n for t, n in report.tasks_per_writer.items() if n < min(LEAST_PER_WRITER, report.tasks)}
    if rare:
        found.append("write tools in few tasks: " + ", ".join(f"{t} ({n})" for t, n in rare.items()))
    if report.edges_used < GOALS["edges"] * report.edges_executable:
        found.append(f"{report.edges_used} of {report.edges_executable} executable edges used")
    return tuple(found)
