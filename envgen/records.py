"""What a state is made of, as plain JSON types. Free of pydantic: isolated workers import it."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
"""One record: field name -> JSON value."""
StateData = dict[str, dict[str, Record]]
"""collection -> key (always a string) -> record. Insertion order is kept and means nothing to the grader."""
