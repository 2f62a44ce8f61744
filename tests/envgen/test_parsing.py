"""Parsing from many threads at once: CPython 3.11.7 fails at that (gh-106905)."""

import ast
from concurrent.futures import ThreadPoolExecutor

from envgen.runtime.parsing import parse_source

NESTED = "(" * 40 + "a" + ")" * 40
SOURCE = f"def f(a):\n    return {NESTED}\nx = [{', '.join(['f(1)'] * 300)}]\n"


def test_many_threads_parse_alike() -> None:
    expected = ast.dump(ast.parse(SOURCE))
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(lambda _: ast.dump(parse_source(SOURCE)), range(64)))
    assert trees == [expected] * 64
