"""The warm start: supervised training on references, with probes, checkpoints and a stop while there is room
for ERPO."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoforge_jax.config import Config, EvalConfig
from autoforge_jax.data.batch import Batch
from autoforge_jax.data.drills import lookup_drills
from autoforge_jax.data.samples import supervised_samples
from autoforge_jax.errors import TrainingError
from autoforge_jax.rollout.jobs import EpisodeLimits
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.train.assembly import Assembly
from autoforge_jax.train.checkpoint import check_draws
from autoforge_jax.train.evaluate import evaluate
from autoforge_jax.train.interrupt import StopFlag
from autoforge_jax.train.metrics import MetricsLog, Reporter, TimeSplit
from autoforge_jax.train.objectives import SupervisedObjective
from autoforge_jax.train.phase_references import References, shuffled
from autoforge_jax.train.sft import DrillsFirst, NextBatch, ReferenceBatches, SFTResult, run_sft
from autoforge_jax.train.state import TrainState
from autoforge_jax.train.step import make_train_step
from autoforge_jax.train.together import batches_digest
from autoforge_jax.types import TrainingSample

PHASE = "warm start"


@dataclass(frozen=True)
class WarmStart:
    """How it ended."""

    state: TrainState
    steps: int
    result: str


def probe_config(config: Config) -> EvalConfig:
    """Sampled once per task with the rollouts' own settings: what ERPO will see."""
    return EvalConfig(
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
        max_tasks=config.sft.probe_tasks,
    )


def training_batches(config: Config, references: References, renderer: Renderer) -> NextBatch:
    """Batches of the references and of `sft.drill_share` look-up drills made from them. Raises TrainingError
    when drills are wanted and no reference shows a list of records."""
    share = config.sft.drill_share
    wanted = round(len(references.trajectories) * share / (1 - share))
    drills = lookup_drills(
        references.trajectories,
        renderer,
        wanted,
        seed=config.run.seed,
        longest=EpisodeLimits.of(config.rollout, config.batch).context,
    )
    if wanted and not drills:
        raise TrainingError(
            f"sft.drill_share is {share}, but no reference shows a result with two labelled records; "
            "set it to 0"
        )
    samples = [sample for trajectory in references.trajectories for sample in supervised_samples(trajectory)]
    samples += drills

    def batches(chosen: list[TrainingSample]) -> ReferenceBatches:
        grouped = [replace(sample, group=group) for group, sample in enumerate(chosen)]
        pad_id = renderer.tokenizer.pad_id
        return ReferenceBatches(grouped, config.sft, config.batch, pad_id=pad_id, seed=config.run.seed)

    if not config.sft.drill_steps:
        return batches(samples)
    return DrillsFirst(batches(drills), batches(samples), config.sft.drill_steps)


def warm_start(
    assembly: Assembly, references: References, log: MetricsLog, reporter: Reporter, stop: StopFlag
) -> WarmStart:
    """Train until the last step or the stop rule; resumes at the newest checkpoint. Raises Interrupted after
    saving."""
    config, seed = assembly.config, assembly.config.run.seed
    batches = training_batches(config, references, assembly.renderer)
    meter, trace = assembly.meter(), assembly.trace("sft")

    def next_batch(step: int) -> Sequence[Batch]:
        found = batches(step)
        meter.seen(found)
        return found

    train_step = make_train_step(
        assembly.forward,
        assembly.sft_optimizer,
        SupervisedObjective(),
        layout=assembly.layout,
        frozen=assembly.frozen,
        agree=assembly.agree_on_batches,
    )
    probe_items = shuffled(references.items, seed)[: config.sft.probe_tasks]
    restored = assembly.restore("sft")
    if said := assembly.store("sft").resume_line(PHASE):
        reporter.line(said)
    state, start = (restored[0], restored[1].step) if restored else (assembly.fresh_state("sft"), 0)
    if restored:
        check_draws(restored[1], batches_digest(batches(start)))
    log.rewind(PHASE, start)
    success = assembly.crew.of_first("stop rule", lambda: _reached(log, config, start))
    if success:  # the process died after the stop rule had spoken
        ended = SFTResult(state, start, "success", success)
        return WarmStart(ended.state, ended.steps, _result(ended, config))
    times = TimeSplit()
    clock = time.perf_counter()

    def cursor(done: int) -> dict[str, str]:
        return {"draws": batches_digest(batches(done))}

    def probe(done: int, state: TrainState) -> float:
        with times.measure("probe"):
            assembly.sync(state.params, done)
            report = evaluate(
                assembly.engine,
                probe_items,
                probe_config(config),
                config.rollout,
                assembly.renderer,
                name="train_tasks",
                seed=seed,
                conditions=assembly.conditions,
                run=assembly.run_episodes,
            )
            assembly.rest()
        return report.success

    with reporter.bar(PHASE, config.sft.steps) as bar:
        bar.update(start)
        shown: dict[str, Any] = {}

        def on_step(done: int, state: TrainState, metrics: dict[str, float]) -> bool:
            nonlocal clock
            # Read once: a signal that comes later than the save waits for the next step.
            stopping = stop.requested
            spent = times.take()
            now = time.perf_counter()
            learned = now - clock - sum(spent.values())
            seconds = {"train": round(learned, 4), **spent}
            clock = now
            trace.reached(done)
            speed = meter.take(learned) | assembly.machine_metrics()
            compiles = {
                "compiles": train_step.compile_count,
                "engine_compiles": assembly.engine.stats()["compiles"],
            }
            log.write(PHASE, done, metrics | compiles | {"seconds": seconds, "speed": speed})
            # After the step's line: a process that dies in between does the step again, line and all. The
            # time of a save stands in the line of the next step.
            if done % config.sft.probe_every == 0 or done == config.sft.steps or stopping:
                with times.measure("checkpoint"):
                    assembly.save("sft", state, done, done, cursor(done))
            shown.update(loss=metrics["loss"], entropy=metrics.get("action/entropy", 0.0))
            if "probe_success" in metrics:
                shown["success"] = metrics["probe_success"]
            bar.update(done, **shown)
            return stopping

        trace.reached(start)
        try:
            ended = run_sft(
                state, train_step, next_batch, config.sft, start_step=start, on_step=on_step, probe=probe
            )
        finally:
            trace.close()
    if ended.steps == 0:  # no step, no checkpoint: ERPO starts from this one
        assembly.save("sft", ended.state, 0, 0, cursor(0))
    assembly.saved()
    if ended.ended == "stopped":
        stop.raise_if_requested(f"{PHASE}: saved after step {ended.steps} of {config.sft.steps}")
    return WarmStart(ended.state, ended.steps, _result(ended, config))


def _reached(log: MetricsLog, config: Config, step: int) -> float | None:
    """The probe's value at `step` when it met the stop rule, else None."""
    value = next((row.get("probe_success") for row in log.rows(PHASE) if row["step"] == step), None)
    met = value is not None and value >= config.sft.stop_at_success and step >= config.sft.min_steps
    return value if met else None


def _result(ended: SFTResult, config: Config) -> str:
    text = f"{ended.steps} steps"
    if ended.probe_success is not None:
        text += f", sampled success on training tasks {ended.probe_success:.1%}"
    if ended.ended == "success":
        text += f", stopped at {config.sft.stop_at_success:.0%} to leave ERPO room"
    return text
