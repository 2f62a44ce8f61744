"""Under which conditions episodes run: who speaks as the user, who judges it, which tools fail. No JAX."""

from __future__ import annotations

from dataclasses import dataclass

from autoforge_jax.config import Config
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, stable_hash
from envgen.interface import (
    Env,
    ToolFailures,
    ToolFailureSettings,
    UserErrorHook,
    UserMaker,
    make_judge,
    open_env,
    user_maker,
)


@dataclass(frozen=True)
class Conditions:
    """What every episode of a run shares beside its task. The default: the scripted user, no judge, tools
    that never fail."""

    make_user: UserMaker | None = None
    judge: UserErrorHook | None = None
    failures: ToolFailureSettings | None = None
    workers: int = 1
    """Episodes whose environments answer at the same time. Above 1 where a model speaks or judges, because
    then an answer is mostly waiting."""

    @classmethod
    def of(cls, config: Config) -> Conditions:
        """The conditions of a config. Connects to the servers it names; raises envgen's LLMError."""
        remote = config.user.kind == "model" or config.judge.kind in ("model", "rules_then_model")
        plain = config.user.kind == "scripted" and not config.user.fault_rate
        failures = config.tool_failures
        fails = bool(failures.total) or any(rates.total for rates in failures.environments.values())
        return cls(
            make_user=None if plain else user_maker(config.user),
            judge=make_judge(config.judge),
            failures=failures if fails else None,
            workers=config.rollout.user_workers if remote else 1,
        )

    def open(self, job: EpisodeJob, limits: EpisodeLimits) -> Env:
        """A fresh episode of a job. User and failures are functions of the job, so that a run can be
        repeated."""
        seed = stable_hash("user", job.run_seed, job.session_id) >> 33
        user = self.make_user(job.task, seed) if self.make_user is not None else None
        failures = None
        if self.failures is not None:
            failures = ToolFailures(self.failures, job.bundle.name, seed)
        return open_env(
            job.bundle,
            job.task,
            seed=0,
            limits=limits.env,
            user_error_hook=self.judge,
            user=user,
            failures=failures,
        )
