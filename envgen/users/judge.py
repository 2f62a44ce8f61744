"""The judge of users (MEU, METHOD.md §4): rules first, then a language model where one is wanted.

A judge is a `UserErrorHook`: ``judge(task, transcript) -> UserVerdict``. The rules are exact about values and
blind to meaning; the model is asked the paper's yes-or-no question. A judge that cannot be asked says
``unjudged``, which excludes the trajectory: what nobody judged may teach a wrong lesson, and it is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from envgen.llm.port import ChatClient, ChatMessage, ChatRequest, LLMError
from envgen.types import Message, Task
from envgen.users.model import facts_text, prompt
from envgen.users.port import NO_ERROR, UserErrorHook, UserVerdict
from envgen.users.rules import judge_by_rules

ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "wrong": {"type": "string", "enum": ["yes", "no"]},
        "turn": {"type": "integer"},
        "reason": {"type": "string"},
    },
    "required": ["wrong", "turn", "reason"],
    "additionalProperties": False,
}
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_LONGEST_TOOL = 600
"""Characters of a tool's answer that the judge is shown: it judges the user, not the tools."""


class ModelJudge:
    """Asks a model whether the user gave any wrong information. Never raises."""

    def __init__(self, client: ChatClient, *, max_tokens: int = 600, structured: bool = True) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self._schema = ANSWER_SCHEMA if structured else None

    def __call__(self, task: Task, transcript: Sequence[Message]) -> UserVerdict:
        """The model's verdict; ``unjudged`` when it cannot be asked or its answer cannot be read."""
        text = prompt("judge").substitute(
            intent=task.instruction, facts=facts_text(task), transcript=_shown(transcript)
        )
        request = ChatRequest(
            (ChatMessage("user", text),), max_tokens=self._max_tokens, json_schema=self._schema
        )
        try:
            answer = self._client.complete(request).text
        except LLMError as error:
            return UserVerdict(True, "unjudged", f"the judge could not be asked: {error}", -1, "model")
        return _read(answer, transcript)


def rules_then_model(model: UserErrorHook) -> UserErrorHook:
    """Rules first; the model is asked only about what they let pass."""

    def judge(task: Task, transcript: tuple[Message, ...]) -> UserVerdict:
        verdict = judge_by_rules(task, transcript)
        return verdict if verdict.error else model(task, transcript)

    return judge


def _shown(transcript: Sequence[Message]) -> str:
    lines: list[str] = []
    for index, message in enumerate(transcript):
        who = {"user": "USER", "assistant": "ASSISTANT", "tool": f"TOOL {message.name}"}.get(message.role)
        if who is None:
            continue
        said = message.content if message.role != "tool" else message.content[:_LONGEST_TOOL]
        calls = "".join(f" [calls {call.name} {call.arguments}]" for call in message.tool_calls)
        lines.append(f"{index}. {who}: {said}{calls}")
    last = transcript[-1] if transcript else None
    if last is not None and last.role == "assistant" and not last.tool_calls:
        lines.append("(the user left without an answer)")
    return "\n".join(lines)


def _read(answer: str, transcript: Sequence[Message]) -> UserVerdict:
    found = _OBJECT.search(answer)
    tree: dict[str, Any] = {}
    if found is not None:
        try:
            tree = json.loads(found.group())
        except json.JSONDecodeError:
            tree = {}
    # Models that are not constrained often answer with the word alone.
    word = str(tree.get("wrong", answer)).strip().strip("\"'*.").lower()
    reason = str(tree.get("reason", answer)).strip()
    if word in ("no", "false") or word.startswith(("no,", "no.", "no\n")):
        return NO_ERROR
    if word in ("yes", "true") or word.startswith(("yes,", "yes.", "yes\n")):
        turn = tree.get("turn", -1)
        known = isinstance(turn, int) and 0 <= turn < len(transcript)
        return UserVerdict(True, "", reason, turn if known else -1, "model")
    return UserVerdict(
        True,
        "unjudged",
        f"got {answer[:200]!r} from the judge, expected yes or no: use a model that follows the format, "
        "or the rules alone",
        -1,
        "model",
    )
