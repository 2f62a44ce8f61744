"""Tool documents in, one shape out: ``read_tool_doc(s)`` and ``lint``, with one reader module per format."""

from envgen.tooldocs.combine import combine, read_tool_docs
from envgen.tooldocs.lint import lint
from envgen.tooldocs.read import read_tool_doc

__all__ = ["combine", "lint", "read_tool_doc", "read_tool_docs"]
