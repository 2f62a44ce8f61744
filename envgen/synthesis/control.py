"""Options of synthesis about who may write: calls that need the user's go-ahead, and tools that only the user
holds (dual control). Both change the policy, and so the environment's identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from envgen.errors import TaskError
from envgen.synthesis.blueprint import Known
from envgen.synthesis.catalog import field_words
from envgen.synthesis.schema import place_argument
from envgen.types import EnvironmentDraft, ToolSemantics, TraceConstraint, UserAction


def writers_named(draft: EnvironmentDraft, wanted: Sequence[str], option: str) -> tuple[str, ...]:
    """The tools that write and are named in ``wanted``, by name or by verb (``delete``), in document order.

    Raises TaskError for a name that no such tool has.
    """
    writers = [s for s in draft.semantics if s.writes_state]
    for name in wanted:
        if not any(name in (s.tool, s.verb) for s in writers):
            known = sorted({s.verb for s in writers}) + [s.tool for s in writers]
            raise TaskError(
                f"{option} {name!r}: no tool of {draft.name} that writes is called so; expected one of "
                f"{', '.join(known)}"
            )
    return tuple(s.tool for s in writers if {s.tool, s.verb} & set(wanted))


def held_by_user(draft: EnvironmentDraft, tools: Sequence[str]) -> EnvironmentDraft:
    """The environment with these tools in the user's hands: the agent does not see them, and is told that it
    has to ask. Raises TaskError when the agent would be left without a tool."""
    if not tools:
        return draft
    kept = tuple(tool for tool in draft.tools if tool.name not in tools)
    if not kept:
        raise TaskError(f"all tools of {draft.name} would be the user's; leave the agent at least one")
    return draft.model_copy(
        update={
            "tools": kept,
            "user_tools": tuple(tool for tool in draft.tools if tool.name in tools),
            "policy": _add(
                draft.policy,
                f"Only the user can {_listing(_words(name) for name in tools)}: ask for it in a question "
                "that names the values needed.",
            ),
        }
    )


def confirmed(
    draft: EnvironmentDraft, tools: Sequence[str]
) -> tuple[EnvironmentDraft, tuple[TraceConstraint, ...]]:
    """The environment whose policy wants a go-ahead before these tools, and the rules that its tasks are
    graded by. Raises TaskError for a tool that the user holds: it decides on that one itself."""
    held = sorted({tool.name for tool in draft.user_tools} & set(tools))
    if held:
        raise TaskError(f"{', '.join(held)}: held by the user, who needs no go-ahead; name other tools")
    if not tools:
        return draft, ()
    semantics = {s.tool: s for s in draft.semantics}
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in tools:
        alike.setdefault(_key(semantics[name]), []).append(name)
    rules = tuple(
        TraceConstraint(kind="confirm_before", tools=tuple(names), mentions=key)
        for key, names in alike.items()
    )
    said = _listing(_words(name) for name in tools)
    return draft.model_copy(
        update={
            "policy": _add(
                draft.policy,
                f"Before you {said}, ask the user for a go-ahead in a question that names the record's id, "
                "each time, and go on only after a yes.",
            )
        }
    ), rules


def go_ahead(rules: Sequence[TraceConstraint], tool: str, arguments: Mapping[str, Known]) -> str:
    """The question before a call, or empty where no rule wants one."""
    rule = next((r for r in rules if r.kind == "confirm_before" and tool in r.tools), None)
    if rule is None:
        return ""
    return f"Shall I {_words(tool)}{_values(_plain(arguments))}?"


def request(tool: str, arguments: Mapping[str, Known]) -> tuple[UserAction, str]:
    """What the user does with a tool of its own, and the question on which it does so. The question has to
    name what the agent found out; where that is nothing, every argument."""
    plain = _plain(arguments)
    found = {name.split(".")[0] for name, known in arguments.items() if known.kind in ("output", "reasoning")}
    mentions = tuple(name for name in plain if name in found) or tuple(plain)
    words = field_words(tool)
    action = UserAction(
        tool=tool,
        arguments=plain,
        ask_words=(" ".join(words), words[0]) if mentions else (" ".join(words),),
        mentions=mentions,
    )
    named = {name: plain[name] for name in mentions}
    return action, f"Could you please {_words(tool)} yourself{_values(named)}?"


def _plain(arguments: Mapping[str, Known]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, known in arguments.items():
        place_argument(plain, name, known.value)
    return plain


def _key(semantics: ToolSemantics) -> tuple[str, ...]:
    key = semantics.key
    if key is None or "." in key.param or semantics.verb == "create":
        return ()
    return (key.param,)


def _values(arguments: Mapping[str, Any]) -> str:
    said = [
        f"{' '.join(field_words(name))} {value if isinstance(value, str) else orjson.dumps(value).decode()}"
        for name, value in arguments.items()
    ]
    return f": {', '.join(said)}" if said else ""


def _words(tool: str) -> str:
    return " ".join(field_words(tool))


def _listing(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} or {last}" if first else last


def _add(policy: str, sentence: str) -> str:
    return f"{policy.rstrip()} {sentence}\n"
