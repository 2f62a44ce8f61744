"""Several tool documents -> one: pointers say the file, tools of one name are told apart, and all of it is
said."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from envgen.errors import DocumentError
from envgen.tooldocs.naming import MAX_NAME
from envgen.tooldocs.read import read_tool_doc
from envgen.types import FieldSpec, LintFinding, ToolDoc, ToolSemantics, ToolSpec

MAX_DOCUMENTS = 20


def read_tool_docs(paths: Sequence[Path]) -> ToolDoc:
    """`read_tool_doc` of one path; several are read and combined. Raises DocumentError."""
    return combine([read_tool_doc(path) for path in paths])


def combine(docs: Sequence[ToolDoc]) -> ToolDoc:
    """One document with the tools of all, in order. One document comes back as it is.

    Pointers read ``file#/pointer``. Tools that are equal in every word count once; tools that share a name
    and differ each get their document's name in front, and keep their own name for what it says about the
    verb. Raises DocumentError for none, or too many.
    """
    if not 1 <= len(docs) <= MAX_DOCUMENTS:
        raise DocumentError(f"got {len(docs)} documents, expected 1 to {MAX_DOCUMENTS}")
    if len(docs) == 1:
        return docs[0]
    sources = _distinct([doc.source for doc in docs])
    prefixes = _distinct([_prefix(doc) for doc in docs])
    findings: list[LintFinding] = []
    tools: list[ToolSpec] = []
    owner: list[int] = []
    for index, (doc, source) in enumerate(zip(docs, sources, strict=True)):
        findings += [f.model_copy(update={"pointer": placed(f.pointer, source)}) for f in doc.findings]
        for tool in doc.tools:
            moved = _tool(tool, source)
            same = next((t for t in tools if _said(t) == _said(moved)), None)
            if same is not None:
                text = f"{tool.name}: the same tool stands at {same.pointer}; it counts once"
                findings.append(_note("repeated-tool", text, moved.pointer))
                continue
            tools.append(moved)
            owner.append(index)
    tools = _told_apart(tools, owner, prefixes, findings)
    lines = [f"{source}:{doc.sha256}" for source, doc in zip(sources, docs, strict=True)]
    schemas: dict[str, FieldSpec] = {}
    for doc, source in zip(docs, sources, strict=True):
        for schema in doc.schemas:
            schemas.setdefault(schema.name, _field(schema, source))
    return ToolDoc(
        title=" ".join(re.sub(r"[^A-Za-z0-9]+", " ", doc.title).strip() for doc in docs),
        format="combined",
        source=" + ".join(sources),
        sha256=hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        description=" ".join(doc.description for doc in docs if doc.description),
        tools=tuple(tools),
        schemas=tuple(schemas.values()),
        detected="; ".join(f"{source}: {doc.detected}" for source, doc in zip(sources, docs, strict=True)),
        findings=tuple(findings),
    )


class _HasSemantics(Protocol):
    """A draft or a bundle."""

    @property
    def semantics(self) -> tuple[ToolSemantics, ...]: ...


def shared_collections(doc: ToolDoc, made: _HasSemantics) -> dict[str, tuple[str, ...]]:
    """Collection -> the documents whose tools act on it, for those that several documents share."""
    files = {tool.name: tool.pointer.partition("#")[0] for tool in doc.tools if "#" in tool.pointer}
    used: dict[str, list[str]] = {}
    for item in made.semantics:
        file = files.get(item.tool, "")
        for name in dict.fromkeys([item.collection, *(p.collection for p in item.preconditions)]):
            if file and file not in used.setdefault(name, []):
                used[name].append(file)
    return {name: tuple(found) for name, found in used.items() if len(found) > 1}


def placed(pointer: str, source: str) -> str:
    """``pointer`` with its file in front; an assumption stays one."""
    if not pointer or pointer.startswith("assumption"):
        return pointer
    return f"{source}#{pointer}"


def _told_apart(
    tools: list[ToolSpec], owner: list[int], prefixes: list[str], findings: list[LintFinding]
) -> list[ToolSpec]:
    counts: dict[str, int] = {}
    for tool in tools:
        counts[tool.name] = counts.get(tool.name, 0) + 1
    taken = {name for name, count in counts.items() if count == 1}
    result: list[ToolSpec] = []
    for tool, index in zip(tools, owner, strict=True):
        if counts[tool.name] == 1:
            result.append(tool)
            continue
        name = f"{prefixes[index]}_{tool.name}"[:MAX_NAME]
        while name in taken:
            name = f"{name[: MAX_NAME - 2]}_2"
        taken.add(name)
        text = f"{tool.name} stands in {counts[tool.name]} documents; this one is called {name}"
        findings.append(_note("renamed-tool", text, tool.pointer))
        result.append(tool.model_copy(update={"name": name, "own_name": tool.name}))
    return result


def _note(code: str, message: str, pointer: str) -> LintFinding:
    return LintFinding(level="warning", code=code, message=message, pointer=pointer)


def _distinct(names: list[str]) -> list[str]:
    """Names without repeats: the second ``a.yaml`` becomes ``a.yaml (2)``."""
    seen: dict[str, int] = {}
    result: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})".replace(" (", "_").rstrip(")"))
    return result


def _prefix(doc: ToolDoc) -> str:
    """The telling words of a document's title, as the beginning of a tool name."""
    plain = {"api", "the", "tools", "tool", "mcp", "server", "openapi", "swagger"}
    words = [w for w in re.split(r"[^a-z0-9]+", doc.title.lower()) if w]
    return "_".join(([w for w in words if w not in plain] or words or ["doc"])[:2])


def _said(tool: ToolSpec) -> str:
    """What a tool says, without where it stands."""
    return re.sub(r'"pointer":"(?:[^"\\]|\\.)*"', "", tool.model_dump_json())


def _tool(tool: ToolSpec, source: str) -> ToolSpec:
    return tool.model_copy(
        update={
            "pointer": placed(tool.pointer, source),
            "params": tuple(_field(param, source) for param in tool.params),
            "output": _field(tool.output, source) if tool.output is not None else None,
        }
    )


def _field(spec: FieldSpec, source: str) -> FieldSpec:
    return spec.model_copy(
        update={
            "pointer": placed(spec.pointer, source),
            "items": _field(spec.items, source) if spec.items is not None else None,
            "properties": tuple(_field(member, source) for member in spec.properties),
        }
    )
