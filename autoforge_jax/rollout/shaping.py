"""From a graded trajectory to what training makes of it: the reward that the config names, what running out
of tokens costs, and whether a user error keeps it out. No JAX.

Records and metrics keep success, partial credit, stop reason and user error as they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from autoforge_jax.config import ERPOConfig
from autoforge_jax.rollout.jobs import EpisodeLimits
from autoforge_jax.types import Trajectory
from envgen.interface import StopReason

OVERLONG = "overlong"
"""`Trajectory.excluded` of what `erpo.overlong = "mask"` leaves out."""


def rewarded(trajectory: Trajectory, reward: Literal["success", "partial_credit"]) -> Trajectory:
    """The trajectory with the reward that a config names (``erpo.reward``)."""
    if reward == "success":
        return trajectory
    return replace(trajectory, reward=trajectory.partial_credit)


def shaped(trajectory: Trajectory, erpo: ERPOConfig, limits: EpisodeLimits) -> Trajectory:
    """The trajectory as ERPO is to learn from it (`erpo.reward`, `mask_user_errors`, `overlong`).

    With `overlong = "penalty"` the reward loses ``overlong_penalty × clip((n - (limit - buffer)) / buffer, 0,
    1)``, n the tokens of the whole context and limit the most that it could have (DAPO's soft overlong
    punishment, Yu et al. 2025, in tokens of the trajectory); a truncated turn costs all of it. Rewards of one
    group then differ by length too, and dynamic sampling keeps such groups.
    """
    trajectory = rewarded(trajectory, erpo.reward)
    if trajectory.user_error and not erpo.mask_user_errors:
        trajectory = replace(trajectory, keep_user_error=True)
    if trajectory.excluded or erpo.overlong == "keep":
        return trajectory
    if erpo.overlong == "mask":
        if not trajectory.overlong:
            return trajectory
        words = f"ended with {trajectory.stop_reason.value} (erpo.overlong)"
        return replace(trajectory, excluded=OVERLONG, failure=words)
    return replace(trajectory, reward=trajectory.reward - overlong_penalty(trajectory, erpo, limits))


def overlong_penalty(trajectory: Trajectory, erpo: ERPOConfig, limits: EpisodeLimits) -> float:
    """What `overlong = "penalty"` takes from the reward."""
    if trajectory.stop_reason is StopReason.TURN_TRUNCATED:
        return erpo.overlong_penalty
    over = len(trajectory.token_ids) - (
        limits.context(trajectory.prefix_length) - erpo.overlong_buffer_tokens
    )
    if trajectory.stop_reason is StopReason.TOKEN_BUDGET:
        over = erpo.overlong_buffer_tokens  # what would have come next did not fit
    return erpo.overlong_penalty * min(1.0, max(0.0, over / erpo.overlong_buffer_tokens))
