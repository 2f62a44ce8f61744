"""The known-good sequence of a task as an episode like any other: what the warm start learns, what a
tokenizer is trained on, and the oracle row of a report. Episodes themselves: rollout.pool, rollout.live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autoforge_jax.config import RenderConfig
from autoforge_jax.errors import PolicyError, TrainingError
from autoforge_jax.rollout.formats.calls import compact_json
from autoforge_jax.rollout.formats.choose import chat_format
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.pool import run_episodes
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.scripted import ScriptedPolicy
from autoforge_jax.types import SampleRequest, SamplingParams, Trajectory
from envgen.interface import Bundle, Message, ReferenceStep, Task, ToolCall, open_env

# ------------------------------------------------------------------------------------------------ references
_REFERENCE_LIMITS = EpisodeLimits(
    max_turns=64, max_tool_calls=64, max_tool_errors=8, max_turn_tokens=4096, max_trajectory_tokens=1 << 16
)


def reference_message(step: ReferenceStep, turn: int) -> Message:
    """One step of the known-good sequence as the assistant turn that a policy would write: thought, then
    call or question.
    """
    if step.kind != "call":
        return Message(role="assistant", thinking=step.thought, content=step.text)
    call = ToolCall(id=f"t{turn}c0", name=step.tool, arguments=compact_json(step.arguments))
    return Message(role="assistant", thinking=step.thought, tool_calls=(call,))


def reference_actions(task: Task) -> list[Message]:
    """The assistant turns of the reference: its steps, then the closing message."""
    actions = [reference_message(step, turn) for turn, step in enumerate(task.reference)]
    return [*actions, Message(role="assistant", content=task.closing)]


def reference_policy(items: Iterable[TaskItem], renderer: Renderer) -> ScriptedPolicy:
    """The oracle: plays every task's reference, each token with log-prob 0 (it is certain). For SFT data and
    the oracle row of a report.
    """
    actions = {
        f"{bundle.environment_id}/{task.id}": [
            renderer.action_ids(action) for action in reference_actions(task)
        ]
        for bundle, task in items
    }

    def script(request: SampleRequest, turn: int) -> tuple[int, ...]:
        known = actions.get(request.session_id.split("/", 2)[2].rpartition("/")[0], [])
        if turn >= len(known):
            raise PolicyError(
                f"session {request.session_id!r}: the reference has {len(known)} turns, not over after them"
            )
        return known[turn]

    return ScriptedPolicy(script, logprob=lambda _index, _token: 0.0)


def reference_trajectories(
    items: Sequence[TaskItem], renderer: Renderer, limits: EpisodeLimits = _REFERENCE_LIMITS
) -> list[Trajectory]:
    """Play the references through the same Env and ledger as any rollout.

    Raises TrainingError when one does not end in success: what it would teach is wrong, or ``limits`` are
    too tight for it.
    """
    jobs = [EpisodeJob(bundle, task, purpose="reference") for bundle, task in items]
    policy = reference_policy(items, renderer)
    trajectories = run_episodes(policy, jobs, renderer, sampling=SamplingParams(), limits=limits, slots=64)
    for trajectory in trajectories:
        if trajectory.reward != 1.0 or trajectory.excluded:
            raise TrainingError(
                f"the reference of task {trajectory.task_id} ended with {trajectory.stop_reason.value}, "
                f"reward {trajectory.reward:g}, {len(trajectory.token_ids)} tokens, {len(trajectory.turns)} "
                f"turns; {trajectory.failure} {list(trajectory.differences[:3])}. Expected success: validate "
                f"the bundle, or widen the limits {limits}"
            )
    return trajectories


def reference_trajectory(
    bundle: Bundle, task: Task, renderer: Renderer, limits: EpisodeLimits = _REFERENCE_LIMITS
) -> Trajectory:
    """`reference_trajectories` for one task."""
    return reference_trajectories([(bundle, task)], renderer, limits)[0]


_PREFIX_EVERY = 8
"""Transcripts per system message in tokenizer training: about as many rollouts share one copy of it."""


def reference_texts(items: Iterable[TaskItem], config: RenderConfig) -> Iterator[str]:
    """Rendered references as text, special tokens spelled out: what a tokenizer is trained on.

    The system message stands before the first of every 8 transcripts of an environment: its words (tool and
    parameter names) weigh what they cost.
    """
    form = chat_format(config)
    counts: dict[str, int] = {}
    for bundle, task in items:
        count = counts.get(bundle.environment_id, 0)
        counts[bundle.environment_id] = count + 1
        pieces = [] if count % _PREFIX_EVERY else form.prefix(bundle.policy, bundle.tools)
        env = open_env(bundle, task, seed=0, limits=_REFERENCE_LIMITS.env)
        pieces += form.messages(env.start())
        for action in reference_actions(task):
            result = env.step(action)
            pieces += (*form.generation, *form.action(action), *form.after_action)
            pieces += form.messages(result.observations)
            if result.done:
                break
        yield "".join(pieces)
