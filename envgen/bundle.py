"""The bundle in memory: one environment with its tasks and proofs, its identity, and the bytes of its files.

``envgen.store`` writes and reads it; take everything from there (or from ``envgen.interface``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict

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

FORMAT = "envgen-bundle"
FORMAT_VERSION = 1
SPLITS = ("train", "heldout")
HASHED_FILES = (
    "docs.json",
    "tools.json",
    "state_schema.json",
    "semantics.json",
    "tools.py",
    "policy.md",
    "graph.json",
    "tasks.jsonl",
    "splits.json",
    "certificate.jsonl",
    "report.json",
)
USER_TOOLS = "user_tools.json"
"""The tools that only the user holds; a file of those bundles that have any."""
RULES = "rules.json"
"""The rules of the policy as data; likewise."""

PROVENANCE = "provenance.json"
"""Where every tool, parameter, rule and field comes from; bundles of older versions have none."""


class HasEnvironment(Protocol):
    """What an environment's identity is made of: a draft and a bundle both have it."""

    @property
    def name(self) -> str: ...
    @property
    def state_schema(self) -> StateSchema: ...
    @property
    def tools(self) -> tuple[AgentTool, ...]: ...
    @property
    def source(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def user_tools(self) -> tuple[AgentTool, ...]: ...


def environment_identity(environment: HasEnvironment) -> str:
    """``<name>-<8 hex>``: a hash over state schema, agent-visible tools, functions and policy.

    The same environment made twice has the same identity; any change of what the agent meets changes it.
    ERPO groups by it.
    """
    digest = hashlib.sha256()
    parts = (
        environment.state_schema.model_dump_json(),
        *(tool.model_dump_json() for tool in environment.tools),
        environment.source,
        environment.policy,
        *(f"user {tool.model_dump_json()}" for tool in environment.user_tools),
    )
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    slug = re.sub(r"[^a-z0-9]+", "-", environment.name.lower()).strip("-") or "environment"
    return f"{slug}-{digest.hexdigest()[:8]}"


@dataclass(frozen=True, eq=False)
class Bundle:
    """An environment (schema, functions, tools, policy) with its tasks, splits and certificates. Compared
    by identity; ``content_hash`` says whether two bundles hold the same.

    ``manifest`` is the provenance: document hash, proposer, seeds, versions. Plain JSON, no wall clock.
    """

    name: str
    environment_id: str
    manifest: dict[str, Any]
    doc: ToolDoc
    tools: tuple[AgentTool, ...]
    state_schema: StateSchema
    semantics: tuple[ToolSemantics, ...]
    source: str
    policy: str
    graph: ToolGraph
    tasks: tuple[Task, ...]
    splits: dict[str, tuple[str, ...]]
    certificates: tuple[Certificate, ...]
    decisions: tuple[ToolDecision, ...]
    report: SynthesisReport
    user_tools: tuple[AgentTool, ...] = ()
    """Tools that the user holds over the same state; the agent neither sees nor calls them."""
    provenance: Provenance | None = None
    """None in bundles made before it was kept."""
    rules: tuple[DomainRule, ...] = ()
    """The rules of ``policy`` as data."""
    _index: dict[str, Task] = field(init=False, repr=False, default_factory=dict[str, Task])

    def __post_init__(self) -> None:
        self._index.update((task.id, task) for task in self.tasks)

    def task(self, task_id: str) -> Task:
        """The task with this id; KeyError names the nearest there are."""
        try:
            return self._index[task_id]
        except KeyError:
            some = list(self._index)[:5]
            raise KeyError(
                f"no task {task_id!r} in bundle {self.name!r}; it has {len(self._index)}, e.g. {some}"
            ) from None

    def split(self, name: str) -> tuple[Task, ...]:
        """The tasks of one split in the order of the split; KeyError for an unknown split."""
        if name not in self.splits:
            raise KeyError(f"no split {name!r} in bundle {self.name!r}; splits: {sorted(self.splits)}")
        return tuple(self.task(task_id) for task_id in self.splits[name])

    @cached_property
    def content_hash(self) -> str:
        """sha256 (hex) over the hashes of all files: the identity of the whole bundle, for runs and
        checkpoints."""
        return content_hash_of(make_manifest(self, file_entries(bundle_files(self))))


# ---------------------------------------------------------------- files
def json_bytes(value: Any) -> bytes:
    """Indented JSON and a newline."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"


def _models(items: Sequence[BaseModel]) -> list[Any]:
    return [item.model_dump(mode="json") for item in items]


def _lines(items: Sequence[BaseModel]) -> bytes:
    return b"".join(item.model_dump_json().encode() + b"\n" for item in items)


def bundle_files(bundle: Bundle) -> dict[str, bytes]:
    """Content of every hashed file. The same bundle gives the same bytes."""
    report = {
        "decisions": _models(bundle.decisions),
        # Seconds are wall clock: they stand in timing.json, so that the hashed files are the same every time.
        "report": bundle.report.model_copy(update={"seconds": 0.0}).model_dump(mode="json"),
    }
    return {
        "docs.json": json_bytes(bundle.doc.model_dump(mode="json")),
        "tools.json": json_bytes(_models(bundle.tools)),
        "state_schema.json": json_bytes(bundle.state_schema.model_dump(mode="json")),
        "semantics.json": json_bytes(_models(bundle.semantics)),
        "tools.py": bundle.source.encode(),
        "policy.md": bundle.policy.encode(),
        "graph.json": json_bytes(bundle.graph.model_dump(mode="json")),
        "tasks.jsonl": _lines(bundle.tasks),
        "splits.json": json_bytes({name: list(ids) for name, ids in bundle.splits.items()}),
        "certificate.jsonl": _lines(bundle.certificates),
        "report.json": json_bytes(report),
        **({USER_TOOLS: json_bytes(_models(bundle.user_tools))} if bundle.user_tools else {}),
        **({PROVENANCE: json_bytes(bundle.provenance.model_dump(mode="json"))} if bundle.provenance else {}),
        **({RULES: json_bytes(_models(bundle.rules))} if bundle.rules else {}),
    }


class FileEntry(BaseModel):
    """Hash and size of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    sha256: str
    bytes: int


class Manifest(BaseModel):
    """``manifest.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str
    format_version: int
    name: str
    environment_id: str
    files: dict[str, FileEntry]
    provenance: dict[str, Any]


def file_entries(files: Mapping[str, bytes]) -> dict[str, FileEntry]:
    """The manifest's entries for these file contents."""
    return {n: FileEntry(sha256=hashlib.sha256(d).hexdigest(), bytes=len(d)) for n, d in files.items()}


def make_manifest(bundle: Bundle, files: Mapping[str, FileEntry]) -> Manifest:
    """The manifest of a bundle with these files."""
    return Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        name=bundle.name,
        environment_id=bundle.environment_id,
        files=dict(files),
        provenance=bundle.manifest,
    )


def content_hash_of(manifest: Manifest) -> str:
    """sha256 (hex) over name, identity and the hashes of all files."""
    lines = [f"{manifest.format} {manifest.format_version} {manifest.name} {manifest.environment_id}"]
    lines += [f"{manifest.files[name].sha256}  {name}" for name in sorted(manifest.files)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check_consistency(bundle: Bundle, where: str) -> None:
    """The parts must fit together: identity, unique task ids, splits and certificates that name tasks."""
    expected = environment_identity(bundle)
    if bundle.environment_id != expected:
        raise BundleError(
            f"{where}: environment_id is {bundle.environment_id!r} but its schema, tools, functions and "
            f"policy give {expected!r}; set it with environment_identity()"
        )
    ids = [task.id for task in bundle.tasks]
    known = set(ids)
    if len(known) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise BundleError(f"{where}: tasks.jsonl has the task id {twice!r} twice; give every task its own id")
    for task in bundle.tasks:
        if task.environment_id != bundle.environment_id:
            raise BundleError(
                f"{where}: task {task.id!r} is for {task.environment_id!r}, not {bundle.environment_id!r}"
            )
        if not task.accepted_states:
            raise BundleError(
                f"{where}: task {task.id!r} accepts no end state; empty criteria are never a pass"
            )
    shared = {tool.name for tool in bundle.tools} & {tool.name for tool in bundle.user_tools}
    if shared:
        raise BundleError(
            f"{where}: {', '.join(sorted(shared))} stand among the agent's tools and the user's; a tool has "
            "one holder"
        )
    known_rules = {rule.id for rule in bundle.rules}
    unsaid = [rule.id for rule in bundle.rules if rule.text not in bundle.policy]
    if unsaid or len(known_rules) < len(bundle.rules):
        raise BundleError(
            f"{where}: rules.json and policy.md differ in {', '.join(unsaid) or 'a rule given twice'}; every "
            "rule has an id of its own, and its sentence stands in the policy"
        )
    for task in bundle.tasks:
        if task.refused is not None and task.refused.rule not in known_rules:
            raise BundleError(
                f"{where}: task {task.id!r} is forbidden by {task.refused.rule!r}, which rules.json does not "
                "have"
            )
    for task in bundle.tasks:
        strange = {action.tool for action in task.user_actions} - {tool.name for tool in bundle.user_tools}
        if strange:
            raise BundleError(
                f"{where}: the user of task {task.id!r} acts with {', '.join(sorted(strange))}; expected "
                f"tools of {USER_TOOLS}"
            )
    owner: dict[str, str] = {}
    for split in SPLITS:
        if split not in bundle.splits:
            raise BundleError(f"{where}: splits.json has no split {split!r}; both of {SPLITS} must be there")
    for split, members in bundle.splits.items():
        for task_id in members:
            if task_id not in known:
                raise BundleError(f"{where}: splits.json puts unknown task {task_id!r} in {split!r}")
            if split in SPLITS and task_id in owner:
                raise BundleError(
                    f"{where}: splits.json has task {task_id!r} in {owner[task_id]!r} and in {split!r}"
                )
            if split in SPLITS:
                owner[task_id] = split
    for certificate in bundle.certificates:
        if certificate.task_id not in known:
            raise BundleError(f"{where}: certificate.jsonl names unknown task {certificate.task_id!r}")


def with_tasks(bundle: Bundle, tasks: Sequence[Task], splits: Mapping[str, Sequence[str]]) -> Bundle:
    """A copy of the bundle with other tasks and splits (and the certificates of those tasks)."""
    kept = {task.id for task in tasks}
    return replace(
        bundle,
        tasks=tuple(tasks),
        splits={name: tuple(ids) for name, ids in splits.items()},
        certificates=tuple(c for c in bundle.certificates if c.task_id in kept),
    )
