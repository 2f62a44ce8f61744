"""The model user: a language model plays the user, and every word of it is checked against the facts.

Opens with the intent in its own words, answers with what it knows. Each turn is read by the judge's rules
(`envgen.users.rules`) before it is said; one that breaks them is asked for again, with the reason, and after
``retries`` such tries the user gives up with UserError, which marks the episode. The model never decides that
the conversation is over: the rules below do.

- the agent's message is no question: over;
- it is empty: ``GO_ON`` once, then over;
- ``MAX_ANSWERS`` questions were answered: over.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from string import Template

from envgen.llm.port import ChatClient, ChatMessage, ChatRequest, LLMBadReply, LLMError
from envgen.packaged import packaged_json, packaged_text
from envgen.runtime.context import mix
from envgen.types import Message, Task
from envgen.users.port import UserError, UserReply
from envgen.users.rules import judge_by_rules
from envgen.users.scripted import GO_ON, words_of

MAX_ANSWERS = 12
_UNKNOWN_SHOWN = 12
"""Field names that the prompt lists as unknown; the rest is covered by "anything else"."""


@cache
def prompt(name: str) -> Template:
    """A prompt that ships with the package (``prompts/<name>.md``)."""
    return Template(packaged_text("envgen.users", f"prompts/{name}.md"))


@cache
def personas() -> tuple[str, ...]:
    """Ways of speaking that ship with the package."""
    return tuple(packaged_json("envgen.users", "data/personas.json"))


def facts_text(task: Task) -> str:
    """The user's facts as lines of a prompt."""
    lines = [f"- ({'tell' if f.stated else 'when asked'}) {f.sentence}" for f in task.facts]
    if task.consent == "no":
        lines.append("- (when asked for a go-ahead) No, I do not want that.")
    return "\n".join(lines) or "- nothing beyond what you want"


def unknown_words(task: Task) -> tuple[str, ...]:
    """Field words of the state that no fact of the user is about: what it does not know."""
    known = {word for fact in task.facts for phrase in fact.ask_words for word in words_of(phrase)}
    found: dict[str, None] = {}
    for collection, rows in task.initial_state.items():
        for row in list(rows.values())[:1]:
            for name in row:
                words = words_of(name.replace("_", " "))
                if words and not known & set(words):
                    found[f"{' '.join(words)} ({collection.replace('_', ' ')})"] = None
    return tuple(found)


class ModelUser:
    """One user of one episode, spoken by ``client``.

    ``persona`` empty: one of the shipped ones, chosen by the seed. ``retries``: further tries at a turn that
    breaks the rules or holds no text. Raises UserError from `opening` and `reply`; also when the client
    cannot be asked.
    """

    def __init__(
        self,
        task: Task,
        client: ChatClient,
        *,
        seed: int = 0,
        persona: str = "",
        temperature: float = 0.7,
        max_tokens: int = 400,
        retries: int = 2,
    ) -> None:
        rng = random.Random(mix(task.seed, seed))
        self._task = task
        self._client = client
        self._seed = rng.randrange(2**31)
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._retries = retries
        self._dialogue: list[Message] = []
        self._empty = 0
        self._answers = 0
        unknown = ", ".join(unknown_words(task)[:_UNKNOWN_SHOWN])
        self._system = prompt("user").substitute(
            persona=persona or rng.choice(personas()),
            intent=task.instruction,
            facts=facts_text(task),
            unknown=f"{unknown}, ids, and anything else" if unknown else "ids, and anything else",
        )

    def opening(self) -> str:
        """See `User.opening`."""
        text = self._speak()
        self._dialogue.append(Message(role="user", content=text))
        return text

    def reply(self, message: str) -> UserReply:
        """See `User.reply`."""
        if not message.strip():
            self._empty += 1
            return UserReply(GO_ON) if self._empty == 1 else UserReply("", done=True)
        if "?" not in message or self._answers >= MAX_ANSWERS:
            return UserReply("", done=True)
        self._answers += 1
        self._dialogue.append(Message(role="assistant", content=message))
        text = self._speak()
        self._dialogue.append(Message(role="user", content=text))
        return UserReply(text)

    def note_action(self, asked: str, said: str) -> None:
        """See `NotesActions.note_action`: the model speaks on knowing of it."""
        self._dialogue.append(Message(role="assistant", content=asked))
        self._dialogue.append(Message(role="user", content=said))

    def _speak(self) -> str:
        """One turn that keeps the rules. Raises UserError."""
        refused: list[tuple[str, str]] = []
        problem = ""
        for attempt in range(self._retries + 1):
            try:
                said = self._ask(refused, attempt)
            except LLMBadReply as error:  # sampled, like what breaks the rules; the next try has another seed
                problem = f"the last answer could not be used: {error}"
                continue
            candidate = Message(role="user", content=said)
            verdict = judge_by_rules(self._task, [*self._dialogue, candidate])
            if not verdict.error:
                return said
            refused.append((said, verdict.reason))
            problem = f"the last time it said {said!r}: {verdict.reason}"
        raise UserError(
            f"none of the user model's {self._retries + 1} tries at one turn can be sent, {len(refused)} of "
            f"them for breaking its facts; {problem}"
        )

    def _ask(self, refused: Sequence[tuple[str, str]], attempt: int) -> str:
        messages = [ChatMessage("system", self._system)]
        if not self._dialogue or self._dialogue[0].role == "user":
            # Chat templates want a conversation to begin on the other side.
            messages.append(ChatMessage("user", "Hello! How can I help you?"))
        for message in self._dialogue:
            # The model speaks as the user, so the agent is its other side.
            role = "assistant" if message.role == "user" else "user"
            messages.append(ChatMessage(role, message.content))
        for said, reason in refused:
            messages.append(ChatMessage("assistant", said))
            messages.append(
                ChatMessage("user", f"(That message was not sent, because {reason}. Write it again, right.)")
            )
        request = ChatRequest(
            tuple(messages),
            temperature=self._temperature,
            max_tokens=self._max_tokens,
            seed=mix(self._seed, self._answers, attempt),
        )
        try:
            return self._client.complete(request).text.strip()
        except LLMBadReply:
            raise
        except LLMError as error:
            raise UserError(f"the user model could not be asked: {error}") from error
