"""Errors of envgen, named after the boundary that was crossed.

    EnvgenError
    ├── DocumentError     a tool document cannot be read (not JSON/YAML, no tools, circular, too big)
    │   └── ProseError    it is prose, which takes a language model to read
    ├── RefusedDocument   it was read, and no environment can be made of it; carries the findings
    ├── BundleError       a bundle on disk is missing, corrupted, of another version, or has unknown fields
    ├── UnsafeCodeError   generated Python breaks the static allow-list
    ├── TaskError         a task does not fit its environment
    ├── ToolDefect        a tool function raised something other than ToolError, or returned what is not JSON
    │   └── ToolBreach    it ran into a limit of its isolated worker, or took the worker down
    ├── IsolationError    unvetted code needs an isolated worker, and this machine cannot give one
    └── EnvUsageError     an Env was used against its contract (started twice, stepped after the end)

`ToolError` is not in this tree: it is what a tool function raises to say "no" to the agent, and becomes an
observation. Every message says what was got, what was expected and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # isolated workers import this module, and pydantic takes longer than all else they need
    from envgen.types import LintFinding


class EnvgenError(Exception):
    """Base of every error that envgen raises on purpose."""


class DocumentError(EnvgenError):
    """A tool document cannot be read."""


class ProseError(DocumentError):
    """A document describes its tools in prose: only a language model can read it."""


class RefusedDocument(EnvgenError):
    """No environment can be made of a document; ``findings`` says why, by pointer."""

    def __init__(self, message: str, findings: tuple[LintFinding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings

    def __reduce__(self) -> tuple[type[RefusedDocument], tuple[str, tuple[LintFinding, ...]]]:
        return type(self), (str(self), self.findings)


class BundleError(EnvgenError):
    """A bundle on disk cannot be used as it is."""


class UnsafeCodeError(EnvgenError):
    """Generated code uses something outside the allow-list."""


class TaskError(EnvgenError):
    """A task does not fit the environment it names."""


class ToolDefect(EnvgenError):
    """Generated code is defective: it raised something other than ToolError or returned a value that is not
    JSON."""

    reason = "env_error"
    """The ``StopReason`` value with which it ends an episode."""


class ToolBreach(ToolDefect):
    """A tool function broke a limit of its isolated worker; the worker is gone. ``reason`` is the
    ``StopReason`` value."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ToolBreach], tuple[str, str]]:
        return type(self), (str(self), self.reason)  # it crosses processes when a synthesis has workers


class IsolationError(EnvgenError):
    """Code that is not vetted cannot be run here: what is missing, and what to do."""


class EnvUsageError(EnvgenError):
    """An Env was used against its contract."""


class ToolError(Exception):
    """Raised by a tool function: the agent sees the message as an observation, the episode goes on."""
