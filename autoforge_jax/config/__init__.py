"""Config files: TOML -> one frozen tree, checked where it enters. No JAX.

`load_config(path, overrides)` reads a file, applies ``key.path=value`` overrides and returns a `Config`;
unknown keys, wrong types and missing files are a `ConfigError` with one line per fault. Files may name a
parent with ``extends = "other.toml"`` (relative to the file). The resolved tree is saved with every run
(`dump_config`).
"""

from autoforge_jax.config.data import RenderConfig, RunConfig, SynthesisConfig, TokenizerConfig
from autoforge_jax.config.experiment import Config
from autoforge_jax.config.files import apply_overrides, dump_config, load_config, load_tree, parse_config
from autoforge_jax.config.learning import BatchConfig, ERPOConfig, MeshConfig, OptimizerConfig, SFTConfig
from autoforge_jax.config.model import ExpertsConfig, LoRAConfig, ModelConfig
from autoforge_jax.config.rollout import EvalConfig, RolloutConfig, SGLangConfig
from autoforge_jax.config.section import Section

__all__ = [
    "BatchConfig",
    "Config",
    "ERPOConfig",
    "EvalConfig",
    "ExpertsConfig",
    "LoRAConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RenderConfig",
    "RolloutConfig",
    "RunConfig",
    "SFTConfig",
    "SGLangConfig",
    "Section",
    "SynthesisConfig",
    "TokenizerConfig",
    "apply_overrides",
    "dump_config",
    "load_config",
    "load_tree",
    "parse_config",
]
