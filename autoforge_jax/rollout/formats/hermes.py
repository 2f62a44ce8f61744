"""ChatML with Hermes tool calls, as Qwen3 writes them, thinking kept in every turn (METHOD.md §4).

Structure is written as special tokens, what policy, users and tools say is encoded as ordinary text, so a
tool result that contains ``<|im_end|>`` ends nothing.

    prefix        <|im_start|>system\\n{policy}\\n\\n# Tools\\n…<|im_end|>\\n
    opening       <|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n
    action        [<think>\\n…\\n</think>\\n\\n][content]
                  [<tool_call>\\n{"name":…,"arguments":{…}}\\n</tool_call>]<|im_end|>
    observations  \\n<|im_start|>user\\n<tool_response>\\n…\\n</tool_response><|im_end|>\\n
                  <|im_start|>assistant\\n

`Compact` is for models trained here: JSON without spaces everywhere (calls and results), so that a copied
string has the same neighbours and the same tokens. `Qwen3` and `Qwen3Thinking` are the families' own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from autoforge_jax.rollout.formats.calls import TurnBuilder, compact_json
from autoforge_jax.rollout.formats.port import ChatFormat, Piece, Special, not_an_observation
from autoforge_jax.rollout.signatures import spaced_json
from autoforge_jax.rollout.tokenizer import (
    CHATML_ROLES,
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
from envgen.interface import AgentTool, Message, ToolCall

_START, _END = Special(IM_START), Special(IM_END)
_THINK, _THINK_END = Special(THINK), Special(THINK_END)
_CALL, _CALL_END = Special(TOOL_CALL), Special(TOOL_CALL_END)

_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_TAIL = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "


class Hermes(ChatFormat):
    """What the three formats share."""

    roles = CHATML_ROLES
    generation = (_START, "assistant\n")
    after_action = ("\n",)

    def system(self, rules: str, tools: Sequence[AgentTool]) -> list[Piece]:
        """See the module."""
        head = [f"{rules}\n\n"] if rules else []
        return [_START, "system\n", *head, *self._tool_block(tools), _END, "\n"]

    def _tool_block(self, tools: Sequence[AgentTool]) -> list[Piece]:
        form = self._call_json("<function-name>", "<args-json-object>")
        body = "\n".join(self.tool_lines(tools))
        return [
            f"{_HEAD}{body}{_TAIL}", _CALL, _CALL_END, " XML tags:\n", _CALL, f"\n{form}\n", _CALL_END,
        ]  # fmt: skip

    def messages(self, messages: Iterable[Message]) -> list[Piece]:
        """Tool results that follow each other share one user turn."""
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
                raise not_an_observation(message)
            pieces += (_START, "user\n", message.content, _END, "\n")
        if in_tools:
            pieces += (_END, "\n")
        return pieces

    def action(self, message: Message) -> list[Piece]:
        """Empty thinking writes no block."""
        pieces: list[Piece] = []
        if message.thinking:
            pieces += (_THINK, f"\n{message.thinking}\n", _THINK_END, "\n\n")
        return [*pieces, *self._said(message)]

    def _said(self, message: Message) -> list[Piece]:
        """Content and calls, to the end of the turn."""
        pieces: list[Piece] = [message.content] if message.content else []
        for index, call in enumerate(message.tool_calls):
            if message.content or index:
                pieces.append("\n")
            pieces += (_CALL, f"\n{self.call_text(call)}\n", _CALL_END)
        return [*pieces, _END]

    def call_text(self, call: ToolCall) -> str:
        """The JSON of one call, compact; ``arguments`` stands as it is."""
        return self._call_json(compact_json(call.name), call.arguments)

    def _call_json(self, name: str, arguments: str) -> str:
        return f'{{"name":{name},"arguments":{arguments}}}'

    def parse(self, tokenizer: PolicyTokenizer, ids: Sequence[int], turn: int) -> Message:
        """Only special ids are structure; a tag spelled in ordinary tokens is text."""
        return _parse(tokenizer, ids, turn, "content")


class Compact(Hermes):
    """For models trained from scratch; the default."""

    name = "compact"

    def _tool_block(self, tools: Sequence[AgentTool]) -> list[Piece]:
        if self.config.tool_style == "signature":
            return ["# Tools\n" + "\n".join(self.tool_lines(tools))]
        return super()._tool_block(tools)


class Qwen3(Hermes):
    """Qwen3 (hybrid thinking) and Qwen3-Instruct-2507: the family's template, but that thinking stays."""

    name = "qwen3"

    def call_text(self, call: ToolCall) -> str:
        """Arguments as the template's ``tojson`` writes them, with spaces."""
        return self._call_json(spaced_json(call.name), spaced_json(orjson.loads(call.arguments)))

    def _call_json(self, name: str, arguments: str) -> str:
        return f'{{"name": {name}, "arguments": {arguments}}}'


class Qwen3Thinking(Qwen3):
    """Qwen3-Thinking-2507: the generation prompt opens the thinking, a turn begins inside it and holds the
    closing tag only."""

    name = "qwen3_thinking"
    generation = (*Hermes.generation, _THINK, "\n")

    def action(self, message: Message) -> list[Piece]:
        """A turn without thoughts closes the block at once."""
        return [f"{message.thinking}\n", _THINK_END, "\n\n", *self._said(message)]

    def parse(self, tokenizer: PolicyTokenizer, ids: Sequence[int], turn: int) -> Message:
        """As `Qwen3`, beginning inside the thinking."""
        return _parse(tokenizer, ids, turn, "thinking")


def _parse(tokenizer: PolicyTokenizer, ids: Sequence[int], turn: int, mode: str) -> Message:
    """One pass over the ids of a turn."""
    said = TurnBuilder(turn)
    end = len(ids)
    if end and ids[-1] in tokenizer.stop_ids:
        end -= 1
    special, start = tokenizer.special_tokens, 0

    def close(mode: str, stop: int, token: str) -> None:
        text = tokenizer.decode(ids[start:stop])
        if mode == "call":
            if token == TOOL_CALL_END:
                said.json_call(text)
            else:
                said.malformed(f"it was not closed with {TOOL_CALL_END}")
        else:
            (said.thinking if mode == "thinking" else said.content).append(text)

    for index in range(end):
        if ids[index] not in special:
            continue
        follow = _next_mode(mode, special[ids[index]])
        if follow is None:
            continue
        close(mode, index, special[ids[index]])
        start, mode = index + 1, follow
    close(mode, end, "")
    if mode == "thinking":
        # Without this the turn would be an empty message to the user, and end the conversation by accident.
        said.fault(f"the thinking was not closed with {THINK_END}")
    return said.message()


def _next_mode(mode: str, token: str) -> str | None:
    """The mode that a special token leads to, or None when it is text where it stands."""
    if mode == "thinking":
        return "content" if token == THINK_END else None
    if token == TOOL_CALL:
        return "call"
    if mode == "call":
        return "content" if token == TOOL_CALL_END else None
    return "thinking" if token == THINK else None
