"""FAULTS.md 10 by name: users that invent facts, change their mind, stop early, restart or say nothing. Each
is caught by the rules, marked with kind and message, and never looks like a failure of the agent. (1 and 2:
``test_faults_grading``; 3 to 9 and 11: ``test_faults_environments``.)"""

from __future__ import annotations

import pytest

from envgen.runtime.env import Env, open_env
from envgen.types import Message, StopReason
from envgen.users.port import UserError, UserReply
from envgen.users.rules import judge_by_rules
from tests.envgen.mock_domain import mock_bundle

BUNDLE = mock_bundle()
ASKED = "What is the title of the note?"
TOLD = "The title of the note is Bread."


class Saying:
    """A user that says what it is given, in order, and then leaves."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    def opening(self) -> str:
        return BUNDLE.task("notes-3").instruction

    def reply(self, message: str) -> UserReply:
        return UserReply(self._texts.pop(0)) if self._texts else UserReply("", done=True)


def after(*texts: str) -> Env:
    """``notes-3`` with this user: the agent asks for the title, once for each text and once more at the end
    when the user left with its question open."""
    env = open_env(BUNDLE, BUNDLE.task("notes-3"), user=Saying(*texts), user_error_hook=judge_by_rules)
    env.start()
    for _ in range(max(1, len(texts))):
        if env.step(Message(role="assistant", content=ASKED)).done:
            return env
    env.step(Message(role="assistant", content="Done."))
    return env


@pytest.mark.parametrize(
    ("fault", "texts", "kind"),
    [
        ("invents a fact", ("The title of the note is Plants.",), "wrong_value"),
        ("keeps a fact back", ("I do not know the title.",), "missing_fact"),
        ("changes its mind", (TOLD, "Actually, the title should be Plants."), "contradiction"),
        ("stops early", (), "early_stop"),
        ("restarts", (TOLD, BUNDLE.task("notes-3").instruction), "restart"),
        ("says nothing", ("...",), "silence"),
        ("wants more", (f"{TOLD} Please also create a notebook for the garden.",), "invented_demand"),
    ],
)
def test_fault_10_a_user_that(fault: str, texts: tuple[str, ...], kind: str) -> None:
    env = after(*texts)
    verdict = env.user_verdict
    assert env.user_error, fault
    if kind in ("early_stop", "silence", "restart", "missing_fact"):
        assert verdict.kind == kind, (fault, verdict)
    assert verdict.reason and verdict.turn > 0 and verdict.judge == "rules"


def test_fault_10_an_honest_user_is_not_blamed_for_the_agents_failure() -> None:
    env = after(TOLD)
    assert not env.user_error and not env.verdict().success


def test_fault_10_a_user_that_gives_up_is_marked_and_not_graded_as_the_agent() -> None:
    class Lost(Saying):
        def reply(self, message: str) -> UserReply:
            raise UserError("nothing fits")

    env = open_env(BUNDLE, BUNDLE.task("notes-3"), user=Lost())
    env.start()
    result = env.step(Message(role="assistant", content=ASKED))
    assert result.stop_reason is StopReason.USER_ERROR
    assert env.user_error and not result.stop_reason.is_environment_fault
