"""The OpenAI-compatible route of a real server, as model users, judges and proposers use it
(`envgen.llm.openai_compatible`). The tiny model's text is noise; what crosses the wire is the real
protocol."""

import json
from collections.abc import Iterator

import pytest

from autoforge_jax.rollout.sglang_local import LocalServer
from envgen.interface import UserSettings, open_env, user_maker
from envgen.llm.openai_compatible import OpenAICompatibleClient
from envgen.llm.port import ChatMessage, ChatRequest, LLMRejected, ServerSettings
from envgen.types import Message, StopReason
from envgen.users.judge import ANSWER_SCHEMA, ModelJudge
from tests.envgen.mock_domain import mock_bundle


@pytest.fixture
def client(server: LocalServer) -> Iterator[OpenAICompatibleClient]:
    """A client of the server's /v1."""
    settings = ServerSettings(base_url=f"{server.url}/v1", model="tiny", timeout_s=300, retries=0)
    with OpenAICompatibleClient(settings) as client:
        yield client


def ask(text: str, **changes: object) -> ChatRequest:
    messages = (ChatMessage("system", "Be brief."), ChatMessage("user", text))
    return ChatRequest(messages, **{"temperature": 0.0, "max_tokens": 12, **changes})  # type: ignore[arg-type]


def test_the_served_model_is_listed_and_another_is_refused(
    server: LocalServer, client: OpenAICompatibleClient
) -> None:
    client.check()
    other = ServerSettings(base_url=f"{server.url}/v1", model="gpt-huge", retries=0)
    with (
        OpenAICompatibleClient(other) as wrong,
        pytest.raises(LLMRejected, match="'gpt-huge', expected one of tiny"),
    ):
        wrong.check()


def test_a_completion_with_its_usage_and_end(client: OpenAICompatibleClient) -> None:
    short = client.complete(ask("Hello!"))
    assert (short.model, short.finish_reason, short.completion_tokens) == ("tiny", "length", 12)
    assert short.text
    longer = client.complete(ask("Hello! " * 20))
    assert longer.prompt_tokens > short.prompt_tokens > 0, "the chat template was applied to the messages"
    assert client.complete(ask("Hello!")).text == short.text, "greedy: the same again"
    text = short.text
    end = next(i for i in range(1, len(text)) if text.index(text[i]) == i and text[:i].strip())
    stopped = client.complete(ask("Hello!", stop=(text[end],)))
    assert stopped.finish_reason == "stop" and stopped.text == text[:end].strip()


def test_too_long_a_prompt_is_refused_with_the_servers_words(client: OpenAICompatibleClient) -> None:
    with pytest.raises(LLMRejected, match=r"HTTP 400.*context length"):
        client.complete(ask("Hello! " * 4000))


def test_a_schema_makes_even_noise_an_answer(client: OpenAICompatibleClient) -> None:
    schema = {
        "type": "object",
        "properties": {"wrong": {"enum": ["yes", "no"]}, "turn": {"type": "boolean"}},
        "required": ["wrong", "turn"],
        "additionalProperties": False,
    }
    for number in range(3):
        reply = client.complete(ask(f"Judge {number}.", json_schema=schema, max_tokens=60))
        answer = json.loads(reply.text)
        assert answer.keys() == {"wrong", "turn"} and answer["wrong"] in ("yes", "no")


def test_the_judge_gets_its_form_from_the_server(client: OpenAICompatibleClient) -> None:
    bundle = mock_bundle()
    task = bundle.task(bundle.tasks[0].id)
    transcript = (
        Message(role="user", content=task.instruction),
        Message(role="assistant", content="Done."),
    )
    verdict = ModelJudge(client, max_tokens=200)(task, transcript)
    assert "could not be asked" not in verdict.reason, verdict
    reply = client.complete(ask("Judge.", json_schema=ANSWER_SCHEMA, max_tokens=40))
    assert reply.text.startswith("{") and '"wrong"' in reply.text


def test_a_user_on_the_server_that_speaks_noise_marks_its_episode(server: LocalServer) -> None:
    bundle = mock_bundle()
    task = bundle.task(bundle.tasks[0].id)
    settings = UserSettings(
        kind="model",
        server=ServerSettings(base_url=f"{server.url}/v1", model="tiny", timeout_s=300, retries=0),
        max_tokens=24,
    )
    make = user_maker(settings)
    env = open_env(bundle, task, seed=0, user=make(task, 0))
    assert env.start() == ()
    assert (env.stop_reason, env.user_error) == (StopReason.USER_ERROR, True)
    # Each try says noise, or nothing when it begins with the end token.
    assert "none of the user model's 3 tries" in env.user_verdict.reason, env.user_verdict
