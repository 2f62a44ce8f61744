"""The run directory: where everything of one run lies, and which phases are done. No JAX.

    config.toml, config.json     the resolved config
    bundles/, bundles.json       synthesised environments and the hashes the run is tied to
    tokenizer/                   tokenizer files
    phases.json                  phases started and done, each with the key of what it depends on
    metrics.jsonl                one JSON per step: phase, step, metrics, seconds by activity
    trajectories.jsonl           sampled trajectories, readable turn by turn
    eval/*.json                  evaluation reports
    checkpoints/{sft,erpo}/      orbax
    export/                      Hugging Face folder
    summary.json, report.html

A phase's key is a hash of the config values it depends on and of the key of its parent phase. A run directory
that holds results of another config is an error that names the keys that differ; nothing is overwritten
without
``--fresh``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoforge_jax.config import Config, dump_config
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.state_files import PhaseRecord, read_records, saved_config, write_atomic, write_json


@dataclass(frozen=True)
class PhaseSpec:
    """What a phase's product is a function of."""

    parent: str
    """The phase whose product it starts from."""
    sections: tuple[str, ...]
    """Config keys and sections it reads, beside those of its ancestors."""


_BUDGETS = tuple(
    f"rollout.max_{name}" for name in ("turns", "tool_calls", "turn_tokens", "trajectory_tokens")
)
_EVALUATION = ("evaluation", "sampled_evaluation")
_CONDITIONS = ("user", "judge", "tool_failures")
PHASES: dict[str, PhaseSpec] = {
    "synthesis": PhaseSpec("", ("synthesis",)),
    "tokenizer": PhaseSpec("synthesis", ("run.seed", "render", "tokenizer", "model.init_from")),
    "references": PhaseSpec("tokenizer", _BUDGETS),
    "eval init": PhaseSpec("references", ("model", "rollout", *_CONDITIONS, *_EVALUATION)),
    "warm start": PhaseSpec("references", ("model", "lora", "batch", "sft", "rollout", *_CONDITIONS)),
    "eval before": PhaseSpec("warm start", _EVALUATION),
    "erpo": PhaseSpec("warm start", ("erpo",)),
    "eval after": PhaseSpec("erpo", _EVALUATION),
    "export": PhaseSpec("erpo", ()),
    "report": PhaseSpec("eval after", ()),
}
"""In the order in which they run."""

NEUTRAL = (
    "run.name", "run.out_dir", "run.compile_cache", "run.trace_step", "run.trace_steps", "synthesis.workers",
    "erpo.checkpoint_every", "erpo.keep_checkpoints", "model.remat", "model.remat_saves",
    "rollout.user_workers", "rollout.sglang", "mesh",
    *(f"{role}.server.{key}" for role in ("user", "judge")
      for key in ("base_url", "api_key_env", "timeout_s", "connect_timeout_s", "retries")),
)  # fmt: skip
"""Keys and sections that change no result."""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _under(key: str, sections: tuple[str, ...]) -> bool:
    def inside(names: tuple[str, ...]) -> bool:
        return any(key == name or key.startswith(name + ".") for name in names)

    return inside(sections) and not inside(NEUTRAL)


def toml_text(tree: Mapping[str, Any], prefix: str = "") -> str:
    """A tree of JSON values (no nulls) as TOML; reading it back gives the same tree."""
    scalars = {k: v for k, v in tree.items() if not isinstance(v, Mapping)}
    tables = {k: v for k, v in tree.items() if isinstance(v, Mapping)}
    lines = [f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in scalars.items()]
    for key, value in tables.items():
        name = f"{prefix}{_toml_key(key)}"
        lines.append(f"\n[{name}]\n" + toml_text(value, f"{name}."))
    return "".join(lines).lstrip("\n") if not prefix else "".join(lines)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, int):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def hash_json(value: Any) -> str:
    """Content hash of a JSON value (a dumped config), independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RunDir:
    """One run's directory. `open` checks it against a config; the phases read and write through it."""

    def __init__(self, root: Path, config: Config, *, writes: bool = True) -> None:
        self.root = root
        self.writes = writes
        """False in all but the first of several processes: they read what it writes."""
        self.config = config
        self.keys = phase_keys(config)
        self.records: dict[str, PhaseRecord] = read_records(root)

    @classmethod
    def open(cls, config: Config, *, fresh: bool = False, crew: Crew | None = None) -> RunDir:
        """The run directory of `config`, created when absent; with several processes by the first.

        ConfigError when it holds results of another config (the message names the keys), is no run directory
        at all, or is not seen by every process.
        """
        root = Path(config.run.out_dir) / config.run.name
        return _by_first(root, config, crew or Crew(), lambda: cls._prepare(root, config, fresh))

    @classmethod
    def _prepare(cls, root: Path, config: Config, fresh: bool) -> RunDir:
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{root} is a file; choose another run.name or run.out_dir")
        foreign = root.is_dir() and any(root.iterdir()) and not (root / "config.json").is_file()
        if foreign:
            raise ConfigError(
                f"{root} is not empty and holds no run (no config.json); choose another run.name"
            )
        if fresh and root.is_dir():
            shutil.rmtree(root)
        root.mkdir(parents=True, exist_ok=True)
        run = cls(root, config)
        run._check_config()
        run._save_config()
        return run

    @classmethod
    def existing(cls, config: Config, *, differing: tuple[str, ...] = (), crew: Crew | None = None) -> RunDir:
        """The run directory of `config` that must hold results; keys under `differing` may differ from the
        run's."""
        root = Path(config.run.out_dir) / config.run.name

        def check() -> RunDir:
            if not (root / "config.json").is_file():
                raise ConfigError(f"{root} holds no run; make one with: autoforge run CONFIG")
            run = cls(root, config)
            run._check_config(differing)
            return run

        return _by_first(root, config, crew or Crew(), check)

    # ---------------------------------------------------------------------------------------------- paths
    @property
    def bundles(self) -> Path:
        """Synthesised bundles, one folder each."""
        return self.root / "bundles"

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer files."""
        return self.root / "tokenizer"

    @property
    def metrics(self) -> Path:
        """metrics.jsonl."""
        return self.root / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        """trajectories.jsonl."""
        return self.root / "trajectories.jsonl"

    @property
    def evals(self) -> Path:
        """Folder of evaluation reports."""
        return self.root / "eval"

    @property
    def export(self) -> Path:
        """Folder of the Hugging Face export."""
        return self.root / "export"

    @property
    def trace(self) -> Path:
        """Folder of profiler traces."""
        return self.root / "trace"

    def checkpoints(self, phase: str) -> Path:
        """Folder of the checkpoints of `sft` or `erpo`."""
        return self.root / "checkpoints" / phase

    # ---------------------------------------------------------------------------------------------- phases
    def done(self, phase: str) -> PhaseRecord | None:
        """The record of a phase that is done under this config, else None."""
        record = self.records.get(phase)
        return record if record is not None and record.done and record.key == self.keys[phase] else None

    def started(self, phase: str) -> bool:
        """True when the phase has begun under this config, done or not."""
        record = self.records.get(phase)
        return record is not None and record.key == self.keys[phase]

    def mark(self, phase: str, *, done: bool, seconds: float = 0.0, result: str = "") -> None:
        """Record that a phase has started (`done=False`) or is done; seconds are added to those of earlier
        attempts."""
        before = self.records[phase].seconds if self.started(phase) else 0.0
        self.records[phase] = PhaseRecord(phase, self.keys[phase], done, round(before + seconds, 3), result)
        if self.writes:
            write_json(
                self.root / "phases.json",
                [vars(self.records[name]) for name in PHASES if name in self.records],
            )

    # ---------------------------------------------------------------------------------------------- config
    def _check_config(self, differing: tuple[str, ...] = ()) -> None:
        path = self.root / "config.json"
        if not path.is_file():
            return
        # Without phases.json nobody knows which phases have begun: where there are results, all have.
        made = (self.tokenizer, self.evals, self.root / "checkpoints")
        unknown = not (self.root / "phases.json").is_file() and any(_holds_files(path) for path in made)
        done = unknown or any(record.done for record in self.records.values())
        if not done and not _holds_files(self.bundles):
            self.records.clear()  # an attempt that ended before it had anything: nothing to protect
            return
        old, new = flatten(saved_config(self.root)), flatten(dump_config(self.config))
        depends: tuple[str, ...] = ()
        for name, spec in PHASES.items():
            if name in self.records or unknown:
                depends += spec.sections
        faults = [
            f"{key}: the run has {_toml_value(old[key]) if key in old else 'nothing'}, "
            f"this config has {_toml_value(new[key]) if key in new else 'nothing'}"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key) and _under(key, depends) and not _under(key, differing)
        ]
        if faults:
            raise ConfigError(
                f"{self.root} holds results of another config:\n"
                + "\n".join(faults)
                + ("\n(phases.json is not there, so every key counts)" if unknown else "")
                + f"\nits own config is {self.root / 'config.toml'}: go on with that one, take a new run "
                "directory (--set run.name=…), or start over with `autoforge run … --fresh`, which deletes it"
            )

    def _save_config(self) -> None:
        tree = dump_config(self.config)
        write_json(self.root / "config.json", tree)
        write_atomic(self.root / "config.toml", toml_text(tree))


def phase_keys(config: Config) -> dict[str, str]:
    """Phase name -> hash of the config values it depends on, chained to its parent."""
    flat = flatten(dump_config(config))
    keys: dict[str, str] = {}
    for name, spec in PHASES.items():
        values = {key: value for key, value in flat.items() if _under(key, spec.sections)}
        text = json.dumps([keys.get(spec.parent, ""), name, values], sort_keys=True)
        keys[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return keys


def _by_first(root: Path, config: Config, crew: Crew, prepare: Callable[[], RunDir]) -> RunDir:
    """The run directory that the first process prepares, as every process sees it."""
    prepared: list[RunDir] = []

    def records() -> dict[str, PhaseRecord]:
        prepared.append(prepare())
        return prepared[0].records

    known = crew.of_first("run directory", records)
    if crew.first:
        return prepared[0]
    if not (root / "config.json").is_file():
        raise ConfigError(
            f"{crew.name(crew.index)} does not see {root}: all processes need the same run directory; put "
            "run.out_dir on a file system that they share"
        )
    run = RunDir(root, config, writes=False)
    run.records = dict(known)
    return run


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
