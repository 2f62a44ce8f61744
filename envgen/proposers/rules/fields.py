"""What a document's parameters and properties say about the fields of a record."""

from __future__ import annotations

import re
from typing import Any

from envgen.proposers.rules.words import split_words
from envgen.types import FieldSpec, StateField, StateFieldType

_CREATED = re.compile(r"^(date)?_?(created|creation|inserted)(_?(at|on|date|time))?$")
_UPDATED = re.compile(r"^(date)?_?(last_?)?(updated|modified|edited|changed)(_?(at|on|date|time))?$")
_LONG = frozenset(
    {
        "description",
        "body",
        "content",
        "notes",
        "note",
        "message",
        "bio",
        "text",
        "comment",
        "summary",
        "details",
    }
)
_COUNTS = frozenset(
    {"index", "count", "quantity", "number", "page", "line", "position", "amount", "size", "year", "years"}
)
LABELS = (
    "name",
    "title",
    "username",
    "label",
    "subject",
    "display_name",
    "full_name",
    "symbol",
    "tradingsymbol",
    "friendly_name",
    "filename",
)


def snake(name: str) -> str:
    """``dueDate`` -> ``due_date``."""
    return "_".join(split_words(name))


def is_created_clock(name: str) -> bool:
    """True for names such as ``createdAt``."""
    return bool(_CREATED.match(snake(name)))


def is_updated_clock(name: str) -> bool:
    """True for names such as ``updatedAt``, ``last_modified``."""
    return bool(_UPDATED.match(snake(name)))


def state_type(spec: FieldSpec) -> tuple[StateFieldType, StateFieldType | None]:
    """Type of the state field, and of its items when it is an array."""
    if spec.enum and spec.type in ("string", "any"):
        return "enum", None
    match spec.type:
        case "array":
            return "array", state_type(spec.items)[0] if spec.items is not None else None
        case "boolean" | "integer" | "object":
            return spec.type, None
        case "number":
            words = split_words(spec.name)
            whole = bool(words) and words[-1] in (_COUNTS | {"id"}) - {"amount"} and not spec.format
            return ("integer" if whole else "number"), None
        case _:
            return _text_type(spec), None


def _text_type(spec: FieldSpec) -> StateFieldType:
    words, text = split_words(spec.name), spec.description.lower()
    if spec.format == "date":
        return "date"
    if spec.format == "date-time":
        return "datetime"
    if "hh:mm" in text and "yyyy-mm-dd" in text:
        return "datetime"
    if spec.format == "time" or "hh:mm" in text:
        return "time"
    if words and (words[-1] == "date" or "yyyy-mm-dd" in text):
        return "date"
    if (len(words) > 1 and words[-1] in {"at", "timestamp"}) or words == ["timestamp"]:
        return "datetime"
    if words and words[-1] in _LONG:
        return "text"
    return "string"


def zero_of(type_: StateFieldType, enum: tuple[Any, ...]) -> Any:
    """The value a new record gets in a field that must be there when nobody says one."""
    match type_:
        case "boolean":
            return False
        case "integer" | "number":
            return 0
        case "array":
            return []
        case "object":
            return {}
        case "enum":
            return enum[0] if enum else ""
        case "string" | "text":
            return ""
        case _:
            return None


def state_field(spec: FieldSpec, *, required: bool = False) -> StateField:
    """A state field as one parameter or property describes it."""
    type_, item_type = state_type(spec)
    clock = is_created_clock(spec.name) or is_updated_clock(spec.name)
    if clock and type_ in ("string", "date"):
        type_ = "datetime"
    return StateField(
        name=spec.name,
        type=type_,
        required=required,
        enum=spec.enum,
        item_type=item_type,
        policy="exempt" if clock else "exact",
        default=None if spec.default in ("None", "null") else spec.default,
        description=" ".join(spec.description.split())[:120],
        provenance=spec.pointer,
    )


def merge(old: StateField | None, new: StateField) -> StateField:
    """Two descriptions of one field: the more precise type, the first provenance, required when either says
    so."""
    if old is None:
        return new
    vague = {"string", "any", "text"}
    better = new if (old.type in vague and new.type not in vague) or (new.enum and not old.enum) else old
    return old.model_copy(
        update={
            "type": better.type,
            "enum": better.enum,
            "item_type": better.item_type or new.item_type,
            "required": old.required or new.required,
            "description": old.description or new.description,
            "default": old.default if old.default is not None else new.default,
            "policy": "exempt" if "exempt" in (old.policy, new.policy) else old.policy,
        }
    )
