"""A draft seen from the planner: which tools show which records, under which parents, with which fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from envgen.synthesis.blueprint import parse_path
from envgen.synthesis.lookups import Access, Link, Locator
from envgen.synthesis.variants import Variants
from envgen.types import (
    AgentTool,
    Collection,
    EnvironmentDraft,
    ParamBinding,
    StateField,
    StateSchema,
    ToolSemantics,
)


def container(path: str) -> tuple[str, str]:
    """Split an output path into element pattern and path inside it: ``items[].id`` -> ``("items[]",
    "id")``."""
    at = path.rfind("[]")
    if at >= 0:
        return path[: at + 2], path[at + 2 :].lstrip(".")
    return "", path


def narrow(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with ``anyOf [x, null]`` and ``type [x, null]`` reduced to x."""
    for union in ("anyOf", "oneOf"):
        options: list[dict[str, Any]] = [o for o in schema.get(union, []) if o.get("type") != "null"]
        if options:
            schema = {**schema, **options[0]}
    kinds: Any = schema.get("type")
    if isinstance(kinds, list):  # {"type": ["object", "null"]}
        schema = {
            **schema,
            "type": next((kind for kind in cast("list[str]", kinds) if kind != "null"), "string"),
        }
    return schema


def required_leaves(schema: dict[str, Any]) -> frozenset[str]:
    """Dotted paths of the leaf parameters that a tool with these ``parameters`` insists on."""
    return frozenset(_required(schema, ""))


def _required(schema: dict[str, Any], prefix: str) -> list[str]:
    found: list[str] = []
    for name in schema.get("required", []):
        inner = narrow(schema.get("properties", {}).get(name, {}))
        if inner.get("properties") and inner.get("required"):
            found.extend(_required(inner, f"{prefix}{name}."))
        else:
            found.append(prefix + name)
    return found


@dataclass(frozen=True)
class Catalog:
    """Indexes over one draft, made once."""

    draft: EnvironmentDraft
    collections: dict[str, Collection]
    fields: dict[tuple[str, str], StateField]
    semantics: dict[str, ToolSemantics]
    tools: dict[str, AgentTool]
    accesses: dict[str, tuple[Access, ...]]
    locators: dict[str, tuple[Locator, ...]]
    writers: tuple[ToolSemantics, ...]
    children: dict[str, tuple[tuple[str, str], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, str], ...]]
    )
    """collection -> (child collection, foreign key field)."""
    variants: dict[str, Variants] = field(default_factory=dict[str, Variants])
    """Collections whose records come in kinds."""
    _needed: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]], repr=False)
    _parameters: dict[tuple[str, str], dict[str, Any]] = field(
        default_factory=dict[tuple[str, str], dict[str, Any]], repr=False
    )

    @property
    def schema(self) -> StateSchema:
        """The state schema."""
        return self.draft.state_schema

    def parameter(self, tool: str, name: str) -> dict[str, Any]:
        """JSON schema of one parameter (a dotted path), ``anyOf [x, null]`` reduced to x."""
        known = self._parameters.get((tool, name))
        if known is None:
            known = self.tools[tool].parameters
            for part in name.split("."):
                known = narrow(known.get("properties", {}).get(part, {}))
            self._parameters[tool, name] = known
        return known

    def required(self, tool: str) -> frozenset[str]:
        """Dotted paths of the leaf parameters the tool insists on."""
        known = self._needed.get(tool)
        if known is None:
            known = self._needed[tool] = required_leaves(self.tools[tool].parameters)
        return known

    def members(self, collection: str, name: str) -> dict[str, Any]:
        """JSON schema of an object field, from the write tool that takes it; empty when no tool says what
        is in it."""
        for writer in self.writers:
            for binding in writer.writes:
                if (binding.collection, binding.field) == (collection, name):
                    schema = self.parameter(writer.tool, binding.param)
                    if schema.get("properties"):
                        return schema
        return {}

    def spoken_key(self, collection: str) -> bool:
        """True when a person knows a record by its key itself (a username, or a number where no tool lists
        the records): no look-up is needed for it."""
        known = self.collections[collection]
        return (not known.key_generated and known.label in ("", known.key)) or self.unlisted(collection)

    def unlisted(self, collection: str) -> bool:
        """True when no tool shows the keys of a collection's records before one is known, or none shows
        more than keys: a list of numbers says of none which order it is."""
        known = self.collections[collection]
        if known.singleton:
            return False
        listed = any(
            a.many and a.path(known.key) is not None and not a.bare for a in self.accesses.get(collection, ())
        )
        return not listed and not self.children_show(collection)

    def children_show(self, collection: str) -> bool:
        """True when a list of other records shows keys of this collection."""
        return any(
            a.many and a.path(name) is not None
            for owner, name in self.children.get(collection, ())
            for a in self.accesses.get(owner, ())
        )

    def descendants(self, collection: str) -> frozenset[str]:
        """Collections that hang below one, itself excluded."""
        found: set[str] = set()
        queue = [collection]
        while queue:
            for child, _ in self.children.get(queue.pop(), ()):
                if child not in found:
                    found.add(child)
                    queue.append(child)
        return frozenset(found - {collection})


def link_of(
    binding: ParamBinding,
    semantics: ToolSemantics,
    fields: dict[tuple[str, str], StateField],
    collections: dict[str, Collection],
) -> Link | None:
    """The parent whose key a parameter carries, or None when it carries plain data."""
    known = fields.get((binding.collection, binding.field))
    if known is not None and known.references and known.references in collections:
        return Link(binding.param, known.references, binding.field, binding.required)
    parent = collections.get(binding.collection)
    if parent is not None and binding.collection != semantics.collection and binding.field == parent.key:
        for (owner, name), held in fields.items():
            if owner == semantics.collection and held.references == parent.name:
                return Link(binding.param, parent.name, name, binding.required)
    return None


def field_words(name: str) -> list[str]:
    """Words of a snake_case or camelCase name in lower case."""
    return list(_split_words(name))


@lru_cache(maxsize=4096)
def _split_words(name: str) -> tuple[str, ...]:
    words: list[str] = []
    current = ""
    for character in name:
        if character in "_- .":
            words.append(current)
            current = ""
        elif character.isupper() and current and not current[-1].isupper():
            words.append(current)
            current = character
        else:
            current += character
    return tuple(word.lower() for word in (*words, current) if word)


def is_nested(path: str) -> bool:
    """True when a path reaches into a list below the element (several values, not one)."""
    return any(token == -1 for token in parse_path(path))
