"""Seeded wrong versions of a tool's function: one small change each, as a syntax tree.

Changed are the tool's own function and the helpers that were written for records (``show_…``, ``drop_…``),
not the three helpers that every module shares, and neither texts of refusals nor docstrings: what a refusal
says is no promise that a test can hold it to.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from envgen.runtime.parsing import parse_source
from envgen.synthesis.source_text import identifier, literal
from envgen.types import StateSchema

SHARED = frozenset({"given", "pick", "require"})
_FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class CodeMutant:
    """One wrong version of a tool."""

    tool: str
    kind: str
    """``comparison``, ``dropped statement``, ``removed raise`` …"""
    line: str
    """The changed line as it was."""
    source: str
    """A whole ``tools.py`` with this one tool."""


class Module:
    """A ``tools.py`` taken apart."""

    def __init__(self, source: str, schema: StateSchema) -> None:
        tree = parse_source(source)
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.collections = [c.name for c in schema.collections]
        self.fields = {c.name: [f.name for f in c.fields] for c in schema.collections}

    def reached(self, name: str) -> list[str]:
        """The functions that one calls, itself first."""
        found, queue = [name], [name]
        while queue:
            for node in ast.walk(self.functions[queue.pop()]):
                if isinstance(node, ast.Name) and node.id in self.functions and node.id not in found:
                    found.append(node.id)
                    queue.append(node.id)
        return found

    def text(self, tool: str, changed: ast.FunctionDef | None = None) -> str:
        """A module with one tool and what it needs; ``changed`` stands in for the function of its name."""
        needed = self.reached(identifier(tool))
        parts = [
            ast.unparse(changed if changed is not None and name == changed.name else self.functions[name])
            for name in reversed(needed)
        ]
        return "\n\n\n".join([*parts, f"TOOLS = {{{literal(tool)}: {identifier(tool)}}}"]) + "\n"


def mutants_of(
    module: Module, tool: str, collection: str, rng: random.Random, limit: int
) -> list[CodeMutant]:
    """At most ``limit`` mutants of one tool, drawn from all there are."""
    found: list[CodeMutant] = []
    for name in module.reached(identifier(tool)):
        if name in SHARED:
            continue
        number = 0
        while True:
            function = copy.deepcopy(module.functions[name])
            change = _Change(number, module, collection)
            change.function(function)
            if not change.kind:
                break
            number += 1
            ast.fix_missing_locations(function)
            found.append(CodeMutant(tool, change.kind, change.line, module.text(tool, function)))
    original = module.text(tool)
    unlike = list({m.source: m for m in found if m.source != original}.values())
    return unlike if len(unlike) <= limit else rng.sample(unlike, limit)


class _Change:
    """Applies the change number ``wanted`` to a function, in the order of the tree."""

    def __init__(self, wanted: int, module: Module, collection: str) -> None:
        self.wanted = wanted
        self.module = module
        self.fields = module.fields.get(collection, [])
        self.kind = self.line = ""

    def function(self, node: ast.FunctionDef) -> None:
        """Walk the body; signature and docstring stay."""
        start = 1 if ast.get_docstring(node) is not None else 0
        body = node.body[start:]
        self._block(body)
        node.body[start:] = body or [ast.Pass()]

    def _site(self, kind: str, node: ast.AST, apply: Callable[[], None]) -> bool:
        """Count one place; True when it is the one to change."""
        if self.kind:
            return True
        if self.wanted:
            self.wanted -= 1
            return False
        self.kind, self.line = kind, ast.unparse(node).split("\n")[0]
        apply()
        return True

    def _block(self, body: list[ast.stmt]) -> None:
        for index, statement in enumerate(list(body)):
            if isinstance(statement, ast.Raise):
                if self._site("removed raise", statement, lambda i=index: _put(body, i, ast.Pass())):
                    return
                continue
            if self._site("dropped statement", statement, lambda i=index: _put(body, i, ast.Pass())):
                return
            for inner in (getattr(statement, "body", None), getattr(statement, "orelse", None)):
                if isinstance(inner, list):
                    self._block(inner)  # pyright: ignore[reportUnknownArgumentType]
            for field, value in ast.iter_fields(statement):
                if field not in ("body", "orelse"):
                    self._value(statement, field, value)
            if self.kind:
                return

    def _value(self, parent: ast.AST, field: str, value: Any) -> None:
        if self.kind:
            return
        if isinstance(value, list):
            items = cast("list[Any]", value)
            for item in list(items):
                if isinstance(item, ast.AST):
                    self._expression(item, lambda new, i=item: _swap(items, i, new))
        elif isinstance(value, ast.AST):
            self._expression(value, lambda new: setattr(parent, field, new))

    def _expression(self, node: ast.AST, replace: Callable[[ast.expr], None]) -> None:
        """Every change at one node, then at what is in it."""
        if self.kind or isinstance(node, ast.JoinedStr):
            return
        for kind, apply in self._changes(node, replace):
            if self._site(kind, node, apply):
                return
        skip = 3 if isinstance(node, ast.Call) and _calls(node, "require") else None
        for field, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and field == "args" and skip is not None:
                for item in node.args[:skip]:
                    self._expression(item, lambda new, i=item, n=node: _swap(n.args, i, new))
            else:
                self._value(node, field, value)

    def _changes(
        self, node: ast.AST, replace: Callable[[ast.expr], None]
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        match node:
            case ast.Compare():
                for index, op in enumerate(node.ops):
                    flip = _FLIPS[type(op)]
                    yield "comparison", lambda i=index, f=flip: _put(node.ops, i, f())
            case ast.BoolOp():
                other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
                yield "and / or", lambda: setattr(node, "op", other)
                yield "dropped condition", lambda: replace(node.values[0])
            case ast.UnaryOp(op=ast.Not()):
                yield "dropped not", lambda: replace(node.operand)
            case ast.BinOp() if type(node.op) in _SUMS:
                yield "arithmetic", lambda: setattr(node, "op", _SUMS[type(node.op)]())
            case ast.IfExp():
                yield "swapped branches", lambda: _exchange(node, "body", "orelse")
            case ast.comprehension() if node.ifs:
                yield "dropped condition", lambda: node.ifs.clear()
            case ast.Slice():
                for bound in ("lower", "upper"):
                    if getattr(node, bound) is not None:
                        yield "slice bound", lambda b=bound: setattr(node, b, None)
            case ast.Dict() if len(node.keys) > 1:
                for index in range(len(node.keys)):
                    yield "dropped entry", lambda i=index: (_drop(node.keys, i), _drop(node.values, i))[0]
            case ast.Tuple() | ast.List() if len(node.elts) > 1:
                yield "dropped element", lambda: _drop(node.elts, len(node.elts) - 1)
            case ast.Call():
                yield from self._calls(node, replace)
            case ast.Constant():
                yield from self._constant(node)
            case _:
                pass

    def _calls(
        self, node: ast.Call, replace: Callable[[ast.expr], None]
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        last = len(node.args) - (2 if _calls(node, "require") else 1)
        for index in range(last):
            yield "swapped arguments", lambda i=index: _turn(node.args, i)
        for index, word in enumerate(node.keywords):
            if word.arg == "reverse":
                yield "dropped keyword", lambda i=index: _drop(node.keywords, i)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
            inner = node.func.value
            yield "dropped lower()", lambda: replace(inner)
        if isinstance(node.func, ast.Name) and node.func.id in ("given", "sorted", "sum", "len", "str"):
            yield f"dropped {node.func.id}()", lambda: replace(node.args[0])

    def _constant(self, node: ast.Constant) -> Iterator[tuple[str, Callable[[], None]]]:
        value = node.value
        if isinstance(value, bool):
            yield "constant", lambda: setattr(node, "value", not value)
        elif isinstance(value, int | float):
            yield "off by one", lambda: setattr(node, "value", value + 1)
            yield "off by one", lambda: setattr(node, "value", value - 1)
        elif isinstance(value, str):
            for kind, names in (("wrong collection", self.module.collections), ("wrong field", self.fields)):
                if value in names and len(names) > 1:
                    other = names[(names.index(value) + 1) % len(names)]
                    yield kind, lambda o=other: setattr(node, "value", o)
            yield "constant", lambda: setattr(node, "value", value + "x")


def _calls(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name


def _put(items: list[Any], index: int, value: Any) -> None:
    items[index] = value


def _swap(items: list[Any], old: Any, new: Any) -> None:
    items[next(i for i, item in enumerate(items) if item is old)] = new


def _drop(items: list[Any], index: int) -> None:
    del items[index]


def _turn(items: list[Any], index: int) -> None:
    items[index], items[index + 1] = items[index + 1], items[index]


def _exchange(node: ast.AST, one: str, other: str) -> None:
    first, second = getattr(node, one), getattr(node, other)
    setattr(node, one, second)
    setattr(node, other, first)
