"""``envgen synth`` on a large document: one bundle for each community of its tools, or a chosen one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envgen.cli.views import console, show_account, table
from envgen.errors import BundleError, RefusedDocument
from envgen.store import Bundle
from envgen.synthesis.communities import Community, chosen, communities, part_of
from envgen.types import EnvironmentDraft, ToolDoc

Make = Callable[[EnvironmentDraft, Path], Bundle]
"""From the draft of one community to its bundle, written to a folder."""


def synth_communities(
    doc: ToolDoc, draft: EnvironmentDraft, output: Path, name: str, make: Make, *, force: bool
) -> None:
    """Write the bundle of community ``name`` to ``output``, or with an empty name one for each community to
    ``output/NAME``. A community of which no bundle can be made is named with the reason.

    Raises RefusedDocument (no community gives a bundle, or none is called so), BundleError.
    """
    found = communities(doc, draft)
    if name:
        _one(doc, draft, chosen(found, name), output, make)
        return
    for community in found:
        target = output / community.name
        if (target / "manifest.json").is_file() and not force:
            raise BundleError(f"{target}: a bundle stands there already; give --force to replace it")
    refused: dict[str, str] = {}
    for community in found:
        try:
            _one(doc, draft, community, output / community.name, make)
        except RefusedDocument as error:
            refused[community.name] = str(error)
    rows = table("community", "tools", "shared", "bundle", title="\ncommunities")
    for community in found:
        reason = refused.get(community.name, "")
        said = f"refused: {reason}" if reason else str(output / community.name)
        rows.add_row(community.name, str(len(community.tools)), str(len(community.shared)), said)
    console().print(rows)
    if len(refused) == len(found):
        raise RefusedDocument(f"{doc.source}: none of its {len(found)} communities gives a bundle", ())


def _one(doc: ToolDoc, draft: EnvironmentDraft, community: Community, output: Path, make: Make) -> None:
    show_account(make(part_of(doc, draft, community), output), output)
