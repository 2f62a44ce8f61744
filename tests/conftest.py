"""Shared fixtures. Paths of optional material outside the repository are found here and nowhere else."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "tooldocs"
SHARED_TOOLDOCS = ROOT.parent / "shared" / "tooldocs"
LONGEST_FIRST = (
    "test_loop", "test_two_processes", "test_mesh", "test_moe", "test_scale", "test_overlap_run", "test_lora",
    "test_erpo_options", "test_engine_jax", "test_plan", "test_faults_learner", "test_faults_learner_scale",
)  # fmt: skip
"""Modules of minutes go first: one that came last would keep one worker busy while the others have nothing
left. (xdist's own order, by number of tests, puts exactly these last: `make test` turns it off.)"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first; the order within a module and of all others stays."""
    place = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


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
