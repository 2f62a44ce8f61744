"""Look-up drills: supervised samples that ask for many records of one result.

A reference trajectory looks up one or two ids in a few hundred tokens; a policy that starts from scratch has
to find out from those what copying is. A drill keeps a reference's beginning up to a result that lists
records, lets the user ask for all of them by name, and answers with one thought per record: five to ten
times as many look-ups a token, in the words that references use (``"Old Fair": SE83``). No JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoforge_jax.rollout.render import Renderer
from autoforge_jax.types import Message, TrainingSample, Trajectory

REQUESTS = ("Please look up {names}.", "I need {names}.", "Find {names}.", "What are the ids of {names}?")
MOST_RECORDS = 6
"""Asked for in one drill at most."""

Pair = tuple[str, str]
"""(label, id) of a record."""


def labelled_records(text: str) -> list[Pair]:
    """(label, id) of the records that a tool result lists, empty when it lists fewer than two or two share a
    label. Records end with their label and their key (envgen's reading order)."""
    try:
        tree: Any = json.loads(text)
    except json.JSONDecodeError:
        return []
    if isinstance(tree, dict):
        tree = next((value for value in tree.values() if isinstance(value, list)), None)
    if not isinstance(tree, list) or len(tree) < 2 or not all(isinstance(record, dict) for record in tree):
        return []
    pairs: list[Pair] = []
    for record in tree:
        scalars = [v for v in record.values() if isinstance(v, str | int | float) and not isinstance(v, bool)]
        if len(scalars) < 2:
            return []
        pairs.append((str(scalars[-2]), str(scalars[-1])))
    return pairs if len({label for label, _ in pairs}) == len(pairs) else []


def lookup_drills(
    trajectories: Sequence[Trajectory],
    renderer: Renderer,
    count: int,
    *,
    seed: int,
    longest: Callable[[int], int],
) -> list[TrainingSample]:
    """At most `count` drills, from references in a seeded order that starts again while more are wanted; loss
    on the answering turn only. Empty when no reference shows a list. `longest`: prefix length -> tokens that
    a drill may have, prefix included.
    """
    sources = [
        (trajectory, turn, pairs)
        for trajectory in trajectories
        for turn, record in enumerate(trajectory.turns)
        for message in record.observations
        if message.role == "tool" and (pairs := labelled_records(message.content))
    ]
    rng = np.random.default_rng([seed, 4])
    drills: list[TrainingSample] = []
    for _ in range(0 if not sources else -(-count // len(sources))):
        for index in rng.permutation(len(sources)):
            trajectory, turn, pairs = sources[int(index)]
            chosen = [pairs[int(i)] for i in rng.permutation(len(pairs))[:MOST_RECORDS]]
            request = REQUESTS[int(rng.integers(len(REQUESTS)))]
            drill = _drill(trajectory, turn, chosen, request, renderer)
            if len(drill.token_ids) <= longest(drill.prefix_length):
                drills.append(drill)
            if len(drills) == count:
                return drills
    return drills


def _drill(
    trajectory: Trajectory, last: int, pairs: Sequence[Pair], request: str, renderer: Renderer
) -> TrainingSample:
    names = [f'"{label}"' for label, _ in pairs]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    user = Message(role="user", content=request.format(names=listed))
    context = [*trajectory.token_ids[: trajectory.prefix_length], *renderer.opening((user,))]
    for turn in trajectory.turns[: last + 1]:
        context += renderer.action_ids(turn.action)
        context += renderer.observations(turn.observations)
    found = "; ".join(f'"{label}": {key}' for label, key in pairs)
    answer = renderer.action_ids(Message(role="assistant", content="Done.", thinking=found))
    asked = (False,) * len(context) + (True,) * len(answer)
    return TrainingSample(
        token_ids=(*context, *answer),
        action_mask=asked,
        loss_mask=asked,
        rollout_logprobs=(math.nan,) * len(asked),
        advantage=0.0,
        prefix_length=trajectory.prefix_length,
        environment_id=trajectory.environment_id,
        task_id=f"{trajectory.task_id}/drill",
    )
