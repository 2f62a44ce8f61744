"""Rules of the domain, executed: does a call break one, in the state that it would be made in?

The rules stand in the agent's policy (`envgen.types.DomainRule`). A tool may let through what a rule forbids:
the agent keeps the rules, and the grader sees to it by the state that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from envgen.runtime.state import State
from envgen.types import DomainRule, StateSchema, ToolSemantics


def argument_at(arguments: Mapping[str, Any], path: str) -> Any:
    """The argument at a dotted path, or None."""
    value: Any = arguments
    for part in path.split("."):
        value = cast("Mapping[str, Any]", value).get(part) if isinstance(value, Mapping) else None
    return value


def breaks(
    rule: DomainRule,
    semantics: ToolSemantics,
    schema: StateSchema,
    state: State,
    arguments: Mapping[str, Any],
) -> bool:
    """True when a call of ``semantics.tool`` with these arguments is what ``rule`` forbids. A record that
    does not exist breaks nothing."""
    if semantics.tool not in rule.tools:
        return False
    if rule.kind == "at_most":
        value = argument_at(arguments, rule.param)
        return isinstance(value, int | float) and not isinstance(value, bool) and value > rule.values[0]
    key = argument_at(arguments, semantics.key.param) if semantics.key is not None else None
    record = state.get(semantics.collection, key) if key is not None else None
    if record is None:
        return False
    if rule.kind == "no_children":
        own = record.get(schema.collection(semantics.collection).key)
        return any(child.get(rule.field) == own for child in state.records(rule.collection))
    value = record.get(rule.field)
    return (value in rule.values) == (rule.kind == "field_not_in")


def broken_rules(
    rules: Iterable[DomainRule],
    semantics: ToolSemantics,
    schema: StateSchema,
    state: State,
    arguments: Mapping[str, Any],
) -> list[DomainRule]:
    """The rules that a call breaks."""
    return [rule for rule in rules if breaks(rule, semantics, schema, state, arguments)]
