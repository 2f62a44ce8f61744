"""A limit on what a run may ask of a model: in tokens, and in money where prices are given."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from envgen.llm.port import ChatClient, ChatReply, ChatRequest, LLMError

_CHARACTERS_PER_TOKEN = 2.0
"""Fewer than any common tokenizer needs for English, JSON and code: the estimate errs upwards."""


class LLMBudgetSpent(LLMError):
    """The next request could go over the budget, so it was not made."""


@dataclass(frozen=True)
class Budget:
    """``max_tokens``: prompt and answer tokens of the whole run, 0 for no limit. ``max_cost``: in the unit of
    the prices, 0 for no limit. Prices are per million tokens."""

    max_tokens: int = 0
    max_cost: float = 0.0
    prompt_price: float = 0.0
    completion_price: float = 0.0

    def __post_init__(self) -> None:
        if min(self.max_tokens, self.max_cost, self.prompt_price, self.completion_price) < 0:
            raise ValueError(f"got {self}, expected no negative number")
        if self.max_cost and not (self.prompt_price or self.completion_price):
            raise ValueError(
                f"got max_cost {self.max_cost:g} without prices; give the price per million tokens"
            )

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


class BudgetedClient:
    """Passes requests on while the worst case of the next one still fits. Counts what the server reports.

    Raises LLMBudgetSpent. A server that reports no usage is charged the estimate.
    """

    def __init__(self, client: ChatClient, budget: Budget) -> None:
        self.budget = budget
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._client = client
        self._reserved = (0, 0)
        self._lock = threading.Lock()

    @property
    def cost(self) -> float:
        """Money spent so far."""
        return self.budget.cost(self.prompt_tokens, self.completion_tokens)

    def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`."""
        prompt = int(sum(len(m.content) for m in request.messages) / _CHARACTERS_PER_TOKEN) + 64
        self._reserve(prompt, request.max_tokens)
        try:
            reply = self._client.complete(request)
        except BaseException:
            self._settle(prompt, request.max_tokens, 0, 0)
            raise
        known = reply.prompt_tokens + reply.completion_tokens > 0
        used = (reply.prompt_tokens, reply.completion_tokens) if known else (prompt, request.max_tokens)
        self._settle(prompt, request.max_tokens, *used)
        return reply

    def _reserve(self, prompt: int, completion: int) -> None:
        with self._lock:
            tokens = (
                self.prompt_tokens + self._reserved[0] + prompt,
                self.completion_tokens + self._reserved[1] + completion,
            )
            budget = self.budget
            if budget.max_tokens and sum(tokens) > budget.max_tokens:
                spent = self.prompt_tokens + self.completion_tokens
                raise LLMBudgetSpent(
                    f"the next request may take {prompt + completion} tokens; {spent} of {budget.max_tokens} "
                    "are spent: raise the budget and run again with the same cache, nothing is asked twice"
                )
            if budget.max_cost and budget.cost(*tokens) > budget.max_cost:
                raise LLMBudgetSpent(
                    f"the next request may cost {budget.cost(prompt, completion):.4f}; {self.cost:.4f} of "
                    f"{budget.max_cost:g} are spent: raise the budget and run again with the same cache, "
                    "nothing is asked twice"
                )
            self._reserved = (self._reserved[0] + prompt, self._reserved[1] + completion)

    def _settle(self, prompt: int, completion: int, used_prompt: int, used_completion: int) -> None:
        with self._lock:
            self._reserved = (self._reserved[0] - prompt, self._reserved[1] - completion)
            self.prompt_tokens += used_prompt
            self.completion_tokens += used_completion
