"""Small pieces of Python text that `envgen.synthesis.functions` puts together: names, messages, filters,
results."""

from __future__ import annotations

import keyword
import re
from typing import Any, cast

from envgen.synthesis.schema import descendants, field_of
from envgen.types import Collection, ParamBinding, ResultNode, StateSchema, ToolSemantics

_RESERVED = frozenset({
    "state", "ctx", "record", "found", "changes", "total", "rest", "key", "given", "pick", "require", "TOOLS",
    "ToolError", "extra", "any", "all", "str", "len", "sorted", "sum", "min", "max", "dict", "list",
    "set", "bool",
    "int", "float", "round", "item", "start", "size", "other", "abs", "divmod", "isinstance", "ord",
    "chr", "tuple",
    "range", "zip", "enumerate", "reversed", "order", "value", "part", "linked", "view", "page_number",
})  # fmt: skip


def identifier(name: str) -> str:
    """A Python name for a tool or parameter name."""
    text = re.sub(r"\W", "_", name)
    if not text or text[0].isdigit():
        text = f"p{text}"
    if keyword.iskeyword(text) or text in _RESERVED:
        text += "_"
    return text.strip("_") + ("_" if text.endswith("_") and not text.strip("_").isidentifier() else "") \
        if text.startswith("_") else text  # fmt: skip


def literal(value: Any) -> str:
    """Python text of a JSON value, strings in double quotes."""
    if isinstance(value, str):
        return _double_quoted(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{literal(name)}: {literal(inner)}" for name, inner in pairs) + "}"
    if isinstance(value, list | tuple):
        parts = [literal(part) for part in cast("list[Any]", value)]
        if isinstance(value, tuple):
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        return f"[{', '.join(parts)}]"
    return repr(value)


def variable(param: str) -> str:
    """Local variable for a parameter path: ``article.title`` -> ``article_title``."""
    return identifier(param.replace(".", "_"))


def message(template: str) -> str:
    """Python text of a message whose ``{param}`` parts name parameters."""
    if "{" not in template:
        return _double_quoted(template)
    body = re.sub(r"\{([^{}]+)\}", lambda m: "{" + variable(m.group(1)) + "}", template)
    return "f" + _double_quoted(body)


def _double_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def tuple_text(names: list[str]) -> str:
    """Python text of a tuple of strings."""
    return literal(tuple(names))


def filter_test(collection: Collection, group: list[ParamBinding]) -> str:
    """Python text of the condition on ``item`` for bindings of one parameter (any of them may hold)."""
    return " or ".join(_one_test(collection, binding) for binding in group)


def _one_test(collection: Collection, binding: ParamBinding) -> str:
    field = field_of(collection, binding.field)
    name, value = literal(binding.field), variable(binding.param)
    is_array = field is not None and field.type == "array"
    if is_array and field is not None and field.item_type == "object":  # items are known by their name
        test = f'part.get("name") {"in" if binding.op == "in" else "=="} {value}'
        return f"any({test} for part in item.get({name}, []))"
    if binding.op == "contains":
        if is_array:
            return f"{value} in item.get({name}, [])"
        return f'{value}.lower() in str(item.get({name}, "")).lower()'
    if binding.op == "in":
        if is_array:
            return f"any(part in {value} for part in item.get({name}, []))"
        return f"item.get({name}) in {value}"
    if binding.op in ("ge", "le"):
        sign = ">=" if binding.op == "ge" else "<="
        if is_array:
            return f"any(part {sign} {value} for part in item.get({name}, []))"
        return f"item.get({name}) is not None and item[{name}] {sign} {value}"
    if field is not None and field.type == "enum" and all(isinstance(v, str) for v in field.enum):
        return f'str(item.get({name}, "")).lower() == {value}.lower()'
    return f"item.get({name}) == {value}"


def range_test(start: ParamBinding, end: ParamBinding) -> str:
    """Condition that one element of an array field lies between two optional bounds."""
    low, high = variable(start.param), variable(end.param)
    return (
        f"any(({low} is None or part >= {low}) and ({high} is None or part <= {high})"
        f" for part in item.get({literal(start.field)}, []))"
    )


class ResultText:
    """Writes the ``return`` of one tool; helper functions it needs collect in ``helpers`` (name -> text)."""

    def __init__(self, schema: StateSchema, semantics: ToolSemantics, helpers: dict[str, str]) -> None:
        self.schema = schema
        self.semantics = semantics
        self.collection = schema.collection(semantics.collection)
        self.helpers = helpers
        self.setup: list[str] = []

    def text(self, node: ResultNode) -> str:
        """Python text that builds ``node``; lines it needs before it are in ``setup``."""
        match node.kind:
            case "record":
                return "record"
            case "records":
                return "found"
            case "object":
                return "{" + ", ".join(f"{literal(c.name)}: {self.text(c)}" for c in node.children) + "}"
            case "view":
                shown = self._shown(self.collection, node.children)
                if not node.many:
                    return shown.format("record")
                return "found" if shown == "{}" else f"[{shown.format('item')} for item in found]"
            case "field":
                return f"record.get({literal(node.field)})"
            case "count":
                return "total"
            case "page":
                return {
                    "page": "page_number",
                    "size": "size",
                    "pages": "(total + size - 1) // size",
                    "total": "total",
                }[node.field]
            case "constant":
                return literal(node.value)
            case "code":
                return f"{literal(str(node.value) + '-')} + str(record[{literal(self.collection.key)}])"
            case "distinct":
                return self._distinct(node)
            case "children":
                return self._children(node)
            case "values":
                return f"[item.get({literal(node.field)}) for item in found]"
            case "all":
                return (
                    f"[item.get({literal(node.field)}) for item in state.records({literal(node.collection)})]"
                )
            case "first":
                otherwise = literal(node.value)
                return f"found[0].get({literal(node.field)}) if found else {otherwise}"
            case "tally":
                name = literal(node.field)
                values = f"sorted({{item[{name}]: True for item in found if {name} in item}})"
                return f"{{value: sum(item.get({name}) == value for item in found) for value in {values}}}"
            case "follow":
                raise ValueError("a follow node stands inside a view only")

    def _distinct(self, node: ResultNode) -> str:
        field = field_of(self.collection, node.field)
        if field is not None and field.type == "array":
            return f"sorted({{part: True for item in found for part in item.get({literal(node.field)}, [])}})"
        name = literal(node.field)
        return f"sorted({{item[{name}]: True for item in found if {name} in item}})"

    def _children(self, node: ResultNode) -> str:
        if not self.setup:
            self.setup.append(f"{self.collection.name}_keys = [record[{literal(self.collection.key)}]]")
            for child, foreign, parent in descendants(self.schema, self.collection.name):
                key = self.schema.collection(child).key
                test = f"item.get({literal(foreign)}) in {parent}_keys"
                self.setup += [
                    f"{child} = [item for item in state.records({literal(child)}) if {test}]",
                    f"{child}_keys = [item[{literal(key)}] for item in {child}]",
                ]
        if node.field:
            return f"sum(bool(item.get({literal(node.field)})) for item in {node.collection})"
        return f"len({node.collection})"

    def _shown(self, collection: Collection, children: tuple[ResultNode, ...]) -> str:
        """Format string with one hole for the record variable."""
        plain = [child for child in children if child.kind == "field"]
        extra = [child for child in children if child.kind != "field"]
        names = [child.field for child in plain]
        if not extra and all(child.name == child.field for child in plain):
            if set(names) >= {item.name for item in collection.fields}:
                return "{}"
            return f"pick({{}}, {tuple_text(names)})"
        return f"{self._view_helper(collection, children)}(state, {{}})"

    def _view_helper(self, collection: Collection, children: tuple[ResultNode, ...]) -> str:
        lines = [f'    """{collection.entity.capitalize()} as the tools show it."""']
        plain = [c.field for c in children if c.kind == "field" and c.name == c.field]
        lines.append(f"    view = pick(record, {tuple_text(plain)})" if plain else "    view = {}")
        for child in children:
            if child.kind == "field" and child.name != child.field:
                lines += [
                    f"    if {literal(child.field)} in record:",
                    f"        view[{literal(child.name)}] = record[{literal(child.field)}]",
                ]
            elif child.kind == "follow":
                target = self.schema.collection(child.collection)
                inner = self._shown(target, child.children).format("linked")
                key = f"str(record.get({literal(child.field)}))"
                lines += [
                    f"    linked = state.get({literal(target.name)}, {key})",
                    "    if linked is not None:",
                    f"        view[{literal(child.name)}] = {inner}",
                ]
            elif child.kind == "constant":
                lines.append(f"    view[{literal(child.name)}] = {literal(child.value)}")
            elif child.kind == "code":
                code = f"{literal(child.value + '-')} + str(record[{literal(collection.key)}])"
                lines.append(f"    view[{literal(child.name)}] = {code}")
        lines.append("    return view")
        body = "\n".join(lines)
        base = f"show_{identifier('_'.join(collection.entity.split()))}"
        name, count = base, 2
        while name in self.helpers and self.helpers[name] != f"def {name}(state, record):\n{body}":
            name, count = f"{base}_{count}", count + 1
        self.helpers[name] = f"def {name}(state, record):\n{body}"
        return name
