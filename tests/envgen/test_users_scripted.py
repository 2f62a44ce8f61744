"""The rules of the scripted user, one by one."""

from __future__ import annotations

import pytest

from envgen.types import Task, UserFact
from envgen.users.scripted import GO_ON, NOTHING_TO_ADD, ScriptedUser, UserReply, asks_for
from tests.envgen.mock_domain import mock_bundle

FACTS = (
    UserFact(name="room", value=4, sentence="It is room 4.", ask_words=("room",)),
    UserFact(
        name="price", value=30, sentence="The price is 30.", ask_words=("price", "how much"), stated=False
    ),
    UserFact(
        name="date", value="2026-05-01", sentence="On 2026-05-01.", ask_words=("date", "when"), stated=False
    ),
)
END = UserReply("", done=True)


def user() -> ScriptedUser:
    task: Task = mock_bundle().tasks[0].model_copy(update={"facts": FACTS, "instruction": "Book room 4."})
    return ScriptedUser(task)


def test_opening_is_the_instruction() -> None:
    assert user().opening() == "Book room 4."


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the price?", "The price is 30."),
        ("PRICES?", "The price is 30."),
        ("How much should it be, and when?", "The price is 30. On 2026-05-01."),
        ("Which date and which room?", "On 2026-05-01."),
        ("Which room?", "It is room 4."),
    ],
)
def test_a_question_gets_the_sentences_of_the_facts_it_asks_for(question: str, answer: str) -> None:
    someone = user()
    assert someone.reply(question) == UserReply(answer)
    assert someone.reply(question) == UserReply(answer)  # asking again changes nothing


@pytest.mark.parametrize("message", ["Done.", "The price is set.", "Tell me the price."])
def test_anything_that_is_no_question_ends(message: str) -> None:
    assert user().reply(message) == END


def test_a_question_about_nothing_known_is_answered_once() -> None:
    someone = user()
    assert someone.reply("Which colour?") == UserReply(NOTHING_TO_ADD)
    assert someone.reply("Which date?") == UserReply("On 2026-05-01.")  # a real question is still answered
    assert someone.reply("Anything else?") == END


def test_an_empty_message_is_answered_once() -> None:
    someone = user()
    assert someone.reply(" \n") == UserReply(GO_ON)
    assert someone.reply("Which colour?") == UserReply(NOTHING_TO_ADD)
    assert someone.reply("") == END


@pytest.mark.parametrize(
    ("message", "asked"),
    [("much how?", False), ("how much", True), ("priceless?", False), ("so how much?", True)],
)
def test_words_match_whole_and_in_a_row(message: str, asked: bool) -> None:
    assert asks_for(message, FACTS[1]) is asked


def test_an_empty_ask_word_never_matches() -> None:
    assert not asks_for("anything?", UserFact(name="x", value=1, sentence="s", ask_words=("", "?")))
