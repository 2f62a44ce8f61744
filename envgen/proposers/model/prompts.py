"""The prompts, read from ``prompts/*.md``. A bundle's manifest names them by hash."""

from __future__ import annotations

import hashlib
from functools import cache
from string import Template

from envgen.packaged import packaged_text

NAMES = ("system", "tools", "state", "tool", "repair")


@cache
def prompt_text(name: str) -> str:
    """The text of one prompt, placeholders and all."""
    return packaged_text("envgen.proposers.model", f"prompts/{name}.md")


def render(name: str, **values: str) -> str:
    """A prompt with its placeholders filled. Raises KeyError for one that is missing."""
    return Template(prompt_text(name)).substitute(values)


def prompt_hashes() -> dict[str, str]:
    """Prompt name -> first 16 digits of its SHA-256."""
    return {name: hashlib.sha256(prompt_text(name).encode()).hexdigest()[:16] for name in NAMES}
