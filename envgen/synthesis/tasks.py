"""From shapes to a task: fill the world, execute the blueprint with the real functions, say what is wanted
(METHOD.md §3)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import orjson

from envgen.runtime.context import KeyStyle, ToolContext, key_styles
from envgen.runtime.domain import broken_rules
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.remote_tools import remote_tools
from envgen.runtime.isolation.vetting import is_vetted
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.state import State
from envgen.runtime.tools import ToolTable, call_tool, compile_tools
from envgen.synthesis.blueprint import Known, Recorder, fetch, resolve
from envgen.synthesis.catalog import Catalog, field_words
from envgen.synthesis.choices import Choice, Demand, Footprint, Unfit, Value, needs_of
from envgen.synthesis.control import go_ahead, request
from envgen.synthesis.demands import Chooser
from envgen.synthesis.instructions import Speaker
from envgen.synthesis.shapes import DemandShape, SelectorKind, difficulty
from envgen.synthesis.values import ValueMaker, ValuePool
from envgen.synthesis.wording import quote, say
from envgen.synthesis.world import build_world
from envgen.types import BlueprintNode, ReasoningKind, StateData, Task, TraceConstraint, UserAction, UserFact

FIRST_DAY = date(2024, 1, 8)
INSTRUCTION_LIMIT = 200
"""Characters for one demand; each further demand may add 120."""
BODY_LIMIT = {1: 1350, 2: 1500, 3: 2400, 4: 3200}
"""Characters of instruction, calls and results a reference may have per level: short contexts are what
small policies can learn from."""


@dataclass(frozen=True)
class Workbench:
    """What the tasks of one environment share: catalog, loaded functions, vocabulary. Made by `workbench`."""

    catalog: Catalog
    environment_id: str
    tools: dict[str, Tool]
    table: ToolTable
    styles: dict[str, KeyStyle]
    pool: ValuePool
    rules: tuple[TraceConstraint, ...] = ()
    """Rules about the trace that every task is graded by."""

    @property
    def held(self) -> frozenset[str]:
        """Names of the tools that only the user holds."""
        return frozenset(tool.name for tool in self.catalog.draft.user_tools)


def workbench(
    catalog: Catalog, environment_id: str, seed: int, rules: tuple[TraceConstraint, ...] = ()
) -> Workbench:
    """Load a draft's functions: in a worker, unless our own templates wrote them. Raises UnsafeCodeError for
    code outside the allow-list, IsolationError when this machine cannot give a worker."""
    draft = catalog.draft
    styles = key_styles(draft.state_schema)
    tools = load_tools(draft.source) if is_vetted(draft) else remote_tools(WorkerPool(draft.source, styles))
    return Workbench(
        catalog=catalog,
        environment_id=environment_id,
        tools=dict(tools),
        table=compile_tools((*draft.tools, *draft.user_tools)),
        styles=dict(styles),
        pool=ValuePool(seed),
        rules=rules,
    )


@dataclass(frozen=True)
class Sample:
    """A task before certification, with the results its reference saw."""

    task: Task
    outputs: tuple[Any, ...]
    shapes: tuple[DemandShape, ...]
    body_characters: int


class TaskMaker:
    """Makes one task. ``seed`` decides everything."""

    def __init__(self, bench: Workbench, seed: int) -> None:
        self.bench = bench
        self.catalog = bench.catalog
        self.seed = seed
        self.rng = random.Random(f"task/{seed}")
        today = FIRST_DAY + timedelta(days=self.rng.randrange(0, 150))
        self.clock = f"{today.isoformat()}T09:00:00"
        self.maker = ValueMaker(bench.pool, self.rng, today)
        self.speaker = Speaker(self.catalog, self.rng)
        self.facts: list[UserFact] = []
        self.actions: list[UserAction] = []

    def make(self, task_id: str, shapes: list[DemandShape], nested: dict[int, int]) -> Sample:
        """Realise shapes as one task. ``nested[i] = j``: demand i hangs under the record demand j creates.

        Raises Unfit when this draw does not work out; the caller draws again.
        """
        needs, busy = needs_of(self.catalog, shapes)
        world = build_world(self.catalog, self.maker, self.rng, needs, busy)
        chooser = Chooser(self.catalog, world, self.maker, self.rng)
        demands: list[Demand] = []
        prints: list[Footprint] = []
        for shape in shapes:
            demand, footprint = chooser.demand(shape)
            if any(footprint.clashes(other) for other in prints):
                raise Unfit("the demands would touch each other")
            demands.append(demand)
            prints.append(footprint)
        initial = _plain(world.state)
        state = State(initial, [c.name for c in self.catalog.schema.collections])
        context = ToolContext(self.clock, self.seed, self.bench.styles)

        def execute(tool: str, arguments: dict[str, Any]) -> Any:
            for rule in broken_rules(
                self.catalog.draft.rules, self.catalog.semantics[tool], self.catalog.schema, state, arguments
            ):
                raise Unfit(f"{tool} would break {rule.text}")
            outcome = call_tool(self.bench.tools, self.bench.table, state, context, tool, arguments)
            if outcome.is_error:
                raise Unfit(f"{tool} refused: {outcome.value}")
            return orjson.loads(outcome.text)

        recorder = Recorder(execute)
        new_keys: dict[int, Known] = {}
        for index, demand in enumerate(demands):
            self._run(recorder, demand, new_keys, index, nested.get(index))
        instruction = self.speaker.instruction(demands, nested)
        calls = [s for s in recorder.steps if s.kind != "ask"]
        level = difficulty(len(calls), sum(s.reasoning for s in shapes))
        characters = _body(instruction, recorder)
        if len(instruction) > INSTRUCTION_LIMIT + 120 * (len(demands) - 1) or characters > BODY_LIMIT[level]:
            raise Unfit("too long")
        if state.delta().empty:
            raise Unfit("nothing changed")
        task = Task(
            id=task_id,
            environment_id=self.bench.environment_id,
            instruction=instruction,
            facts=tuple(self.facts),
            initial_state=initial,
            accepted_states=(state.snapshot(),),
            reference=tuple(recorder.steps),
            blueprint=recorder.blueprint(),
            pattern=" & ".join(s.pattern for s in shapes),
            difficulty=level,
            clock=self.clock,
            seed=self.seed,
            constraints=self.bench.rules,
            user_actions=tuple(self.actions),
        )
        return Sample(task, tuple(recorder.outputs), tuple(shapes), characters)

    # ---------------------------------------------------------------------------------------- execution
    def _run(
        self, recorder: Recorder, demand: Demand, new_keys: dict[int, Known], index: int, parent: int | None
    ) -> None:
        semantics = demand.semantics
        targets: list[Known] = []
        scope: dict[str, Known] = {}
        if demand.target is not None:
            also = tuple(b.field for b in semantics.scope)
            targets, scope = self._look_up(recorder, demand.target, also)
        arguments: dict[str, Known] = {}
        for binding in semantics.scope if demand.target is not None else ():
            known = scope.get(binding.field)
            if known is None and (binding.required or binding.param in self.catalog.required(semantics.tool)):
                raise Unfit(f"{semantics.tool}: nothing tells {binding.param}")
            if known is not None:
                arguments[binding.param] = known
        for value in sorted(demand.values, key=lambda v: v.plan.kind == "hidden"):  # look up first, ask last
            binding = value.plan.binding
            if value.plan.kind == "created":
                if parent is None or parent not in new_keys:
                    raise Unfit("no created parent")
                arguments[binding.param] = new_keys[parent]
            else:
                arguments[binding.param] = self._known(recorder, value)
        order = list(self.catalog.tools[semantics.tool].parameters.get("properties", {}))
        arguments = dict(sorted(arguments.items(), key=lambda item: order.index(item[0].split(".")[0])))
        key = semantics.key
        if demand.target is None or key is None:
            step = self._write(recorder, semantics.tool, arguments)
            if semantics.verb == "create":
                path = self._key_path(demand)
                if path is not None and fetch(path, recorder.outputs[step]) is not None:
                    new_keys[index] = recorder.output(step, path)
            return
        for target in targets:
            self._write(recorder, semantics.tool, {key.param: target, **arguments})

    def _write(self, recorder: Recorder, tool: str, arguments: dict[str, Known]) -> int:
        """One write, by whoever holds the tool, and after a go-ahead where a rule wants one."""
        if tool in self.bench.held:
            action, asked = request(tool, arguments)
            self.actions.append(action)
            return recorder.call(tool, arguments, write=True, request=asked)
        return recorder.call(tool, arguments, write=True, confirm=go_ahead(self.bench.rules, tool, arguments))

    def _key_path(self, demand: Demand) -> str | None:
        collection = self.catalog.collections[demand.semantics.collection]
        for output in demand.semantics.outputs:
            if (
                output.collection == collection.name
                and output.field == collection.key
                and "[]" not in output.path
            ):
                return output.path
        return None

    def _known(self, recorder: Recorder, value: Value) -> Known:
        """One written argument as the agent comes to know it."""
        plan, choice = value.plan, value.choice
        binding = plan.binding
        words = self.speaker.field(binding.collection, binding.field)
        if plan.kind in ("literal", "hidden"):
            name = f"{binding.collection}.{binding.field}.{len(self.facts)}"
            sentence = self.speaker.fact(binding.collection, binding.field, value.value)
            asked = (words, *(field_words(binding.field)[-1:] if " " in words else ()))
            hidden = plan.kind == "hidden"
            self.facts.append(
                UserFact(name=name, value=value.value, sentence=sentence, ask_words=asked, stated=not hidden)
            )
            if hidden:
                return recorder.ask(
                    self.speaker.question(binding.collection, binding.field), name, value.value
                )
            return Known(value.value, "instruction", say(value.value))
        if choice is None or plan.pick is None:
            raise Unfit("a computed value without a look-up")
        if plan.kind in ("count", "sum"):
            step, pattern, _ = self._list(recorder, choice)
            shown = self._path(choice, plan.pick.selector.field) if plan.kind == "sum" else ""
            key = self.catalog.collections[choice.collection].key
            counted = (
                (plan.pick.locator.access.path(key) or "")
                if plan.pick.locator and plan.kind == "count"
                else ""
            )
            node = BlueprintNode(
                id=recorder.reasoning_id(),
                kind="reasoning",
                reasoning=plan.kind,
                elements=(f"{step}:{pattern}",),
                over=shown,
                answer=counted,
                detail=f"{plan.kind} for {words}",
            )
            found = recorder.reason(node, words)[0]
            wanted = str(found.value) if plan.as_text else found.value
            if wanted != value.value:
                raise Unfit(f"{plan.kind} comes to {wanted!r}, the world has {value.value!r}")
            return Known(wanted, "reasoning", node.id, node.id)
        known = self._look_up(recorder, choice)[0][0]
        if known.value != value.value:
            raise Unfit(f"looked up {known.value!r}, the world has {value.value!r}")
        return known

    def _path(self, choice: Choice, name: str) -> str:
        locator = choice.pick.locator
        path = locator.access.path(name) if locator else None
        if path is None:
            raise Unfit(f"{choice.collection}.{name} is not shown")
        return path

    def _list(self, recorder: Recorder, choice: Choice) -> tuple[int, str, dict[str, Known]]:
        """Make the chain's calls; the step that shows the records, its element pattern, and what the
        parents' keys are."""
        locator = choice.pick.locator
        if locator is None:
            raise Unfit("no look-up")
        arguments: dict[str, Known] = {}
        scope: dict[str, Known] = {}
        for link, parent in zip(locator.access.links, choice.parents, strict=True):
            known = self._look_up(recorder, parent)[0][0]
            arguments[link.param] = known
            scope[link.foreign_key] = known
        for param, value in choice.given:
            arguments[param] = Known(value, "instruction", say(value))
        if locator.access.by_label:
            label = choice.anchor[self.catalog.collections[choice.collection].label]
            arguments[locator.access.by_label] = Known(label, "instruction", say(label))
        step = recorder.call(locator.access.tool, arguments, write=False)
        return step, locator.access.element, scope

    def _look_up(
        self, recorder: Recorder, choice: Choice, also: tuple[str, ...] = ()
    ) -> tuple[list[Known], dict[str, Known]]:
        """Arrive at what a choice yields: its key(s) or another field, and the parents' keys on the way.
        ``also`` names
        further fields wanted of the record, taken from the same result when the parents did not give them."""
        pick = choice.pick
        if pick.locator is None:
            value = choice.anchor[pick.answer]
            return [Known(value, "instruction", say(value))], {}
        step, pattern, scope = self._list(recorder, choice)
        answer = self._path(choice, pick.answer)
        expected = [record.get(pick.answer) for record in choice.chosen]
        elements = resolve(pattern, recorder.outputs[step])
        collection = self.catalog.collections[choice.collection]
        selector = pick.selector
        if selector.kind == "label":
            label = self._path(choice, collection.label)
            named = [p for p, e in elements if fetch(label, e) == choice.anchor[collection.label]]
            if len(named) != 1:
                raise Unfit(f"{len(named)} records called {choice.anchor[collection.label]!r}")
            at = f"{named[0]}." if named[0] else ""
            known = recorder.output(step, at + answer)
            record = f"{self.speaker.entity(choice.collection)} {quote(choice.anchor[collection.label])}"
            found = [replace(known, said=f"{record}: {known.value}")]
            for name in also:
                path = pick.locator.access.path(name)
                if name not in scope and path is not None:
                    scope[name] = recorder.output(step, at + path)
        else:
            over = self._path(choice, selector.field)
            words = self.speaker.field(choice.collection, selector.field)
            node = BlueprintNode(
                id=recorder.reasoning_id(),
                kind="reasoning",
                reasoning=_reasoning(selector.kind),
                elements=(f"{step}:{pattern}",),
                over=over,
                answer=answer,
                among=self._path(choice, collection.label) if choice.names else "",
                names=choice.names,
                value=choice.value,
                order=selector.order,
                detail=f"{selector.kind} {words} of {choice.collection}",
            )
            shown = pick.locator.access.path(collection.label) if pick.answer == collection.key else None
            found = recorder.reason(node, words, shown or "")
            for name in also if len(found) == 1 else ():
                path = pick.locator.access.path(name)
                if name not in scope and path is not None:
                    other = node.model_copy(update={"id": recorder.reasoning_id(), "answer": path})
                    scope[name] = recorder.reason(other, words)[0]
        if sorted(map(str, (k.value for k in found))) != sorted(map(str, expected)):
            raise Unfit(f"the results lead to {[k.value for k in found]}, the world has {expected}")
        return found, scope


def _reasoning(kind: SelectorKind) -> ReasoningKind:
    if kind == "label" or kind == "all":
        raise Unfit(f"{kind} needs no reasoning")
    return kind


def _plain(state: StateData) -> StateData:
    return {name: {key: dict(record) for key, record in table.items()} for name, table in state.items()}


def _body(instruction: str, recorder: Recorder) -> int:
    """Characters of a reference trajectory without the system prompt."""
    total = len(instruction)
    for step, output in zip(recorder.steps, recorder.outputs, strict=True):
        total += len(step.thought) + len(step.text)
        if step.kind != "ask":
            total += len(step.tool) + len(orjson.dumps(step.arguments)) + len(orjson.dumps(output)) + 30
    return total
