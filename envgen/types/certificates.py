"""What was tried on a task and what came out, and the account of a whole synthesis."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envgen.types.base import Frozen

GateName = Literal[
    "replay", "noop", "write_dropped", "mutants", "equivalents", "knowable", "binding", "leak", "duplicate",
    "confirmation", "policy",
]  # fmt: skip


class GateResult(Frozen):
    """Outcome of one gate of DESIGN.md §7 on one task."""

    gate: GateName
    passed: bool
    tried: int = 0
    detail: str = ""


class Certificate(Frozen):
    """All gates of one task. ``certified`` only when every gate run passed."""

    task_id: str
    gates: tuple[GateResult, ...]

    @property
    def certified(self) -> bool:
        """True when at least one gate ran and all of them passed."""
        return bool(self.gates) and all(g.passed for g in self.gates)


class CoverageReport(Frozen):
    """How much of the environment the tasks cover, and how different they are (`envgen.synthesis.coverage`
    defines every figure)."""

    tasks: int
    unique_sequences: int
    """Different full tool sequences of the references."""
    writing_tasks: int
    """Tasks whose reference changes the state."""
    unique_write_sequences: int
    near_duplicates: int
    tasks_per_writer: dict[str, int]
    """Write tool -> tasks it stands in."""
    edges_executable: int
    edges_used: int
    edges_unused: tuple[str, ...] = ()
    """``source -> target.param``."""
    edges_idle: dict[str, int] = Field(default_factory=dict)
    """Reason -> number of graph edges nobody would go along."""
    levels: dict[str, int] = Field(default_factory=dict)
    """Difficulty -> number of tasks."""


class SynthesisReport(Frozen):
    """The account of one synthesis: every tool and every sampled task is in it."""

    tools_total: int
    tools_implemented: int
    refused: dict[str, str]
    """Tool name -> reason."""
    tasks_sampled: int
    tasks_certified: int
    dropped: dict[str, int]
    """Gate (or ``sampling``) -> number of tasks dropped there."""
    seconds: float
    coverage: CoverageReport | None = None
    """None in bundles made before this was measured."""
