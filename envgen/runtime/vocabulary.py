"""The words of generated code: names it may call, methods, syntax. ``allowlist`` checks against them."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Mapping
from typing import Any

from envgen.errors import ToolError
from envgen.runtime.adding import add_up

MAX_SOURCE_CHARS = 1_000_000
MAX_RANGE = 1_000_000

_STATE_METHODS = ("get", "records", "keys", "insert", "update", "delete", "exists")
_CONTEXT_METHODS = ("now", "today", "new_id")
_TEXT_METHODS = (
    *("lower", "upper", "casefold", "title", "capitalize", "strip", "lstrip", "rstrip", "zfill"),
    *(
        "replace",
        "join",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "startswith",
        "endswith",
    ),
    *("find", "rfind", "count", "index", "isdigit", "isalpha", "isalnum", "isspace", "islower", "isupper"),
    *("removeprefix", "removesuffix"),
)
_CONTAINER_METHODS = (
    *("append", "extend", "pop", "remove", "sort", "reverse", "copy", "clear"),
    *("items", "values", "setdefault", "fromkeys"),
)
ALLOWED_METHODS = frozenset(
    (*_STATE_METHODS, *_CONTEXT_METHODS, *_TEXT_METHODS, *_CONTAINER_METHODS, "is_integer")
)
"""Attributes generated code may call. Everything else is rejected, first of all what starts with an
underscore."""


def _bounded_range(*args: int) -> range:
    out = range(*args)
    if len(out) > MAX_RANGE:
        raise ValueError(f"range of {len(out)} items; tools may use at most {MAX_RANGE}")
    return out


def _zip(*iterables: Iterable[Any], strict: bool = False) -> list[tuple[Any, ...]]:
    return list(zip(*iterables, strict=strict))


def _enumerate(iterable: Iterable[Any], start: int = 0) -> list[tuple[int, Any]]:
    return list(enumerate(iterable, start))


def _reversed(sequence: list[Any]) -> list[Any]:
    return list(reversed(sequence))


# zip, enumerate and reversed give lists: an iterator's text holds an address, and a list is what JSON can
# return.
ALLOWED_BUILTINS: Mapping[str, Any] = types.MappingProxyType(
    {
        **{
            f.__name__: f for f in (len, sorted, min, max, any, all, abs, round, divmod, isinstance, ord, chr)
        },
        **{t.__name__: t for t in (str, int, float, bool, list, dict, tuple)},
        **{e.__name__: e for e in (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError)},
        "range": _bounded_range,
        "sum": add_up,
        "zip": _zip,
        "enumerate": _enumerate,
        "reversed": _reversed,
        "ToolError": ToolError,
    }
)
"""Every name that generated code can use without binding it."""

ERRORS = frozenset({"ToolError", "KeyError", "ValueError", "TypeError", "IndexError", "ZeroDivisionError"})
CONSUMERS = frozenset(
    {"sorted", "sum", "any", "all", "min", "max", "list", "tuple", "dict", "len", "enumerate", "zip"}
)
"""Builtins that use up an iterable at once: only they may be given a generator or a dict view."""

STATEMENTS = (
    *(ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.If, ast.For, ast.Try, ast.Raise, ast.Expr),
    *(ast.Pass, ast.Break, ast.Continue, ast.Delete),
)
EXPRESSIONS = (
    *(
        ast.BoolOp,
        ast.BinOp,
        ast.UnaryOp,
        ast.IfExp,
        ast.Dict,
        ast.List,
        ast.Tuple,
        ast.ListComp,
        ast.DictComp,
    ),
    *(
        ast.GeneratorExp,
        ast.Compare,
        ast.Call,
        ast.JoinedStr,
        ast.FormattedValue,
        ast.Constant,
        ast.Attribute,
    ),
    *(ast.Subscript, ast.Starred, ast.Name, ast.Slice, ast.NamedExpr, ast.Lambda),
)
SMALL = (
    *(
        ast.comprehension,
        ast.arguments,
        ast.arg,
        ast.keyword,
        ast.ExceptHandler,
        ast.expr_context,
        ast.boolop,
    ),
    *(ast.unaryop, ast.cmpop, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
)
NODE_WORDS: dict[type[ast.AST], str] = {
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.ClassDef: "class",
    ast.FunctionDef: "a nested function",
    ast.AsyncFunctionDef: "async def",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.While: "a while loop",
    ast.With: "with",
    ast.Match: "match",
    ast.Assert: "assert",
    ast.Set: "a set",
    ast.SetComp: "a set comprehension",
    ast.Pow: "the ** operator",
    ast.LShift: "the << operator",
    ast.RShift: "the >> operator",
    ast.BitAnd: "the & operator",
    ast.BitOr: "the | operator",
    ast.BitXor: "the ^ operator",
    ast.MatMult: "the @ operator",
    ast.TryStar: "except*",
}
