"""The whole run: documents -> bundles -> tokenizer -> references -> warm start -> ERPO -> evaluations ->
export -> report.

`execute` walks the phases of `rundir.PHASES` in order. A phase that is done under this config is skipped; one
that was interrupted goes on where its newest checkpoint stands. JAX is imported when the first phase needs
it, after the processes of the synthesis are gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from autoforge_jax.config import Config, dump_config
from autoforge_jax.errors import TrainingError
from autoforge_jax.report.build import write_report
from autoforge_jax.rollout.mix import check_weights
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.interrupt import StopFlag, stop_on_signals
from autoforge_jax.train.lock import run_lock
from autoforge_jax.train.metrics import MetricsLog, Reporter
from autoforge_jax.train.phase_references import References, load_renderer, make_tokenizer, play_references
from autoforge_jax.train.phase_synthesis import Environments, synthesize_all
from autoforge_jax.train.rundir import PHASES, RunDir, hash_json
from autoforge_jax.train.start import check_start
from autoforge_jax.train.summary import read_reports, results_table, write_summary

if TYPE_CHECKING:
    from autoforge_jax.train.assembly import Assembly
    from autoforge_jax.train.state import Params

SFT_PHASES = ("synthesis", "tokenizer", "references", "eval init", "warm start")
ERPO_PHASES = ("synthesis", "tokenizer", "references", "warm start", "erpo")


class Loop:
    """One run in progress: what the phases share, made when it is first needed."""

    def __init__(self, run: RunDir, reporter: Reporter, stop: StopFlag, crew: Crew) -> None:
        self.run, self.reporter, self.stop, self.crew = run, reporter, stop, crew
        self.log = MetricsLog(run.metrics, writes=run.writes)
        self._environments: Environments | None = None
        self._references: References | None = None
        self._assembly: Assembly | None = None
        self._params: dict[str, Params] = {}

    # ------------------------------------------------------------------------------------------ shared things
    @property
    def environments(self) -> Environments:
        """The run's bundles, loaded and checked against the hashes that the run is tied to."""
        if self._environments is None:
            self._synthesis()
        assert self._environments is not None
        return self._environments

    @property
    def references(self) -> References:
        """Training tasks that fit the budgets, with their reference trajectories."""
        if self._references is None:
            items = self.environments.training_tasks()
            renderer = load_renderer(self.run)
            self._references = play_references(self.run.config, items, renderer, self.reporter, self.stop)
            if self.crew.count > 1:
                from autoforge_jax.train.together import trajectories_digest

                digest = trajectories_digest(self._references.trajectories)
                self.crew.agree("reference trajectories", digest)
        return self._references

    @property
    def assembly(self) -> Assembly:
        """Model and engine."""
        if self._assembly is None:
            from autoforge_jax.train.assembly import Assembly

            renderer = load_renderer(self.run)
            self._assembly = Assembly(self.run, renderer, self.environments, self.crew)
        return self._assembly

    def close(self) -> None:
        """Let go of what the phases made."""
        if self._assembly is not None:
            self._assembly.close()

    def trained(self, phase: str) -> tuple[Params, int]:
        """(parameters, steps) at the end of `sft` or `erpo`, from its newest checkpoint."""
        restored = self.assembly.restore(phase)
        if restored is None:
            raise self._no_checkpoint(phase)
        state, meta = restored
        return state.params, meta.step

    def steps_done(self, phase: str) -> int:
        """Steps of the newest checkpoint of `sft` or `erpo`; no array is read."""
        newest = self.crew.of_first("newest checkpoint", self.assembly.store(phase).latest)
        if newest is None:
            raise self._no_checkpoint(phase)
        return newest.meta.step

    def _no_checkpoint(self, phase: str) -> TrainingError:
        return TrainingError(
            f"{self.run.checkpoints(phase)} holds no whole checkpoint although the phase is done: restore "
            f"it, or delete {self.run.root / 'phases.json'} and start `autoforge run` again, which trains "
            "what has no checkpoint once more and keeps the rest"
        )

    # ------------------------------------------------------------------------------------------ phases
    def go(self, name: str, body: Callable[[], str], *, always: bool = False) -> None:
        """Run one phase unless it is done; record its seconds also when it is interrupted."""
        record = self.run.done(name)
        if record is not None and not always:
            self.reporter.line(f"{name:<12} done before: {record.result}")
            return
        if record is None:
            self.run.mark(name, done=False)
        start = time.perf_counter()
        try:
            result = body()
        except BaseException:
            self.run.mark(name, done=record is not None, seconds=time.perf_counter() - start)
            raise
        seconds = time.perf_counter() - start
        self.run.mark(name, done=True, seconds=seconds if record is None else 0.0, result=result)
        self.reporter.phase(name, result, seconds)
        self.stop.raise_if_requested(f"after the phase {name}")

    def phase(self, name: str) -> None:
        """Run one phase of `rundir.PHASES` by name."""
        bodies: dict[str, Callable[[], str]] = {
            "synthesis": self._synthesis,
            "tokenizer": self._tokenizer,
            "references": self._play_references,
            "eval init": self._eval_init,
            "warm start": self._warm_start,
            "eval before": self._eval_before,
            "erpo": self._erpo,
            "eval after": self._eval_after,
            "export": self._export,
            "report": self._report,
        }
        self.go(name, bodies[name], always=name in ("synthesis", "report"))

    def _synthesis(self) -> str:
        def make() -> str:
            with self.stop.unshared():
                self._environments, result = synthesize_all(self.run, self.reporter, self.stop)
            return result

        result = self.crew.of_first("synthesis", make)
        if not self.crew.first:
            make()  # everything is there by now: this loads it
        self.crew.agree("bundles", hash_json(self.environments.hashes))
        check_weights(self.run.config.erpo.environment_weights, (b.name for b in self.environments.train))
        return result

    def _tokenizer(self) -> str:
        items = self.environments.training_tasks()
        return self.crew.of_first("tokenizer", lambda: make_tokenizer(self.run, items))

    def _play_references(self) -> str:
        found = self.references
        longest = max(len(t.token_ids) for t in found.trajectories)
        left_out = f", {found.left_out} too long for the rollout budgets" if found.left_out else ""
        count, mean = len(found.trajectories), found.mean_tokens
        return f"{count} trajectories, {mean:.0f} tokens on average, longest {longest}{left_out}"

    def _evaluate(self, stage: str, params: Params, step: int, version: int, key: str) -> str:
        from autoforge_jax.train.phase_evaluate import evaluate_stage

        return evaluate_stage(
            self.assembly,
            self.environments.evaluation_sets(),
            params,
            stage=stage,
            step=step,
            version=version,
            key=key,
            reporter=self.reporter,
            stop=self.stop,
        )

    def _eval_init(self) -> str:
        return self._evaluate("init", self.assembly.initial_params(), 0, 0, self.run.keys["eval init"])

    def _warm_start(self) -> str:
        from autoforge_jax.train.phase_sft import warm_start

        ended = warm_start(self.assembly, self.references, self.log, self.reporter, self.stop)
        return f"{ended.result}, {self.assembly.parameters:,} parameters"

    def _eval_before(self) -> str:
        params, steps = self.trained("sft")
        return self._evaluate("before", params, 0, steps, self.run.keys["eval before"])

    def _erpo(self) -> str:
        from autoforge_jax.train.phase_erpo import train_erpo

        warm_steps = self.steps_done("sft")

        def evaluate_step(done: int, params: Params) -> None:
            self._evaluate(f"step-{done:06d}", params, done, warm_steps + done, self.run.keys["erpo"])

        ended = train_erpo(
            self.assembly,
            self.references.items,
            lambda: self.trained("sft")[0],
            warm_steps,
            self.log,
            self.reporter,
            self.stop,
            evaluate_step,
        )
        return ended.result

    def _final(self) -> tuple[Params, int, int]:
        """(parameters, ERPO steps, policy version) at the end of the run."""
        if self.run.config.erpo.steps == 0:
            params, warm_steps = self.trained("sft")
            return params, 0, warm_steps
        warm_steps = self.steps_done("sft")
        params, steps = self.trained("erpo")
        return params, steps, warm_steps + steps

    def _eval_after(self) -> str:
        params, steps, version = self._final()
        return self._evaluate("after", params, steps, version, self.run.keys["eval after"])

    def _export(self) -> str:
        from autoforge_jax.model.export_hf import export_hf

        params, _, version = self._final()
        if self.crew.count > 1:
            from autoforge_jax.model.sharding import gather_to_host

            params = gather_to_host(params)
        tokenizer = self.assembly.renderer.tokenizer
        ids: dict[str, int | list[int]] = {
            "pad_token_id": tokenizer.pad_id,
            "eos_token_id": list(tokenizer.stop_ids),
        }
        files = sorted(self.run.tokenizer.glob("*.j*"))
        model, whole = self.assembly.model_config, self.assembly.whole(params)
        self.crew.of_first(
            "export", lambda: export_hf(self.run.export, whole, model, files, ids, dtype=model.dtype)
        )
        return f"{self.run.export} (policy version {version})"

    def _report(self) -> str:
        def write() -> str:
            write_summary(self.run)
            return str(write_report(self.run.root))

        return self.crew.of_first("report", write)


def execute(
    config: Config,
    *,
    command: str = "run",
    fresh: bool = False,
    config_name: str = "CONFIG",
    reporter: Reporter | None = None,
    stop: StopFlag | None = None,
    crew: Crew | None = None,
) -> RunDir:
    """Run a command's phases; returns the run directory. With a crew every process calls this alike; the
    first prints and writes for all.

    Raises ConfigError, TrainingError, CheckpointError and envgen's errors for what a person can mend;
    Interrupted after a signal, once everything is saved.
    """
    crew, stop = crew or Crew(), stop or StopFlag()
    with ExitStack() as stack:
        if reporter is None:
            out = None if crew.first else stack.enter_context(Path(os.devnull).open("w"))
            reporter = Reporter(out)
        if crew.count > 1:
            stop.share(lambda number: max(crew.gather("stop", number)))
            version = metadata.version("autoforge-jax")
            crew.agree("configs", hash_json([command, dump_config(config), version]))
        stack.enter_context(stop_on_signals(stop))
        if command == "eval":
            return _evaluate_newest(config, reporter, stop, config_name, crew, stack)
        _hold(config, reporter, crew, stack)
        if fresh:  # a config that cannot be is no reason to delete what is there
            check_start(config, None, crew)
        run = RunDir.open(config, fresh=fresh, crew=crew)
        if not fresh:
            check_start(config, run, crew)
        if command == "train" and run.done("warm start") is None:
            raise TrainingError(
                f"{run.root} holds no warm start to train from; run first: autoforge sft {config_name}"
            )
        loop = Loop(run, reporter, stop, crew)
        phases = {"run": tuple(PHASES), "sft": SFT_PHASES, "train": ERPO_PHASES}[command]
        with closing(loop):
            for name in phases:
                loop.phase(name)
        if command == "run":
            reporter.line("")
            table = crew.of_first("table", lambda: results_table(read_reports(run.evals), config.run.seed))
            reporter.line(table)
        else:
            loop.go("report", loop._report, always=True)
    return run


def _hold(config: Config, reporter: Reporter, crew: Crew, stack: ExitStack) -> None:
    """The run directory is this command's until `stack` ends; said where nothing can be held."""
    if not crew.of_first("run lock", lambda: stack.enter_context(run_lock(config))):
        reporter.line(
            f"note: the file system of {config.run.out_dir} knows no locks; do not start a second command"
        )


def _evaluate_newest(
    config: Config, reporter: Reporter, stop: StopFlag, config_name: str, crew: Crew, stack: ExitStack
) -> RunDir:
    """`autoforge eval`: the newest checkpoint of the run, under this config's evaluation settings. `stack`
    holds the run directory: a run that goes on deletes the checkpoint that is read here, and both would write
    the report and give a server their weights."""
    run = RunDir.existing(config, differing=("evaluation", "sampled_evaluation"), crew=crew)
    _hold(config, reporter, crew, stack)
    if not run.started("warm start"):
        raise TrainingError(f"{run.root} holds no checkpoint; run first: autoforge sft {config_name}")
    loop = Loop(run, reporter, stop, crew)
    with closing(loop):
        return _evaluate_with(loop)


def _evaluate_with(loop: Loop) -> RunDir:
    from autoforge_jax.train.phase_evaluate import evaluate_stage

    run, reporter, config = loop.run, loop.reporter, loop.run.config
    newest = loop.crew.of_first("newest checkpoint", loop.assembly.store("erpo").latest)
    phase = "erpo" if newest else "sft"
    params, steps = loop.trained(phase)
    warm_steps = loop.steps_done("sft") if phase == "erpo" else 0
    start = time.perf_counter()
    result = evaluate_stage(
        loop.assembly,
        loop.environments.evaluation_sets(),
        params,
        stage="newest",
        step=steps if phase == "erpo" else 0,
        version=warm_steps + steps,
        key=f"{run.keys['eval after']}-{phase}-{steps}",
        reporter=reporter,
        stop=loop.stop,
    )
    reporter.phase("eval", f"{phase} step {steps}: {result}", time.perf_counter() - start)
    if loop.crew.first:
        write_summary(run)
        reporter.line(results_table(read_reports(run.evals), config.run.seed))
        reporter.line(str(write_report(run.root)))
    return run
