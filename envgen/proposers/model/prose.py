"""Stage 0: the tools of a document that describes them in prose. Each carries the document's own words."""

from __future__ import annotations

import re
from pathlib import Path

from envgen.errors import DocumentError
from envgen.proposers.model.answers import ParamAnswer, ProseToolAnswer, ToolsAnswer
from envgen.proposers.model.asking import Asker, NoAnswer, Wrong
from envgen.proposers.model.prompts import render
from envgen.proposers.model.structure import NAME
from envgen.tooldocs.load import read_text
from envgen.types import FieldSpec, ToolDoc, ToolSpec

MAX_CHARS = 60_000
"""Of a prose document: what fits a model's context beside the answer."""
MAX_TOOLS = 60
_SHORTEST_QUOTE = 10


def read_prose(path: Path, asker: Asker) -> ToolDoc:
    """The tools a prose document describes, by a model. ``pointer`` names the line of the quoted words.

    Raises DocumentError when the file is no text, is too long, or no answer passes its checks.
    """
    text, sha256 = read_text(path)
    if len(text) > MAX_CHARS:
        raise DocumentError(
            f"{path.name}: {len(text):,} characters of prose, at most {MAX_CHARS:,} are sent to a model; cut "
            "it down to the tools of one environment"
        )
    prompt = render("tools", source=path.name, document=text)
    try:
        return asker.ask("tools", path.name, prompt, ToolsAnswer, lambda a: _doc(a, path.name, sha256, text))
    except NoAnswer as error:
        raise DocumentError(f"{path.name}: the model found no tools that can be used: {error}") from error


def _doc(answer: ToolsAnswer, source: str, sha256: str, text: str) -> ToolDoc:
    problems: list[str] = []
    names = [tool.name for tool in answer.tools]
    if not 1 <= len(names) <= MAX_TOOLS:
        problems.append(f"got {len(names)} tools, expected 1 to {MAX_TOOLS}")
    if len(set(names)) != len(names):
        problems.append("two tools have one name")
    tools = [_tool(tool, text, problems) for tool in answer.tools]
    if problems:
        raise Wrong("; ".join(problems[:8]))
    return ToolDoc(
        title=answer.title or source,
        format="prose",
        source=source,
        sha256=sha256,
        tools=tuple(tools),
        detected="prose, read by a language model",
    )


def _tool(answer: ProseToolAnswer, text: str, problems: list[str]) -> ToolSpec:
    params = [p.name for p in answer.params]
    if not re.fullmatch(r"[A-Za-z][\w.\-]{0,63}", answer.name):
        problems.append(f"tool {answer.name!r}: expected a name of letters, digits, _ . -")
    if len(set(params)) != len(params) or not all(NAME.fullmatch(p) for p in params):
        problems.append(f"tool {answer.name!r}: parameter names are plain words, each once")
    line = line_of(answer.quote, text)
    if line is None:
        problems.append(
            f"tool {answer.name!r}: its quote does not stand in the document: {answer.quote[:60]!r}"
        )
    pointer = f"line {line}"
    return ToolSpec(
        name=answer.name,
        description=answer.description,
        params=tuple(_param(p, pointer) for p in answer.params),
        pointer=pointer,
    )


def _param(answer: ParamAnswer, pointer: str) -> FieldSpec:
    return FieldSpec(
        name=answer.name,
        type=answer.type,
        required=answer.required,
        description=answer.description,
        enum=answer.enum if answer.type == "string" else (),
        location="argument",
        pointer=pointer,
    )


def line_of(quote: str, text: str) -> int | None:
    """The line on which a quote begins, white space aside; None when the text does not hold it."""
    words = quote.split()
    if len(" ".join(words)) < _SHORTEST_QUOTE:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return None if found is None else text.count("\n", 0, found.start()) + 1
