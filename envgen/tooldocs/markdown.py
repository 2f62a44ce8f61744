"""Markdown README tool lists -> ToolDoc: lists, headings and tables of tools, each with its line number.

Where a heading speaks of tools, functions, commands or an API, only what stands below it counts; a text
with no such heading must name at least two tools. Prose without such a structure takes a language model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from envgen.errors import ProseError
from envgen.tooldocs.load import Loaded
from envgen.tooldocs.markdown_blocks import Fence, Item, Section, Table, Text, parse_markdown
from envgen.tooldocs.markdown_params import Params, output_of_fence, output_of_items, plain
from envgen.tooldocs.naming import clean_name, unique_tools, words
from envgen.tooldocs.node import TYPE_NAMES
from envgen.tooldocs.prose import NO_MODEL
from envgen.types import FieldSpec, LintFinding, ToolDoc, ToolSpec

_TOOL_SECTION = re.compile(
    r"\b(tools?|functions?|api|commands?|operations?|methods?|endpoints?|capabilities)\b", re.IGNORECASE
)
_NO_TOOLS = re.compile(
    r"\b(install\w*|config\w*|environment|variables?|setup|usage|resources?|prompts?|licen[sc]e|contribut\w*|changelog)\b",
    re.I,
)
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9]*(?:[_\-./][A-Za-z0-9]+)*$")
_HEAD = re.compile(
    r"^(?:\d+[.)]\s*)?(?P<open>[`*_]*)(?P<name>[A-Za-z][\w\-./]*)(?P<args>\([^`*]*?\))?(?P<close>[`*_]*)"
    r"(?P<args2>\([^()]*\))?(?:\s*(?:->|→)\s*[\w\[\], |]+)?[`*_]*\s*(?:[:–—-]+\s*(?P<text>.*))?$",
    re.DOTALL,
)
_LABEL = re.compile(
    r"^\W*(?P<need>required|optional)?\s*(?P<what>inputs?(?:\s+(?:schema|parameters))?|parameters?|params|arguments?|args|"
    r"request(?:\s+(?:schema|body|parameters))?|returns?|outputs?(?:\s+schema)?|response(?:\s+(?:schema|format))?|results?)"
    r"(?:\s*\((?P<note>[^()]*)\))?\s*(?:\*\*|__|`)?\s*(?::|$)\s*(?P<rest>.*)$",
    re.IGNORECASE | re.DOTALL,
)
_HINTS = {
    "readonlyhint": "read_only", "readonly": "read_only", "destructivehint": "destructive",
    "destructive": "destructive", "idempotenthint": "idempotent", "idempotent": "idempotent",
}  # fmt: skip
_YES = frozenset({"true", "yes", "y", "✓", "✔", "✅", "x"})
_NO = frozenset({"false", "no", "n", "✗", "✘", "❌"})


@dataclass
class _Draft:
    """One tool while its parts are being found."""

    name: str
    line: int
    description: str = ""
    params: Params = field(default_factory=Params)
    output: FieldSpec | None = None
    hints: dict[str, bool] = field(default_factory=dict[str, bool])


def read_markdown(loaded: Loaded) -> ToolDoc:
    """The tools that a README lists. Raises DocumentError, with a reason, when it lists none."""
    root = parse_markdown(str(loaded.tree))
    sections = list(_tool_sections(root))
    drafts: dict[str, _Draft] = {}
    for section in sections or [root]:
        for draft in _drafts(section, inside=bool(sections)):
            _add(drafts, draft)
    if not drafts or (not sections and len(drafts) < 2):
        raise ProseError(
            f"{loaded.source}: this Markdown lists no tools (under a heading that speaks of tools: a list, a "
            f"table or a heading per tool, its name in code or bold type); {NO_MODEL}"
        )
    for table in _tables(root):
        _annotate(drafts, table)
    says_need = any(d.params.says_need for d in drafts.values())
    tools = [_tool(draft, says_need) for draft in drafts.values()]
    where = (
        f"line {sections[0].line}, {plain(sections[0].title)!r}" if sections else "no heading speaks of tools"
    )
    return ToolDoc(
        title=next((plain(s.title) for s in root.children if s.title), "") or loaded.source.rsplit(".", 1)[0],
        format="markdown",
        source=loaded.source,
        sha256=loaded.sha256,
        description=next((p.text for s in root.children for p in s.content if isinstance(p, Text)), ""),
        tools=unique_tools(tools, loaded.source),
        detected=f"Markdown with a tool list ({where}; {len(tools)} tools by their own line)",
        findings=tuple(_findings(drafts.values(), says_need)),
    )


def _tool(draft: _Draft, says_need: bool) -> ToolSpec:
    pointer = f"line {draft.line}"
    return ToolSpec(
        name=clean_name(draft.name, pointer),
        description=" ".join(draft.description.split()),
        params=draft.params.specs(draft.name, says_need),
        output=draft.output,
        read_only=draft.hints.get("read_only"),
        destructive=draft.hints.get("destructive"),
        idempotent=draft.hints.get("idempotent"),
        pointer=pointer,
    )


def _findings(drafts: Iterable[_Draft], says_need: bool) -> Iterator[LintFinding]:
    for draft in drafts:
        guessed = draft.params.guessed
        if guessed:
            yield LintFinding(
                level="warning",
                code="type-assumed",
                message=f"{draft.name}: no type is given for {', '.join(guessed)}; assumed by the name",
                pointer=f"line {draft.line}",
            )
        if draft.params.entries and not says_need:
            yield LintFinding(
                level="warning",
                code="required-assumed",
                message=f"{draft.name}: nothing says which parameters are required; assumed by their names",
                pointer=f"line {draft.line}",
            )


# ------------------------------------------------------------------------------------------------ where
def _tool_sections(section: Section) -> Iterator[Section]:
    """The outermost sections whose heading speaks of tools and that hold some."""
    for child in section.children:
        title = plain(child.title)
        speaks = bool(_TOOL_SECTION.search(title)) and not _NO_TOOLS.search(title)
        if speaks and _heading_tool(child, inside=False) is None and any(_drafts(child, inside=True)):
            yield child
            continue
        yield from _tool_sections(child)


def _drafts(section: Section, inside: bool) -> Iterator[_Draft]:
    """Tools of a section in document order: by list item, by table row, by heading."""
    for part in section.content:
        if isinstance(part, Item):
            yield from _item_tools(part, inside)
        elif isinstance(part, Table):
            yield from _table_tools(part)
    for child in section.children:
        draft = _heading_tool(child, inside)
        if draft is not None:
            yield draft
        elif not _NO_TOOLS.search(plain(child.title)):
            yield from _drafts(child, inside)


def _add(drafts: dict[str, _Draft], draft: _Draft) -> None:
    """A tool that stands in an overview and again in detail is one tool: the fuller place wins."""
    known = drafts.get(draft.name)
    if known is None:
        drafts[draft.name] = draft
        return
    if len(draft.params.entries) > len(known.params.entries):
        known.params, known.line = draft.params, draft.line
    known.description = known.description or draft.description
    known.output = known.output or draft.output


def _tables(section: Section) -> Iterator[Table]:
    yield from (part for part in section.content if isinstance(part, Table))
    for child in section.children:
        yield from _tables(child)


# ------------------------------------------------------------------------------------------------ one tool
def _named(text: str, inside: bool, *, heading: bool = False) -> tuple[str, str, str] | None:
    """(name, signature, description) when a line begins with a tool's name: in code or bold type, or a
    compound word where tools are being listed."""
    found = _HEAD.match(text.strip())
    if found is None:
        return None
    name = found["name"].strip("_")
    decorated = "`" in found["open"] or "**" in found["open"] or "__" in found["open"]
    if decorated and found["open"][0] not in found["close"]:
        return None  # **knowledge graph**: the first of several words
    code = "`" in found["open"]
    compound = len(words(name)) > 1 and name[:1].islower()
    if not _NAME.match(name) or name.isupper() or name.lower() in TYPE_NAMES or len(name) < 2:
        return None
    if not compound and not name.islower():
        return None
    if _LABEL.match(name):
        return None
    sure = (compound and (decorated or inside)) or (inside and (code or (decorated and found["text"])))
    if not sure and not (heading and inside and not found["text"]):
        return None
    args = (found["args"] or found["args2"] or "")[1:-1]
    return name, args, (found["text"] or "").strip()


def _item_tools(item: Item, inside: bool) -> Iterator[_Draft]:
    named = _named(item.text, inside)
    if named is None:
        for part in item.content:
            if isinstance(part, Item):
                yield from _item_tools(part, inside)
        return
    name, signature, text = named
    draft = _Draft(name, item.line, text)
    draft.params.add_signature(signature, item.line)
    _fill(draft, item.content)
    yield draft


def _heading_tool(section: Section, inside: bool) -> _Draft | None:
    named = _named(section.title, inside, heading=True)
    if named is None:
        return None
    name, signature, text = named
    draft = _Draft(name, section.line, text)
    draft.params.add_signature(signature, section.line)
    _fill(draft, section.content)
    for child in section.children:
        label = _LABEL.match(plain(child.title))
        if label is not None:
            _labelled(draft, label, child.content, child.line)
    return draft


def _fill(draft: _Draft, content: list[Item | Fence | Table] | list[Item | Fence | Table | Text]) -> None:
    """Description, parameters and result from what stands below a tool's name."""
    label: re.Match[str] | None = None
    bare = not any(_LABEL.match(p.text) for p in content if isinstance(p, Item | Text))
    for part in content:
        if isinstance(part, Text | Item):
            found = _LABEL.match(part.text)
            if found is not None:
                label = found
                _labelled(draft, found, part.content if isinstance(part, Item) else [], part.line)
                continue
        if isinstance(part, Text):
            label = None if part.text.rstrip().endswith(":") else label
            draft.description = draft.description or part.text.removeprefix("**Purpose**:").strip()
        elif label is not None and not (isinstance(part, Item) and _says_nothing(part)):
            _labelled(draft, label, [part], part.line, rest=False)
        elif isinstance(part, Table):
            draft.params.add_table(part)
        elif (
            isinstance(part, Item)
            # without any label, items that look like parameters are: `name`: text (type, required)
            and not (bare and draft.params.add_item(part, strict=True))
            and not draft.description
        ):
            draft.description = plain(part.text)


def _says_nothing(item: Item) -> bool:
    return item.text.lower().startswith(("note", "example"))


def _labelled(
    draft: _Draft,
    label: re.Match[str],
    content: list[Item | Fence | Table] | list[Item | Fence | Table | Text],
    line: int,
    *,
    rest: bool = True,
) -> None:
    """What stands after ``Inputs:`` or ``Returns:``, on its line and below."""
    need = (label["need"] or label["note"] or "").lower()
    required = True if need.startswith("required") else False if need.startswith("optional") else None
    said = label["rest"].strip() if rest else ""
    if label["what"].lower().startswith(("return", "output", "response", "result")):
        items = [part for part in content if isinstance(part, Item)]
        output = output_of_items(items, said, line)
        for part in content:
            if isinstance(part, Fence) and output is None:
                output = output_of_fence(part)
        draft.output = draft.output or output
        return
    if said and not re.match(r"^(none|no |n/a|-$)", said, re.IGNORECASE):
        draft.params.add_line(said, line, required)
    for part in content:
        if isinstance(part, Item):
            inner = _LABEL.match(part.text)
            if inner is not None and inner["need"]:
                _labelled(draft, inner, part.content, part.line)
            elif not draft.params.add_item(part, required=required) and said:
                draft.params.add_members(part)
        elif isinstance(part, Table):
            draft.params.add_table(part)
        elif isinstance(part, Fence):
            draft.params.add_fence(part)


# ------------------------------------------------------------------------------------------------ tables
def _columns(table: Table) -> dict[str, int]:
    """Meaning of a tool table's columns -> index; without ``name`` it is no table of tools."""
    found: dict[str, int] = {}
    for index, cell in enumerate(table.header):
        head = plain(cell).lower()
        if re.fullmatch(
            r"(mcp )?(tool|function|command|method|operation|action|endpoint)s?( names?)?|name", head
        ):
            found.setdefault("name", index)
        elif re.match(r"(description|purpose|summary|what|details|function)", head):
            found.setdefault("text", index)
        elif re.match(r"(required |key )?(parameters?|params|arguments?|args|inputs?)", head):
            found.setdefault("params", index)
        elif head.replace(" ", "").replace("-", "").replace("_", "") in _HINTS:
            found[_HINTS[head.replace(" ", "").replace("-", "").replace("_", "")]] = index
    return found


def _table_tools(table: Table) -> Iterator[_Draft]:
    columns = _columns(table)
    kinds = {plain(cell).lower() for cell in table.header}
    if "name" not in columns or "text" not in columns or kinds & {"type", "required", "default"}:
        return
    for line, row in table.rows:
        cell = _cell(row, columns["name"])
        named = _named(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", cell), inside=True, heading=True)
        if named is None:
            continue
        name, signature, _ = named
        draft = _Draft(name, line, plain(_cell(row, columns["text"])))
        draft.params.add_signature(signature, line)
        if "params" in columns:
            draft.params.add_line(_cell(row, columns["params"]), line, None)
        draft.hints = _hints(row, columns)
        yield draft


def _annotate(drafts: dict[str, _Draft], table: Table) -> None:
    """A table of hints beside the tool list (readOnlyHint, …)."""
    columns = _columns(table)
    if "name" not in columns:
        return
    for _, row in table.rows:
        draft = drafts.get(plain(_cell(row, columns["name"])))
        if draft is not None:
            draft.hints = {**draft.hints, **_hints(row, columns)}


def _hints(row: list[str], columns: dict[str, int]) -> dict[str, bool]:
    hints: dict[str, bool] = {}
    for key in ("read_only", "destructive", "idempotent"):
        said = plain(_cell(row, columns[key])).lower() if key in columns else ""
        if said in _YES | _NO:
            hints[key] = said in _YES
    return hints


def _cell(row: list[str], index: int) -> str:
    return row[index] if index < len(row) else ""
