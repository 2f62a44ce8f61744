"""Finished and unfinished rollouts as JSON values, exact, for checkpoints of runs whose rollouts overlap with
learning. No JAX.

Ids and log-probs are packed (little-endian, zlib, base64): a checkpoint of 1,000 long trajectories stays a
matter of megabytes.
"""

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from autoforge_jax.errors import CheckpointError
from autoforge_jax.rollout.jobs import EpisodeJob, TaskItem
from autoforge_jax.rollout.live import PartialEpisode
from autoforge_jax.types import PolicyContext, SampleOutput, Trajectory, Turn
from envgen.interface import FieldDifference, Message, StopReason

Items = Mapping[tuple[str, str], TaskItem]
"""(environment_id, task id) -> item."""


def items_by_key(items: Sequence[TaskItem]) -> Items:
    """For `partial_from_json` and `job_of`."""
    return {(bundle.environment_id, task.id): (bundle, task) for bundle, task in items}


def job_of(items: Items, environment_id: str, task_id: str, **rest: Any) -> EpisodeJob:
    """A job of a task that the run still has. CheckpointError otherwise."""
    item = items.get((environment_id, task_id))
    if item is None:
        raise CheckpointError(
            f"the checkpoint has rollouts of task {task_id} in environment {environment_id}, which is no "
            "training task of this run; restore those bundles or start the phase over with --fresh"
        )
    return EpisodeJob(*item, **rest)


# ------------------------------------------------------------------------------------------ numbers
def _pack(code: str, values: Sequence[float]) -> str:
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(zlib.compress(numbers.tobytes(), 1)).decode("ascii")


def _unpack(code: str, text: str) -> tuple[Any, ...]:
    numbers = array(code)
    numbers.frombytes(zlib.decompress(base64.b64decode(text)))
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)


def _context(value: PolicyContext) -> list[str]:
    return [
        _pack("q", value.token_ids),
        _pack("b", [int(own) for own in value.action_mask]),
        _pack("d", value.rollout_logprobs),
    ]


def _context_from(value: Sequence[str]) -> PolicyContext:
    ids, mask, logprobs = value
    return PolicyContext(_unpack("q", ids), tuple(map(bool, _unpack("b", mask))), _unpack("d", logprobs))


# ------------------------------------------------------------------------------------------ trajectories
_OWN_FORM = ("opening", "turns", "token_ids", "action_mask", "rollout_logprobs", "stop_reason", "differences",
             "violations", "earlier_contexts")  # fmt: skip


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Everything of it; `trajectory_from_json` gives it back, NaNs included."""
    plain = {f.name: getattr(trajectory, f.name) for f in fields(Trajectory) if f.name not in _OWN_FORM}
    return plain | {
        "opening": [m.model_dump(mode="json") for m in trajectory.opening],
        "turns": [_turn(turn) for turn in trajectory.turns],
        "contexts": [_context(context) for context in trajectory.contexts],
        "stop_reason": trajectory.stop_reason.value,
        "differences": [d.model_dump(mode="json") for d in trajectory.differences],
        "violations": list(trajectory.violations),
    }


def trajectory_from_json(value: Mapping[str, Any]) -> Trajectory:
    """What `trajectory_to_json` wrote."""
    rest = dict(value)
    *earlier, last = (_context_from(context) for context in rest.pop("contexts"))
    rest |= {
        "opening": tuple(Message.model_validate(m) for m in rest["opening"]),
        "turns": tuple(_turn_from(turn) for turn in rest["turns"]),
        "token_ids": last.token_ids,
        "action_mask": last.action_mask,
        "rollout_logprobs": last.rollout_logprobs,
        "earlier_contexts": tuple(earlier),
        "stop_reason": StopReason(rest["stop_reason"]),
        "differences": tuple(FieldDifference.model_validate(d) for d in rest["differences"]),
        "violations": tuple(rest["violations"]),
    }
    return Trajectory(**rest)


def _turn(turn: Turn) -> dict[str, Any]:
    plain = {f.name: getattr(turn, f.name) for f in fields(Turn) if f.name not in ("action", "observations")}
    return plain | {
        "action": turn.action.model_dump(mode="json"),
        "observations": [m.model_dump(mode="json") for m in turn.observations],
    }


def _turn_from(value: Mapping[str, Any]) -> Turn:
    action = Message.model_validate(value["action"])
    observations = tuple(Message.model_validate(m) for m in value["observations"])
    return Turn(**{**value, "action": action, "observations": observations})


# ------------------------------------------------------------------------------------------ unfinished
def partial_to_json(partial: PartialEpisode) -> dict[str, Any]:
    """What its engine said so far, with each turn's version and log-probs. Its job is named by the caller."""
    return {
        "sample": partial.job.sample_index,
        "outputs": [
            [_pack("q", o.token_ids), _pack("d", o.logprobs), o.stop, o.policy_version]
            for o in partial.outputs
        ],
        "token_ids": _pack("q", partial.token_ids),
    }


def partial_from_json(value: Mapping[str, Any], job: EpisodeJob) -> PartialEpisode:
    """What `partial_to_json` wrote, for the job that it is part of."""
    outputs = tuple(
        SampleOutput(_unpack("q", ids), _unpack("d", logprobs), stop, version)
        for ids, logprobs, stop, version in value["outputs"]
    )
    return PartialEpisode(job, outputs, _unpack("q", value["token_ids"]))
