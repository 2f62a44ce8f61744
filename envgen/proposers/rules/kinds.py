"""Kinds of tools that a verb and a noun alone do not explain, told from parameters, results and from each
other: a read by natural key, sets with add and remove, amounts, look-ups by name, numbers per value.

`recognise` runs after `envgen.proposers.rules.targets` has brought every tool to a verb on an entity; it only
gives a meaning to tools that have none yet.
"""

from __future__ import annotations

import re

from envgen.proposers.rules import paths
from envgen.proposers.rules.targets import Target
from envgen.proposers.rules.words import (
    CREATE,
    DELETE,
    GET,
    LIST,
    MOVE,
    id_stem,
    singular,
    singular_phrase,
    split_words,
)
from envgen.types import FieldSpec, ToolSpec

DEPOSITS = frozenset({"fund", "deposit", "credit", "refill"})
WITHDRAWALS = frozenset({"withdraw", "debit", "spend"})
BALANCES = frozenset({"balance", "funds", "credit", "credits"})
WHOLE = "*"
"""In `Target.part`: a result property that holds the whole record."""
_SCALARS = ("string", "integer", "number")
_TEXT_KEYS = frozenset({"symbol", "code", "slug", "username", "ticker", "isbn", "sku"})


def recognise(targets: list[Target]) -> None:
    """Give verbs, entities and keys to tools of the kinds above, in place."""
    _natural_reads(targets)
    _sets(targets)
    _lookups(targets)
    _key_lists(targets)
    _amounts(targets)
    _parts(targets)
    _assignments(targets)
    _tallies(targets)
    _single_children(targets)


def scalar_list(output: FieldSpec | None) -> str | None:
    """Name of the one property that is a list of plain values (empty for a bare list), None for other
    results."""
    if output is None:
        return None
    if output.type == "array":
        return "" if output.items is not None and output.items.type in _SCALARS else None
    if len(output.properties) != 1 or output.properties[0].type != "array":
        return None
    items = output.properties[0].items
    return output.properties[0].name if items is not None and items.type in _SCALARS else None


def _needed(target: Target) -> list[FieldSpec]:
    return [p for p in target.tool.params if p.required and p.location not in ("header", "cookie")]


def _accept(target: Target, verb: str, entity: tuple[str, ...], key: str = "") -> None:
    target.verb, target.entity, target.key_param, target.refusal = verb, entity, key, ""
    target.before = target.after = ()
    target.singleton = False


# ------------------------------------------------------------------------------------------ natural keys
def _natural_reads(targets: list[Target]) -> None:
    """``get_stock_info(symbol)`` that shows one record: its only argument is the key."""
    for target in targets:
        if not target.refusal or target.tool.path or target.word not in GET or not target.entity:
            continue
        output, needed = target.tool.output, _needed(target)
        plain = [p for p in output.properties if p.type in _SCALARS] if output is not None else []
        one = len(needed) == 1 and len(target.tool.params) == 1 and needed[0].type in ("string", "integer")
        one = one and split_words(needed[0].name)[-1] in _TEXT_KEYS
        if one and len(plain) >= 2 and not paths.is_list_output(output) and not target.after:
            _accept(target, "get", target.entity, needed[0].name)


def natural_keys(targets: list[Target]) -> dict[str, tuple[str, ...]]:
    """Key parameter -> entity, of reads by a natural key."""
    return {
        t.key_param: t.entity
        for t in targets
        if not t.refusal and t.verb == "get" and t.key_param in _TEXT_KEYS and not t.tool.path
    }


def _lookups(targets: list[Target]) -> None:
    """``get_symbol_by_name(name)`` that answers ``{symbol}``: the key of the record with that name."""
    keys = natural_keys(targets)
    for target in targets:
        output, needed = target.tool.output, _needed(target)
        if not target.refusal or target.word not in GET or output is None or len(output.properties) != 1:
            continue
        entity = keys.get(output.properties[0].name)
        words = split_words(target.tool.said_name)
        by = words[words.index("by") + 1 :] if "by" in words else []
        named = len(needed) == 1 and split_words(needed[0].name) == by
        if entity is not None and named and set(entity) <= set(split_words(target.tool.description)):
            _accept(target, "lookup", entity)


def _key_lists(targets: list[Target]) -> None:
    """``get_order_history()`` that answers a list of ids: the keys of all orders."""
    for target in targets:
        if not (target.refusal or target.verb == "history") or not target.entity:
            continue
        listed = scalar_list(target.tool.output)
        said = " ".join(split_words(target.tool.description))
        if listed is None or _needed(target) or target.word not in GET | LIST:
            continue
        if re.search(rf"\b{' '.join(target.entity)} ids?\b", said):
            _accept(target, "list", target.entity)


# --------------------------------------------------------------------------------------------------- sets
def _sets(targets: list[Target]) -> None:
    """``add_to_watchlist(stock)``, ``remove_stock_from_watchlist(symbol)`` and ``get_watchlist()`` that
    answers plain values: a set, one record for each member."""
    for shown in targets:
        words = [w for w in split_words(shown.tool.said_name) if w != "my"]
        listed = scalar_list(shown.tool.output)
        if not shown.refusal or len(words) < 2 or words[0] not in GET | LIST or listed is None:
            continue
        noun = words[1:]
        changes = [(t, _set_change(t, noun)) for t in targets if t.refusal and len(_needed(t)) == 1]
        adds = [t for t, change in changes if change == "add"]
        if not adds or _needed(shown):
            continue
        entity = (*noun, "entry")
        _accept(shown, "list", entity)
        for target, change in changes:
            if change:
                _accept(target, "create" if change == "add" else "delete", entity, _needed(target)[0].name)


def _set_change(target: Target, noun: list[str]) -> str:
    words = split_words(target.tool.said_name)
    for verbs, joint, kind in ((CREATE, "to", "add"), (DELETE, "from", "remove")):
        if words[0] in verbs and joint in words and words[words.index(joint) + 1 :] == noun:
            return kind
    return ""


# ------------------------------------------------------------------------------------------------ amounts
def _amounts(targets: list[Target]) -> None:
    """``fund_account(amount)`` beside a read of the one account that shows its balance."""
    accounts = [
        (t.entity, p.name)
        for t in targets
        if t.singleton and not t.refusal and t.tool.output is not None
        for p in t.tool.output.properties
        if p.type in ("number", "integer") and p.name.lower() in BALANCES
    ]
    for target in targets:
        words, needed = split_words(target.tool.said_name), _needed(target)
        if not target.refusal or words[0] not in DEPOSITS | WITHDRAWALS or len(accounts) != 1:
            continue
        if len(target.tool.params) == 1 == len(needed) and needed[0].type in ("number", "integer"):
            _accept(target, "withdraw" if words[0] in WITHDRAWALS else "deposit", accounts[0][0])
            target.word, target.singleton = words[0], True


# ------------------------------------------------------------------------------------------ parts, links
def _parts(targets: list[Target]) -> None:
    """``getUserProfile(userId)`` beside ``updateUserProfile(userId, profileData)``: one field of a user."""
    for target in targets:
        output = target.tool.output
        if not target.refusal or target.tool.path or not target.after or target.word not in GET:
            continue
        if output is None or len(output.properties) != 1 or not target.key_param:
            continue
        written = [
            p.name
            for t in targets
            if not t.refusal and t.entity == target.entity and t.verb == "update"
            for p in t.tool.params
            if set(target.after) <= set(split_words(p.name)) and p.name != t.key_param
        ]
        if len(set(written)) == 1 and set(target.after) <= set(split_words(output.properties[0].name)):
            part = target.after
            _accept(target, "get", target.entity, target.key_param)
            target.part = {output.properties[0].name: written[0], "words": " ".join(part)}


def _assignments(targets: list[Target]) -> None:
    """``assignUserRole(userId, roleId)``: the user gets the role."""
    known = {t.entity for t in targets if not t.refusal}
    for target in targets:
        if not target.refusal or target.word not in MOVE or target.tool.path:
            continue
        stems = {p.name: id_stem(p.name) for p in _needed(target)}
        owner = next((e for e in known if (*target.before,) == e), None)
        keys = [name for name, stem in stems.items() if stem == owner]
        both = target.entity in known and target.entity in stems.values()
        if owner is not None and both and len(keys) == 1:
            _accept(target, "update", owner, keys[0])


def _tallies(targets: list[Target]) -> None:
    """``Returns a map of status codes to quantities``, ``Returns pet inventories by status``."""
    for target in targets:
        tool = target.tool
        if not target.refusal or tool.method != "get" or tool.output is None or _needed(target):
            continue
        said = " ".join(f"{tool.summary}. {tool.description}".lower().split())
        found = re.search(r"\bmap of (\w+)(?: codes?| values?)? to (?:quantities|counts|numbers)\b", said)
        if found is None or tool.output.properties or tool.output.type != "object":
            continue
        nouns = {singular(word) for word in split_words(said)}
        entities = {
            t.entity
            for t in targets
            if not t.refusal and set(t.entity) <= nouns and _has_enum(t, found.group(1))
        }
        if len(entities) == 1:
            _accept(target, "tally", entities.pop())
            target.part = {"by": found.group(1)}


def _single_children(targets: list[Target]) -> None:
    """``POST /items/{id}/Approvals/mail`` beside ``GET /items/{id}/Approvals`` that answers one object: each
    item has one approval at most, known by the item's key."""
    for shown in targets:
        output = shown.tool.output
        if not shown.refusal or shown.tool.method != "get" or not shown.key_param or output is None:
            continue
        noun = _below(shown.tool)
        wholes = [p.name for p in output.properties if p.type == "object" and not p.properties]
        makers = [
            t
            for t in targets
            if t.refusal and t.tool.method == "post" and t.entity == shown.entity and _below(t.tool) == noun
        ]
        whole = [name for name in wholes if any(name.lower() in t.after for t in makers)]
        if not noun or len(makers) != 1 or len(whole) != 1 or paths.is_list_output(output):
            continue
        if makers[0].tool.output is None or not makers[0].tool.output.properties:
            continue
        _accept(shown, "get", noun, shown.key_param)
        shown.part = {whole[0]: WHOLE}
        _accept(makers[0], "create", noun, makers[0].key_param)


def _below(tool: ToolSpec) -> tuple[str, ...]:
    """Singular words of the path segment behind the key: ``approval request``."""
    segments = [part for part in tool.path.split("/") if part]
    places = [i for i, part in enumerate(segments) if part.startswith("{")]
    if len(places) != 1 or places[0] + 1 >= len(segments):
        return ()
    return singular_phrase(split_words(segments[places[0] + 1]))


def _has_enum(target: Target, name: str) -> bool:
    output = target.tool.output
    record = output.items if output is not None and output.type == "array" else output
    shown = [*(record.properties if record is not None else ()), *target.tool.params]
    return any(p.name == name and p.enum for p in shown)
