"""The small files that a run directory remembers itself by: written whole, and read with words for what is
wrong with them and what costs least to do about it. No JAX."""

from __future__ import annotations

import json
import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoforge_jax.errors import TrainingError

_RESTART = "start over with --fresh"
_FORGOTTEN = (
    "restore it, or delete it and start the same command again: what is done is then found by its files and "
    "checkpoints, nothing is trained twice, and only the seconds and results by phase are lost"
)


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON with a final newline."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(
    path: Path, expected: type[dict[Any, Any]] | type[list[Any]] | None = None, remedy: str = _RESTART
) -> Any:
    """A JSON file; TrainingError that names it, and what to do (`remedy`), when it is missing, broken, or not
    `expected`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TrainingError(f"{path} is missing") from error
    except (ValueError, RecursionError) as error:
        raise TrainingError(f"{path} is not JSON ({error}); the file is damaged, {remedy}") from error
    if expected is not None and not isinstance(value, expected):
        raise TrainingError(
            f"{path} holds a {type(value).__name__}, expected a {expected.__name__}; the file is damaged, "
            f"{remedy}"
        )
    return value


@dataclass(frozen=True)
class PhaseRecord:
    """What phases.json knows of one phase. `seconds` adds up over interrupted attempts."""

    name: str
    key: str
    done: bool
    seconds: float = 0.0
    result: str = ""


def read_records(root: Path) -> dict[str, PhaseRecord]:
    """phases.json by phase, empty when there is none; TrainingError that says what is wrong with it and what
    to do."""
    path = root / "phases.json"
    if not path.is_file():
        return {}
    records: dict[str, PhaseRecord] = {}
    for number, item in enumerate(read_json(path, list, _FORGOTTEN), 1):
        kinds = {"name": (str,), "key": (str,), "done": (bool,), "seconds": (int, float), "result": (str,)}
        if (
            not isinstance(item, dict)
            or any(name not in kinds or type(value) not in kinds[name] for name, value in item.items())
            or not 0 <= item.get("seconds", 0.0) < math.inf
            or not {"name", "key", "done"} <= item.keys()
        ):
            raise TrainingError(
                f"{path}: entry {number} is {str(item)[:80]}, expected name, key, done, seconds and "
                f"result of a phase; the file is damaged, {_FORGOTTEN}"
            )
        records[item["name"]] = PhaseRecord(**item)
    return records


def saved_config(root: Path) -> dict[str, Any]:
    """The config tree of a run: config.json, or config.toml, which holds the same, when that is damaged.
    TrainingError when both are."""
    remedy = "and so is config.toml, which holds the same: restore one of them, or start over with --fresh"
    try:
        tree = read_json(root / "config.json", dict, remedy)
        if isinstance(tree.get("run"), dict):
            return tree
        raise TrainingError(f"{root / 'config.json'} has no section 'run'; the file is damaged, {remedy}")
    except TrainingError:
        try:
            tree = tomllib.loads((root / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            tree = {}
        if not isinstance(tree.get("run"), dict):
            raise
        return tree
