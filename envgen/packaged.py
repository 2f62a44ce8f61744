"""The data files that ship inside the package: word lists, sentences and prompts."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def packaged_text(package: str, name: str) -> str:
    """The text of the file ``name`` (a path with slashes) beside the modules of ``package``."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def packaged_json(package: str, name: str) -> Any:
    """What a JSON file of ``package`` holds. Read anew at each call: callers cache it."""
    return json.loads(packaged_text(package, name))
