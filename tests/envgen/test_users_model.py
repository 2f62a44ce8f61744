"""The model user and the model judge, over HTTP, against a server whose answers are SCRIPTED: no model is
asked anywhere in these tests. What is tested is ours: prompts, checks, retries, endings, verdicts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envgen.llm.doubles import ScriptedClient
from envgen.llm.openai_compatible import OpenAICompatibleClient
from envgen.llm.port import LLMUnavailable, ServerSettings
from envgen.runtime.env import open_env
from envgen.types import Message, StopReason
from envgen.users.judge import ModelJudge, rules_then_model
from envgen.users.model import MAX_ANSWERS, ModelUser, unknown_words
from envgen.users.port import NO_ERROR, UserError, UserReply
from envgen.users.rules import judge_by_rules
from envgen.users.scripted import GO_ON
from tests.envgen.llm_server import Body, Raw, scripted_server
from tests.envgen.mock_domain import mock_bundle

BUNDLE = mock_bundle()
TASK = BUNDLE.task("notes-3")
(HIDDEN,) = [fact for fact in TASK.facts if not fact.stated]
TITLE = str(HIDDEN.value)
END = UserReply("", done=True)


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def client(base_url: str, retries: int = 0) -> OpenAICompatibleClient:
    server = ServerSettings(base_url=base_url, model="scripted-model", retries=retries)
    return OpenAICompatibleClient(server, sleep=lambda _: None)


def test_an_episode_with_a_model_user_over_http() -> None:
    def script(body: Body) -> str:
        last = body["messages"][-1]["content"]
        return TASK.instruction if last.startswith("Hello") else f'It is "{TITLE}", thanks.'

    with scripted_server(script) as server, client(server.base_url) as model:
        env = open_env(BUNDLE, TASK, user=ModelUser(TASK, model, seed=1), user_error_hook=judge_by_rules)
        assert env.start()[0].content == TASK.instruction
        result = env.step(say("What is its title?"))
        assert [m.content for m in result.observations] == [f'It is "{TITLE}", thanks.']
        assert env.step(say("Deleted.")).stop_reason is StopReason.USER_DONE
    assert not env.user_error and len(server.requests) == 2
    system = server.requests[1]["messages"][0]["content"]
    assert TASK.instruction in system and f"(when asked) {HIDDEN.sentence}" in system
    assert "$" not in system and "priority (notes)" in system
    roles = [m["role"] for m in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]  # the agent is the model's other side


def test_a_turn_that_breaks_the_facts_is_asked_for_again_with_the_reason() -> None:
    model = ScriptedClient([TASK.instruction, 'It is "Rent".', f'It is "{TITLE}".'])
    user = ModelUser(TASK, model)
    user.opening()
    assert user.reply("Which title?") == UserReply(f'It is "{TITLE}".')
    again = model.requests[2].messages
    assert (
        again[-2].content == 'It is "Rent".'
        and "was not sent, because asked for the title" in again[-1].content
    )
    assert len({request.seed for request in model.requests}) == 3


def test_after_its_retries_the_user_gives_up_and_the_episode_is_marked() -> None:
    model = ScriptedClient([TASK.instruction, *['It is "Rent".'] * 3])
    env = open_env(BUNDLE, TASK, user=ModelUser(TASK, model, retries=2))
    env.start()
    assert env.step(say("Which title?")).stop_reason is StopReason.USER_ERROR
    assert (env.user_error, env.user_verdict.kind, env.user_verdict.turn) == (True, "user", 1)
    assert "none of the user model's 3 tries" in env.user_verdict.reason
    assert "3 of them for breaking its facts; the last time it said 'It is" in env.user_verdict.reason


def test_a_turn_without_text_is_asked_for_again_with_another_seed() -> None:
    with (
        scripted_server([TASK.instruction, " ", f'It is "{TITLE}".', *[" "] * 3]) as server,
        client(server.base_url) as model,
    ):
        user = ModelUser(TASK, model, retries=2)
        user.opening()
        assert user.reply("Which title?") == UserReply(f'It is "{TITLE}".')
        empty, again = server.requests[1:3]
        assert empty["messages"] == again["messages"] and empty["seed"] != again["seed"]
        with pytest.raises(UserError, match=r"3 tries .* 0 of them for breaking.*answer holds no text"):
            user.reply("And which notebook?")


def test_a_user_that_cannot_be_asked_ends_the_episode_before_it_begins() -> None:
    with scripted_server([Raw(500, "out of memory")]) as server, client(server.base_url) as model:
        env = open_env(BUNDLE, TASK, user=ModelUser(TASK, model), user_error_hook=lambda *_: NO_ERROR)
        assert env.start() == ()
    assert (env.stop_reason, env.user_error) == (StopReason.USER_ERROR, True)
    assert "could not be asked" in env.user_verdict.reason and "out of memory" in env.user_verdict.reason
    assert env.transcript == ()


def test_the_rules_end_it_not_the_model() -> None:
    user = ModelUser(TASK, ScriptedClient(lambda _: "I do not know."))
    user._dialogue.append(Message(role="user", content=TASK.instruction))  # as if it had opened
    assert user.reply("") == UserReply(GO_ON)
    assert user.reply(" ") == END
    over = [user.reply(f"Question {i}?").done for i in range(MAX_ANSWERS + 1)]
    assert over == [False] * MAX_ANSWERS + [True]
    with pytest.raises(UserError, match="1 of them for breaking its facts"):
        ModelUser(BUNDLE.task("notes-1"), ScriptedClient(["Do something."]), retries=0).opening()
    assert ModelUser(TASK, ScriptedClient([])).reply("Done.") == END


def test_what_a_user_does_not_know() -> None:
    words = unknown_words(TASK)
    assert "priority (notes)" in words and not any(w.startswith("title") for w in words)


# -------------------------------------------------------------------------------------------------- the judge
CLEAN = (
    Message(role="user", content=TASK.instruction),
    say("Which title?"),
    Message(role="user", content=HIDDEN.sentence),
    say("Done."),
)
YES = json.dumps({"wrong": "yes", "turn": 2, "reason": "It changed its mind."})


@pytest.mark.parametrize(
    ("answer", "error", "kind", "turn"),
    [
        (YES, True, "", 2),
        ("Here it is: " + YES, True, "", 2),
        ('{"wrong": "no", "turn": -1, "reason": "fine"}', False, "", -1),
        ('{"wrong": "yes", "turn": 99, "reason": "?"}', True, "", -1),
        ("No.", False, "", -1),
        ("Yes, the user lied.", True, "", -1),
        ("Perhaps.", True, "unjudged", -1),
        ('{"wrong": "maybe"}', True, "unjudged", -1),
    ],
)
def test_the_model_judge_reads_yes_and_no(answer: str, error: bool, kind: str, turn: int) -> None:
    with scripted_server([answer]) as server, client(server.base_url) as model:
        verdict = ModelJudge(model)(TASK, CLEAN)
    assert (verdict.error, verdict.kind, verdict.turn) == (error, kind, turn)
    assert verdict.judge == ("model" if error else "")
    body: dict[str, Any] = server.requests[0]
    text = body["messages"][0]["content"]
    assert "Did the user give any wrong information?" in text and TASK.instruction in text
    assert f"2. USER: {HIDDEN.sentence}" in text and "(the user left without an answer)" in text
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["wrong", "turn", "reason"]


def test_a_judge_that_is_away_excludes_and_says_so() -> None:
    verdict = ModelJudge(ScriptedClient([LLMUnavailable("no route")]))(TASK, CLEAN)
    assert (verdict.error, verdict.kind) == (True, "unjudged") and "no route" in verdict.reason


def test_rules_speak_first() -> None:
    model = ScriptedClient([YES])
    judge = rules_then_model(ModelJudge(model))
    wrong = (*CLEAN[:2], Message(role="user", content='It is "Rent".'), say("Done."))
    assert judge(TASK, wrong).judge == "rules" and model.requests == []
    assert judge(TASK, CLEAN).judge == "model" and len(model.requests) == 1
