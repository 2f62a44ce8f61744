"""Parsing from many threads at once (CPython 3.11.7 fails at that, gh-106905); syntax of later Pythons."""

import ast
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from envgen.runtime.parsing import later_f_string, parse_source

NESTED = "(" * 40 + "a" + ")" * 40
SOURCE = f"def f(a):\n    return {NESTED}\nx = [{', '.join(['f(1)'] * 300)}]\n"


def test_many_threads_parse_alike() -> None:
    expected = ast.dump(ast.parse(SOURCE))
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(lambda _: ast.dump(parse_source(SOURCE)), range(64)))
    assert trees == [expected] * 64


LATER = [
    """x = f"{a["b"]}" """,
    """x = f'{a['b']}'""",
    """x = f"{'\\n'.join(a)}" """,
    """x = f"{a  # why
}" """,
    """x = f"{
a}" """,
    """x = f"{f'{a}"{b}'}" """,
    """x = f"{f"{a}"}" """,
    """x = f"{'"'}" """,
    """x = f"{f'{a}\\n'}" """,
]
EVERYWHERE = [
    """x = f"{a['b']}\\n" """,
    """x = f"it's {a!r:>{width}}" + "\\n" """,
    '''x = f"""{a["b"]} {
a} "quoted" {f'{a}'}\\n"""''',
    """x = f"{f'{a}'}" f'{b}' '"' """,
    """x = "{a["  # f"{a["b"]}" """,
    """x = f"{{}} {a:%Y-%m}" """,
]


@pytest.mark.parametrize("source", LATER)
def test_an_f_string_that_3_11_cannot_read_is_found_on_every_python(source: str) -> None:
    try:
        parse_source(source)
    except SyntaxError:
        assert sys.version_info < (3, 12)
    else:
        assert later_f_string(f"y = 1\n{source}") >= 2


@pytest.mark.parametrize("source", EVERYWHERE)
def test_an_f_string_of_every_python_is_none_of_them(source: str) -> None:
    parse_source(source)
    assert later_f_string(source) == 0
