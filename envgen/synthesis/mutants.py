"""Wrong variants of a task's reference, for gate 4: a grader that accepts one of them is too lax."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date
from typing import Any

import orjson

from envgen.runtime.state import Delta
from envgen.synthesis.runner import Runner, Write
from envgen.synthesis.schema import place_argument, read_argument
from envgen.synthesis.values import ValueMaker
from envgen.types import ParamBinding, StateData, Task, ToolSemantics

MUTANTS = 12
"""Wrong variants tried per task."""


class MutantMaker:
    """Makes wrong variants for tasks of one environment."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.bench = runner.bench
        self.catalog = runner.catalog
        collections = runner.schema.collections
        self._exempt = {(c.name, f.name) for c in collections for f in c.fields if f.policy == "exempt"}

    def variants(self, task: Task, rng: random.Random) -> Iterator[tuple[str, list[Write]]]:
        """Wrong variants: changed arguments and wrong entities of every write first, then extra writes."""
        writes = self.runner.writes(task)
        maker = ValueMaker(self.bench.pool, rng, date.fromisoformat(task.clock[:10]))
        changed: list[tuple[str, list[Write]]] = []
        for index, write in enumerate(writes):
            semantics = self.catalog.semantics[write.tool]
            for binding in _bindings(semantics):
                current = read_argument(write.arguments, binding.param)
                if current is None:
                    continue
                for other in self._others(task.initial_state, binding, semantics, current, maker):
                    arguments = orjson.loads(orjson.dumps(write.arguments))
                    place_argument(arguments, binding.param, other)
                    mutated = [*writes[:index], Write(write.tool, arguments), *writes[index + 1 :]]
                    changed.append((f"{write.tool} with {binding.param}={other!r}", mutated))
        rng.shuffle(changed)
        keep = MUTANTS - 4
        yield from changed[:keep]
        base = self._graded(task, self.runner.play(task, writes).delta())
        seen: set[bytes] = set()
        extras: list[Write] = []
        extra = 0
        for _ in range(120):
            if extra == max(4, MUTANTS - len(changed)):
                break
            call = self._random_write(task, rng, maker)
            if call is None:
                continue
            text = orjson.dumps([call.tool, call.arguments])
            if text in seen:
                continue
            seen.add(text)
            if self._graded(task, self.runner.play(task, [*writes, call]).delta()) == base:
                continue  # refused, or without effect: not a wrong variant
            if any(call.tool == w.tool and call.arguments == w.arguments for w in writes) and _idempotent(
                self.catalog.semantics[call.tool]
            ):
                continue
            extra += 1
            extras.append(call)
            yield f"extra {call.tool} {call.arguments}", [*writes, call]
        yield from changed[keep:]
        for label, calls in changed:  # few records: two mistakes at once
            yield from (
                (f"{label} and extra {e.tool} {e.arguments}", [*calls, e]) for e in extras if e not in calls
            )
        for index, call in enumerate(extras):
            pairs = (other for other in extras[index + 1 :] if other.arguments != call.arguments)
            yield from ((f"extra {call.tool} twice", [*writes, call, other]) for other in pairs)

    def _graded(self, task: Task, delta: Delta) -> dict[tuple[str, str], Any]:
        """What changed in fields that are graded at all (clocks are exempt): (collection, key) -> changed
        fields."""
        changed: dict[tuple[str, str], Any] = {}
        for tables in (delta.inserted, delta.updated):
            for name, table in tables.items():
                for key, record in table.items():
                    old = task.initial_state.get(name, {}).get(key, {})
                    new = {
                        f: v for f, v in record.items() if (name, f) not in self._exempt and old.get(f) != v
                    }
                    if new or not old:
                        changed[name, key] = new
        changed.update({(name, key): None for name, keys in delta.deleted.items() for key in keys})
        return changed

    def _others(
        self,
        state: StateData,
        binding: ParamBinding,
        semantics: ToolSemantics,
        current: Any,
        maker: ValueMaker,
    ) -> list[Any]:
        """Other plausible values of an argument: keys of other records, or fresh values."""
        held = self.catalog.fields.get((binding.collection, binding.field))
        owner = held.references if held is not None and held.references else ""
        known = self.catalog.collections.get(owner or binding.collection)
        is_key = bool(owner) or (
            known is not None and binding.field == known.key and semantics.verb != "create"
        )
        if is_key and known is not None:
            keys = [record.get(known.key) for record in state.get(known.name, {}).values()]
            return [key for key in keys if key is not None and key != current][:4]
        if held is None or known is None or held.policy == "exempt":
            return []
        schema = self.catalog.parameter(semantics.tool, binding.param)
        found: list[Any] = []
        for _ in range(10):
            value = maker.value(known, held, schema)
            if value is not None and value != current and value not in found:
                found.append(value)
            if len(found) == 4:
                break
        return found

    def _random_write(self, task: Task, rng: random.Random, maker: ValueMaker) -> Write | None:
        """A write on a record of the initial state with plausible values; None when an argument cannot be
        had."""
        semantics = rng.choice(self.catalog.writers)
        arguments: dict[str, Any] = {}
        record: dict[str, Any] = {}
        if semantics.key is not None and semantics.verb != "create":
            table = list(task.initial_state.get(semantics.collection, {}).values())
            if not table:
                return None
            record = rng.choice(table)
            place_argument(
                arguments, semantics.key.param, record[self.catalog.collections[semantics.collection].key]
            )
        needed = self.catalog.required(semantics.tool)
        for binding in (*semantics.scope, *semantics.writes, *semantics.amounts):
            if binding.param not in needed and not binding.required and rng.random() < 0.6:
                continue
            held = self.catalog.fields.get((binding.collection, binding.field))
            if held is None:
                return None
            if binding in semantics.scope and record.get(binding.field) is not None:
                value = record[binding.field]
            elif held.references:
                keys = list(task.initial_state.get(held.references, {}).values())
                value = rng.choice(keys).get(self.catalog.collections[held.references].key) if keys else None
            else:
                schema = self.catalog.parameter(semantics.tool, binding.param)
                value = maker.value(self.catalog.collections[binding.collection], held, schema)
            if value is None:
                if binding.param in needed:
                    return None
                continue
            place_argument(arguments, binding.param, value)
        return Write(semantics.tool, arguments)


def _bindings(semantics: ToolSemantics) -> tuple[ParamBinding, ...]:
    key = (semantics.key,) if semantics.key else ()
    return (*key, *semantics.scope, *semantics.writes, *semantics.amounts)


def _idempotent(semantics: ToolSemantics) -> bool:
    return semantics.verb not in ("create", "toggle") and not semantics.deltas
