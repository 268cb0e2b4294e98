"""The OpenAPI document: valid, complete, and the one that is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import validate

from rota.api.http.app import HttpApi
from rota.api.http.openapi import dump_openapi
from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.wire.routes import ROUTES, Carrier, Route, read_request

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
METHODS = {"get", "put", "post", "delete"}
BODY_ROUTES = [route for route in ROUTES.values() if route.carrier is Carrier.BODY]


@pytest.fixture
def document(api: HttpApi) -> dict[str, Any]:
    return api.openapi()


def dumped() -> dict[str, Any]:
    """The document as it is committed: that of a server with rules."""
    written: dict[str, Any] = json.loads(dump_openapi())
    return written


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, described) for path, item in document["paths"].items() for method, described in item.items()]


async def test_the_document_is_valid_and_served(document: dict[str, Any], client: httpx.AsyncClient) -> None:
    validate(document)
    assert (await client.get("/openapi.json")).json() == document


async def test_the_committed_document_is_current() -> None:
    """Otherwise: `python -m rota.api.http.openapi > docs/reference/openapi.json`."""
    assert COMMITTED.read_text() == dump_openapi()


async def test_every_route_is_documented_and_exists(
    api: HttpApi, document: dict[str, Any], client: httpx.AsyncClient
) -> None:
    served = {
        (getattr(route, "path", "").replace(":path", ""), method.lower())
        for route in api.fastapi.routes
        for method in getattr(route, "methods", None) or ()
        if method.lower() in METHODS
    }
    documented = {(path, method) for path, method, _ in operations(document)}
    assert served - {("/openapi.json", "get")} == documented


async def test_every_operation_has_a_name_a_tag_and_a_summary(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    ids = [described["operationId"] for _, _, described in operations(document)]
    assert len(ids) == len(set(ids))
    for _, _, described in operations(document):
        assert described["summary"]
        assert set(described["tags"]) <= tags
        assert "500" in described["responses"]


async def test_a_server_without_rules_asks_nobody_for_a_proof(document: dict[str, Any]) -> None:
    asked = [described["security"] for _, _, described in operations(document) if described["security"]]

    assert asked
    assert all({} in proofs for proofs in asked)
    assert document["components"]["securitySchemes"] == dumped()["components"]["securitySchemes"]
    still_optional = {path for path, _, described in operations(dumped()) if {} in described["security"]}
    assert still_optional == {"/v1/whoami", "/v1/can-i", "/v1/namespaces"}


async def test_a_field_status_is_a_number_in_answers_and_errors(document: dict[str, Any]) -> None:
    waiting: list[Any] = [document]
    found = []
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            found += [each["properties"]["status"]] if "status" in each.get("properties", {}) else []
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    assert found
    assert {each.get("type") for each in found} == {"integer"}


async def test_every_example_fits_its_schema(document: dict[str, Any]) -> None:
    checked = 0
    for _, _, described in operations(document):
        bodies = [described["requestBody"]["content"]] if "requestBody" in described else []
        bodies += [response.get("content", {}) for response in described["responses"].values()]
        for media in [media for body in bodies for media in body.values()]:
            examples = [each["value"] for each in media.get("examples", {}).values()]
            examples += [media["example"]] if "example" in media else []
            for example in examples:
                schema = {**media["schema"], "components": document["components"]}
                jsonschema.validate(example, schema, cls=jsonschema.Draft202012Validator)
                checked += 1
    assert checked > 100


@pytest.mark.parametrize("route", BODY_ROUTES, ids=lambda route: route.shape.title)
async def test_a_field_is_required_exactly_where_the_schema_says_so(route: Route, document: dict[str, Any]) -> None:
    example = _whole_example(route, document)
    path = dict.fromkeys(route.path_parameters, "name")
    required = document["components"]["schemas"][route.shape.title].get("required", [])
    read_request(route, path, json.dumps(example).encode(), Limits())
    for name in example:
        without = {key: value for key, value in example.items() if key != name}
        if name in required:
            with pytest.raises(RejectedRequest, match=f"{name} is missing"):
                read_request(route, path, json.dumps(without).encode(), Limits())
        else:
            read_request(route, path, json.dumps(without).encode(), Limits())


def _whole_example(route: Route, document: dict[str, Any]) -> dict[str, Any]:
    content = document["paths"][route.path][route.method.lower()]["requestBody"]["content"]["application/json"]
    example: dict[str, Any] = content["examples"]["one"]["value"]
    return example
