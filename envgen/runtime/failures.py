"""Failure injection: tools that time out, break for a moment, limit their rate, answer in part, or are slow.

Seeded and bounded: what fails is a function of (settings, environment, seed, calls so far), no more than
``max_in_a_row`` calls fail one after another, and no more than ``max_per_episode`` in all. A failed call is
not run: it changes nothing, mints no id and moves no clock, so an agent that calls again ends in the same
state and gets the same grade. Only calls that read are answered in part. Injected failures count neither as
calls nor as errors of the agent, and a turn that met one is not taken off its budget.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from envgen.runtime.context import mix

FailureKind = Literal["timeout", "transient", "rate_limit", "partial", "slow"]
KINDS: tuple[FailureKind, ...] = ("timeout", "transient", "rate_limit", "partial", "slow")

_TEXTS: Mapping[str, str] = {
    "timeout": "the tool did not answer in time; nothing was changed, call it again",
    "transient": "temporary failure (503 service unavailable); nothing was changed, call it again",
    "rate_limit": "rate limit exceeded (429 too many requests); nothing was changed, call it again later",
}
_PART = "only a part of the result arrived; call again for all of it"


class FailureRates(BaseModel):
    """Share of calls that each kind of failure hits; together at most 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: float = Field(default=0.0, ge=0, le=1)
    transient: float = Field(default=0.0, ge=0, le=1)
    rate_limit: float = Field(default=0.0, ge=0, le=1)
    partial: float = Field(default=0.0, ge=0, le=1)
    slow: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _at_most_one(self) -> FailureRates:
        if self.total > 1:
            raise ValueError(f"the failure rates add up to {self.total:g}, expected at most 1")
        return self

    @property
    def total(self) -> float:
        """Share of calls hit by anything."""
        return sum(getattr(self, kind) for kind in KINDS)


class ToolFailureSettings(FailureRates):
    """Rates of every environment, or of one by the name of its bundle, and what bounds them."""

    environments: dict[str, FailureRates] = {}
    """Bundle name -> rates in the place of those above."""
    rate_limit_calls: int = Field(default=2, ge=1)
    """Calls in a row that a rate limit refuses."""
    slow_s: float = Field(default=0.05, ge=0)
    """Real seconds that a slow tool takes longer."""
    max_in_a_row: int = Field(default=2, ge=1)
    """An agent that calls again this often always gets through."""
    max_per_episode: int = Field(default=8, ge=0)
    seed: int = 0

    def of(self, environment: str) -> FailureRates:
        """The rates of one environment."""
        return self.environments.get(environment, self)


@dataclass(frozen=True)
class Struck:
    """One injected failure: at which call of the episode (from 0), and its kind."""

    call: int
    kind: FailureKind


class ToolFailures:
    """The failures of one episode; single-use like its Env. ``struck`` is the ground truth so far."""

    def __init__(
        self,
        settings: ToolFailureSettings,
        environment: str,
        seed: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.struck: list[Struck] = []
        self._settings = settings
        self._rates = settings.of(environment)
        self._rng = random.Random(mix(settings.seed, seed, 31337))
        self._sleep = sleep
        self._calls = 0
        self._in_a_row = 0
        self._limited = 0
        self._part = False

    @property
    def refusals(self) -> int:
        """Failures so far after which a call has to be made again: all but the slow ones."""
        return sum(failure.kind != "slow" for failure in self.struck)

    def before(self) -> str:
        """Called before each call: the observation of a call that is not to be run, or an empty string."""
        call, self._calls = self._calls, self._calls + 1
        self._part = False
        kind = self._draw()
        if kind is not None and kind not in ("slow", "partial"):
            self._in_a_row += 1
            self.struck.append(Struck(call, kind))
            return orjson.dumps({"error": _TEXTS[kind]}).decode()
        if kind == "slow":
            self.struck.append(Struck(call, kind))
            self._sleep(self._settings.slow_s)
        self._part = kind == "partial"
        if not self._part:
            self._in_a_row = 0
        return ""

    def after(self, value: Any) -> str:
        """Called with the JSON result of a call that only read: a part of it as text, or an empty string."""
        rows = _rows(value) if self._part else None
        self._part = False
        if rows is None:
            self._in_a_row = 0
            return ""
        self._in_a_row += 1
        self.struck.append(Struck(self._calls - 1, "partial"))
        kept = rows[: len(rows) // 2]
        answer = {"partial": True, "message": _PART, "received": len(kept), "of": len(rows), "result": kept}
        return orjson.dumps(answer).decode()

    def _draw(self) -> FailureKind | None:
        # One number a call, whatever comes of it: what is drawn later does not depend on what was refused.
        drawn = self._rng.random()
        if (
            len(self.struck) >= self._settings.max_per_episode
            or self._in_a_row >= self._settings.max_in_a_row
        ):
            self._limited = 0
            return None
        if self._limited:
            self._limited -= 1
            return "rate_limit"
        for kind in KINDS:
            rate: float = getattr(self._rates, kind)
            if drawn < rate:
                if kind == "rate_limit":
                    self._limited = self._settings.rate_limit_calls - 1
                return kind
            drawn -= rate
        return None


def _rows(value: Any) -> list[Any] | None:
    """The list of a result that can arrive in part: itself, or the only list of an object."""
    if isinstance(value, list):
        rows = cast("list[Any]", value)
        return rows if len(rows) > 1 else None
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        lists = [name for name, member in members.items() if isinstance(member, list)]
        return _rows(members[lists[0]]) if len(lists) == 1 else None
    return None
