"""Runs one tool call: parse, check against the tool's JSON Schema, dispatch from a closed table, as a
transaction.

Whatever the agent wrote, the answer is an observation: malformed JSON, an unknown tool, a missing, unknown
or ill-typed argument, or the tool's own ``ToolError``. A call that fails leaves the state as it was. Only a
defect of the tool function (any other exception, a result that is not JSON) is an exception here:
``ToolDefect``, which ends the episode.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jsonschema_rs
import orjson

from envgen.errors import BundleError, ToolDefect, ToolError
from envgen.runtime.context import ToolContext
from envgen.runtime.sandbox import Tool
from envgen.runtime.state import State
from envgen.types import AgentTool

_MAX_REASON = 200  # characters of a validator's message that the agent is shown
_MAX_NUMBER = 2**53  # what every JSON reader holds exactly; keeps sums and products of tools finite
_MAX_DEPTH = 32
_CACHE_SIZE = 64


@dataclass(frozen=True)
class Signature:
    """One tool's arguments, compiled: what the checks of a call need."""

    name: str
    validator: Any
    arguments: frozenset[str]
    required: tuple[str, ...]
    integers: frozenset[str]
    """Arguments declared ``integer``: 25.0 is handed to the function as 25."""


ToolTable = Mapping[str, Signature]


def compile_tools(agent_tools: Sequence[AgentTool]) -> ToolTable:
    """Validators of all tools, once per bundle. Raises BundleError when a parameter schema is not valid
    JSON Schema."""
    return {tool.name: _signature(tool) for tool in agent_tools}


def _refuse_remote(uri: str) -> Any:
    # Left to itself the validator would read files and fetch pages that a document names.
    raise ValueError(f"references outside the schema are not followed: {uri}")


def _is_integer(schema: Any) -> bool:
    kind = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    return kind == "integer" or (isinstance(kind, list) and "integer" in kind and "number" not in kind)


def _signature(tool: AgentTool) -> Signature:
    schema = tool.parameters
    if schema.get("type", "object") != "object":
        raise BundleError(
            f"tool {tool.name!r}: parameters have type {schema.get('type')!r}, expected 'object'"
        )
    properties = cast("dict[str, Any]", schema.get("properties") or {})
    try:
        validator = jsonschema_rs.validator_for(schema, retriever=_refuse_remote)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise BundleError(f"tool {tool.name!r}: its parameters are not valid JSON Schema: {error}") from error
    integers = frozenset(name for name, value in properties.items() if _is_integer(value))
    return Signature(
        tool.name, validator, frozenset(properties), tuple(schema.get("required") or ()), integers
    )


_tables: dict[int, tuple[Sequence[AgentTool], ToolTable]] = {}


def tool_table(agent_tools: Sequence[AgentTool]) -> ToolTable:
    """``compile_tools``, remembered for the last few tool lists (by identity; the list is kept alive with
    its table)."""
    known = _tables.get(id(agent_tools))
    if known is not None:
        return known[1]
    table = compile_tools(agent_tools)
    if len(_tables) >= _CACHE_SIZE:
        _tables.pop(next(iter(_tables)))
    _tables[id(agent_tools)] = (agent_tools, table)
    return table


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(names)


def _unknown_tool(name: str, table: ToolTable) -> str:
    near = difflib.get_close_matches(name, list(table), n=3, cutoff=0.5)
    hint = f"did you mean {_quoted(near)}?" if near else f"tools: {_quoted(sorted(table)[:20])}"
    return f"unknown tool '{name[:60]}'; {hint}"


def _parse(arguments: str | Mapping[str, Any]) -> dict[str, Any] | str:
    """The argument object, or what was wrong with the text."""
    if not isinstance(arguments, str):
        return dict(arguments)
    text = arguments.strip()
    if not text:
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"arguments are not valid JSON: {str(error)[:_MAX_REASON]}"
    if type(value) is not dict:
        return f"arguments must be a JSON object, got {_json_type(value)}"
    members = cast("dict[str, Any]", value)
    return _unfit(members, 0) or members


def _unfit(value: dict[str, Any] | list[Any], depth: int) -> str:
    """Why a parsed object or array cannot be handed to a tool function, or empty."""
    if depth == _MAX_DEPTH:
        return f"arguments are nested too deeply (at most {_MAX_DEPTH} levels)"
    items: Any = value.values() if type(value) is dict else value
    for item in items:
        kind: Any = type(item)  # pyright: ignore[reportUnknownVariableType]
        if kind is str or item is None:
            continue
        if kind is dict or kind is list:
            reason = _unfit(item, depth + 1)
            if reason:
                return reason
        elif abs(item) > _MAX_NUMBER:
            return f"a number is out of range (at most {_MAX_NUMBER} either way)"
    return ""


def _json_type(value: Any) -> str:
    names = {
        list: "array",
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
        dict: "object",
    }
    for kind, name in names.items():
        if type(value) is kind:
            return name
    return "something else"


def check_arguments(signature: Signature, arguments: dict[str, Any]) -> dict[str, Any] | str:
    """The arguments as the function takes them, or the sentence that says what is wrong with them.

    ``null`` for an argument that is not required means "not given". Integral floats become integers where
    the schema says integer.
    """
    for name in arguments:
        if name not in signature.arguments:
            known = _quoted(sorted(signature.arguments)) or "none"
            return f"{signature.name}: unknown argument '{name[:60]}'; arguments: {known}"
    if None in arguments.values():
        arguments = {k: v for k, v in arguments.items() if v is not None or k in signature.required}
    for name in signature.required:
        if name not in arguments:
            return f"{signature.name}: missing required argument '{name}'"
    if not signature.validator.is_valid(arguments):
        error = next(iter(signature.validator.iter_errors(arguments)))
        where = ".".join(str(part) for part in error.instance_path)
        return f"{signature.name}: argument '{where}': {error.message[:_MAX_REASON]}"
    for name in signature.integers:
        value = arguments.get(name)
        if type(value) is float:
            arguments = {**arguments, name: int(value)}
    return arguments


@dataclass(frozen=True)
class ToolOutcome:
    """One call's answer: the JSON value or the error sentence, and the text of the observation."""

    value: Any
    is_error: bool
    text: str


def error_text(reason: str) -> str:
    """The observation of a failed call: ``{"error": "..."}``."""
    # A name that an agent made up can hold text that is not UTF-8 (lone surrogates).
    return orjson.dumps({"error": reason.encode("utf-8", "replace").decode()}).decode()


def checked_call(
    names: Container[str], table: ToolTable, name: str, arguments: str | Mapping[str, Any]
) -> dict[str, Any] | ToolOutcome:
    """The arguments of a call as its function takes them, or the observation that says what is wrong."""
    signature = table.get(name)
    if signature is None or name not in names:
        reason = _unknown_tool(name, table)
        return ToolOutcome(reason, True, error_text(reason))
    parsed = _parse(arguments)
    checked = parsed if isinstance(parsed, str) else check_arguments(signature, parsed)
    return ToolOutcome(checked, True, error_text(checked)) if isinstance(checked, str) else checked


def call_tool(
    tools: Mapping[str, Tool],
    table: ToolTable,
    state: State,
    ctx: ToolContext,
    name: str,
    arguments: str | Mapping[str, Any],
) -> ToolOutcome:
    """Run one call as a transaction on ``state``. See the module docstring; raises ToolDefect only."""
    checked = checked_call(tools, table, name, arguments)
    if isinstance(checked, ToolOutcome):
        return checked
    state.begin()
    ctx.begin_call(state)
    try:
        value = tools[name](state, ctx, **checked)
        text = orjson.dumps(value).decode()
    except ToolError as error:
        state.rollback()
        ctx.rollback()
        reason = str(error)
        return ToolOutcome(reason, True, error_text(reason))
    except ToolDefect:  # a stand-in for an isolated function has said it already
        state.rollback()
        ctx.rollback()
        raise
    except Exception as error:  # the named boundary: whatever generated code does wrong is its defect
        state.rollback()
        ctx.rollback()
        detail = f"{type(error).__name__}: {error}"
        raise ToolDefect(
            f"tool {name!r} broke on arguments {checked!r}: {detail}; fix its function in tools.py"
        ) from error
    state.commit()
    return ToolOutcome(value, False, text)


def run_tool(
    tools: Mapping[str, Tool],
    agent_tools: Sequence[AgentTool],
    state: State,
    ctx: ToolContext,
    name: str,
    arguments: str | Mapping[str, Any],
) -> tuple[Any, bool]:
    """``(JSON result, False)`` or ``(error text, True)`` for one call of the agent; see ``call_tool``."""
    outcome = call_tool(tools, tool_table(agent_tools), state, ctx, name, arguments)
    return outcome.value, outcome.is_error
