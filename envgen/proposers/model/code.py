"""The Python of a tool as the model writes it: its head, its form, and the module it becomes part of.

The text is only parsed and put together here. It runs in isolated workers (`envgen.runtime.isolation`), never
in this process: it is not our templates' text.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from envgen.proposers.model.asking import Wrong
from envgen.proposers.model.statements import hidden_params
from envgen.runtime.parsing import later_f_string, parse_source
from envgen.synthesis.functions import generate_source
from envgen.synthesis.source_text import identifier, literal
from envgen.types import StateSchema, ToolSemantics, ToolSpec

MAX_CHARS = 12_000
"""Of one function; the whole of a shipped environment is rarely longer."""


def function_head(spec: ToolSpec) -> str:
    """The ``def`` line a tool's function must have."""
    hidden = hidden_params(spec)
    shown = [p for p in spec.params if p.name not in hidden]
    plain = [p for p in shown if identifier(p.name) == p.name]
    names = [p.name for p in plain if p.required] + [f"{p.name}=None" for p in plain if not p.required]
    items = ["state", "ctx", "/", *(["*", *names] if names else [])]
    odd = [p.name for p in shown if identifier(p.name) != p.name]
    tail = f"  # extra.get(name) gives: {', '.join(odd)}" if odd else ""
    if odd:
        items.append("**extra")
    return f"def {identifier(spec.name)}({', '.join(items)}):{tail}"


def check_form(code: str, spec: ToolSpec) -> str:
    """The code, stripped, when it is one function with the head it must have. Raises Wrong.

    The allow-list looks at the whole module later, in a worker.
    """
    text = code.strip()
    if len(text) > MAX_CHARS:
        raise Wrong(f"code has {len(text)} characters, expected at most {MAX_CHARS}")
    try:
        tree = parse_source(text)
        wanted = parse_source(function_head(spec) + "\n    pass").body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Wrong(f"code is not valid Python: {error}") from error
    if line := later_f_string(text):  # a bundle that is made on a later Python is read on 3.11 too
        raise Wrong(
            f"code line {line}: an f-string that Python 3.11 cannot read; in its braces use the other kind "
            "of quotes, and no backslash, comment or line end"
        )
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        kinds = ", ".join(type(node).__name__ for node in tree.body[:4]) or "nothing"
        raise Wrong(f"code: got {kinds}, expected one function and nothing beside it")
    function = tree.body[0]
    assert isinstance(wanted, ast.FunctionDef)
    if function.name != wanted.name or ast.dump(function.args) != ast.dump(wanted.args):
        raise Wrong(f"code: the head is not {function_head(spec).split('  #')[0]}")
    return text


def function_names(source: str) -> set[str]:
    """The functions of a module that our templates wrote."""
    return {node.name for node in parse_source(source).body if isinstance(node, ast.FunctionDef)}


def assemble(schema: StateSchema, kept: tuple[ToolSemantics, ...], functions: Mapping[str, str]) -> str:
    """Text of ``tools.py``: our templates' functions for ``kept``, then the model's, then the table.

    With no function of the model it is the templates' text, byte for byte, and so vetted.
    """
    source = generate_source(schema, kept)
    if not functions:
        return source
    head = source[: source.rindex("TOOLS = {")].rstrip()
    names = [s.tool for s in kept] + list(functions)
    table = "\n".join(f"    {literal(name)}: {identifier(name)}," for name in names)
    return "\n\n\n".join([head, *functions.values(), f"TOOLS = {{\n{table}\n}}"]) + "\n"
