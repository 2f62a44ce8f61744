"""`render.format` -> the format."""

from __future__ import annotations

from autoforge_jax.config import RenderConfig
from autoforge_jax.rollout.formats.hermes import Compact, Qwen3, Qwen3Thinking
from autoforge_jax.rollout.formats.llama3 import Llama3
from autoforge_jax.rollout.formats.port import ChatFormat
from autoforge_jax.rollout.formats.smollm2 import SmolLM2

FORMATS: dict[str, type[ChatFormat]] = {
    kind.name: kind for kind in (Compact, Qwen3, Qwen3Thinking, Llama3, SmolLM2)
}
"""By name; `RenderConfig.format` lists the same."""


def chat_format(config: RenderConfig) -> ChatFormat:
    """The format of a render section."""
    return FORMATS[config.format](config)
