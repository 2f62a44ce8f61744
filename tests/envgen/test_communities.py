"""Large documents cut into coherent environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.errors import RefusedDocument
from envgen.proposers.rules import propose
from envgen.store import load_bundle, write_bundle
from envgen.synthesis.communities import LARGE, LEAST, chosen, communities, part_of, tie_graph
from envgen.synthesis.pipeline import make_bundle
from envgen.synthesis.toolproof.prove import proofs_of
from envgen.tooldocs import read_tool_doc
from envgen.types import FieldSpec, ToolDoc, ToolSpec


def family(noun: str, parent: str = "") -> list[ToolSpec]:
    """List, create, update and delete of one kind of record, below another."""

    def param(name: str, required: bool = True) -> FieldSpec:
        return FieldSpec(name=name, type="string", required=required, pointer=f"/{noun}/{name}")

    above = (param(f"{parent}_id"),) if parent else ()
    return [
        ToolSpec(name=f"list_{noun}s", params=above, pointer=f"/{noun}/0"),
        ToolSpec(
            name=f"create_{noun}", params=(*above, param("name"), param("color", False)), pointer=f"/{noun}/1"
        ),
        ToolSpec(
            name=f"update_{noun}",
            params=(param(f"{noun}_id"), param("name", False), param("color", False)),
            pointer=f"/{noun}/2",
        ),
        ToolSpec(name=f"delete_{noun}", params=(param(f"{noun}_id"),), pointer=f"/{noun}/3"),
    ]


def doc_of(*families: list[ToolSpec]) -> ToolDoc:
    tools = tuple(tool for tools in families for tool in tools)
    return ToolDoc(title="Many Things", format="mcp", source="many.json", sha256="0" * 64, tools=tools)


def test_unrelated_families_come_apart_and_related_ones_stay() -> None:
    doc = doc_of(family("farm"), family("barn", "farm"), family("ship"), family("cabin", "ship"))
    draft = propose(doc)
    found = communities(doc, draft)
    groups = {frozenset(s.split("_")[1].rstrip("s") for s in c.tools) for c in found}
    assert groups == {frozenset({"farm", "barn"}), frozenset({"ship", "cabin"})}
    assert {tool for c in found for tool in c.tools} == {s.tool for s in draft.semantics}
    assert [c.name for c in found] == sorted(c.name for c in found) and len({c.name for c in found}) == 2
    assert communities(doc, draft) == found


def test_a_part_stands_alone_and_accounts_for_the_rest() -> None:
    doc = doc_of(family("farm"), family("barn", "farm"), family("ship"), family("cabin", "ship"))
    draft = propose(doc)
    found = communities(doc, draft)
    part = part_of(doc, draft, found[0])
    assert {s.tool for s in part.semantics} == set(found[0].tools) == {t.name for t in part.tools}
    assert len(part.state_schema.collections) == 2
    outside = {d.tool: d.reason for d in part.decisions if not d.implemented}
    assert set(outside) == {s.tool for s in draft.semantics} - set(found[0].tools)
    assert all(f"outside of the community {found[0].name!r}" in reason for reason in outside.values())
    assert all(p.passed for p in proofs_of(part, doc))
    bundle = make_bundle(doc, part, tasks=8, heldout=2, seed=1)
    assert len(bundle.tasks) == 8 and bundle.name == f"many_things_{found[0].name}"


def test_a_family_that_cannot_stand_joins_its_neighbour_with_what_it_needs() -> None:
    lone = ToolSpec(
        name="delete_badge", pointer="/x", params=(FieldSpec(name="badge_id", type="string", required=True),)
    )
    made = ToolSpec(
        name="create_badge",
        pointer="/y",
        params=tuple(FieldSpec(name=n, type="string", required=True) for n in ("farm_id", "name")),
    )
    doc = doc_of(family("farm"), family("ship"), [made, lone])
    draft = propose(doc)
    found = communities(doc, draft)
    home = next(c for c in found if "create_badge" in c.tools)
    assert "list_farms" in home.tools and len(home.tools) >= LEAST  # a new badge needs a farm
    graph = tie_graph(draft)
    assert graph.has_edge("create_badge", "list_farms") and not graph.has_edge("create_badge", "list_ships")


def test_an_unknown_name_is_told_the_known_ones() -> None:
    doc = doc_of(family("farm"), family("ship"))
    with pytest.raises(RefusedDocument, match=r"no community 'moon'; expected one of .*farms \(4 tools\)"):
        chosen(communities(doc, propose(doc)), "moon")


def test_the_largest_document(shared_tooldocs: Path) -> None:
    doc = read_tool_doc(shared_tooldocs / "github_mcp_toolslist.json")
    assert len(doc.tools) >= LARGE
    draft = propose(doc)
    found = communities(doc, draft)
    assert len(found) >= 3
    assert {tool for c in found for tool in c.tools} == {s.tool for s in draft.semantics}
    assert all(len(c.tools) < len(draft.semantics) for c in found)


def test_synth_writes_one_bundle_for_each_or_a_chosen_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from envgen.cli.communities import synth_communities

    doc = doc_of(family("farm"), family("barn", "farm"), family("ship"), family("cabin", "ship"))

    def make(draft, target):
        made = make_bundle(doc, draft, tasks=4, heldout=1, seed=0)
        write_bundle(made, target)
        return made

    synth_communities(doc, propose(doc), tmp_path / "all", "", make, force=False)
    names = [c.name for c in communities(doc, propose(doc))]
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == sorted(names)
    assert all(len(load_bundle(tmp_path / "all" / name).tasks) == 4 for name in names)
    synth_communities(doc, propose(doc), tmp_path / "one", names[1], make, force=False)
    assert load_bundle(tmp_path / "one").name == f"many_things_{names[1]}"
    assert "communities" in capsys.readouterr().out
