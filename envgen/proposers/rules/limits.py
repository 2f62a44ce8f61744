"""Rules of the domain out of a document: what it says may not be done, and what its tools refuse.

Three sources, in this order. *Stated*: a sentence of the document forbids something of records in some state
("Completed tasks cannot be deleted", "only open orders can be cancelled") or limits a number ("at most 10").
*Enforced*: a precondition that the functions check by themselves. *Assumed*: a record in a final state
(closed, delivered, archived …) is not changed any more; every such rule is marked as an assumption, and none
is taken up unless tasks about it are wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envgen.proposers.rules.words import a, singular
from envgen.synthesis.catalog import field_words
from envgen.types import (
    Collection,
    DomainRule,
    EnvironmentDraft,
    FieldSpec,
    StateField,
    ToolDoc,
    ToolSemantics,
)

FINAL = frozenset(
    {
        "closed", "cancelled", "canceled", "completed", "complete", "done", "archived", "locked", "resolved",
        "delivered", "shipped", "merged", "sold", "disposed", "expired", "finished", "refunded", "rejected",
        "fulfilled", "protected", "frozen",
    }
)  # fmt: skip
"""Words for states after which a record is usually left as it is."""
MOST_ASSUMED = 4
"""Assumed rules of one environment: a policy is to be read."""
_WRITES = ("update", "delete", "set", "toggle", "link", "unlink")
_NEVER = r"(?:can ?not|can't|must not|may not|should not|(?:is|are) not allowed to)"
_FORBIDDEN = re.compile(rf"\b{_NEVER}\b", re.IGNORECASE)
_ONLY = re.compile(
    r"\bonly\b.*\bcan\b|\bcan only\b|\bmust be\b.*\b(?:to|before)\b|\bonly (?:if|when|while)\b", re.IGNORECASE
)
_LIMIT = re.compile(
    r"\b(?:at most|no more than|up to|maximum(?: of| is|:)?|max\.?(?: of|:)?)\s*(\d+)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_WORD = re.compile(r"[A-Za-z_]+")
_STEMS = {
    "delete": ("delet", "remov", "cancel"),
    "update": ("updat", "edit", "modif", "chang", "renam", "mov", "resched", "refund", "cancel"),
    "set": ("cancel", "clos", "resolv", "complet", "enabl", "disabl", "refund", "updat", "chang", "merg"),
    "toggle": ("toggl", "complet", "switch"),
}  # fmt: skip


@dataclass(frozen=True)
class _Said:
    """One sentence of the document, with the tool it describes (empty: the document as a whole)."""

    text: str
    tool: str
    pointer: str


def with_stated_rules(doc: ToolDoc, draft: EnvironmentDraft) -> EnvironmentDraft:
    """The environment with the rules that its document states, in its policy and as data."""
    return _adding(draft, stated(doc, draft))


def with_all_rules(draft: EnvironmentDraft) -> EnvironmentDraft:
    """The environment with the rules that its functions enforce, and with assumed ones."""
    ruled = _adding(draft, enforced(draft))
    return _adding(ruled, assumed(ruled))


def _adding(draft: EnvironmentDraft, found: Iterable[DomainRule]) -> EnvironmentDraft:
    rules = list(draft.rules)
    seen = {(rule.kind, rule.collection, rule.field, tool) for rule in rules for tool in rule.tools}
    for rule in found:
        fresh = tuple(t for t in rule.tools if (rule.kind, rule.collection, rule.field, t) not in seen)
        if fresh:
            seen |= {(rule.kind, rule.collection, rule.field, tool) for tool in fresh}
            name = f"R{len(rules) + 1}"
            kept = rule.model_copy(update={"tools": fresh})
            rules.append(kept.model_copy(update={"id": name, "text": f"{name}: {sentence(draft, kept)}"}))
    said = " ".join(rule.text for rule in rules[len(draft.rules) :])
    if not said:
        return draft
    return draft.model_copy(update={"rules": tuple(rules), "policy": f"{draft.policy.rstrip()} {said}\n"})


def sentence(draft: EnvironmentDraft, rule: DomainRule) -> str:
    """A rule in words."""
    by_tool = {s.tool: s for s in draft.semantics}
    noun = draft.state_schema.collection(by_tool[rule.tools[0]].collection).entity
    acts = _acts(rule, by_tool)
    object_ = f"{acts} {a(noun)}" if acts else f"{_tool_words(rule.tools)} for {a(noun)}"
    if rule.kind == "at_most":
        return f"Never {object_} with {' '.join(field_words(rule.param))} above {rule.values[0]}."
    if rule.kind == "no_children":
        return f"Never {object_} that has {a(draft.state_schema.collection(rule.collection).entity)}."
    words = " ".join(field_words(rule.field))
    values = " or ".join("true" if v is True else "false" if v is False else str(v) for v in rule.values)
    return f"{'Only' if rule.kind == 'field_in' else 'Never'} {object_} whose {words} is {values}."


def _tool_words(tools: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(" ".join(field_words(tool)) for tool in tools))


def _acts(rule: DomainRule, by_tool: dict[str, ToolSemantics]) -> str:
    """``update or delete``, where these words fit no other tool for the same records; else empty."""
    verbs = list(dict.fromkeys(field_words(tool)[0] for tool in rule.tools))
    collection = by_tool[rule.tools[0]].collection
    others = [
        s.tool
        for s in by_tool.values()
        if s.writes_state and s.collection == collection and s.tool not in rule.tools
    ]
    taken = any(field_words(tool)[0] in verbs for tool in others)
    return "" if taken else " or ".join(verbs)


def _rule(
    kind: str,
    tools: Iterable[str],
    collection: str,
    field: str,
    values: tuple[object, ...],
    provenance: str,
    *,
    param: str = "",
    enforced: bool = False,
) -> DomainRule:
    return DomainRule.model_validate(
        {
            "id": "R0",
            "kind": kind,
            "tools": tuple(tools),
            "collection": collection,
            "field": field,
            "values": values,
            "param": param,
            "enforced": enforced,
            "text": "to be numbered",
            "provenance": provenance,
        }
    )


# ------------------------------------------------------------------------------------------------- stated
def stated(doc: ToolDoc, draft: EnvironmentDraft) -> Iterator[DomainRule]:
    """The rules that sentences of the document state about records that the tools change."""
    by_tool = {s.tool: s for s in draft.semantics if s.writes_state}
    for said in _sentences(doc):
        if said.tool and said.tool not in by_tool:
            continue
        never, only = bool(_FORBIDDEN.search(said.text)), bool(_ONLY.search(said.text))
        if never or only:
            yield from _about_state(said, draft, by_tool, only=only and not never)
    for tool in doc.tools:
        semantics = by_tool.get(tool.name)
        for spec in tool.params if semantics is not None else ():
            limit = _LIMIT.search(spec.description)
            bound = next((b for b in semantics.writes if b.param == spec.name), None) if semantics else None
            if limit and bound is not None and spec.type in ("integer", "number"):
                yield _rule(
                    "at_most",
                    (tool.name,),
                    bound.collection,
                    bound.field,
                    (int(limit.group(1)),),
                    spec.pointer,
                    param=spec.name,
                )


def _sentences(doc: ToolDoc) -> Iterator[_Said]:
    texts = [(doc.description, "", "/info/description")]
    for tool in doc.tools:
        texts.append((tool.description, tool.name, tool.pointer))
        texts += [(spec.description, tool.name, spec.pointer) for spec in _nodes(tool.params)]
    for text, tool, pointer in texts:
        yield from (_Said(part.strip(), tool, pointer) for part in _SENTENCE.split(text) if part.strip())


def _nodes(specs: Iterable[FieldSpec]) -> Iterator[FieldSpec]:
    for spec in specs:
        yield spec
        yield from _nodes(spec.properties)


def _about_state(
    said: _Said, draft: EnvironmentDraft, by_tool: dict[str, ToolSemantics], *, only: bool
) -> Iterator[DomainRule]:
    """Rules of a sentence that names values of a state field; of the document's own text it must also name
    the records and what may not be done to them."""
    words = [w.casefold() for w in _WORD.findall(said.text)]
    singulars = {singular(w) for w in words} | set(words)
    for collection in draft.state_schema.collections:
        nouns = set(field_words(collection.entity)[-1:])
        for field in collection.fields:
            values = tuple(v for v in _values(field) if _spoken(field, v) & set(words))
            if not values:
                continue
            tools = [
                s.tool
                for s in by_tool.values()
                if s.collection == collection.name
                and s.key is not None
                and s.verb in _WRITES
                and field.name not in _changed(s)
                and (s.tool == said.tool if said.tool else bool(nouns & singulars) and _named(s, words))
            ]
            if tools:
                kind = "field_in" if only else "field_not_in"
                yield _rule(kind, tools, collection.name, field.name, values, said.pointer)


def _values(field: StateField) -> tuple[object, ...]:
    return tuple(field.enum) or ((True,) if field.type == "boolean" else ())


def _spoken(field: StateField, value: object) -> set[str]:
    if value is True:
        return {field_words(field.name)[-1]} & FINAL
    text = str(value).casefold()
    return {text} if text.isalpha() else set()


def _named(semantics: ToolSemantics, words: list[str]) -> bool:
    """True when a sentence speaks of what a tool does."""
    stems = (*_STEMS.get(semantics.verb, ()), field_words(semantics.tool)[0])
    return any(word.startswith(stem) for word in words for stem in stems)


def _changed(semantics: ToolSemantics) -> set[str]:
    """Fields that a tool sets: a rule about them would forbid what the tool is for."""
    toggled = {semantics.toggles} if semantics.toggles else set[str]()
    return {b.field for b in semantics.writes} | set(semantics.constants) | toggled


# ------------------------------------------------------------------------------------- enforced and assumed
def enforced(draft: EnvironmentDraft) -> Iterator[DomainRule]:
    """Preconditions that the functions check, as far as a person would call them rules: not that a record
    must exist, nor that a state does not hold already."""
    for semantics in draft.semantics:
        for item in semantics.preconditions if semantics.writes_state and semantics.key else ():
            source = item.provenance or "assumption: as the function does"
            if item.kind == "no_children":
                yield _rule(
                    "no_children", (semantics.tool,), item.collection, item.field, (), source, enforced=True
                )
            elif item.kind in ("field_equals", "field_in") and item.collection == semantics.collection:
                values = tuple(item.value) if item.kind == "field_in" else (item.value,)
                yield _rule(
                    "field_in", (semantics.tool,), item.collection, item.field, values, source, enforced=True
                )


def assumed(draft: EnvironmentDraft) -> Iterator[DomainRule]:
    """A record in a final state is neither changed nor deleted; at most `MOST_ASSUMED`."""
    found = 0
    for collection in draft.state_schema.collections:
        for field in collection.fields:
            values = tuple(v for v in _values(field) if _final(field, v))
            if not values or len(values) == len(field.enum) or found == MOST_ASSUMED:
                continue
            ruled = {t for r in draft.rules if r.field == field.name for t in r.tools}
            tools = [
                s.tool for s in draft.semantics if _touches(s, collection, field) and s.tool not in ruled
            ]
            if tools:
                found += 1
                words = " ".join(field_words(field.name))
                why = (
                    f"assumption: {words} {' or '.join(map(str, values))} of {a(collection.entity)} is final"
                )
                yield _rule("field_not_in", tools, collection.name, field.name, values, why)


def _final(field: StateField, value: object) -> bool:
    if value is True:
        return field_words(field.name)[-1] in FINAL
    return bool({str(value).casefold()} & FINAL)


def _touches(semantics: ToolSemantics, collection: Collection, field: StateField) -> bool:
    return (
        semantics.writes_state
        and semantics.collection == collection.name
        and semantics.key is not None
        and semantics.verb in ("update", "delete", "set")
        and field.name not in _changed(semantics)
    )
