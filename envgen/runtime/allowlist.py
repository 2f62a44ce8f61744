"""The static allow-list for generated ``tools.py`` text: what such code may say, checked without running it.

**What generated code may be.** A module of functions and constant tables, ending in ``TOOLS = {"name":
function, ...}``. Inside functions: assignments, ``if``, ``for``, ``try/except`` of named errors,
``return``, ``raise ToolError(...)``, comprehensions, f-strings, arithmetic, calls of the names in
``ALLOWED_BUILTINS``, of the module's own functions, and of the methods in ``ALLOWED_METHODS``.

**What it may not**, and why:

- import, classes, decorators, ``global``/``nonlocal``, ``with``, ``async``, ``yield``, ``match``,
  ``exec``-like names: reach outside or keep state. Any name that is neither bound in the module nor in the
  list is rejected by name.
- names or attributes with a leading underscore (attributes) or two (names); ``str.format`` (it walks
  attributes); methods not in the list; storing attributes.
- ``while``, ``**``, ``<<``, nested functions: unbounded or huge work. ``range`` is cut at a million.
- sets, and ``.items()``/``.keys()`` other than iterated at once (their ``-`` and ``&`` make sets): set
  order changes with the hash seed. Functions, methods and generators as values: their text holds an
  address.
- module-level state: module values must be constants, and tables are frozen (``dict`` -> read-only mapping,
  ``list`` -> tuple), as are ``TOOLS`` and defaults of parameters. Nothing that two episodes share can be
  written.

This is the first fence, and the only one for vetted code, in process. It does not bound CPU time or memory:
code that is not vetted runs in an isolated worker process (``envgen.runtime.isolation``).
"""

from __future__ import annotations

import ast

from envgen.errors import UnsafeCodeError
from envgen.runtime.parsing import parse_source
from envgen.runtime.vocabulary import (
    ALLOWED_BUILTINS,
    ALLOWED_METHODS,
    CONSUMERS,
    ERRORS,
    EXPRESSIONS,
    MAX_SOURCE_CHARS,
    NODE_WORDS,
    SMALL,
    STATEMENTS,
)


def _refuse(node: ast.AST, what: str, todo: str) -> UnsafeCodeError:
    line = getattr(node, "lineno", 0)
    return UnsafeCodeError(f"tools.py line {line}: {what} is not allowed in tool code; {todo}")


def _check_name(node: ast.AST, name: str) -> None:
    if name.startswith("__"):
        raise _refuse(node, f"the name {name!r}", "use a name without leading underscores")
    if name in ALLOWED_BUILTINS:
        raise _refuse(node, f"rebinding {name!r}", "use another name")


class _Module:
    """One walk over one generated module. ``functions`` and ``constants`` are what its top level binds."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[str, ast.FunctionDef] = {}
        self.constants: set[str] = set()
        self.tools: ast.Dict | None = None
        for node in tree.body:
            self._top_level(node)
        if self.tools is None:
            raise UnsafeCodeError(
                'tools.py has no TOOLS table; end it with TOOLS = {"tool_name": function, ...}'
            )
        for function in self.functions.values():
            self._function(function)
        self._tool_table(self.tools)

    # ---------------------------------------------------------------- top level
    def _top_level(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef):
            _check_name(node, node.name)
            if node.name == "TOOLS" or node.name in self.constants:
                raise _refuse(node, f"binding {node.name!r} twice", "bind each module name once")
            if getattr(node, "type_params", ()):
                raise _refuse(node, "a type parameter", "write plain functions")
            if node.name in self.functions:
                raise _refuse(node, f"a second function {node.name!r}", "give each function its own name")
            if node.decorator_list:
                raise _refuse(node, "a decorator", "write plain functions")
            self.functions[node.name] = node
            return
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            return  # docstring
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return  # annotations only: compiled in anyway, and executes nothing
        target: ast.expr | None = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target = node.target
        if not isinstance(target, ast.Name):
            word = NODE_WORDS.get(type(node), type(node).__name__)
            raise _refuse(
                node, f"{word} at module level", "only functions and constant tables may stand there"
            )
        assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        _check_name(node, target.id)
        if (
            target.id in self.constants
            or target.id in self.functions
            or (target.id == "TOOLS" and self.tools is not None)
        ):
            raise _refuse(node, f"binding {target.id!r} twice", "bind each module name once")
        if target.id == "TOOLS":
            if not isinstance(node.value, ast.Dict):
                raise _refuse(
                    node, "a TOOLS that is no dict literal", 'write TOOLS = {"tool_name": function, ...}'
                )
            self.tools = node.value
            return
        self._constant(node.value)
        self.constants.add(target.id)

    def _constant(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | type(None)):
            return
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and isinstance(node.operand, ast.Constant)
        ):
            return
        if isinstance(node, ast.Tuple | ast.List):
            for item in node.elts:
                self._constant(item)
            return
        if isinstance(node, ast.Dict):
            for item in (*node.keys, *node.values):
                if item is None:
                    raise _refuse(node, "** in a constant table", "write the entries out")
                self._constant(item)
            return
        raise _refuse(node, f"{type(node).__name__} as a module value", "module values are literal constants")

    def _tool_table(self, table: ast.Dict) -> None:
        seen: set[str] = set()
        for key, value in zip(table.keys, table.values, strict=True):
            if not (
                isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Name)
            ):
                raise _refuse(
                    table, "this entry of TOOLS", "every entry is a string and the name of a function"
                )
            function = self.functions.get(value.id)
            if function is None:
                raise _refuse(
                    value, f"TOOLS naming {value.id!r}", f"name one of the functions {sorted(self.functions)}"
                )
            if key.value in seen:
                raise _refuse(key, f"the tool {key.value!r} twice", "name each tool once")
            seen.add(key.value)
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)[:2]]
            if names != ["state", "ctx"]:
                raise _refuse(
                    function, f"a tool function that takes {names}", "its first parameters are state, ctx"
                )

    # ---------------------------------------------------------------- functions
    def _function(self, function: ast.FunctionDef) -> None:
        arguments = function.args
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                if isinstance(default, ast.List | ast.Dict):
                    raise _refuse(
                        default, "a mutable default", "default to None; it would be shared by all episodes"
                    )
                self._constant(default)
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        local = {a.arg for a in parameters}
        for a in parameters:
            _check_name(a, a.arg)
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                local.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                local.add(node.name)
            elif isinstance(node, ast.Lambda):
                inner = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
                local |= self._inner(node, inner)
            elif isinstance(node, ast.comprehension):
                targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
                self._inner(node.target, targets)
        for name in local:
            _check_name(function, name)
        checker = _Body(self, local)
        for statement in function.body:
            checker.visit(statement)

    def _inner(self, node: ast.AST, names: set[str]) -> set[str]:
        """Names bound in a lambda or comprehension only: outside it they would mean the module's function."""
        for name in names & {*self.functions, "TOOLS"}:
            raise _refuse(node, f"binding the function name {name!r}", "use another name")
        return names


class _Body(ast.NodeVisitor):
    """Checks the body of one function, node by node; ``local`` are the names it binds."""

    def __init__(self, module: _Module, local: set[str]) -> None:
        self.module = module
        self.local = local

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, (*STATEMENTS, *EXPRESSIONS, *SMALL)):
            word = NODE_WORDS.get(type(node), type(node).__name__)
            raise _refuse(node, word, "see ALLOWED_BUILTINS and ALLOWED_METHODS for what is there instead")
        super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if name.startswith("__"):
            raise _refuse(node, f"the name {name!r}", "names with two leading underscores are Python's own")
        if not isinstance(node.ctx, ast.Load) or name in self.local or name in self.module.constants:
            return
        if name in self.module.functions or name == "TOOLS":
            raise _refuse(node, f"the function {name!r} as a value", "call it")
        if name not in ALLOWED_BUILTINS:
            raise _refuse(node, f"the name {name!r}", f"known names: {', '.join(sorted(ALLOWED_BUILTINS))}")
        if name not in ("str", "int", "float", "bool", "list", "dict", "tuple", *ERRORS):
            raise _refuse(node, f"{name!r} as a value", "call it")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        raise _refuse(
            node, f"the attribute {node.attr!r} outside a call", "call a method, or use [...] for fields"
        )

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        consumer = False
        if isinstance(function, ast.Name):
            known = function.id in ALLOWED_BUILTINS or function.id in self.module.functions
            if function.id in self.local or not known:
                raise _refuse(
                    node, f"calling {function.id!r}", f"callable names: {', '.join(sorted(ALLOWED_BUILTINS))}"
                )
            consumer = function.id in CONSUMERS
        elif isinstance(function, ast.Attribute):
            if function.attr not in ALLOWED_METHODS:
                raise _refuse(
                    node, f"the method {function.attr!r}", f"known: {', '.join(sorted(ALLOWED_METHODS))}"
                )
            consumer = function.attr in ("join", "extend", "fromkeys")
            if function.attr in ("items", "keys") and not self._state_keys(node):
                raise _refuse(
                    node, f".{function.attr}() kept as a value", "iterate it at once, or wrap it in list(...)"
                )
            self.visit(function.value)
        else:
            raise _refuse(node, "calling the result of an expression", "call functions and methods by name")
        for argument in node.args:
            self._argument(argument, consumer)
        takes_key = ("sorted", "min", "max") if isinstance(function, ast.Name) else ("sort",)
        called = function.id if isinstance(function, ast.Name) else function.attr
        for keyword in node.keywords:
            if keyword.arg == "key" and called in takes_key and isinstance(keyword.value, ast.Lambda):
                if keyword.value.args.defaults or keyword.value.args.kw_defaults:
                    raise _refuse(node, "a default in a lambda", "write key=lambda r: ...")
                self.visit(keyword.value.body)
            else:
                self._argument(keyword.value, consumer=False)

    def _state_keys(self, node: ast.Call) -> bool:
        """``state.keys("collection")`` is a list, not a view."""
        assert isinstance(node.func, ast.Attribute)
        return node.func.attr == "keys" and len(node.args) == 1

    def _view(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("items", "keys")
            and not node.args
            and not node.keywords
        )

    def _argument(self, node: ast.expr, consumer: bool) -> None:
        if consumer and isinstance(node, ast.GeneratorExp):
            self._comprehension(node.generators, node.elt)
        elif consumer and self._view(node):
            self._iterable(node)
        else:
            self.visit(node)

    def _iterable(self, node: ast.expr) -> None:
        if self._view(node):
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            self.visit(node.func.value)
        else:
            self.visit(node)

    def _comprehension(self, generators: list[ast.comprehension], *parts: ast.expr) -> None:
        for generator in generators:
            self.visit(generator.target)
            self._iterable(generator.iter)
            for condition in generator.ifs:
                self.visit(condition)
        for part in parts:
            self.visit(part)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node.generators, node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, node.key, node.value)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        raise _refuse(node, "a generator kept as a value", "use a list comprehension")

    def visit_Lambda(self, node: ast.Lambda) -> None:
        raise _refuse(node, "a lambda other than key=lambda ...", "write a function")

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.target)
        self._iterable(node.iter)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        # The annotation of a local is never executed.
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for kind in kinds:
            if not (isinstance(kind, ast.Name) and kind.id in ERRORS):
                raise _refuse(node, "this except", f"name the errors, of {', '.join(sorted(ERRORS))}")
        for statement in node.body:
            self.visit(statement)

    def visit_Raise(self, node: ast.Raise) -> None:
        error = node.exc
        if error is None and node.cause is None:
            return
        named = (
            isinstance(error, ast.Call) and isinstance(error.func, ast.Name) and error.func.id == "ToolError"
        )
        if not named or (node.cause is not None and not isinstance(node.cause, ast.Constant | ast.Name)):
            raise _refuse(node, "this raise", 'tools raise ToolError("what was wrong")')
        assert error is not None
        self.visit(error)
        if node.cause is not None:
            self.visit(node.cause)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Subscript):
                raise _refuse(node, "del of a name", "del takes items: del record['field']")
            self.visit(target)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str | int | float | bool | type(None)):
            raise _refuse(
                node, f"a {type(node.value).__name__} constant", "use strings, numbers, booleans and None"
            )


def check_source(source: str) -> ast.Module:
    """Parse and check generated code without running it; UnsafeCodeError names line and construct."""
    if len(source) > MAX_SOURCE_CHARS:
        raise UnsafeCodeError(f"tools.py has {len(source)} characters; at most {MAX_SOURCE_CHARS} are read")
    try:
        tree = parse_source(source, filename="tools.py")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise UnsafeCodeError(f"tools.py line {line}: not valid Python: {error}") from error
    try:
        _Module(tree)
    except RecursionError as error:
        raise UnsafeCodeError("tools.py is nested too deeply to be checked; split its expressions") from error
    return tree
