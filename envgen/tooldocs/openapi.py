"""OpenAPI 3.0 / 3.1 and Swagger 2.0 -> ToolDoc. Webhooks and callbacks are what the service calls, so they
are no tools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from envgen.errors import DocumentError
from envgen.tooldocs.load import Loaded
from envgen.tooldocs.local_files import LocalFiles
from envgen.tooldocs.naming import clean_name, unique_tools
from envgen.tooldocs.node import Node, Sub
from envgen.tooldocs.prose import with_prose_enum
from envgen.tooldocs.schema import SchemaReader
from envgen.tooldocs.tree import JsonMap, as_list, as_map, as_text, join, list_or_none, map_or_none
from envgen.types import FieldSpec, ToolDoc, ToolSpec

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_LOCATIONS = frozenset({"path", "query", "header", "cookie"})


_SAID = {"swagger-2.0": "Swagger 2.0", "openapi-3.0": "OpenAPI 3.0", "openapi-3.1": "OpenAPI 3.1"}


def is_openapi(tree: object) -> bool:
    """True for an object with an ``openapi`` or ``swagger`` version."""
    mapping = map_or_none(tree)
    return mapping is not None and ("openapi" in mapping or "swagger" in mapping)


def read_openapi(loaded: Loaded) -> ToolDoc:
    """The document's operations as tools. Raises DocumentError with the JSON pointer of what is wrong."""
    root = as_map(loaded.tree, "", "document")
    format_ = _format(root)
    files = LocalFiles(loaded.folder, loaded.source)
    reader = SchemaReader(root, files=files)
    tools: list[ToolSpec] = []
    paths = as_map(root.get("paths") if root.get("paths") is not None else {}, "/paths", "paths")
    for path, raw_item in paths.items():
        if path.startswith("x-") or raw_item is None:
            continue
        item, item_pointer = reader.resolve(raw_item, join("/paths", path), "path item")
        for method in METHODS:
            if method in item:
                operation = as_map(item[method], join(item_pointer, method), "operation")
                tools.append(_Operation(reader, root, path, method, item, item_pointer, operation).tool())
    info = map_or_none(root.get("info")) or {}
    return ToolDoc(
        title=as_text(info.get("title"), "/info/title", "title").strip() or loaded.source.rsplit(".", 1)[0],
        format=format_,
        source=loaded.source,
        sha256=files.digest(loaded.sha256),
        detected=f"{_SAID[format_]}: the document has {_sign(root)}",
        description=as_text(info.get("description"), "/info/description", "description").strip(),
        tools=unique_tools(tools, loaded.source),
        schemas=_schemas(root, reader),
    )


def _sign(root: JsonMap) -> str:
    key = "swagger" if "swagger" in root else "openapi"
    return f"{key}: {root[key]}"


def _format(root: JsonMap) -> str:
    if "swagger" in root:
        version = as_text(root["swagger"], "/swagger", "swagger version")
        if not version.startswith("2"):
            raise DocumentError(
                f"/swagger: version {version[:20]!r}, expected 2.0, or a document with openapi 3.0 or 3.1"
            )
        return "swagger-2.0"
    version = as_text(root["openapi"], "/openapi", "openapi version")
    if version.startswith("3.0"):
        return "openapi-3.0"
    if version.startswith(("3.1", "3.2")):
        return "openapi-3.1"
    raise DocumentError(
        f"/openapi: version {version[:20]!r}, expected 3.0 or 3.1 (or swagger 2.0); convert the "
        "document first"
    )


def _schemas(root: JsonMap, reader: SchemaReader) -> tuple[FieldSpec, ...]:
    if "swagger" in root:
        raw, pointer = root.get("definitions"), "/definitions"
    else:
        raw, pointer = (map_or_none(root.get("components")) or {}).get("schemas"), "/components/schemas"
    if raw is None:
        return ()
    result: list[FieldSpec] = []
    for name, schema in as_map(raw, pointer, "schemas").items():
        place = join(pointer, name)
        result.append(reader.field(name, Sub(schema, place, frozenset({place})), output=True))
    return tuple(result)


@dataclass(frozen=True)
class _Content:
    """The media type of a body that is read: its name, its schema, and an example of it."""

    media: str
    schema: Sub
    example: Any


class _Operation:
    """One path and method, turned into a ToolSpec."""

    def __init__(
        self,
        reader: SchemaReader,
        root: JsonMap,
        path: str,
        method: str,
        item: JsonMap,
        item_pointer: str,
        operation: JsonMap,
    ) -> None:
        self._reader = reader
        self._root = root
        self._path = path
        self._method = method
        self._item = item
        self._item_pointer = item_pointer
        self._operation = operation
        self._pointer = join(item_pointer, method)

    def tool(self) -> ToolSpec:
        """The ToolSpec."""
        op, pointer = self._operation, self._pointer
        summary = as_text(op.get("summary"), join(pointer, "summary"), "summary").strip()
        description = as_text(op.get("description"), join(pointer, "description"), "description").strip()
        name = as_text(op.get("operationId"), join(pointer, "operationId"), "operationId").strip()
        tags = list_or_none(op.get("tags")) or []
        return ToolSpec(
            name=clean_name(name or _name_from_path(self._method, self._path), pointer),
            description=" ".join((description or summary).split()),
            summary=" ".join(summary.split()) if description and summary != description else "",
            params=self._params(),
            output=self._output(),
            method=self._method,
            path=self._path,
            tags=tuple(as_text(tag, join(pointer, "tags"), "tag") for tag in tags),
            pointer=pointer,
        )

    # -------------------------------------------------------------------------------------------- parameters
    def _params(self) -> tuple[FieldSpec, ...]:
        """Path, query, header and cookie parameters, then the members of the body. A body member with the
        name of a path or query parameter repeats it (``PUT /user/{username}``) and is left out."""
        params: dict[tuple[str, str], FieldSpec] = {}
        bodies: list[FieldSpec] = []
        for holder, place in ((self._item, self._item_pointer), (self._operation, self._pointer)):
            if holder.get("parameters") is None:
                continue
            listed = as_list(holder["parameters"], join(place, "parameters"), "parameters")
            for index, raw in enumerate(listed):
                param, pointer = self._reader.resolve(raw, join(place, "parameters", index), "parameter")
                where = as_text(param.get("in"), join(pointer, "in"), "in")
                if where == "body":
                    bodies.extend(
                        self._body(
                            Sub(param.get("schema", {}), join(pointer, "schema")),
                            param.get("required") is True,
                            None,
                        )
                    )
                    continue
                spec = self._param(param, pointer, where)
                params[(spec.name, spec.location)] = spec
        if self._operation.get("requestBody") is not None:
            bodies.extend(self._request_body())
        result: dict[str, FieldSpec] = {}
        for spec in [*params.values(), *bodies]:
            result.setdefault(spec.name, spec)
        return tuple(result.values())

    def _param(self, param: JsonMap, pointer: str, where: str) -> FieldSpec:
        name = as_text(param.get("name"), join(pointer, "name"), "name")
        if not name:
            raise DocumentError(f"{pointer}: a parameter has no name; expected name, in and schema")
        if where == "formData":
            where = "body"
        elif where not in _LOCATIONS:
            raise DocumentError(
                f"{join(pointer, 'in')}: {where[:40]!r}, expected path, query, header or cookie"
            )
        schema: Any = param.get("schema")
        schema_pointer = join(pointer, "schema")
        if schema is None and param.get("content") is not None:
            content = as_map(param["content"], join(pointer, "content"), "content")
            media = _media_type(content)
            if media:
                schema_pointer = join(pointer, "content", media, "schema")
                schema = as_map(content[media], join(pointer, "content", media), "media type").get("schema")
        if schema is None:  # Swagger 2.0 writes the schema into the parameter
            schema = {
                key: value
                for key, value in param.items()
                if key not in ("name", "in", "required", "description", "content")
            }
            schema_pointer = pointer
        required = param.get("required") is True or where == "path"
        spec = self._reader.field(name, Sub(schema, schema_pointer), location=where, required=required)
        description = as_text(param.get("description"), join(pointer, "description"), "description")
        example = (
            param.get("example")
            if param.get("example") is not None
            else _first_example(self._reader, param, pointer)
        )
        return with_prose_enum(
            spec.model_copy(
                update={
                    "description": " ".join((description or spec.description).split()),
                    "example": example if example is not None else spec.example,
                    "pointer": pointer,
                }
            )
        )

    def _request_body(self) -> list[FieldSpec]:
        body, pointer = self._reader.resolve(
            self._operation["requestBody"], join(self._pointer, "requestBody"), "requestBody"
        )
        found = self._content(body, pointer)
        return self._body(found.schema, body.get("required") is True, found.example) if found else []

    def _body(self, sub: Sub, required: bool, example: Any) -> list[FieldSpec]:
        """Members of the body as parameters; a single wrapping object (``{article: {…}}``) is opened, unless
        a member's name is taken by a path parameter (``{parent: {page_id}}`` of
        ``/pages/{page_id}/move``).
        """
        node = self._reader.flatten(sub)
        if len(node.members) == 1:
            (wrapper, member), inner_example = next(iter(node.members.items())), map_or_none(example)
            inner = self._reader.flatten(member)
            taken = any(f"{{{name}}}" in self._path for name in inner.members)
            if inner.members and not inner.truncated and not taken:
                required = required and wrapper in node.required
                node, example = inner, inner_example.get(wrapper) if inner_example else None
        if not node.members:
            if not node.types:
                return []
            name = node.ref[:1].lower() + node.ref[1:] if node.ref and node.types[0] != "object" else "body"
            spec = self._reader.node_field(name, node, location="body", required=required)
            return [
                with_prose_enum(spec if example is None else spec.model_copy(update={"example": example}))
            ]
        members = self._members(node, required)
        values = map_or_none(example) or {}
        return [
            m.model_copy(update={"example": values[m.name]}) if m.example is None and m.name in values else m
            for m in members
        ]

    def _members(self, node: Node, required: bool) -> list[FieldSpec]:
        whole = self._reader.node_field("body", replace(node, types=("object",)), location="body")
        return [
            with_prose_enum(m if required or not m.required else m.model_copy(update={"required": False}))
            for m in whole.properties
        ]

    # -------------------------------------------------------------------------------------------- result
    def _output(self) -> FieldSpec | None:
        """Schema of the response to 200, 201, any 2xx, or of a ``default`` that is alone and no error."""
        if self._operation.get("responses") is None:
            return None
        pointer = join(self._pointer, "responses")
        responses = as_map(self._operation["responses"], pointer, "responses")
        status = next((s for s in ("200", "201") if s in responses), "")
        status = status or next((s for s in sorted(responses) if s[:1] == "2" and s != "204"), "")
        if not status:
            if any(s[:1] == "2" for s in responses) or "default" not in responses:
                return None
            status = "default"
        response, pointer = self._reader.resolve(responses[status], join(pointer, status), "response")
        description = as_text(response.get("description"), join(pointer, "description"), "description")
        if status == "default" and any(
            word in description.lower() for word in ("error", "unexpected", "fail")
        ):
            return None
        if "schema" in response:  # Swagger 2.0
            return self._result(
                Sub(response["schema"], join(pointer, "schema")), description, "", _swagger_example(response)
            )
        found = self._content(response, pointer)
        return self._result(found.schema, description, found.media, found.example) if found else None

    def _content(self, holder: JsonMap, pointer: str) -> _Content | None:
        """What a request body or a response says of the media type to read; None where it names none."""
        content = as_map(
            holder.get("content") if holder.get("content") is not None else {},
            join(pointer, "content"),
            "content",
        )
        media = _media_type(content)
        if not media:
            return None
        place = join(pointer, "content", media)
        media_object = as_map(content[media] if content[media] is not None else {}, place, "media type")
        example = media_object.get("example")
        if example is None:
            example = _first_example(self._reader, media_object, place)
        return _Content(media, Sub(media_object.get("schema", {}), join(place, "schema")), example)

    def _result(self, sub: Sub, description: str, media: str, example: Any) -> FieldSpec:
        spec = self._reader.field("result", sub, location="response", output=True)
        update: dict[str, Any] = {"description": spec.description or " ".join(description.split())}
        if media and spec.type in ("string", "any") and not spec.properties and _is_binary(media):
            update |= {"type": "string", "format": "binary"}
        if example is not None:
            update["example"] = example
        return spec.model_copy(update=update)


def _name_from_path(method: str, path: str) -> str:
    """``get /users/{id}/posts`` -> ``get_users_by_id_posts``."""
    parts = [f"by_{p[1:-1]}" if p.startswith("{") and p.endswith("}") else p for p in path.split("/") if p]
    return "_".join([method, *parts])


def _media_type(content: JsonMap) -> str:
    """The media type to read: JSON, ``…+json``, forms, then the first."""
    for wanted in (
        "application/json",
        "+json",
        "json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
    ):
        for media in content:
            if wanted in media.lower():
                return media
    return next(iter(content), "")


def _is_binary(media: str) -> bool:
    lower = media.lower()
    return lower.startswith(("image/", "audio/", "video/", "font/")) or lower.split(";")[0].strip() in {
        "application/octet-stream", "application/pdf", "application/zip", "application/gzip",
    }  # fmt: skip


def _first_example(reader: SchemaReader, holder: JsonMap, pointer: str) -> Any:
    """Value of the first entry of ``examples`` (an object of Example Objects, or references to them)."""
    examples = map_or_none(holder.get("examples"))
    if not examples:
        return None
    name, raw = next(iter(examples.items()))
    if map_or_none(raw) is None:
        return raw
    example, _ = reader.resolve(raw, join(pointer, "examples", name), "example")
    return example.get("value")


def _swagger_example(response: JsonMap) -> Any:
    examples = map_or_none(response.get("examples")) or {}
    return examples.get(_media_type(examples)) if examples else None
