"""OpenAPI paths: which segments are collections, which are actions, and what each operation acts on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from envgen.proposers.rules.words import SEARCH, STATE_VERBS, is_plural, singular, split_words
from envgen.types import FieldSpec, ToolDoc, ToolSpec

_VERSION = re.compile(r"^(v\d+(\.\d+)*|api|rest)$", re.IGNORECASE)


@dataclass(frozen=True)
class PathTarget:
    """What a path names: the collection chain, the key parameter of the last one, and what is done to it."""

    chain: tuple[tuple[str, str], ...]
    """``(collection path, key parameter or "")`` from the outermost collection to the one acted on."""
    action: str = ""
    """Trailing segment that is no collection: ``follow``, ``feed``, ``findByStatus``."""
    singleton: bool = False


@dataclass
class PathMap:
    """All paths of a document."""

    collections: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Static path -> singular entity words."""
    singletons: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    targets: dict[str, PathTarget] = field(default_factory=dict[str, PathTarget])
    """Tool name -> target."""


def segments(path: str) -> list[str]:
    """Path segments without version prefixes."""
    parts = [part for part in path.split("/") if part]
    while parts and _VERSION.match(parts[0]):
        parts = parts[1:]
    return parts


def entity_words(segment: str) -> tuple[str, ...]:
    """Singular words of one path segment."""
    words = split_words(segment)
    return (*words[:-1], singular(words[-1])) if words else (segment.lower(),)


def _is_param(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def is_list_output(output: FieldSpec | None) -> bool:
    """True for an array of objects, or an object with an array of objects directly in it."""
    if output is None:
        return False
    if output.type == "array":
        return output.items is not None and output.items.type in ("object", "any")
    return any(
        p.type == "array" and p.items is not None and p.items.type == "object" for p in output.properties
    )


def map_paths(doc: ToolDoc) -> PathMap:
    """Collections, singletons and the target of every operation of an OpenAPI document."""
    result = PathMap()
    keyed: set[str] = set()
    methods: dict[str, dict[str, ToolSpec]] = {}
    for tool in doc.tools:
        parts = segments(tool.path)
        methods.setdefault("/".join(parts), {})[tool.method] = tool
        for index, part in enumerate(parts[:-1]):
            if not _is_param(part) and _is_param(parts[index + 1]):
                keyed.add("/".join(parts[: index + 1]))
    for static in sorted(methods, key=lambda p: (p.count("/"), p)):
        parts = static.split("/")
        for index, part in enumerate(parts):
            prefix = "/".join(parts[: index + 1])
            if not _is_param(part) and prefix in keyed:
                result.collections.setdefault(prefix, entity_words(part))
        if parts and parts[-1] and not _is_param(parts[-1]) and static not in result.collections:
            _classify(result, static, parts, methods[static])
    for tool in doc.tools:
        result.targets[tool.name] = _target(result, segments(tool.path))
    return result


def _classify(result: PathMap, static: str, parts: list[str], tools: dict[str, ToolSpec]) -> None:
    """Decide what a path that ends in a static segment nobody keys is: collection, singleton or action."""
    words = split_words(parts[-1])
    below_collection = "/".join(parts[:-1]) in result.collections
    below_key = len(parts) > 1 and _is_param(parts[-2])
    lists = "get" in tools and is_list_output(tools["get"].output)
    if below_collection or not words or words[0] in STATE_VERBS or words[0] in SEARCH:
        return
    if below_key:
        if is_plural(words[-1]) and (lists or "post" in tools) and words != ["children"]:
            result.collections[static] = entity_words(parts[-1])
        return
    if lists or ("post" in tools and "get" not in tools) or ("post" in tools and is_plural(words[-1])):
        result.collections[static] = entity_words(parts[-1])
    elif "get" in tools:
        output = tools["get"].output
        if output is not None and output.properties:
            result.singletons[static] = entity_words(parts[-1])


def _target(result: PathMap, parts: list[str]) -> PathTarget:
    chain: list[tuple[str, str]] = []
    index = 0
    while index < len(parts):
        prefix = "/".join(parts[: index + 1])
        if prefix in result.collections:
            following = parts[index + 1] if index + 1 < len(parts) else ""
            if _is_param(following):
                chain.append((prefix, following[1:-1]))
                index += 2
                continue
            chain.append((prefix, ""))
        elif prefix in result.singletons:
            return PathTarget(((prefix, ""),), "/".join(parts[index + 1 :]), singleton=True)
        elif chain:
            return PathTarget(tuple(chain), "/".join(parts[index:]))
        index += 1
    return PathTarget(tuple(chain))
