"""The ERPO phase: rollouts, updates, hand-over, checkpoints and records, step by step, resumable at every
step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import jax

from autoforge_jax.config import Config
from autoforge_jax.data.batch import Batch
from autoforge_jax.data.running_std import RunningStd
from autoforge_jax.errors import TrainingError
from autoforge_jax.rollout.collect import Collection, collect
from autoforge_jax.rollout.curriculum import SuccessRecord
from autoforge_jax.rollout.jobs import EpisodeJob, TaskItem, stable_hash
from autoforge_jax.rollout.mix import TaskSource
from autoforge_jax.rollout.overlap import OverlappedRollouts
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.checkpoint import check_draws
from autoforge_jax.train.disk_sync import server_metrics
from autoforge_jax.train.erpo import ERPOLearner, Rollouts, run_erpo
from autoforge_jax.train.interrupt import StopFlag
from autoforge_jax.train.logprob_pass import LogprobPass, OldLogprobs, ReferenceLogprobs
from autoforge_jax.train.metrics import Bar, MetricsLog, Reporter, TimeSplit, rewind_jsonl
from autoforge_jax.train.objectives import PolicyObjective
from autoforge_jax.train.records import append_rows, sample_groups, trajectory_row
from autoforge_jax.train.state import Params, TrainState
from autoforge_jax.train.step import make_train_step
from autoforge_jax.types import Trajectory, TrajectoryGroup

PHASE = "erpo"
KEPT_PER_STEP = 6
"""Trajectories of a step that go to trajectories.jsonl."""
RECORD = "success_record"
"""Name of the record of `erpo.task_sampling = "learnability"` in a checkpoint's cursor."""
RUNNING_STD = "running_std"
"""Name of the moments of `erpo.environment_std = "running"` there."""
ROLLOUTS = "rollouts"
"""Name of what is begun and not learned from there, with `erpo.max_staleness` above 0."""
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
    warm_params: Callable[[], Params],
    warm_steps: int,
    log: MetricsLog,
    reporter: Reporter,
    stop: StopFlag,
    evaluate_step: EvaluateStep,
) -> ERPOPhase:
    """All ERPO steps from the warm start's parameters; resumes at the newest checkpoint. Raises Interrupted
    after saving.

    warm_params: reads them. They are kept only where a KL to them needs them."""
    config, seed = assembly.config, assembly.config.run.seed
    objective = PolicyObjective.from_config(config.erpo, config.rollout.temperature)
    train_step = make_train_step(
        assembly.forward,
        assembly.erpo_optimizer,
        objective,
        layout=assembly.layout,
        frozen=assembly.frozen,
        agree=assembly.agree_on_batches,
    )
    reference = None
    if objective.needs_reference:
        reference = ReferenceLogprobs(
            assembly.forward,
            assembly.for_forward(warm_params()),
            config.rollout.temperature,
            layout=assembly.layout,
        )
    meter, trace = assembly.meter(), assembly.trace(PHASE)
    old: OldLogprobs | None = None
    if config.erpo.old_policy == "learner":
        if jax.process_count() > 1:
            raise TrainingError(
                f'erpo.old_policy = "learner" with {jax.process_count()} processes: each holds a part of a '
                'batch\'s log-probs only. Set it to "engine"'
            )
        learner_pass = LogprobPass(assembly.forward, config.rollout.temperature, layout=assembly.layout)

        def from_learner(params: Params, batches: Sequence[Batch]) -> list[tuple[Batch, jax.Array]]:
            return learner_pass(assembly.for_forward(params), batches)

        old = from_learner

    restored = assembly.restore("erpo")
    if said := assembly.store("erpo").resume_line(PHASE):
        reporter.line(said)
    state, start = (
        (restored[0], restored[1].step) if restored else (assembly.fresh_state("erpo", warm_params()), 0)
    )
    cursor = restored[1].cursor if restored else {}
    record = running = None
    if config.erpo.task_sampling == "learnability":
        record = SuccessRecord.from_json(cursor.get(RECORD, {}))
    if restored:
        check_draws(restored[1], next_draws(config, items, start, record))
    if config.erpo.environment_std == "running":
        running = RunningStd.from_json(config.erpo.environment_std_decay, cursor.get(RUNNING_STD, {}))
    learner = ERPOLearner(
        train_step,
        config.erpo,
        config.batch,
        assembly.renderer.tokenizer.pad_id,
        reference=reference,
        old=old,
        running=running,
        on_batches=meter.seen,
    )
    log.rewind(PHASE, start)
    if assembly.crew.first:
        rewind_jsonl(assembly.run.trajectories, lambda row: row["stage"] != PHASE or row["step"] <= start)
    times = TimeSplit()
    clock = time.perf_counter()
    collected: Collection | None = None
    rewards: list[float] = []

    with ExitStack() as resources:
        bar = resources.enter_context(reporter.bar(PHASE, config.erpo.steps))
        bar.update(start)
        overlap: OverlappedRollouts | None = None
        if config.erpo.max_staleness:
            overlap = _overlap(assembly, items, record, cursor.get(ROLLOUTS))
            resources.callback(overlap.close)
        still = nullcontext if overlap is None else overlap.paused

        def roll_out(step: int, state: TrainState) -> Rollouts:
            nonlocal collected
            version = warm_steps + step
            if overlap is None:
                with times.measure("sync"):
                    assembly.sync(state.params, version)
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
                        run=assembly.run_episodes,
                        on_done=_progress(bar, step),
                    )
                assembly.rest()
            else:
                with times.measure("sync"):
                    if step == start:
                        assembly.sync(state.params, version)
                        overlap.start(step)
                    else:
                        with overlap.paused():
                            assembly.sync(state.params, version)
                        overlap.weights_changed(step)
                with times.measure("rollout"):
                    collected = overlap.take(version)
            if record is not None:
                record.update(collected.groups)
            return Rollouts(collected.groups, None if overlap is None else version)

        def on_step(
            done: int, state: TrainState, metrics: dict[str, float], groups: Sequence[TrajectoryGroup]
        ) -> bool:
            nonlocal clock
            assert collected is not None
            spent = times.take()
            learned = time.perf_counter() - clock - sum(spent.values())
            if config.erpo.eval_every and done % config.erpo.eval_every == 0 and done < config.erpo.steps:
                with times.measure("eval"), still():
                    evaluate_step(done, state.params)
            rows = [trajectory_row(t, stage=PHASE, step=done) for t in sample_groups(groups, KEPT_PER_STEP)]
            if assembly.crew.first:
                append_rows(assembly.run.trajectories, rows)
            trace.reached(done)
            speed = meter.take(learned) | assembly.machine_metrics()
            seconds = {**spent, "train": round(learned, 4), **times.take()}
            clock = time.perf_counter()
            compiles = {
                "compiles": train_step.compile_count,
                "engine_compiles": assembly.engine.stats()["compiles"],
            }
            if config.rollout.engine == "sglang" and assembly.last_sync is not None:
                compiles |= server_metrics(assembly.last_sync, assembly.engine.stats())
            measured = {"seconds": seconds, "speed": speed}
            log.write(PHASE, done, metrics | collected.metrics | compiles | measured)
            # Read once: a signal that comes later than the save waits for the next step.
            stopping = stop.requested
            # After the step's lines: a process that dies in between does the step again, lines and all. The
            # time of a save stands in the line of the next step.
            if done % config.erpo.checkpoint_every == 0 or done == config.erpo.steps or stopping:
                with times.measure("checkpoint"), still():
                    cursor: dict[str, Any] = {"draws": next_draws(config, items, done, record)}
                    if record is not None:
                        cursor[RECORD] = record.to_json()
                    if running is not None:
                        cursor[RUNNING_STD] = running.to_json()
                    if overlap is not None:
                        cursor[ROLLOUTS] = overlap.to_json()
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

        trace.reached(start)
        try:
            ended = run_erpo(state, learner, roll_out, start_step=start, on_step=on_step)
        finally:
            trace.close()
    assembly.saved()
    if ended.ended == "stopped":
        stop.raise_if_requested(f"{PHASE}: saved after step {ended.steps} of {config.erpo.steps}")
    result = assembly.crew.of_first("result", lambda: _result(log, ended.steps))
    return ERPOPhase(ended.state, ended.steps, result)


def next_draws(config: Config, items: Sequence[TaskItem], step: int, record: SuccessRecord | None) -> str:
    """Hash of what chance decides in a step (from 0): the order of its tasks and their sampling seeds."""
    seed, erpo = config.run.seed, config.erpo
    source = TaskSource(
        items,
        seed,
        step,
        block=erpo.min_groups_per_environment,
        record=record,
        weights=erpo.environment_weights,
    )
    order = source.draw(source.left)
    jobs = [EpisodeJob(bundle, task, 0, run_seed=seed, step=step) for bundle, task in order]
    return f"{stable_hash(*(f'{job.session_id} {job.turn_seed(0)}' for job in jobs)):016x}"


def _overlap(
    assembly: Assembly,
    items: Sequence[TaskItem],
    record: SuccessRecord | None,
    restored: Mapping[str, Any] | None,
) -> OverlappedRollouts:
    config = assembly.config
    if jax.process_count() > 1:
        raise TrainingError(
            f"erpo.max_staleness is {config.erpo.max_staleness} with {jax.process_count()} processes, which "
            "must all learn from the same groups while timing decides which are there. Set it to 0"
        )
    return OverlappedRollouts(
        assembly.engine,
        items,
        assembly.renderer,
        config.erpo,
        config.rollout,
        seed=config.run.seed,
        batch=config.batch,
        record=record,
        conditions=assembly.conditions,
        restored=restored,
    )


def _progress(bar: Bar, step: int) -> Callable[[Trajectory], None]:
    finished: list[Trajectory] = []

    def on_done(trajectory: Trajectory) -> None:
        finished.append(trajectory)
        if len(finished) % 16 == 0:
            success = sum(t.success for t in finished) / len(finished)
            bar.update(step, episodes=len(finished), success=success)

    return on_done


def _result(log: MetricsLog, steps: int) -> str:
    rows = log.rows(PHASE)
    if not rows:
        return f"{steps} steps"
    quarter = max(1, len(rows) // 4)
    first = sum(row["reward"] for row in rows[:quarter]) / quarter
    last = sum(row["reward"] for row in rows[-quarter:]) / quarter
    return f"{steps} steps, reward {first:.3f} in the first quarter, {last:.3f} in the last"
