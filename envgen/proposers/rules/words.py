"""Names taken apart: words, singular and plural, and what a verb says about the state."""

from __future__ import annotations

import re

_VES = {
    "shelves": "shelf", "knives": "knife", "leaves": "leaf", "halves": "half", "loaves": "loaf",
    "wolves": "wolf", "calves": "calf", "thieves": "thief", "wives": "wife", "lives": "life",
}  # fmt: skip
_IRREGULAR = _VES | {
    "people": "person", "children": "child", "statuses": "status", "analyses": "analysis", "indices": "index",
    "addresses": "address", "branches": "branch", "boxes": "box", "batches": "batch", "movies": "movie",
    "aliases": "alias", "series": "series", "news": "news", "hours": "hours", "settings": "settings",
    "lenses": "lens", "data": "data", "media": "media", "status": "status", "stats": "stats",
    "analysis": "analysis",
    "address": "address", "process": "process", "access": "access", "class": "class", "alias": "alias",
    "progress": "progress", "business": "business", "caches": "cache", "releases": "release",
    "databases": "database",
    "licenses": "license", "houses": "house", "courses": "course", "purchases": "purchase",
    "expenses": "expense",
    "responses": "response", "cases": "case", "dis": "dis", "gas": "gas", "bus": "bus", "canvas": "canvas",
    "details": "details", "actions": "action", "gis": "gis", "lens": "lens", "kudos": "kudos",
    "funds": "funds",
    "credentials": "credentials", "permissions": "permission", "contents": "contents",
}  # fmt: skip
_ACRONYMS = re.compile(r"([A-Z]+)([A-Z][a-z])")
_HUMPS = re.compile(r"([a-z0-9])([A-Z])")

GET = frozenset(
    {"get", "read", "fetch", "retrieve", "show", "describe", "view", "load", "lookup", "check", "display"}
)
LIST = frozenset({"list", "browse", "enumerate"})
SEARCH = frozenset({"search", "find", "query", "filter"})
CREATE = frozenset({
    "create", "add", "buy", "place", "new", "insert", "register", "book", "make", "post", "open",
    "schedule", "order",
    "purchase", "reserve", "upload",
})  # fmt: skip
UPDATE = frozenset(
    {"update", "modify", "patch", "edit", "change", "put", "replace", "set", "adjust", "rename"}
)
DELETE = frozenset({"delete", "remove", "destroy", "drop", "erase", "discard", "clear"})
TOGGLE = frozenset({"toggle", "flip", "switch"})
MOVE = frozenset({"move", "transfer", "assign", "reassign", "relocate"})
COUNT = frozenset({"count"})
RUN = frozenset({"run", "execute", "trigger", "start", "launch", "rerun", "invoke"})
STATS = frozenset({"stats", "statistics", "summary", "overview", "count", "counts", "totals"})
STATE_VERBS: dict[str, tuple[str, object]] = {
    "enable": ("enabled", True), "disable": ("enabled", False),
    "activate": ("active", True), "deactivate": ("active", False),
    "archive": ("archived", True), "unarchive": ("archived", False),
    "complete": ("completed", True), "uncomplete": ("completed", False), "finish": ("completed", True),
    "lock": ("locked", True), "unlock": ("locked", False),
    "pin": ("pinned", True), "unpin": ("pinned", False),
    "star": ("starred", True), "unstar": ("starred", False),
    "follow": ("following", True), "unfollow": ("following", False),
    "favorite": ("favorited", True), "unfavorite": ("favorited", False),
    "favourite": ("favourited", True), "unfavourite": ("favourited", False),
    "like": ("liked", True), "unlike": ("liked", False),
    "bookmark": ("bookmarked", True), "unbookmark": ("bookmarked", False),
    "subscribe": ("subscribed", True), "unsubscribe": ("subscribed", False),
    "publish": ("published", True), "unpublish": ("published", False),
    "mute": ("muted", True), "unmute": ("muted", False),
    "block": ("blocked", True), "unblock": ("blocked", False),
    "hide": ("hidden", True), "unhide": ("hidden", False),
    "merge": ("merged", True), "dismiss": ("dismissed", True), "trash": ("trashed", True),
    "cancel": ("status", "cancelled"), "close": ("status", "closed"), "reopen": ("status", "open"),
    "resolve": ("status", "resolved"), "unresolve": ("status", "open"),
    "approve": ("status", "approved"), "reject": ("status", "rejected"),
    "pause": ("status", "paused"), "resume": ("status", "active"), "suspend": ("status", "suspended"),
}  # fmt: skip
"""Verb -> the field it is known to set, and the value."""
AUTH = frozenset({
    "login", "logout", "signin", "signout", "signup", "authenticate", "authorize", "authorise",
    "authentication", "authorization", "passwordless", "otp",
})  # fmt: skip
EXTERNAL = {
    "send": "it sends something out of the environment",
    "notify": "it notifies somebody outside the environment",
    "email": "it sends something out of the environment",
    "download": "it moves a file out of the environment",
    "upload": "it takes a file, whose content the state cannot hold",
    "uploads": "it takes a file, whose content the state cannot hold",
    "request": "it asks an outside party to act",
}
FILLER = frozenset({
    "a", "an", "the", "all", "specific", "single", "by", "for", "of", "in", "to", "from", "with", "existing",
    "new", "now", "my", "current", "via", "on", "and", "at", "id", "using", "details", "detail", "info",
    "information",
    "recent", "available", "self",
})  # fmt: skip


_DANGLING = frozenset(
    {"", "a", "an", "the", "and", "or", "of", "to", "for", "with", "in", "on", "by", "that", "from"}
)


def split_words(name: str) -> list[str]:
    """Lower-case words of a camelCase, snake_case, kebab-case or spaced name."""
    spaced = _HUMPS.sub(r"\1 \2", _ACRONYMS.sub(r"\1 \2", name))
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def singular(word: str) -> str:
    """Singular of one lower-case English word."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zzes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 2:
        return word[:-1]
    return word


def plural(word: str) -> str:
    """Plural of one lower-case English word; words without one stay as they are."""
    if singular(word) != word or (_IRREGULAR.get(word) == word and word in {
        "hours", "settings", "series", "news", "data", "media", "stats", "details", "funds",
        "credentials", "contents",
    }):  # fmt: skip
        return word
    if word == "person":
        return "people"
    if word in _VES.values():
        return next(many for many, one in _VES.items() if one == word)
    if word == "child":
        return "children"
    if word.endswith("y") and word[-2:-1] not in set("aeiou"):
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    return word + "s"


def singular_phrase(words: list[str]) -> tuple[str, ...]:
    """The phrase with its last word in the singular."""
    return (*words[:-1], singular(words[-1])) if words else ()


def collection_name(entity: tuple[str, ...]) -> str:
    """Plural snake case of a singular phrase: ``("special", "event")`` -> ``special_events``."""
    return "_".join((*entity[:-1], plural(entity[-1])))


def is_plural(word: str) -> bool:
    """True when the word has another singular, or is one of the words that only come in the plural."""
    return singular(word) != word or word in {"hours", "settings"}


def a(noun: str) -> str:
    """The noun with its indefinite article; plurals get none."""
    if is_plural(noun.split()[-1]):
        return noun
    return f"an {noun}" if noun[:1] in "aeio" else f"a {noun}"


def id_stem(name: str) -> tuple[str, ...] | None:
    """``task_list_id`` -> ``("task", "list")``; None when the name is no id of something."""
    words = split_words(name)
    if len(words) >= 2 and words[-1] in {"id", "uuid", "sid", "number", "slug"}:
        return tuple(words[:-1])
    return None


def first_sentence(text: str, limit: int = 60) -> str:
    """The first sentence of a description on one line, cut at a word when longer than ``limit``
    characters."""
    line = " ".join(text.split())
    line = re.split(r"(?<=[a-z0-9)])\. |\.$", line, maxsplit=1)[0].rstrip(". ")
    if len(line) <= limit:
        return line
    cut = re.split(r"(?:,| \(| - |;|: )", line, maxsplit=1)[0]
    if 12 <= len(cut) <= limit:
        return cut
    words = line[: limit + 1].rsplit(" ", 1)[0].split(" ")
    while len(words) > 2 and words[-1].lower().strip(",;:-(") in _DANGLING:
        words.pop()
    return " ".join(words).rstrip(",;:-( ")
