"""The client against a server with scripted answers (no model), its retries and errors, and the doubles."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from pydantic import ValidationError

from envgen.llm.backoff import Backoff
from envgen.llm.doubles import RecordingClient, ReplayClient, ScriptedClient
from envgen.llm.openai_compatible import OpenAICompatibleClient
from envgen.llm.port import (
    ChatMessage,
    ChatRequest,
    LLMBadReply,
    LLMError,
    LLMRejected,
    LLMUnavailable,
    ServerSettings,
    without_thinking,
)
from tests.envgen.llm_server import Raw, completion, scripted_server

ASK = ChatRequest((ChatMessage("system", "Be brief."), ChatMessage("user", "Hello?")), max_tokens=9, seed=4)


def settings(base_url: str, **changes: object) -> ServerSettings:
    return ServerSettings.model_validate({"base_url": base_url, "model": "scripted-model"} | changes)


def test_a_request_and_its_answer() -> None:
    schema = {"type": "object"}
    request = ChatRequest(ASK.messages, 0.5, 9, 4, ("END",), schema)
    with (
        scripted_server(["<think>hm</think>\n Hi. "]) as server,
        OpenAICompatibleClient(settings(server.base_url + "/")) as client,
    ):
        client.check()
        reply = client.complete(request)
    assert (reply.text, reply.finish_reason, reply.model) == ("Hi.", "stop", "scripted-model")
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
    assert server.requests == [
        {
            "model": "scripted-model",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hello?"},
            ],
            "temperature": 0.5,
            "max_tokens": 9,
            "seed": 4,
            "stop": ["END"],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            },
        }
    ]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_may_go_away_is_tried_again(status: int) -> None:
    waits: list[float] = []
    with (
        scripted_server([Raw(status, "busy", {"retry-after": "3"}), Raw(status, "busy"), "Hi."]) as server,
        OpenAICompatibleClient(settings(server.base_url), sleep=waits.append) as client,
    ):
        assert client.complete(ASK).text == "Hi."
    assert len(server.requests) == 3
    assert waits == [3.0, Backoff().wait_s(1, ASK.key)]


def test_retries_end_with_an_error_that_says_what_to_do() -> None:
    waits: list[float] = []
    with (
        scripted_server([Raw(503, "loading the model")]) as server,
        OpenAICompatibleClient(settings(server.base_url, retries=2), sleep=waits.append) as client,
        pytest.raises(LLMUnavailable, match=r"HTTP 503: 'loading the model', 3 times; check that the server"),
    ):
        client.complete(ASK)
    assert (len(server.requests), len(waits)) == (3, 2)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "context length"), (401, "api_key_env"), (403, "api_key_env"), (404, "base_url"), (422, "limits")],
)
def test_a_refusal_is_final(status: int, advice: str) -> None:
    with (
        scripted_server([Raw(status, "no")]) as server,
        OpenAICompatibleClient(settings(server.base_url)) as client,
        pytest.raises(LLMRejected, match=rf"HTTP {status}: 'no'.*{advice}"),
    ):
        client.complete(ASK)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Raw(200, "<html>welcome</html>"), "expected a chat completion"),
        ({"choices": []}, "expected a chat completion"),
        ({"choices": [{"text": "old api"}]}, "expected a chat completion"),
        (completion(None), "holds no text .finish_reason 'stop'.; check the model's chat template"),
        (completion("<think>and on and on", "length"), "raise max_tokens"),
    ],
)
def test_an_answer_that_is_none(answer: object, words: str) -> None:
    with (
        scripted_server([answer]) as server,  # type: ignore[list-item]
        OpenAICompatibleClient(settings(server.base_url)) as client,
        pytest.raises(LLMBadReply, match=words),
    ):
        client.complete(ASK)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx2.ReadTimeout("slow"), r"no answer in 60 s \(ReadTimeout\), 2 times"),
        (httpx2.ConnectError("refused"), "ConnectError: refused, 2 times"),
        (httpx2.RemoteProtocolError("cut"), "RemoteProtocolError: cut, 2 times"),
    ],
)
def test_a_broken_line_is_tried_again(error: Exception, words: str) -> None:
    def broken(_: httpx2.Request) -> httpx2.Response:
        raise error

    client = OpenAICompatibleClient(
        settings("http://localhost:1/v1", retries=1),
        transport=httpx2.MockTransport(broken),
        sleep=lambda _: None,
    )
    with pytest.raises(LLMUnavailable, match=words):
        client.complete(ASK)


def test_the_key_comes_from_the_environment_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "not-a-secret")
    with (
        scripted_server(["Hi."]) as server,
        OpenAICompatibleClient(settings(server.base_url, api_key_env="MADE_UP_KEY")) as client,
    ):
        client.complete(ASK)
    assert server.headers[0]["authorization"] == "Bearer not-a-secret"
    monkeypatch.delenv("MADE_UP_KEY")
    with pytest.raises(LLMRejected, match="MADE_UP_KEY is not set"):
        OpenAICompatibleClient(settings(server.base_url, api_key_env="MADE_UP_KEY"))
    with pytest.raises(ValidationError):
        settings(server.base_url, api_key="not-a-secret")


def test_check_names_the_models_that_are_there() -> None:
    with scripted_server(["Hi."], models=["a", "b"]) as server:
        client = OpenAICompatibleClient(settings(server.base_url, model="c"))
        with pytest.raises(LLMRejected, match="got model 'c', expected one of a, b"):
            client.check()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>a</think> b", "b"),
        ("a</think>b", "b"),
        ("<think>a", ""),
        ("a <think>b</think> c", "a  c"),
        ("plain", "plain"),
    ],
)
def test_thinking_is_not_said(text: str, said: str) -> None:
    assert without_thinking(text) == said


def test_backoff_doubles_within_bounds() -> None:
    backoff = Backoff(retries=9, first_s=1, longest_s=10)
    for attempt, full in enumerate([1, 2, 4, 8, 10, 10]):
        assert full / 2 <= backoff.wait_s(attempt, "k") <= full
    assert backoff.wait_s(0, "k", asked_s=99) == 10
    assert len({backoff.wait_s(0, str(key)) for key in range(50)}) == 50
    with pytest.raises(ValueError, match="expected retries >= 0"):
        Backoff(first_s=0)


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    other = ChatRequest(ASK.messages, seed=5)
    client = RecordingClient(ScriptedClient(["one", "two", "three"]), path)
    said = [client.complete(r).text for r in (ASK, other, ASK)]
    replay = ReplayClient(path)
    assert (
        [replay.complete(r).text for r in (other, ASK, ASK)]
        == ["two", "one", "three"]
        == sorted(said, key=["two", "one", "three"].index)
    )
    with pytest.raises(LLMError, match="no reply left for the request ending in 'Hello"):
        replay.complete(ASK)
    path.write_text("{}\n")
    with pytest.raises(LLMError, match="expected a recording"):
        ReplayClient(path)
    with pytest.raises(LLMError, match="expected a recording"):
        ReplayClient(tmp_path / "absent.jsonl")


def test_the_scripted_client_raises_what_it_is_told() -> None:
    client = ScriptedClient(["one", LLMUnavailable("away")])
    assert client.complete(ASK).text == "one"
    with pytest.raises(LLMUnavailable, match="away"):
        client.complete(ASK)
    with pytest.raises(LLMBadReply, match="got request 3, expected at most 2"):
        client.complete(ASK)
    assert client.requests == [ASK] * 3
