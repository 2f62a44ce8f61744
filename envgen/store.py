"""Bundles: one environment with its tasks and proofs, in memory and on disk.

On disk (DESIGN.md §4) a bundle is a folder:

    manifest.json      format, version, name, environment id, sha256 and size of every file, provenance
    docs.json          the tool document as read
    tools.json         what the agent sees of the tools
    state_schema.json  collections, keys, field policies
    semantics.json     what each tool does, as data
    tools.py           the generated functions
    policy.md          the rules of the domain
    graph.json         which output feeds which input
    splits.json        split name -> task ids
    tasks.jsonl        one task a line
    certificate.jsonl  one certificate a line
    provenance.json    where every tool, parameter, rule and field comes from (not in older bundles)
    user_tools.json    tools that only the user holds (only where there are any)
    rules.json         the rules of the policy as data (only where there are any)
    report.json        what became of every tool and of every sampled task
    timing.json        seconds the synthesis took: the only file that is not hashed, and may be absent

Writing is atomic (a temporary folder beside the target, then a rename) and the same bundle gives the same
bytes. Reading checks every hash and rejects unknown fields, unknown files in the manifest and other
versions: a BundleError names the file and says what to do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from envgen.bundle import (
    FORMAT,
    FORMAT_VERSION,
    HASHED_FILES,
    PROVENANCE,
    RULES,
    SPLITS,
    USER_TOOLS,
    Bundle,
    HasEnvironment,
    Manifest,
    bundle_files,
    check_consistency,
    content_hash_of,
    environment_identity,
    file_entries,
    json_bytes,
    make_manifest,
    with_tasks,
)
from envgen.errors import BundleError
from envgen.provenance import Provenance
from envgen.types import (
    AgentTool,
    Certificate,
    DomainRule,
    StateSchema,
    SynthesisReport,
    Task,
    ToolDecision,
    ToolDoc,
    ToolGraph,
    ToolSemantics,
)

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "HASHED_FILES",
    "SPLITS",
    "Bundle",
    "HasEnvironment",
    "Manifest",
    "check_target",
    "environment_identity",
    "load_bundle",
    "read_manifest",
    "with_tasks",
    "write_bundle",
    "write_synced",
]


def write_bundle(bundle: Bundle, path: Path | str) -> None:
    """Write a bundle to the folder ``path``, atomically: readers see the old folder or the new one, never a
    half of one.

    An existing bundle there is replaced. Raises BundleError when the bundle is inconsistent or when
    something that is no bundle stands at ``path``.
    """
    target = Path(path)
    check_consistency(bundle, f"bundle {bundle.name!r}")
    check_target(target)
    files = bundle_files(bundle)
    manifest = make_manifest(bundle, file_entries(files))
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        staging.chmod(0o755)  # mkdtemp makes it private; a bundle is an ordinary folder
        for name, data in files.items():
            write_synced(staging / name, data)
        write_synced(staging / "timing.json", json_bytes({"seconds": bundle.report.seconds}))
        write_synced(staging / "manifest.json", json_bytes(manifest.model_dump(mode="json")))
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
            os.rename(target, old / "bundle")
            os.rename(staging, target)
            shutil.rmtree(old)
        else:
            os.rename(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def check_target(target: Path) -> None:
    """Raises BundleError when what stands at ``target`` is neither a bundle nor an empty folder."""
    if target.exists() and not (
        target.is_dir() and ((target / "manifest.json").is_file() or not any(target.iterdir()))
    ):
        raise BundleError(
            f"{target}: exists and is no bundle (no manifest.json); choose another path or remove it"
        )


def write_synced(path: Path, data: bytes) -> None:
    """Write a file that is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# ---------------------------------------------------------------- reading
_REMAKE = "restore it from a copy, or make the bundle again with `envgen synth`"
ModelT = TypeVar("ModelT", bound=BaseModel)


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise BundleError(f"{path}: missing; {_REMAKE}") from error
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
        ) from error


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "top level"
    return f"{where}: {first['msg']}"


def _model(model: type[ModelT], data: bytes, where: str) -> ModelT:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise BundleError(f"{where}: {_reason(error)}; {_REMAKE}") from error


def _list(adapter: TypeAdapter[Any], data: bytes, where: str) -> Any:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        raise BundleError(f"{where}: {_reason(error)}; {_REMAKE}") from error


def _line_models(model: type[ModelT], data: bytes, where: str) -> tuple[ModelT, ...]:
    lines = data.split(b"\n")
    if lines[-1]:
        raise BundleError(f"{where}: the last line is cut off; {_REMAKE}")
    return tuple(_model(model, line, f"{where} line {number}") for number, line in enumerate(lines[:-1], 1))


class _ReportFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    decisions: tuple[ToolDecision, ...]
    report: SynthesisReport


class _TimingFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    seconds: float


_TOOLS = TypeAdapter(tuple[AgentTool, ...])
_RULES = TypeAdapter(tuple[DomainRule, ...])
_SEMANTICS = TypeAdapter(tuple[ToolSemantics, ...])
_SPLITS = TypeAdapter(dict[str, tuple[str, ...]])


def read_manifest(path: Path | str) -> Manifest:
    """The manifest of the bundle at ``path``, checked for format and version. Raises BundleError."""
    folder = Path(path)
    where = folder / "manifest.json"
    if not folder.is_dir():
        raise BundleError(
            f"{folder}: no such folder; give the folder that `envgen synth DOC -o FOLDER` wrote"
        )
    data = _read(folder, "manifest.json")
    try:
        head = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BundleError(f"{where}: not valid JSON ({error}); {_REMAKE}") from error
    head = cast("dict[str, Any]", head) if isinstance(head, dict) else {}
    if head.get("format") != FORMAT:
        raise BundleError(
            f"{where}: format is {head.get('format')!r}, expected {FORMAT!r}; this is no bundle of envgen"
        )
    if head.get("format_version") != FORMAT_VERSION:
        raise BundleError(
            f"{where}: format version {head.get('format_version')!r}, this envgen reads {FORMAT_VERSION}; "
            "use the envgen that wrote it, or make the bundle again with `envgen synth`"
        )
    manifest = _model(Manifest, data, str(where))
    odd = sorted((set(manifest.files) - {USER_TOOLS, PROVENANCE, RULES}) ^ set(HASHED_FILES))
    if odd:
        raise BundleError(
            f"{where}: its list of files is wrong (missing or unknown: {', '.join(odd)}); {_REMAKE}"
        )
    return manifest


def load_bundle(path: Path | str) -> Bundle:
    """Read and check a bundle folder. Raises BundleError naming the file and what to do."""
    folder = Path(path)
    manifest = read_manifest(folder)
    files: dict[str, bytes] = {}
    for name, entry in manifest.files.items():
        data = _read(folder, name)
        if len(data) != entry.bytes:
            raise BundleError(
                f"{folder / name}: has {len(data)} bytes, manifest.json says {entry.bytes}; {_REMAKE}"
            )
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise BundleError(
                f"{folder / name}: its content does not match the hash in manifest.json; {_REMAKE}"
            )
        files[name] = data

    def at(name: str) -> str:
        return str(folder / name)

    report = _model(_ReportFile, files["report.json"], at("report.json"))
    seconds = 0.0
    if (folder / "timing.json").exists():
        seconds = _model(_TimingFile, _read(folder, "timing.json"), at("timing.json")).seconds
    bundle = Bundle(
        name=manifest.name,
        environment_id=manifest.environment_id,
        manifest=manifest.provenance,
        doc=_model(ToolDoc, files["docs.json"], at("docs.json")),
        tools=_list(_TOOLS, files["tools.json"], at("tools.json")),
        state_schema=_model(StateSchema, files["state_schema.json"], at("state_schema.json")),
        semantics=_list(_SEMANTICS, files["semantics.json"], at("semantics.json")),
        source=_text(files["tools.py"], at("tools.py")),
        policy=_text(files["policy.md"], at("policy.md")),
        graph=_model(ToolGraph, files["graph.json"], at("graph.json")),
        tasks=_line_models(Task, files["tasks.jsonl"], at("tasks.jsonl")),
        splits=_list(_SPLITS, files["splits.json"], at("splits.json")),
        certificates=_line_models(Certificate, files["certificate.jsonl"], at("certificate.jsonl")),
        decisions=report.decisions,
        report=report.report.model_copy(update={"seconds": seconds}),
        user_tools=_list(_TOOLS, files[USER_TOOLS], at(USER_TOOLS)) if USER_TOOLS in files else (),
        provenance=_model(Provenance, files[PROVENANCE], at(PROVENANCE)) if PROVENANCE in files else None,
        rules=_list(_RULES, files[RULES], at(RULES)) if RULES in files else (),
    )
    check_consistency(bundle, str(folder))
    bundle.__dict__["content_hash"] = content_hash_of(manifest)
    return bundle


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{where}: not UTF-8 text; {_REMAKE}") from error
