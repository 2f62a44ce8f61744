"""Shared fixtures. Paths of optional material outside the repository are found here and nowhere else."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "tooldocs"
SHARED_TOOLDOCS = ROOT.parent / "shared" / "tooldocs"


@pytest.fixture(autouse=True, scope="session")
def heard_ctrl_c() -> Iterator[None]:
    """Ctrl-C works in tests and in the programs they start, also where the shell that started them in the
    background told them to ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)


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
