"""The run, its environments, and how conversations become tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from autoforge_jax.config.section import Section


class RunConfig(Section):
    """Where a run lives and what makes it reproducible."""

    name: str = "run"
    """One folder name; where it lies is `out_dir`."""
    out_dir: str = "runs"
    """The run directory is ``out_dir/name``; relative to the current directory."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    trace_step: int = Field(default=0, ge=0)
    """`jax.profiler` traces `trace_steps` steps of each training phase from this one on (counted from 1) into
    the run's folder `trace`; 0 = none."""
    trace_steps: int = Field(default=1, ge=1)
    compile_cache: str = ".jax_cache"
    """`jax_compilation_cache_dir`; empty turns it off."""

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        # --fresh deletes the run directory: a name must not lead anywhere else
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"got {name!r}, expected one folder name; say where it lies with run.out_dir")
        return name


class SynthesisConfig(Section):
    """Phase 1–2: tool documents -> bundles."""

    documents: tuple[str, ...] = ()
    """Paths of tool documents, relative to the current directory. One bundle each."""
    bundles: tuple[str, ...] = ()
    """Bundles that exist already, used beside the synthesised ones."""
    heldout_documents: tuple[str, ...] = ()
    """Documents (or bundles) whose whole environment is kept out of training."""
    tasks_per_bundle: int = Field(default=60, ge=1)
    heldout_tasks_per_bundle: int = Field(default=20, ge=1)
    """Of `tasks_per_bundle`, how many go to the held-out split."""
    max_difficulty: int = Field(default=4, ge=1, le=5)
    max_demands: int = Field(default=0, ge=0)
    """Separate wishes of the user in one task at most; 0: as many as its level merges (docs/synthesis.md)."""
    seed: int = 0
    workers: int = Field(default=2, ge=1)


class RenderConfig(Section):
    """Messages <-> tokens."""

    format: Literal["compact", "qwen3", "qwen3_thinking", "llama3", "smollm2"] = "compact"
    """How the policy's family writes a conversation (docs/pretrained.md). `compact`: for models trained here;
    the others are the families' own, for pretrained ones: `qwen3_thinking` where the generation prompt opens
    the thinking (the 2507 thinking models), `llama3` from 3.1 on."""
    tools: Literal["auto", "signature", "json"] = "auto"
    """`signature`: one line per tool; `json`: the full JSON schemas, as pretrained models expect; `auto`:
    signatures in the compact format, JSON in the others."""
    tool_descriptions: bool = True
    """Signatures end with the tool's description. Without it the prompts of the
    example documents are 7 to 25 % shorter."""
    interleaved_thinking: bool = True
    """Thinking of earlier turns stays in the context (METHOD.md §4). `false`, the ablation: it is deleted
    when the user speaks again, as Qwen3's template does, and the episode goes on in a new context
    (rollout.turn_contexts)."""
    policy_in_prompt: bool = True

    @property
    def tool_style(self) -> Literal["signature", "json"]:
        """`tools` with `auto` resolved."""
        if self.tools != "auto":
            return self.tools
        return "signature" if self.format == "compact" else "json"

    @model_validator(mode="after")
    def _thinking_can_be_cut(self) -> RenderConfig:
        if not self.interleaved_thinking and self.format in ("llama3", "smollm2"):
            raise ValueError(
                f"interleaved_thinking is false, but format {self.format!r} writes thoughts as ordinary "
                "text, which cannot be cut out of sampled ids; keep it true, or use a format with thinking "
                "tokens"
            )
        return self


class TokenizerConfig(Section):
    """Byte-level BPE trained on rendered training transcripts."""

    vocab_size: int = Field(default=1024, ge=300)
    max_transcripts: int = Field(default=4000, ge=1)
