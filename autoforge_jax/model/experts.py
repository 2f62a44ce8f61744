"""Shape of the mixture of experts in a Qwen3-MoE, from our config or a Hugging Face `config.json`. No JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoforge_jax.errors import WeightsError


@dataclass(frozen=True)
class Experts:
    """Every layer's MLP is a set of experts, of which each token takes a few (model.moe)."""

    count: int
    per_token: int
    width: int
    """Hidden width of one expert."""
    normalise: bool = True
    """The weights of a token's experts add up to one."""
    balance: float = 0.0
    """Coefficient of the load-balancing loss in training; no part of a checkpoint."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise WeightsError(
                f"{self.per_token} experts per token of {self.count}; expected 1 to the number of experts"
            )

    def layer_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Name -> shape in one layer, in the order they are initialised."""
        return {
            "router": (hidden, self.count),
            "expert_gate": (self.count, hidden, self.width),
            "expert_up": (self.count, hidden, self.width),
            "expert_down": (self.count, self.width, hidden),
        }

    def layer_parameters(self, hidden: int) -> int:
        """Trained numbers of one layer's experts and router."""
        return self.count * (hidden + 3 * hidden * self.width)

    def active_parameters(self, hidden: int) -> int:
        """Of those, what one token is multiplied with."""
        return self.count * hidden + self.per_token * 3 * hidden * self.width

    def to_hf(self) -> dict[str, Any]:
        """The entries of `config.json`."""
        return {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.width,
            "norm_topk_prob": self.normalise,
            "num_experts": self.count,
            "num_experts_per_tok": self.per_token,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
        }

    @staticmethod
    def from_hf(tree: Mapping[str, Any]) -> Experts:
        """Read a parsed `config.json` of a `qwen3_moe`. WeightsError when some layers have no experts: such
        models are not built; KeyError for a missing key. `norm_topk_prob` is False where the file says
        nothing, as in transformers."""
        step, dense = tree.get("decoder_sparse_step", 1), list(tree.get("mlp_only_layers") or ())
        if step != 1 or dense:
            raise WeightsError(
                f"config.json: decoder_sparse_step is {step} and mlp_only_layers {dense}; only models with "
                "experts in every layer are implemented (1 and [])"
            )
        return Experts(
            # transformers 5 writes the second name
            count=int(tree["num_experts"] if "num_experts" in tree else tree["num_local_experts"]),
            per_token=int(tree["num_experts_per_tok"]),
            width=int(tree["moe_intermediate_size"]),
            normalise=bool(tree.get("norm_topk_prob", False)),
        )
