"""Tool documents in, one shape out: ``read_tool_doc`` and ``lint``, with one reader module per format."""

from envgen.tooldocs.lint import lint
from envgen.tooldocs.read import read_tool_doc

__all__ = ["lint", "read_tool_doc"]
