"""Findings about a tool document: warnings, and refusals that say why no environment can come of it."""

from __future__ import annotations

from collections.abc import Iterator

from envgen.tooldocs.naming import READ_WORDS, WRITE_WORDS, words, writes
from envgen.types import FieldSpec, LintFinding, ToolDoc, ToolSpec

_ID_WORDS = frozenset({"id", "ids", "uuid", "guid", "slug", "sid", "key", "number"})
_NEW_WORDS = frozenset(
    {"create", "add", "insert", "new", "register", "post", "place", "buy", "book", "open", "make", "upload"}
)
_CHANGE_WORDS = frozenset(
    {
        "update",
        "edit",
        "modify",
        "delete",
        "remove",
        "cancel",
        "patch",
        "toggle",
        "enable",
        "disable",
        "move",
        "close",
    }
)
_ENVELOPES = frozenset({"header", "cookie"})


def lint(doc: ToolDoc) -> tuple[LintFinding, ...]:
    """Every finding, refusals first, then by place in the document.

    Refusals: ``no-tools``. Warnings: ``no-write-tool``, ``no-read-tool``, ``no-list-tool``, ``no-creator``,
    ``id-without-creator-or-lister``, ``write-without-key``, ``no-outputs``, ``no-output-schema``,
    ``binary-output``, ``file-parameter``, ``method-parameter``, ``free-form-parameter``,
    ``annotation-conflict``, ``no-description``, ``untyped-parameter``, ``circular-reference``,
    ``truncated-schema``; and what the reader itself left out or assumed.
    """
    found = [*doc.findings, *_document(doc), *(finding for tool in doc.tools for finding in _tool(tool, doc))]
    return tuple(sorted(found, key=lambda finding: finding.level == "warning"))


def _warn(code: str, message: str, pointer: str) -> LintFinding:
    return LintFinding(level="warning", code=code, message=message, pointer=pointer)


def _document(doc: ToolDoc) -> Iterator[LintFinding]:
    if not doc.tools:
        yield LintFinding(
            level="refusal", code="no-tools", message="the document describes no tool", pointer="/"
        )
        return
    if not any(writes(tool) for tool in doc.tools):
        yield _warn(
            "no-write-tool",
            "no tool changes anything: tasks can only ask questions, and are judged by the answer",
            "/",
        )
    if all(writes(tool) for tool in doc.tools):
        yield _warn(
            "no-read-tool", "no tool reads anything, so ids and current values cannot be looked up", "/"
        )
    elif not any(_finds(tool) for tool in doc.tools):
        yield _warn(
            "no-list-tool",
            "no tool lists or searches records: to read one its id must be known, and nothing tells it",
            "/",
        )
    yield from _circular(doc)
    yield from _never_created(doc)
    silent = [tool for tool in doc.tools if tool.output is None and not writes(tool)]
    if len(doc.tools) > 1 and all(tool.output is None for tool in doc.tools):
        yield _warn(
            "no-outputs",
            "no tool gives a result schema, so what records hold is inferred from parameters alone",
            "/",
        )
    elif silent:
        names = ", ".join(tool.name for tool in silent[:5]) + (", …" if len(silent) > 5 else "")
        yield _warn(
            "no-output-schema",
            f"{len(silent)} of the reading tools give no result schema, so what they return is "
            f"inferred: {names}",
            silent[0].pointer,
        )


def _tool(tool: ToolSpec, doc: ToolDoc) -> Iterator[LintFinding]:
    if not tool.description:
        yield _warn("no-description", f"{tool.name}: no description", tool.pointer)
    if tool.output is not None and tool.output.format == "binary":
        yield _warn(
            "binary-output", f"{tool.name}: returns binary data, which no state can hold", tool.output.pointer
        )
    yield from _conflicts(tool)
    for param in tool.params:
        if param.location in _ENVELOPES:
            continue
        yield from _hard_parameter(tool, param)
        if param.type == "any":
            yield _warn("untyped-parameter", f"{tool.name}.{param.name}: no type is given", param.pointer)
        loops = {node.pointer for node in _loops(param)}
        if any(node.truncated and node.pointer not in loops for node in _nodes(param)):
            yield _warn(
                "truncated-schema",
                f"{tool.name}.{param.name}: the schema is too deep or too large; cut",
                param.pointer,
            )
        entity = _entity(param, tool)
        if entity and not _can_be_known(entity, param, tool, doc):
            yield _warn(
                "id-without-creator-or-lister",
                f"{tool.name}.{param.name}: no tool returns, lists or creates a {' '.join(entity)}, "
                "so nobody can know the id",
                param.pointer,
            )
    name = words(tool.name)
    changes_one = bool(_CHANGE_WORDS & set(name[:2])) or tool.method in {"put", "patch", "delete"}
    keyed = any(param.required and param.location not in _ENVELOPES for param in tool.params)
    singular = any(word in {"user", "self", "me", "settings", "profile", "config"} for word in name)
    if writes(tool) and changes_one and not keyed and not singular:
        yield _warn(
            "write-without-key",
            f"{tool.name}: changes a record and no required parameter says which",
            tool.pointer,
        )


def _finds(tool: ToolSpec) -> bool:
    """A read that can be called knowing no id: no required key."""
    needed = [p for p in tool.params if p.required and p.location not in _ENVELOPES]
    return not writes(tool) and not any(words(p.name)[-1:] and words(p.name)[-1] in _ID_WORDS for p in needed)


def _never_created(doc: ToolDoc) -> Iterator[LintFinding]:
    """Records that tools change or delete by id and that none creates: tasks can only use those at the
    start."""
    made = [
        {_stem(word) for word in (*words(t.said_name), *(w for s in t.path.split("/") for w in words(s)))}
        for t in doc.tools
        if t.method == "post" or set(words(t.said_name)) & _NEW_WORDS
    ]
    said: set[tuple[str, ...]] = set()
    for tool in doc.tools:
        if not writes(tool) or set(words(tool.said_name)) & _NEW_WORDS or tool.method == "post":
            continue
        key = next((p for p in tool.params if _entity(p, tool)), None)
        entity = tuple(_stem(word) for word in _entity(key, tool)) if key is not None else ()
        if entity and entity not in said and not any(set(entity) <= about for about in made):
            said.add(entity)
            noun = " ".join(entity)
            yield _warn(
                "no-creator",
                f"{tool.name}: changes a {noun}, and no tool creates one: only those of the start exist",
                tool.pointer,
            )


def _conflicts(tool: ToolSpec) -> Iterator[LintFinding]:
    verb = next((w for w in words(tool.said_name) if w in READ_WORDS or w in WRITE_WORDS), "")
    if tool.read_only is True and (verb in WRITE_WORDS or tool.method in {"put", "patch", "delete"}):
        yield _warn(
            "annotation-conflict",
            f"{tool.name}: is annotated as read-only, and its name or method says that it writes",
            tool.pointer,
        )
    if tool.read_only is False and verb in READ_WORDS and tool.method in ("", "get"):
        yield _warn(
            "annotation-conflict",
            f"{tool.name}: is annotated as writing, and its name says that it reads",
            tool.pointer,
        )


def _hard_parameter(tool: ToolSpec, param: FieldSpec) -> Iterator[LintFinding]:
    """Parameters that leave open what a call means."""
    where = f"{tool.name}.{param.name}"
    if param.format in ("binary", "byte"):
        yield _warn("file-parameter", f"{where}: takes a file, which no state can hold", param.pointer)
    elif param.required and param.type == "object" and not param.properties and not param.truncated:
        yield _warn(
            "free-form-parameter", f"{where}: an object, and nothing says what it holds", param.pointer
        )
    if param.name in ("method", "action", "operation") and len(param.enum) > 1 and len(tool.params) > 1:
        yield _warn(
            "method-parameter",
            f"{where}: {len(param.enum)} operations behind one parameter; give each a tool of its own",
            param.pointer,
        )


def _nodes(spec: FieldSpec) -> Iterator[FieldSpec]:
    yield spec
    for child in (*spec.properties, *((spec.items,) if spec.items is not None else ())):
        yield from _nodes(child)


def _circular(doc: ToolDoc) -> Iterator[LintFinding]:
    """Each ``$ref`` that leads back to a schema it stands in, once, where it stands."""
    said: set[str] = set()
    for tool in doc.tools:
        roots = [*tool.params, *((tool.output,) if tool.output is not None else ())]
        for node in (loop for root in roots for loop in _loops(root)):
            if node.pointer in said:
                continue
            said.add(node.pointer)
            name = node.name or "an item"
            yield _warn(
                "circular-reference",
                f"{tool.name}: {name} is again a {node.ref}, inside of {node.ref}; cut there",
                node.pointer,
            )


def _loops(spec: FieldSpec) -> Iterator[FieldSpec]:
    """The nodes of a schema at which a reference to one of the schemas above was cut.

    The reader leaves such a node at the place of its ``$ref``; one that was cut for its depth stands at the
    schema that is referred to.
    """
    homes = tuple(f"/{home}/{spec.ref}" for home in ("schemas", "definitions", "$defs", "parameters"))
    if spec.truncated and spec.ref and not spec.pointer.endswith(homes):
        yield spec
    for child in (*spec.properties, *((spec.items,) if spec.items is not None else ())):
        yield from _loops(child)


def _entity(param: FieldSpec, tool: ToolSpec) -> tuple[str, ...]:
    """Words of the entity a required key names: ``task_list_id`` -> (task, list); else empty."""
    name = words(param.name)
    if not param.required or len(name) < 1 or name[-1] not in _ID_WORDS or param.location in _ENVELOPES:
        return ()
    if len(name) > 1:
        return name[:-1]
    if name[-1] in {"key", "number"}:
        return ()
    segments = [segment for segment in tool.path.split("/") if segment]
    marker = f"{{{param.name}}}"
    if marker in segments and segments.index(marker) > 0:
        return words(segments[segments.index(marker) - 1])
    return tuple(word for word in words(tool.name) if word not in READ_WORDS | _CHANGE_WORDS | _NEW_WORDS)


def _stem(word: str) -> str:
    """Singular of a regular English plural."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _can_be_known(entity: tuple[str, ...], param: FieldSpec, tool: ToolSpec, doc: ToolDoc) -> bool:
    wanted = {_stem(word) for word in entity}
    for other in doc.tools:
        about = {
            _stem(word)
            for word in (*words(other.name), *(w for s in other.path.split("/") for w in words(s)))
        }
        names = set(words(other.name))
        lists_all = bool(names & READ_WORDS) or other.method == "get"
        if (
            other.name != tool.name
            and wanted <= about
            and (lists_all or names & _NEW_WORDS or other.method == "post")
        ):
            return True
        if other.output is not None and other.name != tool.name:
            fields = {tuple(words(node.name)) for node in _nodes(other.output)}
            if words(param.name) in fields and len(words(param.name)) > 1:
                return True
    return False
