"""Trajectories and evaluation reports as JSON rows: what a person opens turn by turn. No JAX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoforge_jax.train.metrics import json_value
from autoforge_jax.types import EvalReport, TaskOutcome, Trajectory, TrajectoryGroup
from envgen.interface import Message


def message_row(message: Message) -> dict[str, Any]:
    """One message; the system prompt is the environment's and is not repeated here."""
    return {
        "role": message.role,
        "content": message.content,
        "thinking": message.thinking,
        "tool_calls": [
            {"name": call.name, "arguments": call.arguments, "parse_error": call.parse_error}
            for call in message.tool_calls
        ],
        "name": message.name,
    }


def trajectory_row(
    trajectory: Trajectory, *, stage: str, step: int = 0, set_name: str = "", mode: str = ""
) -> dict[str, Any]:
    """One trajectory with everything needed to read it, and where in the run it comes from."""
    messages = [m for m in trajectory.opening if m.role != "system"]
    for turn in trajectory.turns:
        messages += [turn.action, *turn.observations]
    return {
        "stage": stage,
        "step": step,
        "set": set_name,
        "mode": mode,
        "task_id": trajectory.task_id,
        "environment": trajectory.environment,
        "pattern": trajectory.pattern,
        "difficulty": trajectory.difficulty,
        "sample_index": trajectory.sample_index,
        "policy_version": trajectory.policy_version,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "stop_reason": trajectory.stop_reason.value,
        "user_error": trajectory.user_error,
        "user_error_reason": trajectory.user_error_reason,
        "excluded": trajectory.excluded,
        "failure": trajectory.failure,
        "tokens": len(trajectory.token_ids),
        "sampled_tokens": trajectory.sampled_tokens,
        "tool_calls": trajectory.tool_calls,
        "tool_errors": trajectory.tool_errors,
        "malformed_calls": trajectory.malformed_calls,
        "partial_credit": trajectory.partial_credit,
        "violations": list(trajectory.violations),
        "differences": [d.model_dump(mode="json") for d in trajectory.differences],
        "messages": [message_row(m) for m in messages],
    }


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append rows to a JSONL file."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def sample_groups(groups: Sequence[TrajectoryGroup], most: int) -> list[Trajectory]:
    """A few trajectories of a step: a success and a failure of the same task where a group has both, then the
    first of each other group; at most `most`, a function of the groups alone."""
    picked: list[Trajectory] = []
    for group in sorted(groups, key=lambda g: not g.mixed):
        for outcome in (True, False) if group.mixed else (None,):
            match = [t for t in group.trajectories if outcome is None or (t.valid and t.success is outcome)]
            picked += match[:1]
    return picked[:most]


def sample_evaluation(trajectories: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """At most `most` trajectories, evenly over the tasks."""
    count = min(most, len(trajectories))
    return [trajectories[index * len(trajectories) // count] for index in range(count)]


def report_tree(report: EvalReport) -> dict[str, Any]:
    """An evaluation report as JSON; NaN becomes null."""
    return json_value(asdict(report))


def report_from_tree(tree: dict[str, Any]) -> EvalReport:
    """The report that `report_tree` wrote."""
    values = dict(tree)
    values["interval"] = tuple(values["interval"])
    values["outcomes"] = tuple(TaskOutcome(**item) for item in values["outcomes"])
    for name in ("pass_at_k", "pass_hat_k"):
        values[name] = {int(k): float("nan") if v is None else v for k, v in values[name].items()}
    return EvalReport(**values)
