"""Without interleaved thinking: earlier thinking is gone when the user speaks again, and the learner still
trains on exactly what the engine saw."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoforge_jax.config import BatchConfig, ERPOConfig, RenderConfig
from autoforge_jax.data.advantages import compute_advantages
from autoforge_jax.data.batch import pack
from autoforge_jax.data.samples import check_ledger, samples_from_groups
from autoforge_jax.errors import LedgerError
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits
from autoforge_jax.rollout.pool import run_episodes
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.turn_contexts import rewritten_context, without_thinking
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.types import SamplingParams, Trajectory, TrajectoryGroup
from tests.autoforge_jax.mock_rollout import Recorder, items, tokenizer

PLAIN = Renderer(tokenizer(), RenderConfig(interleaved_thinking=False))
KEPT = Renderer(tokenizer(), RenderConfig())
LIMITS = EpisodeLimits(max_turns=5, max_turn_tokens=80, max_trajectory_tokens=900)
CALL = '<tool_call>\n{"name":"list_notebooks","arguments":{}}\n</tool_call><|im_end|>'
SCRIPT = [
    f"<think>\nfirst look\n</think>\n\n{CALL}",
    f"<think>\nand again\n</think>\n\n{CALL}",
    "<think>\nask them\n</think>\n\nWhich title do you want?<|im_end|>",
    f"<think>\nnow do it\n</think>\n\n{CALL}",
    "Done.<|im_end|>",
]


def play(renderer: Renderer, script: list[str] = SCRIPT) -> tuple[Trajectory, Recorder]:
    policy = Recorder(lambda request, turn: script[turn])
    job = EpisodeJob(*items()[0])
    (trajectory,) = run_episodes(policy, [job], renderer, sampling=SamplingParams(), limits=LIMITS, slots=1)
    return trajectory, policy


def text(ids: Any) -> str:
    return tokenizer().decode(list(ids))


def test_thinking_goes_when_the_user_speaks_and_not_before() -> None:
    trajectory, policy = play(PLAIN)
    asked = [text(request.token_ids) for request, _ in next(iter(policy.log.values()))]
    assert "first look" in asked[1] and "and again" in asked[2]  # only tools answered
    assert not any(word in asked[3] for word in ("first look", "and again", "ask them"))
    assert "Which title do you want?" in asked[3] and asked[3].count('"list_notebooks"') == 2
    assert "now do it" in asked[4]
    assert [turn.context for turn in trajectory.turns] == [0, 0, 0, 1, 1]
    kept, _ = play(KEPT)
    assert kept.earlier_contexts == () and "first look" in text(kept.token_ids)


def test_every_context_is_what_the_engine_saw_and_said() -> None:
    trajectory, policy = play(PLAIN)
    check_ledger(trajectory)
    turns = next(iter(policy.log.values()))
    for turn, (request, output) in zip(trajectory.turns, turns, strict=True):
        context = trajectory.contexts[turn.context]
        assert context.token_ids[: turn.action_start] == request.token_ids
        assert context.token_ids[turn.action_start : turn.action_end] == output.token_ids
        assert context.rollout_logprobs[turn.action_start : turn.action_end] == output.logprobs
    # tokens of the first context stand in the second untrained
    second = trajectory.contexts[1]
    at = trajectory.turns[3].action_start
    assert not any(second.action_mask[:at])
    assert policy.released.count(next(iter(policy.log))) == 2  # when the context changed, and at the end


def test_each_context_is_a_sample_and_a_trajectory_weighs_the_same() -> None:
    good, _ = play(PLAIN)
    bad = replace(good, reward=0.0, success=False, sample_index=1)
    group = TrajectoryGroup(good.task_id, good.environment_id, (replace(good, reward=1.0), bad))
    samples = samples_from_groups([group], compute_advantages([group]), weight_by_group=True)
    assert [s.advantage for s in samples] == [1.0, 1.0, -1.0, -1.0]
    assert sum(s.weight for s in samples[:2]) == pytest.approx(0.5)
    counts = [sum(s.loss_mask) for s in samples[:2]]
    assert samples[0].weight / samples[1].weight == pytest.approx(counts[0] / counts[1])
    # per token: each loss token of a trajectory has the same share of the step
    config = ERPOConfig(aggregation="sequence_mean")
    objective = PolicyObjective.from_config(config, 1.0)
    batches = pack(samples, BatchConfig(row_tokens=900, rows_per_microbatch=2), 0)
    assert objective.denominator(batches) == pytest.approx(1.0)
    shares = np.concatenate([b.loss_weight[b.loss_mask] / b.sample_loss_tokens[b.loss_mask] for b in batches])
    np.testing.assert_allclose(shares, shares[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("<think>\nhm\n</think>\n\nHello<|im_end|>", "Hello<|im_end|>"),
        ("Hello<|im_end|>", "Hello<|im_end|>"),
        ("<think>\nnever closed<|im_end|>", "<|im_end|>"),
        ("opened by the prompt\n</think>\n\nHello<|im_end|>", "Hello<|im_end|>"),
        ("a<think>b</think>c<|im_end|>", "ac<|im_end|>"),
    ],
)
def test_what_is_cut_out_of_a_turn(said: str, left: str) -> None:
    ids = tokenizer().encode_marked(said)
    assert text(without_thinking(ids, PLAIN)) == left
    # what stays are the sampled ids themselves
    rest = list(without_thinking(ids, PLAIN))
    assert rest == [i for i in ids if i in rest][-len(rest) :]


def test_an_opening_in_the_generation_prompt_goes_too() -> None:
    encode = tokenizer().encode_marked
    pieces = [
        (False, encode("<|im_start|>assistant\n<think>\n")),
        (True, encode("hm\n</think>\n\nHello<|im_end|>")),
        (False, encode("\n<|im_start|>user\nyes<|im_end|>\n<|im_start|>assistant\n<think>\n")),
    ]
    assert text(rewritten_context([(s, tuple(i)) for s, i in pieces], PLAIN)) == (
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nyes<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_a_broken_earlier_context_is_found() -> None:
    trajectory, _ = play(PLAIN)
    first = trajectory.earlier_contexts[0]
    short = replace(first, rollout_logprobs=first.rollout_logprobs[:-1])
    with pytest.raises(LedgerError, match=r"context 0: .* must be equal"):
        check_ledger(replace(trajectory, earlier_contexts=(short,)))
    with pytest.raises(LedgerError, match="one after another"):
        check_ledger(replace(trajectory, earlier_contexts=()))
    other = replace(first, token_ids=(first.token_ids[0] + 1, *first.token_ids[1:]))
    with pytest.raises(LedgerError, match="another prefix"):
        check_ledger(replace(trajectory, earlier_contexts=(other,)))
