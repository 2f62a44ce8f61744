"""The dial: what makes a task hard, in levels.

A level is set by the calls of the reference and by how many of its conclusions take thinking; the harder the
level, the more demands are merged, the more records stand beside the wanted ones, and the more often the user
has to be asked.

level  calls   reasoning    demands  extra records a list  hidden facts
1      2–4     0            1–3      0                     in 15 % of the tasks, one
2      2–4     1            1–3      0                     in 20 %, one
3      5–7 *   any          1–4      1                     in 35 %, one
4      8–11    any          2–8      2                     in 50 %, one or two
5      12+     any          3–12     3                     in 65 %, one or two

* or fewer calls with two conclusions or more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """What tasks of one level are made of."""

    number: int
    calls: tuple[int, int]
    """Fewest and most calls of the reference."""
    reasoning: tuple[int, int]
    """Fewest and most reasoning nodes that the planner aims at."""
    demands: int
    """Demands merged at most."""
    crowd: int
    """Records that a list shows beyond the usual three to six: distractors."""
    hidden: float
    """Share of tasks with a fact that must be asked for."""
    hidden_most: int
    share: float
    """Share of the tasks of a bundle, before the levels wanted are scaled to one."""
    body: int
    """Characters of instruction, calls and results a reference may have: short contexts are what small
    policies can learn from."""


LEVELS: tuple[Level, ...] = (
    Level(1, (2, 4), (0, 0), 3, 0, 0.15, 1, 0.2, 1350),
    Level(2, (2, 4), (1, 1), 3, 0, 0.2, 1, 0.28, 1500),
    Level(3, (5, 7), (0, 3), 4, 1, 0.35, 1, 0.22, 3000),
    Level(4, (8, 11), (0, 5), 8, 2, 0.5, 2, 0.17, 4600),
    Level(5, (12, 18), (0, 8), 12, 3, 0.65, 2, 0.13, 7000),
)
HARDEST = len(LEVELS)


def level_of(number: int) -> Level:
    """The level with this number. Raises ValueError, naming those there are."""
    if not 1 <= number <= HARDEST:
        raise ValueError(f"got level {number}; expected 1 to {HARDEST}")
    return LEVELS[number - 1]


def difficulty(calls: int, reasoning: int) -> int:
    """Level of a task by the calls of its reference and its reasoning nodes."""
    if calls >= 5:
        return next(level.number for level in reversed(LEVELS) if calls >= level.calls[0])
    if reasoning >= 2:
        return 3
    return 2 if reasoning else 1


def parse_levels(text: str) -> tuple[int, ...]:
    """Levels as a person writes them: ``3``, ``2-4``, ``1,3,5``. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"got difficulty {text!r}; expected levels such as 3, 2-4 or 1,3,5")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ValueError(f"got difficulty {text!r}; {part.strip()!r} names no level")
        found.update(level_of(number).number for number in numbers)
    return tuple(sorted(found))
