"""`autoforge run` from documents to report on a server that the run starts for itself, killed once on the
way."""

import io
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoforge_jax.config import load_config
from autoforge_jax.train.loop import execute
from autoforge_jax.train.metrics import Bar, Reporter, read_jsonl
from autoforge_jax.train.rundir import PHASES
from tests.sglang.conftest import free_url

ROOT = Path(__file__).resolve().parents[2]


class _KillServerAfter(Reporter):
    """SIGKILL to the run's server when a bar shows a step for the first time."""

    def __init__(self, pid_file: Path, name: str, step: int) -> None:
        super().__init__(io.StringIO())
        self._pid_file, self._name, self._step = pid_file, name, step
        self.killed: list[int] = []

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Bar]:
        with super().bar(name, total) as bar:
            shown = bar.update

            def update(done: int, total: int | None = None, **numbers: Any) -> None:
                shown(done, total, **numbers)
                if name == self._name and done == self._step and not self.killed:
                    self.killed.append(int(self._pid_file.read_text().split()[0]))
                    os.killpg(self.killed[0], signal.SIGKILL)

            bar.update = update  # type: ignore[method-assign]
            yield bar


def test_a_run_from_end_to_end_survives_its_servers_death(
    sglang_command: tuple[str, ...], tmp_path: Path
) -> None:
    command = ", ".join(f'"{word}"' for word in sglang_command)
    config = load_config(
        ROOT / "configs" / "debug" / "sglang_cpu.toml",
        (
            f"run.out_dir={tmp_path}",
            f"run.compile_cache={ROOT / '.jax_cache'}",
            f'synthesis.documents=["{ROOT / "configs" / "debug" / "shelf_tools.json"}"]',
            f"rollout.sglang.launch=[{command}]",
            f'rollout.sglang.urls=["{free_url()}"]',
        ),
    )
    folder = tmp_path / config.run.name
    reporter = _KillServerAfter(folder / "serve" / "logs" / "server-0.pid", "erpo", 1)
    run = execute(config, reporter=reporter)
    assert run.root == folder and len(reporter.killed) == 1
    assert [record.name for record in run.records.values() if record.done] == list(PHASES)
    rows = [row for row in read_jsonl(run.metrics) if row["phase"] == "erpo"]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["tokens"] > 0 and row["logprob_gap_mean"] < 1e-4, "server and learner disagree"
        assert row["rollout/excluded"] == 0
    # Step 1 samples with what the evaluation before it has sent; step 2 with an update's result.
    assert rows[0]["sync_bytes"] == 0 < rows[1]["sync_bytes"]
    versions = sorted(path.name for path in (folder / "serve").glob("v*"))
    assert len(versions) == 1, "older versions are deleted"
    assert not (folder / "serve" / "logs" / "server-0.pid").exists(), "the server is stopped with the run"
