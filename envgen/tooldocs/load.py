"""File -> JSON tree: size, encoding, JSON, JSON lines or YAML, and limits no hostile document gets around."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from envgen.errors import DocumentError
from envgen.tooldocs.markdown_blocks import looks_like_markdown
from envgen.tooldocs.yaml_tree import MAX_DEPTH, parse_yaml

MAX_BYTES = 5_000_000
MAX_NODES = 1_000_000


@dataclass(frozen=True)
class Loaded:
    """A parsed file. ``lines`` is set for JSON lines: the 1-based line number of each element of ``tree``.

    ``tree`` of a Markdown or labelled text file is its text, and ``text`` is True. ``folder`` is where its
    ``$ref`` to other files point from; None for a source that is no file.
    """

    tree: Any
    source: str
    sha256: str
    lines: tuple[int, ...] = ()
    text: bool = False
    folder: Path | None = None


def load(path: Path) -> Loaded:
    """Reads and parses ``path``. Raises DocumentError unless it is JSON or YAML text within the limits."""
    data = _read_bytes(path)
    text = _decode(data, path.name)
    if not text.strip():
        raise DocumentError(
            f"{path.name}: the file is empty; expected an OpenAPI, MCP or function-calling document"
        )
    sha256 = hashlib.sha256(data).hexdigest()
    if _is_text(text, path):
        _check_text(text, path.name)
        return Loaded(text, path.name, sha256, text=True, folder=path.parent)
    tree, lines = _parse(text, path.name)
    return Loaded(_checked(tree, path.name), path.name, sha256, lines, folder=path.parent)


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file that is prose, and the SHA-256 of its bytes. Of a JSON file: the texts in it, each
    after its name. Raises DocumentError."""
    data = _read_bytes(path)
    text = _decode(data, path.name)
    _check_text(text, path.name)
    if text.lstrip()[:1] in ("{", "["):
        try:
            tree = _checked(_parse_json(text, path.name), path.name)
        except json.JSONDecodeError:
            tree = text
        text = "\n\n".join(_texts(tree, ""))
    return text, hashlib.sha256(data).hexdigest()


def _texts(tree: Any, name: str) -> list[str]:
    if isinstance(tree, str):
        return [f"{name}: {tree}" if name else tree]
    if isinstance(tree, dict):
        members = cast("dict[str, Any]", tree)
        return [text for key, value in members.items() for text in _texts(value, key)]
    if isinstance(tree, list):
        return [text for value in cast("list[Any]", tree) for text in _texts(value, name)]
    return []


def load_value(tree: Any, source: str) -> Loaded:
    """A tree that came from elsewhere than a file (a live server), within the same limits."""
    tree = _checked(tree, source)
    return Loaded(tree, source, hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest())


_BLOCK = re.compile(r"^[A-Za-z][\w.\-]*: \S.*\n\s*(?:Parameters|Arguments|Inputs?): ", re.MULTILINE)


def _is_text(text: str, path: Path) -> bool:
    """Markdown by its name; else Markdown or labelled blocks by their structure, when the text is neither
    JSON nor a YAML object or list."""
    if text.lstrip()[:1] in ("{", "["):
        return False
    if path.suffix.lower() in (".md", ".markdown", ".mdx", ".mkd"):
        return True
    if len(_BLOCK.findall(text)) >= 2:  # such a text is YAML with keys that stand twice
        return True
    if path.suffix.lower() in (".yaml", ".yml", ".json") or not looks_like_markdown(text):
        return False
    try:
        return isinstance(parse_yaml(text, path.name), str)
    except DocumentError:
        return True


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise DocumentError(f"{path}: is a directory; expected one tool document, so name a file in it")
        if not path.exists():
            raise DocumentError(f"{path}: no such file; check the path")
        if not path.is_file():
            raise DocumentError(f"{path}: not a regular file; expected a tool document on disk")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
            size = path.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DocumentError(f"{path}: cannot be read: {error}") from error
    if len(data) > MAX_BYTES:
        raise DocumentError(
            f"{path.name}: {max(size, len(data)):,} bytes, the limit is {MAX_BYTES:,}; keep only the "
            "paths or tools one "
            "environment needs (one tag or resource of the API) in a file of its own"
        )
    return data


def _decode(data: bytes, name: str) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{name}: not text ({error.reason} at byte {error.start}); expected UTF-8 JSON or YAML"
        ) from error
    if "\x00" in text:
        raise DocumentError(
            f"{name}: a binary file (NUL at character {text.index(chr(0))}); expected UTF-8 JSON or YAML"
        )
    return text


def _parse(text: str, name: str) -> tuple[Any, tuple[int, ...]]:
    if text.lstrip()[:1] not in ("{", "["):
        return parse_yaml(text, name), ()
    try:
        return _parse_json(text, name), ()
    except json.JSONDecodeError as error:
        lines = _parse_json_lines(text, name) if error.msg == "Extra data" else None
        if lines is not None:
            return lines
        try:  # flow-style YAML begins like JSON
            return parse_yaml(text, name), ()
        except DocumentError as problem:
            if "neither JSON nor YAML" not in str(problem):
                raise
            raise DocumentError(
                f"{name}: neither JSON nor YAML: {error.msg} at line {error.lineno} column "
                f"{error.colno}; check the file there"
            ) from error


def _parse_json(text: str, name: str) -> Any:
    """Plain JSON. Raises JSONDecodeError for syntax (the caller tries other forms), else DocumentError."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))
            raise DocumentError(
                f"{name}: the key {twice!r} stands twice in one object; remove one of the two"
            )
        return result

    def constant(word: str) -> Any:
        raise DocumentError(f"{name}: {word} is not JSON; expected a number, or leave the key out")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise DocumentError(
            f"{name}: nested deeper than {MAX_DEPTH} levels; expected a tool document"
        ) from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise DocumentError(f"{name}: a number cannot be read: {error}") from error


def _parse_json_lines(text: str, name: str) -> tuple[list[Any], tuple[int, ...]] | None:
    """JSON lines: elements and their line numbers; None when some line is not JSON."""
    values: list[Any] = []
    numbers: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values.append(_parse_json(line, name))
        except json.JSONDecodeError:
            return None
        numbers.append(number)
    return values, tuple(numbers)


# ------------------------------------------------------------------------------------------------ limits
def _checked(tree: Any, name: str) -> Any:
    """The tree, after a loop over every node (aliases expanded) for depth, count, and values that JSON cannot
    carry.

    Integers beyond 64 bits become floats, as every JavaScript reader of the same document has them.
    """
    root: list[Any] = [tree]
    todo: list[tuple[dict[str, Any] | list[Any], int]] = [(root, 0)]
    nodes = 0
    while todo:
        parent, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise DocumentError(f"{name}: nested deeper than {MAX_DEPTH} levels; expected a tool document")
        if isinstance(parent, dict):
            for key in parent:
                _check_text(key, name)
        entries: list[tuple[Any, Any]] = list(
            parent.items() if isinstance(parent, dict) else enumerate(parent)
        )
        nodes += len(entries)
        if nodes > MAX_NODES:
            raise DocumentError(
                f"{name}: more than {MAX_NODES:,} values (aliases expanded); expected a tool document"
            )
        for key, value in entries:
            if isinstance(value, dict | list):
                todo.append((cast("dict[str, Any] | list[Any]", value), depth + 1))
            elif isinstance(value, str):
                _check_text(value, name)
            elif isinstance(value, float):
                if not math.isfinite(value):
                    raise DocumentError(f"{name}: the number {value} is not finite; expected a JSON number")
            elif isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
                try:
                    parent[key] = float(value)
                except OverflowError as error:
                    raise DocumentError(f"{name}: an integer is too big for a JSON number") from error
    return root[0]


def _check_text(text: str, name: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"{name}: half a surrogate pair in {text[:40]!r}; expected valid Unicode"
        ) from error
