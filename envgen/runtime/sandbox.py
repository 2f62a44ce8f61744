"""Loads generated ``tools.py`` text: the static allow-list first, then execution with a handful of builtins.

Module tables are frozen after loading (``dict`` -> read-only mapping, ``list`` -> tuple), so that nothing
two episodes share can be written. This is the first fence, and the only one for vetted code, in process. It
does not bound CPU time or memory: code that is not vetted runs in an isolated worker process
(``envgen.runtime.isolation``).
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from envgen.errors import UnsafeCodeError
from envgen.runtime.allowlist import check_source
from envgen.runtime.vocabulary import ALLOWED_BUILTINS

_CACHE_SIZE = 256


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return types.MappingProxyType({k: _freeze(v) for k, v in cast("dict[Any, Any]", value).items()})
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in cast("list[Any]", value))
    return value


Tool = Callable[..., Any]
"""``def tool(state: State, ctx: ToolContext, /, **arguments) -> JSON``."""

_cache: dict[str, Mapping[str, Tool]] = {}


def load_tools(source: str) -> Mapping[str, Tool]:
    """The closed tool table of generated code: tool name -> function, read-only.

    Cached by the hash of the text, so that many bundles and episodes share one compiled module (it holds no
    state). Raises UnsafeCodeError.
    """
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    known = _cache.get(digest)
    if known is not None:
        return known
    tree = check_source(source)
    namespace: dict[str, Any] = {"__builtins__": dict(ALLOWED_BUILTINS), "__name__": "tools"}
    # `from __future__` lines have done their work once parsed; there is no __import__ to run them with.
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    try:
        # Annotations stay text: they are not checked, so they must not run.
        code = compile(
            tree, "tools.py", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True
        )
        exec(code, namespace)
    except (SyntaxError, ValueError, TypeError, NameError, RecursionError) as error:
        raise UnsafeCodeError(f"tools.py does not load: {type(error).__name__}: {error}") from error
    for name, value in list(namespace.items()):
        if not name.startswith("__") and not isinstance(value, types.FunctionType):
            namespace[name] = _freeze(value)
    table = cast("Mapping[str, Tool]", namespace["TOOLS"])
    if len(_cache) >= _CACHE_SIZE:
        _cache.pop(next(iter(_cache)))
    _cache[digest] = table
    return table
