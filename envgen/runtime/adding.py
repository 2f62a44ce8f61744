"""Addition that gives the same floats on every Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def add_up(values: Iterable[Any], /, start: Any = 0) -> Any:
    """`sum`, one value after the other from the left.

    The built-in one makes up for rounding since Python 3.12 (gh-100425), and so gives other floats than 3.11:
    ten times 0.1 is 1.0 there and 0.9999999999999999 here. What goes into a bundle or an episode must not
    depend on that. Integers are exact either way. Raises TypeError as `sum` does.
    """
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    total = start
    for value in values:
        total = total + value
    return total
