"""Rollout speed: the embedded engine at 1, 8, 32 and 128 episodes, and what the harness itself costs a turn.

    python benchmarks/rollouts.py                 # everything, about 5 minutes on one quiet core
    python benchmarks/rollouts.py --runs 3 --episodes 1 8 --harness-episodes 256

*Engine*: `JaxEngine` with a freshly drawn model (default: the shape of configs/train/cpu_study.toml) on the
tasks of a bundle that is synthesised here from examples/tooldocs. An untrained policy babbles, so episodes
end with their token or turn budget: tokens per second are those of any policy of that shape, episodes per
second those of episodes of the length printed beside them. The first run of a size compiles and is not
counted.

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

import jax
from flax import nnx

from autoforge_jax.config import load_config
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.episode import reference_policy, reference_texts
from autoforge_jax.rollout.jobs import EpisodeJob, EpisodeLimits, TaskItem
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.pool import run_episodes
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import train_tokenizer
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams, Trajectory
from envgen.interface import synthesize

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


def make_items(document: str, tasks: int) -> list[TaskItem]:
    """The tasks of a bundle made from a document of the examples."""
    bundle = synthesize(ROOT / document, tasks=tasks, heldout=1, seed=0)
    return [(bundle, task) for task in bundle.tasks]


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


def measure_engine(
    items: Sequence[TaskItem], renderer: Renderer, config: Path, sizes: Sequence[int], runs: int
) -> None:
    """Tokens and episodes per second at each size."""
    settings = load_config(config)
    limits = EpisodeLimits.of(settings.rollout)
    model = Qwen3Config.from_model_config(settings.model, renderer.tokenizer.vocab_size)
    graphdef, params = nnx.split(Qwen3(model, rngs=nnx.Rngs(0)), nnx.Param)
    engine = JaxEngine(
        graphdef, model, slots=max(sizes), max_length=limits.max_trajectory_tokens,
        pad_id=renderer.tokenizer.pad_id,
    )  # fmt: skip
    engine.load(params, 0)
    print(f"engine: {model.num_parameters:,} parameters, contexts of at most {limits.max_trajectory_tokens}")
    print("episodes | tokens/s | episodes/s | tokens an episode | turns an episode | compiles")
    for size in sizes:
        before = engine.stats()["compiles"]
        rows: list[Timed] = []
        for run in range(runs + 1):
            jobs = jobs_of(items, size, step=1000 * run)
            rows.append(timed(lambda jobs=jobs: play(engine, jobs, renderer, limits)))
        later = rows[1:]
        print(
            f"{size} | {spread([r.tokens / r.wall_s for r in later], 0)} | "
            f"{spread([size / r.wall_s for r in later], 2)} | "
            f"{statistics.mean(r.tokens / size for r in later):.0f} | "
            f"{statistics.mean(r.turns / size for r in later):.1f} | "
            f"{engine.stats()['compiles'] - before:.0f}",
            flush=True,
        )
    stats = engine.stats()
    print(
        f"compiled programs: {stats['compiles']:.0f}, {stats['compile_seconds']:.1f} s; "
        f"rows decoded that gave a token: {stats['decode_useful']:.0%}"
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--harness-episodes", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each size")
    parser.add_argument("--document", default=DOCUMENT, help="tool document, relative to the repository")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "train" / "cpu_study.toml")
    options = parser.parse_args()
    print(machine())
    items = make_items(options.document, options.tasks)
    render = load_config(options.config).render
    texts = list(reference_texts(items, render))
    renderer = Renderer(train_tokenizer(texts, 1024), render)
    print(f"{options.document}: {len(items)} tasks, {options.runs} runs each, median (least–most)")
    if options.harness_episodes:
        measure_harness(items, renderer, options.harness_episodes, options.runs)
    if options.episodes:
        measure_engine(items, renderer, options.config, options.episodes, options.runs)


if __name__ == "__main__":
    main()
