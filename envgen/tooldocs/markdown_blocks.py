"""Markdown text -> a tree of sections, list items, tables and code fences, each with its line number.

Only the structure that tool lists are written in: inline markup stays in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_ITEM = re.compile(r"^(\s*)(?:[-*+•]|\d{1,3}[.)])\s+(\S.*)$")
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)")
_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$")
_SUMMARY = re.compile(r"^\s*<summary>(.*?)</summary>\s*$", re.IGNORECASE)
_TAGS = re.compile(r"</?[A-Za-z][^>]*>")
MAX_INDENT = 60


@dataclass
class Fence:
    """A code block. ``line`` is the line of its first line of code."""

    line: int
    language: str
    text: str


@dataclass
class Table:
    """Header cells and rows; each row with its line."""

    line: int
    header: list[str]
    rows: list[tuple[int, list[str]]] = field(default_factory=list[tuple[int, list[str]]])


@dataclass
class Item:
    """A list item with everything indented below it, in order. ``parts`` are the lines of its text."""

    line: int
    indent: int
    parts: list[str]
    content: list[Item | Fence | Table] = field(default_factory=list["Item | Fence | Table"])

    @cached_property
    def text(self) -> str:
        """The text on one line. Read it only once the document is parsed."""
        return " ".join(self.parts)

    @property
    def items(self) -> list[Item]:
        """The items directly below."""
        return [part for part in self.content if isinstance(part, Item)]


@dataclass
class Text:
    """Lines of a paragraph, folded into one."""

    line: int
    parts: list[str]

    @cached_property
    def text(self) -> str:
        """The text on one line. Read it only once the document is parsed."""
        return " ".join(self.parts)


@dataclass
class Section:
    """A heading with what stands below it up to the next heading of its level. Level 0 is the document."""

    line: int
    level: int
    title: str
    content: list[Item | Fence | Table | Text] = field(default_factory=list["Item | Fence | Table | Text"])
    children: list[Section] = field(default_factory=list["Section"])


def parse_markdown(text: str) -> Section:
    """The document's tree."""
    return _Parser(text).run()


def looks_like_markdown(text: str) -> bool:
    """True for text with headings, or with several list items or table rows."""
    lines = text.splitlines()
    headings = sum(bool(_HEADING.match(line)) for line in lines)
    items = sum(bool(_ITEM.match(line)) for line in lines)
    return (headings >= 1 and len(lines) >= 3) or items >= 3 or any(_is_rule(line) for line in lines)


def _is_rule(line: str) -> bool:
    return "|" in line and bool(_RULE.match(line))


def cells(line: str) -> list[str]:
    """Cells of one table row; ``\\|`` and bars in code stay."""
    parts: list[str] = [""]
    code, previous = False, ""
    body = line.strip()
    body = body[1:] if body.startswith("|") else body
    for char in body:
        if char == "`":
            code = not code
        if char == "|" and previous != "\\" and not code:
            parts.append("")
        else:
            parts[-1] += char
        previous = char
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    return [part.replace("\\|", "|").strip() for part in parts]


def _without_comments(text: str) -> str:
    """The text without ``<!-- … -->``; their line breaks stay, so that line numbers stay true."""
    kept: list[str] = []
    place = 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept += [text[place:start], "\n" * text.count("\n", start, end)]
        place = end + 3
    return "".join([*kept, text[place:]])


class _Parser:
    """One pass over the lines."""

    def __init__(self, text: str) -> None:
        self.lines = _without_comments(text).splitlines()
        self.root = Section(1, 0, "")
        self.sections = [self.root]
        self.items: list[Item] = []
        self.paragraph: Text | None = None
        self.blank = False

    def run(self) -> Section:
        """The tree."""
        index = 0
        while index < len(self.lines):
            index = self._line(index)
        return self.root

    def _line(self, index: int) -> int:
        line = self.lines[index].expandtabs(4)
        number = index + 1
        fence = _FENCE.match(line)
        if fence is not None:
            return self._fence(index, fence)
        summary = _SUMMARY.match(line)
        heading = _HEADING.match(line)
        if heading is not None:
            self._open(Section(number, len(heading[1]), heading[2]))
            return index + 1
        if summary is not None:
            self.items, self.paragraph = [], None
            return index + 1
        if not line.strip():
            self.paragraph, self.blank = None, True
            return index + 1
        if "|" in line and index + 1 < len(self.lines) and _is_rule(self.lines[index + 1]):
            return self._table(index)
        item = _ITEM.match(line)
        if item is not None:
            self._item(Item(number, min(len(item[1]), MAX_INDENT), [item[2].strip()]))
        else:
            self._text(number, line)
        self.blank = False
        return index + 1

    def _open(self, section: Section) -> None:
        self.items, self.paragraph = [], None
        while self.sections[-1].level >= section.level:
            self.sections.pop()
        self.sections[-1].children.append(section)
        self.sections.append(section)

    def _holder(self, indent: int) -> Item | None:
        """The item that something indented by ``indent`` belongs to."""
        while self.items and self.items[-1].indent >= indent:
            self.items.pop()
        return self.items[-1] if self.items else None

    def _place(self, part: Fence | Table, indent: int) -> None:
        holder = self._holder(indent)
        (holder.content if holder is not None else self.sections[-1].content).append(part)
        self.paragraph = None

    def _item(self, item: Item) -> None:
        holder = self._holder(item.indent)
        if holder is not None:
            holder.content.append(item)
        else:
            self.sections[-1].content.append(item)
        self.items.append(item)
        self.paragraph = None

    def _text(self, number: int, line: str) -> None:
        text = _TAGS.sub("", line).strip()
        if not text:
            return
        indent = len(line) - len(line.lstrip())
        if self.items and (indent > self.items[-1].indent or not self.blank):
            self.items[-1].parts.append(text)
            return
        if self.items and indent > 0 and (holder := self._holder(indent)) is not None:
            holder.parts.append(text)
            return
        self.items = []
        if self.paragraph is None:
            self.paragraph = Text(number, [text])
            self.sections[-1].content.append(self.paragraph)
        else:
            self.paragraph.parts.append(text)

    def _fence(self, index: int, fence: re.Match[str]) -> int:
        mark, end = fence[2], index + 1
        while end < len(self.lines) and not self.lines[end].strip().startswith(mark):
            end += 1
        body = "\n".join(self.lines[index + 1 : end])
        self._place(Fence(index + 2, fence[3].lower(), body), len(fence[1]))
        return end + 1

    def _table(self, index: int) -> int:
        indent = len(self.lines[index]) - len(self.lines[index].lstrip())
        table = Table(index + 1, cells(self.lines[index]))
        end = index + 2
        while end < len(self.lines) and "|" in self.lines[end]:
            table.rows.append((end + 1, cells(self.lines[end])))
            end += 1
        self._place(table, indent)
        self.items = self.items if indent else []
        return end
