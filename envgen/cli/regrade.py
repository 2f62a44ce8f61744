"""``envgen regrade``: stored trajectories judged again by the bundle as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
from rich.markup import escape

from envgen.cli.views import console
from envgen.errors import TaskError
from envgen.runtime.regrade import Regraded, read_trajectories, regrade, summary
from envgen.store import Bundle

SHOWN = 20
"""Rows printed of each kind; the output file holds all."""


def regrade_file(bundle: Bundle, path: Path, output: Path | None) -> bool:
    """Judge a trajectories file, print what came out, write the verdicts to ``output``. True when no verdict
    moved and every call was answered as it was then. Raises TaskError when no row can be judged."""
    with path.open("rb") as file:
        rows = list(regrade(bundle, read_trajectories(file, path.name)))
    counts = summary(rows)
    if not counts["judged"]:
        raise TaskError(
            f"{path.name}: none of its {len(rows)} trajectories can be judged by bundle {bundle.name!r} "
            f"(skipped: {counts['skipped'] or 'none'}); give the bundle that they were made with"
        )
    if output is not None:
        _write(rows, output)
    out = console()
    judged = counts["judged"]
    out.print(f"{judged} judged, {counts['success_now']} succeed", highlight=False)
    if counts["stored"]:
        out.print(
            f"stored verdicts: {counts['stored']}, of which {counts['success_then']} succeeded; "
            f"{counts['moved']} moved",
            highlight=False,
        )
    for reason, number in sorted(counts["skipped"].items()):
        out.print(f"{number} skipped: {escape(reason)}", highlight=False)
    for row in [r for r in rows if r.moved][:SHOWN]:
        out.print(
            f"[red]moved[/red] line {row.line} {escape(row.task_id)}: {escape(_why(row))}", soft_wrap=True
        )
    for row in [r for r in rows if r.diverged][:SHOWN]:
        text = f"line {row.line} {row.task_id}: {row.diverged}"
        out.print(f"[yellow]diverged[/yellow] {escape(text)}", soft_wrap=True)
    if counts["diverged"]:
        out.print(
            f"{counts['diverged']} trajectories hold answers that the tools no longer give", highlight=False
        )
    return not counts["moved"] and not counts["diverged"]


def _why(row: Regraded) -> str:
    verdict = row.verdict
    assert verdict is not None
    if verdict.success:
        return f"failure then, success now (accepted state {verdict.nearest})"
    places = [f"{d.collection} {d.key} {d.field}".strip() for d in verdict.differences[:3]]
    return "success then, failure now: " + "; ".join([*places, *verdict.violations[:2]])


def _write(rows: Sequence[Regraded], output: Path) -> None:
    """One JSON object a line, written beside the target and renamed: a reader sees all or nothing."""
    lines = [
        orjson.dumps(
            {
                "line": row.line,
                "task_id": row.task_id,
                "stored": row.stored,
                "verdict": None if row.verdict is None else row.verdict.model_dump(mode="json"),
                "diverged": row.diverged,
                "skipped": row.skipped,
            }
        )
        for row in rows
    ]
    part = output.with_name(f".{output.name}.part")
    part.write_bytes(b"".join(line + b"\n" for line in lines))
    part.replace(output)
