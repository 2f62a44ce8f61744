"""FAULTS.md 13, 14 and 17, the clauses on rendering, in every chat format."""

from __future__ import annotations

import math

import pytest

from autoforge_jax.rollout.episode import EpisodeJob, EpisodeLimits, reference_trajectories, run_episodes
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.scripted import ScriptedPolicy
from autoforge_jax.types import SampleRequest, SamplingParams, Trajectory
from envgen.interface import StopReason
from tests.autoforge_jax.chat_cases import CASES, Case, said, user
from tests.autoforge_jax.chat_tokenizers import (
    conversation_ids,
    family_renderer,
    family_tokenizer,
    golden_templates,
)
from tests.autoforge_jax.mock_rollout import bundle, items

FORMAT_NAMES = tuple(FORMATS)
LIMITS = EpisodeLimits(max_turns=8, max_turn_tokens=4096, max_trajectory_tokens=1 << 15)
BAD = {
    "compact": "<tool_call>\n{oops}\n</tool_call><|im_end|>",
    "qwen3": '<tool_call>\n{"name": "list_notes", "arguments": \n</tool_call><|im_end|>',
    "qwen3_thinking": "I think and think<|im_end|>",
    "smollm2": "<tool_call>[{oops}]</tool_call><|im_end|>",
    "llama3": '{"name": "list_notes", "parameters": <|eot_id|>',
}


def play(name: str, texts: list[str]) -> Trajectory:
    """An episode in which the policy says `texts`."""
    renderer, tokenizer = family_renderer(name), family_tokenizer(name)
    ids = [tokenizer.encode_marked(text) for text in texts]
    policy = ScriptedPolicy(lambda request, turn: ids[turn], logprob=lambda index, token: -0.5)
    job = EpisodeJob(*items()[0])
    (trajectory,) = run_episodes(policy, [job], renderer, sampling=SamplingParams(), limits=LIMITS, slots=1)
    return trajectory


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_fault_13_history_is_never_tokenised_again(name: str) -> None:
    """Odd ids of the policy stand in the next context as they were sampled, though their text would be
    encoded otherwise."""
    renderer, tokenizer = family_renderer(name), family_tokenizer(name)
    spelled = [i for letter in "Hello" for i in tokenizer.encode_text(letter)]
    assert tuple(spelled) != tokenizer.encode_text("Hello")
    opened = () if name != "qwen3_thinking" else tokenizer.encode_marked("</think>")
    odd = (*opened, *spelled, *tokenizer.encode_marked("?"), tokenizer.stop_ids[0])
    seen: list[SampleRequest] = []

    def script(request: SampleRequest, turn: int) -> tuple[int, ...]:
        seen.append(request)
        return odd

    job = EpisodeJob(*items()[0])
    limits = EpisodeLimits(max_turns=2, max_turn_tokens=64, max_trajectory_tokens=1 << 15)
    (trajectory,) = run_episodes(
        ScriptedPolicy(script, logprob=lambda index, token: -0.5),
        [job], renderer, sampling=SamplingParams(), limits=limits, slots=1,
    )  # fmt: skip
    first, second = seen
    at = len(first.token_ids)
    assert second.token_ids[:at] == first.token_ids
    assert second.token_ids[at : at + len(odd)] == odd
    assert trajectory.token_ids[: len(second.token_ids)] == second.token_ids


def test_fault_14_the_families_template_drops_earlier_thinking_and_ours_keeps_it() -> None:
    thinking, users = CASES["thinking"], CASES["several_users"].messages[-2:]
    short, longer = (golden_templates()["qwen3"][key] for key in ("thinking", "dropped_thinking"))
    context = short.removesuffix("<|im_start|>assistant\n")
    assert "First I look it up." in short and "First I look it up." not in longer
    assert not longer.startswith(context), "the template is not append-only here"
    for name in FORMAT_NAMES:
        if name == "llama3":  # its template cannot write thoughts at all; ours does, as text
            continue
        renderer = family_renderer(name)
        before = [i for part in conversation_ids(renderer, thinking) for i in part]
        after = [
            i for part in conversation_ids(renderer, Case((*thinking.messages, *users), ())) for i in part
        ]
        assert after[: len(before)] == before
        assert family_tokenizer(name).decode(after).count("First I look it up.") == 1


def test_fault_14_thinking_opened_by_the_prompt() -> None:
    """The completion holds the closing tag only; it is read as thinking, not as content."""
    renderer, tokenizer = family_renderer("qwen3_thinking"), family_tokenizer("qwen3_thinking")
    assert tokenizer.decode(renderer.opening((user("Hi"),))).endswith("<|im_start|>assistant\n<think>\n")
    action = renderer.action_ids(said("Hello.", "A greeting."))
    assert tokenizer.decode(action) == "A greeting.\n</think>\n\nHello.<|im_end|>"
    message = renderer.parse_action(action)
    assert (message.thinking, message.content) == ("A greeting.", "Hello.")


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_fault_14_exactly_the_sampled_tokens_are_trained(name: str) -> None:
    """First token and end token of every turn: yes. Generation prompt, the newline after the end token, what
    users and tools say, assistant words in the prompt: no."""
    renderer, tokenizer = family_renderer(name), family_tokenizer(name)
    for trajectory in reference_trajectories(items()[:3], renderer):
        trained = [i for i, sampled in enumerate(trajectory.action_mask) if sampled]
        spans = [range(turn.action_start, turn.action_end) for turn in trajectory.turns]
        assert trained == [i for span in spans for i in span]
        generation = renderer.ids(renderer.format.generation)
        for turn, span in zip(trajectory.turns, spans, strict=True):
            ids = trajectory.token_ids[span.start : span.stop]
            assert ids == renderer.action_ids(turn.action)
            assert ids[-1] == tokenizer.stop_ids[0], "the end token was sampled and is trained"
            assert trajectory.token_ids[: span.start][-len(generation) :] == generation
            if span.stop < len(trajectory.token_ids):
                after = renderer.ids(renderer.format.after_action)
                follows = trajectory.token_ids[span.stop :][: len(after)]
                assert follows == after and not any(trajectory.action_mask[span.stop :][: len(after)])
        for sampled, logprob in zip(trajectory.action_mask, trajectory.rollout_logprobs, strict=True):
            assert math.isnan(logprob) != sampled, "never a zero for a token that was not sampled"


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_fault_17_a_malformed_call_is_an_observation_and_is_counted(name: str) -> None:
    renderer = family_renderer(name)
    done = family_tokenizer(name).decode(renderer.action_ids(said("Goodbye.", "Enough.")))
    trajectory = play(name, [BAD[name], BAD[name], *[done] * 6])
    assert trajectory.malformed_calls == 2 and trajectory.tool_errors >= 2
    assert not trajectory.excluded and trajectory.stop_reason is not StopReason.MAX_TOOL_ERRORS
    for turn in trajectory.turns[:2]:
        (answer,) = turn.observations
        assert answer.role == "tool"
        assert "closed" in answer.content or "malformed" in answer.content
        assert turn.tool_errors == 1
    assert len(trajectory.turns) > 2, "the episode went on"
    assert bundle().name == trajectory.environment
