"""Gates of DESIGN.md §7: every task proves itself before it ships, with no model.

1 replay · 2 noop · 3 write_dropped · 4 mutants · 5 equivalents · 6 knowable · 7 binding · 8 leak · 9
duplicate. Gate 1 runs in fresh processes for a whole bundle at once (`envgen.synthesis.replay`), gate 9
looks at all tasks of a bundle; the others run here on one task, on the real functions and the real grader.
What the user does with tools of its own counts as a write like the agent's. Tasks that want a go-ahead
before some call have one gate more (`envgen.synthesis.conversations`).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence

from envgen.errors import TaskError
from envgen.store import Bundle
from envgen.synthesis.answers import AnswerGates, leaked, why_not_known
from envgen.synthesis.bench import Workbench, workbench
from envgen.synthesis.bindings import Bindings
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.conversations import Conversations, confirms
from envgen.synthesis.equivalents import Equivalents
from envgen.synthesis.forbidden import PolicyGate
from envgen.synthesis.knowledge import check_knowable, says
from envgen.synthesis.mutants import MUTANTS, MutantMaker
from envgen.synthesis.replay import Replayed, replay_bundle, replay_fresh
from envgen.synthesis.runner import Runner, Write
from envgen.synthesis.schema import read_argument
from envgen.types import Certificate, EnvironmentDraft, GateResult, Task

MIN_MUTANTS = 10


class Prover(Runner):
    """Runs the gates of tasks of one environment."""

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._maker = MutantMaker(self)
        self.equivalents = Equivalents(bench)
        self.bindings = Bindings(bench)
        self.conversations = Conversations(bench)
        self.answers = AnswerGates(bench)
        self.policy = PolicyGate(bench)
        names = [t.name for t in bench.catalog.tools.values() if _is_technical(t.name)]
        pattern = "|".join(rf"(?<!\w){re.escape(n)}(?!\w)" for n in names)
        self._tool_names = re.compile(pattern) if names else None

    def gates(self, task: Task) -> list[GateResult]:
        """All gates of one task alone (so neither replay nor duplicate), cheapest first; stops after the
        first that fails."""
        try:
            self.grader(task)
        except TaskError as error:  # criteria that doing nothing would meet, or that cannot be judged
            return [GateResult(gate="noop", passed=False, detail=str(error))]
        results: list[GateResult] = []
        chosen = [
            self.leak,
            self.knowable,
            self.bindings.gate,
            self.noop,
            self.write_dropped,
            self.answers.equivalents if task.answers else self.equivalents.gate,
            self.answers.mutants if task.answers else self.mutants,
        ]
        if self.catalog.draft.rules:
            chosen.append(self.policy.gate)
        if confirms(task):
            chosen.append(self.conversations.gate)
        for gate in chosen:
            results.append(gate(task))
            if not results[-1].passed:
                break
        return results

    def noop(self, task: Task) -> GateResult:
        """Gate 2: doing nothing, and only reading, are rejected."""
        reads = [
            Write(s.tool, s.arguments)
            for s in task.reference
            if s.kind == "call" and not self.catalog.semantics[s.tool].writes_state
        ]
        for name, calls in (("nothing", list[Write]()), ("only reading", reads)):
            if self.accepts(task, self.play(task, calls), silent=not self.writes(task)):
                return GateResult(gate="noop", passed=False, tried=2, detail=f"doing {name} is accepted")
        return GateResult(gate="noop", passed=True, tried=2)

    def write_dropped(self, task: Task) -> GateResult:
        """Gate 3: each write left out is rejected."""
        writes = self.writes(task)
        for index, write in enumerate(writes):
            if self.accepts(task, self.play(task, writes[:index] + writes[index + 1 :])):
                detail = f"without write {index} ({write.tool}) the state is still accepted"
                return GateResult(gate="write_dropped", passed=False, tried=len(writes), detail=detail)
        passed = bool(writes or task.answers)
        return GateResult(
            gate="write_dropped",
            passed=passed,
            tried=len(writes),
            detail="" if passed else "the task writes nothing and asks for no answer",
        )

    def mutants(self, task: Task) -> GateResult:
        """Gate 4: at least ten wrong variants are rejected."""
        tried = 0
        for label, calls in self._maker.variants(task, random.Random(f"mutants/{task.seed}")):
            state = self.play(task, calls)
            tried += 1
            if self.accepts(task, state):
                return GateResult(gate="mutants", passed=False, tried=tried, detail=f"accepted: {label}")
            if tried == MUTANTS:
                break
        passed = tried >= MIN_MUTANTS
        detail = "" if passed else f"only {tried} wrong variants exist, expected {MIN_MUTANTS}"
        return GateResult(gate="mutants", passed=passed, tried=tried, detail=detail)

    def knowable(self, task: Task) -> GateResult:
        """Gate 6: see `envgen.synthesis.knowledge.check_knowable`."""
        try:
            outputs = self.outputs(task)
        except TaskError as error:
            return GateResult(gate="knowable", passed=False, detail=str(error))
        unknown = why_not_known(task, outputs, self.catalog)
        if unknown:
            return GateResult(gate="knowable", passed=False, detail=unknown)
        return check_knowable(task, outputs, self.catalog)

    def leak(self, task: Task) -> GateResult:
        """Gate 8: no tool names, ids, hidden facts, or values to be looked up or computed in the
        instruction."""
        text = task.instruction
        found = self._tool_names.search(text) if self._tool_names else None
        if found:
            return GateResult(gate="leak", passed=False, detail=f"tool name {found.group()!r}")
        answer = leaked(task)
        if answer:
            return GateResult(gate="leak", passed=False, detail=answer)
        words = set(re.findall(r"[\w-]+", text))
        for collection in self.schema.collections:
            if self.catalog.unlisted(collection.name):
                continue  # the user knows these by their ids, there is no other way
            if not collection.key_generated or self.bench.styles[collection.name].integer:
                continue
            for state in (task.initial_state, *task.accepted_states):
                for key in state.get(collection.name, {}):
                    if key in words:
                        return GateResult(gate="leak", passed=False, detail=f"id {key!r}")
        tried = 0
        for step in task.reference:
            for source in step.sources:
                if source.kind not in ("output", "reasoning", "user_fact"):
                    continue
                tried += 1
                value = read_argument(step.arguments, source.param)
                if says(text, value):
                    detail = f"{source.param}={value!r} should be looked up"
                    return GateResult(gate="leak", passed=False, tried=tried, detail=detail)
        return GateResult(gate="leak", passed=True, tried=tried)


class Duplicates:
    """Gate 9: no two tasks of a bundle are near-duplicates: the same calls in the same order, and
    instructions that differ in one word or less (upper and lower case and punctuation aside). Two tasks with
    the same instruction are duplicates whatever their calls."""

    def __init__(self) -> None:
        self._same: dict[str, str] = {}
        self._near: dict[bytes, str] = {}
        self._noted = 0

    def gate(self, task: Task) -> GateResult:
        """Compare a task with those noted so far."""
        words = _words(task)
        known = self._same.get(" ".join(words))
        detail = "" if known is None else f"same instruction as {known}"
        if known is None:
            known = next((n for mask in _masks(task, words) if (n := self._near.get(mask)) is not None), None)
            detail = (
                "" if known is None else f"same calls as {known}, and the instruction differs in one word"
            )
        return GateResult(gate="duplicate", passed=known is None, tried=self._noted, detail=detail)

    def note(self, task: Task) -> None:
        """Remember a task that was kept."""
        words = _words(task)
        self._same.setdefault(" ".join(words), task.id)
        for mask in _masks(task, words):
            self._near.setdefault(mask, task.id)
        self._noted += 1


def _words(task: Task) -> list[str]:
    return re.findall(r"[\w.@:/-]*\w", task.instruction.casefold())


def _masks(task: Task, words: list[str]) -> Iterator[bytes]:
    """The instruction with each of its words left open, after the tools of the reference; as short digests: a
    task costs a few kilobytes."""
    tools = " ".join(step.tool or step.kind for step in task.reference)
    for index in range(len(words)):
        text = "\n".join([tools, *words[:index], "*", *words[index + 1 :]])
        yield hashlib.blake2b(text.encode(), digest_size=12).digest()


def _is_technical(name: str) -> bool:
    """True for names no person would say: ``list_tasks``, ``getEvent``. ``follow`` is a word, and no leak."""
    return "_" in name or "-" in name or any(c.isupper() or c.isdigit() for c in name[1:])


def draft_of(bundle: Bundle) -> EnvironmentDraft:
    """The environment of a bundle as a draft."""
    return EnvironmentDraft(
        name=bundle.name,
        state_schema=bundle.state_schema,
        semantics=bundle.semantics,
        tools=bundle.tools,
        source=bundle.source,
        policy=bundle.policy,
        decisions=bundle.decisions,
        user_tools=bundle.user_tools,
        rules=bundle.rules,
    )


def replay_results(bundle: Bundle) -> dict[str, GateResult]:
    """Gate 1 for every task of a bundle: three fresh processes agree with this one byte for byte, and all
    accept."""
    return judge_replays(bundle.tasks, [replay_bundle(bundle), *replay_fresh(bundle)])


def judge_replays(tasks: Sequence[Task], runs: Sequence[Replayed]) -> dict[str, GateResult]:
    """Gate 1 from the runs, the first of which was made in this process."""
    results: dict[str, GateResult] = {}
    for task in tasks:
        answers = [run[task.id] for run in runs]
        same = len({digest for digest, _ in answers}) == 1
        accepted = all(ok for _, ok in answers)
        detail = (
            "" if same and accepted else ("a run is not accepted" if same else "runs differ byte for byte")
        )
        results[task.id] = GateResult(
            gate="replay", passed=same and accepted, tried=len(runs) - 1, detail=detail
        )
    return results


def validate(bundle: Bundle) -> tuple[Certificate, ...]:
    """Prove every task of a bundle again, all gates, from what is in the bundle. Raises UnsafeCodeError
    for its code."""
    prover = _prover_of(bundle)
    replayed = replay_results(bundle)
    duplicates = Duplicates()
    certificates: list[Certificate] = []
    for task in bundle.tasks:
        gates = (replayed[task.id], *prover.gates(task), duplicates.gate(task))
        certificates.append(Certificate(task_id=task.id, gates=gates))
        duplicates.note(task)
    return tuple(certificates)


def certify(bundle: Bundle, task: Task) -> Certificate:
    """All in-process gates of one task of a bundle (gates 1 and 9 need the whole bundle: see `validate`)."""
    return Certificate(task_id=task.id, gates=tuple(_prover_of(bundle).gates(task)))


def _prover_of(bundle: Bundle) -> Prover:
    seed = bundle.manifest.get("seed", 0)
    catalog = build_catalog(draft_of(bundle))
    return Prover(workbench(catalog, bundle.environment_id, seed if isinstance(seed, int) else 0))
