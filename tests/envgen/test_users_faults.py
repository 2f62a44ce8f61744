"""Injected mistakes have ground truth, and the judge's rules find them (issue: >= 0.9 / >= 0.9, <= 2 % false
alarms)."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.store import Bundle
from envgen.synthesis.pipeline import synthesize
from envgen.types import Message, Task, UserFact
from envgen.users.faults import FaultInjectedUser
from envgen.users.measure import (
    JudgedEpisode,
    asking_actions,
    false_alarm_rate,
    judge_rows,
    measure_judge,
)
from envgen.users.port import FAULT_KINDS, NO_ERROR, FaultKind, UserReply, UserVerdict
from envgen.users.rules import judge_by_rules
from envgen.users.scripted import ScriptedUser
from envgen.users.settings import UserSettings, user_maker
from envgen.users.speech import says_value
from tests.envgen.mock_domain import mock_bundle

PRICE = UserFact(
    name="notes.price.0", value=12, sentence="Make the price 12.", ask_words=("price",), stated=False
)
PLACE = UserFact(
    name="notes.place.1", value="Hall", sentence='Use "Hall" as the place.', ask_words=("place",)
)
TASK: Task = mock_bundle().tasks[0].model_copy(
    update={"instruction": 'Add a room at the place "Hall" for a price.', "facts": (PRICE, PLACE)}
)  # fmt: skip
END = UserReply("", done=True)


def faulty(kind: FaultKind, seed: int, task: Task = TASK) -> FaultInjectedUser:
    return FaultInjectedUser(ScriptedUser(task), task, kind, seed=seed)


def talk(kind: FaultKind, seed: int) -> tuple[FaultInjectedUser, list[str], list[UserReply]]:
    user = faulty(kind, seed)
    opening = user.opening()
    replies: list[UserReply] = []
    for question in ("What is the price?", "Is there anything else?", "Done."):
        replies.append(user.reply(question))
        if replies[-1].done:
            break
    return user, [opening, *(r.text for r in replies)], replies


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_says_what_it_did_and_where(kind: FaultKind) -> None:
    places: set[int] = set()
    for seed in range(60):
        user, said, replies = talk(kind, seed)
        truth = user.injected
        assert truth is not None and truth.kind == kind
        places.add(truth.utterance)
        text = said[truth.utterance]
        if kind == "wrong_value":
            known = 12 if truth.utterance else "Hall"
            assert not says_value(text, known)
        elif kind == "missing_fact":
            assert not says_value(text, 12 if truth.utterance else "Hall")
        elif kind in ("contradiction", "invented_demand"):
            assert truth.said and text.endswith(truth.said)
        elif kind == "early_stop":
            assert replies[-1] == END and len(replies) <= 2
        elif kind == "restart":
            assert said[0] in text
        else:
            assert not any(c.isalnum() for c in text) or text == "Hmm."
    expected = {"early_stop": {1}, "restart": {1}, "silence": {1}, "contradiction": {0, 1, 2}}
    assert places == expected.get(kind, {0, 1})


def test_one_mistake_only_and_the_rest_is_the_inner_user() -> None:
    user = faulty("silence", 0)
    assert user.opening() == TASK.instruction
    assert not user.reply("The price?").text.strip(". Hm")
    assert user.reply("The price?") == UserReply(PRICE.sentence)
    assert user.reply("Done.") == END


def test_no_chance_no_mistake() -> None:
    bare = TASK.model_copy(update={"instruction": "Tidy up.", "facts": ()})
    user = faulty("wrong_value", 1, bare)
    assert user.opening() == "Tidy up." and user.reply("Shall I go ahead?").text and user.injected is None


def test_the_same_seed_makes_the_same_mistake() -> None:
    assert talk("wrong_value", 5)[1] == talk("wrong_value", 5)[1]
    assert len({str(talk("wrong_value", seed)[1]) for seed in range(30)}) >= 4


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="got fault kind 'typo', expected one of wrong_value"):
        faulty("typo", 0)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- measuring
@pytest.fixture(scope="module")
def museum(examples_dir: Path) -> Bundle:
    return synthesize(examples_dir / "museum_openapi31.yaml", tasks=24, heldout=4, seed=3)


@pytest.fixture(scope="module")
def judged(museum: Bundle) -> list[JudgedEpisode]:
    return measure_judge([museum], judge_by_rules, user_maker(UserSettings(kind="varied")), seed=11)


def test_the_rules_reach_the_numbers_of_the_issue(judged: list[JudgedEpisode]) -> None:
    rows = {row.kind: row for row in judge_rows(judged)}
    assert set(rows) == {*FAULT_KINDS, "all"}
    for row in rows.values():
        assert row.injected >= 15 and row.recall >= 0.9 and row.precision >= 0.9, row
    alarms, clean = false_alarm_rate(judged)
    assert clean >= 24 * len(FAULT_KINDS) and alarms <= 0.02 * clean
    assert rows["all"].placed >= 0.95 * rows["all"].caught


def test_plain_wording_and_clean_runs_succeed(museum: Bundle) -> None:
    plain = measure_judge([museum], judge_by_rules, user_maker(UserSettings()), kinds=("silence",), seed=2)
    assert all(e.success for e in plain if e.wanted is None)
    assert all(e.verdict == NO_ERROR for e in plain if e.wanted is None)
    (row, total) = judge_rows(plain)
    assert (row.kind, row.injected, row.caught, total.injected) == ("silence", 24, 24, 24)


def test_a_judge_that_says_yes_to_everything_has_half_the_precision(museum: Bundle) -> None:
    def always(task: Task, transcript: tuple[Message, ...]) -> UserVerdict:
        return UserVerdict(True, "restart", "I say so", 0, "test")

    episodes = measure_judge(
        [museum], always, user_maker(UserSettings()), kinds=("restart",), tasks=5, seed=1
    )
    (row, _) = judge_rows(episodes)
    assert (row.injected, row.caught, row.alarms, row.recall, row.precision) == (5, 5, 5, 1.0, 0.5)
    assert (row.named, row.placed) == (5, 0) and false_alarm_rate(episodes) == (5, 5)


def test_the_asking_agent_asks_in_every_episode(museum: Bundle) -> None:
    for task in museum.tasks:
        for seed in range(5):
            actions = list(asking_actions(task, seed))
            assert any("?" in a.content for a in actions)
            assert [a.tool_calls[0].name for a in actions if a.tool_calls] == [
                s.tool for s in task.reference if s.kind == "call"
            ]
