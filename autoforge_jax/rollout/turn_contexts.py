"""Without interleaved thinking (`render.interleaved_thinking = false`): what a family's own chat template
does to the history, as contexts of their own.

Qwen3's template deletes the thinking of all assistant turns before the user's last message (METHOD.md §4
keeps it; the paper's Fig. 4 is this ablation). That changes what stands already, so the episode goes on in
a new context: prefix, opening, and every earlier turn without its thinking. The engine gets it as a new
session, the learner as a sample of its own in which only the turns that were sampled in it are trained. Tool
results are no user message: between two of the user's messages a context only grows, as the template has it.

Ids that are kept are those that were sampled, never encoded again: the span from ``<think>`` to
``</think>``, and the line breaks after it, are cut out.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import THINK, THINK_END
from envgen.interface import Message


def user_spoke(messages: Sequence[Message]) -> bool:
    """True when the user is among those who answered the last turn."""
    return any(message.role == "user" for message in messages)


def without_thinking(ids: Sequence[int], renderer: Renderer) -> tuple[int, ...]:
    """The ids of a sampled turn without its thinking.

    An unclosed block goes to the end of the turn; its stop token stays. A block that the generation prompt
    opened (only its end is sampled) goes from the start. Formats without thinking have none to lose.
    """
    tokenizer = renderer.tokenizer
    known = {token: index for index, token in tokenizer.special_tokens.items()}
    if THINK not in known or THINK_END not in known:
        return tuple(ids)
    out: list[int] = []
    inside = opened_before(ids, renderer)
    after = False
    for index in ids:
        if index == known[THINK] and not inside:
            inside = True
        elif inside:
            if index == known[THINK_END]:
                inside, after = False, True
            elif index in tokenizer.stop_ids:
                out.append(index)
        elif after and index not in tokenizer.special_tokens and not tokenizer.decode([index]).strip("\n"):
            continue  # the line breaks between thinking and what follows
        else:
            after = False
            out.append(index)
    return tuple(out)


def opened_before(ids: Sequence[int], renderer: Renderer) -> bool:
    """True when a turn's first mark of thinking is its end: the prompt before it opened the block."""
    special = renderer.tokenizer.special_tokens
    marks = [special[index] for index in ids if special.get(index) in (THINK, THINK_END)]
    return marks[:1] == [THINK_END]


def rewritten_context(pieces: Sequence[tuple[bool, tuple[int, ...]]], renderer: Renderer) -> tuple[int, ...]:
    """(sampled, ids) pieces after the prefix as one sequence, sampled ones without their thinking, and
    without the opening of it that stood in the generation prompt before."""
    special = renderer.tokenizer.special_tokens
    out: list[int] = []
    for sampled, ids in pieces:
        if not sampled:
            out.extend(ids)
            continue
        if opened_before(ids, renderer):
            at = max((i for i, index in enumerate(out) if special.get(index) == THINK), default=len(out))
            del out[at:]
        out.extend(without_thinking(ids, renderer))
    return tuple(out)
