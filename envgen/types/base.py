"""What every record of envgen is: frozen, and strict about its fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of every record here: immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
