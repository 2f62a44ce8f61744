"""A tiny hand-written environment that every test may use: notebooks with notes, six tools, three tasks.

``mock_bundle()`` gives the Bundle. Its tasks:

- ``notes-1`` (update, 3 calls): change the priority of the note "Milk";
- ``notes-2`` (create, 2 calls): a new note in the notebook "Work", so a minted id;
- ``notes-3`` (ask, then 3 calls): delete a note whose title the user tells only when asked.

Ids are never in an instruction. Expected states are written by hand, not computed.
"""

from __future__ import annotations

from itertools import pairwise

from envgen.store import Bundle, environment_identity
from envgen.types import (
    AgentTool,
    ArgumentSource,
    Blueprint,
    BlueprintEdge,
    BlueprintNode,
    Certificate,
    Collection,
    EnvironmentDraft,
    FieldSpec,
    GateResult,
    OutputBinding,
    ParamBinding,
    Precondition,
    ReferenceStep,
    StateData,
    StateField,
    StateSchema,
    SynthesisReport,
    Task,
    ToolDecision,
    ToolDoc,
    ToolEdge,
    ToolGraph,
    ToolSemantics,
    ToolSpec,
    UserFact,
)

SOURCE = '''"""Tools of the notes environment."""


def list_notebooks(state, ctx):
    return state.records("notebooks")


def list_notes(state, ctx, notebook_id, max_priority=None):
    if not state.exists("notebooks", notebook_id):
        raise ToolError(f"no notebook {notebook_id}")
    rows = [r for r in state.records("notes") if r["notebook_id"] == notebook_id]
    if max_priority is not None:
        rows = [r for r in rows if r["priority"] <= max_priority]
    return [{"id": r["id"], "title": r["title"], "priority": r["priority"]} for r in rows]


def get_note(state, ctx, note_id):
    note = state.get("notes", note_id)
    if note is None:
        raise ToolError(f"no note {note_id}")
    return note


def create_note(state, ctx, notebook_id, title, priority=None):
    if not state.exists("notebooks", notebook_id):
        raise ToolError(f"no notebook {notebook_id}")
    note = {"id": ctx.new_id("notes"), "notebook_id": notebook_id, "title": title, "created_at": ctx.now()}
    note["priority"] = 1 if priority is None else priority
    state.insert("notes", note["id"], note)
    return note


def update_note(state, ctx, note_id, title=None, priority=None):
    if not state.exists("notes", note_id):
        raise ToolError(f"no note {note_id}")
    changes = {}
    if title is not None:
        changes["title"] = title
    if priority is not None:
        changes["priority"] = priority
    if not changes:
        raise ToolError("nothing to change")
    state.update("notes", note_id, changes)
    return state.get("notes", note_id)


def delete_note(state, ctx, note_id):
    if not state.exists("notes", note_id):
        raise ToolError(f"no note {note_id}")
    state.delete("notes", note_id)
    return {"deleted": note_id}


TOOLS = {
    "list_notebooks": list_notebooks,
    "list_notes": list_notes,
    "get_note": get_note,
    "create_note": create_note,
    "update_note": update_note,
    "delete_note": delete_note,
}
'''

POLICY = "You keep notes for the user. Look ids up with the tools; ask when something is missing."


def _tool(name: str, description: str, required: tuple[str, ...] = (), **optional: str) -> AgentTool:
    types = {"notebook_id": "string", "note_id": "string", "title": "string", **optional}
    names = (*required, *optional)
    return AgentTool(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {n: {"type": types[n]} for n in names},
            "required": list(required),
            "additionalProperties": False,
        },
    )


TOOLS = (
    _tool("list_notebooks", "List all notebooks."),
    _tool("list_notes", "List the notes of a notebook.", ("notebook_id",), max_priority="integer"),
    _tool("get_note", "Get one note.", ("note_id",)),
    _tool("create_note", "Create a note in a notebook.", ("notebook_id", "title"), priority="integer"),
    _tool("update_note", "Change a note.", ("note_id",), title="string", priority="integer"),
    _tool("delete_note", "Delete a note.", ("note_id",)),
)

SCHEMA = StateSchema(
    collections=(
        Collection(
            name="notebooks",
            entity="notebook",
            key="id",
            label="name",
            fields=(
                StateField(name="id", type="id", required=True),
                StateField(name="name", type="string", required=True),
            ),
        ),
        Collection(
            name="notes",
            entity="note",
            key="id",
            label="title",
            fields=(
                StateField(name="id", type="id", required=True),
                StateField(name="notebook_id", type="id", required=True, references="notebooks"),
                StateField(name="title", type="string", required=True),
                StateField(name="priority", type="integer", required=True, default=1),
                StateField(name="created_at", type="datetime", policy="exempt"),
            ),
        ),
    )
)


def _note(output: str) -> tuple[OutputBinding, ...]:
    return tuple(
        OutputBinding(path=f"{output}{field}", collection="notes", field=field)
        for field in ("id", "title", "priority")
    )


_NOTE_KEY = ParamBinding(param="note_id", collection="notes", field="id", required=True)
_NOTEBOOK = ParamBinding(param="notebook_id", collection="notes", field="notebook_id", required=True)
_EXISTS = Precondition(kind="exists", collection="notes", message="no note")
_TITLE = ParamBinding(param="title", collection="notes", field="title")
_PRIORITY = ParamBinding(param="priority", collection="notes", field="priority")

SEMANTICS = (
    ToolSemantics(
        tool="list_notebooks",
        verb="list",
        collection="notebooks",
        many=True,
        outputs=(
            OutputBinding(path="[].id", collection="notebooks", field="id"),
            OutputBinding(path="[].name", collection="notebooks", field="name"),
        ),
    ),
    ToolSemantics(
        tool="list_notes",
        verb="list",
        collection="notes",
        scope=(_NOTEBOOK,),
        filters=(ParamBinding(param="max_priority", collection="notes", field="priority", op="le"),),
        many=True,
        outputs=_note("[]."),
    ),
    ToolSemantics(
        tool="get_note",
        verb="get",
        collection="notes",
        key=_NOTE_KEY,
        preconditions=(_EXISTS,),
        outputs=_note(""),
    ),
    ToolSemantics(
        tool="create_note",
        verb="create",
        collection="notes",
        scope=(_NOTEBOOK,),
        writes=(_TITLE.model_copy(update={"required": True}), _PRIORITY),
        outputs=_note(""),
        writes_state=True,
    ),
    ToolSemantics(
        tool="update_note",
        verb="update",
        collection="notes",
        key=_NOTE_KEY,
        writes=(_TITLE, _PRIORITY),
        preconditions=(_EXISTS,),
        outputs=_note(""),
        writes_state=True,
    ),
    ToolSemantics(
        tool="delete_note",
        verb="delete",
        collection="notes",
        key=_NOTE_KEY,
        preconditions=(_EXISTS,),
        outputs=(OutputBinding(path="deleted", collection="notes", field="id"),),
        writes_state=True,
    ),
)

GRAPH = ToolGraph(
    nodes=tuple(tool.name for tool in TOOLS),
    edges=(
        ToolEdge(
            source="list_notebooks",
            target="list_notes",
            output_path="[].id",
            param="notebook_id",
            collection="notebooks",
            field="id",
        ),
        ToolEdge(
            source="list_notebooks",
            target="create_note",
            output_path="[].id",
            param="notebook_id",
            collection="notebooks",
            field="id",
        ),
        *(
            ToolEdge(
                source="list_notes",
                target=target,
                output_path="[].id",
                param="note_id",
                collection="notes",
                field="id",
            )
            for target in ("get_note", "update_note", "delete_note")
        ),
    ),
)

DOC = ToolDoc(
    title="Notes",
    format="functions",
    source="notes.json",
    sha256="0" * 64,
    tools=tuple(
        ToolSpec(
            name=tool.name,
            description=tool.description,
            params=tuple(
                FieldSpec(
                    name=n, type=p["type"], required=n in tool.parameters["required"], location="argument"
                )
                for n, p in tool.parameters["properties"].items()
            ),
        )
        for tool in TOOLS
    ),
)

CLOCK = "2026-03-02T09:00:00"


def initial_state() -> StateData:
    """A fresh copy of the state that all three tasks start from: two notebooks, five notes."""
    made = "2026-03-01T08:00:00"

    def note(key: str, notebook: str, title: str, priority: int) -> dict[str, object]:
        return {"id": key, "notebook_id": notebook, "title": title, "priority": priority, "created_at": made}

    return {
        "notebooks": {"NB1": {"id": "NB1", "name": "Home"}, "NB2": {"id": "NB2", "name": "Work"}},
        "notes": {
            "N11": note("N11", "NB1", "Milk", 2),
            "N12": note("N12", "NB1", "Bread", 4),
            "N13": note("N13", "NB1", "Plants", 3),
            "N21": note("N21", "NB2", "Budget", 5),
            "N22": note("N22", "NB2", "Review", 1),
        },
    }


def _call(
    tool: str, thought: str, sources: tuple[ArgumentSource, ...] = (), **arguments: object
) -> ReferenceStep:
    return ReferenceStep(
        kind="call", tool=tool, arguments=arguments, thought=thought, node=tool, sources=sources
    )


def _from(param: str, step: int) -> ArgumentSource:
    return ArgumentSource(param=param, kind="output", detail=f"{step} [].id")


def _said(param: str) -> ArgumentSource:
    return ArgumentSource(param=param, kind="instruction")


def _blueprint(*tools: str, ask: bool = False) -> Blueprint:
    nodes = [BlueprintNode(id=tool, kind="tool", tool=tool) for tool in tools]
    edges = [BlueprintEdge(source=a, target=b) for a, b in pairwise(tools)]
    if ask:
        nodes.append(BlueprintNode(id="ask", kind="ask", detail="title"))
        edges.append(BlueprintEdge(source="ask", target=tools[-1]))
    return Blueprint(nodes=tuple(nodes), edges=tuple(edges))


def _tasks(environment_id: str) -> tuple[Task, ...]:
    updated = initial_state()
    updated["notes"]["N11"]["priority"] = 5
    created = initial_state()
    created["notes"]["N99"] = {
        "id": "N99",
        "notebook_id": "NB2",
        "title": "Slides",
        "priority": 3,
        "created_at": "2026-03-02T09:02:00",
    }
    deleted = initial_state()
    del deleted["notes"]["N12"]
    home = _call("list_notes", "Home is NB1.", (_from("notebook_id", 0),), notebook_id="NB1")
    first = _call("list_notebooks", "I need the notebook's id.")
    return (
        Task(
            id="notes-1",
            environment_id=environment_id,
            instruction="Set the priority of Milk in the notebook Home to 5.",
            facts=(
                UserFact(
                    name="priority", value=5, sentence="The priority should be 5.", ask_words=("priority",)
                ),
            ),
            initial_state=initial_state(),
            accepted_states=(updated,),
            reference=(
                first,
                home,
                _call(
                    "update_note",
                    "Milk is N11.",
                    (_from("note_id", 1), _said("priority")),
                    note_id="N11",
                    priority=5,
                ),
            ),
            blueprint=_blueprint("list_notebooks", "list_notes", "update_note"),
            pattern="lookup+update",
            difficulty=1,
            clock=CLOCK,
            seed=1,
        ),
        Task(
            id="notes-2",
            environment_id=environment_id,
            instruction="Add a note Slides with priority 3 to the notebook Work.",
            initial_state=initial_state(),
            accepted_states=(created,),
            reference=(
                first,
                _call(
                    "create_note",
                    "Work is NB2.",
                    (_from("notebook_id", 0), _said("title"), _said("priority")),
                    notebook_id="NB2",
                    title="Slides",
                    priority=3,
                ),
            ),
            blueprint=_blueprint("list_notebooks", "create_note"),
            pattern="lookup+create",
            difficulty=1,
            clock=CLOCK,
            seed=2,
        ),
        Task(
            id="notes-3",
            environment_id=environment_id,
            instruction="Please delete one of the notes in the notebook Home.",
            facts=(
                UserFact(
                    name="title",
                    value="Bread",
                    sentence="The title of the note is Bread.",
                    ask_words=("title", "which note"),
                    stated=False,
                ),
            ),
            initial_state=initial_state(),
            accepted_states=(deleted,),
            reference=(
                ReferenceStep(
                    kind="ask",
                    text="What is the title of the note?",
                    thought="I do not know the title.",
                    node="ask",
                ),
                first,
                home,
                _call("delete_note", "Bread is N12.", (_from("note_id", 2),), note_id="N12"),
            ),
            blueprint=_blueprint("list_notebooks", "list_notes", "delete_note", ask=True),
            pattern="ask+delete",
            difficulty=2,
            clock=CLOCK,
            seed=3,
        ),
    )


DECISIONS = tuple(ToolDecision(tool=tool.name, implemented=True) for tool in TOOLS)


def mock_draft() -> EnvironmentDraft:
    """The environment without tasks."""
    return EnvironmentDraft(
        name="notes",
        state_schema=SCHEMA,
        semantics=SEMANTICS,
        tools=TOOLS,
        source=SOURCE,
        policy=POLICY,
        decisions=DECISIONS,
    )


def mock_bundle() -> Bundle:
    """The notes bundle: tasks ``notes-1`` and ``notes-2`` in split train, ``notes-3`` in heldout."""
    draft = mock_draft()
    environment_id = environment_identity(draft)
    tasks = _tasks(environment_id)
    return Bundle(
        name="notes",
        environment_id=environment_id,
        manifest={"document_sha256": DOC.sha256, "proposer": "hand-written", "seed": 0},
        doc=DOC,
        tools=TOOLS,
        state_schema=SCHEMA,
        semantics=SEMANTICS,
        source=SOURCE,
        policy=POLICY,
        graph=GRAPH,
        tasks=tasks,
        splits={"train": ("notes-1", "notes-2"), "heldout": ("notes-3",)},
        certificates=tuple(
            Certificate(task_id=task.id, gates=(GateResult(gate="replay", passed=True, tried=1),))
            for task in tasks
        ),
        decisions=DECISIONS,
        report=SynthesisReport(
            tools_total=6,
            tools_implemented=6,
            refused={},
            tasks_sampled=3,
            tasks_certified=3,
            dropped={},
            seconds=0.0,
        ),
    )
