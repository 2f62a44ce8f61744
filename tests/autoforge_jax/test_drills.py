"""Look-up drills: what they are made from, and that only the answer is learned."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from autoforge_jax.config import RenderConfig
from autoforge_jax.data.drills import labelled_records, lookup_drills
from autoforge_jax.rollout.episode import reference_texts, reference_trajectories
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import train_tokenizer
from autoforge_jax.types import Trajectory
from envgen.interface import synthesize

ROOT = Path(__file__).parents[2]


@cache
def references() -> tuple[Renderer, list[Trajectory]]:
    bundle = synthesize(ROOT / "configs" / "debug" / "shelf_tools.json", tasks=12, heldout=2, seed=0)
    items = [(bundle, task) for task in bundle.tasks]
    renderer = Renderer(train_tokenizer(reference_texts(items, RenderConfig()), 600), RenderConfig())
    return renderer, reference_trajectories(items, renderer)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([{"n": 1, "name": "A", "id": "X1"}, {"n": 2, "name": "B", "id": "X2"}], [("A", "X1"), ("B", "X2")]),
        ({"items": [{"name": "A", "id": 1}, {"name": "B", "id": 2}]}, [("A", "1"), ("B", "2")]),
        ([{"name": "A", "id": "X1"}], []),
        ([{"name": "A", "id": "X1"}, {"name": "A", "id": "X2"}], []),
        ([{"id": "X1"}, {"id": "X2"}], []),
        (["a", "b"], []),
        ({"error": "No such shelf."}, []),
    ],
)
def test_records_end_with_label_and_key(result: object, expected: list[tuple[str, str]]) -> None:
    assert labelled_records(json.dumps(result)) == expected


def test_text_that_is_no_json_lists_nothing() -> None:
    assert labelled_records("What should the name be?") == []


def test_a_drill_asks_for_records_of_a_result_and_learns_the_answer_only() -> None:
    renderer, trajectories = references()
    drills = lookup_drills(trajectories, renderer, 20, seed=0, longest=lambda _: 10_000)
    assert len(drills) == 20
    for drill in drills:
        start = drill.loss_mask.index(True)
        assert drill.loss_mask == drill.action_mask
        assert all(drill.loss_mask[start:]) and not any(drill.loss_mask[:start])
        context = renderer.tokenizer.decode(drill.token_ids[:start])
        answer = renderer.parse_action(drill.token_ids[start:])
        assert answer.content == "Done." and not answer.tool_calls
        for found in answer.thinking.split("; "):
            label, key = found.rsplit(": ", 1)
            assert label in context and key in context
        assert drill.token_ids[: drill.prefix_length] in {
            t.token_ids[: t.prefix_length] for t in trajectories
        }


def test_drills_are_a_function_of_the_seed_and_keep_to_the_token_limit() -> None:
    renderer, trajectories = references()
    one = lookup_drills(trajectories, renderer, 12, seed=5, longest=lambda _: 10_000)
    assert [d.token_ids for d in one] == [
        d.token_ids for d in lookup_drills(trajectories, renderer, 12, seed=5, longest=lambda _: 10_000)
    ]
    assert [d.token_ids for d in one] != [
        d.token_ids for d in lookup_drills(trajectories, renderer, 12, seed=6, longest=lambda _: 10_000)
    ]
    longest = max(len(d.token_ids) for d in one)
    limited = lookup_drills(trajectories, renderer, 12, seed=5, longest=lambda _: longest - 1)
    assert limited and max(len(d.token_ids) for d in limited) < longest
    assert lookup_drills(trajectories, renderer, 0, seed=5, longest=lambda _: longest) == []
    assert lookup_drills([], renderer, 5, seed=5, longest=lambda _: longest) == []
