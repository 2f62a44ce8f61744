"""Prompt prefixes that lie in rows of their own, computed once for all rows that follow them."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Int


class SharedPrefixes(NamedTuple):
    """The prefixes of a batch of rows; a row's tokens follow the prefix that `row_prefix` names."""

    tokens: Int[Array, "prefixes width"]
    """i32; padded at the end. Positions count from 0."""
    lengths: Int[Array, " prefixes"]
    """i32; 0 for a prefix that no row follows."""
    row_prefix: Int[Array, " rows"]
    """i32; index of each row's prefix."""
