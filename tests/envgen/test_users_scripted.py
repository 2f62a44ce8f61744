"""The rules of the scripted user, one by one."""

from __future__ import annotations

import pytest

from envgen.types import Task, UserFact
from envgen.users.port import UserReply
from envgen.users.scripted import (
    CONFIRM,
    GO_ON,
    NO_MORE,
    NOTHING_TO_ADD,
    UNKNOWN,
    ScriptedUser,
    asks_for,
)
from envgen.users.speech import entities, says_value
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


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which colour?", UNKNOWN),
        ("How many are there?", UNKNOWN),
        ("Anything else?", NO_MORE),
        ("Is there something more to do?", NO_MORE),
        ("Is it raining?", NOTHING_TO_ADD),
    ],
)
def test_a_question_about_nothing_known_is_answered_once(question: str, answer: str) -> None:
    someone = user()
    assert someone.reply(question) == UserReply(answer)
    assert someone.reply("Which date?") == UserReply("On 2026-05-01.")  # a real question is still answered
    assert someone.reply("Which colour?") == END


def test_a_go_ahead_is_given_a_few_times() -> None:
    someone = user()
    for question in ("Shall I go ahead?", "Please confirm?", "I will book it, is that right?", "Should I?"):
        assert someone.reply(question) == UserReply(CONFIRM)
    assert someone.reply("Do you want me to proceed?") == END
    assert user().reply("Should I take the price of 99?") == UserReply("The price is 30.")  # not a bare yes


@pytest.mark.parametrize("seed", range(40))
def test_the_wording_varies_and_the_information_does_not(seed: int) -> None:
    task = mock_bundle().tasks[0].model_copy(update={"facts": FACTS, "instruction": "Book room 4."})
    someone = ScriptedUser(task, seed=seed)
    assert "Book room 4." in someone.opening()
    first = someone.reply("What is the price, and when?").text
    assert says_value(first, 30) and says_value(first, "2026-05-01")
    assert [e.text for e in entities(first)] in (["30", "2026-05-01"], ["2026-05-01", "30"])
    again = someone.reply("The price?").text
    assert says_value(again, 30) and again != first
    same = ScriptedUser(task, seed=seed)
    assert (same.opening(), same.reply("What is the price, and when?").text) == (
        ScriptedUser(task, seed=seed).opening(),
        first,
    )
    assert someone.reply("Thank you, done.") == END


def test_seeds_give_different_words() -> None:
    task = mock_bundle().tasks[0].model_copy(update={"facts": FACTS, "instruction": "Book room 4."})
    said = {ScriptedUser(task, seed=seed).reply("The price?").text for seed in range(40)}
    assert len(said) >= 4


def test_an_empty_message_is_answered_once() -> None:
    someone = user()
    assert someone.reply(" \n") == UserReply(GO_ON)
    assert someone.reply("Which colour?") == UserReply(UNKNOWN)
    assert someone.reply("") == END


@pytest.mark.parametrize(
    ("message", "asked"),
    [("much how?", False), ("how much", True), ("priceless?", False), ("so how much?", True)],
)
def test_words_match_whole_and_in_a_row(message: str, asked: bool) -> None:
    assert asks_for(message, FACTS[1]) is asked


def test_an_empty_ask_word_never_matches() -> None:
    assert not asks_for("anything?", UserFact(name="x", value=1, sentence="s", ask_words=("", "?")))
