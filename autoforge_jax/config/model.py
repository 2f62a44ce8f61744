"""The policy: shape, start, adapters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from autoforge_jax.config.section import Section


class ExpertsConfig(Section):
    """A mixture of experts in every layer (Qwen3-MoE); dropless."""

    count: int = Field(default=0, ge=0)
    """0 = a dense model. With `init_from` the folder's config.json says it, as for all of `[model]`."""
    per_token: int = Field(default=8, ge=1)
    width: int = Field(default=768, ge=8)
    """Hidden width of one expert."""
    normalise: bool = True
    """A token's expert weights add up to one."""
    balance: float = Field(default=0.0, ge=0)
    """Coefficient of the load-balancing loss (model.moe.Balance), added to the step's loss; 0 = none. Read
    also with `init_from`."""


class ModelConfig(Section):
    """Shape of the policy. `vocab_size` comes from the tokenizer; with `init_from` the folder's config.json
    goes before what stands here."""

    architecture: Literal["qwen3", "llama"] = "qwen3"
    """Dense Qwen3, or Llama (SmolLM2 too): the same without query and key norms."""
    num_layers: int = Field(default=4, ge=1)
    hidden_size: int = Field(default=128, ge=8)
    intermediate_size: int = Field(default=384, ge=8)
    num_heads: int = Field(default=4, ge=1)
    num_kv_heads: int = Field(default=2, ge=1)
    head_dim: int = Field(default=32, ge=4)
    rope_theta: float = Field(default=10_000.0, gt=0)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    tie_embeddings: bool = True
    init: Literal["random", "retrieval"] = "random"
    """From scratch: `retrieval` starts the first two layers as heads that look up and copy
    (model.retrieval_init); at least 2 layers, 4 key/value heads and slow rotary pairs (`rope_theta` 1e6)."""
    residual_init: float = Field(default=1.0, ge=0)
    """From scratch: scale of the matrices that write to the residual stream, times (2 · layers)^-0.5. With 0
    every block starts as the identity; in short trials copying from the context came sooner
    (docs/learning.md)."""
    qk_norm_init: float = Field(default=1.0, gt=0)
    """First value of the query and key norms' scales. Normed queries and keys bound a score by head_dim^0.5
    times its square:
    narrow heads need more than 1 to attend to one token among hundreds."""
    max_position: int = Field(default=2048, ge=1)
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type; parameters are float32 masters."""
    remat: bool = False
    """Recompute each layer in the backward pass: far less memory for activations, about a third more work."""
    remat_saves: Literal["nothing", "products"] = "nothing"
    """With `remat`, what a layer keeps: `nothing`, or the results of its `products` with weight matrices (all
    but attention and elementwise work stays done; between the two extremes in memory)."""
    init_from: str = ""
    """A Hugging Face folder to start from; empty = from scratch."""
    attention: Literal["auto", "xla", "cudnn", "splash"] = "auto"
    """The learner's attention kernel: the platform's own where it can be used, or the one named here
    (numerics.kernels)."""
    experts: ExpertsConfig = ExpertsConfig()

    @model_validator(mode="after")
    def _one_start(self) -> ModelConfig:
        if not self.init_from and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}: every "
                "key/value head serves the same number of query heads"
            )
        if self.init_from and self.init != "random":
            raise ValueError(f"init is {self.init!r} and init_from {self.init_from!r}; a model has one start")
        if self.init == "retrieval" and self.architecture != "qwen3":
            raise ValueError(
                f"init 'retrieval' sets query and key norms, which architecture {self.architecture!r} does "
                "not have; use 'qwen3' or init = 'random'"
            )
        if self.init == "retrieval" and self.experts.count:
            raise ValueError("init 'retrieval' writes dense layers; set experts.count = 0 or init = 'random'")
        if 0 < self.experts.count < self.experts.per_token:
            raise ValueError(
                f"experts.per_token is {self.experts.per_token} and experts.count {self.experts.count}; a "
                "token cannot take more experts than there are"
            )
        return self


class LoRAConfig(Section):
    """Train low-rank adapters instead of the model (model.lora); exports and engines get the merged model."""

    rank: int = Field(default=0, ge=0)
    """0 = train every parameter."""
    alpha: float = Field(default=32.0, gt=0)
    """Adapters count alpha / rank."""
    targets: tuple[Literal["query", "key", "value", "output", "gate", "up", "down"], ...] = (
        "query", "key", "value", "output", "gate", "up", "down",
    )  # fmt: skip
    """Projections with an adapter. A mixture of experts has the first four."""

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / max(self.rank, 1)

    @model_validator(mode="after")
    def _targets_once(self) -> LoRAConfig:
        if self.rank and (not self.targets or len(set(self.targets)) != len(self.targets)):
            raise ValueError(f"targets are {list(self.targets)}, expected at least one, and each once")
        return self
