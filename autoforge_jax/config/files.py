"""Configs as files: TOML in, overrides, errors that name the key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from autoforge_jax.config.experiment import Config
from autoforge_jax.errors import ConfigError


def load_tree(path: Path) -> dict[str, Any]:
    """A TOML file as a tree, with the parents that it `extends`. Raises ConfigError."""
    return _read_tree(path)


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set ``key.path=value`` overrides in a tree (TOML values; a bare word is a string)."""
    for text in overrides:
        keys, value = _parse_override(text)
        _set(tree, keys, value, text)


def _read_tree(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(
            f"{path}: `extends` goes in a circle through {[p.name for p in seen]}; remove one of them"
        )
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file {path} does not exist; see configs/ for the shipped ones") from error
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: `extends` must be a string, got {parent!r}")
    return _merge(_read_tree(path.parent / parent, (*seen, path.resolve())), tree)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        mine = out.get(key)
        out[key] = _merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return out


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, sign, raw = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"override {text!r} is not key.path=value, e.g. --set erpo.steps=10")
    raw = raw.strip()
    try:
        value: Any = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw  # a bare word is a string, so that --set run.name=trial needs no quotes
    return [part.strip() for part in key.split(".")], value


def _set(tree: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    node = tree
    for part in path[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {text!r}: {part!r} is a value, not a section")
        node = child
    node[path[-1]] = value


def parse_config(tree: dict[str, Any], where: str = "config") -> Config:
    """Check a tree; ConfigError lists every fault as ``where: key.path: what``."""
    # A sparse section keeps the defaults of its place: `[erpo.optimizer] b2 = 0.99` must not reset ERPO's
    # learning rate.
    tree = _merge(Config().model_dump(mode="json"), tree)
    try:
        # JSON's strict rules are TOML's: a number is no string and no truth value, an integer may stand for a
        # float, an array is what a tuple wants. Dates, which no key takes, become strings.
        return Config.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        lines: list[str] = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"])
            if fault["type"] == "value_error":
                lines.append(
                    f"{where}: {f'{key}: ' if key else ''}{fault['msg'].removeprefix('Value error, ')}"
                )
                continue
            if fault["type"] == "extra_forbidden":
                lines.append(f"{where}: unknown key {key!r}; {_known_keys(fault['loc'])}")
            elif fault["type"] == "string_type":
                quoted = json.dumps(str(fault["input"]), ensure_ascii=False)
                lines.append(f"{where}: {key}: {fault['msg']}, got {fault['input']!r}; in quotes: {quoted}")
            else:
                lines.append(f"{where}: {key}: {fault['msg']}, got {fault['input']!r}")
        raise ConfigError("\n".join(lines)) from error


def _known_keys(loc: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in loc[:-1]:
        info = section.model_fields.get(str(part))
        if info is None or not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            break
        section = info.annotation
    return f"known here: {', '.join(sorted(section.model_fields))}"


def load_config(path: str | Path, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """Read a TOML file and apply ``key.path=value`` overrides (TOML values; a bare word is a string)."""
    path = Path(path)
    tree = _read_tree(path)
    apply_overrides(tree, overrides)
    return parse_config(tree, path.name)


def dump_config(config: Config) -> dict[str, Any]:
    """The resolved tree as plain JSON values; `parse_config` of it gives the same config."""
    return config.model_dump(mode="json")
