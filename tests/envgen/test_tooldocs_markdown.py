"""Markdown tool lists in the forms that READMEs use; names, types and line numbers worked out by hand."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.errors import DocumentError
from envgen.synthesis.pipeline import synthesize
from envgen.tooldocs import lint, read_tool_doc
from envgen.tooldocs.param_text import read_parameter
from envgen.tooldocs.type_words import read_type
from envgen.types import FieldSpec, ToolDoc, ToolSpec


def read(tmp_path: Path, text: str, name: str = "README.md") -> ToolDoc:
    path = tmp_path / name
    path.write_text(text)
    return read_tool_doc(path)


def shape(tool: ToolSpec) -> dict[str, tuple[str, bool]]:
    return {p.name: (p.type, p.required) for p in tool.params}


def one(doc: ToolDoc, name: str) -> ToolSpec:
    return next(t for t in doc.tools if t.name == name)


def param(tool: ToolSpec, name: str) -> FieldSpec:
    return next(p for p in tool.params if p.name == name)


BULLETS = """# Notes Server

Keeps notes.

## Features
- **Fast** - really fast
- `pip install notes`

## Tools

1. `create_note`
   - Create a note in a folder
   - Required inputs:
     - `folder_id` (string): Folder to put it in
     - `title` (string): Title
   - Optional inputs:
     - `color` (string, default: "red"): One of: red, green, blue
     - `tags` (string[]): Words
   - Returns:
     - `note_id` (string): Id of the note
     - `title` (string)

2. `list_notes`
   - List all notes
   - No input required
   - Returns array of:
     - `note_id` (string)

3. **add_lines**
   - Add lines
   - Input: `edits` (array of objects)
     - Each object contains:
       - `line` (integer): Where
       - `text` (string): What
   - Note: slow

### Hints

| Tool | readOnlyHint | destructiveHint |
|---|---|---|
| `list_notes` | `true` | – |
| `create_note` | `false` | ❌ |

## Configuration

- `NOTES_TOKEN` - your token
- `notes_home` - where notes lie
"""


def test_bullets_with_labels(tmp_path: Path) -> None:
    doc = read(tmp_path, BULLETS)
    assert (doc.title, doc.format, doc.description) == ("Notes Server", "markdown", "Keeps notes.")
    assert [(t.name, t.pointer) for t in doc.tools] == [
        ("create_note", "line 11"),
        ("list_notes", "line 23"),
        ("add_lines", "line 29"),
    ]
    create = doc.tools[0]
    assert create.description == "Create a note in a folder"
    assert shape(create) == {
        "folder_id": ("string", True),
        "title": ("string", True),
        "color": ("string", False),
        "tags": ("array", False),
    }
    color = param(create, "color")
    assert (color.enum, color.default, color.pointer) == (("red", "green", "blue"), "red", "line 17")
    tags = param(create, "tags")
    assert tags.items is not None and tags.items.type == "string"
    assert create.output is not None and create.output.type == "object"
    assert [(p.name, p.pointer) for p in create.output.properties] == [
        ("note_id", "line 20"),
        ("title", "line 21"),
    ]
    assert (create.read_only, create.destructive, doc.tools[1].read_only) == (False, False, True)
    edits = param(doc.tools[2], "edits")
    assert edits.items is not None
    assert [(p.name, p.type) for p in edits.items.properties] == [("line", "integer"), ("text", "string")]
    assert "line 9" in doc.detected and "Tools" in doc.detected


def test_list_output_of_labelled_items(tmp_path: Path) -> None:
    text = "# A\n## Tools\n- `list_notes`: All notes\n  - Returns: array of notes\n    - `id` (string): Id\n"
    output = read(tmp_path, text).tools[0].output
    assert output is not None and output.type == "array" and output.items is not None
    assert [p.name for p in output.items.properties] == ["id"]


def test_bullets_with_types_behind(tmp_path: Path) -> None:
    text = """# Hub
## Tools
<details>
<summary>Issues</summary>

- **add_comment** - Add a comment to an issue
  - `body`: Text of the comment (string, required)
  - `page`: Page number (default: 1) (number, optional)
  - `resource_id`: Which resource. It varies:
    - Give a workflow for 'get_workflow'.
     (string, optional)

</details>
"""
    doc = read(tmp_path, text)
    assert [t.name for t in doc.tools] == ["add_comment"]
    assert doc.tools[0].description == "Add a comment to an issue"
    assert shape(doc.tools[0])["body"] == ("string", True)
    assert shape(doc.tools[0])["page"] == ("number", False)
    assert param(doc.tools[0], "page").default == 1


def test_headings_with_a_parameter_table_and_examples(tmp_path: Path) -> None:
    text = """# Tasks

## MCP Tools Overview

1. **add_task** - Create new task
2. **list_tasks** - List tasks

## Tool Specifications

### 1. add_task

**Purpose**: Create a new task

**Parameters**:

| Name | Type | Required | Description |
|------|------|----------|-------------|
| `title` | string | Yes | Title of the task |
| `priority` | string | No | Priority (low, medium, high) |
| `due` | string (date) | no | When |

**Returns**:

```json
{"task_id": 5, "status": "created", "title": "Buy milk"}
```

### 2. `list_tasks`

Lists tasks.

**Parameters:**
- `status` (string, optional): "all" or "done"

**Response:**
```json
[{"id": 1, "title": "x", "completed": false}]
```
"""
    doc = read(tmp_path, text)
    assert [t.name for t in doc.tools] == ["add_task", "list_tasks"]
    add = doc.tools[0]
    assert (add.description, add.pointer) == ("Create new task", "line 10")
    assert shape(add) == {"title": ("string", True), "priority": ("string", False), "due": ("string", False)}
    assert param(add, "priority").enum == ("low", "medium", "high")
    assert (param(add, "due").format, param(add, "title").pointer) == ("date", "line 18")
    assert add.output is not None
    assert [(p.name, p.type) for p in add.output.properties] == [
        ("task_id", "integer"), ("status", "string"), ("title", "string"),
    ]  # fmt: skip
    assert add.output.description.startswith("assumption: ") and add.output.pointer == "line 25"
    listed = doc.tools[1].output
    assert listed is not None and listed.type == "array" and listed.items is not None
    assert [p.type for p in listed.items.properties] == ["integer", "string", "boolean"]


def test_tool_table_and_signatures(tmp_path: Path) -> None:
    text = """# Shop
## Available Functions
| Function | Description | Parameters |
|---|---|---|
| `list_orders` | List orders | – |
| `cancel_order` | Cancel an order | `order_id` (string), `reason?` (string) |
| [`pay`](https://x.y/z) | Pay an order | order_id: string, amount: number |

### refund_order(order_id: str, amount: float = 0)
Give money back.
"""
    doc = read(tmp_path, text)
    assert [(t.name, t.pointer) for t in doc.tools] == [
        ("list_orders", "line 5"), ("cancel_order", "line 6"), ("pay", "line 7"), ("refund_order", "line 9"),
    ]  # fmt: skip
    assert doc.tools[0].params == ()
    assert shape(doc.tools[1]) == {"order_id": ("string", True), "reason": ("string", False)}
    assert shape(doc.tools[2]) == {"order_id": ("string", True), "amount": ("number", True)}
    assert shape(doc.tools[3]) == {"order_id": ("string", True), "amount": ("number", False)}
    assert doc.tools[3].description == "Give money back."


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    text = "# S\n## Tools\n- `create_item`: Make one\n"
    text += "  - Arguments:\n    - `name`: Its name\n    - `limit`: How many\n"
    doc = read(tmp_path, text)
    assert shape(doc.tools[0]) == {"name": ("string", True), "limit": ("integer", False)}
    assert [(f.code, f.pointer) for f in doc.findings] == [
        ("type-assumed", "line 3"),
        ("required-assumed", "line 3"),
    ]


def test_prose_is_refused(tmp_path: Path) -> None:
    prose = "# My server\n\nIt can create tasks. Ask it nicely.\n\n## Usage\n\n- `pip install x`\n"
    with pytest.raises(DocumentError, match=r"lists no tools .* takes a language model"):
        read(tmp_path, prose)
    with pytest.raises(
        DocumentError, match="lists no tools"
    ):  # one name outside a section of tools is a chance
        read(tmp_path, "# A\n\n- `create_task`: it\n- other\n")
    assert len(read(tmp_path, "# A\n\n- `create_task`: it\n- `drop_task`: it\n").tools) == 2


def test_markdown_is_known_without_its_name(tmp_path: Path) -> None:
    assert len(read(tmp_path, BULLETS, name="tools.txt").tools) == 3


def test_a_readme_becomes_an_environment(tmp_path: Path) -> None:
    text = """# Book club
## Tools
- **list_books** - All books
  - Returns: list of
    - `book_id` (string): Id
    - `title` (string): Title
    - `pages` (integer): Length
    - `shelf` (string): One of: new, read
- **add_book** - Add a book
  - Inputs:
    - `title` (string, required)
    - `pages` (integer, required)
    - `shelf` (string, optional): One of: new, read
- **remove_book** - Remove a book
  - Input: `book_id` (string, required)
- **update_book** - Change a book
  - Inputs: `book_id` (string, required), `shelf` (string, optional)
"""
    bundle = synthesize(read(tmp_path, text), tasks=6, heldout=2, seed=0)
    assert [d.tool for d in bundle.decisions if d.implemented] == [
        "list_books", "add_book", "remove_book", "update_book",
    ]  # fmt: skip
    books = bundle.state_schema.collection("books")
    assert {f.name: f.provenance for f in books.fields}["pages"] == "line 7"
    assert next(f for f in books.fields if f.name == "shelf").enum == ("new", "read")
    assert all(certificate.certified for certificate in bundle.certificates)


@pytest.mark.parametrize(
    "text",
    [
        "# A\n## Tools\n- `make_it`: x\n" + "  more of it\n" * 100_000,
        "# A\n## Tools\n" + "<!--" * 200_000,
        "# A\n## Tools\n" + "- " * 20_000 + "x\n",
        "# A\n" + "".join(f"{' ' * (i % 60)}- `a_b{i}`\n" for i in range(4_000)),
        "# A\n## Tools\n- `make_it`" + "(" * 100_000,
        "# A\n## Tools\n| Tool | Description |\n|--|--|\n" + "|`a_b`" * 50_000 + "|x|\n",
        "a: b\nParameters: {\n" + "more\n" * 100_000 + "c: d\nParameters: {}\n",
        "# A\n## Tools\n### `make_it`\nValues " + "'a' or " * 50_000,
    ],
    ids=["long item", "open comments", "nested", "deep", "brackets", "wide row", "labelled", "quotes"],
)
def test_hostile_text_is_read_or_refused(text: str, tmp_path: Path) -> None:
    try:
        doc = read(tmp_path, text, name="x.txt")
    except DocumentError as error:
        assert str(error).startswith("x.txt: ")
    else:
        assert doc.tools


LINES = [
    "# A\n", "## Tools\n", "- `make_it`: x\n", "  - Inputs:\n", "    - `a` (string, optional): One of: x\n",
    "|a|b|\n", "|--|--|\n", "```json\n", '{"a": [1, {"b": null}]}\n', "```\n", "make_it: x\n", "\n",
    "Parameters: {}\n", "**Returns**:\n", "### drop_it(a: int = 3, b?: x)\n", "text: - *\n",
    "  - `b` (List[str]) (default: 3)\n", "\t1. **x_y** - z\n",
]  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LINES), max_size=14))
def test_any_mixture_is_read_or_refused(tmp_path: Path, parts: list[str]) -> None:
    try:
        doc = read(tmp_path, "".join(parts), name="x.txt")
    except DocumentError as error:
        assert str(error).startswith("x.txt: ")
    else:
        assert all(t.pointer and all(p.pointer for p in t.params) for t in doc.tools)
        lint(doc)


@pytest.mark.parametrize(
    ("word", "types", "rest"),
    [
        ("str, optional", ("string",), {"required": False}),
        ("List[str]", ("array",), {"items": "str"}),
        ("string[]", ("array",), {"items": "string"}),
        ("array of strings", ("array",), {"items": "string"}),
        ("Optional[int]", ("integer",), {"nullable": True, "required": False}),
        ("str | None", ("string",), {"nullable": True}),
        ("'a'|'b'", ("string",), {"enum": ("a", "b")}),
        ("Literal['x', 'y']", ("string",), {"enum": ("x", "y")}),
        ("enum: a, b", ("string",), {"enum": ("a", "b")}),
        ("Dict[str, Any]", ("object",), {}),
        ("Union[int, str]", ("integer", "string"), {}),
        ("string (date)", ("string",), {"format": "date"}),
        ("OBJECT", ("object",), {}),
        ("Tuple[int, ...]", ("array",), {"items": "int"}),
    ],
)
def test_type_words(word: str, types: tuple[str, ...], rest: dict[str, object]) -> None:
    found = read_type(word)
    assert found is not None and found.types == types
    defaults = {"items": "", "enum": (), "format": "", "nullable": False, "required": None}
    for key, value in {**defaults, **rest}.items():
        assert getattr(found, key) == value, key


@pytest.mark.parametrize("word", ["strng", "", "List[", "x" * 400, "Array[Object{a: b"])
def test_no_type_words(word: str) -> None:
    assert read_type(word) is None


def test_parameter_text() -> None:
    said = read_parameter("**due_date** (ISO 8601 string): when")
    assert said is not None and said.type is not None
    assert (said.name, said.type.types, said.required, said.description) == (
        "due_date", ("string",), None, "when",
    )  # fmt: skip
    said = read_parameter("`repo` (see below): the repo")
    assert said is not None and (said.type, said.description) == (None, "(see below) : the repo")
    assert read_parameter("Returns detailed diff") is None
