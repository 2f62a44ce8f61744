"""Python source to a syntax tree, from any thread."""

from __future__ import annotations

import ast
import threading

_one_at_a_time = threading.Lock()


def parse_source(source: str, filename: str = "<unknown>") -> ast.Module:
    """`ast.parse`, one thread at a time: CPython up to 3.11.7 and 3.12.0 counts the depth of all threads'
    trees together and raises SystemError ("AST constructor recursion depth mismatch", gh-106905).

    Raises SyntaxError, ValueError, RecursionError and MemoryError as `ast.parse` does.
    """
    with _one_at_a_time:
        return ast.parse(source, filename=filename)
