"""Shape of a dense Qwen3 or Llama model, from our config or from a Hugging Face `config.json`. No JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoforge_jax.config import ModelConfig
from autoforge_jax.errors import WeightsError
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.rope import RopeScaling, read_rope

FULL = "full_attention"
"""The only one of transformers' `layer_types` that is built."""
_SIZES = (
    "vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "num_experts", "num_local_experts",
    "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step",
)  # fmt: skip

_NUMBERS = (
    "rms_norm_eps", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "partial_rotary_factor",
)  # fmt: skip
_SWITCHES = ("tie_word_embeddings", "norm_topk_prob")


@dataclass(frozen=True)
class Qwen3Config:
    """Everything that decides the shapes and the arithmetic of a dense Qwen3, or of a Llama: the same decoder
    without query and key norms (SmolLM2 is one)."""

    vocab_size: int
    num_layers: int = 4
    hidden_size: int = 128
    intermediate_size: int = 384
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    residual_init: float = 1.0
    """Scale of the projections that write to the residual stream when trained from scratch."""
    qk_norm_init: float = 1.0
    """First value of the query and key norms' scales when trained from scratch."""
    max_position: int = 2048
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type. Parameters are float32 whatever this says."""
    remat: bool = False
    """Recompute each layer in the backward pass: one layer's activations in memory at a time, about a third
    more work."""
    remat_saves: Literal["nothing", "products", "everything"] = "nothing"
    """See `config.ModelConfig`. `everything` is for `plan`: what one layer holds while it is recomputed."""
    attention_chunk: int = 128
    """Queries per attention block at least (at most four times as many); keys after a block's last query are
    never read."""
    architecture: Literal["qwen3", "llama"] = "qwen3"
    rope_scaling: RopeScaling | None = None
    attention: Literal["xla", "cudnn", "splash"] = "xla"
    """The learner's kernel (numerics.kernels)."""
    experts: Experts | None = None
    """A mixture of experts instead of the dense MLP (`intermediate_size` is then unused)."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise WeightsError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}: every "
                "key/value head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise WeightsError(f"head_dim {self.head_dim} is odd; rotary embeddings turn pairs of channels")

    @property
    def qk_norm(self) -> bool:
        """Every query and key head is normed, as in Qwen3."""
        return self.architecture == "qwen3"

    @property
    def num_parameters(self) -> int:
        """Trained numbers, embeddings included (once when tied)."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = 2 * d * q + 2 * d * kv + 2 * d + (2 * self.head_dim if self.qk_norm else 0)
        layer += 3 * d * self.intermediate_size if self.experts is None else self.experts.layer_parameters(d)
        return (1 if self.tie_embeddings else 2) * self.vocab_size * d + self.num_layers * layer + d

    @property
    def active_layer_weights(self) -> int:
        """Weights of one layer's matrices that a token is multiplied with: half its FLOPs forward."""
        d, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        experts = self.experts
        mlp = 3 * d * self.intermediate_size if experts is None else experts.active_parameters(d)
        return 2 * d * q + 2 * d * kv + mlp

    @staticmethod
    def from_model_config(config: ModelConfig, vocab_size: int) -> Qwen3Config:
        """The `[model]` section of a run plus the tokenizer's vocabulary size."""
        return Qwen3Config(
            vocab_size=vocab_size,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.rms_norm_eps,
            tie_embeddings=config.tie_embeddings,
            residual_init=config.residual_init,
            qk_norm_init=config.qk_norm_init,
            max_position=config.max_position,
            dtype=config.dtype,
            remat=config.remat,
            architecture=config.architecture,
            remat_saves=config.remat_saves,
            experts=_experts(config),
        )

    @staticmethod
    def from_hf(tree: Mapping[str, Any]) -> Qwen3Config:
        """Read a parsed `config.json` (transformers 4 or 5 spelling).

        Raises WeightsError for another architecture and for features that would change the result and are not
        built (other rope scalings than `model.rope`, sliding windows, biases, another activation).
        """
        kind = tree.get("model_type")
        if kind not in ("qwen3", "qwen3_moe", "llama"):
            raise WeightsError(
                f"config.json: model_type is {kind!r}, expected 'qwen3', 'qwen3_moe' or 'llama'"
            )
        layers = tree.get("layer_types")
        refused = {
            "attention_bias": (bool(tree.get("attention_bias", False)), False),
            "mlp_bias": (bool(tree.get("mlp_bias", False)), False),
            "rope_interleaved": (bool(tree.get("rope_interleaved", False)), False),
            "use_sliding_window": (bool(tree.get("use_sliding_window", False)), False),
            "hidden_act": (tree.get("hidden_act", "silu"), "silu"),
            "layer_types": (sorted({*map(str, layers)}) if isinstance(layers, list) else layers, [FULL]),
        }
        if not layers:
            del refused["layer_types"]
        for name, (got, expected) in refused.items():
            if got != expected:
                raise WeightsError(f"config.json: {name} is {got!r}, only {expected!r} is implemented")
        _check_numbers(tree)
        try:
            return _shape_of(tree, kind)
        except KeyError as error:
            raise WeightsError(f"config.json: key {error.args[0]!r} is missing") from error

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` tree of this model, as transformers 5 writes it and transformers 4 reads it."""
        rope = self.rope_scaling.to_hf() if self.rope_scaling else {"rope_type": "default"}
        own: dict[str, Any] = {
            "mlp_bias": False,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
        }
        if self.architecture == "qwen3":
            own = {
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
                "layer_types": [FULL] * self.num_layers,
                "sliding_window": None,
                "use_sliding_window": False,
            }
        if self.experts is not None:
            own |= {
                "model_type": "qwen3_moe",
                "architectures": ["Qwen3MoeForCausalLM"],
                **self.experts.to_hf(),
            }
        if self.rope_scaling:  # transformers 4 and SGLang read this key
            own["rope_scaling"] = {"rope_theta": self.rope_theta, **rope}
        return {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": "float32",
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_theta": self.rope_theta, **rope},
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_embeddings,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": self.vocab_size,
            **own,
        }


def _check_numbers(tree: Mapping[str, Any]) -> None:
    """WeightsError for a size or a number of `config.json` that is none; null counts as not given."""
    rope = tree.get("rope_parameters") or tree.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise WeightsError(f"config.json: the rope parameters are {rope!r}, expected an object")
    for name in _SIZES:
        value = tree.get(name)
        if value is not None and (type(value) is not int or not 1 <= value < 2**31):
            raise WeightsError(
                f"config.json: {name} is {value!r}, expected a whole number from 1 to 2**31 - 1"
            )
    for name in _SWITCHES:
        value = tree.get(name)
        if value is not None and not isinstance(value, bool):
            raise WeightsError(f"config.json: {name} is {value!r}, expected true or false")
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise WeightsError("config.json: rope parameters by type of layer are not implemented")
    for name in _NUMBERS:
        value = rope.get(name, tree.get(name))
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
        ):
            raise WeightsError(f"config.json: {name} is {value!r}, expected a number above 0")


def _shape_of(tree: Mapping[str, Any], kind: str) -> Qwen3Config:
    """The shape of a tree whose values are known to be numbers; KeyError for one that is missing."""
    given = {name: value for name, value in tree.items() if value is not None}
    theta, scaling = read_rope(given)
    heads = given["num_attention_heads"]
    # what transformers takes where the file says nothing: Qwen3's is not hidden/heads
    width = 128 if kind == "qwen3" else given["hidden_size"] // heads
    stored = given.get("dtype", given.get("torch_dtype", "float32"))
    return Qwen3Config(
        vocab_size=given["vocab_size"],
        num_layers=given["num_hidden_layers"],
        hidden_size=given["hidden_size"],
        intermediate_size=given["intermediate_size"],
        num_heads=heads,
        num_kv_heads=given.get("num_key_value_heads", heads),
        head_dim=given.get("head_dim", width),
        rope_theta=theta,
        rms_norm_eps=float(given.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(given.get("tie_word_embeddings", False)),
        max_position=given.get("max_position_embeddings", 32_768 if kind == "qwen3" else 2048),
        dtype="bfloat16" if stored == "bfloat16" else "float32",
        architecture="llama" if kind == "llama" else "qwen3",
        rope_scaling=scaling,
        experts=Experts.from_hf(given) if kind == "qwen3_moe" else None,
    )


def _experts(config: ModelConfig) -> Experts | None:
    chosen = config.experts
    if chosen.count == 0:
        return None
    return Experts(chosen.count, chosen.per_token, chosen.width, chosen.normalise, chosen.balance)
