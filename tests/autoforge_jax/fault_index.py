"""Where each clause of the list of faults (design notes, 13–23) has its test, so that none is there twice and
none is lost unseen."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Index = Mapping[str, Sequence[str]]
"""Clause -> ``folder/file::test``, under tests/."""


@cache
def tests_of(file: str) -> frozenset[str]:
    """Names of the test functions in a file under tests/."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def missing(nodes: Sequence[str]) -> list[str]:
    """Those that do not exist (any more)."""
    pairs = [node.partition("::") for node in nodes]
    return [f"{file}::{name}" for file, _, name in pairs if name not in tests_of(file)]
