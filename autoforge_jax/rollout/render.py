"""Messages <-> tokens: pieces of a chat format (rollout.formats) as ids, and sampled ids back as messages.

Everything is a piece that is appended to what stands already; nothing before it changes. Structure is
written as special tokens, what policy, users and tools say is encoded as ordinary text, so a tool result
that contains ``<|im_end|>`` ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from autoforge_jax.config import RenderConfig
from autoforge_jax.rollout.formats.choose import chat_format
from autoforge_jax.rollout.formats.port import Piece, Special
from autoforge_jax.rollout.tokenizer import PolicyTokenizer
from envgen.interface import Bundle, Message


class Renderer:
    """Pieces as ids, and actions back as messages. Pieces that repeat are cached."""

    def __init__(self, tokenizer: PolicyTokenizer, config: RenderConfig) -> None:
        """``interleaved_thinking = false`` is no business of the renderer: rollout.turn_contexts."""
        self.tokenizer = tokenizer
        self.config = config
        self.format = chat_format(config)
        self.stop_ids = tokenizer.stop_ids
        self._prefixes: dict[str, tuple[int, ...]] = {}
        self.opening = lru_cache(maxsize=4096)(self._opening)
        self._parse = lru_cache(maxsize=8192)(lambda ids, turn: self.format.parse(tokenizer, ids, turn))

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
            cached = self.ids(self.format.prefix(bundle.policy, bundle.tools))
            self._prefixes[bundle.environment_id] = cached
        return cached

    def _opening(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """The user's first messages and the generation prompt. Cached: all rollouts of a task share it."""
        return self.ids([*self.format.messages(messages), *self.format.generation])

    def observations(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """From after the policy's own end token: what the family writes there, what users and tools said, the
        next generation prompt.
        """
        form = self.format
        return self.ids([*form.after_action, *form.messages(messages), *form.generation])

    def action_ids(self, message: Message) -> tuple[int, ...]:
        """Ids of an assistant turn, for references; `parse_action` reads them back."""
        return self.ids(self.format.action(message))

    def parse_action(self, ids: Sequence[int], turn: int = 0) -> Message:
        """The message that sampled ids spell. Total: malformed calls become calls with a ``parse_error``,
        nothing raises.

        ``turn`` makes the ids of its calls unique within the episode.
        """
        return self._parse(tuple(ids), turn)
