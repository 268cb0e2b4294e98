"""The API as a page: the OpenAPI document for people, without external resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

Document = Mapping[str, Any]
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of the body; `place` is `path`, `query` or `body`."""

    name: str
    place: str
    is_required: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Route:
    """A displayed operation."""

    name: str
    method: str
    path: str
    summary: str
    fields: tuple[Field, ...]
    answers: tuple[tuple[str, str], ...]
    command: str


def manual_page(document: Document, base_url: str) -> dict[str, Any]:
    """Return the operations by their tags, in the document's order."""
    schemas: Document = document["components"]["schemas"]
    chapters: dict[str, list[Route]] = {tag["name"]: [] for tag in document["tags"]}
    for path, by_method in document["paths"].items():
        for method, operation in by_method.items():
            chapters[operation["tags"][0]].append(_route(method.upper(), path, operation, schemas, base_url))
    descriptions = {tag["name"]: tag["description"] for tag in document["tags"]}
    return {"chapters": [(name, descriptions[name], entries) for name, entries in chapters.items() if entries]}


def _route(method: str, path: str, operation: Document, schemas: Document, base_url: str) -> Route:
    parameters = operation.get("parameters", ())
    content = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
    return Route(
        operation["operationId"],
        method,
        path,
        operation["summary"],
        (*map(_parameter, parameters), *_body_fields(content.get("schema", {}), schemas)),
        tuple((status, answer["description"]) for status, answer in sorted(operation["responses"].items())),
        _command(method, base_url + _filled(path, parameters), bool(content)),
    )


def _parameter(parameter: Document) -> Field:
    required = bool(parameter.get("required"))
    return Field(parameter["name"], parameter["in"], required, parameter.get("description", ""))


def _body_fields(schema: Document, schemas: Document) -> Iterator[Field]:
    """Yield the fields of all forms of a body; a field of several forms is listed once."""
    seen: set[str] = set()
    for form in schema.get("anyOf", (schema,)):
        found = schemas[form["$ref"].rpartition("/")[2]] if "$ref" in form else form
        for name, field in found.get("properties", {}).items():
            if name not in seen:
                seen.add(name)
                yield Field(name, "body", name in found.get("required", ()), field.get("description", ""))


def _filled(path: str, parameters: Any) -> str:
    """Return the path with examples instead of names."""
    for parameter in parameters:
        if parameter["in"] == "path":
            path = path.replace(
                "{" + parameter["name"] + "}", parameter["schema"].get("examples", [parameter["name"]])[0]
            )
    return path


def _command(method: str, url: str, has_body: bool) -> str:
    body = " -H 'content-type: application/json' -d @body.json" if has_body else ""
    return f"curl -s{'' if method == 'GET' else f' -X {method}'} {quote(url)}{body}"
