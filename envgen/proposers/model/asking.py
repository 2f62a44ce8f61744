"""One question to the model with its repairs: ask, check, show the error, ask again, a bounded number of
times. What never passes its check is not used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from envgen.llm.port import ChatClient, ChatMessage, ChatReply, ChatRequest, LLMBadReply
from envgen.proposers.model.prompts import prompt_text, render
from envgen.types import Frozen

A = TypeVar("A", bound=BaseModel)
R = TypeVar("R")
_SHOWN_ERRORS = 6
_SHOWN_ANSWER = 12_000
"""Characters of a bad answer that its repair is shown."""


class AskSettings(Frozen):
    """How the model is asked."""

    tries: int = Field(default=3, ge=1)
    """Answers to one question, the first included."""
    max_tokens: int = Field(default=8192, ge=64)
    """Per answer, thinking included."""
    temperature: float = Field(default=0.0, ge=0)
    concurrency: int = Field(default=4, ge=1)
    """Questions under way at once."""


class Wrong(Exception):
    """An answer fails its check; the text says what is wrong, for the model to repair."""


class NoAnswer(Exception):
    """No answer passed; the text is the last reason."""


@dataclass(frozen=True)
class Attempt:
    """One answer of the model and what became of it."""

    stage: str
    subject: str
    number: int
    key: str
    """Hash of the request: its address in a recording."""
    problem: str
    """Empty when the answer passed."""
    model: str
    prompt_tokens: int
    completion_tokens: int


class Asker:
    """Asks questions and keeps the account of all attempts. May be used from several threads."""

    def __init__(self, client: ChatClient, settings: AskSettings) -> None:
        self.settings = settings
        self.attempts: list[Attempt] = []
        self._client = client
        self._lock = threading.Lock()

    def ask(self, stage: str, subject: str, prompt: str, form: type[A], check: Callable[[A], R]) -> R:
        """What ``check`` makes of the first answer that passes it.

        ``check`` raises Wrong, or NoAnswer for an answer that says no. Raises NoAnswer when no try passes,
        LLMError when the model cannot be asked.
        """
        first = (ChatMessage("system", prompt_text("system")), ChatMessage("user", prompt))
        messages = first
        problem = ""
        for number in range(self.settings.tries):
            request = ChatRequest(
                messages=messages,
                temperature=self.settings.temperature,
                max_tokens=self.settings.max_tokens,
                seed=number,  # an empty answer is asked for anew, not read from the cache again
                json_schema=form.model_json_schema(),
            )
            reply: ChatReply | None = None
            try:
                reply = self._client.complete(request)
                result = check(_parse(form, reply))
            except LLMBadReply as error:
                problem = str(error)
            except Wrong as error:
                problem = str(error)
            except NoAnswer as error:  # the model says no: an answer, and no reason to ask again
                self._note(stage, subject, number, request, reply, str(error))
                raise
            else:
                self._note(stage, subject, number, request, reply, "")
                return result
            self._note(stage, subject, number, request, reply, problem)
            advice = ""
            if reply is not None and reply.finish_reason == "length":
                advice = " It was cut off: keep it short."
            repair = ChatMessage("user", render("repair", problem=problem, advice=advice))
            said = () if reply is None else (ChatMessage("assistant", reply.text[:_SHOWN_ANSWER]),)
            messages = (*first, *said, repair)
        raise NoAnswer(f"{self.settings.tries} answers of the model failed their checks, the last: {problem}")

    def _note(
        self,
        stage: str,
        subject: str,
        number: int,
        request: ChatRequest,
        reply: ChatReply | None,
        problem: str,
    ) -> None:
        attempt = Attempt(
            stage,
            subject,
            number + 1,
            request.key,
            problem,
            reply.model if reply else "",
            reply.prompt_tokens if reply else 0,
            reply.completion_tokens if reply else 0,
        )
        with self._lock:
            self.attempts.append(attempt)


def _parse(form: type[A], reply: ChatReply) -> A:
    text = reply.text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        cut = "; the answer was cut off at the token limit" if reply.finish_reason == "length" else ""
        raise Wrong(f"it is not valid JSON: {error}{cut}") from error
    try:
        return form.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc']) or '(the whole)'}: {item['msg']}"
            for item in error.errors()[:_SHOWN_ERRORS]
        ]
        raise Wrong("it does not fit the schema: " + "; ".join(lines)) from error
