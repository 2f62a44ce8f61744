"""Batches, meshes, optimisers, warm start and ERPO."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from autoforge_jax.config.section import Section


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
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
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
    min_steps: int = Field(default=0, ge=0)
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=20)

    @model_validator(mode="after")
    def _drills_exist(self) -> SFTConfig:
        if self.drill_steps and not self.drill_share:
            raise ValueError(f"drill_steps is {self.drill_steps} and drill_share 0; set drill_share above 0")
        return self


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
    environment_weights: dict[str, float] = Field(default_factory=dict[str, float])
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
    clip_low: float = Field(default=0.2, gt=0, le=1)
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
