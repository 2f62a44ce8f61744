"""Rollout speed: the embedded engine at 1, 8, 32 and 128 episodes, and what the harness itself costs a turn.

    python benchmarks/rollouts.py                 # everything, about 5 minutes on one quiet core
    python benchmarks/rollouts.py --runs 3 --episodes 1 8 --harness-episodes 256
    python benchmarks/rollouts.py --run runs/quickstart      # the policy and the tasks of a finished run

*Engine*: `JaxEngine`, either with the policy that a finished run exported, on that run's training tasks (what
a rollout of ERPO costs), or with a freshly drawn model (the shape of --config) on tasks synthesised here. An
untrained policy never ends a turn: each of its episodes is one turn of `rollout.max_turn_tokens`, which
measures decoding, not episodes. Every run is played twice, the second time is counted: the first compiles
("late" compiles, which a counted run still had to do, should be 0). CPU seconds are of all threads: on a
machine that is shared they say more than the clock.

*Harness*: an engine that costs nothing (the reference's ids, already made) at 1,024 episodes: rendering,
ledger, environment, grading and the pool. Microseconds of this process per turn.

Prints the machine, median and spread (least and most) of the runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from autoforge_jax.config import Config, load_config
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.hf_config import read_hf_config
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.episode import reference_policy, reference_texts
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.pool import run_episodes
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import PolicyTokenizer, train_tokenizer
from autoforge_jax.train.assembly import abstract_graph, create_params
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams, Trajectory
from autoforge_jax.xla_flags import prepare_process
from envgen.interface import load_bundle, synthesize

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = "examples/tooldocs/docker_simplechecklist_tools.json"


@dataclass(frozen=True)
class Timed:
    """One run of some episodes."""

    wall_s: float
    cpu_s: float
    trajectories: list[Trajectory]

    @property
    def tokens(self) -> int:
        """Sampled."""
        return sum(t.sampled_tokens for t in self.trajectories)

    @property
    def turns(self) -> int:
        """Sampled."""
        return sum(len(t.turns) for t in self.trajectories)


def timed(call: Callable[[], list[Trajectory]]) -> Timed:
    """Wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    out = call()
    return Timed(time.perf_counter() - wall, time.process_time() - cpu, out)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """``median (least–most)``."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def machine() -> str:
    """What this ran on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores ({len(os.sched_getaffinity(0))} usable), load {load}, "
        f"{jax.devices()[0].platform}, jax {jax.__version__}, Python {platform.python_version()}"
    )


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@dataclass(frozen=True)
class Subject:
    """What is measured: settings, tasks, renderer and a policy."""

    title: str
    settings: Config
    items: list[TaskItem]
    renderer: Renderer
    model: Qwen3Config
    params: Any

    @classmethod
    def fresh(cls, config: Path, document: str, tasks: int) -> Subject:
        """An untrained policy, and the tasks of a bundle made from a document of the examples."""
        settings = load_config(config)
        bundle = synthesize(ROOT / document, tasks=tasks, heldout=1, seed=0)
        items = [(bundle, task) for task in bundle.tasks]
        texts = list(reference_texts(items, settings.render))
        renderer = Renderer(train_tokenizer(texts, 1024), settings.render)
        model = Qwen3Config.from_model_config(settings.model, renderer.tokenizer.vocab_size)
        _, params = create_params(model, 0, None)
        return cls(f"an untrained policy on {document}", settings, items, renderer, model, params)

    @classmethod
    def of_run(cls, folder: Path) -> Subject:
        """The policy that a run exported, on its training tasks (environments take turns)."""
        settings = load_config(folder / "config.toml")
        names = [Path(name).stem for name in settings.synthesis.documents]
        bundles = [load_bundle(folder / "bundles" / name) for name in names]
        queues = [[(bundle, task) for task in bundle.split("train")] for bundle in bundles]
        items = [queue[n] for n in range(min(map(len, queues))) for queue in queues]
        tokenizer = PolicyTokenizer.load(folder / "tokenizer", FORMATS[settings.render.format].roles)
        model = read_hf_config(folder / "export")
        params = load_hf(folder / "export", model)
        title = f"the policy of {folder.name} on its {len(names)} environments"
        return cls(title, settings, items, Renderer(tokenizer, settings.render), model, params)


def jobs_of(items: Sequence[TaskItem], count: int, step: int, size: int = 8) -> list[EpisodeJob]:
    """`count` episodes, up to `size` of a task, as groups have it."""
    return [
        EpisodeJob(
            *items[(n // size) % len(items)], sample_index=n % size, step=step + n // (size * len(items))
        )
        for n in range(count)
    ]


def play(
    policy: Policy, jobs: Sequence[EpisodeJob], renderer: Renderer, limits: EpisodeLimits
) -> list[Trajectory]:
    """All jobs side by side."""
    params = SamplingParams(temperature=1.0)
    return run_episodes(policy, jobs, renderer, sampling=params, limits=limits, slots=len(jobs))


def measure_engine(subject: Subject, sizes: Sequence[int], runs: int) -> None:
    """Tokens and episodes per second at each size; an engine has as many slots as there are episodes."""
    limits = EpisodeLimits.of(subject.settings.rollout)
    model, renderer, items = subject.model, subject.renderer, subject.items
    longest = max(len(renderer.prefix(bundle)) for bundle, _ in items)
    graphdef = abstract_graph(model)
    print(
        f"engine: {subject.title}, {model.num_parameters:,} parameters, contexts of at most "
        f"{limits.max_trajectory_tokens} tokens, {limits.max_turn_tokens} a turn"
    )
    print(
        "episodes | tokens/s | tokens a CPU second | episodes/s | tokens an episode | turns an episode "
        "| ms a token of one episode | compiles (late), s | rows decoded that gave a token"
    )
    for size in sizes:
        engine = JaxEngine(
            graphdef, model, slots=size, max_length=limits.max_trajectory_tokens,
            pad_id=renderer.tokenizer.pad_id, prefix_tokens=longest,
        )  # fmt: skip
        engine.load(subject.params, 0)
        todo = [jobs_of(items, size, step=1000 * run) for run in range(runs)]
        for jobs in todo:  # what it compiles is not counted: sampling repeats exactly, so do the shapes
            play(engine, jobs, renderer, limits)
        early = engine.stats()
        later = [
            timed(lambda jobs=jobs, engine=engine: play(engine, jobs, renderer, limits)) for jobs in todo
        ]
        stats = engine.stats()
        tokens, turns = sum(r.tokens for r in later), sum(r.turns for r in later)
        wall = sum(r.wall_s for r in later)
        print(
            f"{size} | {spread([r.tokens / r.wall_s for r in later], 0)} | "
            f"{spread([r.tokens / r.cpu_s for r in later], 0)} | "
            f"{spread([size / r.wall_s for r in later], 2)} | {tokens / size / runs:.0f} | "
            f"{turns / size / runs:.1f} | {1000 * wall * size / tokens:.1f} | "
            f"{early['compiles']:.0f} ({stats['compiles'] - early['compiles']:.0f}), "
            f"{stats['compile_seconds']:.0f} | {stats['decode_useful']:.0%}",
            flush=True,
        )


def measure_harness(items: Sequence[TaskItem], renderer: Renderer, count: int, runs: int) -> None:
    """Microseconds per turn with an engine that costs nothing."""
    limits = EpisodeLimits(
        max_turns=64,
        max_tool_calls=64,
        max_tool_errors=8,
        max_turn_tokens=4096,
        max_trajectory_tokens=1 << 15,
    )
    rows: list[Timed] = []
    sampling: list[float] = []
    for run in range(runs + 1):
        policy = _Clocked(reference_policy(items, renderer))
        jobs = jobs_of(items, count, step=1000 * run)
        rows.append(timed(lambda policy=policy, jobs=jobs: play(policy, jobs, renderer, limits)))
        sampling.append(policy.cpu_s)
    bad = [t for row in rows for t in row.trajectories if not t.success]
    if bad:
        raise SystemExit(f"{len(bad)} references did not succeed, the first {bad[0].task_id}: no measurement")
    rows, sampling = rows[1:], sampling[1:]
    wall = [(r.wall_s - s) / r.turns * 1e6 for r, s in zip(rows, sampling, strict=True)]
    cpu = [(r.cpu_s - s) / r.turns * 1e6 for r, s in zip(rows, sampling, strict=True)]
    print(
        f"harness at {count:,} episodes, {rows[0].turns:,} turns, {rows[0].tokens:,} sampled tokens: "
        f"{spread(cpu)} µs of CPU a turn, {spread(wall)} µs of wall; "
        f"{spread([count / r.wall_s for r in rows], 0)} episodes/s"
    )


class _Clocked:
    """A policy, and the CPU seconds spent in it."""

    def __init__(self, inner: Policy) -> None:
        self._inner, self.cpu_s = inner, 0.0

    @property
    def version(self) -> int:
        return self._inner.version

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleOutput]:
        began = time.process_time()
        try:
            return self._inner.sample(requests)
        finally:
            self.cpu_s += time.process_time() - began

    def release(self, session_id: str) -> None:
        self._inner.release(session_id)


def main() -> None:
    """Measure and print."""
    prepare_process()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--harness-episodes", type=int, default=1024, help="0: not measured")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each size")
    parser.add_argument("--run", type=Path, help="folder of a finished run: its policy, on its tasks")
    parser.add_argument("--document", default=DOCUMENT, help="tool document, relative to the repository")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "train" / "cpu_study.toml")
    options = parser.parse_args()
    print(machine())
    if options.run is None:
        subject = Subject.fresh(options.config, options.document, options.tasks)
    else:
        subject = Subject.of_run(options.run)
    print(f"{len(subject.items)} tasks, {options.runs} runs each, median (least–most)")
    if options.harness_episodes:
        measure_harness(subject.items, subject.renderer, options.harness_episodes, options.runs)
    if options.episodes:
        measure_engine(subject, options.episodes, options.runs)


if __name__ == "__main__":
    main()
