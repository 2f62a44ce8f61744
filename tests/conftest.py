"""Shared fixtures. Paths of optional material outside the repository are found here and nowhere else."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "tooldocs"
SHARED_TOOLDOCS = ROOT.parent / "shared" / "tooldocs"


@pytest.fixture(scope="session")
def examples_dir() -> Path:
    """The tool documents that ship with the project."""
    return EXAMPLES


@pytest.fixture(scope="session")
def shared_tooldocs() -> Path:
    """Fifteen real tool documents beside the checkout; the test skips where they are absent."""
    if not SHARED_TOOLDOCS.is_dir():
        pytest.skip("no ../shared/tooldocs beside this checkout")
    return SHARED_TOOLDOCS
