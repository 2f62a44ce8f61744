"""Tasks that a rule of the domain forbids: the right end is that nothing has changed, and a refusal that
names the rule and the record it protects.

Such a task reads like any other. What makes it wrong stands in the state: the order is delivered, the event
has tickets. The refusal (two typed slots in the closing message) wants the record's id, which only a look-up
gives, so that refusing blindly is no way out; and doing nothing without a word is rejected like everywhere.
The gate ``policy`` proves all that on every such task (`PolicyGate`), and on every other task that its
reference keeps the rules.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import orjson

from envgen.errors import TaskError
from envgen.proposers.rules.limits import with_all_rules
from envgen.runtime.context import ToolContext
from envgen.runtime.criteria import violations
from envgen.runtime.domain import argument_at, broken_rules
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.bench import Workbench
from envgen.synthesis.blueprint import Known, Recorder, fetch, resolve
from envgen.synthesis.catalog import Catalog, Locator
from envgen.synthesis.choices import Choice, Unfit, Value, needs_of
from envgen.synthesis.demands import Chooser
from envgen.synthesis.difficulty import difficulty
from envgen.synthesis.plans import Candidate
from envgen.synthesis.questions import closing_with, conclusion, recorder_on
from envgen.synthesis.runner import Runner, Write
from envgen.synthesis.schema import place_argument
from envgen.synthesis.sequences import ShapeSampler
from envgen.synthesis.shapes import DemandShape, ValuePlan
from envgen.synthesis.tasks import TaskMaker
from envgen.synthesis.world import build_world
from envgen.types import (
    AnswerSlot,
    ArgumentSource,
    DomainRule,
    EnvironmentDraft,
    GateResult,
    Message,
    RefusedCall,
    Task,
    ToolCall,
    ToolSemantics,
    TraceConstraint,
)

REFUSED, RECORD = "refused", "record"
POLICY = (
    "If a rule forbids what the user asks for, change nothing and say so in your last message with one JSON "
    'object: {"refused": RULE, "record": ID of the record it protects}.'
)
STATES = ("field_in", "field_not_in")
TRIES = 12
"""Shapes drawn for one rule before the draw counts as failed."""


def refusing(draft: EnvironmentDraft) -> EnvironmentDraft:
    """The environment with all rules that can be had in its policy, and how a request against one is
    refused."""
    ruled = with_all_rules(draft)
    return ruled.model_copy(update={"policy": f"{ruled.policy.rstrip()} {POLICY}\n"})


@dataclass(frozen=True)
class ForbiddenPlan:
    """A change that breaks a rule. ``children``: how the children that forbid it are looked at."""

    rule: DomainRule
    shape: DemandShape
    children: Locator | None = None

    def make(self, bench: Workbench, seed: int, task_id: str) -> Task:
        """See `envgen.synthesis.candidates.Plan.make`."""
        return ForbiddenMaker(bench, seed, self).task(task_id)


class ForbiddenPlanner:
    """Draws forbidden changes, rules in turn (`envgen.synthesis.rounds.Planner`)."""

    def __init__(self, catalog: Catalog, seed: int) -> None:
        self.catalog = catalog
        self.rng = random.Random(f"forbidden/{seed}")
        self.sampler = ShapeSampler(catalog, self.rng)
        held = {tool.name for tool in catalog.draft.user_tools}
        self.options = [
            (rule, catalog.semantics[tool])
            for rule in catalog.draft.rules
            for tool in rule.tools
            if tool in catalog.semantics
            and tool not in held
            and catalog.semantics[tool].key is not None
            and can_break(catalog, rule, catalog.semantics[tool])
        ]
        self.used = [0] * len(self.options)

    def draw(self, attempt: int) -> Candidate | None:
        """See `envgen.synthesis.rounds.Planner.draw`."""
        if not self.options:
            return None
        least = min(self.used)
        index = self.rng.choice([i for i, used in enumerate(self.used) if used <= least + 1])
        rule, semantics = self.options[index]
        for _ in range(TRIES):
            shape = self.sampler.shape(semantics, hidden=False, alone=True)
            if shape is not None and self._fits(rule, shape):
                self.used[index] += 1
                return Candidate(
                    attempt, ForbiddenPlan(rule, shape, children_of(self.catalog, rule, semantics))
                )
        self.used[index] += 1  # one that cannot be had is not asked for all the time
        return None

    def keeps(self, candidate: Candidate, task: Task) -> bool:
        """See `envgen.synthesis.rounds.Planner.keeps`."""
        return True

    def failed(self, candidate: Candidate) -> None:
        """See `envgen.synthesis.rounds.Planner.failed`: a rule that failed waits for its turn all the
        same."""

    def kept(self, candidate: Candidate, task: Task) -> None:
        """See `envgen.synthesis.rounds.Planner.kept`."""

    def _fits(self, rule: DomainRule, shape: DemandShape) -> bool:
        """One record that is looked up, by something else than the rule's own field, which is shown."""
        target = shape.target
        if target is None or target.locator is None or target.selector.kind in ("filter", "all"):
            return False
        known = self.catalog.collections[shape.semantics.collection]
        if target.yields != known.name or target.answer != known.key or target.selector.field == rule.field:
            return False
        if rule.kind == "at_most":
            return any(v.binding.param == rule.param and v.kind == "literal" for v in shape.values)
        return rule.kind == "no_children" or target.locator.access.path(rule.field) is not None


def children_of(catalog: Catalog, rule: DomainRule, semantics: ToolSemantics) -> Locator | None:
    """A look-up that shows the children of one record of a ``no_children`` rule, or None."""
    if rule.kind != "no_children":
        return None
    for locator in catalog.locators.get(rule.collection, ()):
        access = locator.access
        if (
            access.many
            and len(access.links) == 1
            and access.links[0].parent == semantics.collection
            and access.links[0].foreign_key == rule.field
            and not access.by_label
            and not access.given
        ):
            return locator
    return None


def can_break(catalog: Catalog, rule: DomainRule, semantics: ToolSemantics) -> bool:
    """True when a record can be in a state in which the rule forbids the tool, and a look-up can show it."""
    if rule.kind == "no_children":
        return children_of(catalog, rule, semantics) is not None
    return rule.kind not in STATES or bool(breaking_values(catalog, rule, semantics))


def breaking_values(catalog: Catalog, rule: DomainRule, semantics: ToolSemantics) -> list[Any]:
    """Values of the rule's field in which it forbids a tool; not those that the tool itself sets, since
    asking for what is so already is no breach."""
    held = catalog.fields[semantics.collection, rule.field]
    known = list(held.enum) or [True, False]
    forbidden = [v for v in known if (v in rule.values) == (rule.kind == "field_not_in")]
    return [v for v in forbidden if v != semantics.constants.get(rule.field)]


class _RuleBreaker(Chooser):
    """A chooser that brings the record acted on into the state in which the rule forbids the change."""

    rule: DomainRule

    def _prepare(self, target: Choice, semantics: ToolSemantics) -> None:
        super()._prepare(target, semantics)
        rule = self.rule
        key = target.anchor.get(target.pick.answer)
        record = self.world.state[semantics.collection][str(key)]
        if rule.kind in STATES:
            record[rule.field] = self.rng.choice(breaking_values(self.catalog, rule, semantics))
        elif rule.kind == "no_children":
            children = self.world.records(rule.collection)
            if not children:
                raise Unfit(f"{rule.collection} is empty")
            self.rng.choice(children)[rule.field] = key

    def _value(self, plan: ValuePlan, *rest: Any, **named: Any) -> Value:
        value = super()._value(plan, *rest, **named)
        if self.rule.kind == "at_most" and plan.binding.param == self.rule.param:
            return replace(value, value=self.rule.values[0] + self.rng.randrange(1, 20))
        return value


class ForbiddenMaker(TaskMaker):
    """Makes one forbidden task. ``seed`` decides everything."""

    def __init__(self, bench: Workbench, seed: int, plan: ForbiddenPlan) -> None:
        super().__init__(bench, seed)
        self.plan = plan
        self.wanted: tuple[str, dict[str, Known]] | None = None

    def _write(self, recorder: Recorder, tool: str, arguments: dict[str, Known]) -> int:
        """The change that is not made."""
        self.wanted = (tool, arguments)
        return 0

    def task(self, task_id: str) -> Task:
        """Realise the plan. Raises Unfit when this draw does not work out."""
        rule, shape = self.plan.rule, self.plan.shape
        semantics = shape.semantics
        needs = needs_of(self.catalog, [shape])
        needs.fields.add((rule.collection, rule.field))
        needs.uses[rule.collection] += 1
        world = build_world(self.catalog, self.maker, self.rng, needs)
        chooser = _RuleBreaker(self.catalog, world, self.maker, self.rng)
        chooser.rule = rule
        demand, _ = chooser.demand(shape)
        initial = {name: {k: dict(r) for k, r in table.items()} for name, table in world.state.items()}
        recorder = recorder_on(self, initial)
        self._run(recorder, demand, {}, 0, None)
        if self.wanted is None or semantics.key is None:
            raise Unfit("nothing was asked for")
        tool, known = self.wanted
        arguments: dict[str, Any] = {}
        for name, value in known.items():
            place_argument(arguments, name, value.value)
        key = known[semantics.key.param]
        state = State(initial, [c.name for c in self.catalog.schema.collections])
        broken = broken_rules(self.catalog.draft.rules, semantics, self.catalog.schema, state, arguments)
        if [b.id for b in broken] != [rule.id]:
            raise Unfit(f"the request breaks {[b.id for b in broken]}, expected {rule.id} alone")
        why, seen = self._deciding(recorder, key, arguments)
        selector = shape.target.selector if shape.target is not None else None
        word = self.speaker.field(rule.collection, selector.field) if selector and selector.field else ""
        said = "; ".join(filter(None, [conclusion(recorder, key, word), seen]))
        answers = {REFUSED: rule.id, RECORD: key.value}
        return Task(
            id=task_id,
            environment_id=self.bench.environment_id,
            instruction=self.speaker.instruction([demand], {}),
            facts=tuple(self.facts),
            initial_state=initial,
            accepted_states=(initial,),
            reference=tuple(recorder.steps),
            closing=closing_with(answers, said),
            blueprint=recorder.blueprint(),
            pattern=f"forbidden_{rule.kind}+{semantics.verb}",
            difficulty=difficulty(len(recorder.steps) + 1, shape.reasoning + 1),
            clock=self.clock,
            seed=self.seed,
            answers=(
                AnswerSlot(name=REFUSED, type="string", policy="normalised", accepted=(rule.id,), source=why),
                AnswerSlot(
                    name=RECORD,
                    type="integer" if isinstance(key.value, int) else "string",
                    accepted=(key.value,),
                    source=key.source(RECORD),
                ),
            ),
            constraints=(*self.bench.rules, TraceConstraint(kind="at_most", tools=(tool,), limit=0)),
            refused=RefusedCall(rule=rule.id, tool=tool, arguments=arguments),
        )

    def _deciding(
        self, recorder: Recorder, key: Known, arguments: dict[str, Any]
    ) -> tuple[ArgumentSource, str]:
        """Where the agent sees that the rule applies, and what it sees."""
        rule, target = self.plan.rule, self.plan.shape.target
        if rule.kind == "at_most":
            value = argument_at(arguments, rule.param)
            return ArgumentSource(param=REFUSED, kind="instruction", detail=str(value)), f"{value}"
        if self.plan.children is not None:
            access = self.plan.children.access
            step = recorder.call(access.tool, {access.links[0].param: key}, write=False)
            found = resolve(access.element, recorder.outputs[step])
            if not found:
                raise Unfit("the children are not shown")
            source = ArgumentSource(param=REFUSED, kind="output", detail=f"{step}:{found[0][0]}")
            return source, f"{' '.join(rule.collection.split('_'))}: {len(found)}"
        access = target.locator.access if target and target.locator else None
        field, own = (
            (access.path(rule.field), access.path(target.answer)) if access and target else (None, None)
        )
        if access is None or field is None or own is None:
            raise Unfit(f"{rule.field} is not shown")
        for step, output in enumerate(recorder.outputs):
            if recorder.steps[step].tool != access.tool:
                continue
            for path, element in resolve(access.element, output):
                if fetch(own, element) == key.value:
                    detail = f"{step}:{path}.{field}" if path else f"{step}:{field}"
                    value = fetch(field, element)
                    source = ArgumentSource(param=REFUSED, kind="output", detail=detail)
                    return source, f"{self.speaker.field(rule.collection, rule.field)}: {value}"
        raise Unfit("no result shows the record")


class PolicyGate(Runner):
    """The gate ``policy`` of tasks in an environment with rules."""

    def gate(self, task: Task) -> GateResult:
        """See the module docstring."""
        try:
            tried = self._kept(task) if task.refused is None else self._refused(task)
        except TaskError as error:
            return GateResult(gate="policy", passed=False, detail=str(error))
        return GateResult(gate="policy", passed=True, tried=tried)

    def _kept(self, task: Task) -> int:
        """Every call of the reference keeps every rule, in the state it is made in."""
        state = State(task.initial_state, self._names)
        context = ToolContext(task.clock, task.seed, self.bench.styles)
        tried = 0
        for step in task.reference:
            if step.kind == "ask":
                continue
            semantics = self.catalog.semantics[step.tool]
            for rule in broken_rules(self.catalog.draft.rules, semantics, self.schema, state, step.arguments):
                raise TaskError(f"the reference's {step.tool} breaks {rule.text}")
            tried += 1
            call_tool(self.bench.tools, self.bench.table, state, context, step.tool, step.arguments)
        return tried

    def _refused(self, task: Task) -> int:
        """The rule forbids what is asked, no other does; the refusal is accepted after the look-ups; silence,
        a plain ``Done.``, the change with or without the refusal, and the change undone are rejected."""
        call = task.refused
        assert call is not None
        semantics = self.catalog.semantics[call.tool]
        state = State(task.initial_state, self._names)
        broken = broken_rules(self.catalog.draft.rules, semantics, self.schema, state, call.arguments)
        if [rule.id for rule in broken] != [call.rule]:
            raise TaskError(f"the request breaks {[rule.id for rule in broken]}, expected {call.rule} alone")
        after = self.play(task, [Write(call.tool, call.arguments)])
        if after.delta().empty != broken[0].enforced:
            lets = "refuses" if after.delta().empty else "lets through"
            raise TaskError(f"{call.tool} {lets} what {call.rule} forbids, against the rule's statement")
        untouched = State(task.initial_state, self._names)
        done, right = (
            Message(role="assistant", content="Done."),
            Message(role="assistant", content=task.closing),
        )
        made = (
            Message(role="assistant", tool_calls=(ToolCall(id="c", name=call.tool, arguments=_text(call)),)),
            Message(role="tool", content="{}", tool_call_id="c"),
        )
        if not self._accepts(task, untouched, (right,)):
            raise TaskError("the refusal is rejected")
        wrong: list[tuple[str, State, tuple[Message, ...]]] = [
            ("silence", untouched, ()),
            ("doing nothing and saying so", untouched, (done,)),
        ]
        if not broken[0].enforced:
            wrong += [
                ("the forbidden change", after, (*made, done)),
                ("the forbidden change and the refusal", after, (*made, right)),
                ("the forbidden change, undone, and the refusal", untouched, (*made, right)),
            ]
        for label, reached, transcript in wrong:
            if self._accepts(task, reached, transcript):
                raise TaskError(f"{label} is accepted")
        return len(wrong) + 1

    def _accepts(self, task: Task, state: State, transcript: tuple[Message, ...]) -> bool:
        """The verdict by state, answers and the rule that the forbidden tool is not used; go-aheads aside."""
        rules = tuple(rule for rule in task.constraints if rule.kind == "at_most")
        grader = self.grader(task.model_copy(update={"constraints": ()}))
        return grader.accepts(state.delta(), transcript) and not violations(rules, transcript)


def _text(call: RefusedCall) -> str:
    return orjson.dumps(call.arguments).decode()
