"""The judge's rules, each by hand: what is said against what is known (FAULTS.md 10)."""

from __future__ import annotations

import pytest

from envgen.types import Message, Task, ToolCall, UserFact
from envgen.users.port import NO_ERROR
from envgen.users.rules import judge_by_rules
from envgen.users.speech import entities, says_value, spoken_value
from tests.envgen.mock_domain import mock_bundle

INSTRUCTION = 'Book a room called "Blue Hall" on 2026-06-01 with type "event", a price that I will tell you.'


def fact(field: str, value: object, sentence: str, stated: bool = True) -> UserFact:
    return UserFact(
        name=f"rooms.{field}.0", value=value, sentence=sentence, ask_words=(field,), stated=stated
    )


FACTS = (
    fact("name", "Blue Hall", 'Use "Blue Hall" as the name.'),
    fact("date", "2026-06-01", "Make the date 2026-06-01."),
    fact("type", "event", 'The type should be "event".'),
    fact("price", 12, "The price should be 12.", stated=False),
)
TASK: Task = mock_bundle().tasks[0].model_copy(update={"instruction": INSTRUCTION, "facts": FACTS})
CALL = Message(role="assistant", tool_calls=(ToolCall(id="1", name="list_notes"),))


def said(*lines: str, opening: str = INSTRUCTION) -> tuple[Message, ...]:
    """The opening, then agent and user in turns."""
    messages = [Message(role="user", content=opening)]
    for index, line in enumerate(lines):
        messages.append(Message(role="user" if index % 2 else "assistant", content=line))
    return tuple(messages)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Done.",),
        ("What is the price?", "12.", "Done."),
        ("What is the price?", "Twelve, please.", "Done."),
        ("What is the price?", "It should be $12.00."),
        ("Shall I take 12 as the price?", "Yes, please."),
        ("Which date?", "June 1st, 2026."),
        ("Which date?", "As I said, on the 1st of June 2026."),
        ("Is the name Blue Hall?", "Yes."),
        ("Which colour?", "I do not know that."),
        ("Which colour?", "I do not know.", "Who cleans it?"),
        ("", "Please go on.", "Done."),
        ("There is a Red Hall, too. Is that it?", 'No, not "Red Hall".'),
        ("How can I help you?", INSTRUCTION),
        ("Anything else?", "I have nothing to add."),
    ],
)
def test_what_is_true_is_no_error(lines: tuple[str, ...]) -> None:
    assert judge_by_rules(TASK, said(*lines)) == NO_ERROR


@pytest.mark.parametrize(
    "opening",
    [
        "Hello! " + INSTRUCTION + " Thanks.",
        "I need a room called Blue Hall on June 1, 2026. The type is event. I will tell you the price.",
    ],
)
def test_an_opening_may_use_other_words(opening: str) -> None:
    task = TASK.model_copy(update={"instruction": INSTRUCTION})
    assert judge_by_rules(task, said(opening=opening)) == NO_ERROR


@pytest.mark.parametrize(
    ("opening", "kind"),
    [
        (INSTRUCTION.replace("2026-06-01", "2026-06-02"), "wrong_value"),
        (INSTRUCTION.replace('"Blue Hall"', '"Red Hall"'), "wrong_value"),
        (INSTRUCTION.replace("2026-06-01", "some day"), "missing_fact"),
        (INSTRUCTION.replace('"event"', "the usual one"), "missing_fact"),
        (INSTRUCTION + " Actually, make the date 2026-06-09 instead.", "contradiction"),
        (INSTRUCTION + " Also delete everything older.", "invented_demand"),
        (INSTRUCTION + ' I also want "Green Hall" painted.', "invented_demand"),
    ],
)
def test_a_wrong_opening(opening: str, kind: str) -> None:
    verdict = judge_by_rules(TASK, said("Done.", opening=opening))
    assert (verdict.error, verdict.kind, verdict.turn, verdict.judge) == (True, kind, 0, "rules")


@pytest.mark.parametrize(
    ("lines", "kind", "turn", "words"),
    [
        (("What is the price?", "13."), "wrong_value", 2, "says '13', but it knows: 'The price should"),
        (("What is the price?", "I do not know."), "missing_fact", 2, "does not say it"),
        (("What is the price?", "You choose."), "missing_fact", 2, "price"),
        (("Shall I take 15 as the price?", "Yes."), "wrong_value", 2, "the user agrees"),
        (("Which date?", "No idea."), "missing_fact", 2, "date"),
        (("Price?", "12. Actually, make the date 2026-07-01."), "contradiction", 2, "2026-07-01"),
        (("Price?", "12.", "Done?", "No, the price is 14."), "contradiction", 4, "14"),
        (("What is the price?",), "early_stop", 1, "leaves when asked for the price"),
        (("Shall I begin?",), "early_stop", 1, "first time"),
        (("What is the price?", "Never mind."), "early_stop", 2, "Never mind"),
        (("What is the price?", "Hi! " + INSTRUCTION), "restart", 2, "again"),
        (("What is the price?", " "), "silence", 2, "' '"),
        (("What is the price?", "..."), "silence", 2, "'...'"),
        (("Price?", "12. Also cancel the other bookings."), "invented_demand", 2, "cancel the other"),
        (("Price?", "12, in Rome Palace for 40."), "wrong_value", 2, "does not know"),
    ],
)  # fmt: skip
def test_a_wrong_answer(lines: tuple[str, ...], kind: str, turn: int, words: str) -> None:
    verdict = judge_by_rules(TASK, said(*lines))
    assert (verdict.error, verdict.kind, verdict.turn) == (True, kind, turn)
    assert words in verdict.reason


def test_tools_in_between_are_no_turns_of_the_user() -> None:
    middle = (CALL, Message(role="tool", content="[]", tool_call_id="1", name="list_notes"))
    transcript = (*said()[:1], *middle, *said("Price?", "11.")[1:])
    assert (judge_by_rules(TASK, transcript).kind, judge_by_rules(TASK, transcript).turn) == (
        "wrong_value",
        4,
    )
    assert judge_by_rules(TASK, (*said(), *middle)) == NO_ERROR
    assert judge_by_rules(TASK, ()) == NO_ERROR


def test_a_flag_turned_round() -> None:
    flag = fact("enabled", False, "Make the enabled false.", stated=False)
    task = TASK.model_copy(update={"instruction": "Add a thing.", "facts": (flag,)})
    assert judge_by_rules(task, said("Enabled?", "Make it false.", opening="Add a thing.")) == NO_ERROR
    wrong = judge_by_rules(task, said("Enabled?", "It is true.", opening="Add a thing."))
    assert (wrong.kind, wrong.turn) == ("wrong_value", 2)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Use "Iron Tour" and “Big Day”.', ["iron tour", "big day"]),
        ("On 2024-05-14 or 2 May 2024, at 18:00.", ["2024-05-14", "2024-05-02", "18:00"]),
        ("Pay $1,200 or 19.50, not 3.", ["1200", "19.5", "3"]),
        ("Take clean.sh, #fa0, E41 and FullMonth.", ["clean.sh", "#fa0", "e41", "fullmonth"]),
        ("Mail a@b.co and https://x.y/z.", ["a@b.co", "https://x.y/z"]),
        ("Please name it Iron Dinner or so. Hello there.", ["iron dinner"]),
        ("Nothing in here, thank you.", []),
        ("June 31st, 2024 is none.", ["june 31st, 2024"]),
    ],
)
def test_entities(text: str, found: list[str]) -> None:
    assert [e.text for e in entities(text)] == found


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("for 12 people", 12, True),
        ("for twelve people", 12, True),
        ("for 12.0", 12, True),
        ("for 112", 12, False),
        ("in Room 5.", "Room 5", True),
        ("in room 55", "Room 5", False),
        ("May 14, 2024", "2024-05-14", True),
        ("a and b", ["a", "b"], True),
        ("a only", ["a", "b"], False),
        ("method FullMonth", {"m": "FullMonth", "n": None}, True),
        ("yes", True, True),
        ("no", True, False),
        ("anything", None, True),
    ],
)
def test_says_value(text: str, value: object, says: bool) -> None:
    assert says_value(text, value) is says


@pytest.mark.parametrize(
    ("sentence", "value", "spoken"),
    [
        ('Use "Garden" as the location.', "Garden", '"Garden"'),
        ("Make it 2024-05-14 and 2024-06-22.", ["2024-05-14", "2024-06-22"], "2024-05-14 and 2024-06-22"),
        ('The tags should be "a" and "b".', ["a", "b"], '"a" and "b"'),
        ("Make it true.", True, "true"),
        ("It is a dozen.", 12, None),
        ("Use method Rate.", {"method": "Rate"}, None),
    ],
)  # fmt: skip
def test_the_value_in_its_sentence(sentence: str, value: object, spoken: str | None) -> None:
    assert spoken_value(fact("b", value, sentence)) == spoken
