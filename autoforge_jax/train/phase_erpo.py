"""The ERPO phase: rollouts, updates, hand-over, checkpoints and records, step by step, resumable at every
step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoforge_jax.config import Config
from autoforge_jax.rollout.collect import Collection, collect, task_order
from autoforge_jax.rollout.curriculum import SuccessRecord
from autoforge_jax.rollout.jobs import EpisodeJob, TaskItem, stable_hash
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.checkpoint import check_draws
from autoforge_jax.train.erpo import ERPOLearner, run_erpo
from autoforge_jax.train.interrupt import StopFlag
from autoforge_jax.train.metrics import MetricsLog, Reporter, TimeSplit, rewind_jsonl
from autoforge_jax.train.records import append_rows, sample_groups, trajectory_row
from autoforge_jax.train.state import Params, TrainState, copy_tree
from autoforge_jax.train.step import PolicyObjective, ReferenceLogprobs, make_train_step
from autoforge_jax.types import Trajectory, TrajectoryGroup

PHASE = "erpo"
KEPT_PER_STEP = 6
"""Trajectories of a step that go to trajectories.jsonl."""
RECORD = "success_record"
"""Name of the record of `erpo.task_sampling = "learnability"` in a checkpoint's cursor."""
EvaluateStep = Callable[[int, Params], None]
"""(steps done, parameters): the evaluation between steps (`erpo.eval_every`)."""


@dataclass(frozen=True)
class ERPOPhase:
    """How it ended."""

    state: TrainState
    steps: int
    result: str


def train_erpo(
    assembly: Assembly,
    items: Sequence[TaskItem],
    warm_params: Params,
    warm_steps: int,
    log: MetricsLog,
    reporter: Reporter,
    stop: StopFlag,
    evaluate_step: EvaluateStep,
) -> ERPOPhase:
    """All ERPO steps from the warm start's parameters; resumes at the newest checkpoint. Raises Interrupted
    after saving."""
    config, seed = assembly.config, assembly.config.run.seed
    objective = PolicyObjective.from_config(config.erpo, config.rollout.temperature)
    train_step = make_train_step(
        assembly.forward,
        assembly.erpo_optimizer,
        objective,
        layout=assembly.layout,
        agree=assembly.agree_on_batches,
    )
    reference = None
    if objective.needs_reference:
        reference = ReferenceLogprobs(
            assembly.forward, copy_tree(warm_params), config.rollout.temperature, layout=assembly.layout
        )
    learner = ERPOLearner(
        train_step, config.erpo, config.batch, assembly.renderer.tokenizer.pad_id, reference
    )
    restored = assembly.restore("erpo")
    state, start = (
        (restored[0], restored[1].step) if restored else (assembly.fresh_state("erpo", warm_params), 0)
    )
    record = None
    if config.erpo.task_sampling == "learnability":
        record = SuccessRecord.from_json(restored[1].cursor.get(RECORD, {}) if restored else {})
    if restored:
        check_draws(restored[1], next_draws(config, items, start, record))
    log.rewind(PHASE, start)
    if assembly.crew.first:
        rewind_jsonl(assembly.run.trajectories, lambda row: row["stage"] != PHASE or row["step"] <= start)
    times = TimeSplit()
    clock = time.perf_counter()
    collected: Collection | None = None
    rewards: list[float] = []

    with reporter.bar(PHASE, config.erpo.steps) as bar:
        bar.update(start)

        def roll_out(step: int, state: TrainState) -> Sequence[TrajectoryGroup]:
            nonlocal collected
            with times.measure("sync"):
                assembly.sync(state.params, warm_steps + step)
            finished: list[Trajectory] = []

            def on_done(trajectory: Trajectory) -> None:
                finished.append(trajectory)
                if len(finished) % 16 == 0:
                    success = sum(t.success for t in finished) / len(finished)
                    bar.update(step, episodes=len(finished), success=success)

            with times.measure("rollout"):
                collected = collect(
                    assembly.engine,
                    items,
                    assembly.renderer,
                    config.erpo,
                    config.rollout,
                    seed=seed,
                    step=step,
                    batch=config.batch,
                    record=record,
                    conditions=assembly.conditions,
                    on_done=on_done,
                    run=assembly.run_episodes,
                )
            if record is not None:
                record.update(collected.groups)
            return collected.groups

        def on_step(
            done: int, state: TrainState, metrics: dict[str, float], groups: Sequence[TrajectoryGroup]
        ) -> bool:
            nonlocal clock
            assert collected is not None
            spent = times.take()
            learned = time.perf_counter() - clock - sum(spent.values())
            if config.erpo.eval_every and done % config.erpo.eval_every == 0 and done < config.erpo.steps:
                with times.measure("eval"):
                    evaluate_step(done, state.params)
            rows = [trajectory_row(t, stage=PHASE, step=done) for t in sample_groups(groups, KEPT_PER_STEP)]
            if assembly.crew.first:
                append_rows(assembly.run.trajectories, rows)
            seconds = {**spent, "train": round(learned, 4), **times.take()}
            clock = time.perf_counter()
            compiles = {
                "compiles": train_step.compile_count,
                "engine_compiles": assembly.engine.stats()["compiles"],
            }
            if config.rollout.engine == "sglang" and assembly.last_sync is not None:
                compiles["sync_bytes"] = assembly.last_sync.bytes
            log.write(PHASE, done, metrics | collected.metrics | compiles | {"seconds": seconds})
            # Read once: a signal that comes later than the save waits for the next step.
            stopping = stop.requested
            # After the step's lines: a process that dies in between does the step again, lines and all. The
            # time of a save stands in the line of the next step.
            if done % config.erpo.checkpoint_every == 0 or done == config.erpo.steps or stopping:
                with times.measure("checkpoint"):
                    cursor: dict[str, Any] = {"draws": next_draws(config, items, done, record)}
                    if record is not None:
                        cursor[RECORD] = record.to_json()
                    assembly.save("erpo", state, done, warm_steps + done, cursor)
            rewards.append(metrics["reward"])
            recent = rewards[-5:]
            bar.update(
                done,
                reward=sum(recent) / len(recent),
                mixed=metrics["mixed_share"],
                entropy=metrics.get("entropy", 0.0),
            )
            return stopping

        ended = run_erpo(state, learner, roll_out, start_step=start, on_step=on_step)
    assembly.saved()
    if ended.ended == "stopped":
        stop.raise_if_requested(f"{PHASE}: saved after step {ended.steps} of {config.erpo.steps}")
    result = assembly.crew.of_first("result", lambda: _result(log, ended.steps))
    return ERPOPhase(ended.state, ended.steps, result)


def next_draws(config: Config, items: Sequence[TaskItem], step: int, record: SuccessRecord | None) -> str:
    """Hash of what chance decides in a step (from 0): the order of its tasks and their sampling seeds."""
    seed = config.run.seed
    order = task_order(items, seed, step, config.erpo.min_groups_per_environment, record)
    jobs = [EpisodeJob(bundle, task, 0, run_seed=seed, step=step) for bundle, task in order]
    return f"{stable_hash(*(f'{job.session_id} {job.turn_seed(0)}' for job in jobs)):016x}"


def _result(log: MetricsLog, steps: int) -> str:
    rows = log.rows(PHASE)
    if not rows:
        return f"{steps} steps"
    quarter = max(1, len(rows) // 4)
    first = sum(row["reward"] for row in rows[:quarter]) / quarter
    last = sum(row["reward"] for row in rows[-quarter:]) / quarter
    return f"{steps} steps, reward {first:.3f} in the first quarter, {last:.3f} in the last"
