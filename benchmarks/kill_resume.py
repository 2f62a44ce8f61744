"""Kill a small run with SIGKILL at random points; what is finished afterwards must equal the run that nobody
killed.

    python benchmarks/kill_resume.py [--kills 20] [--seed 0] [--config configs/debug/kill.toml] [--keep]

Half of the points are moments (a share of the uninterrupted run's CPU time, at which the process is killed
from outside; read from /proc, so Linux only), half are places: just before the n-th time that the program
opens a file of the run for writing, renames or deletes one, where a half-written file or a wrong order of
two files would show. Every trial starts from nothing, is killed once, and the same command is run again to
the end. Compared are all bytes of the newest checkpoints' arrays (parameters, optimiser), the exported
weights, the tokenizer, the bundles' hashes, every line of metrics.jsonl and trajectories.jsonl and every
evaluation; left out are times and compile counts. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VARYING = ("seconds", "speed", "compiles", "engine_compiles", "compile_seconds")
"""Keys that may differ between two runs: times, speeds, and what a process had to compile."""
WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True)
class Point:
    """Where a trial is killed."""

    kind: str
    """`time` (a share of the whole run) or `file` (a number of a file event)."""
    value: float

    def __str__(self) -> str:
        if self.kind == "time":
            return f"at {self.value:.0%} of the time"
        return f"before file event {self.value:.0f}"


# ------------------------------------------------------------------------------------------------ the child
def child(run_dir: str, kill_at: int, words: list[str], within: str = "") -> None:
    """The command line itself, counting file events under `run_dir` (with `within` in their path); SIGKILL
    before event `kill_at` (0 = never)."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            _, mode, flags = arguments
            writes = bool(flags & WRITES) or (isinstance(mode, str) and mode[:1] in "wax")
            if not writes:
                return
        elif event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"):
            return
        if run_dir not in str(arguments[0]) or within not in str(arguments[0]):
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    sys.argv = ["autoforge", *words]
    from autoforge_jax.cli import main

    try:
        main()
    finally:
        Path(run_dir + ".events").write_text(str(count))


def start(config: Path, out_dir: Path, name: str, kill_at: int, cache: str) -> subprocess.Popen[str]:
    """One process of the run `name`."""
    words = ["run", str(config), "--set", f"run.out_dir={out_dir}", "--set", f"run.name={name}"]
    words += ["--set", f"run.compile_cache={cache}"]
    return subprocess.Popen(
        [sys.executable, __file__, "--child", str(out_dir / name), "--kill-at", str(kill_at), *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for the end; a run that fails ends the benchmark with its output."""
    output, _ = process.communicate()
    if process.returncode != 0:
        sys.exit(f"a run ended with {process.returncode}:\n{output[-4000:]}")


# ------------------------------------------------------------------------------------------------ comparing
def arrays(run: Path, phase: str) -> dict[str, str]:
    """Path -> hash of the bytes of every array of the newest checkpoint, read by orbax alone."""
    import numpy as np
    import orbax.checkpoint as ocp

    newest = sorted((run / "checkpoints" / phase).glob("step_*"))[-1]
    names = [entry["path"] for entry in json.loads((newest / "meta.json").read_text())["arrays"]]
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        kind = ocp.RestoreArgs(restore_type=np.ndarray)
        tree = reader.metadata(newest / "state").item_metadata.tree
        values = reader.restore(
            newest / "state", args=ocp.args.PyTreeRestore(restore_args=dict.fromkeys(tree, kind))
        )
    return {
        f"{newest.name}/{name}": hashlib.sha256(np.asarray(values[f"a{i:05d}"]).tobytes()).hexdigest()
        for i, name in enumerate(names)
    }


def rows(path: Path) -> list[str]:
    """Lines of a JSONL file without what may vary."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        json.dumps({k: v for k, v in row.items() if k not in VARYING})
        for row in found
        if row.get("stage") != "newest"  # `autoforge eval`: asked for by hand
    ]


def contents(run: Path) -> dict[str, Any]:
    """Everything that must not depend on a kill, by name."""
    found: dict[str, Any] = {f"{phase} arrays": arrays(run, phase) for phase in ("sft", "erpo")}
    found["metrics"] = rows(run / "metrics.jsonl")
    # evaluations between steps keep their lines when the steps around them are done again
    found["trajectories"] = sorted(rows(run / "trajectories.jsonl"))
    for path in sorted((run / "eval").glob("*.json")):
        if path.name.startswith("newest-"):
            continue
        tree = json.loads(path.read_text())
        tree["report"].pop("seconds")
        found[f"eval {path.stem}"] = tree
    bundles = json.loads((run / "bundles.json").read_text())
    found["bundles"] = [(item["name"], item["content_hash"]) for item in bundles]
    for name in ("export/model.safetensors", "tokenizer/tokenizer.json"):
        found[name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    return found


def differences(run: Path, whole: Path) -> list[str]:
    """Names of what differs."""
    a, b = contents(run), contents(whole)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def updates(run: Path) -> tuple[int, int]:
    """ERPO steps that changed the weights, and all of them."""
    steps = [row for row in map(json.loads, rows(run / "metrics.jsonl")) if row["phase"] == "erpo"]
    return sum(not row["update_skipped"] for row in steps), len(steps)


def where(run: Path) -> str:
    """What the killed run had got to, in words."""
    path = run / "phases.json"
    phases = [r["name"] for r in json.loads(path.read_text()) if not r["done"]] if path.is_file() else []
    log = run / "metrics.jsonl"
    lines = log.read_bytes().count(b"\n") if log.is_file() else 0
    by_phase = [sorted(run.glob(f"checkpoints/{phase}/step_*")) for phase in ("sft", "erpo")]
    saved = [p.relative_to(run / "checkpoints").as_posix() for steps in by_phase for p in steps]
    half = [p.name for p in sorted(run.glob("checkpoints/*/.*"))]
    words = f"in {phases[-1] if phases else 'no phase'}, {lines} lines of metrics, newest {saved[-1:] or '-'}"
    return words + (f", unfinished {half}" if half else "")


# ------------------------------------------------------------------------------------------------ trials
def points(kills: int, seed: int, events: int) -> list[Point]:
    """Half moments, half places; a function of the seed."""
    draw = random.Random(seed)
    moments = [Point("time", draw.uniform(0.02, 0.98)) for _ in range(kills // 2)]
    return moments + [Point("file", draw.randrange(1, events + 1)) for _ in range(kills - kills // 2)]


def cpu_seconds(pid: int) -> float:
    """CPU time of a live process and its ended children so far: a busy machine does not move the points."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def trial(point: Point, config: Path, out_dir: Path, name: str, seconds: float, cache: str) -> str:
    """Kill one run at `point`, then let it finish. Returns where it was."""
    process = start(config, out_dir, name, int(point.value) if point.kind == "file" else 0, cache)
    while point.kind == "time" and process.poll() is None:
        if cpu_seconds(process.pid) >= point.value * seconds:
            process.kill()
            break
        time.sleep(0.01)
    process.communicate()
    died = "killed" if process.returncode == -signal.SIGKILL else f"had ended with {process.returncode}"
    text = f"{died} {where(out_dir / name)}"
    finish(start(config, out_dir, name, 0, cache))
    return text


def main() -> None:
    """Parse, run, print one line per kill."""
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.description = __doc__
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="go on with this kill of the seed's list")
    parser.add_argument("--count", type=int, help="how many kills of the list; all without")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/debug/kill.toml")
    parser.add_argument("--out", type=Path, help="where the runs go; a temporary folder without")
    parser.add_argument("--cache", default=str(ROOT / ".jax_cache"), help="compile cache")
    parser.add_argument("--keep", action="store_true", help="keep the runs that were equal")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--within", default="", help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, default=0, help=argparse.SUPPRESS)
    options, words = parser.parse_known_args()
    if options.child:
        child(options.child, options.kill_at, words, options.within)
        return
    out_dir = options.out or Path(tempfile.mkdtemp(prefix="kill-resume-"))
    whole = out_dir / "whole"
    if not (out_dir / "again.seconds").is_file():
        finish(start(options.config, out_dir, "whole", 0, options.cache))  # fills the compile cache
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        finish(start(options.config, out_dir, "again", 0, options.cache))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (out_dir / "again.seconds").write_text(str(spent))
    seconds = float((out_dir / "again.seconds").read_text())
    events = int((out_dir / "again.events").read_text())
    made, steps = updates(whole)
    if made == 0:
        sys.exit(f"none of the {steps} ERPO steps had a signal: equal runs would show nothing about updates")
    differing = differences(out_dir / "again", whole)
    verdict = f"DIFFERS: {', '.join(differing)}" if differing else "bit-equal"
    print(
        f"uninterrupted, a second time: {seconds:.1f} CPU seconds, {events} file events, "
        f"{made} of {steps} ERPO steps updated; {verdict}",
        flush=True,
    )
    unequal = 0
    chosen = list(enumerate(points(options.kills, options.seed, events)))[options.first :][: options.count]
    for number, point in chosen:
        name = f"kill-{options.seed}-{number:02d}"
        shutil.rmtree(out_dir / name, ignore_errors=True)
        text = trial(point, options.config, out_dir, name, seconds, options.cache)
        differing = differences(out_dir / name, whole)
        unequal += bool(differing)
        verdict = f"DIFFERS: {', '.join(differing)}" if differing else "bit-equal"
        print(f"{number + 1:2d}/{options.kills} {point}: {text}; {verdict}", flush=True)
        if not differing and not options.keep:
            shutil.rmtree(out_dir / name)
    print(f"{unequal} of {len(chosen)} runs differ")
    sys.exit(1 if unequal else 0)


if __name__ == "__main__":
    main()
