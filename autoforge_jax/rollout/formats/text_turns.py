"""For families without special tokens for thoughts (and calls): the tags are ordinary text, and so a turn is
read as text."""

from __future__ import annotations

from collections.abc import Sequence

from autoforge_jax.rollout.formats.calls import TurnBuilder
from autoforge_jax.rollout.tokenizer import THINK, THINK_END, PolicyTokenizer


def thinking_text(thinking: str) -> str:
    """``<think>\\n…\\n</think>\\n\\n`` as text, or nothing."""
    return f"{THINK}\n{thinking}\n{THINK_END}\n\n" if thinking else ""


def turn_text(tokenizer: PolicyTokenizer, ids: Sequence[int]) -> str:
    """The text of a turn without its end token."""
    end = len(ids) - (1 if ids and ids[-1] in tokenizer.stop_ids else 0)
    return tokenizer.decode(ids[:end])


def take_thinking(text: str, said: TurnBuilder) -> str:
    """Move a block of thoughts at the beginning of a turn to `said`; the rest of the text is returned. One
    that is never closed is a fault, as an empty message to the user would end the conversation."""
    stripped = text.lstrip()
    if not stripped.startswith(THINK):
        return text
    inside, closed, rest = stripped.removeprefix(THINK).partition(THINK_END)
    said.thinking.append(inside)
    if not closed:
        said.fault(f"the thinking was not closed with {THINK_END}")
    return rest
