"""``envgen play``: a person is the agent. Reads lines from stdin, so that a pipe can play too."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from envgen.cli.show import signature, state_changes
from envgen.cli.views import compact, console
from envgen.runtime.env import Env, open_env
from envgen.store import Bundle
from envgen.types import Message, StateData, Task, ToolCall, Verdict

HELP = """  tool_name {"key": "value"}     call a tool with JSON arguments
  tool_name key=value other=3    the same; values are JSON where they read as JSON
  anything else                  is said to the user; a message that asks nothing ends the conversation
  state                          what has changed so far       tools   list the tools
  help                           this list                     quit    stop and see the verdict"""


def play(bundle: Bundle, task: Task, *, seed: int = 0) -> Verdict:
    """Plays one episode from stdin and prints the verdict, which is returned."""
    out = console()
    out.print(f"[bold]{escape(bundle.name)}[/bold]  task {escape(task.id)}")
    out.print(escape(bundle.policy.strip()), soft_wrap=True)
    _show_tools(out, bundle)
    out.print(HELP, markup=False, highlight=False)
    env = open_env(bundle, task, seed=seed)
    for message in env.start():
        if message.role == "user":
            out.print(f"[cyan]user:[/cyan] {escape(message.content)}", soft_wrap=True)
    _turns(out, bundle, task, env)
    verdict = env.verdict()
    _show_verdict(out, verdict)
    return verdict


def _turns(out: Console, bundle: Bundle, task: Task, env: Env) -> None:
    tools = {tool.name: tool for tool in bundle.tools}
    number = 0
    while True:
        line = _read_line()
        if line is None or line in {"quit", "exit"}:
            return
        if not line:
            continue
        if line in {"help", "?"}:
            out.print(HELP, markup=False, highlight=False)
        elif line == "tools":
            _show_tools(out, bundle)
        elif line == "state":
            _show_state(out, task.initial_state, env)
        else:
            head = line.split(maxsplit=1)[0]
            rest = line[len(head) :].strip()
            # A call of a tool that does not exist is a call too: the environment says what it may have meant.
            if head in tools or (head.isidentifier() and rest.startswith("{")):
                number += 1
                message = _call(out, head, rest, tools[head].parameters if head in tools else {}, number)
                if message is None:
                    continue
            else:
                message = Message(role="assistant", content=line)
            result = env.step(message)
            for observation in result.observations:
                who = "user" if observation.role == "user" else "tool"
                out.print(f"[cyan]{who}:[/cyan] {escape(observation.content)}", soft_wrap=True)
            if result.stop_reason is not None:
                out.print(f"the episode ended: {result.stop_reason.value}")
                return


def _read_line() -> str | None:
    """One stripped line; None at the end of the input. Prompts only when a person sits there."""
    if sys.stdin.isatty():
        try:
            return input("agent> ").strip()
        except EOFError:
            return None
    line = sys.stdin.readline()
    return line.strip() if line else None


def _call(out: Console, name: str, text: str, parameters: dict[str, Any], number: int) -> Message | None:
    """The tool call that ``text`` spells, or None (with a message) when it cannot be read."""
    arguments = text or "{}"
    if not arguments.startswith("{"):
        try:
            arguments = json.dumps(_pairs(text, parameters))
        except ValueError as error:
            out.print(f"[red]not a call:[/red] {escape(str(error))}")
            return None
    return Message(
        role="assistant", tool_calls=(ToolCall(id=f"call-{number}", name=name, arguments=arguments),)
    )


def _pairs(text: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """``key=value`` words as arguments; values that read as JSON are JSON, unless a string is wanted."""
    properties: dict[str, dict[str, Any]] = parameters.get("properties", {})
    arguments: dict[str, Any] = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r} is no key=value; give key=value or a JSON object")
        if properties.get(key, {}).get("type") == "string":
            arguments[key] = value
            continue
        try:
            arguments[key] = json.loads(value)
        except json.JSONDecodeError:
            arguments[key] = value
    return arguments


def _show_tools(out: Console, bundle: Bundle) -> None:
    for tool in bundle.tools:
        out.print(
            f"  {escape(signature(tool))}  [dim]{escape(tool.description)}[/dim]",
            soft_wrap=True,
            highlight=False,
        )


def _show_state(out: Console, before: StateData, env: Env) -> None:
    changes = state_changes(before, env.state.snapshot())
    if not changes:
        out.print("nothing has changed")
    for collection, key, change in changes:
        out.print(f"  {escape(collection)} {escape(key)}: {escape(change)}", soft_wrap=True)


def _show_verdict(out: Console, verdict: Verdict) -> None:
    out.print("verdict: [green]success[/green]" if verdict.success else "verdict: [red]failure[/red]")
    for difference in verdict.differences:
        where = f"{difference.collection} {difference.key} {difference.field}".strip()
        expected, got = compact(difference.expected), compact(difference.got)
        out.print(f"  {escape(where)}: expected {escape(expected)}, got {escape(got)}", soft_wrap=True)
