"""From shapes to a task: fill the world, execute the blueprint with the real functions, say what is wanted
(METHOD.md §3)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import orjson

from envgen.runtime.context import ToolContext
from envgen.runtime.domain import broken_rules
from envgen.runtime.state import State
from envgen.runtime.tools import call_tool
from envgen.synthesis.bench import Workbench as Workbench
from envgen.synthesis.bench import workbench as workbench
from envgen.synthesis.blueprint import Known, Recorder, fetch, resolve
from envgen.synthesis.catalog import field_words
from envgen.synthesis.choices import Choice, Demand, Footprint, Needs, Unfit, Value, needs_of
from envgen.synthesis.control import go_ahead, request
from envgen.synthesis.demands import Chooser
from envgen.synthesis.difficulty import difficulty, level_of
from envgen.synthesis.instructions import Speaker
from envgen.synthesis.shapes import DemandShape, SelectorKind
from envgen.synthesis.values import ValueMaker
from envgen.synthesis.wording import quote, say
from envgen.synthesis.world import RESULT_BUDGET, build_world, populated, record_size
from envgen.types import (
    BlueprintNode,
    ReasoningKind,
    Task,
    TaskTraits,
    UserAction,
    UserFact,
)

FIRST_DAY = date(2024, 1, 8)
INSTRUCTION_LIMIT = 200
"""Characters for one demand; each further demand may add 120."""


@dataclass(frozen=True)
class Sample:
    """A task before certification, with the results its reference saw."""

    task: Task
    outputs: tuple[Any, ...]
    shapes: tuple[DemandShape, ...]
    body_characters: int


@dataclass(frozen=True)
class _New:
    """A record that a demand of the task makes: its key, and the fields that say where it is."""

    key: Known
    place: dict[str, Known]


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
        self.shown: dict[int, int] = {}
        """Look-up step -> records it shows."""
        self.needed: dict[int, set[str]] = {}
        """Look-up step -> keys of the records the task has use for."""

    def make(self, task_id: str, shapes: list[DemandShape], nested: dict[int, int], crowd: int = 0) -> Sample:
        """Realise shapes as one task. ``nested[i] = j``: demand i hangs under the record demand j creates;
        ``crowd``: distractors, as records that a list may show beyond the usual.

        Raises Unfit when this draw does not work out; the caller draws again.
        """
        needs = needs_of(self.catalog, shapes)
        world = build_world(self.catalog, self.maker, self.rng, needs, crowd)
        chooser = Chooser(self.catalog, world, self.maker, self.rng)
        demands: list[Demand] = []
        prints: list[Footprint] = []
        for index, shape in enumerate(shapes):
            outer = demands[nested[index]] if index in nested else None
            demand, footprint = chooser.demand(shape, outer)
            if any(footprint.clashes(other) for other in prints):
                raise Unfit("the demands would touch each other")
            demands.append(demand)
            prints.append(footprint)
        initial = world.plain()
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
        new: dict[int, _New] = {}
        for index, demand in enumerate(demands):
            self._run(recorder, demand, new, index, nested.get(index))
        instruction = self.speaker.instruction(demands, nested)
        calls = [s for s in recorder.steps if s.kind != "ask"]
        reasoning = sum(s.reasoning for s in shapes)
        level = difficulty(len(calls), reasoning)
        characters = len(instruction) + recorder.characters()
        limit = INSTRUCTION_LIMIT + 120 * (len(demands) - 1)
        if len(instruction) > limit or characters > level_of(level).body * self._bulk(needs):
            raise Unfit("too long")
        if len(calls) > level_of(level).calls[1]:
            raise Unfit("too many calls")
        if state.delta().empty:
            raise Unfit("nothing changed")
        asked = [word for fact in self.facts if not fact.stated for word in fact.ask_words]
        if len(set(asked)) < len(asked):
            raise Unfit("two hidden facts that one question asks for")
        written = [(s.tool, orjson.dumps(s.arguments)) for s in (recorder.steps[i] for i in recorder.writes)]
        if len(set(written)) < len(written):
            raise Unfit("twice the same")
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
            traits=TaskTraits(
                calls=len(calls),
                writes=len(recorder.writes),
                demands=len(demands),
                reasoning=reasoning,
                distractors=sum(n - min(n, len(self.needed.get(s, ()))) for s, n in self.shown.items()),
                hidden=sum(not fact.stated for fact in self.facts),
            ),
        )
        return Sample(task, tuple(recorder.outputs), tuple(shapes), characters)

    def _bulk(self, needs: Needs) -> float:
        """How much longer than usual the shortest lists of the collections looked at are."""
        sizes = [
            record_size(self.catalog, known, populated(self.catalog, known, needs.fields))
            for known in (self.catalog.collections[name] for name in needs.uses)
        ]
        return min(2.5, max(1.0, 3 * max(sizes) / RESULT_BUDGET))

    # ---------------------------------------------------------------------------------------- execution
    def _run(
        self, recorder: Recorder, demand: Demand, new: dict[int, _New], index: int, parent: int | None
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
        open_ = {b.field: b.param for b in semantics.scope if all(v.plan.binding != b for v in demand.values)}
        for value in sorted(demand.values, key=lambda v: v.plan.kind == "hidden"):  # look up first, ask last
            binding = value.plan.binding
            if value.plan.kind == "created":
                if parent is None or parent not in new:
                    raise Unfit("no created parent")
                arguments[binding.param] = new[parent].key
                arguments |= {open_[n]: known for n, known in new[parent].place.items() if n in open_}
            else:
                also = tuple(open_) if demand.target is None and value.plan.kind == "key" else ()
                arguments[binding.param], told = self._known(recorder, value, also)
                arguments |= {open_[name]: known for name, known in told.items() if name in open_}
        order = list(self.catalog.tools[semantics.tool].parameters.get("properties", {}))
        arguments = dict(sorted(arguments.items(), key=lambda item: order.index(item[0].split(".")[0])))
        key = semantics.key
        if demand.target is None or key is None:
            step = self._write(recorder, semantics.tool, arguments)
            if semantics.verb == "create":
                path = self._key_path(demand)
                if path is not None and fetch(path, recorder.outputs[step]) is not None:
                    place = {b.field: arguments[b.param] for b in semantics.scope if b.param in arguments}
                    new[index] = _New(recorder.output(step, path), place)
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

    def _known(
        self, recorder: Recorder, value: Value, also: tuple[str, ...] = ()
    ) -> tuple[Known, dict[str, Known]]:
        """One written argument as the agent comes to know it, and further fields of the record it is the key
        of."""
        plan, choice = value.plan, value.choice
        binding = plan.binding
        asked_for = binding.param if plan.kind == "amount" else binding.field
        words = self.speaker.field(binding.collection, asked_for)
        if plan.kind in ("literal", "hidden", "amount"):
            name = f"{binding.collection}.{binding.field}.{len(self.facts)}"
            sentence = self.speaker.fact(binding.collection, asked_for, value.value)
            asked = (words, *(field_words(binding.field)[-1:] if " " in words else ()))
            hidden = plan.kind == "hidden"
            self.facts.append(
                UserFact(name=name, value=value.value, sentence=sentence, ask_words=asked, stated=not hidden)
            )
            if hidden:
                question = self.speaker.question(binding.collection, binding.field)
                return recorder.ask(question, name, value.value), {}
            return Known(value.value, "instruction", say(value.value)), {}
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
            answer = recorder.reason(node, words)[0]
            wanted = str(answer.value) if plan.as_text else answer.value
            if wanted != value.value:
                raise Unfit(f"{plan.kind} comes to {wanted!r}, the world has {value.value!r}")
            return Known(wanted, "reasoning", node.id, node.id), {}
        found, told = self._look_up(recorder, choice, also)
        known = found[0]
        if known.value != value.value:
            raise Unfit(f"looked up {known.value!r}, the world has {value.value!r}")
        return known, told

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
            if not locator.access.single:
                scope[link.foreign_key] = known
        held = dict(locator.access.given)
        for param, value in choice.given:
            arguments[param] = Known(value, "instruction", say(value))
            scope[held[param]] = arguments[param]
        if locator.access.by_label:
            label = choice.anchor[self.catalog.collections[choice.collection].label]
            arguments[locator.access.by_label] = Known(label, "instruction", say(label))
        step = recorder.call(locator.access.tool, arguments, write=False)
        self.shown[step] = len(resolve(locator.access.element, recorder.outputs[step]))
        key = self.catalog.collections[choice.collection].key
        self.needed.setdefault(step, set()).update(str(record.get(key)) for record in choice.chosen)
        return step, locator.access.element, scope

    def _look_up(
        self, recorder: Recorder, choice: Choice, also: tuple[str, ...] = ()
    ) -> tuple[list[Known], dict[str, Known]]:
        """Arrive at what a choice yields: its key(s) or another field, and the parents' keys on the way.
        ``also`` names
        further fields wanted of the record, taken from the same result when the parents did not give them."""
        pick = choice.pick
        if pick.locator is None:
            said = {name: choice.anchor.get(name) for name in (pick.answer, *pick.tells)}
            known = {n: Known(v, "instruction", say(v)) for n, v in said.items() if v is not None}
            return [known[pick.answer]], known
        step, pattern, scope = self._list(recorder, choice)
        answer = self._path(choice, pick.answer)
        expected = [record.get(pick.answer) for record in choice.chosen]
        elements = resolve(pattern, recorder.outputs[step])
        collection = self.catalog.collections[choice.collection]
        selector = pick.selector
        if selector.kind == "only":
            at = elements[0][0] if elements else ""
            known = recorder.output(step, f"{at}.{answer}".strip("."))
            words = self.speaker.field(choice.collection, pick.answer)
            found = [replace(known, said=f"{words}: {say(known.value)}")]
            for name in also if pick.locator.access.many and elements else ():
                path = pick.locator.access.path(name)
                if path is not None and (name not in scope or pick.locator.access.by_text):
                    scope[name] = recorder.output(step, f"{at}.{path}".strip("."))
        elif selector.kind == "label":
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
            over = self._path(choice, selector.field) if selector.field else ""
            words = self.speaker.field(choice.collection, selector.field or pick.answer)
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
    if kind == "label" or kind == "all" or kind == "only":
        raise Unfit(f"{kind} needs no reasoning")
    return kind
