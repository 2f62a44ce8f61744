"""Conversations that our chat formats and the families' own templates write (tests/golden/templates.json).

No test framework and no JAX here: tests/golden/make_template_golden.py imports it too.
"""

from __future__ import annotations

from dataclasses import dataclass

from envgen.interface import AgentTool, Message, ToolCall

RULES = "You are the librarian's assistant.\nRules: lend nothing twice."
TOOLS = (
    AgentTool(
        name="find_book",
        description="Find books by title; é and <b> stay as they are.",
        parameters={
            "type": "object",
            "properties": {"title": {"type": "string"}, "limit": {"type": ["integer", "null"], "default": 5}},
            "required": ["title"],
        },
    ),
    AgentTool(
        name="lend",
        description="Lend a book.",
        parameters={"type": "object", "properties": {"book_id": {"type": "string", "enum": ["B1", "B2"]}}},
    ),
)


@dataclass(frozen=True)
class Case:
    """System rules, tools, and the messages of one conversation, which ends with an observation."""

    messages: tuple[Message, ...]
    families: tuple[str, ...]
    """Formats whose template is append-only on it and can write it."""
    rules: str = RULES
    tools: tuple[AgentTool, ...] = TOOLS


def user(text: str) -> Message:
    """A user's message."""
    return Message(role="user", content=text)


def said(text: str, thinking: str = "") -> Message:
    """The policy speaks."""
    return Message(role="assistant", content=text, thinking=thinking)


def result(text: str) -> Message:
    """A tool's answer."""
    return Message(role="tool", content=text)


def calls(*wanted: tuple[str, str], thinking: str = "", content: str = "") -> Message:
    """The policy calls."""
    made = tuple(ToolCall(id=f"c{i}", name=n, arguments=a) for i, (n, a) in enumerate(wanted))
    return Message(role="assistant", content=content, thinking=thinking, tool_calls=made)


FIND = ("find_book", '{"title":"Émile \\"1762\\"","limit":null}')
LEND = ("lend", '{"book_id":"B1"}')
ONE_QUERY = (user("Lend me Émile, please."), calls(FIND), result('{"id":"B1","note":"a \\"fine\\" copy"}'))
THOUGHT = "First I look it up."

CASES = {
    "one_query": Case(ONE_QUERY, ("qwen3", "llama3", "smollm2")),
    "errors_and_retries": Case(
        (*ONE_QUERY, calls(LEND), result("Error: no such book"), calls(LEND), result("null")),
        ("qwen3", "llama3", "smollm2"),
    ),
    "thinking": Case(
        (
            ONE_QUERY[0],
            ONE_QUERY[1].model_copy(update={"thinking": THOUGHT}),
            ONE_QUERY[2],
            calls(LEND, thinking="It is B1.\n\nSo I lend it."),
            result("{}"),
        ),
        ("qwen3", "qwen3_thinking", "smollm2"),
    ),
    "several_calls_with_text": Case(
        (ONE_QUERY[0], calls(FIND, LEND, content="One moment."), result("[]"), result("{}")),
        ("qwen3", "smollm2"),
    ),
    "several_users": Case(
        (user("Hello"), said("What can I do?"), *ONE_QUERY, said("Done: B1."), user("Thanks! And B2?")),
        ("qwen3", "llama3", "smollm2"),
    ),
}
"""By name."""
