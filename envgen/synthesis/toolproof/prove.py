"""`prove_tools`: each tool of a draft tried on its cases, and dropped with what depends on it when it fails.

A tool must, over all cases of `envgen.synthesis.toolproof.cases`:

- answer what its semantics promise (`envgen.synthesis.toolproof.meaning`): the same refusals, the same
  records changed, the same result; at least 3 calls succeed, at least 2 are refused where it can refuse;
- refuse an argument of another type, an unknown one, and a missing one (schema of inputs);
- answer in the form that the document declares (schema of outputs), with every stated output in its place;
- change nothing when it refuses, and nothing at all when it only reads;
- answer the same again on the same state, and leave the same state when called twice where it is declared
  idempotent;
- leave no reference to a record that is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from envgen.errors import ToolDefect
from envgen.runtime.context import ToolContext, key_styles
from envgen.runtime.isolation.pool import WorkerPool
from envgen.runtime.isolation.remote_tools import remote_tools
from envgen.runtime.isolation.vetting import is_vetted
from envgen.runtime.sandbox import Tool, load_tools
from envgen.runtime.state import State, same_json
from envgen.runtime.tools import ToolOutcome, ToolTable, call_tool, checked_call, compile_tools
from envgen.synthesis.blueprint import fetch, resolve
from envgen.synthesis.catalog import Catalog, container
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.toolproof.cases import Case, CaseMaker, worlds
from envgen.synthesis.toolproof.forms import misfit
from envgen.synthesis.toolproof.meaning import Expected, Meaning
from envgen.types import EnvironmentDraft, Record, StateData, ToolDoc, ToolSemantics, ToolSpec

CLOCK = "2026-03-02T09:00:00"
LEAST_SUCCESSES = 3
LEAST_REFUSALS = 2
REPEAT_EVERY = 4
"""Every so many cases are run again, and twice in a row: determinism and idempotence."""


@dataclass(frozen=True)
class ToolProof:
    """What was tried on one tool, and what came out."""

    tool: str
    successes: int
    refusals: int
    """Calls that the function refused as it must."""
    misfits: int
    """Calls that the schema of its arguments refused."""
    kind: str = ""
    """Empty when the tool passed, else the check it failed: ``result``, ``state``, ``purity`` …"""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """True when no check failed."""
        return not self.kind


class _Failed(Exception):
    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class TriedCase:
    """A case that reaches the function, with the outcome that the semantics promise."""

    case: Case
    seed: int
    expected: Expected


class ToolBench:
    """The tools of one draft with their cases; made once for a draft."""

    def __init__(self, draft: EnvironmentDraft, doc: ToolDoc | None = None, seed: int = 0) -> None:
        self.draft = draft
        self.schema = draft.state_schema
        self.catalog: Catalog = build_catalog(draft)
        self.table: ToolTable = compile_tools((*draft.tools, *draft.user_tools))
        self.styles = key_styles(draft.state_schema)
        self.specs: dict[str, ToolSpec] = {t.name: t for t in doc.tools} if doc is not None else {}
        self.vetted = is_vetted(draft)
        self.seed = seed
        self.states = worlds(self.catalog, seed)
        self.names = [c.name for c in self.schema.collections]
        self.exempt = {
            (c.name, f.name) for c in self.schema.collections for f in c.fields if f.policy == "exempt"
        }

    def cases(self, sem: ToolSemantics) -> tuple[list[TriedCase], int]:
        """The cases of one tool that reach its function, and how many its argument schema refuses."""
        meaning = Meaning(self.schema, sem)
        tried: list[TriedCase] = []
        misfits = 0
        for number, case in enumerate(CaseMaker(self.catalog, sem, self.states, self.seed).cases()):
            checked = checked_call({sem.tool}, self.table, sem.tool, case.arguments)
            if isinstance(checked, ToolOutcome):
                misfits += 1
                continue
            expected = meaning.run(case.state, checked, self.context(number))
            tried.append(TriedCase(case, number, expected))
        return tried, misfits

    def context(self, seed: int) -> ToolContext:
        """A fresh context; the same seed gives the same ids."""
        return ToolContext(CLOCK, seed, self.styles)

    def call(
        self, tools: Mapping[str, Tool], tool: str, case: Case, seed: int
    ) -> tuple[ToolOutcome, dict[tuple[str, str], Record | None], State]:
        """One call on a fresh state: the outcome and the records that changed. Raises ToolDefect."""
        state = State(case.state, self.names)
        outcome = call_tool(tools, self.table, state, self.context(seed), tool, case.arguments)
        return outcome, changed(state), state

    def difference(self, sem: ToolSemantics, tried: TriedCase, tools: Mapping[str, Tool]) -> tuple[str, str]:
        """``(kind, detail)`` of the first contradiction between a function and its semantics; empty kind
        for none."""
        try:
            outcome, changes, _ = self.call(tools, sem.tool, tried.case, tried.seed)
        except ToolDefect as error:
            return "defect", str(error)
        expected = tried.expected
        said = f"{tried.case.about}, {orjson.dumps(tried.case.arguments).decode()[:240]}"
        idle = sem.writes_state and not expected.refused and not expected.changes and not changes
        if outcome.is_error and idle and not self.vetted:
            return "", ""  # a model's function may refuse to change nothing: no promise is broken
        if outcome.is_error != expected.refused:
            wanted = f"a refusal ({expected.why})" if expected.refused else "success"
            got = f"refuses: {outcome.value}" if outcome.is_error else "succeeds"
            return "refusal", f"{said}: expected {wanted}, the function {got}"
        if outcome.is_error:
            if changes:
                return "state", f"{said}: it refuses and changes {list(changes)[:3]}"
            return (
                ("", "")
                if str(outcome.value).strip()
                else ("refusal", f"{said}: it refuses without a reason")
            )
        wanted = dict(expected.changes)
        for place in {**wanted, **changes}:
            if not self._same(place, wanted.get(place, _Absent), changes.get(place, _Absent)):
                return "state", (
                    f"{said}: expected {place} to become {wanted.get(place, 'as before')!r:.200}, got "
                    f"{changes.get(place, 'as before')!r:.200}"
                )
        return self._results(sem, tried, outcome, said)

    def _same(self, place: tuple[str, str], a: Any, b: Any) -> bool:
        if isinstance(a, dict) and isinstance(b, dict) and not self.vetted:
            hidden = {name for collection, name in self.exempt if collection == place[0]}
            a = {k: v for k, v in a.items() if k not in hidden}  # pyright: ignore[reportUnknownVariableType]
            b = {k: v for k, v in b.items() if k not in hidden}  # pyright: ignore[reportUnknownVariableType]
        return a is b or (a is not _Absent and b is not _Absent and same_json(a, b))

    def _results(
        self, sem: ToolSemantics, tried: TriedCase, outcome: ToolOutcome, said: str
    ) -> tuple[str, str]:
        wanted, got = tried.expected.result, orjson.loads(outcome.text)
        if self.vetted:
            same = same_json(orjson.loads(orjson.dumps(wanted)), got)
            return ("", "") if same else ("result", f"{said}: expected {wanted!r:.200}, got {got!r:.200}")
        if not sem.outputs:
            return "", ""
        # A model chooses the form of a result; at the stated paths it must show what the records hold.
        records: list[Any] = list(wanted) if sem.many else [wanted]
        if sem.verb == "delete":
            key = self.schema.collection(sem.collection).key
            table = tried.case.state[sem.collection].values()
            records = [r for r in table if r.get(key) == wanted["deleted"]]
        pattern = container(sem.outputs[0].path)[0]
        elements = [value for _, value in resolve(pattern, got)] if pattern else [got]
        paths = [
            (container(o.path)[1], o.field)
            for o in sem.outputs
            if (sem.collection, o.field) not in self.exempt
        ]
        shown = [[fetch(path, element) if path else element for path, _ in paths] for element in elements]
        stored = [[record.get(name) for _, name in paths] for record in records]
        if not sem.paging:
            shown, stored = sorted(shown, key=repr), sorted(stored, key=repr)
        same = same_json(shown, stored)
        return (
            ("", "") if same else ("result", f"{said}: it shows {shown!r:.200}, records hold {stored!r:.200}")
        )

    # ------------------------------------------------------------------------------------------- one tool
    def prove(self, sem: ToolSemantics, tools: Mapping[str, Tool]) -> ToolProof:
        """All checks of one tool; the first that fails is named."""
        cases, misfits = self.cases(sem)
        successes = sum(not tried.expected.refused for tried in cases)
        refusals = len(cases) - successes
        misfits += self._bad_inputs(sem, cases)
        kind = detail = ""
        try:
            self._enough(sem, successes, refusals, misfits)
            seen: set[str] = set()
            for number, tried in enumerate(cases):
                kind, detail = self.difference(sem, tried, tools)
                if kind:
                    raise _Failed(kind, detail)
                self._properties(sem, tried, tools, repeat=number % REPEAT_EVERY == 0, seen=seen)
            self._outputs_seen(sem, seen)
        except _Failed as failure:
            kind, detail = failure.kind, str(failure)
        except ToolDefect as error:
            kind, detail = "defect", str(error)
        return ToolProof(sem.tool, successes, refusals, misfits, kind, detail)

    def _bad_inputs(self, sem: ToolSemantics, cases: Sequence[TriedCase]) -> int:
        """Calls that the argument schema must refuse; raises nothing: a schema that lets them pass shows in
        the count."""
        fits = [t.case.arguments for t in cases if not t.expected.refused]
        good: dict[str, Any] = fits[0] if fits else {}
        properties: dict[str, Any] = self.catalog.tools[sem.tool].parameters.get("properties") or {}
        wrong: list[dict[str, Any]] = [{**good, "no_such_argument": 1}] if properties else []
        wrong += [{**good, name: [[{}]]} for name in properties]
        wrong += [{k: v for k, v in good.items() if k != name} for name in self.table[sem.tool].required]
        refused = [checked_call({sem.tool}, self.table, sem.tool, arguments) for arguments in wrong]
        return sum(isinstance(outcome, ToolOutcome) for outcome in refused)

    def _enough(self, sem: ToolSemantics, successes: int, refusals: int, misfits: int) -> None:
        if successes < LEAST_SUCCESSES and not (self._lone(sem) and successes):
            raise _Failed(
                "successes", f"only {successes} calls that fit the state succeed, expected {LEAST_SUCCESSES}"
            )
        if refusals < LEAST_REFUSALS and can_refuse(self.draft, sem):
            raise _Failed("refusals", f"only {refusals} calls are refused, expected {LEAST_REFUSALS}")
        has_arguments = bool(self.catalog.tools[sem.tool].parameters.get("properties"))
        if has_arguments and refusals + misfits < LEAST_REFUSALS:
            raise _Failed("refusals", f"only {refusals + misfits} wrong calls are refused")

    def _lone(self, sem: ToolSemantics) -> bool:
        """A tool without arguments is called once per state at most."""
        return not self.catalog.tools[sem.tool].parameters.get("properties")

    def _properties(
        self, sem: ToolSemantics, tried: TriedCase, tools: Mapping[str, Tool], *, repeat: bool, seen: set[str]
    ) -> None:
        outcome, changes, state = self.call(tools, sem.tool, tried.case, tried.seed)
        said = f"{tried.case.about}, {orjson.dumps(tried.case.arguments).decode()[:240]}"
        if changes and not sem.writes_state:
            raise _Failed("purity", f"{said}: it is a read and changes {list(changes)[:3]}")
        if outcome.is_error:
            return
        value = orjson.loads(outcome.text)
        for binding in sem.outputs:
            if binding.path not in seen and any(v is not None for _, v in _resolved(binding.path, value)):
                seen.add(binding.path)
        spec = self.specs.get(sem.tool)
        if spec is not None and spec.output is not None and self.vetted:
            problem = misfit(value, spec.output, sem)
            if problem:
                raise _Failed("output schema", f"{said}: {problem}")
        dangling = self._dangling(state, changes, tried.case.state)
        if dangling:
            raise _Failed("integrity", f"{said}: {dangling}")
        if not repeat:
            return
        again, again_changes, _ = self.call(tools, sem.tool, tried.case, tried.seed)
        if again.text != outcome.text or not same_json(_listed(again_changes), _listed(changes)):
            raise _Failed("determinism", f"{said}: called again on the same state it answers otherwise")
        if idempotent(sem, spec):
            context = self.context(tried.seed)
            call_tool(tools, self.table, state, context, sem.tool, tried.case.arguments)
            twice = {p: self._plain(p, r) for p, r in changed(state).items()}
            if not same_json(_listed(twice), _listed({p: self._plain(p, r) for p, r in changes.items()})):
                raise _Failed(
                    "idempotence", f"{said}: it is declared idempotent, and a second call changes more"
                )

    def _plain(self, place: tuple[str, str], record: Record | None) -> Record | None:
        if record is None:
            return None
        return {k: v for k, v in record.items() if (place[0], k) not in self.exempt}

    def _dangling(self, state: State, changes: Mapping[tuple[str, str], Any], before: StateData) -> str:
        """A reference to nothing that the call left behind: in what it wrote, or to what it deleted."""
        gone = {place for place, record in changes.items() if record is None}
        for collection in self.schema.collections:
            fields = [f for f in collection.fields if f.references and f.type != "array"]
            written = [k for (name, k), r in changes.items() if name == collection.name and r is not None]
            for field in fields:
                near = state.keys(collection.name) if any(n == field.references for n, _ in gone) else written
                for key in near:
                    value = (state.get(collection.name, key) or {}).get(field.name)
                    old = before.get(collection.name, {}).get(key, {}).get(field.name)
                    there = value is None or state.exists(field.references, str(value))
                    if not there and (old != value or (field.references, str(value)) in gone):
                        return f"{collection.name}[{key}].{field.name} names {value!r}, which is not there"
        return ""

    def _outputs_seen(self, sem: ToolSemantics, seen: set[str]) -> None:
        held = {(c, n) for state in self.states for c, t in state.items() for r in t.values() for n in r}
        for binding in sem.outputs:
            looks = not sem.writes_state and (binding.collection, binding.field) in held
            if binding.path not in seen and (looks or sem.verb == "create") and self.vetted:
                raise _Failed("output path", f"no call shows {binding.field} at {binding.path}")


class _Missing:
    def __repr__(self) -> str:
        return "as before"


_Absent = _Missing()


def changed(state: State) -> dict[tuple[str, str], Record | None]:
    """(collection, key) -> the record now, None when it is gone, for all that differs from the start."""
    delta = state.delta()
    out: dict[tuple[str, str], Record | None] = {}
    for tables in (delta.inserted, delta.updated):
        out |= {(name, key): record for name, table in tables.items() for key, record in table.items()}
    out |= {(name, key): None for name, keys in delta.deleted.items() for key in keys}
    return out


def _listed(changes: Mapping[tuple[str, str], Record | None]) -> list[Any]:
    return [[*place, record] for place, record in sorted(changes.items(), key=lambda item: item[0])]


def _resolved(path: str, value: Any) -> list[tuple[str, Any]]:
    element, inner = container(path)
    elements = resolve(element, value) if element else [("", value)]
    return [(at, fetch(inner, v) if inner else v) for at, v in elements]


def can_refuse(draft: EnvironmentDraft, sem: ToolSemantics) -> bool:
    """True when the semantics promise a refusal that some arguments can bring about."""
    collection = draft.state_schema.collection(sem.collection)
    fields = {f.name: f for f in collection.fields}
    parents = any(b.field in fields and fields[b.field].references for b in (*sem.scope, *sem.writes))
    keyed = sem.key is not None and not collection.singleton and sem.verb != "create"
    named = sem.verb == "create" and not collection.key_generated
    return bool(keyed or parents or sem.paging or named)


def idempotent(sem: ToolSemantics, spec: ToolSpec | None) -> bool:
    """Declared so: a read, or a tool that its document marks, or a PUT that changes fields."""
    if not sem.writes_state or (spec is not None and spec.idempotent is True):
        return True
    return spec is not None and spec.method == "put" and sem.verb == "update"


def tools_of(draft: EnvironmentDraft) -> tuple[Mapping[str, Tool], WorkerPool | None]:
    """The functions of a draft, and the worker pool to close when our templates did not write them."""
    if is_vetted(draft):
        return load_tools(draft.source), None
    pool = WorkerPool(draft.source, key_styles(draft.state_schema))
    return remote_tools(pool), pool


def proofs_of(draft: EnvironmentDraft, doc: ToolDoc | None = None, seed: int = 0) -> tuple[ToolProof, ...]:
    """Every tool of a draft on its cases. Raises UnsafeCodeError for code outside the allow-list,
    IsolationError when this machine cannot give a worker for code that is not vetted."""
    bench = ToolBench(draft, doc, seed)
    tools, pool = tools_of(draft)
    try:
        return tuple(bench.prove(sem, tools) for sem in draft.semantics)
    finally:
        if pool is not None:
            pool.close()


def counts(proofs: Sequence[ToolProof]) -> dict[str, int]:
    """Failed tools by the check they failed."""
    return dict(sorted(Counter(p.kind for p in proofs if not p.passed).items()))
