"""A small tokenizer for every chat format: its special tokens, its family's pre-tokenizer, merges of its own.

Whether a renderer's pieces give the ids of the whole text depends on the special tokens and on how text is
cut before merging, not on the size of the vocabulary.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from autoforge_jax.config import RenderConfig
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import PolicyTokenizer
from tests.autoforge_jax.chat_cases import Case
from tests.envgen.mock_domain import mock_bundle

TEMPLATES = Path(__file__).resolve().parents[1] / "golden" / "templates.json"
_REST = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {"llama3": _CONTRACTIONS + _REST % "{1,3}", "qwen3": _CONTRACTIONS + _REST % ""}
"""Where the family cuts text; SmolLM2 cuts as GPT-2 with single digits."""


@cache
def golden_templates() -> dict[str, dict[str, str]]:
    """Format -> conversation -> text, as the families' templates write them."""
    return json.loads(TEMPLATES.read_text(encoding="utf-8"))


@cache
def family_tokenizer(name: str) -> PolicyTokenizer:
    """The tokenizer of a format."""
    roles = FORMATS[name].roles
    tokenizer = Tokenizer(models.BPE())
    pattern = PATTERNS.get(name.removesuffix("_thinking"))
    cut = pre_tokenizers.Digits(individual_digits=True)
    if pattern:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in roles.structure],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [text for texts in golden_templates().values() for text in texts.values()]
    tokenizer.train_from_iterator([*texts, mock_bundle().policy] * 2, trainer)
    return PolicyTokenizer(tokenizer, roles)


@cache
def family_renderer(name: str) -> Renderer:
    """A renderer of a format over its tokenizer."""
    return Renderer(family_tokenizer(name), RenderConfig(format=name))  # type: ignore[arg-type]


def conversation_ids(renderer: Renderer, case: Case) -> list[tuple[int, ...]]:
    """A conversation as an episode appends it: prefix, opening, then action and observations in turn."""
    parts = [renderer.ids(renderer.format.prefix(case.rules, case.tools))]
    heard, begun = [], False
    for message in (*case.messages, None):
        if message is not None and message.role != "assistant":
            heard.append(message)
            continue
        parts.append(renderer.observations(heard) if begun else renderer.opening(tuple(heard)))
        heard, begun = [], True
        if message is not None:
            parts.append(renderer.action_ids(message))
    return parts
