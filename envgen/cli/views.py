"""What the commands print: tables and panels on stdout, progress on stderr."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from envgen.store import Bundle
from envgen.tooldocs.combine import shared_collections
from envgen.types import Certificate, LintFinding, ToolDoc

_SAID = ("renamed-tool", "repeated-tool", "hosted-tool", "list-cut")
"""Findings of the reader that synth repeats: they change which tools there are."""


def console() -> Console:
    """Console on stdout; wide enough for tables when the output is a file or a pipe."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=140)


def table(*columns: str, title: str = "") -> Table:
    """Plain table in the style of every command."""
    result = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        result.add_column(column, overflow="fold")
    return result


def cell(value: object) -> str:
    """Text of a table cell: JSON for data, no markup."""
    return escape(value if isinstance(value, str) else compact(value))


def compact(value: object) -> str:
    """One-line JSON."""
    return json.dumps(value, ensure_ascii=False, default=str)


# ------------------------------------------------------------------------------------------------ lint, synth
def show_lint(doc: ToolDoc, findings: Sequence[LintFinding]) -> None:
    """What was read, then the findings."""
    out = console()
    outputs = sum(tool.output is not None for tool in doc.tools)
    params = sum(len(tool.params) for tool in doc.tools)
    out.print(
        f"[bold]{escape(doc.title)}[/bold]  {doc.format}  {escape(doc.source)}\n"
        f"{len(doc.tools)} tools, {params} parameters, {outputs} with a result schema\n"
        f"read as {escape(doc.detected)}"
    )
    if not findings:
        out.print("no findings")
        return
    rows = table("level", "code", "finding", "at")
    for finding in findings:
        colour = "red" if finding.level == "refusal" else "yellow"
        level = f"[{colour}]{finding.level}[/{colour}]"
        rows.add_row(level, finding.code, escape(finding.message), escape(finding.pointer))
    out.print(rows)


@contextmanager
def progress_bar() -> Generator[Callable[[str, int, int], None]]:
    """Yields ``progress(phase, done, total)``: one bar per phase on stderr."""
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    known: dict[str, TaskID] = {}

    def progress(phase: str, done: int, total: int) -> None:
        if phase not in known:
            bars.start()  # not before there is something to show: an error has its line to itself
            known[phase] = bars.add_task(escape(phase), total=total)
        bars.update(known[phase], completed=done, total=total)

    try:
        yield progress
    finally:
        if known:
            bars.stop()


def show_account(bundle: Bundle, path: Path) -> None:
    """What became of every tool and every sampled task."""
    out, report = console(), bundle.report
    rows = table("what", "number", "detail")
    rows.add_row("tools in the document", str(report.tools_total), "")
    rows.add_row("  implemented", str(report.tools_implemented), "")
    rows.add_row("  refused", str(len(report.refused)), "")
    for name, reason in report.refused.items():
        rows.add_row("", "", escape(f"{name}: {reason}"))
    rows.add_row("tasks sampled", str(report.tasks_sampled), "")
    rows.add_row("  certified", str(report.tasks_certified), split_text(bundle))
    rows.add_row("  dropped", str(sum(report.dropped.values())), "")
    for gate, number in sorted(report.dropped.items(), key=lambda entry: -entry[1]):
        rows.add_row("", str(number), f"by {escape(gate)}")
    for what, number, detail in coverage_rows(bundle):
        rows.add_row(what, number, escape(detail))
    for finding in bundle.doc.findings:
        if finding.code in _SAID:
            rows.add_row("", "", escape(f"{finding.code}: {finding.message}"))
    for name, files in shared_collections(bundle.doc, bundle).items():
        rows.add_row("", "", escape(f"shared: {name} of {', '.join(files)}"))
    out.print(rows)
    out.print(f"{escape(bundle.environment_id)} -> {escape(str(path))} in {report.seconds:.1f} s")


def coverage_rows(bundle: Bundle) -> list[tuple[str, str, str]]:
    """(what, number, detail) of how much the tasks cover (`envgen.synthesis.coverage`), with every goal that
    was not reached; nothing for bundles in which it was not measured."""
    from envgen.synthesis.coverage import shortfalls

    found = bundle.report.coverage
    if found is None or not found.tasks:
        return []
    levels = ", ".join(f"level {level}: {number}" for level, number in found.levels.items())
    writes = f"{found.unique_write_sequences} of {found.writing_tasks}"
    idle = ", ".join(f"{reason} {number}" for reason, number in found.edges_idle.items())
    rows = [
        ("tool sequences", f"{found.unique_sequences} of {found.tasks}", f"different ones; {levels}"),
        ("  of write tools", writes, "different ones"),
        ("  near duplicates", str(found.near_duplicates), ""),
        ("edges used", f"{found.edges_used} of {found.edges_executable}", f"executable; others: {idle}"),
    ]
    rows += [("  unused", "", edge) for edge in found.edges_unused]
    return [*rows, *(("not reached", "", short) for short in shortfalls(found))]


def split_text(bundle: Bundle) -> str:
    """``60 train, 20 heldout``."""
    return ", ".join(f"{len(ids)} {name}" for name, ids in bundle.splits.items())


# ------------------------------------------------------------------------------------------------ validate
def show_validation(bundle: Bundle, certificates: Sequence[Certificate]) -> bool:
    """Table of gates and the tasks that failed; True when every task of the bundle was proved again."""
    out = console()
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for certificate in certificates:
        for gate in certificate.gates:
            (passed if gate.passed else failed)[gate.gate] += 1
            tried[gate.gate] += gate.tried
    rows = table("gate", "passed", "failed", "runs")
    for gate in dict.fromkeys([*passed, *failed]):
        rows.add_row(gate, str(passed[gate]), str(failed[gate]), str(tried[gate]))
    out.print(rows)
    by_task = {certificate.task_id: certificate for certificate in certificates}
    good = True
    for task in bundle.tasks:
        certificate = by_task.get(task.id)
        if certificate is not None and certificate.certified:
            continue
        good = False
        reasons = [f"{g.gate}: {g.detail}" for g in certificate.gates if not g.passed] if certificate else []
        out.print(
            f"[red]not certified[/red] {escape(task.id)}: {escape('; '.join(reasons) or 'no gate was run')}"
        )
    number = sum(certificate.certified for certificate in certificates)
    out.print(f"{number} of {len(bundle.tasks)} tasks certified again in {escape(bundle.environment_id)}")
    return good and bool(bundle.tasks)
