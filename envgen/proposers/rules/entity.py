"""One collection while it is being inferred, and what parameters and properties mean for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from envgen.proposers.rules.fields import LABELS, merge
from envgen.proposers.rules.targets import Target
from envgen.proposers.rules.words import collection_name, id_stem, split_words
from envgen.synthesis.schema import paging_kind
from envgen.types import Collection, FieldSpec, StateField

_CURSOR = frozenset({"cursor", "after", "before", "startcursor", "pagetoken", "nexttoken", "pagecursor"})


_CREDENTIALS = frozenset({
    ("access", "token"), ("api", "key"), ("auth", "token"), ("api", "token"), ("bearer", "token"),
    ("session", "token"), ("client", "secret"), ("authorization",),
})  # fmt: skip


@dataclass
class Entity:
    """One collection while it is being inferred."""

    words: tuple[str, ...]
    fields: dict[str, StateField] = field(default_factory=dict[str, StateField])
    key: str = ""
    key_spec: FieldSpec | None = None
    generated: bool = True
    singleton: bool = False
    record: FieldSpec | None = None
    """The fullest record schema the document gives, with its properties."""
    refs: set[str] = field(default_factory=set[str])
    """Component names that mean this entity."""
    variants: list[str] = field(default_factory=list[str])
    provenance: str = ""
    offered: set[str] = field(default_factory=set[str])
    """Names of parameters of tools that write a record."""
    acting_user: str = ""
    """A text field that says who made the record, when lists ask for the current user's records."""
    read_back: bool = False
    """Some tool other than a creation shows a record."""

    @property
    def name(self) -> str:
        """Collection name."""
        return collection_name(self.words)

    @property
    def entity(self) -> str:
        """Words as a person says them."""
        return " ".join(self.words)

    def put(self, item: StateField) -> None:
        """Add or refine one field."""
        self.fields[item.name] = merge(self.fields.get(item.name), item)

    def label(self) -> str:
        """The field a person knows a record by."""
        lower = {name.lower().replace("_", ""): name for name in self.fields}
        joined = "".join(self.words)
        for wish in LABELS:
            flat = wish.replace("_", "")
            for candidate in (flat, joined + flat, self.words[-1] + flat):
                found = lower.get(candidate)
                if found and self.fields[found].type in ("string", "text"):
                    return found
        return self.key if not self.generated and not self.singleton else ""

    def reading_order(self, name: str) -> int:
        """Place of a field in a record: the document's order, then the label, then the record's own key.

        JSON objects have no order, so the choice is ours, and it is for a reader that only looks back: what
        leads to a label (the price that must be lowest) comes before it, and the id to copy follows the label
        that names it at once.
        """
        return 2 if name == self.key else 1 if name == self.label() else 0

    def collection(self) -> Collection:
        """The frozen form."""
        return Collection(
            name=self.name,
            entity=self.entity,
            key=self.key,
            key_generated=self.generated,
            label=self.label(),
            singleton=self.singleton,
            fields=tuple(sorted(self.fields.values(), key=lambda field: self.reading_order(field.name))),
            provenance=self.provenance or "assumption: named by several tools",
        )


def is_paging(name: str) -> bool:
    """True for parameters that cut a list into pages, cursors included."""
    return bool(paging_kind(name)) or is_cursor(name)


def is_cursor(name: str) -> bool:
    """True for opaque page cursors."""
    return name.lower().replace("_", "").replace("-", "") in _CURSOR


def unwrap(output: FieldSpec | None, words: tuple[str, ...]) -> tuple[str, FieldSpec | None, bool]:
    """``(wrapper property or "", record schema, many)`` of a result schema."""
    if output is None:
        return "", None, False
    if output.type == "array":
        return "", output.items, True
    joined = "".join(words)
    lists = [p for p in output.properties if p.type == "array" and p.items is not None and p.items.properties]
    objects = [p for p in output.properties if p.type == "object" and p.properties]
    for prop in objects:
        flat = prop.name.lower().replace("_", "")
        if flat in (joined, words[-1]) or (len(output.properties) == 1):
            return prop.name, prop, False
    scalars = [p for p in output.properties if p not in lists and p not in objects]
    if len(lists) == 1 and (
        len(scalars) <= 2 and not any(id_stem(p.name) == words or p.name == "id" for p in scalars)
    ):
        return lists[0].name, lists[0].items, True
    return "", output if output.properties else None, False


def address_params(doc_targets: list[Target]) -> set[str]:
    """Parameters that most tools require: they say where (``owner``, ``repo``), not what."""
    tools = [t.tool for t in doc_targets if not t.tool.path]
    counts: dict[str, int] = {}
    for tool in tools:
        for param in tool.params:
            if param.required and param.type == "string":
                counts[param.name] = counts.get(param.name, 0) + 1
    return {name for name, count in counts.items() if len(tools) >= 10 and count * 2 >= len(tools)}


def is_credential(spec: FieldSpec) -> bool:
    """``accessToken``, ``api_key``: a parameter that proves who calls, by its name and, for a bare
    ``token`` or ``key``, its text."""
    words = split_words(spec.name)
    if spec.type not in ("string", "any"):
        return False
    if tuple(words) in _CREDENTIALS:
        return True
    said = spec.description.lower()
    return words in (["token"], ["key"]) and bool(
        re.search(r"\b(authenticat|access token|api key|authori[sz])", said)
    )


def writable(target: Target, entity: Entity, spec: FieldSpec) -> bool:
    """True when a parameter of a writing tool is a value to store, not a key, header, page or credential."""
    if "password" in split_words(spec.name) or is_credential(spec):
        return False
    if spec.location in ("header", "cookie"):
        return False
    if spec.name == target.key_param and not (target.verb == "create" and spec.name == entity.key):
        return False  # a creation that is told the key of what it makes stores it: create_branch(branch)
    if any(spec.name == param for _, param in target.parents):
        return False
    return not (spec.name == entity.key and entity.generated)


def flat(spec: FieldSpec, entity: Entity) -> list[tuple[str, FieldSpec]]:
    """``(dotted parameter path, field)``: the members of an ``updates`` object, else the parameter itself."""
    if spec.type == "object" and spec.properties and spec.name not in entity.fields and spec.name in (
        "updates", "changes", "fields", "data", "patch", "values", "attributes",
    ):  # fmt: skip
        return [(f"{spec.name}.{p.name}", p) for p in spec.properties]
    return [(spec.name, spec)]


def variant_field(name: str, entity: Entity) -> str:
    """``reminder_title`` updates the ``title`` that only ``add_reminder_task`` gives; empty when it is no
    such name."""
    for variant in entity.variants:
        rest = name.removeprefix(f"{variant}_")
        if rest != name and rest in entity.fields:
            return rest
    return ""


def is_confirmation(prop: FieldSpec, entity: Entity) -> bool:
    """A property that only the answer to a creation shows: a message, a confirmation code. It is no field."""
    words = split_words(prop.name)
    only_output = prop.name not in entity.offered and prop.type in ("string", "boolean")
    return (
        only_output
        and not entity.read_back
        and (words in (["message"], ["success"]) or words[-1:] == ["code"])
    )


def is_alias(prop: FieldSpec, entity: Entity) -> bool:
    """``id`` in one result and ``order_id`` in another are one key. A number beside a name that is the key
    (a user's ``id`` beside ``username``) is a field of its own, and a singleton has no key to show."""
    if entity.singleton or prop.name == entity.key:
        return False
    spec = entity.key_spec
    numbers = {"integer", "number"}
    other_kind = spec is not None and (spec.type in numbers) != (prop.type in numbers)
    if other_kind and not entity.generated:
        return False
    return prop.name in ("id", "_".join((*entity.words, "id")), "".join(entity.words) + "Id")


def is_status_text(prop: FieldSpec) -> bool:
    """``status: Status of the update operation`` tells how the call went, not what the record holds."""
    said = prop.description.lower()
    return prop.type in ("string", "boolean") and (
        split_words(prop.name) == ["success"]
        or "operation" in said
        or "attempt" in said
        or "was successful" in said
        or said.startswith(("status of the transaction", "status of the request"))
    )


def referenced(prop: FieldSpec, entity: Entity, everyone: dict[tuple[str, ...], Entity]) -> Entity | None:
    """The collection that an object property is a record of, or None."""
    if prop.type != "object" or not prop.properties:
        return None
    names = {p.name for p in prop.properties}
    for other in everyone.values():
        if other is entity or other.singleton or other.key not in names:
            continue
        if (prop.ref and prop.ref in other.refs) or tuple(split_words(prop.name)) == other.words:
            return other
    return None


def key_type(other: Entity) -> str:
    return "integer" if other.fields[other.key].type == "integer" else "id"


def entity_of_param(name: str, everyone: dict[tuple[str, ...], Entity]) -> Entity | None:
    """The collection whose key a parameter or field name is."""
    stem = id_stem(name)
    if stem is not None and stem in everyone and not everyone[stem].singleton:
        return everyone[stem]
    matches = [
        e
        for e in everyone.values()
        if not e.singleton and e.key == name and name not in ("id", "name", "date")
    ]
    if len(matches) == 1 and id_stem(name) is not None:
        return matches[0]
    if stem is not None:
        ends = [e for w, e in everyone.items() if not e.singleton and w[-len(stem) :] == stem]
        return ends[0] if len(ends) == 1 else None
    return None


def parent_field(child: Entity, parent: Entity, param: str) -> str:
    """Name of the foreign key field in a child of a nested path."""
    for name, item in child.fields.items():
        if item.references == parent.name:
            return name
    if id_stem(param) is not None and param != child.key:
        return param
    return "_".join(parent.words)
