"""What an update makes smaller: the supervised loss and ERPO's, over a batch's log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from autoforge_jax.config import ERPOConfig
from autoforge_jax.data.batch import Batch
from autoforge_jax.numerics.logprobs import TokenLogprobs
from autoforge_jax.numerics.losses import (
    LossOutput,
    PolicyLossConfig,
    PolicyLossInputs,
    SupervisedLossInputs,
    policy_loss,
    supervised_loss,
    token_shares,
)


class Objective(Protocol):
    """A loss over a batch; a frozen dataclass, so that it is a static part of the compiled step."""

    @property
    def temperature(self) -> float:
        """Of the distribution whose log-probs the loss reads."""
        ...

    def denominator(self, batches: Sequence[Batch]) -> float:
        """The loss's denominator over the whole step, in numpy."""
        ...

    def row_shares(self, batch: Batch) -> jax.Array:
        """What each row [rows] contributes to the denominator."""
        ...

    def __call__(self, tokens: TokenLogprobs, batch: Batch, denominator: jax.Array) -> LossOutput:
        """The micro-batch's share of the step's loss."""
        ...


@dataclass(frozen=True)
class SupervisedObjective:
    """Weighted negative log-likelihood at temperature 1 (the SFT variant of METHOD.md §5)."""

    temperature: float = 1.0

    def denominator(self, batches: Sequence[Batch]) -> float:
        """Σ loss weights."""
        return float(sum(np.sum(np.asarray(b.loss_weight), dtype=np.float64) for b in batches))

    def row_shares(self, batch: Batch) -> jax.Array:
        """Σ loss weights of each row."""
        return jnp.sum(batch.loss_weight, axis=1)

    def __call__(self, tokens: TokenLogprobs, batch: Batch, denominator: jax.Array) -> LossOutput:
        """See `losses.supervised_loss`."""
        inputs = SupervisedLossInputs(
            policy_logprobs=tokens.logprobs,
            loss_mask=batch.loss_mask,
            loss_weight=batch.loss_weight,
            action_mask=batch.action_mask,
            entropy=tokens.entropy,
            is_argmax=tokens.is_argmax,
        )
        return supervised_loss(inputs, denominator)


@dataclass(frozen=True)
class PolicyObjective:
    """The ERPO objective (METHOD.md §4 eq. 2) under the rollouts' temperature."""

    loss: PolicyLossConfig
    temperature: float

    @classmethod
    def from_config(cls, config: ERPOConfig, temperature: float) -> PolicyObjective:
        """`temperature` is the rollouts' (`rollout.temperature`)."""
        names = PolicyLossConfig.__dataclass_fields__
        return cls(PolicyLossConfig(**{name: getattr(config, name) for name in names}), temperature)

    @property
    def needs_reference(self) -> bool:
        """True when batches must carry `ref_logprobs`."""
        return self.loss.kl_coefficient > 0 and self.loss.kl_target == "reference"

    def denominator(self, batches: Sequence[Batch]) -> float:
        """Σ token shares: weighted loss tokens, or weighted trajectories that have any."""
        shares = [token_shares(b.loss_weight, b.sample_loss_tokens, self.loss.aggregation) for b in batches]
        return float(sum(np.sum(np.asarray(share), dtype=np.float64) for share in shares))

    def row_shares(self, batch: Batch) -> jax.Array:
        """Σ token shares of each row."""
        return jnp.sum(
            token_shares(batch.loss_weight, batch.sample_loss_tokens, self.loss.aggregation), axis=1
        )

    def __call__(self, tokens: TokenLogprobs, batch: Batch, denominator: jax.Array) -> LossOutput:
        """See `losses.policy_loss`."""
        inputs = PolicyLossInputs(
            policy_logprobs=tokens.logprobs,
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            loss_mask=batch.loss_mask,
            loss_weight=batch.loss_weight,
            segment_ids=batch.segment_ids,
            sample_loss_tokens=batch.sample_loss_tokens,
            entropy=tokens.entropy,
            ref_logprobs=batch.ref_logprobs,
            old_logprobs=batch.old_logprobs,
            staleness=batch.staleness,
        )
        return policy_loss(inputs, self.loss, denominator)
