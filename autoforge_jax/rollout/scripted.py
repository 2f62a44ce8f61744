"""A policy that says what it is told: the shipped double of the policy port, and the oracle of evaluations.

It keeps the port's contract in full: log-probs for every id, truncation at `max_turn_tokens`, contexts that
may only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autoforge_jax.errors import PolicyError
from autoforge_jax.rollout.ledger import SessionContexts
from autoforge_jax.types import SampleOutput, SampleRequest

Action = str | Sequence[int]
"""Text (encoded by the policy; the stop token is added when it is missing) or exact ids (cut at the first
stop token).
"""
Script = Mapping[str, Sequence[Action]] | Callable[[SampleRequest, int], Action]
"""Actions by session id, or a function of the request and the turn number (from 0)."""


def default_logprob(index: int, token_id: int) -> float:
    """A log-prob that is a function of place and id, so that a shift by one shows: −0.1 … −1.7."""
    return -0.1 * (1 + (7 * index + token_id) % 17)


class ScriptedPolicy:
    """Plays a script through the policy port."""

    def __init__(
        self,
        script: Script,
        encode: Callable[[str], Sequence[int]] | None = None,
        *,
        version: int = 0,
        logprob: Callable[[int, int], float] = default_logprob,
    ) -> None:
        """``encode`` turns text with special tokens into ids (`PolicyTokenizer.encode_marked`); needed for
        text actions only.

        ``logprob(index in turn, token id)`` gives the log-prob of each id.
        """
        self._script = script
        self._encode = encode
        self._logprob = logprob
        self._contexts = SessionContexts()
        # Lengths of the contexts that each session was asked with. A turn's number is how many were shorter,
        # so that
        # a request that is asked again gets the same turn, and a new episode under an old name starts at 0.
        self._lengths: dict[str, list[int]] = {}
        self.version = version
        self.calls = 0
        """Number of `sample` calls."""
        self.released: list[str] = []

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        """The next scripted turn of every session. PolicyError when a script has no turn left."""
        self.calls += 1
        return [self._one(request) for request in requests]

    def release(self, session_id: str) -> None:
        """Forget a session's context."""
        self._contexts.release(session_id)
        self.released.append(session_id)

    def _one(self, request: SampleRequest) -> SampleOutput:
        self._contexts.check(request.session_id, request.token_ids)
        length = len(request.token_ids)
        lengths = [n for n in self._lengths.get(request.session_id, ()) if n < length]
        turn = len(lengths) if request.turn is None else request.turn
        ids = self._ids(request, turn)
        stops = request.params.stop_token_ids
        cut = next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))
        ids = ids[: min(cut, request.params.max_turn_tokens)]
        stop = "stop" if ids and ids[-1] in stops else "length"
        self._contexts.extend(request.session_id, request.token_ids, ids)
        self._lengths[request.session_id] = [*lengths, length]
        logprobs = tuple(self._logprob(i, token) for i, token in enumerate(ids))
        return SampleOutput(ids, logprobs, stop, self.version)

    def _ids(self, request: SampleRequest, turn: int) -> tuple[int, ...]:
        if callable(self._script):
            action = self._script(request, turn)
        else:
            actions = self._script.get(request.session_id, ())
            if turn >= len(actions):
                raise PolicyError(
                    f"the script of {request.session_id!r} has {len(actions)} turns; turn {turn} is asked"
                )
            action = actions[turn]
        if not isinstance(action, str):
            return tuple(action)
        if self._encode is None:
            raise PolicyError(
                "a text action needs `encode`, e.g. ScriptedPolicy(script, tokenizer.encode_marked)"
            )
        ids = tuple(self._encode(action))
        stops = request.params.stop_token_ids
        return ids if not stops or any(token in stops for token in ids) else (*ids, stops[0])
