"""What the rollout tests share: the mock bundle with a tokenizer trained on it, and a recording engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from autoforge_jax.config import RenderConfig
from autoforge_jax.rollout.episode import reference_texts
from autoforge_jax.rollout.jobs import TaskItem
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.scripted import ScriptedPolicy
from autoforge_jax.rollout.tokenizer import PolicyTokenizer, train_tokenizer
from autoforge_jax.types import SampleOutput, SampleRequest
from envgen.interface import Bundle
from tests.envgen.mock_domain import mock_bundle


@cache
def bundle() -> Bundle:
    """The notes environment."""
    return mock_bundle()


@cache
def items() -> tuple[TaskItem, ...]:
    """Its tasks."""
    return tuple((bundle(), task) for task in bundle().tasks)


@cache
def tokenizer() -> PolicyTokenizer:
    """Trained on the references, so that rendered JSON has its merges."""
    return train_tokenizer(list(reference_texts(items(), RenderConfig())) * 3, 700)


@cache
def renderer() -> Renderer:
    """With signatures."""
    return Renderer(tokenizer(), RenderConfig())


class Recorder(ScriptedPolicy):
    """A scripted engine that keeps what it was asked and what it said, per session."""

    def __init__(self, script: Callable[[SampleRequest, int], str | Sequence[int]], **kwargs: object) -> None:
        super().__init__(script, tokenizer().encode_marked, **kwargs)  # type: ignore[arg-type]
        self.log: dict[str, list[tuple[SampleRequest, SampleOutput]]] = {}
        self.batches: list[int] = []

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        """As the scripted policy, recorded."""
        outputs = super().sample(requests)
        self.batches.append(len(requests))
        for request, output in zip(requests, outputs, strict=True):
            self.log.setdefault(request.session_id, []).append((request, output))
        return outputs
