"""Tool calls as text: JSON in and out, whatever tags a family puts around it.

Reading never raises: what is wrong stands in the call's `parse_error`, which the environment answers with
and which is counted (`Trajectory.malformed_calls`). A malformed call must not end an episode, and must never
pass for a message to the user (FAULTS.md 17).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from envgen.interface import Message, ToolCall

_BAD = "the call is malformed: "


def compact_json(value: Any) -> str:
    """The one JSON style of transcripts: no spaces, UTF-8. The environment writes its results the same
    way.
    """
    return orjson.dumps(value).decode()


class TurnBuilder:
    """Collects what one turn says; makes the message at its end."""

    def __init__(self, turn: int) -> None:
        self._turn = turn
        self._calls: list[ToolCall] = []
        self.content: list[str] = []
        self.thinking: list[str] = []

    @property
    def has_calls(self) -> bool:
        """Some call was added."""
        return bool(self._calls)

    def call(self, name: str, arguments: str, fault: str = "") -> None:
        """Add one call; `arguments`: JSON text."""
        call_id = f"t{self._turn}c{len(self._calls)}"
        self._calls.append(ToolCall(id=call_id, name=name, arguments=arguments, parse_error=fault))

    def fault(self, what: str) -> None:
        """A call that cannot be read at all."""
        self.call("", "{}", what)

    def malformed(self, what: str) -> None:
        """`fault` of a call."""
        self.fault(f"{_BAD}{what}")

    def json_call(self, text: str, key: str = "arguments", other: str = "") -> None:
        """Add the call that JSON text spells. key: the family's name for the arguments; other: a second name
        that is understood."""
        tree, error = load_json(text)
        if error:
            self.malformed(error)
        else:
            self.tree_call(tree, key, other)

    def tree_call(self, tree: Any, key: str = "arguments", other: str = "") -> None:
        """Add the call that a JSON value spells."""
        form = f'{{"name": "<tool>", "{key}": {{…}}}}'
        if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
            self.malformed(f"expected {form}")
            return
        used = key if key in tree or other not in tree else other
        arguments = tree.get(used, {})
        extra = [name for name in tree if name not in ("name", used)]
        fault = ""
        if extra or not isinstance(arguments, dict):
            found = f"unknown key {extra[0]!r}" if extra else f"{key} that are no object"
            fault = f"{_BAD}{found}; expected only name and {key}, an object"
        self.call(tree["name"], compact_json(arguments), fault)

    def message(self) -> Message:
        """The turn."""
        return Message(
            role="assistant",
            content=joined(self.content),
            thinking=joined(self.thinking),
            tool_calls=tuple(self._calls),
        )


def load_json(text: str) -> tuple[Any, str]:
    """(value, "") or (None, what is wrong)."""
    try:
        return orjson.loads(text), ""
    except orjson.JSONDecodeError as error:
        return None, f"not valid JSON ({error})"


def joined(parts: Iterable[str]) -> str:
    """Parts without the blanks around them, one per line; empty ones are left out."""
    return "\n".join(stripped for part in parts if (stripped := part.strip()))
