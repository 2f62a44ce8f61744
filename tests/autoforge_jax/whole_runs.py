"""Whole runs of the command line in processes of their own, and how far two of them are apart."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("sft.steps=12", "sft.probe_every=6", "erpo.steps=3", "erpo.eval_every=0", "evaluation.max_tasks=2")
"""A run of seconds: configs/debug/kill.toml with fewer steps."""
VARYING = ("seconds", "compiles", "engine_compiles")
ROUNDING = ("logprob_gap_mean", "logprob_gap_max")
"""How far engine and learner are apart: only rounding in a sound run, so there is no relative difference."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def launch(
    out_dir: Path, name: str, *sets: str, processes: int = 1, devices: int = 1, command: str = "run"
) -> subprocess.CompletedProcess[str]:
    """`autoforge run` through tpu_scripts/launch.sh --local, with so many CPU devices in each process."""
    words = [f"run.out_dir={out_dir}", f"run.name={name}", f"run.compile_cache={ROOT / '.jax_cache'}"]
    options = [word for text in (*SMALL, *words, *sets) for word in ("--set", text)]
    config = str(ROOT / "configs/debug/kill.toml")
    program = f"{sys.executable} -m autoforge_jax.cli"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    line = [*program.split(), command, config, *options]
    if processes > 1:
        script = str(ROOT / "tpu_scripts/launch.sh")
        line = ["bash", script, "--local", str(processes), command, config, *options]
        environment |= {"AUTOFORGE": program, "PORT": str(free_port())}
    return subprocess.run(
        line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )


def rows(path: Path) -> list[dict[str, Any]]:
    """Lines of a JSONL file without what may vary."""
    lines = path.read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in VARYING} for line in lines]


def apart(run: Path, other: Path) -> dict[str, Any]:
    """How far two runs are apart: what must be equal, and the largest relative differences of numbers."""
    weights, theirs = (load_file(r / "export/model.safetensors") for r in (run, other))
    mine, yours = rows(run / "metrics.jsonl"), rows(other / "metrics.jsonl")
    numbers = [
        (key, row[key], twin[key])
        for row, twin in zip(mine, yours, strict=True)
        for key in row
        if isinstance(row[key], float) and isinstance(twin[key], float) and key not in ROUNDING
    ]
    worst = max(numbers, key=lambda item: abs(item[1] - item[2]) / max(abs(item[2]), 1e-3))
    key = ("stage", "step", "set", "mode", "task_id", "sample_index")
    said, heard = (
        sorted(rows(r / "trajectories.jsonl"), key=lambda row: [str(row[k]) for k in key])
        for r in (run, other)
    )
    updates = [
        row["update_skipped"] for rows_of in (mine, yours) for row in rows_of if row["phase"] == "erpo"
    ]
    return {
        "updated": bool(updates) and not any(updates),
        "rounding": max(row[key] for of in (mine, yours) for row in of for key in ROUNDING if key in row),
        "steps": [(row["phase"], row["step"]) for row in mine]
        == [(row["phase"], row["step"]) for row in yours],
        "trajectories": said == heard,
        "metrics": abs(worst[1] - worst[2]) / max(abs(worst[2]), 1e-3),
        "worst_metric": worst[0],
        "weights": max(
            float(np.max(np.abs(weights[name] - value)) / np.max(np.abs(value)))
            for name, value in theirs.items()
        ),
    }


def main(out_dir: Path) -> None:
    """Print how far several ways to run are apart; by hand, to set the tests' bounds."""
    ways: dict[str, dict[str, Any]] = {
        "one": {},
        "two-devices": {"sets": ("mesh.data=2",), "devices": 2},
        "two-processes": {"sets": ("mesh.data=2",), "processes": 2},
        "eight": {"sets": ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"), "devices": 8},
    }
    for name, way in ways.items():
        if not (out_dir / name / "report.html").is_file():
            done = launch(out_dir, name, *way.pop("sets", ()), **way)
            print(name, done.returncode, done.stdout[-1500:], done.stderr[-2500:], flush=True)
    for a, b in (("two-devices", "one"), ("two-processes", "two-devices"), ("eight", "one")):
        print(a, "against", b, apart(out_dir / a, out_dir / b), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
