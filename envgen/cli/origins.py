"""``envgen show --provenance``: where every tool, parameter, rule and field of a bundle comes from."""

from __future__ import annotations

from rich.markup import escape

from envgen.cli.views import console, table
from envgen.errors import BundleError
from envgen.provenance import Source
from envgen.store import Bundle


def show_provenance(bundle: Bundle) -> None:
    """Two tables: tools with parameters, rules and tests; collections with fields. Raises BundleError for a
    bundle without provenance."""
    origin = bundle.provenance
    if origin is None:
        raise BundleError(
            f"bundle {bundle.name!r} has no provenance.json (it was made by an older envgen); make it again "
            "with `envgen synth`"
        )
    out = console()
    for name, digest in origin.documents.items():
        out.print(f"[bold]{escape(name)}[/bold]  sha256 {digest}", soft_wrap=True)
    rows = table("tool", "part", "from", title="\ntools")
    for name, tool in origin.tools.items():
        tests = tool.tests
        said = (
            f"{tests.successes} calls succeed, {tests.refusals} refused, {tests.misfits} ill-formed"
            if tests
            else ""
        )
        rows.add_row(escape(name), said, _said(tool.source))
        for param, source in tool.params.items():
            rows.add_row("", f"argument {escape(param)}", _said(source))
        for rule in tool.rules:
            rows.add_row("", f"rule {escape(rule.rule)}", _said(rule.source))
        for text in tool.assumptions:
            rows.add_row("", "assumed", escape(text))
    out.print(rows)
    rows = table("collection", "field", "from", title="\nstate")
    for name, collection in origin.collections.items():
        rows.add_row(escape(name), "", _said(collection.source))
        for field, source in collection.fields.items():
            rows.add_row("", escape(field), _said(source))
    out.print(rows)


def _said(source: Source) -> str:
    parts = [source.pointer, f"assumed: {source.assumption}" if source.assumption else ""]
    return escape("  ".join(part for part in parts if part))
