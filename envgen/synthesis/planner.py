"""Which task to try next: levels come out in their shares, and everything gets covered.

Instead of blind walks, several plans are drawn for each task, and the one is tried that covers most that is
new: tool sequences no task has, write sequences no task has, executable edges none walked, write tools in few
tasks. A made task whose sequence is known is not kept (`ShapePlanner.keeps`), until a level has nothing new
to offer: then the other levels get its share, and when none has, repeats are kept, near duplicates last. What
could not be covered is told by `envgen.synthesis.coverage.shortfalls`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envgen.synthesis.catalog import Catalog
from envgen.synthesis.choices import Footprint, static_footprint
from envgen.synthesis.coverage import (
    LEAST_PER_WRITER,
    Edge,
    Likeness,
    edges_used,
    executable_edges,
    full_sequence,
    write_sequence,
)
from envgen.synthesis.difficulty import HARDEST, LEVELS, Level, difficulty, level_of
from envgen.synthesis.graph import build_graph
from envgen.synthesis.sequences import ShapeSampler
from envgen.synthesis.shapes import DemandShape
from envgen.types import Task

PLANS, LEAST_PLANS = 8, 3
"""Plans drawn for one task, of which the best is tried; fewer where one of them is new in all ways."""
PATIENCE = 60
"""Tries in a row at a level without anything new after which it counts as used up."""
BARREN = 120
"""Tries at a level without a single task after which it is given up."""
NOVEL_SEQUENCE, NOVEL_WRITES, NOVEL_EDGE, NEEDED_WRITER = 3.0, 2.0, 3.0, 2.0
"""What one thing that is new counts for when plans are compared."""

Plan = tuple[list[DemandShape], dict[int, int]]
"""Shapes of a task, and which demand hangs under which."""


@dataclass
class _Progress:
    """What became of the tries at one level."""

    tries: int = 0
    kept: int = 0
    since_new: int = 0
    """Tries since the last task that was new."""
    used_up: bool = False
    """Nothing new came for `PATIENCE` tries. It stays so: what is new later is kept too, but not waited
    for."""

    def try_again(self) -> None:
        """Count one more try."""
        self.tries += 1
        self.since_new += 1
        if self.since_new >= PATIENCE or (self.tries >= BARREN and not self.kept):
            self.used_up = True


@dataclass
class _Seen:
    """What the tasks kept so far cover."""

    full: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    writes: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    edges: set[Edge] = field(default_factory=set[Edge])
    writers: Counter[str] = field(default_factory=Counter[str])
    alike: Likeness = field(default_factory=Likeness)


class ShapePlanner:
    """Draws plans for the tasks of one bundle. ``levels``: the difficulty levels wanted; ``max_demands``: the
    most demands that a plan merges, whatever its level allows (0: no limit)."""

    def __init__(
        self, catalog: Catalog, seed: int, levels: int | tuple[int, ...] = HARDEST, max_demands: int = 0
    ) -> None:
        self.catalog = catalog
        self.rng = random.Random(f"shapes/{seed}")
        self.sampler = ShapeSampler(catalog, self.rng)
        numbers = tuple(range(1, levels + 1)) if isinstance(levels, int) else levels
        most = max_demands or max(level.demands for level in LEVELS)
        self.levels = tuple(
            replace(level, demands=min(level.demands, most)) for level in map(level_of, numbers)
        )
        self.progress = {level.number: _Progress() for level in self.levels}
        self.seen = _Seen()
        self.tried: Counter[tuple[str, ...]] = Counter()
        """Sequences of the plans that are being tried."""
        schema = catalog.schema
        self.useful, _ = executable_edges(build_graph(catalog.draft), catalog.semantics.values(), schema)
        self.wanted = self.levels[0]
        """The level that the last plan was drawn for."""
        self.refused = 0
        """Near duplicates in a row that were not kept; from `PATIENCE` on they are."""

    # ------------------------------------------------------------------------------------------ plans
    def draw(self) -> Plan | None:
        """The best of several plans for one task; None when no draw fits."""
        self.wanted = self._wanted_level()
        now = self.progress[self.wanted.number]
        now.try_again()
        best: Plan | None = None
        highest = 0.0
        hardest = self.levels[-1].number
        for drawn in range(LEAST_PLANS if now.used_up else PLANS):
            plan = self._one(self.wanted)
            if plan is None:
                continue
            level = difficulty(len(predicted(plan[0])), sum(s.reasoning for s in plan[0]))
            if level > hardest:
                continue
            worth = self._worth(plan) - 6.0 * abs(level - self.wanted.number) + self.rng.random()
            if best is None or worth > highest:
                best, highest = plan, worth
            if drawn + 1 >= LEAST_PLANS and highest > NOVEL_SEQUENCE + NOVEL_WRITES + NOVEL_EDGE:
                break
        return best

    def _wanted_level(self) -> Level:
        """Levels by their shares, corrected for how often a try at a level works out; used up ones are
        rarely tried, unless all are."""
        open_ = [level for level in self.levels if not self.progress[level.number].used_up]
        weights: list[float] = []
        for level in self.levels:
            done = self.progress[level.number]
            yielded = (done.kept + 1) / (done.tries + 2)
            weight = level.share / max(yielded, 0.25) if yielded > 0.02 else level.share * 0.1
            weights.append(weight * (0.02 if open_ and done.used_up else 1.0))
        return self.rng.choices(self.levels, weights)[0]

    def _one(self, level: Level) -> Plan | None:
        hidden = self.rng.random() < level.hidden * 1.6  # not every shape has a value to hide
        first = self.sampler.draw(hidden=hidden)
        if first is None:
            return None
        shapes, nested = [first], dict[int, int]()
        prints = [static_footprint(self.catalog, first)]
        least, most = self._sizes(level)
        for _ in range(3 * level.demands):
            calls = len(predicted(shapes))
            if len(shapes) >= level.demands or (calls >= level.calls[0] and len(shapes) >= least):
                break
            more = self._more(level, shapes, nested, prints)
            if more is not None and len(predicted([*shapes, more[0]])) <= most:
                if more[1] is not None:
                    nested[len(shapes)] = more[1]
                shapes.append(more[0])
                prints.append(static_footprint(self.catalog, more[0]))
        reasoning = sum(s.reasoning for s in shapes)
        if not level.reasoning[0] <= reasoning <= level.reasoning[1]:
            return None
        return shapes, nested

    def _sizes(self, level: Level) -> tuple[int, int]:
        """Fewest demands, and most calls, of the next plan: a level that repeats itself gets larger plans."""
        done = self.progress[level.number]
        stuck = 0.0 if done.used_up else done.since_new / PATIENCE
        merged = self.rng.random() < 0.25 + 0.6 * min(1.0, 2 * stuck)
        low, high = level.calls
        return (2 if merged else 1), high if high - low < 4 else self.rng.randint(low + 1, high)

    def _more(
        self, level: Level, shapes: list[DemandShape], nested: dict[int, int], prints: list[Footprint]
    ) -> tuple[DemandShape, int | None] | None:
        """One demand more: about the record that an earlier one makes, or an independent one."""
        if self.rng.random() < 0.5:
            under = self.rng.choice(range(len(shapes)))
            inner = self.sampler.nested(shapes[under]) if under not in nested.values() else None
            if inner is not None and not self._clash(inner, shapes, prints):
                return inner, under
        asked = sum(_asks(shape) for shape in shapes)
        hidden = asked < level.hidden_most and self.rng.random() < level.hidden / 3
        other = self.sampler.draw(hidden=hidden, alone=False)
        repeat = level.number >= 3 or self.rng.random() < 0.4
        if other is None or self._clash(other, shapes, prints, repeat=repeat):
            return None
        return other, None

    def _clash(
        self, shape: DemandShape, others: list[DemandShape], prints: list[Footprint], *, repeat: bool = False
    ) -> bool:
        """True when the order of demands could matter, or (unless ``repeat``) one uses another's write tool
        again."""
        tool = shape.semantics.tool
        if not repeat and any(tool == other.semantics.tool for other in others):
            return True
        mine = static_footprint(self.catalog, shape)
        return any(mine.clashes(other) for other in prints)

    def _worth(self, plan: Plan) -> float:
        """How much a plan covers that no task covers yet."""
        calls = predicted(plan[0])
        writes = tuple(tool for tool in calls if self.catalog.semantics[tool].writes_state)
        edges = {edge for shape in plan[0] for edge in shape.edges()}
        for inner, outer in plan[1].items():
            made_by, shape = plan[0][outer].semantics.tool, plan[0][inner]
            params = [v.binding.param for v in shape.values if v.kind == "created"]
            edges.update((made_by, shape.semantics.tool, param) for param in params)
        return (
            NOVEL_SEQUENCE * (calls not in self.seen.full and not self.tried[calls])
            + NOVEL_WRITES * (writes not in self.seen.writes)
            + NOVEL_EDGE * len((edges & self.useful) - self.seen.edges)
            + NEEDED_WRITER * sum(self.seen.writers[tool] < LEAST_PER_WRITER for tool in set(writes))
        )

    # ------------------------------------------------------------------------------------------ tasks
    def keeps(self, task: Task) -> bool:
        """True when a made task adds something: its sequence is new, or nothing new is left to be had."""
        if full_sequence(task) not in self.seen.full:
            return True
        if any(not done.used_up for done in self.progress.values()):
            return False
        if self.refused < PATIENCE and self.seen.alike.near(task):
            self.refused += 1
            return False
        return True

    def mark(self, shapes: Sequence[DemandShape], count: int = 1) -> None:
        """Count a plan that is being tried as if it covered something, so that the next one differs; with
        ``count`` -1 no longer."""
        self.tried[predicted(shapes)] += count
        for shape in shapes:
            self.sampler.mark(shape.tools(), count)

    def note(self, task: Task, shapes: Sequence[DemandShape], level: int) -> None:
        """Count a task that was kept, whose plan was drawn for a level."""
        done = self.progress[level]
        done.kept += 1
        if self.refused < PATIENCE:
            self.refused = 0
        sequence = full_sequence(task)
        if sequence not in self.seen.full:
            done.since_new = 0
        writes = write_sequence(task, self.catalog.semantics)
        self.seen.full[sequence] += 1
        self.seen.writes[writes] += 1
        self.seen.writers.update(set(writes))
        self.seen.edges |= edges_used(task)
        self.seen.alike.note(task)
        for shape in shapes:
            self.sampler.note(shape)


def predicted(shapes: Sequence[DemandShape]) -> tuple[str, ...]:
    """The tool sequence a task of these shapes will probably have; a look-up of whole lists is made once."""
    calls: list[str] = []
    looked: set[str] = set()
    for shape in shapes:
        for tool in shape.calls():
            if tool == shape.semantics.tool or tool not in looked:
                calls.append(tool)
        looked.update(t for pick in shape.picks if pick.locator for t in pick.locator.tools())
    return tuple(calls)


def _asks(shape: DemandShape) -> int:
    return sum(value.kind == "hidden" for value in shape.values)
