"""Bad documents: one clear DocumentError each, and never another exception."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.errors import DocumentError
from envgen.tooldocs import lint, read_tool_doc

OP = {"get": {"operationId": "a"}}


def write(tmp_path: Path, data: str | bytes) -> Path:
    path = tmp_path / "doc"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def api(**rest: Any) -> str:
    return json.dumps({"openapi": "3.0.0", "info": {"title": "T"}, **rest})


def schema(value: Any) -> str:
    return json.dumps([{"name": "f", "parameters": {"type": "object", "properties": {"x": value}}}])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("[]", "an empty list"),
        ("[1, 2]", "no entry has a name"),
        ("{}", "no known tool document"),
        ("null", "no known tool document"),
        ("17", "no known tool document"),
        ('{"hello": 1}', "keys \\['hello'\\]"),
        ("just some words", "prose"),
        ("{'a': [}", "neither JSON nor YAML"),
        ('{"a": 1,\n "a": 2}', "'a' stands twice"),
        ("a: 1\na: 2", "line 2: the key 'a' stands twice"),
        ("a: &x [*x]", "contains itself"),
        ("a: *nope", "alias"),
        ("---\na: 1\n---\nb: 2", "second YAML document"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "not finite"),
        ('["\\ud800"]', "surrogate"),
        ("[" * 100_000, "nested deeper"),
        ("{a: " * 5_000, "nested deeper"),
        ("- " * 5_000, "nested deeper"),
        ('{"a":' * 1_000 + "1" + "}" * 1_000, "nested deeper"),
        ("[" + "9" * 5_000 + "]", "a number cannot be read"),
        (api(), "describes no tool"),
        (api(paths={}), "describes no tool"),
        (api(paths=[]), "/paths: paths is a list, expected an object"),
        (api(paths={"/a": {"get": []}}), "/paths/~1a/get: operation is a list"),
        (api(paths={"/a": OP, "/b": OP}), "two tools are called 'a': /paths/~1a/get and /paths/~1b/get"),
        (api(paths={"/a": {"get": {"parameters": {}}}}), "/get/parameters: parameters is an object"),
        (api(paths={"/a": {"get": {"parameters": [{"in": "query"}]}}}), "has no name"),
        (api(paths={"/a": {"get": {"parameters": [{"name": "x", "in": "moon"}]}}}), "'moon', expected path"),
        (api(paths={"/a": {"$ref": "#/paths/~1a"}}), "never ends"),
        (api(paths={"/a": {"get": {"requestBody": {"$ref": "b.yaml#/x"}}}}), "b.yaml: no such file"),
        (api(paths={"/a": {"get": {"requestBody": {"$ref": "#/nope"}}}}), "names nothing"),
        (json.dumps({"openapi": "4.0", "paths": {"/a": OP}}), "expected 3.0 or 3.1"),
        (json.dumps({"swagger": "1.2", "paths": {"/a": OP}}), "expected 2.0"),
        (json.dumps({"openapi": {}, "paths": {"/a": OP}}), "/openapi: openapi version is an object"),
        (schema({"type": 5}), "/0/parameters/properties/x/type: type is a number"),
        (schema({"type": "strng"}), "type 'strng' is unknown"),
        (schema({"$ref": 5}), "is a number, expected text"),
        (schema({"$ref": "#anchor"}), "an anchor"),
        (schema({"enum": "a"}), "/enum: enum is a string, expected a list"),
        (schema({"properties": []}), "/properties: properties is a list"),
        (schema({"required": "x"}), "/required: required is a string"),
        (schema({"description": ["x"]}), "/description: description is a list"),
        (schema([1]), "schema is a list"),
        (json.dumps([{"name": "a", "parameters": {}}, 5]), "/1: tool is a number"),
        (json.dumps([{"name": "", "parameters": {}}]), "a tool has no name"),
        (json.dumps([{"name": "!!!", "parameters": {}}]), "usable characters"),
        (json.dumps([{"name": "a", "parameters": {}}] * 2), "two tools are called 'a': /0 and /1"),
        (json.dumps([{"name": "a", "inputSchema": {"type": "string"}}]), "of type string, expected"),
        (json.dumps([{"name": "a", "arguments": [{"type": "string"}]}]), "an argument has no name"),
        (json.dumps([{"name": "a", "annotations": {"readOnlyHint": "yes"}}]), "expected true or false"),
    ],
)  # fmt: skip
def test_bad_documents(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DocumentError, match=says) as caught:
        read_tool_doc(write(tmp_path, text))
    assert str(caught.value).startswith("doc: ") and len(str(caught.value)) < 600


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no such file"):
        read_tool_doc(tmp_path / "nope.json")
    with pytest.raises(DocumentError, match="is a directory"):
        read_tool_doc(tmp_path)
    with pytest.raises(DocumentError, match="no such file"):
        read_tool_doc(Path("a\x00b"))
    with pytest.raises(DocumentError, match="not text"):
        read_tool_doc(write(tmp_path, b"\x89PNG\r\n"))
    with pytest.raises(DocumentError, match="binary file"):
        read_tool_doc(write(tmp_path, b"openapi\x00"))
    with pytest.raises(DocumentError, match=r"5,000,001 bytes, the limit is 5,000,000; keep only"):
        read_tool_doc(write(tmp_path, b" " * 5_000_001))


def test_alias_bomb(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(DocumentError, match="more than 1,000,000 values"):
        read_tool_doc(write(tmp_path, "\n".join(lines)))


def test_combinator_bomb(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {"S0": {"type": "object", "properties": {"x": {"type": "string"}}}}
    for i in range(1, 20):
        schemas[f"S{i}"] = {"allOf": [{"$ref": f"#/components/schemas/S{i - 1}"}] * 8}
    document = api(paths={"/a": OP}, components={"schemas": schemas})
    with pytest.raises(DocumentError, match="expand to more than"):
        read_tool_doc(write(tmp_path, document))


def test_encodings(tmp_path: Path) -> None:
    text = json.dumps([{"name": "add_x", "description": "é", "parameters": {}}], ensure_ascii=False)
    for data in (text.encode("utf-8-sig"), text.encode("utf-16")):
        assert read_tool_doc(write(tmp_path, data)).tools[0].description == "é"


# -------------------------------------------------------------------------------- fuzz
JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "null",
    [],
    {},
    [None],
    [[]],
    {"": {}},
    {"$ref": "#"},
    {"$ref": "#/"},
    {"$ref": "#/paths"},
    {"$ref": 7},
    {"allOf": [{"$ref": "#"}]},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": ["null"]},
    {"anyOf": []},
    {"oneOf": [True, False]},
    {"enum": [None, [], {}]},
    {"const": []},
    {"items": [], "type": "array"},
    {"properties": {"a": {"properties": {"b": {}}}}},
    "é" * 300,
    {"example": {"a": [1]}},
    {"required": [1, None]},
    {"examples": {"a": 1}},
    {"type": "array"},
    {"content": {"a": None}},
    ["a", "b"],
    {"name": "n", "in": "query"},
]
WORDS = [
    "type",
    "properties",
    "$ref",
    "allOf",
    "items",
    "enum",
    "required",
    "name",
    "description",
    "schema",
    "content",
    "examples",
]


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    todo = [tree]
    while todo:
        node = todo.pop()
        entries = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        for key, value in entries:
            found.append((node, key))
            if isinstance(value, dict | list) and value:
                todo.append(value)
    return found


def _mutated(tree: Any, rng: random.Random) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 4)):
        places = _places(tree)
        if not places:
            return tree
        node, key = rng.choice(places)
        action = rng.randrange(5)
        if action == 0:
            del node[key]
        elif action == 1:
            node[key] = copy.deepcopy(rng.choice(JUNK))
        elif action == 2:
            other, other_key = rng.choice(places)
            try:
                node[key] = copy.deepcopy(other[other_key])
            except (KeyError, IndexError):
                continue
        elif action == 3 and isinstance(node, dict):
            node[rng.choice(WORDS)] = copy.deepcopy(rng.choice(JUNK))
        else:
            deep: Any = "x"
            for _ in range(rng.choice([3, 30, 170])):
                deep = {"properties": {"a": deep}} if rng.random() < 0.5 else {"allOf": [deep]}
            node[key] = deep
    return tree


TREES: dict[str, Any] = {}


def _tree(path: Path) -> Any:
    if path.name not in TREES:
        text = path.read_text()
        TREES[path.name] = (
            json.loads(text)
            if path.suffix == ".json"
            else json.loads(json.dumps(yaml.load(text, yaml.CBaseLoader)))
        )
    return TREES[path.name]


NAMES = [
    "museum_openapi31.yaml",
    "conduit_openapi31.yml",
    "toucan_scheduler_tools.json",
    "docker_simplechecklist_tools.json",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**32))
def test_mutated_documents(tmp_path: Path, examples_dir: Path, name: str, seed: int) -> None:
    tree = _mutated(_tree(examples_dir / name), random.Random(seed))
    path = tmp_path / name
    path.write_text(json.dumps(tree))
    try:
        doc = read_tool_doc(path)
    except DocumentError as error:
        assert str(error).startswith(name)
        return
    assert doc.tools
    lint(doc)
    doc.model_dump_json()  # a document that was read can be written


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=300), st.text(max_size=300).map(lambda s: s.encode("utf-8", "surrogatepass"))
    )
)
def test_garbage_bytes(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DocumentError):
        read_tool_doc(write(tmp_path, data))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["string", "#", "object"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values)
def test_arbitrary_schemas(tmp_path: Path, value: Any) -> None:
    for document in (
        [{"name": "f", "parameters": value}],
        {"openapi": "3.1.0", "paths": {"/a": {"post": {"requestBody": value}}}},
    ):
        path = tmp_path / "doc"
        path.write_text(json.dumps(document))
        try:
            lint(read_tool_doc(path))
        except DocumentError:
            continue
