"""Llama 3.1, 3.2 and 3.3 Instruct: header tokens, JSON calls without tags, tool results as ``ipython``.

    prefix        <|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n
                  Cutting Knowledge Date: …\\nToday Date: …\\n\\n{how to call, tools}{policy}<|eot_id|>
    opening       <|start_header_id|>user<|end_header_id|>\\n\\n…<|eot_id|>
                  <|start_header_id|>assistant<|end_header_id|>\\n\\n
    action        [<think>\\n…\\n</think>\\n\\n]content<|eot_id|>, or
                  [<think>…]{"name": "…", "parameters": {…}}<|eot_id|>
    observations  <|start_header_id|>ipython<|end_header_id|>\\n\\n"…"<|eot_id|>
                  <|start_header_id|>assistant<|end_header_id|>\\n\\n

Equal to the family's template with ``tools_in_user_message = false`` (tools in the system message: all
episodes of an environment share it) and the date that it has where it knows none. The template passes a tool
result through ``tojson``, also when it is text: results stand in quotes. Thinking is no part of the family;
its tags are ordinary text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import orjson

from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.formats.calls import TurnBuilder
from autoforge_jax.rollout.formats.port import ChatFormat, Piece, Special, not_an_observation
from autoforge_jax.rollout.formats.text_turns import take_thinking, thinking_text, turn_text
from autoforge_jax.rollout.signatures import spaced_json
from autoforge_jax.rollout.tokenizer import PolicyTokenizer, TokenRoles
from envgen.interface import AgentTool, Message

BEGIN, END_OF_TEXT = "<|begin_of_text|>", "<|end_of_text|>"
HEADER, HEADER_END = "<|start_header_id|>", "<|end_header_id|>"
END_OF_TURN, END_OF_MESSAGE = "<|eot_id|>", "<|eom_id|>"
PYTHON = "<|python_tag|>"
"""Llama 3.1 and later may open a call with it."""

_EOT = Special(END_OF_TURN)
_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
"""Fixed: a prompt that changes at midnight would make two runs of one config differ."""
_HEAD = (
    "You have access to the following functions. To call a function, please respond with JSON for a function "
    'call.Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
    "value}.Do not use variables.\n\n"
)


def _header(role: str) -> tuple[Piece, ...]:
    return (Special(HEADER), role, Special(HEADER_END), "\n\n")


class Llama3(ChatFormat):
    """See the module."""

    name = "llama3"
    roles = TokenRoles(
        structure=(BEGIN, END_OF_TEXT, HEADER, HEADER_END, END_OF_MESSAGE, END_OF_TURN, PYTHON),
        ends=(END_OF_TURN, END_OF_MESSAGE, END_OF_TEXT),
        pad=END_OF_TEXT,
    )
    generation = _header("assistant")
    after_action = ()

    def system(self, rules: str, tools: Sequence[AgentTool]) -> list[Piece]:
        """Every tool is followed by an empty line, as JSON over many lines or as one signature."""
        body = "".join(f"{text}\n\n" for text in self.tool_lines(tools, indented=True))
        text = f"Environment: ipython\n{_DATES}{_HEAD}{body}{rules}"
        return [Special(BEGIN), *_header("system")[:-1], f"\n\n{text}", _EOT]

    def messages(self, messages: Iterable[Message]) -> list[Piece]:
        """Every message has a turn of its own; a user's text is trimmed, as the template does."""
        pieces: list[Piece] = []
        for message in messages:
            if message.role == "user":
                pieces += (*_header("user"), message.content.strip(), _EOT)
            elif message.role == "tool":
                pieces += (*_header("ipython"), spaced_json(message.content), _EOT)
            else:
                raise not_an_observation(message)
        return pieces

    def action(self, message: Message) -> list[Piece]:
        """LedgerError for what a turn of this family cannot hold: several calls, or text beside a call."""
        head = thinking_text(message.thinking)
        if not message.tool_calls:
            if message.content.lstrip().startswith(("{", PYTHON)):
                raise LedgerError(f"llama3: this content would be read as a call: {message.content!r}")
            return [f"{head}{message.content}", _EOT]
        call, *others = message.tool_calls
        if message.content or others:
            raise LedgerError(
                f"llama3: {len(message.tool_calls)} calls and content {message.content!r} in one turn; the "
                "family writes one call and nothing beside it. Use one turn each"
            )
        tree = {"name": call.name, "parameters": orjson.loads(call.arguments)}
        return [f"{head}{spaced_json(tree)}", _EOT]

    def parse(self, tokenizer: PolicyTokenizer, ids: Sequence[int], turn: int) -> Message:
        """A turn that begins with ``{`` or ``<|python_tag|>`` is a call, or several with ``;`` or white space
        between; any other is a message to the user. ``arguments`` is understood for ``parameters``."""
        said = TurnBuilder(turn)
        rest = take_thinking(turn_text(tokenizer, ids), said).strip()
        tagged = rest.startswith(PYTHON)
        rest = rest.removeprefix(PYTHON).strip()
        if not tagged and not rest.startswith("{"):
            said.content.append(rest)
            return said.message()
        for part in _objects(rest):
            said.json_call(part, "parameters", "arguments")
        if not said.has_calls:
            said.malformed(f"nothing follows {PYTHON}")
        return said.message()


def _objects(text: str) -> list[str]:
    """The JSON values that stand one after another; what is none is the last part."""
    decoder, parts = json.JSONDecoder(), []
    text = text.strip()
    while text:
        try:
            _, end = decoder.raw_decode(text)
        except (json.JSONDecodeError, RecursionError):
            return [*parts, text]
        parts.append(text[:end])
        text = text[end:].lstrip("; \n\t")
    return parts
