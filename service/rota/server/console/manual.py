"""The API as a page: the OpenAPI document for people, without external resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

Document = Mapping[str, Any]
_JSON = "application/json"


def manual_page(document: Document, base_url: str) -> dict[str, Any]:
    """Return the operations by their tags, in the document's order."""
    schemas: Document = document["components"]["schemas"]
    chapters: dict[str, list[Document]] = {tag["name"]: [] for tag in document["tags"]}
    for path, by_method in document["paths"].items():
        for method, operation in by_method.items():
            parameters = operation.get("parameters", ())
            content = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
            shown = {
                **operation,
                "method": method.upper(),
                "path": path,
                "fields": (*parameters, *_body_fields(content.get("schema", {}), schemas)),
                "command": _command(method.upper(), base_url + _filled(path, parameters), bool(content)),
            }
            chapters[operation["tags"][0]].append(shown)
    descriptions = {tag["name"]: tag["description"] for tag in document["tags"]}
    return {"chapters": [(name, descriptions[name], entries) for name, entries in chapters.items() if entries]}


def _body_fields(schema: Document, schemas: Document) -> Iterator[Document]:
    """Yield the fields of all forms of a body, as parameters; a field of several forms is listed once."""
    seen: set[str] = set()
    for form in schema.get("anyOf", (schema,)):
        found = schemas[form["$ref"].rpartition("/")[2]] if "$ref" in form else form
        for name, field in found.get("properties", {}).items():
            if name not in seen:
                seen.add(name)
                is_required = name in found.get("required", ())
                yield {**field, "name": name, "in": "body", "required": is_required}


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
