"""The whole experiment, and what its sections demand of each other."""

from __future__ import annotations

from pydantic import model_validator

from autoforge_jax.config.data import RenderConfig, RunConfig, SynthesisConfig, TokenizerConfig
from autoforge_jax.config.learning import BatchConfig, ERPOConfig, MeshConfig, SFTConfig
from autoforge_jax.config.model import LoRAConfig, ModelConfig
from autoforge_jax.config.rollout import EvalConfig, RolloutConfig
from autoforge_jax.config.section import Section
from envgen.interface import JudgeSettings, ToolFailureSettings, UserSettings


class Config(Section):
    """The whole experiment."""

    run: RunConfig = RunConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    render: RenderConfig = RenderConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    lora: LoRAConfig = LoRAConfig()
    batch: BatchConfig = BatchConfig()
    mesh: MeshConfig = MeshConfig()
    sft: SFTConfig = SFTConfig()
    rollout: RolloutConfig = RolloutConfig()
    user: UserSettings = UserSettings()
    """Who speaks as the user."""
    judge: JudgeSettings = JudgeSettings()
    """Who reads finished transcripts for user errors (MEU, METHOD.md §4)."""
    tool_failures: ToolFailureSettings = ToolFailureSettings()
    """Tools that fail now and then, on purpose."""
    erpo: ERPOConfig = ERPOConfig()
    evaluation: EvalConfig = EvalConfig()
    sampled_evaluation: EvalConfig = EvalConfig(temperature=1.0, attempts=4, k=(1, 2, 4))
    """A second evaluation with sampling, for pass@k and pass^k."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Config:
        longest = self.rollout.max_trajectory_tokens
        if longest > self.batch.longest_sample:
            raise ValueError(
                f"rollout.max_trajectory_tokens ({longest}) is above batch.row_tokens "
                f"({self.batch.longest_sample} with the prefix): a trajectory must fit a row"
            )
        if not self.model.init_from and longest > self.model.max_position:
            raise ValueError(
                f"rollout.max_trajectory_tokens ({longest}) is above model.max_position "
                f"({self.model.max_position})"
            )
        if self.rollout.engine == "sglang":
            for name in ("rollout", "evaluation", "sampled_evaluation"):
                part = getattr(self, name)
                if part.temperature > 0 and part.top_k > 0 and part.top_p < 1:
                    raise ValueError(
                        f"{name}: top_k {part.top_k} with top_p {part.top_p:g} means another distribution to "
                        "SGLang than to the embedded engine; use one of the two"
                    )
            if self.rollout.sglang.share_device and self.erpo.max_staleness:
                raise ValueError(
                    f"rollout.sglang.share_device lets servers sleep while the learner updates, but with "
                    f"erpo.max_staleness {self.erpo.max_staleness} they sample meanwhile: set it to 0, or "
                    "give the servers a chip of their own"
                )
        tasks, heldout = self.synthesis.tasks_per_bundle, self.synthesis.heldout_tasks_per_bundle
        if self.lora.rank and self.model.experts.count and {"gate", "up", "down"} & set(self.lora.targets):
            raise ValueError(
                "lora.targets names gate, up or down, which a model with experts does not have; use "
                '["query", "key", "value", "output"]'
            )
        if heldout >= tasks:
            raise ValueError(
                f"synthesis.heldout_tasks_per_bundle ({heldout}) leaves no training task of "
                f"tasks_per_bundle ({tasks})"
            )
        return self
