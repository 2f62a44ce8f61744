"""Tasks that ask a question and change nothing: what a document without a write tool can give, and a share of
the tasks of any other (``answer_share``).

A question is a look-up chain with a way to single records out, like the first half of a change: what is the
price of the cheapest event, how many tasks of a list are open, which ones. The answer is one typed slot in
the closing message (`envgen.runtime.criteria`), with its source in the reference, so that gate 6 can
recompute it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import orjson

from envgen.packaged import packaged_json
from envgen.runtime.adding import add_up
from envgen.runtime.context import ToolContext
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.bench import Workbench
from envgen.synthesis.blueprint import Known, Recorder, work_out
from envgen.synthesis.catalog import Catalog, Locator, field_words, is_nested
from envgen.synthesis.choices import Choice, Footprint, Needs, Unfit
from envgen.synthesis.choosing import RecordChooser
from envgen.synthesis.difficulty import difficulty
from envgen.synthesis.instructions import Speaker
from envgen.synthesis.picks import DULL
from envgen.synthesis.plans import Candidate
from envgen.synthesis.shapes import DATES, NUMBERS, REASONING, Pick, Selector
from envgen.synthesis.tasks import TaskMaker
from envgen.synthesis.wording import plural
from envgen.synthesis.world import build_world
from envgen.types import (
    AnswerSlot,
    ArgumentSource,
    BlueprintNode,
    EnvironmentDraft,
    StateData,
    StateField,
    Task,
)

SLOT = "answer"
POLICY = (
    'Answer a question in your last message, with one JSON object: {"answer": VALUE}, where VALUE is a '
    "number, a text or a list of texts."
)
LEAST_OPTIONS = 4
"""Values an enum must have to be asked for: fewer are guessed too easily."""
QuestionKind = Literal["field", "own", "count", "sum", "list"]
WEIGHTS: dict[QuestionKind, float] = {"field": 3.0, "own": 1.0, "count": 1.0, "sum": 1.2, "list": 1.5}


@cache
def templates() -> dict[str, list[str]]:
    """The sentence templates that ship with the package."""
    loaded: dict[str, list[str]] = packaged_json("envgen.synthesis", "data/questions.json")
    return loaded


def asking(draft: EnvironmentDraft) -> EnvironmentDraft:
    """The environment whose policy says how a question is answered."""
    return draft.model_copy(update={"policy": f"{draft.policy.rstrip()} {POLICY}\n"})


@dataclass(frozen=True)
class QuestionPlan:
    """One question. ``pick`` singles out the records; ``field`` is what is asked of them (``count``:
    nothing)."""

    kind: QuestionKind
    pick: Pick
    field: str = ""

    def make(self, bench: Workbench, seed: int, task_id: str) -> Task:
        """See `envgen.synthesis.candidates.Plan.make`."""
        return QuestionMaker(bench, seed).question(task_id, self)

    @property
    def pattern(self) -> str:
        """``argmin+ask_field``."""
        selector = self.pick.selector.kind
        return f"{'lookup' if selector in ('label', 'all') else selector}+answer_{self.kind}"


class QuestionPlanner:
    """Draws questions; look-up tools and kinds that were used little come first
    (`envgen.synthesis.rounds.Planner`)."""

    def __init__(self, catalog: Catalog, seed: int) -> None:
        self.catalog = catalog
        self.rng = random.Random(f"questions/{seed}")
        self.used: Counter[str] = Counter()
        self.locators = [
            locator
            for name, found in catalog.locators.items()
            for locator in found
            if any(True for _ in questions_at(catalog, name, locator))
        ]

    def draw(self, attempt: int) -> Candidate | None:
        """See `envgen.synthesis.rounds.Planner.draw`."""
        if not self.locators:
            return None
        rare = [1.0 / (1 + self.used[locator.access.tool]) ** 1.5 for locator in self.locators]
        locator = self.rng.choices(self.locators, rare)[0]
        plans = list(questions_at(self.catalog, locator.collection, locator))
        counts = Counter(plan.kind for plan in plans)
        weights = [WEIGHTS[plan.kind] / counts[plan.kind] / (1 + self.used[_shape(plan)]) for plan in plans]
        plan = self.rng.choices(plans, weights)[0]
        self._mark(plan, 1)
        return Candidate(attempt, plan)

    def keeps(self, candidate: Candidate, task: Task) -> bool:
        """See `envgen.synthesis.rounds.Planner.keeps`."""
        return True

    def failed(self, candidate: Candidate) -> None:
        """See `envgen.synthesis.rounds.Planner.failed`."""
        assert isinstance(candidate.plan, QuestionPlan)
        self._mark(candidate.plan, -1)

    def kept(self, candidate: Candidate, task: Task) -> None:
        """See `envgen.synthesis.rounds.Planner.kept`: it was counted when it was drawn."""

    def _mark(self, plan: QuestionPlan, times: int) -> None:
        locator = plan.pick.locator
        for name in (*(locator.tools() if locator else ()), _shape(plan)):
            self.used[name] += times


def _shape(plan: QuestionPlan) -> str:
    return f"{plan.kind} {plan.pick.yields} {plan.field} {plan.pick.selector}"


# --------------------------------------------------------------------------------------------------- plans
def questions_at(catalog: Catalog, collection: str, locator: Locator) -> Iterator[QuestionPlan]:
    """Every question that one look-up chain can answer."""
    known = catalog.collections[collection]
    shown = list(_shown(catalog, locator))
    asked = [f for f in shown if _askable(f)]
    if not locator.access.many:
        if known.singleton:
            for item in asked:
                yield QuestionPlan("own", Pick(locator, Selector("all"), collection, item.name), item.name)
        return
    label = known.label if known.label and locator.access.path(known.label) is not None else ""

    def plan(kind: QuestionKind, selector: Selector, answer: str) -> QuestionPlan:
        return QuestionPlan(kind, Pick(locator, selector, collection, answer or known.key), answer)

    def answers(by: StateField) -> list[str]:
        return [*([label] if label else []), *(f.name for f in asked if f is not by)]

    if label:
        for item in asked:
            yield plan("field", Selector("label"), item.name)
    if locator.access.by_label or (locator.access.path(known.key) is None and not label):
        return
    for by in shown:
        if by.type in NUMBERS and not DULL & set(field_words(by.name)[-1:]):
            for selector in (Selector("argmin", by.name, "min"), Selector("argmax", by.name, "max")):
                for answer in answers(by):
                    yield plan("field", selector, answer)
            yield plan("sum", Selector("all", by.name), by.name)
        elif by.type in DATES:
            for selector in (Selector("earliest", by.name, "min"), Selector("latest", by.name, "max")):
                for answer in answers(by):
                    yield plan("field", selector, answer)
        elif by.enum or by.type == "boolean":
            yield plan("count", Selector("filter", by.name), "")
            if label:
                yield plan("list", Selector("filter", by.name), label)
    if locator.access.path(known.key) is not None:
        yield plan("count", Selector("all"), "")


def _shown(catalog: Catalog, locator: Locator) -> Iterator[StateField]:
    known = catalog.collections[locator.collection]
    for item in known.fields:
        path = locator.access.path(item.name)
        given = any(item.name == name for _, name in locator.access.given)
        if (
            item.name not in (known.key, known.label)
            and not item.references
            and path is not None
            and not is_nested(path)
            and not given
        ):
            yield item


def _askable(item: StateField) -> bool:
    """Values that are said in one way and are not soon guessed."""
    if item.policy == "exempt" or DULL & set(field_words(item.name)[-1:]):
        return False
    if item.enum or item.type == "enum":
        return len(item.enum) >= LEAST_OPTIONS and all(isinstance(v, str) for v in item.enum)
    return item.type in ("string", "text", "integer", "number", "date")


# --------------------------------------------------------------------------------------------------- tasks
class QuestionMaker(TaskMaker):
    """Makes one question. ``seed`` decides everything."""

    def question(self, task_id: str, plan: QuestionPlan) -> Task:
        """Realise a plan. Raises Unfit when this draw does not work out."""
        world = build_world(self.catalog, self.maker, self.rng, _needs(plan))
        choice = self._chosen(plan, RecordChooser(self.catalog, world, self.maker, self.rng), world.state)
        initial = {name: {k: dict(r) for k, r in table.items()} for name, table in world.state.items()}
        recorder = recorder_on(self, initial)
        found, value = self._find(recorder, plan, choice)
        if value is None or value == []:
            raise Unfit(f"nothing to say of {plan.field}")
        reasoning = int(plan.pick.selector.kind in REASONING) + int(plan.kind in ("count", "sum"))
        return Task(
            id=task_id,
            environment_id=self.bench.environment_id,
            instruction=say_question(self.speaker, self.rng, plan, choice),
            initial_state=initial,
            accepted_states=(initial,),
            reference=tuple(recorder.steps),
            closing=closing_with({SLOT: value}, conclusion(recorder, found, self._word(plan))),
            blueprint=recorder.blueprint(),
            pattern=plan.pattern,
            difficulty=difficulty(len(recorder.steps), reasoning),
            clock=self.clock,
            seed=self.seed,
            answers=(self._slot(plan, choice, value, found.source(SLOT)),),
            constraints=self.bench.rules,
        )

    def _chosen(self, plan: QuestionPlan, chooser: RecordChooser, state: StateData) -> Choice:
        if plan.kind == "own":
            record = next(iter(state[plan.pick.yields].values()), None)
            if record is None:
                raise Unfit(f"{plan.pick.yields} is empty")
            return Choice(plan.pick, record, (record,))
        return chooser.choose(plan.pick, Footprint())

    def _find(self, recorder: Recorder, plan: QuestionPlan, choice: Choice) -> tuple[Known, Any]:
        """Make the look-ups, and what they come to: the source of the answer, and the answer."""
        if plan.kind == "own":
            step, _, _ = self._list(recorder, choice)
            known = recorder.output(step, self._path(choice, plan.field))
            return known, known.value
        if plan.kind == "field":
            known = self._look_up(recorder, choice)[0][0]
            return known, known.value
        if plan.kind == "list":
            found, _ = self._look_up(recorder, choice)
            return found[0], [known.value for known in found]
        step, pattern, _ = self._list(recorder, choice)
        filtered = plan.pick.selector.kind == "filter"
        over = self._path(choice, plan.pick.selector.field) if plan.pick.selector.field else ""
        node = BlueprintNode(
            id=recorder.reasoning_id(),
            kind="reasoning",
            reasoning="sum" if plan.kind == "sum" else "count",
            elements=(f"{step}:{pattern}",),
            over=over,
            answer=self._counted(choice) if plan.kind == "count" else "",
            value=choice.value if filtered else None,
            detail=f"{plan.kind} of {plan.pick.yields}",
        )
        known = recorder.reason(node, plan.kind)[0]
        wanted = add_up(r[plan.field] for r in choice.chosen) if plan.kind == "sum" else len(choice.chosen)
        if known.value != wanted:
            raise Unfit(f"{plan.kind} comes to {known.value!r}, the world has {wanted!r}")
        return known, known.value

    def _counted(self, choice: Choice) -> str:
        known = self.catalog.collections[choice.collection]
        locator = choice.pick.locator
        paths = [locator.access.path(name) for name in (known.label, known.key) if name] if locator else []
        return next((path for path in paths if path is not None), "")

    def _word(self, plan: QuestionPlan) -> str:
        name = plan.pick.selector.field or plan.field
        return self.speaker.field(plan.pick.yields, name) if name else plan.kind

    def _slot(self, plan: QuestionPlan, choice: Choice, value: Any, source: ArgumentSource) -> AnswerSlot:
        field = self.catalog.fields.get((choice.collection, plan.field))
        if plan.kind == "list":
            return AnswerSlot(
                name=SLOT,
                type="array",
                item_type="string",
                policy="normalised",
                accepted=(value,),
                source=source,
            )
        if isinstance(value, int):
            return AnswerSlot(name=SLOT, type="integer", accepted=(value,), source=source)
        if isinstance(value, float):
            return AnswerSlot(name=SLOT, type="number", accepted=(value,), source=source)
        kind = "date" if field is not None and field.type == "date" else "string"
        return AnswerSlot(name=SLOT, type=kind, policy="normalised", accepted=(value,), source=source)


def conclusion(recorder: Recorder, found: Known, word: str) -> str:
    """The last conclusion of a reference in words: the reasoning, or the look-up by name."""
    node = next((n for n in recorder.nodes if n.id == found.node and n.kind == "reasoning"), None)
    return found.said if node is None else work_out(node, recorder.outputs, word)


def closing_with(answers: dict[str, Any], thought: str = "") -> str:
    """The last message of a reference: the conclusion, then the answers. Text that could be read as a second
    object or as a question is left out."""
    said = orjson.dumps(answers).decode()
    return f"{thought}. {said}" if thought and not set("{}?") & set(thought) else said


def recorder_on(maker: TaskMaker, initial: StateData) -> Recorder:
    """A recorder of calls on a state of its own."""
    bench = maker.bench
    state = State(initial, [c.name for c in maker.catalog.schema.collections])
    context = ToolContext(maker.clock, maker.seed, bench.styles)

    def execute(tool: str, arguments: dict[str, Any]) -> Any:
        outcome = call_tool(bench.tools, bench.table, state, context, tool, arguments)
        if outcome.is_error:
            raise Unfit(f"{tool} refused: {outcome.value}")
        return orjson.loads(outcome.text)

    return Recorder(execute)


def _needs(plan: QuestionPlan) -> Needs:
    """What the world must offer for a question."""
    pick, found = plan.pick, Needs()
    needs = found.fields
    needs.update((pick.yields, name) for name in (plan.field, pick.selector.field) if name)
    queue = [pick.locator] if pick.locator is not None else []
    while queue:
        locator = queue.pop()
        found.uses[locator.collection] = 1
        needs.update((locator.collection, link.foreign_key) for link in locator.access.links)
        needs.update((locator.collection, name) for _, name in locator.access.given)
        queue.extend(p for p in locator.parents if p is not None)
    return found


def say_question(speaker: Speaker, rng: random.Random, plan: QuestionPlan, choice: Choice) -> str:
    """The question in words."""
    field = speaker.field(choice.collection, plan.field) if plan.field else ""
    if plan.kind == "own":
        ref = f"the {speaker.entity(choice.collection)}"
    elif plan.kind == "sum":
        ref = speaker.record(replace(choice, pick=replace(choice.pick, selector=Selector("all"))))
    else:
        ref = speaker.record(choice)
    given = " ".join(str(value) for _, value in choice.given)
    many = " ".join(filter(None, [given, plural(speaker.entity(choice.collection))])) + speaker.place(choice)
    if choice.pick.locator is not None and choice.pick.locator.access.mine:
        many = f"{many} of mine"
    if plan.pick.selector.kind == "filter":
        condition = speaker.condition(
            choice.value, speaker.field(choice.collection, plan.pick.selector.field)
        )
        many = f"{many} {condition.replace('that is ', 'that are ')}"
    return rng.choice(templates()[plan.kind]).format(field=field, fields=plural(field), ref=ref, many=many)
