"""SmolLM2-Instruct: ChatML with roles as they are, and calls as a JSON list between ``<tool_call>`` tags that
are ordinary text.

    prefix        <|im_start|>system\\n{policy}\\n\\n{tools, how to call}<|im_end|>\\n
    opening       <|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n
    action        [<think>\\n…\\n</think>\\n\\n][content]
                  [<tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>]<|im_end|>
    observations  \\n<|im_start|>tool\\n…<|im_end|>\\n<|im_start|>assistant\\n

The family's template knows no tools: it writes any message as role and content, and so do we. The list form
is that of the function-calling prompt of the SmolLM2-1.7B-Instruct model card (Apache-2.0), in our words; one
object instead of a list (Hermes form) is understood too. Thinking tags are no tokens of the family either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.formats.calls import TurnBuilder, load_json
from autoforge_jax.rollout.formats.port import ChatFormat, Piece, Special, not_an_observation
from autoforge_jax.rollout.formats.text_turns import take_thinking, thinking_text, turn_text
from autoforge_jax.rollout.signatures import spaced_json
from autoforge_jax.rollout.tokenizer import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    TOOL_CALL,
    TOOL_CALL_END,
    PolicyTokenizer,
    TokenRoles,
)
from envgen.interface import AgentTool, Message

_START, _END = Special(IM_START), Special(IM_END)
_HEAD = "You have access to the following tools:\n<tools>\n"
_TAIL = (
    "\n</tools>\n\n"
    "To use tools, answer with nothing but a JSON list of calls, in this form:\n"
    f'{TOOL_CALL}[{{"name": "<tool>", "arguments": {{"<argument>": "<value>"}}}}]{TOOL_CALL_END}\n'
    "Otherwise answer with a message to the user."
)


class SmolLM2(ChatFormat):
    """See the module."""

    name = "smollm2"
    roles = TokenRoles(structure=(END_OF_TEXT, IM_START, IM_END), ends=(IM_END, END_OF_TEXT), pad=END_OF_TEXT)
    generation = (_START, "assistant\n")
    after_action = ("\n",)

    def system(self, rules: str, tools: Sequence[AgentTool]) -> list[Piece]:
        """See the module. There is always a system message: without one the template would write its own."""
        head = f"{rules}\n\n" if rules else ""
        body = "\n".join(self.tool_lines(tools))
        return [_START, f"system\n{head}{_HEAD}{body}{_TAIL}", _END, "\n"]

    def messages(self, messages: Iterable[Message]) -> list[Piece]:
        """Every message has a turn of its own."""
        pieces: list[Piece] = []
        for message in messages:
            if message.role not in ("user", "tool"):
                raise not_an_observation(message)
            pieces += (_START, f"{message.role}\n{message.content}", _END, "\n")
        return pieces

    def action(self, message: Message) -> list[Piece]:
        """All calls of a turn stand in one list."""
        return [assistant_text(message), _END]

    def parse(self, tokenizer: PolicyTokenizer, ids: Sequence[int], turn: int) -> Message:
        """Every ``<tool_call>`` block is a list of calls or one call."""
        said = TurnBuilder(turn)
        rest = take_thinking(turn_text(tokenizer, ids), said)
        empty = False
        while TOOL_CALL in rest:
            before, _, rest = rest.partition(TOOL_CALL)
            said.content.append(before)
            body, closed, rest = rest.partition(TOOL_CALL_END)
            if not closed:
                said.malformed(f"it was not closed with {TOOL_CALL_END}")
                break
            empty = _read_block(body, said) or empty
        said.content.append(rest)
        message = said.message()
        if empty and not message.content and not message.tool_calls:
            said.malformed("an empty list of calls and no message; write one of the two")
            return said.message()
        return message


def _read_block(body: str, said: TurnBuilder) -> bool:
    """Add the calls of one block; True for an empty list."""
    tree, error = load_json(body)
    if error:
        said.malformed(error)
        return False
    calls = tree if isinstance(tree, list) else [tree]
    for call in calls:
        said.tree_call(call)
    return not calls


def assistant_text(message: Message) -> str:
    """What stands as the content of an assistant message in the family's template. LedgerError for content
    that would be read as a call."""
    if TOOL_CALL in message.content:
        raise LedgerError(
            f"smollm2: content with {TOOL_CALL} in it would be read as a call: {message.content!r}"
        )
    text = thinking_text(message.thinking) + message.content
    if not message.tool_calls:
        return text
    calls = ", ".join(
        spaced_json({"name": call.name, "arguments": orjson.loads(call.arguments)})
        for call in message.tool_calls
    )
    gap = "\n" if message.content else ""
    return f"{text}{gap}{TOOL_CALL}[{calls}]{TOOL_CALL_END}"
