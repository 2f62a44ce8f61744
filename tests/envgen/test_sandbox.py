"""Hostile and careless code is rejected by line and construct; honest code runs; nothing is shared between
episodes."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.errors import ToolDefect, ToolError, UnsafeCodeError
from envgen.runtime.context import KeyStyle, ToolContext
from envgen.runtime.sandbox import load_tools
from envgen.runtime.state import State
from envgen.runtime.tools import run_tool
from envgen.runtime.vocabulary import ALLOWED_BUILTINS, ALLOWED_METHODS
from envgen.types import AgentTool
from tests.envgen.mock_domain import SOURCE


def tool(body: str, before: str = "", parameters: str = "") -> str:
    lines = "\n".join("    " + line for line in body.splitlines())
    return f"{before}\ndef t(state, ctx{parameters}):\n{lines}\nTOOLS = {{'t': t}}\n"


def call(source: str, data: dict[str, Any] | None = None) -> Any:
    ctx = ToolContext("2026-03-02T09:00:00", 1, {"a": KeyStyle("A")})
    return load_tools(source)["t"](State(data or {"a": {}}), ctx)


# Each is (name, source, words of the message). The line is checked for the one-line bodies below.
BODIES = {
    "import": ("import os", "import"),
    "from import": ("from os import system", "import"),
    "dunder import": ("return __import__('os')", "'__import__'"),
    "open": ("return open('secret.txt')", "'open'"),
    "eval": ("return eval('1')", "'eval'"),
    "exec": ("exec('x=1')", "'exec'"),
    "compile": ("return compile('1', '', 'eval')", "'compile'"),
    "getattr": ("return getattr(state, '_base')", "'getattr'"),
    "setattr": ("setattr(state, 'x', 1)", "'setattr'"),
    "vars": ("return vars(state)", "'vars'"),
    "globals": ("return globals()", "'globals'"),
    "locals": ("return locals()", "'locals'"),
    "type": ("return type(state)", "'type'"),
    "object": ("return object()", "'object'"),
    "dir": ("return dir(state)", "'dir'"),
    "id": ("return id(state)", "'id'"),
    "hash": ("return hash('a')", "'hash'"),
    "input": ("return input()", "'input'"),
    "print": ("print('x')", "'print'"),
    "breakpoint": ("breakpoint()", "'breakpoint'"),
    "memoryview": ("return memoryview(b'')", "'memoryview'"),
    "builtins by name": ("return __builtins__", "'__builtins__'"),
    "class walk": ("return ().__class__.__bases__[0].__subclasses__()", "'__subclasses__'"),
    "class attribute": ("x = 'a'.__class__\nreturn x", "'__class__'"),
    "base of the state": ("return state._base", "'_base'"),
    "write to the base": ("state._base['a'] = {}", "'_base'"),
    "globals of a function": ("return t.__globals__", "'__globals__'"),
    "code of a method": ("return state.get.__func__", "'__func__'"),
    "str.format": ("return '{0.__class__}'.format(state)", "'format'"),
    "format_map": ("return '{x}'.format_map({'x': 1})", "'format_map'"),
    "snapshot": ("return state.snapshot()", "'snapshot'"),
    "rollback": ("state.rollback()", "'rollback'"),
    "begin_call": ("ctx.begin_call(state)", "'begin_call'"),
    "store an attribute": ("state.cache = 1", "'cache'"),
    "attribute of an error": (
        "try:\n    x = 1\nexcept KeyError as e:\n    return e.__traceback__",
        "'__traceback__'",
    ),
    "bare except": ("try:\n    x = 1\nexcept:\n    x = 2", "except"),
    "except Exception": ("try:\n    x = 1\nexcept Exception:\n    x = 2", "except"),
    "except BaseException": ("try:\n    x = 1\nexcept (KeyError, BaseException):\n    x = 2", "except"),
    "raise SystemExit": ("raise SystemExit", "raise"),
    "raise KeyError": ("raise KeyError('x')", "raise"),
    "global": ("global N\nN = 1", "global"),
    "nonlocal": ("nonlocal x", "nonlocal"),
    "class": ("class X: pass", "class"),
    "nested function": ("def f():\n    return 1\nreturn f()", "nested function"),
    "async": ("async def f():\n    pass", "async"),
    "yield": ("yield 1", "yield"),
    "lambda as a value": ("f = lambda: 1\nreturn 1", "lambda"),
    "lambda default": ("return sorted([1], key=lambda r, x=open: r)", "default"),
    "lambda kept under key": ("return dict(key=lambda r: r)", "lambda"),
    "lambda argument named as a tool": (
        "x = sorted([1], key=lambda t: t)\nreturn f'{t}'",
        "function name 't'",
    ),
    "loop name of a comprehension": ("x = [t for t in [1]]\nreturn f'{t}'", "function name 't'"),
    "table as a value": ("return f'{TOOLS}'", "'TOOLS'"),
    "lambda escapes": ("return sorted([1], key=lambda r: open('x'))", "'open'"),
    "while": ("while True:\n    pass", "while"),
    "power": ("return 9 ** 9 ** 9", "\\*\\*"),
    "shift": ("return 1 << 10 ** 9", "<<"),
    "with": ("with state as s:\n    pass", "with"),
    "match": ("match 1:\n    case int(real=x):\n        return x", "match"),
    "assert": ("assert False", "assert"),
    "del name": ("x = 1\ndel x", "del"),
    "set literal": ("return list({'a', 'b'})", "set"),
    "set comprehension": ("return list({x for x in ['a']})", "set"),
    "set()": ("return list(set(['a', 'b']))", "'set'"),
    "keys view algebra": ("d = {'a': 1}\nreturn list(d.keys() - {'b': 1}.keys())", "keys"),
    "items view kept": ("d = {'a': 1}.items()\nreturn 1", "items"),
    "function as a value": ("return f'{t}'", "'t' as a value"),
    "builtin as a value": ("x = len\nreturn 1", "'len' as a value"),
    "method as a value": ("return f'{[].append}'", "'append'"),
    "generator as a value": ("return str(x for x in [1])", "generator"),
    "call of a call": ("return (lambda: 1)()", "calling the result"),
    "call of a local": ("f = 1\nreturn f()", "calling 'f'"),
    "rebind a builtin": ("len = 1\nreturn len", "'len'"),
    "rebind ToolError": ("ToolError = KeyError\nreturn 1", "'ToolError'"),
    "dunder local": ("__x__ = 1\nreturn 1", "'__x__'"),
    "bytes": ("return b'x'", "bytes"),
    "ellipsis": ("return ...", "ellipsis"),
    "starred import of names": ("x = undefined_name\nreturn x", "'undefined_name'"),
}


@pytest.mark.parametrize("name", BODIES)
def test_an_attack_in_a_tool_is_rejected_by_name(name: str) -> None:
    body, words = BODIES[name]
    with pytest.raises(UnsafeCodeError, match=rf"tools\.py line \d+: .*{words}"):
        load_tools(tool(body))


MODULES = {
    "module import": ("import os\n" + tool("return 1"), "import"),
    "module call": (tool("return 1", "X = len('a')"), "Call as a module value"),
    "module comprehension": (tool("return 1", "X = [i for i in (1, 2)]"), "ListComp as a module value"),
    "module loop": (tool("return 1", "for i in (1,):\n    pass"), "module level"),
    "module set": (tool("return 1", "X = {1, 2}"), "Set as a module value"),
    "module lambda": (tool("return 1", "X = lambda: 1"), "Lambda as a module value"),
    "module expression": (tool("return 1", "print('x')"), "module level"),
    "module bytes": (tool("return 1", "X = b'x'"), "Constant as a module value"),
    "name from a constant": (tool("return 1", "__builtins__ = {}"), "'__builtins__'"),
    "dunder all": (tool("return 1", "__all__ = ['t']"), "'__all__'"),
    "unpacking": (tool("return 1", "A, B = 1, 2"), "module level"),
    "decorator": (
        tool("return 1", "def d(f):\n    return f\n@d\ndef u(state, ctx):\n    return 1"),
        "decorator",
    ),
    "mutable default": (tool("return x", parameters=", x=[]"), "mutable default"),
    "dict default": (tool("return x", parameters=", x={}"), "mutable default"),
    "computed default": (tool("return x", parameters=", x=open"), "as a module value"),
    "function twice": (tool("return 1", "def t(state, ctx):\n    return 2"), "second function 't'"),
    "shadowing function": (tool("return 1", "def len(x):\n    return 0"), "'len'"),
    "function over a constant": (tool("return 1", "X = 1\ndef X(a):\n    return 1"), "binding 'X' twice"),
    "function named TOOLS": (tool("return 1", "def TOOLS(a):\n    return 1"), "binding 'TOOLS' twice"),
    "no table": ("def t(state, ctx):\n    return 1\n", "no TOOLS table"),
    "computed table": (
        "def t(state, ctx):\n    return 1\nTOOLS = dict(t=t)\n",
        "TOOLS that is no dict literal",
    ),
    "table names a builtin": ("def t(state, ctx):\n    return 1\nTOOLS = {'t': len}\n", "TOOLS naming 'len'"),
    "table key dunder attribute": (
        "def t(state, ctx):\n    return 1\nTOOLS = {'t': t.__call__}\n",
        "entry of TOOLS",
    ),
    "tool twice": ("def t(state, ctx):\n    return 1\nTOOLS = {'t': t, 't': t}\n", "'t' twice"),
    "wrong parameters": ("def t(db):\n    return 1\nTOOLS = {'t': t}\n", r"takes \['db'\]"),
    "syntax": ("def t(state, ctx:\n", "not valid Python"),
    "null byte": ("x = 1\0", "not valid Python"),
    "deep nesting": (tool("return " + "(" * 400 + ")" * 400), "not valid Python"),
    "deep tree": (tool("return " + "-" * 5000 + "1"), "nested too deeply|not valid Python|does not load"),
    "too big": ("#" * 1_000_001, "at most"),
}


@pytest.mark.parametrize("name", MODULES)
def test_an_attack_on_the_module_is_rejected(name: str) -> None:
    source, words = MODULES[name]
    with pytest.raises(UnsafeCodeError, match=words):
        load_tools(source)


def test_the_suite_of_attacks_is_large() -> None:
    assert len(BODIES) + len(MODULES) >= 100


def test_the_message_names_the_line() -> None:
    source = tool("x = 1\ny = 2\nreturn eval('x')")
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "eval" in text)
    with pytest.raises(UnsafeCodeError, match=f"line {line}: calling 'eval'"):
        load_tools(source)


HONEST = '''"""Docstring."""
from __future__ import annotations

ORDER = {"low": [1, 2], "high": [3]}
LIMIT: int = -5


def _page(rows: list[dict], size=None) -> list:
    return rows[:size] if size else rows


def t(state, ctx, word=None):
    rows = [r for r in state.records("a") if word is None or word.casefold() in r["name"].casefold()]
    rows.sort(key=lambda r: (-r["n"], r["name"]))
    total = sum(r["n"] for r in rows)
    best = max((r["n"] for r in rows), default=None)
    kinds = dict.fromkeys(r["kind"] for r in rows)
    seen: dict = {}
    for name, numbers in ORDER.items():
        seen[name] = sum(numbers)
    try:
        number = int("x")
    except (ValueError, KeyError) as error:
        number = len(str(error))
    for i, (a, b) in enumerate(zip(rows, rows[1:])):
        if a["n"] == b["n"]:
            continue
        seen.setdefault(f"{i:02d}", []).append(b["name"])
    if not rows:
        raise ToolError(f"nothing has {word!r}") from None
    *_, last = rows
    del seen["low"]
    first, seen["x"] = rows[0]["name"], (last["name"] if (n := len(rows)) > 1 else n)
    text = ", ".join(k for k in kinds)
    return {"rows": _page(rows, 2), "total": total, "best": best, "text": text, "seen": seen, "first": first,
            "at": ctx.now(), "number": number > 0, "days": [*range(2)], "mod": 7 % 4 // 2 + LIMIT}


TOOLS = {"t": t}
'''


def test_honest_code_runs_and_gives_the_hand_worked_answer() -> None:
    data = {
        "a": {
            "1": {"name": "Ant", "n": 1, "kind": "x"},
            "2": {"name": "Bee", "n": 3, "kind": "y"},
            "3": {"name": "Cat", "n": 3, "kind": "x"},
        }
    }
    out = call(HONEST, data)
    assert [r["name"] for r in out["rows"]] == ["Bee", "Cat"]
    assert (out["total"], out["best"], out["text"], out["first"]) == (7, 3, "y, x", "Bee")
    assert out["seen"] == {"high": 3, "01": ["Ant"], "x": "Ant"}
    assert (out["days"], out["mod"], out["number"]) == ([0, 1], -4, True)
    with pytest.raises(ToolError, match="nothing has"):
        call(HONEST)


def test_constant_tables_are_frozen() -> None:
    table = "T = {'a': [1], 'b': {'c': 2}}\nL = [1, {'x': [2]}]"
    for body in (
        "T['a'] = 1",
        "T['b']['c'] = 1",
        "T['a'].append(1)",
        "L.append(1)",
        "L[1]['x'].append(1)",
        "del T['a']",
    ):
        with pytest.raises((TypeError, AttributeError)):
            call(tool(body, table))
    with pytest.raises(AttributeError):
        call(tool("T.clear()", table))
    with pytest.raises(TypeError):
        call(tool("dict.setdefault(T, 'z', 1)", table))
    with pytest.raises(TypeError):
        call(tool("list.append(L, 1)", table))
    assert call(tool("return [T['a'][0], len(L), L[1]['x'][0], *[k for k in T]]", table)) == [
        1,
        2,
        2,
        "a",
        "b",
    ]


def test_state_and_ctx_may_be_positional_only_and_must_come_first() -> None:
    body = '    return {"state": extra.get("state"), "n": len(state.records("notes"))}\n'
    source = f'def t(state, ctx, /, **extra):\n{body}TOOLS = {{"t": t}}\n'
    table = load_tools(source)
    extra: dict[str, Any] = {"state": "open"}
    assert table["t"](State({"notes": {}}), None, **extra) == {"state": "open", "n": 0}
    for head in ("ctx, state, /, **extra", "state, /, other, **extra", "*, state, ctx, **extra"):
        with pytest.raises(UnsafeCodeError, match="its first parameters are state, ctx"):
            load_tools(source.replace("state, ctx, /, **extra", head))


def test_the_tool_table_is_closed_and_read_only() -> None:
    tools = load_tools(SOURCE)
    assert sorted(tools) == sorted(
        ["list_notebooks", "list_notes", "get_note", "create_note", "update_note", "delete_note"]
    )
    with pytest.raises(TypeError):
        tools["x"] = len  # type: ignore[index]
    assert load_tools(SOURCE) is tools  # one compiled module for all


def test_code_sees_only_the_listed_builtins() -> None:
    function = load_tools(SOURCE)["get_note"]
    assert set(function.__globals__["__builtins__"]) == set(ALLOWED_BUILTINS)
    assert not any(name.startswith("_") for name in (*ALLOWED_METHODS, *ALLOWED_BUILTINS))


def test_sums_of_floats_are_those_of_every_python() -> None:
    sums = "sum([0.1] * 10), sum([1, 0.1, 1e16, -1e16]), sum([2, 3], 4), sum([[1], [2]], [])"
    assert call(tool(f"return [{sums}]")) == [0.9999999999999999, 2.0, 9, [1, 2]]
    with pytest.raises(TypeError, match="can't sum strings"):
        call(tool("return sum([], '')"))


def test_no_address_reaches_text() -> None:
    source = tool(
        "return [f'{state}', f'{ctx}', str(zip([1], [2])), f'{enumerate([1])}', str(reversed([1, 2]))]"
    )
    assert call(source) == ["State(a)", "ToolContext()", "[(1, 2)]", "[(0, 1)]", "[2, 1]"]


def test_a_huge_range_is_a_defect_not_a_hang() -> None:
    agent = (AgentTool(name="t", description="", parameters={"type": "object", "properties": {}}),)
    tools = load_tools(tool("return len([i for i in range(10000000000)])"))
    with pytest.raises(ToolDefect, match=r"ValueError: range of"):
        run_tool(tools, agent, State({}), ToolContext("2026-03-02T09:00:00", 1, {}), "t", "{}")


def test_endless_recursion_is_a_defect_and_rolls_back() -> None:
    agent = (AgentTool(name="t", description="", parameters={"type": "object", "properties": {}}),)
    source = "def f(x):\n    return f(x)\n" + tool("state.insert('a', '1', {})\nreturn f(1)")
    state = State({"a": {}})
    with pytest.raises(ToolDefect, match="RecursionError"):
        run_tool(load_tools(source), agent, state, ToolContext("2026-03-02T09:00:00", 1, {}), "t", "{}")
    assert state.delta().empty
