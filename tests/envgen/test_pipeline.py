"""From a shipped document to a bundle: counts add up, splits are apart, same seed, same bytes."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from envgen.errors import EnvgenError, RefusedDocument
from envgen.store import Bundle, load_bundle, write_bundle
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import draft_of, validate
from envgen.synthesis.pipeline import make_bundle, synthesize
from tests.envgen.mock_domain import DOC, mock_draft

CHECKLIST = "docker_simplechecklist_tools.json"


@cache
def checklist(folder: Path) -> Bundle:
    return synthesize(folder / CHECKLIST, tasks=60, heldout=20, seed=0)


def test_counts_add_up_and_every_task_is_certified(examples_dir: Path) -> None:
    made = checklist(examples_dir)
    report = made.report
    assert report.tools_total == 20 == report.tools_implemented + len(report.refused)
    assert report.tasks_certified == len(made.tasks) == len(made.certificates) == 60
    assert report.tasks_sampled == report.tasks_certified + sum(report.dropped.values())
    wanted = ["replay", "leak", "knowable", "binding", "noop", "write_dropped", "equivalents", "mutants"]
    wanted.append("duplicate")
    for task, certificate in zip(made.tasks, made.certificates, strict=True):
        assert certificate.task_id == task.id and certificate.certified
        assert [g.gate for g in certificate.gates] == wanted
        assert task.environment_id == made.environment_id


def test_splits_are_apart_in_tasks_and_words(examples_dir: Path) -> None:
    made = checklist(examples_dir)
    train, heldout = made.split("train"), made.split("heldout")
    assert (len(train), len(heldout)) == (40, 20)
    assert not {t.id for t in train} & {t.id for t in heldout}
    assert not {t.instruction.casefold() for t in train} & {t.instruction.casefold() for t in heldout}
    assert {t.difficulty for t in heldout} >= {1, 2, 3}


def test_walks_cover_all_write_tools_and_mix_the_patterns(examples_dir: Path) -> None:
    made = checklist(examples_dir)
    used = Counter(s.tool for t in made.tasks for s in t.reference if s.kind == "call")
    writers = {s.tool for s in made.semantics if s.writes_state}
    assert writers <= set(used)
    parts = Counter(p for t in made.tasks for d in t.pattern.split(" & ") for p in d.split("+"))
    assert {"lookup", "filter", "copy", "ask", "created"} <= set(parts)
    assert parts["latest"] + parts["earliest"] >= 3
    levels = Counter(t.difficulty for t in made.tasks)
    assert min(levels[1], levels[2], levels[3]) >= 7 and levels[4] >= 5 and levels[5] >= 3


def test_edges_of_the_graph_carry_the_references(examples_dir: Path) -> None:
    """Every look-up result that becomes an argument goes along an edge of the tool graph."""
    made = checklist(examples_dir)
    edges = {(e.source, e.target, e.param) for e in made.graph.edges}
    followed = 0
    for task in made.tasks:
        for step in task.reference:
            for source in step.sources:
                if source.kind == "output" and source.param.endswith("_id"):
                    earlier = task.reference[int(source.detail.split(":")[0])]
                    assert (earlier.tool, step.tool, source.param) in edges
                    followed += 1
    assert followed > 60


def test_the_same_seed_gives_the_same_bytes_also_under_another_hash_seed(
    examples_dir: Path, tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from envgen.interface import synthesize;"
        "b = synthesize(Path(sys.argv[1]), tasks=12, heldout=4, seed=7); print(b.content_hash)"
    )
    hashes: set[str] = set()
    for seed in ("3", "77"):
        run = subprocess.run(
            [sys.executable, "-c", script, str(examples_dir / CHECKLIST)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        hashes.add(run.stdout.strip())
    made = synthesize(examples_dir / CHECKLIST, tasks=12, heldout=4, seed=7)
    assert hashes == {made.content_hash}
    other = make_bundle(made.doc, draft_of(made), tasks=12, heldout=4, seed=8)
    assert other.content_hash != made.content_hash
    assert other.environment_id == made.environment_id


def test_a_written_bundle_validates_and_a_spoilt_task_does_not(examples_dir: Path, tmp_path: Path) -> None:
    made = make_bundle(DOC, mock_draft(), tasks=8, heldout=2, seed=1)
    write_bundle(made, tmp_path / "notes")
    again = load_bundle(tmp_path / "notes")
    assert again.tasks == made.tasks
    assert all(c.certified for c in validate(again))
    spoilt = made.tasks[0].model_copy(update={"instruction": "Do something."})
    from dataclasses import replace

    certificates = validate(replace(made, tasks=(spoilt, *made.tasks[1:])))
    assert [c.certified for c in certificates] == [False] + [True] * 7


def test_max_difficulty_bounds_every_task() -> None:
    made = make_bundle(DOC, mock_draft(), tasks=10, heldout=0, seed=4, max_difficulty=1)
    assert {t.difficulty for t in made.tasks} == {1}
    assert made.splits["heldout"] == ()


def test_max_demands_bounds_every_task(examples_dir: Path) -> None:
    def patterns(**wanted: Any) -> list[str]:
        made = synthesize(examples_dir / CHECKLIST, tasks=30, heldout=0, seed=0, max_difficulty=2, **wanted)
        assert made.manifest.get("max_demands") == wanted.get("max_demands")
        assert all(certificate.certified for certificate in made.certificates)
        return [task.pattern for task in made.tasks]

    assert not any("&" in pattern for pattern in patterns(max_demands=1))
    assert any("&" in pattern for pattern in patterns())
    with pytest.raises(ValueError, match="max_demands"):
        synthesize(examples_dir / CHECKLIST, tasks=5, heldout=1, seed=0, max_demands=-1)


def test_bad_numbers_are_refused(examples_dir: Path) -> None:
    for numbers in ({"tasks": 0, "heldout": 0}, {"tasks": 5, "heldout": 5}, {"tasks": 5, "heldout": -1}):
        with pytest.raises(ValueError, match="expected"):
            synthesize(examples_dir / CHECKLIST, seed=0, **numbers)
    with pytest.raises(ValueError, match="max_difficulty"):
        synthesize(examples_dir / CHECKLIST, tasks=5, heldout=1, seed=0, max_difficulty=9)


def test_an_environment_without_look_ups_is_refused_with_counts() -> None:
    draft = mock_draft()
    blind = draft.model_copy(
        update={"semantics": tuple(s for s in draft.semantics if not s.tool.startswith(("list_", "get_")))}
    )
    assert not build_catalog(blind).accesses
    with pytest.raises(RefusedDocument, match="got 0 of 5 certified tasks in 600 attempts"):
        make_bundle(DOC, blind, tasks=5, heldout=0, seed=0)


@pytest.mark.slow
def test_the_shared_documents_give_a_bundle_or_a_reason(shared_tooldocs: Path) -> None:
    accepted = 0
    files = sorted(p for p in shared_tooldocs.iterdir() if p.suffix in (".json", ".yml", ".yaml"))
    for document in files:
        try:
            made = synthesize(document, tasks=6, heldout=2, seed=0)
        except EnvgenError as error:
            assert len(str(error)) > 20
        else:
            accepted += 1
            assert len(made.tasks) == 6
    assert accepted >= 9
