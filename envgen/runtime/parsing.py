"""Python source to a syntax tree, from any thread and for every Python that the project runs on."""

from __future__ import annotations

import ast
import io
import threading
import token
import tokenize

_one_at_a_time = threading.Lock()
# Tokens since Python 3.12. Before it an f-string is one STRING, and the parser is stricter.
_F_START, _F_MIDDLE, _F_END = (
    getattr(token, name, -1) for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
)


def parse_source(source: str, filename: str = "<unknown>") -> ast.Module:
    """`ast.parse`, one thread at a time: CPython up to 3.11.7 and 3.12.0 counts the depth of all threads'
    trees together and raises SystemError ("AST constructor recursion depth mismatch", gh-106905).

    Raises SyntaxError, ValueError, RecursionError and MemoryError as `ast.parse` does.
    """
    with _one_at_a_time:
        return ast.parse(source, filename=filename)


def later_f_string(source: str) -> int:
    """Line of the first f-string of valid source that Python 3.11 cannot read (PEP 701); 0 if there is none.

    Those have in their braces the quotes of the f-string itself, a backslash, a comment, or a line end
    without triple quotes. On 3.11 such source is not valid, so the answer is 0 there.
    """
    quotes: list[str] = []
    for item in tokenize.generate_tokens(io.StringIO(source).readline):
        text = item.string
        around = quotes[:-1] if item.type in (_F_MIDDLE, _F_END) else quotes
        if around and (
            item.type == token.COMMENT
            or "\\" in text
            or any(quote in text for quote in around)
            or (item.type == token.NL and any(len(quote) == 1 for quote in around))
        ):
            return item.start[0]
        if item.type == _F_START:
            quotes.append(text.lstrip("fFrRbBuU"))
        elif item.type == _F_END:
            quotes.pop()
    return 0
