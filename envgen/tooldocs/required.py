"""Which parameters are required where a document does not say."""

from __future__ import annotations

from envgen.tooldocs.naming import words


def assumed_required(name: str, tool: str, index: int) -> bool:
    """An assumption by names: ids, the first parameter, names and titles; and of a change only the ids
    (nobody must re-send what does not change). ``index`` is the parameter's place in the list."""
    parts = words(name)
    if parts[-1:] in (("id",), ("ids",)):
        return True
    if words(tool)[:1] and words(tool)[0] in {"update", "edit", "modify", "patch", "change"}:
        return False
    return (
        index == 0
        or parts[-1:] in (("name",), ("title",))
        or words(tool)[:1] in (("set",), ("get",), ("search",))
    )
