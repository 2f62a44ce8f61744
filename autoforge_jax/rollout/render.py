"""Messages <-> tokens: ChatML with Hermes tool calls, as Qwen3 writes them, thinking kept in every turn
(METHOD.md §4).

Everything is a piece that is appended to what stands already; nothing before it changes. Structure is
written as special tokens, what policy, users and tools say is encoded as ordinary text, so a tool result
that contains ``<|im_end|>`` ends nothing.

    prefix        <|im_start|>system\\n{policy}\\n\\n# Tools\\n…<|im_end|>\\n
    opening       <|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n
    action        [<think>\\n…\\n</think>\\n\\n][content]
                  [<tool_call>\\n{"name":…,"arguments":{…}}\\n</tool_call>]<|im_end|>
    observations  \\n<|im_start|>user\\n<tool_response>\\n…\\n</tool_response><|im_end|>\\n
                  <|im_start|>assistant\\n

JSON is compact everywhere (calls and results), so that a copied string has the same neighbours and the same
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import orjson

from autoforge_jax.config import RenderConfig
from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.signatures import json_tool, signature
from autoforge_jax.rollout.tokenizer import (
    IM_END,
    IM_START,
    THINK,
    THINK_END,
    TOOL_CALL,
    TOOL_CALL_END,
    TOOL_RESPONSE,
    TOOL_RESPONSE_END,
    PolicyTokenizer,
)
from envgen.interface import AgentTool, Bundle, Message, ToolCall


class Special(str):
    """A piece that is one special token; any other string is ordinary text."""

    __slots__ = ()


Piece = str
"""`Special` or ordinary text."""

_START, _END = Special(IM_START), Special(IM_END)
_CALL, _CALL_END = Special(TOOL_CALL), Special(TOOL_CALL_END)
_GENERATION: tuple[Piece, ...] = (_START, "assistant\n")

_JSON_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_JSON_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
)
_JSON_FORM = '\n{"name":<function-name>,"arguments":<args-json-object>}\n'


def tool_pieces(tools: Sequence[AgentTool], config: RenderConfig) -> list[Piece]:
    """The ``# Tools`` block: one signature per line, or Qwen3's block of JSON schemas."""
    if config.tools == "signature":
        lines = (signature(tool, describe=config.tool_descriptions) for tool in tools)
        return ["# Tools\n" + "\n".join(lines)]
    lines = "\n".join(json_tool(tool) for tool in tools)
    return [
        f"{_JSON_HEAD}{lines}{_JSON_TAIL}", _CALL, _CALL_END, " XML tags:\n", _CALL, _JSON_FORM, _CALL_END,
    ]  # fmt: skip


def prefix_pieces(policy: str, tools: Sequence[AgentTool], config: RenderConfig) -> list[Piece]:
    """The system message: rules of the domain, then the tools."""
    head = [f"{policy.strip()}\n\n"] if config.policy_in_prompt and policy.strip() else []
    return [_START, "system\n", *head, *tool_pieces(tools, config), _END, "\n"]


def message_pieces(messages: Iterable[Message]) -> list[Piece]:
    """User and tool messages, each closed; tool results that follow each other share one user turn."""
    pieces: list[Piece] = []
    in_tools = False
    for message in messages:
        if message.role == "tool":
            pieces += ("\n",) if in_tools else (_START, "user\n")
            pieces += (Special(TOOL_RESPONSE), f"\n{message.content}\n", Special(TOOL_RESPONSE_END))
            in_tools = True
            continue
        if in_tools:
            pieces += (_END, "\n")
            in_tools = False
        if message.role != "user":
            raise LedgerError(
                f"a {message.role} message cannot be an observation; expected user or tool messages only"
            )
        pieces += (_START, "user\n", message.content, _END, "\n")
    if in_tools:
        pieces += (_END, "\n")
    return pieces


def compact_json(value: Any) -> str:
    """The one JSON style of transcripts: no spaces, UTF-8. The environment writes its results the same
    way.
    """
    return orjson.dumps(value).decode()


def call_text(call: ToolCall) -> str:
    """The JSON of one call, compact. ``arguments`` is raw JSON text and stands as it is."""
    return f'{{"name":{compact_json(call.name)},"arguments":{call.arguments}}}'


def action_pieces(message: Message) -> list[Piece]:
    """An assistant turn as the policy would write it, ``<|im_end|>`` included. Empty thinking writes no
    block.
    """
    pieces: list[Piece] = []
    if message.thinking:
        pieces += (Special(THINK), f"\n{message.thinking}\n", Special(THINK_END), "\n\n")
    if message.content:
        pieces.append(message.content)
    for index, call in enumerate(message.tool_calls):
        if message.content or index:
            pieces.append("\n")
        pieces += (_CALL, f"\n{call_text(call)}\n", _CALL_END)
    return [*pieces, _END]


class Renderer:
    """Pieces as ids, and actions back as messages. Pieces that repeat are cached."""

    def __init__(self, tokenizer: PolicyTokenizer, config: RenderConfig) -> None:
        """``interleaved_thinking = false`` is no business of the renderer: rollout.turn_contexts."""
        self.tokenizer = tokenizer
        self.config = config
        self.stop_ids = tokenizer.stop_ids
        self._prefixes: dict[str, tuple[int, ...]] = {}
        self.opening = lru_cache(maxsize=4096)(self._opening)
        self._parse = lru_cache(maxsize=8192)(lambda ids, turn: _Parser(tokenizer, turn).parse(ids))

    def ids(self, pieces: Iterable[Piece]) -> tuple[int, ...]:
        """Encode pieces; neighbouring text pieces are encoded as one text."""
        out: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, Special):
                if text:
                    out.extend(self.tokenizer.encode_text(text))
                    text = ""
                out.append(self.tokenizer.special_id(piece))
            else:
                text += piece
        if text:
            out.extend(self.tokenizer.encode_text(text))
        return tuple(out)

    def prefix(self, bundle: Bundle) -> tuple[int, ...]:
        """The system part, the same for all tasks of a bundle."""
        cached = self._prefixes.get(bundle.environment_id)
        if cached is None:
            cached = self.ids(prefix_pieces(bundle.policy, bundle.tools, self.config))
            self._prefixes[bundle.environment_id] = cached
        return cached

    def _opening(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """The user's first messages and the generation prompt. Cached: all rollouts of a task share it."""
        return self.ids([*message_pieces(messages), *_GENERATION])

    def observations(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """From after the policy's own ``<|im_end|>``: its newline, what users and tools said, the next
        generation prompt.
        """
        return self.ids(["\n", *message_pieces(messages), *_GENERATION])

    def action_ids(self, message: Message) -> tuple[int, ...]:
        """Ids of an assistant turn, for references; `parse_action` reads them back."""
        return self.ids(action_pieces(message))

    def parse_action(self, ids: Sequence[int], turn: int = 0) -> Message:
        """The message that sampled ids spell. Total: malformed calls become calls with a ``parse_error``,
        nothing raises.

        ``turn`` makes the ids of its calls unique within the episode.
        """
        return self._parse(tuple(ids), turn)


class _Parser:
    """One pass over the ids of a turn: only special ids are structure."""

    def __init__(self, tokenizer: PolicyTokenizer, turn: int) -> None:
        self._tokenizer = tokenizer
        self._turn = turn
        self._texts: dict[str, list[str]] = {"content": [], "thinking": [], "call": []}
        self._calls: list[ToolCall] = []

    def parse(self, ids: Sequence[int]) -> Message:
        end = len(ids)
        if end and ids[-1] in self._tokenizer.stop_ids:
            end -= 1
        special, decode = self._tokenizer.special_tokens, self._tokenizer.decode
        mode, start = "content", 0
        for index in range(end):
            if ids[index] not in special:
                continue
            token = special[ids[index]]
            follow = _next_mode(mode, token)
            if follow is None:
                continue
            self._texts[mode].append(decode(ids[start:index]))
            start = index + 1
            if mode == "call":
                self._close_call("" if token == TOOL_CALL_END else f"it was not closed with {TOOL_CALL_END}")
            mode = follow
        self._texts[mode].append(decode(ids[start:end]))
        if mode == "call":
            self._close_call(f"it was not closed with {TOOL_CALL_END}")
        if mode == "thinking":
            # Without this the turn would be an empty message to the user, and end the conversation by
            # accident.
            self._add("", "{}", f"the thinking was not closed with {THINK_END}")
        return Message(
            role="assistant",
            content=_joined(self._texts["content"]),
            thinking=_joined(self._texts["thinking"]),
            tool_calls=tuple(self._calls),
        )

    def _close_call(self, fault: str) -> None:
        text = self._texts["call"].pop()
        if fault:
            self._add("", "{}", f"the call is malformed: {fault}")
            return
        name, arguments, fault = _read_call(text)
        self._add(name, arguments, fault)

    def _add(self, name: str, arguments: str, fault: str) -> None:
        call_id = f"t{self._turn}c{len(self._calls)}"
        self._calls.append(ToolCall(id=call_id, name=name, arguments=arguments, parse_error=fault))


def _next_mode(mode: str, token: str) -> str | None:
    """The mode that a special token leads to, or None when it is text where it stands."""
    if mode == "thinking":
        return "content" if token == THINK_END else None
    if token == TOOL_CALL:
        return "call"
    if mode == "call":
        return "content" if token == TOOL_CALL_END else None
    return "thinking" if token == THINK else None


def _read_call(text: str) -> tuple[str, str, str]:
    """(name, arguments as JSON text, what is wrong) of the text between the tags of a call."""
    try:
        tree: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return "", "{}", f"the call is malformed: not valid JSON ({error})"
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
        return "", "{}", 'the call is malformed: expected {"name": "<tool>", "arguments": {…}}'
    extra = [key for key in tree if key not in ("name", "arguments")]
    arguments = tree.get("arguments", {})
    raw = compact_json(arguments)
    if extra or not isinstance(arguments, dict):
        found = f"unknown key {extra[0]!r}" if extra else "arguments that are no object"
        return (
            tree["name"],
            raw,
            f"the call is malformed: {found}; expected only name and arguments, an object",
        )
    return tree["name"], raw, ""


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(stripped for part in parts if (stripped := part.strip()))
