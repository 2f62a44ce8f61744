"""The notes environment in which only the user can delete notes: one hand-written task, how to play it."""

from __future__ import annotations

import json
from dataclasses import replace

from envgen.runtime.env import Env
from envgen.store import Bundle, environment_identity
from envgen.types import ArgumentSource, Message, ReferenceStep, StepResult, Task, ToolCall, UserAction
from tests.envgen.mock_domain import TOOLS, initial_state, mock_bundle

ASK = "Could you please delete the note N12 yourself?"
OWNED = ("delete_note",)


def dual_bundle() -> Bundle:
    """One task in which both sides change the state: the agent sets a priority, the user deletes a note that
    the agent looked up."""
    mock = mock_bundle()
    bare = replace(
        mock,
        tools=tuple(t for t in TOOLS if t.name not in OWNED),
        user_tools=tuple(t for t in TOOLS if t.name in OWNED),
    )
    identity = environment_identity(bare)
    target = initial_state()
    del target["notes"]["N12"]
    target["notes"]["N11"]["priority"] = 5
    update, delete = mock.task("notes-1"), mock.task("notes-3")
    action = UserAction(
        tool="delete_note", arguments={"note_id": "N12"}, ask_words=("delete",), mentions=("note_id",)
    )
    task = Task(
        id="dual-1",
        environment_id=identity,
        instruction="Set the priority of Milk in Home to 5 and delete Bread there.",
        facts=update.facts,
        initial_state=initial_state(),
        accepted_states=(target,),
        reference=(
            *update.reference,
            ReferenceStep(
                kind="act",
                tool="delete_note",
                arguments={"note_id": "N12"},
                text=ASK,
                node="delete_note",
                sources=(ArgumentSource(param="note_id", kind="output", detail="1:[1].id"),),
            ),
        ),
        blueprint=update.blueprint.model_copy(
            update={"nodes": (*update.blueprint.nodes, delete.blueprint.nodes[2])}
        ),
        pattern="lookup+update & lookup+delete",
        difficulty=2,
        clock=update.clock,
        seed=1,
        user_actions=(action,),
    )
    return replace(
        bare,
        environment_id=identity,
        tasks=(task,),
        splits={"train": (task.id,), "heldout": ()},
        certificates=(),
    )


def call(env: Env, tool: str, **arguments: object) -> StepResult:
    """One tool call of the agent."""
    made = ToolCall(id="c", name=tool, arguments=json.dumps(arguments))
    return env.step(Message(role="assistant", tool_calls=(made,)))


def say(env: Env, text: str) -> StepResult:
    """One message of the agent."""
    return env.step(Message(role="assistant", content=text))
