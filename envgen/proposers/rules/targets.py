"""Every tool of a document brought to one form: a verb on an entity, or a refusal with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from envgen.proposers.rules import names, paths
from envgen.proposers.rules.words import (
    AUTH,
    COUNT,
    CREATE,
    DELETE,
    EXTERNAL,
    GET,
    LIST,
    MOVE,
    RUN,
    SEARCH,
    STATE_VERBS,
    TOGGLE,
    UPDATE,
    collection_name,
    id_stem,
    singular,
    split_words,
)
from envgen.types import FieldSpec, ToolDoc, ToolSpec

_WRITING = frozenset({"create", "update", "delete", "set", "toggle", "move", "run"})
_READING = frozenset({"get", "list", "search", "count", "stats", "history"})


@dataclass
class Target:
    """One tool on its way to semantics."""

    tool: ToolSpec
    verb: str = ""
    """``get list search create update delete set toggle move count stats run`` or empty."""
    word: str = ""
    """The verb as the document says it: ``buy``, ``enable``."""
    entity: tuple[str, ...] = ()
    key_param: str = ""
    parents: list[tuple[tuple[str, ...], str]] = field(default_factory=list[tuple[tuple[str, ...], str]])
    """``(parent entity, parameter)`` from the path."""
    before: tuple[str, ...] = ()
    """Words before the entity in the name: ``command`` of ``add_command_task``."""
    after: tuple[str, ...] = ()
    """Words after it: ``completion`` of ``toggle_task_completion``; the action segment of a path."""
    plural: bool = False
    singleton: bool = False
    refusal: str = ""
    part: dict[str, str] = field(default_factory=dict[str, str])
    """What `envgen.proposers.rules.kinds` found: result property -> field shown, ``by`` -> field counted."""


def resolve(doc: ToolDoc) -> list[Target]:
    """One target per tool, in document order."""
    result = _from_paths(doc.model_copy(update={"tools": tuple(t for t in doc.tools if t.path)}))
    named = doc.model_copy(update={"tools": tuple(t for t in doc.tools if not t.path)})
    if named.tools:  # a combined document may have both kinds: names know what the paths are about
        by_name = _from_names(named, [t.entity for t in result if t.entity])
        _runs(by_name)
        place = {tool.name: index for index, tool in enumerate(doc.tools)}
        result = sorted([*result, *by_name], key=lambda target: place[target.tool.name])
    for target in result:
        target.refusal = general_refusal(target.tool, target) or target.refusal
    return result


def general_refusal(tool: ToolSpec, target: Target) -> str:
    """A reason that holds whatever the entity is, or empty."""
    name_words = split_words(tool.said_name)
    said = set(name_words)
    segments = {word for part in tool.path.split("/") for word in split_words(part)}
    if (
        said & AUTH
        or {"log", "in"} <= said
        or {"login", "logout"} & segments
        or "login" in "".join(name_words)
    ):
        return "authentication: log-in and log-out are not modelled, there is no password model"
    if _binary(tool.output):
        return "its result is binary (an image or a file), which a JSON state cannot hold"
    if any(_binary(param) for param in tool.params):
        return "it takes a binary file, which a JSON state cannot hold"
    if tool.params and tool.params[-1].name == "body" and tool.params[-1].type == "array":
        return "it creates several records from one array, and its result does not say what became of each"
    if name_words[-2:] in (["current", "time"], ["server", "time"]):
        return "it reads a clock, not the state"
    if _returns_token(tool.output):
        return "its result requires an authentication token, and credentials are not modelled"
    if tool.read_only is True and target.verb in _WRITING:
        return "the document marks it as read-only, and its name or method says that it writes"
    if tool.read_only is False and target.verb in _READING:
        return "the document marks it as writing, and does not say what it changes beyond what its name reads"
    first = name_words[0] if name_words else ""
    if first in EXTERNAL and target.verb not in ("create",):
        return f"external effect: {EXTERNAL[first]}"
    return ""


def _binary(spec: FieldSpec | None) -> bool:
    if spec is None:
        return False
    return spec.format in ("binary", "byte") or any(_binary(p) for p in spec.properties if p.required)


def _returns_token(spec: FieldSpec | None) -> bool:
    """A required property that is a credential, at any level of the result."""
    if spec is None:
        return False
    for prop in spec.properties:
        words = set(split_words(prop.name))
        if prop.type == "string" and prop.required and (words == {"token"} or {"access", "token"} <= words):
            return True
        if _returns_token(prop):
            return True
    return False


# ------------------------------------------------------------------------------------------------ OpenAPI
def _from_paths(doc: ToolDoc) -> list[Target]:
    path_map = paths.map_paths(doc)
    result: list[Target] = []
    for tool in doc.tools:
        found = path_map.targets[tool.name]
        target = Target(tool)
        result.append(target)
        if not found.chain:
            target.refusal = (
                f"its path {tool.path} names no collection of records that the document keys or creates"
            )
            continue
        known = {**path_map.collections, **path_map.singletons}
        last, key_param = found.chain[-1]
        target.entity = known[last]
        target.key_param = key_param
        target.singleton = found.singleton
        target.parents = [(known[prefix], param) for prefix, param in found.chain[:-1] if param]
        target.plural = not key_param
        target.after = tuple(split_words(found.action))
        words = split_words(tool.said_name)
        part = names.take_apart(tool.said_name)
        target.word = part.verb or (words[0] if words else "")
        target.verb = _verb_of_path(tool, target, found)
        if not target.verb:
            target.refusal = f"no known effect of {tool.method.upper()} {tool.path}: {_says(tool)}"
    return result


def _says(tool: ToolSpec) -> str:
    text = " ".join(tool.description.split())
    return f"the document says only {text[:80]!r}" if text else "the document says nothing more"


def _verb_of_path(tool: ToolSpec, target: Target, found: paths.PathTarget) -> str:
    """Verb from method, position of the key, and the action segment."""
    action = target.after
    if found.singleton:
        return (
            {"get": "get", "put": "update", "patch": "update", "post": "update"}.get(tool.method, "")
            if not action
            else ""
        )
    if action:
        return _verb_of_action(tool, target)
    if tool.method == "get":
        return "get" if target.key_param else "list"
    if tool.method == "delete":
        return "delete" if target.key_param else ""
    if tool.method in ("put", "patch"):
        return "update"
    if tool.method == "post":
        return "update" if target.key_param else "create"
    return ""


def _verb_of_action(tool: ToolSpec, target: Target) -> str:
    action = target.after
    word = action[0]
    if word in STATE_VERBS and tool.method in ("post", "put", "patch", "delete"):
        if tool.method == "delete":
            word = f"un{word}"
        if word not in STATE_VERBS:
            return ""
        target.word = word
        return "set"
    if tool.method == "get":
        if word in SEARCH and not target.key_param:
            return "search"
        if not target.key_param and paths.is_list_output(tool.output):
            return "list"
        return ""
    if word in MOVE and tool.method in ("post", "put", "patch"):
        return "move"
    return ""


# ------------------------------------------------------------------------------------------------ names
def _from_names(doc: ToolDoc, known: list[tuple[str, ...]]) -> list[Target]:
    entities = list(dict.fromkeys([*names.entities_of(doc), *known]))
    result: list[Target] = []
    for tool in doc.tools:
        part = names.take_apart(tool.said_name)
        target = Target(tool, word=part.verb, plural=part.plural)
        result.append(target)
        if "method" in {p.name for p in tool.params if p.enum}:
            target.refusal = (
                "several operations behind one `method` parameter, each with its own arguments and result"
            )
            continue
        match = names.match_entity(part.phrase, entities) if part.phrase else None
        if match is None:
            target.refusal = _no_entity(tool, part)
            continue
        target.entity, target.before, target.after = match
        target.key_param = _key_param(tool, target.entity, entities)
        target.verb = _verb_of_name(target, part)
        if (
            target.verb == "list"
            and not part.plural
            and tool.output is not None
            and not paths.is_list_output(tool.output)
        ):
            target.verb, target.singleton = ("get", True) if not tool.params else ("", False)
        if not target.verb:
            target.refusal = (
                f"no known effect of the verb {part.verb or split_words(tool.said_name)[0]!r}: {_says(tool)}"
            )
    return result


def _runs(targets: list[Target]) -> None:
    """``run_task_now`` with ``get_task_executions``: running adds an execution to the history that the other
    lists."""
    for history in targets:
        if history.verb != "history" or history.refusal or not history.key_param:
            continue
        runs = [t for t in targets if t.verb == "run" and t.entity == history.entity and not t.refusal]
        if not runs:
            continue
        parent, noun = history.entity, (history.after[-1] if history.after[-1] != "history" else "run",)
        for target in (history, *runs):
            target.parents = [(parent, target.key_param)]
            target.entity, target.after, target.key_param = noun, (), ""
        history.verb = "list"
        for run in runs:
            run.verb = "create"


def _no_entity(tool: ToolSpec, part: names.NameTarget) -> str:
    words = set(split_words(tool.said_name))
    if "server" in words or "version" in words or words & {"health", "ping"}:
        return "it describes the server itself, which is no part of the state the tools share"
    if words & {"time", "date", "clock"}:
        return "it reads a clock, not the state"
    if not part.verb or not part.phrase:
        return "its name does not say, with a known verb and a noun, which records it reads or changes"
    noun = " ".join(part.phrase)
    return f"no other tool writes or keys {noun!r}, and the document does not say what a record of it holds"


def _key_param(tool: ToolSpec, entity: tuple[str, ...], entities: list[tuple[str, ...]]) -> str:
    """The parameter with the key: ``task_id`` of a task, ``pullNumber`` of a pull request, ``repo`` of a
    repository."""
    stems = {param.name: stem for param in tool.params if (stem := id_stem(param.name)) is not None}
    for name, stem in stems.items():
        if stem == entity:
            return name
    starts = [
        name
        for name, stem in stems.items()
        if entity == min((e for e in entities if e[: len(stem)] == stem), key=len, default=())
    ]
    if len(starts) == 1:
        return starts[0]
    for param in tool.params:
        if (
            param.required
            and len(param.name) >= 4
            and entity[-1].startswith(param.name)
            and param.name != entity[-1]
        ):
            return param.name
    for param in tool.params:
        if param.name in ("id", "_id") or (
            param.name == entity[-1] and param.required and param.type in ("string", "integer")
        ):
            return param.name
    return ""


def _verb_of_name(target: Target, part: names.NameTarget) -> str:
    verb, after = part.verb, target.after
    if verb in TOGGLE:
        return "toggle" if target.key_param else ""
    if verb in RUN:
        return "run" if target.key_param else ""
    if (
        after
        and after[-1] in {"stat", "stats", "statistics", "summary", "count"}
        and verb in GET | LIST | COUNT
    ):
        return "stats"
    if verb in COUNT:
        return "count"
    if verb in GET | LIST and after:
        return "history" if after[-1] in {"execution", "run", "history"} else ""
    if verb in LIST or (verb in GET and not target.key_param):
        return "list"
    if verb in GET:
        return "get"
    if verb in SEARCH:
        return "search"
    if verb in STATE_VERBS and target.key_param:
        return "set"
    if verb in CREATE and not after:
        return "create"
    if verb in UPDATE and target.key_param and (not after or _named_params(target)):
        return "update"
    if verb in MOVE and target.key_param and not after and not target.before:  # assign_user_role: whose?
        return "move"
    if verb in DELETE and target.key_param and not after:
        return "delete"
    return ""


def _named_params(target: Target) -> list[str]:
    """Parameters that the words after the entity name: ``state`` of ``update_issue_state``."""
    result: list[str] = []
    for param in target.tool.params:
        words = [singular(word) for word in split_words(param.name)]
        if (
            param.name != target.key_param
            and words
            and (words[-1] in target.after or words[0] in target.after)
        ):
            result.append(param.name)
    return result


def named_params(target: Target) -> list[str]:
    """See above; empty for tools whose name ends with the entity."""
    return _named_params(target) if target.after and target.verb == "update" and not target.tool.path else []


def collection_of(entity: tuple[str, ...]) -> str:
    """Name of the collection of an entity."""
    return collection_name(entity)
