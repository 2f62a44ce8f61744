"""Bundles on disk: same bytes, checked on reading, atomic on writing."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from envgen.errors import BundleError
from envgen.store import (
    HASHED_FILES,
    Bundle,
    environment_identity,
    load_bundle,
    read_manifest,
    with_tasks,
    write_bundle,
)
from tests.envgen.mock_domain import mock_bundle, mock_draft


def tree(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bundle(mock_bundle(), tmp_path / "notes")
    return tmp_path / "notes"


def parts(bundle: Bundle) -> tuple[Any, ...]:
    fields = (f for f in bundle.__dataclass_fields__ if f != "_index")
    return tuple(getattr(bundle, name) for name in fields)


def test_what_is_written_is_read_back(folder: Path) -> None:
    loaded, bundle = load_bundle(folder), mock_bundle()
    assert parts(loaded) == parts(bundle)
    assert loaded.content_hash == bundle.content_hash
    assert loaded.task("notes-3").facts[0].value == "Bread"
    assert [t.id for t in loaded.split("train")] == ["notes-1", "notes-2"]
    with pytest.raises(KeyError, match="no split 'test'"):
        loaded.split("test")
    with pytest.raises(KeyError, match="no task 'notes-9'"):
        loaded.task("notes-9")


def test_the_folder_is_the_documented_one_and_every_hash_is_right(folder: Path) -> None:
    files = tree(folder)
    assert set(files) == {*HASHED_FILES, "manifest.json", "timing.json"}
    manifest = json.loads(files["manifest.json"])
    assert (manifest["format"], manifest["format_version"], manifest["name"]) == ("envgen-bundle", 1, "notes")
    for name, entry in manifest["files"].items():
        assert entry == {"sha256": hashlib.sha256(files[name]).hexdigest(), "bytes": len(files[name])}
    assert files["tools.py"].decode() == mock_bundle().source
    assert [json.loads(line)["id"] for line in files["tasks.jsonl"].splitlines()] == [
        "notes-1",
        "notes-2",
        "notes-3",
    ]


def test_the_same_bundle_gives_the_same_bytes_and_time_is_not_hashed(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_bundle(load_bundle(folder), again)
    assert tree(again) == tree(folder)
    slow = replace(mock_bundle(), report=mock_bundle().report.model_copy(update={"seconds": 12.5}))
    write_bundle(slow, again)
    changed = {n for n, data in tree(again).items() if data != (folder / n).read_bytes()}
    assert changed == {"timing.json"}
    assert load_bundle(again).report.seconds == 12.5
    assert slow.content_hash == mock_bundle().content_hash
    (again / "timing.json").unlink()
    assert load_bundle(again).report.seconds == 0.0


def test_identity_is_a_hash_of_what_the_agent_meets() -> None:
    draft = mock_draft()
    name, digest = environment_identity(draft).rsplit("-", 1)
    assert name == "notes" and len(digest) == 8 and int(digest, 16) >= 0
    assert environment_identity(mock_bundle()) == environment_identity(draft) == mock_bundle().environment_id
    for change in (
        {"source": draft.source + "\n"},
        {"policy": draft.policy + " "},
        {"tools": draft.tools[:-1]},
        {
            "state_schema": draft.state_schema.model_copy(
                update={"collections": draft.state_schema.collections[:1]}
            )
        },
    ):
        assert environment_identity(draft.model_copy(update=change)) != environment_identity(draft)
    assert environment_identity(draft.model_copy(update={"decisions": ()})) == environment_identity(draft)
    assert environment_identity(draft.model_copy(update={"name": "My  Notes!"})).startswith("my-notes-")


# ---------------------------------------------------------------- corruption
def rehash(folder: Path, name: str, data: bytes) -> None:
    """Write a file and make the manifest agree, so that only the content is wrong."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        value = json.loads((folder / name).read_bytes())
        change(value)
        rehash(folder, name, orjson.dumps(value))

    return run


def edit_manifest(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        value = json.loads((folder / "manifest.json").read_bytes())
        change(value)
        (folder / "manifest.json").write_bytes(orjson.dumps(value))

    return run


def edit_first_task(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        lines = (folder / "tasks.jsonl").read_bytes().splitlines(keepends=True)
        task = json.loads(lines[0])
        change(task)
        rehash(folder, "tasks.jsonl", b"".join([orjson.dumps(task) + b"\n", *lines[1:]]))

    return run


def flip(name: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(bytes(data))

    return run


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), r"manifest\.json: missing; restore"),
    "manifest not JSON": (lambda f: (f / "manifest.json").write_text("{"), r"manifest\.json: not valid JSON"),
    "manifest a list": (lambda f: (f / "manifest.json").write_text("[]"), "no bundle of envgen"),
    "other format": (edit_manifest(lambda m: m.update(format="x")), "format is 'x'"),
    "other version": (
        edit_manifest(lambda m: m.update(format_version=2)),
        "format version 2, this envgen reads 1",
    ),
    "manifest extra field": (edit_manifest(lambda m: m.update(surprise=1)), r"manifest\.json: surprise"),
    "manifest lacks a file": (edit_manifest(lambda m: m["files"].pop("policy.md")), r"policy\.md"),
    "manifest unknown file": (
        edit_manifest(lambda m: m["files"].update({"../../x": m["files"]["policy.md"]})),
        r"unknown: \.\./\.\./x",
    ),
    "truncated tasks": (lambda f: os.truncate(f / "tasks.jsonl", 100), r"tasks\.jsonl: has 100 bytes"),
    "flipped code": (flip("tools.py"), r"tools\.py: its content does not match"),
    "flipped tasks": (flip("tasks.jsonl"), r"tasks\.jsonl: its content does not match"),
    "bad timing": (lambda f: (f / "timing.json").write_text("{}"), r"timing\.json: seconds: Field required"),
    "task extra field": (
        edit_first_task(lambda t: t.update(hint="x")),
        r"tasks\.jsonl line 1: hint: Extra inputs",
    ),
    "task lacks a field": (
        edit_first_task(lambda t: t.pop("seed")),
        r"tasks\.jsonl line 1: seed: Field required",
    ),
    "task wrong type": (edit_first_task(lambda t: t.update(seed="one")), r"tasks\.jsonl line 1: seed: "),
    "task cut line": (lambda f: rehash(f, "tasks.jsonl", b"{}"), r"tasks\.jsonl: the last line is cut off"),
    "task not JSON": (
        lambda f: rehash(f, "tasks.jsonl", b"nope\n"),
        r"tasks\.jsonl line 1: top level: Invalid JSON",
    ),
    "task without end state": (
        edit_first_task(lambda t: t.update(accepted_states=[])),
        "'notes-1' accepts no end state",
    ),
    "task of another environment": (
        edit_first_task(lambda t: t.update(environment_id="x-1")),
        "is for 'x-1'",
    ),
    "task id twice": (edit_first_task(lambda t: t.update(id="notes-2")), "task id 'notes-2' twice"),
    "schema extra field": (
        edit("state_schema.json", lambda s: s.update(x=1)),
        r"state_schema\.json: x: Extra",
    ),
    "tools wrong shape": (
        lambda f: rehash(f, "tools.json", b"{}"),
        r"tools\.json: top level: Input should be",
    ),
    "other code": (lambda f: rehash(f, "tools.py", b"TOOLS = {}\n"), "environment_id is 'notes-"),
    "code not text": (lambda f: rehash(f, "tools.py", b"\xff"), r"tools\.py: not UTF-8"),
    "split of nothing": (
        edit("splits.json", lambda s: s["train"].append("notes-9")),
        "unknown task 'notes-9'",
    ),
    "split twice": (
        edit("splits.json", lambda s: s["train"].append("notes-3")),
        "'notes-3' in 'train' and in 'heldout'",
    ),
    "split missing": (edit("splits.json", lambda s: s.pop("heldout")), "no split 'heldout'"),
    "certificate of nothing": (
        lambda f: rehash(f, "certificate.jsonl", b'{"task_id":"notes-9","gates":[]}\n'),
        "unknown task 'notes-9'",
    ),
    **{
        f"no {name}": ((lambda f, n=name: (f / n).unlink()), rf"{name}: missing; restore it from a copy")
        for name in HASHED_FILES
    },
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bundle_is_an_error_that_names_the_file(folder: Path, damage: str) -> None:
    act, words = DAMAGE[damage]
    act(folder)
    with pytest.raises(BundleError, match=words):
        load_bundle(folder)


def test_a_path_without_a_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such folder"):
        load_bundle(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"manifest\.json: missing"):
        read_manifest(tmp_path)


# ---------------------------------------------------------------- writing
def test_writing_replaces_a_bundle_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    smaller = with_tasks(mock_bundle(), mock_bundle().tasks[:1], {"train": ("notes-1",), "heldout": ()})
    write_bundle(smaller, folder)
    assert [t.id for t in load_bundle(folder).tasks] == ["notes-1"]
    assert [c.task_id for c in load_bundle(folder).certificates] == ["notes-1"]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    with pytest.raises(BundleError, match="is no bundle"):
        write_bundle(smaller, precious)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="is no bundle"):
        write_bundle(smaller, tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "notes", "precious"]
    write_bundle(smaller, tmp_path / "new" / "deep")
    assert load_bundle(tmp_path / "new" / "deep").name == "notes"


def test_a_write_that_fails_leaves_the_old_bundle(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(folder)
    real = os.fsync
    count = 0

    def full(fd: int) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bundle(mock_bundle(), folder)
    assert tree(folder) == before
    assert [p.name for p in tmp_path.iterdir()] == ["notes"]


def test_an_inconsistent_bundle_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"set it with environment_identity"):
        write_bundle(replace(mock_bundle(), environment_id="notes-00000000"), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_thousand_tasks_load_quickly(tmp_path: Path) -> None:
    bundle = mock_bundle()
    tasks = tuple(t.model_copy(update={"id": f"{t.id}-{i}"}) for i in range(334) for t in bundle.tasks)
    ids = [t.id for t in tasks]
    write_bundle(with_tasks(bundle, tasks, {"train": ids[:800], "heldout": ids[800:]}), tmp_path / "big")
    start = time.process_time()
    assert len(load_bundle(tmp_path / "big").tasks) == 1002
    assert time.process_time() - start < 2.0
