"""Provenance: every tool, parameter, rule and field points into the document or says what was assumed; the
pointers resolve; bundles carry it, and older bundles without it still load."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgen.errors import BundleError
from envgen.proposers.rules import propose
from envgen.provenance import Provenance, Source
from envgen.store import load_bundle, write_bundle
from envgen.synthesis.origins import origins, source_of
from envgen.tooldocs import read_tool_doc
from tests.conftest import EXAMPLES, SHARED_TOOLDOCS
from tests.envgen.mock_domain import mock_bundle

FILES = sorted(p for p in EXAMPLES.iterdir() if p.suffix != ".md") + (
    sorted(p for p in SHARED_TOOLDOCS.iterdir() if p.suffix != ".tsv" and not (EXAMPLES / p.name).exists())
    if SHARED_TOOLDOCS.is_dir()
    else []
)
NOT_MADE = ("bfcl_gorilla", "tictactoe")  # the rules refuse these whole


def sources(found: Provenance) -> Iterator[tuple[str, Source]]:
    for name, tool in found.tools.items():
        yield name, tool.source
        yield from ((f"{name}.{param}", source) for param, source in tool.params.items())
        yield from ((f"{name}: {rule.rule}", rule.source) for rule in tool.rules)
    for name, collection in found.collections.items():
        yield name, collection.source
        yield from ((f"{name}.{field}", source) for field, source in collection.fields.items())


def resolve(pointer: str, text: str, whole: Any) -> Any:
    """The part of a document that a pointer names: ``/a/0/b``, ``line 3``, ``line 3/a/b``, ``/a line 7``."""
    numbered = re.fullmatch(r"(.*?)\s?line (\d+)(/.*)?", pointer)
    path, root = pointer, whole
    if numbered is not None:
        before, number, after = numbered.group(1), int(numbered.group(2)), numbered.group(3) or ""
        held = resolve(before, text, whole) if before else text
        line = held.splitlines()[number - 1]
        path, root = after, json.loads(line) if after else line
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root[int(name)] if isinstance(root, list) else root[name]
    return root


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_pointer_resolves(path: Path) -> None:
    if path.name.startswith(NOT_MADE):
        pytest.skip("no environment is made of this one")
    doc = read_tool_doc(path)
    found = origins(doc, propose(doc), {})
    text = path.read_text(encoding="utf-8")
    jsonl = doc.format == "functions-jsonl"
    whole = None if jsonl else yaml.safe_load(text) if path.suffix in (".yml", ".yaml") else json.loads(text)
    pointers = 0
    for what, source in sources(found):
        assert source.pointer or source.assumption, what
        if source.pointer:
            pointers += 1
            try:
                part = resolve(source.pointer, text, whole)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise AssertionError(f"{what}: {source.pointer!r} leads nowhere: {error!r}") from error
            assert part not in (None, ""), (what, source.pointer)
    assert pointers >= 10
    assert found.documents == {doc.source: doc.sha256}


def test_a_pointer_leads_to_what_it_speaks_of() -> None:
    path = EXAMPLES / "museum_openapi31.yaml"
    doc = read_tool_doc(path)
    found = origins(doc, propose(doc), {})
    whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    buy = found.tools["buyMuseumTickets"]
    assert resolve(buy.source.pointer, "", whole)["operationId"] == "buyMuseumTickets"
    assert resolve(buy.params["email"].pointer, "", whole)["format"] == "email"
    kept = next(rule for rule in found.tools["deleteSpecialEvent"].rules if "still has" in rule.rule)
    assert not kept.source.pointer and "is kept" in kept.source.assumption


def test_texts_taken_apart() -> None:
    assert source_of("/a/b") == Source(pointer="/a/b")
    assert source_of("assumption: it is so") == Source(assumption="it is so")
    assert source_of("line 3 (assumption: 'x' at first)") == Source(
        pointer="line 3", assumption="'x' at first"
    )
    assert source_of("", "nobody says") == Source(assumption="nobody says")
    with pytest.raises(ValueError, match="neither a pointer nor an assumption"):
        Source()


def test_bundles_carry_it_and_older_ones_load(tmp_path: Path) -> None:
    bundle = mock_bundle()
    write_bundle(bundle, tmp_path / "old")
    assert load_bundle(tmp_path / "old").provenance is None
    assert not (tmp_path / "old" / "provenance.json").exists()
    found = Provenance(documents={"a.json": "0"}, tools={}, collections={})
    write_bundle(replace(bundle, provenance=found), tmp_path / "new")
    assert load_bundle(tmp_path / "new").provenance == found
    file = tmp_path / "new" / "provenance.json"
    file.write_bytes(file.read_bytes().replace(b"a.json", b"b.json"))
    with pytest.raises(BundleError, match=r"provenance\.json: its content does not match"):
        load_bundle(tmp_path / "new")


def test_show_provenance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from envgen.cli.origins import show_provenance

    doc = read_tool_doc(EXAMPLES / "museum_openapi31.yaml")
    found = origins(doc, propose(doc), {})
    show_provenance(replace(mock_bundle(), provenance=found))
    shown = " ".join(capsys.readouterr().out.split())
    assert "/paths/~1special-events/post" in shown and "assumed" in shown
    with pytest.raises(BundleError, match=r"no provenance\.json"):
        show_provenance(mock_bundle())
