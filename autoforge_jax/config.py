"""Config files: TOML -> one frozen tree, checked where it enters. No JAX.

`load_config(path, overrides)` reads a file, applies ``key.path=value`` overrides and returns a `Config`;
unknown keys, wrong types and missing files are a `ConfigError` with one line per fault. Files may name a
parent with ``extends = "other.toml"`` (relative to the file). The resolved tree is saved with every run
(`dump_config`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autoforge_jax.errors import ConfigError
from envgen.interface import JudgeSettings, ToolFailureSettings, UserSettings


class Section(BaseModel):
    """Base of every section: immutable, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunConfig(Section):
    """Where a run lives and what makes it reproducible."""

    name: str = "run"
    """One folder name; where it lies is `out_dir`."""
    out_dir: str = "runs"
    """The run directory is ``out_dir/name``; relative to the current directory."""
    seed: int = 0
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
    max_transcripts: int = 4000


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
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
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
    max_position: int = 2048
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


class OptimizerConfig(Section):
    """optax chain: clip by global norm -> AdamW with warm-up and decay."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon`: optax.contrib.muon on matrices, AdamW on the rest."""
    learning_rate: float = Field(default=3e-4, gt=0)
    adam_fraction: float = Field(default=0.2, gt=0)
    """`muon` only: AdamW's learning rate, for embeddings and norms, as a fraction of `learning_rate`."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    end_fraction: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a fraction of the peak (cosine, linear)."""
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.0
    max_grad_norm: float = Field(default=1.0, gt=0)


class BatchConfig(Section):
    """How samples become arrays of bounded shape."""

    row_tokens: int = Field(default=640, ge=16)
    """Tokens per packed row; a sample that does not fit is an error, never cut."""
    rows_per_microbatch: int = Field(default=8, ge=1)
    share_prefix: bool = True
    """Samples of one environment in a row share one copy of the prompt prefix (same loss, fewer tokens)."""
    prefix_tokens: int = Field(default=0, ge=0)
    """With `share_prefix`: above 0, prefixes (of at most so many tokens) lie in rows of their own, are
    computed once per micro-batch, and `row_tokens` counts the tokens after the prefix only. Same loss, about
    half the work when samples are not much longer than their prefix. 0 = every packed row has its copy."""
    prefixes_per_microbatch: int = Field(default=4, ge=1)
    """With `prefix_tokens`: environments in a micro-batch at most; unused ones are computed as padding."""

    @property
    def prefixes_apart(self) -> bool:
        """Prefixes lie in rows of their own."""
        return self.share_prefix and self.prefix_tokens > 0

    def longest_with(self, prefix_length: int) -> int:
        """Tokens of the longest sample that fits with a prefix of this length."""
        return self.row_tokens + (prefix_length if self.prefixes_apart else 0)

    @property
    def longest_sample(self) -> int:
        """Tokens of the longest sample that can fit, with the longest prefix."""
        return self.longest_with(self.prefix_tokens)


class MeshConfig(Section):
    """How the learner lies on devices: the product of the four axes is their number (model.sharding)."""

    data: int = Field(default=1, ge=1)
    """Groups of devices with a copy of the parameters each, on rows of their own."""
    fsdp: int = Field(default=1, ge=1)
    """Devices that share one copy of the parameters and optimiser, each on rows of its own."""
    tensor: int = Field(default=1, ge=1)
    """Devices that share the heads, the MLP and the vocabulary of the same rows."""
    expert: int = Field(default=1, ge=1)
    """Devices that share the experts of a mixture-of-experts model, each on rows of its own; they share the
    other parameters like `fsdp` does."""
    chip: str = "cpu"
    """What `autoforge plan` plans for (plan/chips.toml); training uses the devices that are there."""
    coordinator: str = ""
    """Several processes: `host:port` of process 0, or `auto` (Cloud TPU, Slurm); empty = one process. The
    environment variable AUTOFORGE_COORDINATOR goes before it (train.distributed)."""
    processes: int = Field(default=1, ge=1)
    """With `host:port`: their number (AUTOFORGE_PROCESSES); each is told its own in AUTOFORGE_PROCESS_ID."""
    timeout_s: int = Field(default=300, ge=1)
    """Longest wait for the other processes, at the start and at barriers."""

    @property
    def size(self) -> int:
        """Devices of the mesh."""
        return self.data * self.fsdp * self.tensor * self.expert

    def describe(self) -> str:
        """``data 1 × fsdp 4 × tensor 2 × expert 1``."""
        return " × ".join(f"{name} {getattr(self, name)}" for name in ("data", "fsdp", "tensor", "expert"))


class SFTConfig(Section):
    """Phase 4: supervised warm start on reference trajectories."""

    steps: int = Field(default=300, ge=0)
    trajectories_per_step: int = Field(default=64, ge=1)
    stop_at_success: float = Field(default=1.0, ge=0, le=1)
    """Stop early when sampled success on probe tasks of the training split reaches this: ERPO needs room."""
    observation_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on observation tokens (user messages, tool results) beside 1 on action tokens; 0 =
    actions only."""
    drill_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of look-up drills among the samples (data.drills): many look-ups in one short transcript."""
    drill_steps: int = Field(default=0, ge=0)
    """The first of `steps` see drills only; needs a `drill_share`."""
    probe_every: int = Field(default=50, ge=1)
    probe_tasks: int = Field(default=48, ge=1)
    min_steps: int = 0
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=20)

    @model_validator(mode="after")
    def _drills_exist(self) -> SFTConfig:
        if self.drill_steps and not self.drill_share:
            raise ValueError(f"drill_steps is {self.drill_steps} and drill_share 0; set drill_share above 0")
        return self


_SERVER_URL = r"https?://[^/\s?#]+/?"


class SGLangConfig(Section):
    """The servers of `rollout.engine = "sglang"` (docs/sglang.md). Nothing here changes what a run learns
    from."""

    urls: tuple[str, ...] = ("http://127.0.0.1:30000",)
    """One per server. All serve the same weights; an episode stays with one server while it lives."""
    router: str = ""
    """An sglang-router in front of `urls`: turns go to it and it chooses. Weights, checks and aborts
    go to every server itself. Empty: the trainer chooses."""
    launch: tuple[str, ...] = ()
    """Command that starts a server on this machine, e.g. ["python", "-m", "sglang.launch_server", "--dtype",
    "bfloat16"]; model folder, host and port are appended. Started for every url that does not answer, again
    when it dies, and stopped with the run. Empty: the servers are somebody else's."""
    requests_per_server: int = Field(default=64, ge=1)
    """In flight at a time; the others wait here, outside their deadline."""
    request_timeout_s: float = Field(default=300, gt=0)
    """Deadline of one turn. Past it the request is aborted and its episode excluded, never tried again: that
    would favour short answers."""
    connect_timeout_s: float = Field(default=5, gt=0)
    call_timeout_s: float = Field(default=60, gt=0)
    """Deadline of health, info and abort calls."""
    start_timeout_s: float = Field(default=600, gt=0)
    """How long a server may be away (starting, restarting) before the run stops."""
    update_timeout_s: float = Field(default=600, gt=0)
    """Deadline of a weight update and of its check."""
    attempts: int = Field(default=3, ge=1)
    """Of one request, when servers die under it or come back with other weights."""
    verify: Literal["checksums", "version"] = "checksums"
    """After an update: compare the checksum of every tensor with the learner's, or the version alone. CUDA
    servers and sharded ones can only be asked for the version."""
    memory_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the learner's chip that a server on it holds while it is awake (its `--mem-fraction-static`),
    for `autoforge plan`. 0: the servers have chips of their own."""
    share_device: bool = False
    """Servers on the learner's chip: they give their memory back (weights, KV cache) while the learner
    updates, and take it again, with the new weights, before they sample. Needs `--enable-memory-saver` on
    the servers and rollouts that do not overlap with learning (docs/sglang.md)."""

    @model_validator(mode="after")
    def _urls_make_sense(self) -> SGLangConfig:
        if self.share_device and self.router:
            raise ValueError(
                "share_device with a router: it asks sleeping servers for tokens, and they die of it; leave "
                "one out"
            )
        if self.share_device and not self.memory_fraction:
            raise ValueError(
                "share_device needs memory_fraction: the servers' --mem-fraction-static, so that `autoforge "
                "plan` can say what fits"
            )
        if self.router and (not re.fullmatch(_SERVER_URL, self.router) or self.router in self.urls):
            raise ValueError(
                f"router is {self.router!r}, expected one like http://host:30000 that is none of urls"
            )
        bad = [url for url in self.urls if not re.fullmatch(_SERVER_URL, url)]
        if bad or not self.urls or len({url.rstrip("/") for url in self.urls}) != len(self.urls):
            raise ValueError(f"urls are {list(self.urls)}, expected distinct ones like http://host:30000")
        if self.launch and any(not re.fullmatch(r"http://[^/:]+:\d+/?", url) for url in self.urls):
            raise ValueError(f"urls are {list(self.urls)}; a server to launch needs http://host:port")
        return self


class RolloutConfig(Section):
    """How episodes are run for training."""

    engine: Literal["jax", "sglang"] = "jax"
    """`jax`: embedded, in this process. `sglang`: servers over HTTP."""
    sglang: SGLangConfig = SGLangConfig()
    slots: int = Field(default=128, ge=1)
    """Episodes decoded side by side."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    max_turns: int = Field(default=12, ge=1)
    max_tool_calls: int = Field(default=16, ge=1)
    max_tool_errors: int = Field(default=4, ge=1)
    max_turn_tokens: int = Field(default=96, ge=1)
    max_trajectory_tokens: int = Field(default=640, ge=16)
    turn_timeout_s: float = Field(default=1800, gt=0)
    """Deadline of one turn at an engine that takes turns one by one (SGLang; time in its queue counts, so
    `sglang.request_timeout_s` is the sharper one). Past it the episode ends with `timeout`. The embedded
    engine computes a bounded number of tokens and has none."""
    environment_timeout_s: float = Field(default=600, gt=0)
    """Deadline of one answer of an environment whose user or judge is a model. Past it: `timeout`. Tools have
    limits of their own (envgen)."""
    episode_timeout_s: float = Field(default=0, ge=0)
    """Wall-clock seconds of one episode (0 = no limit), looked at between turns. Past it: `timeout`; such
    episodes are left out and counted. A limit that bites makes a run depend on the machine's speed."""
    user_workers: int = Field(default=16, ge=1)
    """Episodes that wait for a model user or judge at the same time; 1 where neither is a model."""


class ERPOConfig(Section):
    """Phase 5: METHOD.md §4. The defaults are the paper's where it gives any."""

    steps: int = Field(default=40, ge=0)
    tasks_per_step: int = Field(default=16, ge=1)
    """Groups with a signal wanted in a step."""
    group_size: int = Field(default=8, ge=2)
    advantage: Literal["environment", "group", "batch"] = "environment"
    """Whose standard deviation divides: all valid trajectories of the environment in the batch (eq. 4), the
    group (GRPO, eq. 3), the batch."""
    reward: Literal["success", "partial_credit"] = "success"
    """What is learned from: 1 for a full success and 0 otherwise (METHOD.md §4), or the share of the required
    changes made minus side effects (`envgen.runtime.explain`). Both stand in metrics and records either
    way, and evaluations report success only."""
    advantage_epsilon: float = Field(default=1e-6, ge=0)
    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """What a reward is compared with: the mean of its group, or of the others of its group."""
    environment_std: Literal["batch", "running"] = "batch"
    """With `advantage = "environment"`: the standard deviation of this batch (eq. 4), or an exponentially
    weighted one over the batches so far (data.running_std), for batches with few groups per environment."""
    environment_std_decay: float = Field(default=0.9, gt=0, lt=1)
    """`running` only: what a step leaves of the moments before it."""
    mask_user_errors: bool = True
    """MEU (METHOD.md §4): leave trajectories with a user error out of means, std, loss and denominators.
    `false` is the ablation: they count with the reward they got."""
    overlong: Literal["keep", "mask", "penalty"] = "keep"
    """Trajectories that ran out of tokens (of the turn, or of the whole): `keep` their reward, which is 0
    unless the task was done by then; `mask`: left out and counted, as user errors are; `penalty`: every
    trajectory loses up to `overlong_penalty` of its reward over its last `overlong_buffer_tokens` tokens."""
    overlong_buffer_tokens: int = Field(default=64, ge=1)
    """`penalty` only: the penalty grows from 0, this many tokens before the limit, to all of it there."""
    overlong_penalty: float = Field(default=0.5, gt=0)
    environment_weights: dict[str, float] = {}
    """Bundle name -> share of the groups, in proportion; environments that are not named have 1, and 0
    leaves one out. Empty: all alike."""
    dynamic_sampling: bool = True
    """Leave out tasks whose rollouts all have the same reward: they carry no signal."""
    sampling_budget: float = Field(default=2.0, ge=1)
    """At most `sampling_budget × tasks_per_step` groups are rolled out in a step; then the step uses what
    there is (no group with a signal: a skipped update), and the metric `rollout/budget_spent` is 1."""
    max_staleness: int = Field(default=0, ge=0)
    """Oldest weights that a token learned from may come from, in policy versions, checked when a group is
    used. 0: strictly on-policy, rollouts and updates take turns, a run can be repeated bit by bit. Above 0:
    rollouts go on while the learner works (rollout.overlap), and timing decides which weights sampled what.
    """
    task_sampling: Literal["uniform", "learnability"] = "uniform"
    """`learnability`: tasks are drawn in proportion to the variance p (1 - p) of success seen for their kind
    (rollout.curriculum); `uniform`: all alike."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser updates per collected batch."""
    ratio: Literal["token", "sequence"] = "token"
    """One importance ratio per token, or per trajectory (eq. 2)."""
    ratio_length_normalised: bool = True
    """`sequence` only: the ratio is that of the mean log-prob per token (GSPO), not of the sum."""
    old_policy: Literal["engine", "learner"] = "engine"
    """What the ratio is taken against: the log-probs that the engine reported, or the learner's own of the
    same tokens, computed before the first update of the step (one more forward pass)."""
    correction: Literal["none", "token", "sequence"] = "none"
    """With `old_policy = "learner"`: importance weight learner / engine on top of the ratio, per token or
    per trajectory (the product), truncated at `correction_cap`."""
    correction_cap: float = Field(default=2.0, gt=0)
    reject_sequence_gap: float = Field(default=0.0, ge=0)
    """With `old_policy = "learner"`: a trajectory whose mean |engine − learner log-prob| is above this, in
    nats, is left out of loss and denominators and counted (0 = none)."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    kl_coefficient: float = Field(default=0.0, ge=0)
    kl_target: Literal["reference", "rollout"] = "reference"
    """The policy before ERPO, or the one that the ratio is taken against (`old_policy`)."""
    min_groups_per_environment: int = Field(default=1, ge=1)
    """Of an environment with fewer groups in a batch none is learned from; one that is short of groups is
    drawn from first."""
    max_agreement_gap: float = Field(default=0.1, gt=0)
    """Mean |engine − learner log-prob| in nats on tokens of the learner's own version, before the first
    update of a step, above which training stops with an error."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1.5e-4, warmup_steps=5)
    checkpoint_every: int = Field(default=10, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    eval_every: int = Field(default=0, ge=0)
    """Held-out evaluation every so many steps (0 = only before and after)."""

    @model_validator(mode="after")
    def _options_fit(self) -> ERPOConfig:
        if self.old_policy == "engine" and (self.correction != "none" or self.reject_sequence_gap):
            raise ValueError(
                f"correction is {self.correction!r}, reject_sequence_gap {self.reject_sequence_gap:g}: both "
                "compare the learner's old log-probs with the engine's; set old_policy to learner"
            )
        if self.environment_std == "running" and self.advantage != "environment":
            raise ValueError(
                f'environment_std is "running" and advantage {self.advantage!r}; it belongs to "environment"'
            )
        bad = {name: weight for name, weight in self.environment_weights.items() if not weight >= 0}
        if bad or (self.environment_weights and not any(self.environment_weights.values())):
            raise ValueError(f"environment_weights are {self.environment_weights}, expected some above 0")
        return self


class EvalConfig(Section):
    """Phase 6. Its own sampling settings: nothing is taken over from `rollout` but the budgets."""

    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    attempts: int = Field(default=1, ge=1)
    """Episodes per task; more than one needs temperature > 0."""
    k: tuple[int, ...] = (1,)
    """For pass@k and pass^k; each at most `attempts`."""
    max_tasks: int = Field(default=0, ge=0)
    """Per set; 0 = all."""

    @model_validator(mode="after")
    def _attempts_make_sense(self) -> EvalConfig:
        if self.attempts > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.attempts} greedy attempts are all alike; set temperature > 0 or attempts = 1"
            )
        if not self.k or min(self.k) < 1 or max(self.k) > self.attempts:
            raise ValueError(f"k is {list(self.k)}, expected values from 1 to attempts ({self.attempts})")
        return self


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
        if longest > self.model.max_position:
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


def load_tree(path: Path) -> dict[str, Any]:
    """A TOML file as a tree, with the parents that it `extends`. Raises ConfigError."""
    return _read_tree(path)


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set ``key.path=value`` overrides in a tree (TOML values; a bare word is a string)."""
    for text in overrides:
        keys, value = _parse_override(text)
        _set(tree, keys, value, text)


def _read_tree(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(
            f"{path}: `extends` goes in a circle through {[p.name for p in seen]}; remove one of them"
        )
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file {path} does not exist; see configs/ for the shipped ones") from error
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: `extends` must be a string, got {parent!r}")
    return _merge(_read_tree(path.parent / parent, (*seen, path.resolve())), tree)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        mine = out.get(key)
        out[key] = _merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return out


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, sign, raw = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"override {text!r} is not key.path=value, e.g. --set erpo.steps=10")
    raw = raw.strip()
    try:
        value: Any = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw  # a bare word is a string, so that --set run.name=trial needs no quotes
    return [part.strip() for part in key.split(".")], value


def _set(tree: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    node = tree
    for part in path[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {text!r}: {part!r} is a value, not a section")
        node = child
    node[path[-1]] = value


def parse_config(tree: dict[str, Any], where: str = "config") -> Config:
    """Check a tree; ConfigError lists every fault as ``where: key.path: what``."""
    # A sparse section keeps the defaults of its place: `[erpo.optimizer] b2 = 0.99` must not reset ERPO's
    # learning rate.
    tree = _merge(Config().model_dump(mode="json"), tree)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines: list[str] = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"])
            if fault["type"] == "value_error":
                lines.append(
                    f"{where}: {f'{key}: ' if key else ''}{fault['msg'].removeprefix('Value error, ')}"
                )
                continue
            if fault["type"] == "extra_forbidden":
                lines.append(f"{where}: unknown key {key!r}; {_known_keys(fault['loc'])}")
            else:
                lines.append(f"{where}: {key}: {fault['msg']}, got {fault['input']!r}")
        raise ConfigError("\n".join(lines)) from error


def _known_keys(loc: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in loc[:-1]:
        info = section.model_fields.get(str(part))
        if info is None or not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            break
        section = info.annotation
    return f"known here: {', '.join(sorted(section.model_fields))}"


def load_config(path: str | Path, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """Read a TOML file and apply ``key.path=value`` overrides (TOML values; a bare word is a string)."""
    path = Path(path)
    tree = _read_tree(path)
    apply_overrides(tree, overrides)
    return parse_config(tree, path.name)


def dump_config(config: Config) -> dict[str, Any]:
    """The resolved tree as plain JSON values; `parse_config` of it gives the same config."""
    return config.model_dump(mode="json")
